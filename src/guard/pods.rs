//! The active pods that a policy's selector matches, as a watch last showed them. It tells where to look; nothing is decided
//! from it.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use serde_json::Value;

use super::spot::Spot;
use crate::cluster::upkeep::Listed;
use crate::domain::key::Key;
use crate::domain::policy::Policy;
use crate::domain::sighting::Activity;

/// What an active pod that a selector matches is to a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Belongs {
    /// A deployer for this key.
    To(Spot),
    /// A deployer whose identity cannot be read, and why.
    Unreadable(Arc<str>),
    /// No deployer: a condition of the policy says so.
    Nowhere,
}

/// An active pod, as a watch last showed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct View {
    /// Where it is.
    pub(super) namespace: Arc<str>,
    /// Its name.
    pub(super) name: Box<str>,
    /// Its `resourceVersion`.
    pub(super) version: Box<str>,
    /// What it is to the policy.
    pub(super) belongs: Belongs,
    /// Bound to a node.
    bound: bool,
    /// Being deleted.
    terminating: bool,
}

/// The active pods that one policy's selector matches.
#[derive(Debug, Default)]
pub(super) struct Pods {
    active: HashMap<Box<str>, View>,
    by_spot: HashMap<Spot, BTreeSet<Box<str>>>,
    /// Uids shown since the last beginning, while a watch begins anew.
    beginning: Option<HashSet<Box<str>>>,
}

impl Pods {
    /// A watch begins anew: what it does not show until [`Self::begun`] is gone.
    pub(super) fn begin(&mut self) {
        self.beginning = Some(HashSet::new());
    }

    /// All was shown. Gives the uids of pods that are gone, and where they were.
    pub(super) fn begun(&mut self) -> Vec<(Box<str>, Option<Spot>)> {
        let Some(shown) = self.beginning.take() else {
            return Vec::new();
        };
        let gone: Vec<_> = self
            .active
            .keys()
            .filter(|uid| !shown.contains(*uid))
            .cloned()
            .collect();
        gone.into_iter()
            .map(|uid| {
                let spot = self.lost(&uid);
                (uid, spot)
            })
            .collect()
    }

    /// The pod is there, whatever it is.
    pub(super) fn seen(&mut self, uid: &str) {
        if let Some(beginning) = &mut self.beginning {
            beginning.insert(uid.into());
        }
    }

    /// The pod is in the store like this, and active. Gives what is to be examined.
    pub(super) fn show(&mut self, pod: &Value, belongs: Belongs) -> Vec<Spot> {
        let uid = text(pod, "/metadata/uid");
        let view = View::of(pod, belongs);
        let before = self.active.insert(uid.into(), view.clone());
        if before.as_ref().is_some_and(|before| before.says_the_same(&view)) {
            return Vec::new();
        }
        let spots = [before.and_then(View::spot), view.spot()].into_iter().flatten();
        let spots: BTreeSet<Spot> = spots.collect();
        self.index(uid, &spots);
        spots.into_iter().collect()
    }

    /// Forgets a pod. Gives where it was.
    pub(super) fn lost(&mut self, uid: &str) -> Option<Spot> {
        let spot = self.active.remove(uid)?.spot()?;
        self.index(uid, &BTreeSet::from([spot.clone()]));
        Some(spot)
    }

    /// Puts the index right for a pod, at all spots where it was or is.
    fn index(&mut self, uid: &str, spots: &BTreeSet<Spot>) {
        let now = self.active.get(uid).cloned().and_then(View::spot);
        for spot in spots {
            let uids = self.by_spot.entry(spot.clone()).or_default();
            if now.as_ref() == Some(spot) {
                uids.insert(uid.into());
            } else {
                uids.remove(uid);
            }
            if uids.is_empty() {
                self.by_spot.remove(spot);
            }
        }
    }

    /// The names of the pods that look active for a spot.
    #[must_use]
    pub(super) fn names(&self, spot: &Spot) -> Vec<String> {
        let uids = self.by_spot.get(spot).into_iter().flatten();
        uids.filter_map(|uid| self.active.get(uid))
            .map(|view| view.name.to_string())
            .collect()
    }

