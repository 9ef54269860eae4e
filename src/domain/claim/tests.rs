//! Transitions of a claim: tables for the bounds, and properties that hold after any sequence of them.

use proptest::prelude::*;

use super::*;
use crate::api::claim::{PodReference, UnknownFields};

const NOW: Timestamp = Timestamp::UNIX_EPOCH;

fn pod(name: &str, uid: &str, generation: i64) -> ClaimEntry {
    ClaimEntry {
        name: name.into(),
        uid: uid.into(),
        generation: Some(format!("g{generation}")),
        ordinal: Some(generation),
        unknown: newer("entry"),
        ..ClaimEntry::default()
    }
}

fn newer(value: &str) -> UnknownFields {
    UnknownFields::from([("ofNewerVersion".to_owned(), value.into())])
}

fn claim() -> DeployerClaimSpec {
    DeployerClaimSpec {
        unknown: newer("claim"),
        ..DeployerClaimSpec::default()
    }
}

fn admitted(claim: &DeployerClaimSpec, pod: ClaimEntry) -> DeployerClaimSpec {
    claim.admitted(pod, &[], NOW)
}

#[test]
fn a_pod_that_arrives_becomes_holder_and_its_ordinal_counts() {
    let both = admitted(&admitted(&claim(), pod("a", "u1", 1)), pod("a", "u2", 2));
    assert_eq!(both.newest(None), None, "not seen in the store yet");
    let next = both.confirmed("u1", Activity::Active, NOW).expect("it was pending");
    assert_eq!(next.holder, Some(pod("a", "u1", 1)));
    assert_eq!(next.pending, [pod("a", "u2", 2)], "the namesake stays listed");
    assert_eq!(next.newest(None).map(|newest| newest.ordinal), Some(1));
    let next = next.confirmed("u2", Activity::Failed, NOW).expect("it was pending");
    assert_eq!(
        next.outcome(None, "g1"),
        Some(Outcome::Unknown),
        "the holder is gone: the two have one name"
    );
    assert_eq!(next.outcome(None, "g2"), Some(Outcome::Failed));
    assert_eq!((next.holder, next.pending), (None, vec![]));
}

#[test]
fn nothing_is_confirmed_that_is_not_pending_or_is_condemned() {
    let pending = admitted(&claim(), pod("a", "u1", 1));
    assert_eq!(pending.confirmed("u2", Activity::Active, NOW), None);
    let confirmed = pending.confirmed("u1", Activity::Active, NOW).expect("it was pending");
    assert_eq!(confirmed.confirmed("u1", Activity::Active, NOW), None);
    let mut condemned = pending;
    condemned.condemned.push(PodReference {
        name: "a".into(),
        uid: "u1".into(),
        ..PodReference::default()
    });
    assert_eq!(condemned.confirmed("u1", Activity::Active, NOW), None);
    let foreign = DeployerClaimSpec {
        holder: Some(pod("b", "u3", 1)),
        pending: vec![pod("a", "u1", 1)],
        ..claim()
    };
    assert_eq!(
        foreign.confirmed("u1", Activity::Active, NOW),
        None,
        "another name holds: none of our own claims"
    );
}

