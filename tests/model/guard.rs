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

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use deployer_guard::api::claim::DeployerClaimSpec;

use crate::deeds::{Deed, Delete, Glimpse, Glimpses, fingerprint};
use crate::request::Request;
use crate::system::{Event, Fault, System, Watchers, uid};
use crate::world::{Action, Pod, World};

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
    pub(crate) stored: BTreeSet<usize>,
    /// What was seen of each name since the claim was written.
    pub(crate) glimpses: Glimpses,
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
}

/// Every name that the claim names was read.
fn is_complete(claim: Option<&DeployerClaimSpec>, was_read: impl Fn(&str) -> bool) -> bool {
    claim.is_none_or(|claim| claim.names().all(was_read))
}
