//! Guards that all believe that they lead, driven by the project's own `plan`: they confirm, free, adopt, spare, condemn, delete and
//! remove claims on snapshots of any age. (They drop as any observer does: see [`super::observer`].)
//!
//! With [`Watchers::Each`], every read of every guard is a step of its own; it may be paused, or killed, between any two.
//!
//! With [`Watchers::Any`] there are as many guards as can be. What a guard reads is a claim, and then each pod at some time after. What
//! it writes of the claim takes effect only if the claim is still that version; so whatever guards do to it, each write is planned on the
//! present claim and on what was seen of each pod at any time since it was written, or, where no name in the claim asks for it, not looked at.
//! Deletes depend on no version of the claim: each that any guard could have planned since the beginning is on its way for ever.
//!
//! A claim of no more use may be removed at once here: how long it is kept plays no part.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use deployer_guard::api::claim::{DeployerClaimSpec, PolicyReference};
use deployer_guard::api::policy::{LeftoverAction, Leftovers, Wake};
use deployer_guard::domain::leftovers::{self, Change, FoundClaim, FoundPod, Now, OwnerState, Place, Snapshot, Terms};
use jiff::Timestamp;
use stateright::Property;

use crate::request::Request;
use crate::system::{Event, Fault, System, Watchers, uid};
use crate::world::{Action, Pod, World};

/// What a look at a name found, and which of its pods (by the number of the create) were known to have been stored before.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Glimpse {
    found: Option<Pod>,
    stored: BTreeSet<usize>,
}

type Glimpses = BTreeMap<&'static str, BTreeSet<Glimpse>>;

/// What was planned on what was seen before, by a fingerprint of that: planning is what takes time here.
#[derive(Default)]
pub(crate) struct Plans(Mutex<HashMap<u64, Arc<Vec<Deed>>>>);

impl Plans {
    fn get(&self, seen: impl Hash, plan: impl FnOnce() -> Vec<Deed>) -> Arc<Vec<Deed>> {
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

fn fingerprint(what: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    hasher.finish()
}

/// A delete, as it was planned.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Delete {
    name: &'static str,
    pod: Pod,
}

/// What a guard is about to do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Deed {
    Write(Event, Arc<DeployerClaimSpec>),
    Remove,
    Delete(Delete),
}

/// One guard, on its way through one key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Guard {
    #[default]
    Idle,
    /// Has read the claim, and reads pods.
    Reading {
        claim: Option<Arc<DeployerClaimSpec>>,
        /// What it remembers, copied before.
        stored: BTreeSet<usize>,
        pods: BTreeMap<&'static str, Option<Pod>>,
    },
    /// Has planned this.
    About(Deed),
}

/// A step of a guard.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Move {
    /// Some guard does this.
    Do(Deed),
    ReadClaim(usize),
    ReadPod(usize, &'static str),
    Plan(usize, Deed),
    /// The guard does what it planned.
    Act(usize),
    /// It is killed, and started again.
    Abandon(usize),
}

/// What no guard may do, or lead to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Harm {
    /// A pod that works, or is on its way, left the claim.
    LeftTheClaim,
    /// A pod was made holder beside one that works under the claim, or is on its way.
    AdoptedBeside,
    /// The holder, or a pending pod, was deleted.
    DeletedEntry,
    /// A pod was deleted that had started.
    DeletedStarted,
    /// A pod was admitted while one that the claim names works.
    AdmittedBeside,
}

/// All guards.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Guards {
    pub(crate) harm: Option<Harm>,
    /// Pods that were stored, as long as the claim believes them to be on their way.
    stored: BTreeSet<usize>,
    /// What was seen of each name since the claim was written.
    glimpses: Glimpses,
    deletes: BTreeSet<Delete>,
    each: Vec<Guard>,
}

impl Guards {
    /// The claim changed: what was gathered for the version before ends in a conflict, except a delete.
    pub(crate) fn begin_again(&mut self, system: &System) {
        if system.fault != Fault::ClaimReadLast {
            self.glimpses.clear();
        }
        if system.fault != Fault::GuardNoPrecondition {
            for guard in &mut self.each {
                if !matches!(guard, Guard::About(Deed::Delete(_))) {
                    *guard = Guard::Idle;
                }
            }
        }
    }