    /// Every spot that has an active pod.
    pub(super) fn spots(&self) -> impl Iterator<Item = &Spot> {
        self.by_spot.keys()
    }

    /// The uids of all active pods.
    pub(super) fn uids(&self) -> impl Iterator<Item = &str> {
        self.active.keys().map(|uid| &**uid)
    }

    /// A pod by its uid.
    #[must_use]
    pub(super) fn get(&self, uid: &str) -> Option<&View> {
        self.active.get(uid)
    }

    /// Active deployers whose identity cannot be read: uid, view and why.
    pub(super) fn unreadable(&self) -> impl Iterator<Item = (&str, &View, &str)> {
        self.active.iter().filter_map(|(uid, view)| match &view.belongs {
            Belongs::Unreadable(why) => Some((&**uid, view, &**why)),
            Belongs::To(_) | Belongs::Nowhere => None,
        })
    }

    /// The namespaces of active deployers, one for each of them.
    pub(super) fn namespaces(&self) -> impl Iterator<Item = &Arc<str>> {
        self.deployers().map(|view| &view.namespace)
    }

    /// How many deployers are active in namespaces that count.
    #[must_use]
    pub(super) fn active(&self, counts: impl Fn(&str) -> bool) -> usize {
        self.deployers().filter(|view| counts(&view.namespace)).count()
    }

    fn deployers(&self) -> impl Iterator<Item = &View> {
        self.active.values().filter(|view| view.belongs != Belongs::Nowhere)
    }

    /// What a list shows that the watch has not shown, and what the watch has shown that is not listed.
    #[must_use]
    pub(super) fn differences(&self, listed: &[Listed]) -> (Vec<Listed>, Vec<Box<str>>) {
        let missed = listed.iter().filter(|pod| {
            let view = self.active.get(&*pod.uid);
            view.is_none_or(|view| *view.version != *pod.version)
        });
        let uids: HashSet<&str> = listed.iter().map(|pod| pod.uid.as_str()).collect();
        let stale = self.active.keys().filter(|uid| !uids.contains(&***uid));
        (missed.cloned().collect(), stale.cloned().collect())
    }
}

impl View {
    fn of(pod: &Value, belongs: Belongs) -> Self {
        Self {
            name: text(pod, "/metadata/name").into(),
            version: text(pod, "/metadata/resourceVersion").into(),
            belongs,
            bound: !text(pod, "/spec/nodeName").is_empty(),
            terminating: !text(pod, "/metadata/deletionTimestamp").is_empty(),
            namespace: text(pod, "/metadata/namespace").into(),
        }
    }

    fn spot(self) -> Option<Spot> {
        match self.belongs {
            Belongs::To(spot) => Some(spot),
            Belongs::Unreadable(_) | Belongs::Nowhere => None,
        }
    }

    /// Nothing but its version differs.
    fn says_the_same(&self, other: &Self) -> bool {
        (&self.belongs, self.bound, self.terminating) == (&other.belongs, other.bound, other.terminating)
    }
}

impl Belongs {
    /// Evaluates the policy's expressions.
    pub(super) fn of(policy: &Policy, pod: &Value) -> Self {
        match policy.matches(pod, None) {
            Ok(true) => {}
            Ok(false) => return Self::Nowhere,
            Err(error) => return Self::Unreadable(error.to_string().into()),
        }
        let namespace = text(pod, "/metadata/namespace");
        match policy.identity(pod) {
            Ok(identity) => Self::To(Spot::new(
                &policy.name,
                namespace,
                &Key::of(policy, namespace, &identity).claim_name(),
            )),
            Err(error) => Self::Unreadable(error.to_string().into()),
        }
    }
}

/// Whether a pod still works, as it was shown.
#[must_use]
pub(super) fn activity_of(pod: &Value) -> Activity {
    Activity::of_phase(pod.pointer("/status/phase").and_then(Value::as_str))
}

fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}
