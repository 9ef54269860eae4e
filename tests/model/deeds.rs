//! What guards plan, by the project's own `plan`, on what they can have seen.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use deployer_guard::api::claim::{DeployerClaimSpec, PolicyReference};
use deployer_guard::api::policy::{LeftoverAction, Leftovers, Wake};
use deployer_guard::domain::leftovers::{self, Change, FoundClaim, FoundPod, Now, OwnerState, Place, Snapshot, Terms};
use jiff::Timestamp;

use crate::system::{Event, Fault, System, uid};
use crate::world::{Pod, World};

/// What a look at a name found, and which of its pods (by the number of the create) were known to have been stored before.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Glimpse {
    pub(crate) found: Option<Pod>,
    pub(crate) stored: BTreeSet<usize>,
}

pub(crate) type Glimpses = BTreeMap<&'static str, BTreeSet<Glimpse>>;

/// What was planned on what was seen before, by a fingerprint of that: planning is what takes time here.
#[derive(Default)]
pub(crate) struct Plans(Mutex<HashMap<u64, Arc<Vec<Deed>>>>);

impl Plans {
    pub(crate) fn get(&self, seen: impl Hash, plan: impl FnOnce() -> Vec<Deed>) -> Arc<Vec<Deed>> {
        let seen = fingerprint(&seen);
        if let Some(known) = self.0.lock().expect("no plan panics").get(&seen) {
            return Arc::clone(known);
        }
        let planned = Arc::new(plan());
        self.0
            .lock()
            .expect("no plan panics")
            .insert(seen, Arc::clone(&planned));
        planned
    }
}

pub(crate) fn fingerprint(what: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    hasher.finish()
}

/// A delete, as it was planned.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Delete {
    pub(crate) name: &'static str,
    pub(crate) pod: Pod,
}

/// What a guard is about to do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Deed {
    Write(Event, Arc<DeployerClaimSpec>),
    Remove,
    Delete(Delete),
}

/// What one guard read of one name, and what it remembers of its pods.
pub(crate) type Read<'a> = (&'static str, Option<&'a Pod>, BTreeSet<usize>);

impl System {
    /// Everything that some guard may do to the present claim, and every delete that one may plan.
    pub(crate) fn deeds_of_any(&self, world: &World) -> Arc<Vec<Deed>> {
        let guards = &world.guards;
        let stored = (self.fault == Fault::MemoryTakenLast).then_some(&guards.stored);
        let seen = (&world.claim, &guards.glimpses, stored);
        self.plans.get(seen, || self.plan_for_any(world))
    }

    fn plan_for_any(&self, world: &World) -> Vec<Deed> {
        let claim = world.claim.as_deref();
        let mut snapshots: Vec<Vec<Read<'_>>> = vec![vec![]];
        for (name, glimpses) in &world.guards.glimpses {
            let named = claim.is_some_and(|claim| claim.names().any(|known| known == *name));
            let mut longer = Vec::new();
            for snapshot in snapshots {
                for glimpse in glimpses {
                    let stored = match self.fault {
                        Fault::MemoryTakenLast => &world.guards.stored,
                        _ => &glimpse.stored,
                    };
                    let mut with = snapshot.clone();
                    with.push((*name, glimpse.found.as_ref(), stored.clone()));
                    longer.push(with);
                    if !stored.is_empty() {
                        // A guard that remembers nothing.
                        let mut with = snapshot.clone();
                        with.push((*name, glimpse.found.as_ref(), BTreeSet::new()));
                        longer.push(with);
                    }
                }
                if !named {
                    longer.push(snapshot);
                }
            }
            snapshots = longer;
        }
        let mut deeds = Vec::new();
        for snapshot in snapshots {
            for deed in self.deeds(claim, &snapshot) {
                if !deeds.contains(&deed) {
                    deeds.push(deed);
                }
            }
        }
        deeds
    }

