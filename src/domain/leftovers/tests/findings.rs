//! Every finding.

use super::*;
use crate::api::claim::{GenerationOutcome, Outcome};

fn findings(snapshot: &Snapshot) -> Vec<Finding> {
    plan(snapshot, &terms(), NOW).findings
}

fn duplicate(name: &str, beside: &str) -> Finding {
    Finding::Duplicate {
        pod: reference(name),
        beside: reference(beside),
    }
}

#[test]
fn two_active_for_one_key_however_they_came() {
    let two = || [pod("a", started), pod("s", started)];
    for (case, claim, pods, expected) in [
        ("beside the holder", Some(held("a")), two(), vec![duplicate("s", "a")]),
        (
            "beside a pending one that arrived",
            Some(pending("a")),
            two(),
            vec![duplicate("s", "a")],
        ),
        ("without a claim", None, two(), vec![duplicate("s", "a")]),
        (
            "spared",
            Some(sparing(held("a"), "s")),
            two(),
            vec![duplicate("s", "a")],
        ),
        (
            "beside a pending one",
            Some(pending("b")),
            [absent("b"), pod("s", started)],
            vec![],
        ),
        (
            "the other has finished",
            Some(held("a")),
            [pod("a", started), pod("s", finished)],
            vec![],
        ),
        (
            "the other is of another key",
            Some(held("a")),
            [pod("a", started), pod("s", elsewhere)],
            vec![],
        ),
    ] {
        assert_eq!(findings(&read(claim, pods)), expected, "{case}");
    }
    let marked = findings(&read(condemning(held("a"), "s"), [pod("a", as_is), pod("s", as_is)]));
    assert_eq!(marked, [duplicate("s", "a")], "until it is gone");
    assert!(duplicate("s", "a").is_violation());
}

#[test]
fn a_holder_whose_identity_changed_still_holds() {
    let found = findings(&read(held("a"), [pod("a", elsewhere), pod("s", as_is)]));
    assert_eq!(found, [Finding::IdentityChanged(reference("a")), duplicate("s", "a")]);
}

#[test]
fn active_again_after_it_ended() {
    let revived = [Finding::Revived(reference("s"))];
    let mut moved_on = free();
    moved_on.outcomes.push(GenerationOutcome {
        pod_uid: "us".into(),
        ..GenerationOutcome::default()
    });
    assert_eq!(findings(&read(moved_on.clone(), [pod("s", as_is)])), revived);
    assert_eq!(findings(&read(moved_on, [pod("s", finished)])), []);
    let mut seen_finished = read(held("s"), [pod("s", as_is)]);
    seen_finished.memory.ends.insert("us".into(), Outcome::Failed);
    // Told while it was read, it may have ended after its GET.
    assert!(
        !plan(&seen_finished, &terms(), NOW)
            .findings
            .iter()
            .any(Finding::is_violation)
    );
    seen_finished.memory.ended_before.insert("us".into());
    assert_eq!(findings(&seen_finished), revived);
    assert!(revived[0].is_violation());
}

#[test]
fn stored_after_its_entry_was_dropped() {
    let mut late = read(held("a"), [pod("a", as_is), pod("s", as_is)]);
    late.memory.given_up.insert("us".into());
    assert_eq!(
        findings(&late),
        [Finding::LateArrival(reference("s")), duplicate("s", "a")]
    );
    let mut in_time = read(pending("s"), [pod("s", as_is)]);
    in_time.memory.given_up.insert("us".into());
    assert_eq!(findings(&in_time), []);
}

#[test]
fn owners() {
    for (state, why) in [
        (OwnerState::Gone, OrphanWhy::Gone),
        (OwnerState::Replaced, OrphanWhy::Replaced),
        (OwnerState::Finished, OrphanWhy::Finished),
    ] {
        let orphan = |name| Finding::Orphan {
            pod: reference(name),
            why,
        };
        let change = |pod: &mut FoundPod| pod.owner = state.clone();
        assert_eq!(findings(&read(held("a"), [pod("a", change)])), [orphan("a")]);
        assert_eq!(findings(&read(None, [pod("s", change)])), [orphan("s")]);
    }
    let unread = pod("a", |pod| pod.owner = OwnerState::Unread("why".into()));
    let (pod, why) = (reference("a"), "why".into());
    assert_eq!(
        findings(&read(held("a"), [unread])),
        [Finding::OwnerUnread { pod, why }]
    );
}

#[test]
fn active_for_long() {
    for (seconds, stuck) in [(3600, false), (3601, true)] {
        let mut snapshot = read(held("a"), [pod("a", started)]);
        let active_for = Duration::from_secs(seconds);
        snapshot
            .memory
            .active_since
            .insert("ua".into(), NOW.monotonic.saturating_sub(active_for));
        let pod = reference("a");
        let expected: Vec<_> = stuck
            .then_some(Finding::Stuck { pod, active_for })
            .into_iter()
            .collect();
        assert_eq!(findings(&snapshot), expected);
    }
}

#[test]
fn condemned_and_not_deleted() {
    use CondemnedStays::{Disarmed, HoldsTheClaim, IdentityChanged, Started, Terminating};
    let why = |claim: DeployerClaimSpec, change: fn(&mut FoundPod), armed: bool| {
        let terms = Terms { armed, ..terms() };
        let found = plan(&read(claim, [pod("s", change)]), &terms, NOW).findings;
        found.into_iter().find_map(|finding| match finding {
            Finding::CondemnedStays { why, .. } => Some(why),
            _ => None,
        })
    };
    let marked = || condemning(free(), "s");
    assert_eq!(why(marked(), as_is, true), None);
    assert_eq!(why(marked(), finished, true), None);
    assert_eq!(why(marked(), started, true), Some(Started));
    assert_eq!(why(marked(), |pod| pod.terminating = true, true), Some(Terminating));
    assert_eq!(why(marked(), elsewhere, true), Some(IdentityChanged));
    assert_eq!(why(marked(), as_is, false), Some(Disarmed));
    assert_eq!(why(condemning(held("s"), "s"), as_is, true), Some(HoldsTheClaim));
}

#[test]
fn an_identity_that_cannot_be_read() {
    let unreadable = pod("s", |pod| pod.place = Place::Unreadable("why".into()));
    let (pod, why) = (reference("s"), "why".into());
    assert_eq!(
        findings(&read(None, [unreadable])),
        [Finding::IdentityUnreadable { pod, why }]
    );
}

#[test]
fn a_newer_protocol() {
    let claim = DeployerClaimSpec {
        protocol: PROTOCOL + 1,
        ..held("a")
    };
    let protocol = PROTOCOL + 1;
    assert_eq!(
        findings(&read(claim, [pod("a", as_is)])),
        [Finding::NewerProtocol { protocol }]
    );
}
