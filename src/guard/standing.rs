//! What is out of order at the moment, so that each finding is told once, and that it is over.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::reason::Reason;
use super::spot::Spot;
use crate::api::claim::PodReference;
use crate::domain::leftovers::{Action, Finding};

/// What makes a finding the same one: what it is, and the uids of its pods.
type Tag = (Reason, Vec<String>);

/// What makes an action the same one: what it is, and what it is about.
type Deed = (Reason, String);

/// What is out of order at each spot, as of its last examination.
#[derive(Debug, Default)]
pub(super) struct Standing {
    findings: Mutex<HashMap<Spot, BTreeMap<Tag, Finding>>>,
    /// What a dry run would do at each spot, as of its last examination, and has told.
    would: Mutex<HashMap<Spot, BTreeSet<Deed>>>,
}

/// What an examination changed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Changed {
    /// Found for the first time.
    pub(super) new: Vec<Finding>,
    /// No longer so.
    pub(super) over: Vec<Finding>,
}

impl Standing {
    /// Takes in what was found at a spot.
    pub(super) fn found(&self, spot: &Spot, findings: &[Finding]) -> Changed {
        let mut all = self.lock();
        let before = all.remove(spot).unwrap_or_default();
        let now: BTreeMap<Tag, Finding> = findings.iter().map(|finding| (tag(finding), finding.clone())).collect();
        let only = |these: &BTreeMap<Tag, Finding>, those: &BTreeMap<Tag, Finding>| {
            let only = these.iter().filter(|(tag, _)| !those.contains_key(*tag));
            only.map(|(_, finding)| finding.clone()).collect()
        };
        let changed = Changed {
            new: only(&now, &before),
            over: only(&before, &now),
        };
        if !now.is_empty() {
            all.insert(spot.clone(), now);
        }
        changed
    }

    /// How many keys of each policy are violated.
    pub(super) fn violations(&self) -> HashMap<Arc<str>, i64> {
        let mut violations = HashMap::new();
        for (spot, findings) in self.lock().iter() {
            if findings.values().any(Finding::is_violation) {
                *violations.entry(Arc::clone(&spot.policy)).or_default() += 1;
            }
        }
        violations
    }

    /// Another guard leads, and knows better.
    pub(super) fn clear(&self) {
        self.lock().clear();
        self.would.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Takes in what a dry run would do at a spot now. Gives what it has not told yet.
    pub(super) fn would<'a>(&self, spot: &Spot, actions: &'a [Action]) -> Vec<&'a Action> {
        let mut all = self.would.lock().unwrap_or_else(PoisonError::into_inner);
        let before = all.remove(spot).unwrap_or_default();
        if !actions.is_empty() {
            all.insert(spot.clone(), actions.iter().map(deed).collect());
        }
        actions
            .iter()
            .filter(|action| !before.contains(&deed(action)))
            .collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Spot, BTreeMap<Tag, Finding>>> {
        self.findings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn deed(action: &Action) -> Deed {
    let about = match action {
        Action::WriteClaim { change, .. } => format!("{change:?}"),
        Action::DeletePod { pod, .. } => pod.uid.clone(),
        Action::Wake(owner) | Action::Unlist(owner) => owner.uid.clone(),
        Action::RemoveClaim => String::new(),
    };
    (Reason::of_action(action), about)
}

fn tag(finding: &Finding) -> Tag {
    let uids = pods_of(finding).iter().map(|pod| pod.uid.clone()).collect();
    (Reason::of_finding(finding), uids)
}

/// The pods that a finding is about.
pub(super) fn pods_of(finding: &Finding) -> Vec<PodReference> {
    match finding {
        Finding::Duplicate { pod, beside } => vec![pod.clone(), beside.clone()],
        Finding::Revived(pod)
        | Finding::LateArrival(pod)
        | Finding::Orphan { pod, .. }
        | Finding::OwnerUnread { pod, .. }
        | Finding::Stuck { pod, .. }
        | Finding::CondemnedStays { pod, .. }
        | Finding::IdentityChanged(pod)
        | Finding::IdentityUnreadable { pod, .. } => vec![pod.clone()],
        Finding::Crowded(pods) => pods.clone(),
        Finding::NewerProtocol { .. } => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn pod(uid: &str) -> PodReference {
        PodReference {
            uid: uid.into(),
            ..PodReference::default()
        }
    }

    fn duplicate(uid: &str) -> Finding {
        Finding::Duplicate {
            pod: pod(uid),
            beside: pod("holder"),
        }
    }

    #[test]
    fn a_finding_is_new_once_and_over_once() {
        let (standing, spot) = (Standing::default(), Spot::new("p", "shop", "c"));
        let both = [duplicate("a"), duplicate("b")];
        assert_eq!(standing.found(&spot, &both).new, both);
        assert_eq!(standing.found(&spot, &both), Changed::default());
        let changed = standing.found(&spot, &both[..1]);
        assert_eq!((changed.new, changed.over), (vec![], vec![duplicate("b")]));
        assert_eq!(standing.violations(), HashMap::from([("p".into(), 1)]));
        assert_eq!(standing.found(&spot, &[]).over, [duplicate("a")]);
        assert_eq!(standing.violations(), HashMap::new());
    }

    #[test]
    fn an_age_that_grows_makes_no_new_finding() {
        let (standing, spot) = (Standing::default(), Spot::new("p", "shop", "c"));
        let stuck = |seconds| Finding::Stuck {
            pod: pod("a"),
            active_for: Duration::from_secs(seconds),
        };
        assert_eq!(standing.found(&spot, &[stuck(1)]).new.len(), 1);
        assert_eq!(standing.found(&spot, &[stuck(2)]), Changed::default());
        assert_eq!(standing.violations(), HashMap::new(), "only violations page");
    }

    #[test]
    fn what_a_dry_run_would_do_is_new_once_and_forgotten_when_it_is_over() {
        let (standing, spot) = (Standing::default(), Spot::new("p", "shop", "c"));
        let delete = |uid: &str| Action::DeletePod {
            pod: pod(uid),
            resource_version: "1".into(),
        };
        let both = [delete("a"), delete("b")];
        assert_eq!(standing.would(&spot, &both).len(), 2);
        assert!(standing.would(&spot, &both).is_empty(), "both are told");
        assert!(standing.would(&spot, &both[..1]).is_empty());
        assert_eq!(standing.would(&spot, &both).len(), 1, "it was over, and is so again");
        assert!(standing.would(&spot, &[]).is_empty());
        assert!(standing.would.lock().unwrap().is_empty(), "nothing is kept of it");
    }
}