/// Whoever misjudged writes nothing.
#[test]
fn what_a_guard_may_not_write_is_not_written() {
    let mark = |uid: &str| PodReference {
        name: "m".into(),
        uid: uid.into(),
        ..PodReference::default()
    };
    let holder = pod("a", "u1", 1);
    let pending = admitted(&claim(), holder.clone());
    let held = pending.confirmed("u1", Activity::Active, NOW).expect("it was pending");
    let marked = held.condemning(&[mark("m1")]).expect("a stranger");
    let ended = [(holder, Outcome::Unknown)];
    assert_eq!(held.adopted(pod("m", "m1", 2), &[], NOW), None, "beside the holder");
    assert!(held.adopted(pod("m", "m1", 2), &ended, NOW).is_some());
    assert_eq!(marked.adopted(pod("m", "m1", 2), &ended, NOW), None, "condemned");
    assert_eq!(pending.condemning(&[mark("u1")]), None, "pending");
    assert_eq!(marked.condemning(&[mark("m1")]), None, "again");
    assert_eq!(marked.sparing(&[mark("m1")]), None, "condemned");
    let spared = held.sparing(&[mark("m1")]).expect("a stranger");
    assert_eq!(spared.condemning(&[mark("m1")]), None, "spared");
    assert_eq!(spared.sparing(&[mark("m1")]), None, "again");
    assert_eq!(
        (held.freed(&[], NOW), held.forgetting(&[mark("m1")], &[], NOW)),
        (None, None)
    );
    assert_eq!(
        held.freed(&[(pod("b", "u9", 1), Outcome::Failed)], NOW),
        None,
        "no entry"
    );
    let many: Vec<_> = (0..=MAX_CONDEMNED).map(|i| mark(&format!("m{i}"))).collect();
    assert_eq!((held.condemning(&many), held.sparing(&many)), (None, None), "no room");
    let condemned = held.condemning(&[mark("u1")]).expect("an orphan");
    assert_eq!(
        (condemned.holder, condemned.outcomes),
        (None, vec![]),
        "in one write, without an outcome"
    );
}

#[test]
fn a_pod_that_is_dropped_leaves_no_trace() {
    let dropped = admitted(&claim(), pod("a", "u1", 1))
        .dropped("u1")
        .expect("it was pending");
    assert_eq!(
        dropped,
        DeployerClaimSpec {
            protocol: PROTOCOL,
            ..claim()
        }
    );
    assert_eq!(dropped.dropped("u1"), None);
    let both = admitted(&admitted(&claim(), pod("a", "u1", 1)), pod("a", "u2", 2));
    let next = both.dropped("u1").expect("it was pending");
    assert_eq!(
        (next.holder, next.pending),
        (Some(pod("a", "u2", 2)), vec![pod("a", "u2", 2)])
    );
}

#[test]
fn a_seen_pod_stands_by_its_uid_alone() {
    let pending = admitted(&claim(), pod("a", "u1", 1));
    let confirmed = pending.confirmed("u1", Activity::Active, NOW).expect("it was pending");
    let there = |uid: &str, activity| Sighting::Present {
        uid: uid.into(),
        activity,
    };
    for (found, while_pending, once_confirmed) in [
        (Sighting::Absent, Standing::OnItsWay, Standing::Ended(Outcome::Unknown)),
        (
            there("u9", Activity::Active),
            Standing::OnItsWay,
            Standing::Ended(Outcome::Unknown),
        ),
        (there("u1", Activity::Active), Standing::Active, Standing::Active),
        (
            there("u1", Activity::Succeeded),
            Standing::Ended(Outcome::Completed),
            Standing::Ended(Outcome::Completed),
        ),
        (
            there("u1", Activity::Failed),
            Standing::Ended(Outcome::Failed),
            Standing::Ended(Outcome::Failed),
        ),
    ] {
        assert_eq!(pending.standing(&pod("a", "u1", 1), &found), while_pending, "{found:?}");
        assert_eq!(
            confirmed.standing(&pod("a", "u1", 1), &found),
            once_confirmed,
            "{found:?}"
        );
    }
}

#[test]
fn completed_stays_and_anything_else_is_the_last_outcome() {
    use Outcome::{Completed, Failed, Unknown};
    for (first, second, kept) in [
        (Completed, Failed, Completed),
        (Completed, Unknown, Completed),
        (Failed, Completed, Completed),
        (Failed, Unknown, Unknown),
        (Unknown, Failed, Failed),
    ] {
        let mut next = claim();
        next.end(&pod("a", "u1", 1), first, NOW);
        next.outcomes[0].unknown = newer("outcome");
        next.end(&pod("a", "u2", 1), second, NOW);
        assert_eq!(next.outcome(None, "g1"), Some(kept));
        assert_eq!((next.outcomes.len(), &next.outcomes[0].unknown), (1, &newer("outcome")));
    }
}