    pub(crate) fn stored(&mut self, system: &System, pod: usize) {
        if system.guards != Watchers::None {
            self.stored.insert(pod);
        }
    }
}

impl World {
    pub(crate) fn bypass(&mut self, name: &'static str) {
        self.bypassed = true;
        let mut pod = Pod::new("bypass");
        pod.irregular = true;
        self.store.entry(name).or_insert(pod);
    }

    /// After each step: what guards can have seen by now, and the deletes that any of them can have planned.
    pub(crate) fn look_around(&mut self, system: &System) {
        if system.guards == Watchers::None {
            return;
        }
        self.guards.stored = self
            .guards
            .stored
            .iter()
            .copied()
            .filter(|pod| self.is_pending(*pod))
            .collect();
        if let Watchers::Each(guards) = system.guards {
            self.guards.each.resize(usize::from(guards), Guard::Idle);
            // The guards are alike.
            self.guards.each.sort_by_cached_key(fingerprint);
            return;
        }
        let mut new = false;
        for name in system.names() {
            let of_name = |pod: &usize| system.calls[*pod].name() == name;
            let glimpse = Glimpse {
                found: self.store.get(name).copied(),
                stored: self.guards.stored.iter().copied().filter(of_name).collect(),
            };
            new |= self.guards.glimpses.entry(name).or_default().insert(glimpse);
        }
        // After a write of the claim everything is new.
        if new || system.fault == Fault::ClaimReadLast {
            self.plan_deletes(system);
        }
        let mut deletes = std::mem::take(&mut self.guards.deletes);
        deletes.retain(|delete| system.may_still_hit(self, delete));
        self.guards.deletes = deletes;
    }

    fn plan_deletes(&mut self, system: &System) {
        let deeds = system.deeds_of_any(self);
        let deletes = deeds.iter().filter_map(|deed| match deed {
            Deed::Delete(delete) => Some(delete.clone()),
            _ => None,
        });
        self.guards.deletes.extend(deletes);
    }

    /// That a pod of this name is admitted while another works that the claim names. A namesake does not count: the store lets only one of
    /// them in.
    pub(crate) fn check_admission(&mut self, name: &str) {
        let others = self
            .store
            .iter()
            .filter(|(other, pod)| **other != name && pod.activity.is_active());
        let claim = self.claim.as_deref();
        if others.into_iter().any(|(_, pod)| names(claim, pod.uid)) {
            self.harm(Harm::AdmittedBeside);
        }
    }

    fn harm(&mut self, harm: Harm) {
        self.guards.harm.get_or_insert(harm);
    }

    pub(crate) fn guard(&mut self, system: &System, step: Move) {
        match step {
            Move::Do(deed) => self.act(system, deed),
            Move::ReadClaim(guard) => {
                self.guards.each[guard] = Guard::Reading {
                    claim: self.claim.clone(),
                    stored: self.guards.stored.clone(),
                    pods: BTreeMap::new(),
                };
            }
            Move::ReadPod(guard, name) => {
                let found = self.store.get(name).copied();
                if let Guard::Reading { pods, .. } = &mut self.guards.each[guard] {
                    pods.insert(name, found);
                }
            }
            Move::Plan(guard, deed) => self.guards.each[guard] = Guard::About(deed),
            Move::Act(guard) => {
                if let Guard::About(deed) = std::mem::take(&mut self.guards.each[guard]) {
                    self.act(system, deed);
                }
            }
            Move::Abandon(guard) => self.guards.each[guard] = Guard::Idle,
        }
    }

    fn act(&mut self, system: &System, deed: Deed) {
        match deed {
            Deed::Write(event, next) => self.guard_writes(system, event, Some(next)),
            Deed::Remove => self.guard_writes(system, Event::Removed, None),
            Deed::Delete(delete) => self.guard_deletes(system, &delete),
        }
    }

