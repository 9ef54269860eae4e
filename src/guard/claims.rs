//! The claims, as a watch last showed them. It tells where to look; nothing is decided from it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use kube::ResourceExt;

use super::facts::Facts;
use super::spot::Spot;
use crate::api::DeployerClaim;
use crate::api::claim::PROTOCOL;
use crate::cluster::upkeep::Listed;
use crate::domain::claim_status::phase;

/// Namespace and name.
type Id = (Arc<str>, Arc<str>);

/// A claim, as a watch last showed it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ClaimView {
    policy: Arc<str>,
    uid: Box<str>,
    version: Box<str>,
    generation: Option<i64>,
    pending: Vec<Box<str>>,
    rejections: i64,
    /// The uids of the owners that wait.
    waiting: Vec<Box<str>>,
    /// Its status says another phase than its spec, or none.
    lags: bool,
    /// Since when its spec is seen as it is, on the guard's monotonic clock.
    unchanged_since: Duration,
}

/// All claims.
#[derive(Debug, Default)]
pub(super) struct Claims {
    known: HashMap<Id, ClaimView>,
    beginning: Option<HashSet<Id>>,
}

/// Sums over the claims of a policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sums {
    /// Claims that exist.
    pub(super) claims: i64,
    /// Pods that were admitted and are not yet seen in the store.
    pub(super) pending: i64,
    /// Refusals that the claims have recorded.
    pub(super) rejections: i64,
}

impl Claims {
    /// A watch begins anew: what it does not show until [`Self::begun`] is gone.
    pub(super) fn begin(&mut self) {
        self.beginning = Some(HashSet::new());
    }

    /// All was shown. Gives the spots of claims that are gone.
    pub(super) fn begun(&mut self) -> Vec<Spot> {
        let Some(shown) = self.beginning.take() else {
            return Vec::new();
        };
        let gone: Vec<_> = self.known.keys().filter(|id| !shown.contains(*id)).cloned().collect();
        gone.into_iter().filter_map(|id| self.remove(&id)).collect()
    }

    /// The claim is in the store like this. Gives its spot if it is to be examined: its spec or who waits has changed.
    /// `facts` learn which of its pending entries were given up.
    pub(super) fn show(&mut self, claim: &DeployerClaim, facts: &mut Facts, now: Duration) -> Option<Spot> {
        let id = id(claim);
        if let Some(beginning) = &mut self.beginning {
            beginning.insert(id.clone());
        }
        let status = claim.status.as_ref();
        let view = ClaimView {
            policy: claim.spec.policy.name.as_str().into(),
            uid: claim.uid().unwrap_or_default().into(),
            version: claim.resource_version().unwrap_or_default().into(),
            generation: claim.metadata.generation,
            pending: claim
                .spec
                .pending
                .iter()
                .map(|entry| entry.uid.as_str().into())
                .collect(),
            rejections: status
                .and_then(|status| status.rejections.as_ref())
                .map_or(0, |rejections| rejections.count),
            waiting: status
                .iter()
                .flat_map(|status| &status.waiting)
                .map(|owner| owner.uid.as_str().into())
                .collect(),
            lags: claim.spec.protocol <= PROTOCOL && status.and_then(|status| status.phase) != Some(phase(&claim.spec)),
            unchanged_since: now,
        };
        let spot = view.spot(&id);
        let Some(before) = self.known.insert(id.clone(), view.clone()) else {
            return Some(spot);
        };
        if before.uid == view.uid {
            facts.claim_changed(&before.pending, &claim.spec, now);
        }
        let same_spec = before.uid == view.uid && view.generation.is_some() && before.generation == view.generation;
        if same_spec && let Some(view) = self.known.get_mut(&id) {
            view.unchanged_since = before.unchanged_since;
        }
        (!same_spec || before.waiting != view.waiting).then_some(spot)
    }

