//! What no plan does, whatever was read.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::api::claim::Outcome;
use crate::domain::claim::Standing;

const NAMES: [&str; 4] = ["a", "b", "s", "t"];

/// Two pods for each name: one after the other.
fn uid(name: usize, second: bool) -> String {
    format!("u{}{}", NAMES[name], if second { "2" } else { "" })
}

fn marks() -> impl Strategy<Value = Vec<PodReference>> {
    let mark = (0..4_usize, any::<bool>()).prop_map(|(name, second)| PodReference {
        uid: uid(name, second),
        ..reference(NAMES[name])
    });
    prop::collection::vec(mark, 0..3)
}

fn entries(most: usize) -> impl Strategy<Value = Vec<ClaimEntry>> {
    let entry = (0..4_usize, any::<bool>()).prop_map(|(name, second)| ClaimEntry {
        uid: uid(name, second),
        ..entry(NAMES[name])
    });
    prop::collection::vec(entry, 0..=most)
}

fn claim() -> impl Strategy<Value = Option<DeployerClaimSpec>> {
    let claim = (entries(1), entries(2), marks(), marks(), 1..=PROTOCOL + 1);
    let claim = claim.prop_map(|(holder, pending, condemned, spared, protocol)| DeployerClaimSpec {
        protocol,
        holder: holder.into_iter().next(),
        pending,
        condemned,
        spared,
        ..free()
    });
    prop::option::weighted(0.9, claim)
}

fn found(name: usize) -> impl Strategy<Value = Option<FoundPod>> {
    let activity = prop_oneof![
        3 => Just(Activity::Active),
        1 => Just(Activity::Succeeded),
        1 => Just(Activity::Failed)
    ];
    let place = prop_oneof![
        4 => (0..3_i64).prop_map(|ordinal| here(Some(ordinal), None)),
        1 => Just(Place::Elsewhere),
        1 => Just(Place::Unreadable("why".into())),
    ];
    let owner = prop_oneof![3 => Just(OwnerState::Fine), 1 => Just(OwnerState::Gone), 1 => Just(OwnerState::Finished)];
    let flags = (any::<bool>(), any::<bool>(), prop::bool::weighted(0.1), -1001..3_i64);
    let pod = (flags, activity, place, owner).prop_map(move |(flags, activity, place, owner)| {
        let (second, unstarted, terminating, created) = flags;
        FoundPod {
            uid: uid(name, second),
            activity,
            unstarted,
            terminating,
            resource_version: "1".into(),
            created: Some(at(created)),
            place,
            owner,
        }
    });
    prop::option::weighted(0.8, pod)
}

fn snapshots() -> impl Strategy<Value = Snapshot> {
    let remembered = prop::collection::btree_set((0..4_usize, any::<bool>()), 0..4);
    let suggested = prop::array::uniform4(any::<bool>());
    (claim(), [found(0), found(1), found(2), found(3)], remembered, suggested).prop_map(
        |(claim, found, remembered, suggested)| {
            let mut snapshot = read(claim, []);
            for (name, found) in found.into_iter().enumerate() {
                if suggested[name] || snapshot.pods.contains_key(NAMES[name]) {
                    snapshot.pods.insert(NAMES[name].into(), found);
                }
            }
            let stored = remembered.into_iter().map(|(name, second)| uid(name, second));
            snapshot.memory.stored.extend(stored);
            snapshot.memory.ends.insert("ua".into(), Outcome::Failed);
            snapshot
        },
    )
}

fn all_terms() -> impl Strategy<Value = Terms> {
    let rails = (
        prop::bool::weighted(0.8),
        prop::bool::weighted(0.8),
        prop::bool::weighted(0.2),
    );
    (rails, any::<bool>(), any::<bool>()).prop_map(|((armed, leads, first_stock), duplicates, orphans)| {
        let action = |deletes| {
            if deletes {
                LeftoverAction::DeleteUnstarted
            } else {
                LeftoverAction::Report
            }
        };
        let mut terms = terms();
        terms.leftovers.duplicates = action(duplicates);
        terms.leftovers.orphans = action(orphans);
        Terms {
            armed,
            leads,
            first_stock,
            ..terms
        }
    })
}

fn spec(snapshot: &Snapshot) -> DeployerClaimSpec {
    snapshot
        .claim
        .as_ref()
        .map(|claim| claim.spec.clone())
        .unwrap_or_default()
}

fn names(spec: &DeployerClaimSpec, uid: &str) -> bool {
    spec.is_entry(uid) || spec.is_condemned(uid) || spec.is_spared(uid)
}

fn active(snapshot: &Snapshot) -> impl Iterator<Item = &FoundPod> {
    snapshot.pods.values().flatten().filter(|pod| pod.activity.is_active())
}

