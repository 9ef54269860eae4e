//! How many calls of the API server an admission waits for one after another. Time is the test's own, and counts them.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::time::Instant;

use crate::faulty::{Fault, FaultyStore, Gate, Op};
use crate::world::{Answer, OPENSHIFT, Replica, deployer, openshift};

/// What one call takes, in milliseconds.
const TRIP: u64 = 100;

/// Asks where stock was taken, and says how many calls that waited for.
async fn trips(replica: &Replica, version: u32, uid: &str) -> (Answer, u128) {
    trips_at(replica, &stocked_path(1), version, uid).await
}

async fn trips_at(replica: &Replica, path: &str, version: u32, uid: &str) -> (Answer, u128) {
    replica.store.take(Duration::from_millis(TRIP));
    let start = Instant::now();
    let answer = ask_where(replica, path, version, uid).await;
    let taken = start.elapsed().as_millis();
    replica.store.take(Duration::ZERO);
    (answer, taken / u128::from(TRIP))
}

/// Admits the deployer of version 1, which arrives and ends in this phase.
async fn ran(replica: &Replica, phase: &str) {
    replica.rollout(1, "New");
    replica.run(OPENSHIFT, &deployer(1, "u1")).await;
    replica.store_pod(&deployer(1, "u1"), phase);
    replica.rollout(1, "Complete");
    replica.rollout(2, "New");
}

/// A replica that has not met the key, over the same store.
fn another(replica: &Replica) -> Replica {
    Replica::over(Arc::clone(&replica.store))
}

#[tokio::test(start_paused = true)]
async fn a_new_key_waits_for_two_where_stock_was_taken_and_else_for_a_list_too() {
    let replica = Replica::new();
    replica.rollout(1, "New");
    let (answer, trips_with_list) = trips_at(&replica, &plain_path(), 1, "u1").await;
    answer.admitted();
    let stocked = Replica::over(Arc::new(FaultyStore::default()));
    stocked.rollout(1, "New");
    let (answer, trips_without) = trips(&stocked, 1, "u1").await;
    answer.admitted();
    assert_eq!((trips_with_list, trips_without), (3, 2));
    assert_eq!(stocked.store.count(Op::Pods), 0);
}

/// The list stands beside what is read again anyway for who never met the key.
#[tokio::test(start_paused = true)]
async fn a_key_whose_holder_has_finished_waits_for_three_until_stock_is_taken() {
    for met in [true, false] {
        let replica = Replica::new();
        ran(&replica, "Succeeded").await;
        let asked = if met { replica } else { another(&replica) };
        let before = asked.store.count(Op::Pods);
        let (answer, trips) = trips_at(&asked, &plain_path(), 2, "u2").await;
        answer.admitted();
        assert_eq!((trips, asked.store.count(Op::Pods) - before), (3, 1), "met: {met}");
    }
}

/// Who knows the holder needs no list to refuse.
#[tokio::test(start_paused = true)]
async fn a_refusal_waits_for_one_before_stock_is_taken_too() {
    let replica = Replica::new();
    ran(&replica, "Running").await;
    let before = replica.store.count(Op::Pods);
    let (answer, trips) = trips_at(&replica, &plain_path(), 2, "u2").await;
    answer.refused(403, "DeployerActive");
    assert_eq!((trips, replica.store.count(Op::Pods) - before), (1, 0));
}

/// The path of an entry that does not say that stock was taken.
fn plain_path() -> String {
    stocked_path(1).replace("/stocked", "")
}

/// The path of an entry that says that stock was taken under this generation of the policy.
fn stocked_path(generation: i64) -> String {
    format!("/admit/{OPENSHIFT}/policy-openshift/{generation}/stocked")
}

async fn ask_where(replica: &Replica, path: &str, version: u32, uid: &str) -> Answer {
    let review = deployer(version, uid);
    replica.ask_at(path, &review, Duration::from_secs(10)).await
}

/// Only the URL says so, and only of the very version that it names: not the policy's status, and not the URL of another version.
#[tokio::test(start_paused = true)]
async fn stock_is_believed_to_be_taken_on_the_word_of_the_url_alone() {
    for (what, generation, path, lists) in [
        ("the URL says so", 1, stocked_path(1), 0),
        ("its status alone says so", 1, plain_path(), 1),
        ("of an older version", 2, stocked_path(1), 1),
        (
            "of a policy that was made anew",
            1,
            stocked_path(1).replace("policy-openshift", "other"),
            1,
        ),
    ] {
        let replica = Replica::over(Arc::new(FaultyStore::default()));
        let mut policy = openshift(json!({}));
        policy["metadata"]["generation"] = generation.into();
        policy["status"] = json!({"stockTaking": {"generation": generation, "completedAt": "2026-01-01T00:00:00Z"}});
        replica.learn(policy);
        replica.rollout(1, "New");
        ask_where(&replica, &path, 1, "u1").await.admitted();
        assert_eq!(replica.store.count(Op::Pods), lists, "{what}");
    }
}

#[tokio::test(start_paused = true)]
async fn where_the_holder_has_finished_two_and_for_who_never_met_the_key_three() {
    for (met, expected) in [(true, 2), (false, 3)] {
        let replica = Replica::new();
        ran(&replica, "Succeeded").await;
        let asked = if met { replica } else { another(&replica) };
        let (answer, trips) = trips(&asked, 2, "u2").await;
        answer.admitted();
        assert_eq!(trips, expected, "met: {met}");
    }
}

/// That it is gone was read before the claim may have named it: it is read again.
#[tokio::test(start_paused = true)]
async fn where_the_holder_is_gone_three() {
    let replica = Replica::new();
    ran(&replica, "Running").await;
    replica.remove_pod(&deployer(1, "u1"));
    let (answer, trips) = trips(&replica, 2, "u2").await;
    answer.admitted();
    assert_eq!(trips, 3);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_waits_for_one_and_for_who_never_met_the_key_two() {
    for (met, expected) in [(true, 1), (false, 2)] {
        let replica = Replica::new();
        ran(&replica, "Running").await;
        let asked = if met { replica } else { another(&replica) };
        let (answer, trips) = trips(&asked, 2, "u2").await;
        answer.refused(403, "DeployerActive");
        assert_eq!(trips, expected, "met: {met}");
    }
}

/// The owner may be of a kind that another API server serves.
#[tokio::test(start_paused = true)]
async fn a_refusal_waits_for_no_owner() {
    let replica = Replica::new();
    ran(&replica, "Running").await;
    replica.store.plan(Op::Owner, 1, Fault::Hold(Gate::shut()));
    let (answer, trips) = trips(&replica, 2, "u2").await;
    answer.refused(403, "DeployerActive");
    assert_eq!(trips, 1);
}
