//! Bounds of a claim's lists, owners that wait, and claims of no more use.

use super::*;
use crate::api::claim::{GenerationOutcome, WaitingOwner};
use crate::domain::claim::{MAX_CONDEMNED, MAX_SPARED};

/// A mark is never lost: at the bound nobody is condemned any more. Nor is a pod deleted that could not be spared.
#[test]
fn lists_are_bounded_and_what_is_left_out_is_said() {
    let marks = |count: usize| (0..count).map(|i| reference(&format!("m{i}"))).collect::<Vec<_>>();
    let there = |list: &[PodReference]| list.iter().map(|mark| pod(&mark.name, started)).collect::<Vec<_>>();
    let crowded = |snapshot: &Snapshot| {
        plan(snapshot, &terms(), NOW)
            .findings
            .contains(&Finding::Crowded(vec![reference("t")]))
    };
    let (condemned, spared) = (marks(MAX_CONDEMNED - 1), marks(MAX_SPARED - 1));
    let beside = |change: fn(&mut FoundPod)| [pod("a", as_is), pod("s", change), pod("t", change)];
    let mut full = held("a");
    full.condemned.clone_from(&condemned);
    let snapshot = read(full, there(&condemned).into_iter().chain(beside(as_is)));
    assert_eq!(words(&snapshot, &terms()), ["condemn s"]);
    assert!(crowded(&snapshot));
    assert_eq!(written(&snapshot, &terms()).condemned.len(), MAX_CONDEMNED);
    let mut full = held("a");
    full.spared.clone_from(&spared);
    let snapshot = read(full, there(&spared).into_iter().chain(beside(started)));
    assert_eq!(words(&snapshot, &terms()), ["spare s"]);
    assert!(crowded(&snapshot));
}

fn waiting(snapshot: &mut Snapshot, owners: &[(&str, Option<i64>)]) {
    let owner = |(name, ordinal): &(&str, Option<i64>)| WaitingOwner {
        name: (*name).into(),
        ordinal: *ordinal,
        ..WaitingOwner::default()
    };
    snapshot.claim.as_mut().unwrap().waiting = owners.iter().map(owner).collect();
}

#[test]
fn waiting_owners_are_woken_one_after_another_once_the_key_is_free() {
    let all = [("old", Some(1)), ("newest", Some(3)), ("same", Some(3)), ("none", None)];
    for (case, claim, pods, expected) in [
        ("free", free(), vec![], &["unlist newest"][..]),
        ("held", held("a"), vec![pod("a", as_is)], &[]),
        ("not yet free", held("a"), vec![], &["free a Unknown"]),
        ("pending", pending("a"), vec![], &[]),
        (
            "condemned, active",
            condemning(free(), "s"),
            vec![pod("s", started)],
            &[],
        ),
        (
            "condemned, finished",
            condemning(free(), "s"),
            vec![pod("s", finished)],
            &["unlist newest"],
        ),
        ("a stranger", free(), vec![pod("s", as_is)], &["adopt s"]),
    ] {
        let mut snapshot = read(claim, pods);
        waiting(&mut snapshot, &all);
        assert_eq!(words(&snapshot, &terms()), expected, "{case}");
    }
    let mut taken_off = read(held("a"), [pod("a", as_is)]);
    taken_off.memory.to_wake.push(WaitingOwner {
        name: "newest".into(),
        ..WaitingOwner::default()
    });
    assert_eq!(
        words(&taken_off, &terms()),
        ["wake newest"],
        "whoever has the key by now"
    );
    let mut free = read(free(), []);
    waiting(&mut free, &all);
    free.memory.to_wake = taken_off.memory.to_wake;
    for change in [
        |terms: &mut Terms| terms.armed = false,
        |terms: &mut Terms| terms.wake = Wake::Never,
        |terms: &mut Terms| terms.leads = false,
    ] {
        let mut terms = terms();
        change(&mut terms);
        assert_eq!(words(&free, &terms), [""; 0], "{terms:?}");
    }
}

#[test]
fn a_claim_of_no_more_use_is_removed() {
    let keep = Duration::from_hours(7 * 24);
    let second = Duration::from_secs(1);
    let unused =
        |claim: DeployerClaimSpec, pods: Vec<(String, Option<FoundPod>)>, seen: Option<Duration>, aged: Duration| {
            let mut snapshot = read(claim, pods);
            snapshot.memory.unchanged_since = seen.map(|age| NOW.monotonic.saturating_sub(age));
            let now = Now {
                wall: at(0) + jiff::SignedDuration::try_from(aged).unwrap(),
                ..NOW
            };
            let actions = plan(&snapshot, &terms(), now).actions;
            actions.contains(&Action::RemoveClaim)
        };
    let long = keep * 2 + Duration::from_hours(24);
    assert!(unused(free(), vec![], Some(keep + second), Duration::ZERO));
    assert!(!unused(free(), vec![], Some(keep), Duration::ZERO));
    assert!(unused(free(), vec![], None, long + second), "the guard was restarted");
    assert!(!unused(free(), vec![], None, long));
    let mut used = free();
    used.outcomes.push(GenerationOutcome {
        observed_at: at(10),
        ..GenerationOutcome::default()
    });
    assert!(!unused(used, vec![], None, long + second), "used since it was made");
    for claim in [held("a"), pending("a"), condemning(free(), "a"), sparing(free(), "a")] {
        assert!(!unused(claim.clone(), vec![], Some(keep * 9), long * 9), "{claim:?}");
    }
    assert!(
        !unused(free(), vec![pod("s", as_is)], Some(keep * 9), long * 9),
        "a stranger"
    );
    let mut waited_for = read(free(), []);
    waiting(&mut waited_for, &[("rc", None)]);
    waited_for.memory.unchanged_since = Some(Duration::ZERO);
    assert_eq!(words(&waited_for, &terms()), ["unlist rc"]);
}
