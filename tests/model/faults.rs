//! Each rule of the protocol is taken out, and the check finds a run in which two deployers are active.

use stateright::{Checker, HasDiscoveries, Model};

use crate::THREADS;
use crate::system::Call::Create;
use crate::system::{Fault, PROMISED, System};

/// Explores until two are active, by the shortest way there is, and prints it.
fn finds(fault: &str, system: System) {
    const TWO_ACTIVE: &str = "never two active";
    let found = HasDiscoveries::AnyOf([TWO_ACTIVE].into());
    let checker = system.checker().threads(THREADS).finish_when(found).spawn_bfs().join();
    let states = checker.unique_state_count();
    let path = checker.discovery(TWO_ACTIVE).expect("the fault is found");
    println!("{fault}: found among {states} states: {:?}", path.into_actions());
}

fn with(fault: Fault) -> System {
    let system = System::of(&[Create("a"), Create("a"), Create("b")]);
    System { fault, ..system }
}

#[test]
fn w_is_taken_out() {
    finds("no W", with(Fault::NoWindow));
}

#[test]
fn the_second_look_follows_at_once() {
    finds("no settling", with(Fault::NoSettling));
}

#[test]
fn the_claim_is_written_without_its_version() {
    finds("no precondition", with(Fault::NoPrecondition));
}

#[test]
fn named_pods_are_judged_by_a_list() {
    finds("pods from a list", with(Fault::PodsFromList));
}

#[test]
fn ages_are_taken_after_the_read() {
    finds("age after the read", with(Fault::AgeAfterRead));
}

#[test]
fn a_namesake_that_is_taken_over_is_forgotten() {
    finds("taken over, forgotten", with(Fault::TakenOverIsForgotten));
}

#[test]
fn a_pod_that_was_read_beside_the_claim_and_not_found_is_taken_for_gone() {
    finds(
        "gone beside the claim",
        System {
            reads_beside: true,
            ..with(Fault::GoneBesideIsGone)
        },
    );
}

/// The bound that the design states as a limit, W + settle, is exact.
#[test]
fn a_create_arrives_later_than_is_promised() {
    let arrives_within = PROMISED + 1;
    finds(
        "later than promised",
        System {
            arrives_within,
            ..with(Fault::None)
        },
    );
}