    fn guard_writes(&mut self, system: &System, event: Event, next: Option<Arc<DeployerClaimSpec>>) {
        let before = self.claim.clone();
        let (before, after) = (before.as_deref(), next.as_deref());
        let coming = (0..self.requests.len()).filter(|pod| self.is_coming(*pod)).map(uid);
        let works = self.active().map(|pod| pod.uid).chain(coming);
        let known: Vec<_> = works.filter(|pod| names(before, pod)).collect();
        if known.iter().any(|pod| !names(after, pod)) {
            self.harm(Harm::LeftTheClaim);
        }
        let holder = after
            .and_then(|claim| claim.holder.as_ref())
            .map(|holder| holder.uid.as_str());
        // Of several that are spared, and work anyway, one is adopted.
        let spared = |pod: &str| before.is_some_and(|claim| claim.is_spared(pod));
        if event == Event::Adopted && known.iter().any(|pod| Some(*pod) != holder && !spared(pod)) {
            self.harm(Harm::AdoptedBeside);
        }
        system.meet(event);
        if event == Event::GuardFreed && before.is_some_and(|claim| !claim.pending.is_empty()) {
            system.meet(Event::GuardFreedMissing);
        }
        self.changed(system, next);
    }

    /// Admitted, and will be stored as soon as is promised.
    fn is_coming(&self, pod: usize) -> bool {
        let in_time = self.admitted[pod].is_some_and(|age| age <= crate::system::PROMISED);
        self.requests[pod] == Request::Allowed && in_time
    }

    fn guard_deletes(&mut self, system: &System, delete: &Delete) {
        let Some(pod) = self.store.get(delete.name).copied() else {
            return;
        };
        if !system.hits(&pod, delete) {
            system.meet(Event::DeleteRefused);
            return;
        }
        if pod.activity.is_active() && self.claim.iter().any(|claim| claim.is_entry(pod.uid)) {
            self.harm(Harm::DeletedEntry);
        }
        if pod.started {
            self.harm(Harm::DeletedStarted);
        }
        system.meet(Event::DeletedByGuard);
        self.store.remove(delete.name);
    }
}

fn names(claim: Option<&DeployerClaimSpec>, uid: &str) -> bool {
    claim.is_some_and(|claim| claim.is_entry(uid) || claim.is_condemned(uid) || claim.is_spared(uid))
}

impl System {
    pub(crate) fn guard_actions(&self, world: &World, actions: &mut Vec<Action>) {
        if self.guards == Watchers::None {
            return;
        }
        if let Some(name) = self.bypass.filter(|_| !world.bypassed) {
            actions.push(Action::Bypass(name));
        }
        for (name, pod) in world.store.iter().filter(|(_, pod)| pod.activity.is_active()) {
            actions.push(Action::Start(name));
            if self.orphans && !pod.orphan {
                actions.push(Action::Orphan(name));
            }
        }
        if self.guards == Watchers::Any {
            let deeds = self.deeds_of_any(world);
            let deeds = deeds.iter().filter(|deed| !matches!(deed, Deed::Delete(_))).cloned();
            let deletes = world.guards.deletes.iter().cloned().map(Deed::Delete);
            actions.extend(deeds.chain(deletes).map(|deed| Action::Guard(Move::Do(deed))));
        }
        for (i, guard) in world.guards.each.iter().enumerate() {
            let moves = self.moves(world, i, guard);
            actions.extend(moves.into_iter().map(Action::Guard));
        }
    }

    fn moves(&self, world: &World, i: usize, guard: &Guard) -> Vec<Move> {
        match guard {
            // Alike: it does not matter which of them begins.
            Guard::Idle if world.guards.each[..i].contains(&Guard::Idle) => vec![],
            Guard::Idle => vec![Move::ReadClaim(i)],
            Guard::Reading { claim, stored, pods } => {
                let unread = self.names().filter(|name| !pods.contains_key(name));
                let mut moves: Vec<_> = unread.map(|name| Move::ReadPod(i, name)).collect();
                let read: Vec<_> = pods
                    .iter()
                    .map(|(name, found)| (*name, found.as_ref(), stored.clone()))
                    .collect();
                if is_complete(claim.as_deref(), |name| pods.contains_key(name)) {
                    let seen = (claim, stored, pods);
                    let deeds = self.plans.get(seen, || self.deeds(claim.as_deref(), &read));
                    moves.extend(deeds.iter().cloned().map(|deed| Move::Plan(i, deed)));
                }
                moves.push(Move::Abandon(i));
                moves
            }
            Guard::About(_) => vec![Move::Act(i), Move::Abandon(i)],
        }
    }