/// Judged by the GET alone and by what was stored once, apart from what the plan makes of it.
fn may_work(snapshot: &Snapshot, entry: &ClaimEntry) -> bool {
    let found = snapshot.sighting(&entry.name).unwrap();
    match spec(snapshot).standing(entry, &found) {
        Standing::Active => true,
        Standing::OnItsWay => !snapshot.memory.stored.contains(&entry.uid),
        Standing::Ended(_) => false,
    }
}

fn check(snapshot: &Snapshot, terms: &Terms, action: &Action) {
    let before = spec(snapshot);
    assert!(before.protocol <= PROTOCOL, "a newer claim is left alone");
    let confirms = matches!(
        action,
        Action::WriteClaim {
            change: Change::Confirmed { .. },
            ..
        }
    );
    assert!(terms.leads || confirms, "without the lead: {action:?}");
    match action {
        Action::DeletePod { pod, .. } => {
            let found = snapshot.pod(&pod.name, &pod.uid).expect("only what was found");
            assert!(found.unstarted && terms.armed && before.is_condemned(&pod.uid));
            assert!(!before.is_entry(&pod.uid) && !before.is_spared(&pod.uid));
        }
        Action::WriteClaim { change, next } => {
            assert_ne!(**next, before, "a write that changes nothing");
            for pod in active(snapshot).filter(|pod| names(&before, &pod.uid)) {
                assert!(names(next, &pod.uid), "an active pod leaves the claim: {action:?}");
            }
            for entry in before.pending.iter().filter(|entry| may_work(snapshot, entry)) {
                assert!(names(next, &entry.uid), "a pending pod leaves the claim: {action:?}");
            }
            check_change(snapshot, terms, change, next);
        }
        Action::RemoveClaim => assert_eq!(active(snapshot).filter(|pod| names(&before, &pod.uid)).count(), 0),
        Action::Wake(_) | Action::Unlist(_) => assert!(terms.armed),
    }
}

fn check_change(snapshot: &Snapshot, terms: &Terms, change: &Change, next: &DeployerClaimSpec) {
    let before = spec(snapshot);
    match change {
        Change::Confirmed { pod, .. } => assert!(!before.is_condemned(&pod.uid)),
        Change::Adopted { pod, spared, .. } => {
            assert!(!before.is_condemned(&pod.uid));
            assert!(
                spared
                    .iter()
                    .all(|pod| next.is_spared(&pod.uid) && !next.is_condemned(&pod.uid))
            );
            assert!(
                !before.entries().any(|entry| may_work(snapshot, entry)),
                "adopted beside another"
            );
        }
        Change::Condemned(pods) => {
            assert!(terms.armed && !terms.first_stock);
            for (pod, why) in pods {
                assert!(!before.is_pending(&pod.uid) && !before.is_spared(&pod.uid) && !next.is_entry(&pod.uid));
                let held = before.is_entry(&pod.uid);
                assert!(
                    !held || matches!(why, Condemnation::Orphan(_)),
                    "a holder, as a duplicate"
                );
                assert!(snapshot.pod(&pod.name, &pod.uid).is_some_and(|pod| pod.unstarted));
            }
        }
        Change::Spared(pods) => assert!(pods.iter().all(|pod| !next.is_condemned(&pod.uid))),
        Change::Freed(_) | Change::Forgotten(_) => {}
    }
}

/// Carries out an action in a world where nothing else happens.
fn carry_out(snapshot: &mut Snapshot, action: Action) {
    match action {
        Action::WriteClaim { next, .. } => {
            let claim = snapshot.claim.get_or_insert_default();
            claim.spec = *next;
        }
        Action::DeletePod { pod, .. } => {
            snapshot.pods.insert(pod.name, None);
        }
        Action::RemoveClaim => snapshot.claim = None,
        Action::Wake(_) | Action::Unlist(_) => unreachable!("nobody waits"),
    }
    let spec = spec(snapshot);
    let names: BTreeSet<_> = spec.names().map(ToOwned::to_owned).collect();
    for name in names {
        snapshot.pods.entry(name).or_insert(None);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn no_action_does_harm(snapshot in snapshots(), terms in all_terms()) {
        for action in plan(&snapshot, &terms, NOW).actions {
            check(&snapshot, &terms, &action);
        }
    }

    #[test]
    fn it_comes_to_rest_with_every_started_pod_in_the_claim(snapshot in snapshots(), terms in all_terms()) {
        let mut snapshot = snapshot;
        for _ in 0..20 {
            let Some(action) = plan(&snapshot, &terms, NOW).actions.into_iter().next() else { break };
            check(&snapshot, &terms, &action);
            carry_out(&mut snapshot, action);
        }
        let left = plan(&snapshot, &terms, NOW).actions;
        prop_assert!(left.is_empty(), "it goes on for ever: {left:?}");
        let spec = spec(&snapshot);
        if terms.leads && spec.protocol <= PROTOCOL {
            for pod in active(&snapshot).filter(|pod| !pod.unstarted && matches!(pod.place, Place::Here { .. })) {
                prop_assert!(names(&spec, &pod.uid), "{pod:?}");
            }
        }
    }
}
