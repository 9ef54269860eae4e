//! Guards that all lead and act on old snapshots never lead to two active, never let a pod that works leave the claim, and never
//! delete a holder; with any rule taken out, the check finds a run in which they do.

use stateright::{Checker, HasDiscoveries, Model, Property};

use crate::guard::Harm;
use crate::system::Call::Create;
use crate::system::{Event, Fault, System, Watchers};
use crate::world::World;
use crate::{THREADS, holds};

fn guarded(names: &[&'static str]) -> System {
    let calls: Vec<_> = names.iter().map(|name| Create(name)).collect();
    System {
        guards: Watchers::Any,
        bypass: Some("s"),
        ..System::of(&calls)
    }
}

/// Explores until this is violated, by the shortest way there is, and prints it.
fn finds(fault: Fault, system: System, violated: &'static str) {
    let system = System { fault, ..system };
    let found = HasDiscoveries::AnyOf([violated].into());
    let checker = system.checker().threads(THREADS).finish_when(found).spawn_bfs().join();
    let states = checker.unique_state_count();
    let path = checker.discovery(violated).expect("the fault is found");
    println!("{fault:?}: found among {states} states: {:?}", path.into_actions());
}

#[test]
fn any_guards_and_a_bypass() {
    holds("two creates, a bypass, any guards", guarded(&["a", "b"]));
}

#[test]
fn any_guards_and_a_bypass_under_the_same_name() {
    let system = guarded(&["a", "a"]);
    let bypass = Some("a");
    holds(
        "two creates and a bypass of one name, any guards",
        System { bypass, ..system },
    );
}

#[test]
fn any_guards_and_owners_that_go() {
    let system = guarded(&["a"]);
    let orphans = true;
    holds(
        "a create, a bypass, owners that go, any guards",
        System { orphans, ..system },
    );
}

/// A pod that is stored after its entry was dropped is a duplicate like others.
#[test]
fn any_guards_and_pods_that_arrive_late() {
    let system = System {
        bypass: None,
        arrives_late: true,
        ..guarded(&["a", "b"])
    };
    holds("two creates, however late, any guards", system);
}

#[test]
fn any_guards_with_a_bypass_and_pods_that_arrive_late_and_owners_that_go() {
    let system = System {
        arrives_late: true,
        orphans: true,
        ..guarded(&["a"])
    };
    holds("a create, however late, a bypass, owners that go, any guards", system);
}

/// The check of the reduction: each read of each guard is a step.
#[test]
fn two_guards_step_by_step() {
    let guards = Watchers::Each(2);
    holds(
        "a create, a bypass, two guards",
        System {
            guards,
            ..guarded(&["a"])
        },
    );
}

#[test]
fn a_pod_is_deleted_without_being_condemned() {
    finds(Fault::NoMark, guarded(&["a"]), "no holder is deleted");
}

#[test]
fn a_pod_is_deleted_without_being_condemned_by_one_of_two_guards() {
    let guards = Watchers::Each(2);
    finds(
        Fault::NoMark,
        System {
            guards,
            ..guarded(&["a"])
        },
        "no holder is deleted",
    );
}

#[test]
fn a_delete_does_not_say_which_pod_it_means() {
    let system = System {
        orphans: true,
        bypass: None,
        ..guarded(&["a", "a"])
    };
    finds(Fault::DeletesByName, system, "no holder is deleted");
}

#[test]
fn a_delete_does_not_say_which_version_it_means() {
    finds(
        Fault::DeletesStarted,
        guarded(&["a"]),
        "nothing is deleted that has started",
    );
}

#[test]
fn the_claim_is_read_after_the_pods() {
    finds(
        Fault::ClaimReadLast,
        guarded(&["a"]),
        "no pod that works leaves the claim",
    );
}

#[test]
fn what_is_remembered_is_taken_after_the_pods_were_read() {
    finds(
        Fault::MemoryTakenLast,
        guarded(&["a"]),
        "no pod that works leaves the claim",
    );
}

#[test]
fn a_guard_writes_without_the_claims_version() {
    let guards = Watchers::Each(1);
    let system = guarded(&["a", "b"]);
    finds(
        Fault::GuardNoPrecondition,
        System {
            guards,
            bypass: None,
            ..system
        },
        "no pod that works leaves the claim",
    );
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