    /// Claims whose status has not told their phase for this long.
    pub(super) fn lagging(&self, now: Duration, settled: Duration) -> Vec<Id> {
        let lags = |view: &ClaimView| view.lags && now.saturating_sub(view.unchanged_since) >= settled;
        let lagging = self.known.iter().filter(|(_, view)| lags(view));
        lagging.map(|(id, _)| id.clone()).collect()
    }

    /// Since when the spec of this very claim is seen as it is. `None` if it was not seen like this.
    #[must_use]
    pub(super) fn unchanged_since(&self, claim: &DeployerClaim) -> Option<Duration> {
        let view = self.known.get(&id(claim))?;
        let same = claim.uid().as_deref() == Some(&view.uid) && claim.metadata.generation == view.generation;
        (same && view.generation.is_some()).then_some(view.unchanged_since)
    }

    /// The claim is gone.
    pub(super) fn gone(&mut self, claim: &DeployerClaim) -> Option<Spot> {
        self.remove(&id(claim))
    }

    fn remove(&mut self, id: &Id) -> Option<Spot> {
        self.known.remove(id).map(|view| view.spot(id))
    }

    /// Whether the claim is known in the very version that was read.
    #[must_use]
    pub(super) fn is_shown(&self, read: &DeployerClaim) -> bool {
        let view = self.known.get(&id(read));
        view.is_some_and(|view| read.resource_version().as_deref() == Some(&view.version))
    }

    /// The version in which a claim is known.
    #[must_use]
    pub(super) fn version(&self, namespace: &str, name: &str) -> Option<Box<str>> {
        let view = self.known.get(&(namespace.into(), name.into()));
        view.map(|view| view.version.clone())
    }

    /// Forgets the claim at a spot.
    pub(super) fn lost(&mut self, spot: &Spot) {
        self.known
            .remove(&(Arc::clone(&spot.namespace), Arc::clone(&spot.claim)));
    }

    /// Every claim of a policy.
    pub(super) fn spots<'a>(&'a self, policy: &'a str) -> impl Iterator<Item = Spot> + 'a {
        let of_policy = self.known.iter().filter(move |(_, view)| *view.policy == *policy);
        of_policy.map(|(id, view)| view.spot(id))
    }

    /// Every claim.
    pub(super) fn all(&self) -> impl Iterator<Item = Spot> + '_ {
        self.known.iter().map(|(id, view)| view.spot(id))
    }

    /// What there is of each policy.
    #[must_use]
    pub(super) fn sums(&self) -> HashMap<Arc<str>, Sums> {
        let mut sums: HashMap<Arc<str>, Sums> = HashMap::new();
        for view in self.known.values() {
            let sum = sums.entry(Arc::clone(&view.policy)).or_default();
            sum.claims += 1;
            sum.pending += i64::try_from(view.pending.len()).unwrap_or(i64::MAX);
            sum.rejections += view.rejections;
        }
        sums
    }

    /// Claims that a list shows in another version than the watch, or at all, and spots of claims that are not listed.
    #[must_use]
    pub(super) fn differences(&self, listed: &[Listed]) -> (Vec<Listed>, Vec<Spot>) {
        let id = |claim: &Listed| (Arc::from(claim.namespace.as_str()), Arc::from(claim.name.as_str()));
        let missed = listed.iter().filter(|claim| {
            let view = self.known.get(&id(claim));
            view.is_none_or(|view| *view.version != *claim.version)
        });
        let ids: HashSet<_> = listed.iter().map(id).collect();
        let stale = self.known.iter().filter(|(id, _)| !ids.contains(*id));
        (
            missed.cloned().collect(),
            stale.map(|(id, view)| view.spot(id)).collect(),
        )
    }
}

impl ClaimView {
    fn spot(&self, (namespace, name): &Id) -> Spot {
        Spot {
            policy: Arc::clone(&self.policy),
            namespace: Arc::clone(namespace),
            claim: Arc::clone(name),
        }
    }
}

fn id(claim: &DeployerClaim) -> Id {
    (claim.namespace().unwrap_or_default().into(), claim.name_any().into())
}