#[test]
fn what_is_remembered_is_bounded_and_the_oldest_goes() {
    let mut next = claim();
    for i in 0..40_i64 {
        let config_uid = Some(format!("c{}", i / 5));
        next.end(
            &ClaimEntry {
                config_uid,
                ..pod("a", "u", i)
            },
            Outcome::Failed,
            NOW,
        );
    }
    assert_eq!(
        (next.outcomes.len(), &*next.outcomes[0].generation),
        (MAX_OUTCOMES, "g8")
    );
    let newest: Vec<_> = next.newest.iter().map(|newest| newest.ordinal).collect();
    assert_eq!((newest.len(), newest), (MAX_NEWEST, vec![24, 29, 34, 39]));
}

/// What may happen to a claim, in an order that its callers keep.
#[derive(Clone, Copy, Debug)]
enum Happens {
    Admit { name: u8, generation: i64 },
    Confirm { which: usize, activity: Activity },
    Drop { which: usize },
    End { outcome: Outcome },
}

fn happens() -> impl Strategy<Value = Happens> {
    let activity = prop_oneof![
        Just(Activity::Active),
        Just(Activity::Succeeded),
        Just(Activity::Failed)
    ];
    let outcome = prop_oneof![Just(Outcome::Completed), Just(Outcome::Failed), Just(Outcome::Unknown)];
    prop_oneof![
        3 => (0..3_u8, 0..50_i64).prop_map(|(name, generation)| Happens::Admit { name, generation }),
        2 => (0..4_usize, activity).prop_map(|(which, activity)| Happens::Confirm { which, activity }),
        1 => (0..4_usize).prop_map(|which| Happens::Drop { which }),
        1 => outcome.prop_map(|outcome| Happens::End { outcome }),
    ]
}

/// Only a namesake is admitted while one is pending, and nobody while the holder has not ended: see `decide`.
fn after(claim: &DeployerClaimSpec, serial: usize, what: Happens) -> Option<DeployerClaimSpec> {
    let pending = |which: usize| claim.pending.get(which).map(|entry| entry.uid.clone());
    let seen_holder = claim.holder.clone().filter(|holder| !claim.is_pending(&holder.uid));
    match what {
        Happens::Admit { name, generation } => {
            let name = format!("p{name}");
            let free = seen_holder.is_none() && claim.pending.len() < MAX_PENDING;
            let admissible = free && claim.pending.iter().all(|entry| entry.name == name);
            admissible.then(|| admitted(claim, pod(&name, &format!("u{serial}"), generation)))
        }
        Happens::Confirm { which, activity } => claim.confirmed(&pending(which)?, activity, NOW),
        Happens::Drop { which } => claim.dropped(&pending(which)?),
        Happens::End { outcome } => {
            let holder = seen_holder?;
            let name = holder.name.clone();
            Some(claim.admitted(pod(&name, &format!("u{serial}"), 1), &[(holder, outcome)], NOW))
        }
    }
}

proptest! {
    #[test]
    fn whatever_happens(all in prop::collection::vec(happens(), 0..120)) {
        let mut claim = DeployerClaimSpec { condemned: vec![PodReference::default()], ..claim() };
        for (serial, what) in all.into_iter().enumerate() {
            let Some(next) = after(&claim, serial, what) else { continue };
            let mut names = next.holder.iter().chain(&next.pending).map(|entry| &entry.name);
            let first = names.next();
            prop_assert!(names.all(|name| Some(name) == first), "pending pods have the holder's name: {next:?}");
            prop_assert!(next.pending.len() <= MAX_PENDING && next.outcomes.len() <= MAX_OUTCOMES && next.newest.len() <= MAX_NEWEST);
            prop_assert_eq!(&next.unknown, &newer("claim"));
            prop_assert!(next.entries().all(|entry| entry.unknown == newer("entry")));
            prop_assert_eq!(&next.condemned, &claim.condemned);
            prop_assert!(next != claim, "a transition that changes nothing says so");
            let newest = |claim: &DeployerClaimSpec| claim.newest(None).map(|newest| newest.ordinal);
            prop_assert!(newest(&next) >= newest(&claim), "the newest ordinal never falls");
            for record in claim.outcomes.iter().filter(|record| record.outcome == Outcome::Completed) {
                let kept = next.outcome(None, &record.generation);
                prop_assert!(kept == Some(Outcome::Completed) || kept.is_none() && next.outcomes.len() == MAX_OUTCOMES);
            }
            claim = next;
        }
    }
}