    /// What the project's own plan makes of a snapshot. Not only its first action: the next one is tried where that is refused.
    pub(crate) fn deeds(&self, claim: Option<&DeployerClaimSpec>, read: &[Read<'_>]) -> Vec<Deed> {
        let pods = read
            .iter()
            .map(|(name, found, _)| ((*name).to_owned(), found.map(found_pod)));
        let mut snapshot = Snapshot {
            claim: claim.map(|spec| FoundClaim {
                spec: spec.clone(),
                ..FoundClaim::default()
            }),
            pods: pods.collect(),
            ..Snapshot::default()
        };
        let stored = read.iter().flat_map(|(_, _, stored)| stored);
        snapshot.memory.stored = stored.map(|pod| uid(*pod).to_owned()).collect();
        snapshot.memory.unchanged_since = Some(Duration::ZERO);
        let plan = leftovers::plan(&snapshot, &terms(), NOW);
        let mut deeds = Vec::new();
        for action in plan.actions {
            match action {
                leftovers::Action::WriteClaim {
                    change: Change::Condemned(pods),
                    ..
                } if self.fault == Fault::NoMark => {
                    let uids: Vec<_> = pods.iter().map(|(pod, _)| pod.uid.as_str()).collect();
                    let there = read.iter().filter_map(|(name, found, _)| Some((*name, (*found)?)));
                    let deletes = there.filter(|(_, pod)| uids.contains(&pod.uid));
                    deeds.extend(deletes.map(|(name, pod)| delete(name, pod)));
                }
                leftovers::Action::WriteClaim { change, next } => {
                    deeds.push(Deed::Write(event(claim, &change), Arc::new(*next)));
                }
                leftovers::Action::DeletePod { pod, .. } => {
                    let there = read.iter().find(|(name, ..)| *name == pod.name);
                    deeds.extend(there.and_then(|(name, found, _)| Some(delete(name, (*found)?))));
                }
                leftovers::Action::RemoveClaim => deeds.push(Deed::Remove),
                leftovers::Action::Wake(_) | leftovers::Action::Unlist(_) => {}
            }
        }
        deeds
    }

    /// Whether the API server carries the delete out: the resourceVersion changed with everything that happened to the pod.
    pub(crate) fn hits(&self, pod: &Pod, delete: &Delete) -> bool {
        match self.fault {
            Fault::DeletesByName => true,
            Fault::DeletesStarted => pod.uid == delete.pod.uid,
            _ => (pod.uid, pod.activity, pod.started) == (delete.pod.uid, delete.pod.activity, delete.pod.started),
        }
    }

    /// A delete of a pod that is gone, or has changed, does nothing any more.
    pub(crate) fn may_still_hit(&self, world: &World, delete: &Delete) -> bool {
        let there = world.store.get(delete.name);
        self.fault == Fault::DeletesByName || there.is_some_and(|pod| self.hits(pod, delete))
    }
}

/// Long after everything: whatever may be removed, is.
const NOW: Now = Now {
    monotonic: Duration::MAX,
    wall: Timestamp::UNIX_EPOCH,
};

fn terms() -> Terms {
    Terms {
        policy: PolicyReference::default(),
        armed: true,
        leads: true,
        first_stock: false,
        policy_created: None,
        leftovers: Leftovers {
            duplicates: LeftoverAction::DeleteUnstarted,
            orphans: LeftoverAction::DeleteUnstarted,
            ..Leftovers::default()
        },
        wake: Wake::Never,
    }
}

fn found_pod(pod: &Pod) -> FoundPod {
    FoundPod {
        uid: pod.uid.to_owned(),
        activity: pod.activity,
        unstarted: !pod.started,
        terminating: false,
        resource_version: String::new(),
        created: None,
        place: Place::Here {
            generation: None,
            ordinal: None,
            config_uid: None,
        },
        owner: if pod.orphan { OwnerState::Gone } else { OwnerState::Fine },
    }
}

fn delete(name: &'static str, pod: &Pod) -> Deed {
    let mut pod = *pod;
    // No part of the pod.
    pod.orphan = false;
    Deed::Delete(Delete { name, pod })
}

fn event(claim: Option<&DeployerClaimSpec>, change: &Change) -> Event {
    match change {
        Change::Confirmed { .. } => Event::GuardConfirmed,
        Change::Freed(_) => Event::GuardFreed,
        Change::Adopted { .. } => Event::Adopted,
        Change::Spared(_) => Event::Spared,
        Change::Condemned(pods) => {
            let held = |uid: &str| claim.is_some_and(|claim| claim.is_entry(uid));
            if pods.iter().any(|(pod, _)| held(&pod.uid)) {
                Event::CondemnedHolder
            } else {
                Event::Condemned
            }
        }
        Change::Forgotten(_) => Event::Forgot,
    }
}