    /// Everything that some guard may do to the present claim, and every delete that one may plan.
    fn deeds_of_any(&self, world: &World) -> Arc<Vec<Deed>> {
        let guards = &world.guards;
        let stored = (self.fault == Fault::MemoryTakenLast).then_some(&guards.stored);
        let seen = (&world.claim, &guards.glimpses, stored);
        self.plans.get(seen, || self.plan_for_any(world))
    }

    fn plan_for_any(&self, world: &World) -> Vec<Deed> {
        let claim = world.claim.as_deref();
        let mut snapshots: Vec<Vec<(&'static str, Option<&Pod>, BTreeSet<usize>)>> = vec![vec![]];
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
    fn deeds(
        &self,
        claim: Option<&DeployerClaimSpec>,
        read: &[(&'static str, Option<&Pod>, BTreeSet<usize>)],
    ) -> Vec<Deed> {
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
    fn hits(&self, pod: &Pod, delete: &Delete) -> bool {
        match self.fault {
            Fault::DeletesByName => true,
            Fault::DeletesStarted => pod.uid == delete.pod.uid,
            _ => (pod.uid, pod.activity, pod.started) == (delete.pod.uid, delete.pod.activity, delete.pod.started),
        }
    }

    /// A delete of a pod that is gone, or has changed, does nothing any more.
    fn may_still_hit(&self, world: &World, delete: &Delete) -> bool {
        let there = world.store.get(delete.name);
        self.fault == Fault::DeletesByName || there.is_some_and(|pod| self.hits(pod, delete))
    }
}

/// Every name that the claim names was read.
fn is_complete(claim: Option<&DeployerClaimSpec>, was_read: impl Fn(&str) -> bool) -> bool {
    claim.is_none_or(|claim| claim.names().all(was_read))
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
            match pods.iter().any(|(pod, _)| held(&pod.uid)) {
                true => Event::CondemnedHolder,
                false => Event::Condemned,
            }
        }
        Change::Forgotten(_) => Event::Forgot,
    }
}

/// What must happen where guards are explored, or the check shows nothing.
pub(crate) fn sometimes(system: &System) -> Vec<Property<System>> {
    macro_rules! met {
        ($($what:literal: $event:ident),*) => {
            vec![$(Property::sometimes($what, |system: &System, _| system.has_met(Event::$event))),*]
        };
    }
    if system.guards == Watchers::None {
        return vec![];
    }
    let mut properties = met!(
        "a guard confirms": GuardConfirmed, "a guard frees": GuardFreed, "a guard adopts": Adopted,
        "a guard condemns": Condemned, "a guard deletes": DeletedByGuard, "a condemned pod is forgotten": Forgot,
        "a guard spares": Spared, "a claim is removed": Removed
    );
    if system.guards == Watchers::Any {
        properties.extend(met!("a pending pod that was stored once is freed": GuardFreedMissing));
    } else {
        properties.extend(met!("a delete comes too late": DeleteRefused));
    }
    if system.orphans {
        properties.extend(met!("an orphaned holder is condemned": CondemnedHolder));
    }
    if system.arrives_late {
        properties.extend(met!("a pod is stored after its entry was dropped": Late));
    }
    properties
}

/// What no guard does, each as a property of its own.
pub(crate) fn harmless() -> [Property<System>; 5] {
    macro_rules! never {
        ($what:literal, $harm:ident) => {
            Property::always($what, |_, world: &World| world.guards.harm != Some(Harm::$harm))
        };
    }
    [
        never!("no pod that works leaves the claim", LeftTheClaim),
        never!("nobody is adopted beside another", AdoptedBeside),
        never!("no holder is deleted", DeletedEntry),
        never!("nothing is deleted that has started", DeletedStarted),
        never!("nobody is admitted beside a pod of the claim", AdmittedBeside),
    ]
}
