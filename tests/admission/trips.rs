//! How many calls of the API server an admission waits for one after another. Time is the test's own, and counts them.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::time::Instant;

use crate::faulty::{Fault, FaultyStore, Gate, Op};
use crate::world::{Answer, OPENSHIFT, Replica, deployer, openshift};

/// What one call takes, in milliseconds.
const TRIP: u64 = 100;

/// Asks, and says how many calls that waited for.
async fn trips(replica: &Replica, version: u32, uid: &str) -> (Answer, u128) {
    replica.store.take(Duration::from_millis(TRIP));
    let start = Instant::now();
    let answer = replica.ask(OPENSHIFT, &deployer(version, uid)).await;
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
    let (answer, trips_with_list) = trips(&replica, 1, "u1").await;
    answer.admitted();
    let stocked = Replica::over(Arc::new(FaultyStore::default()));
    let mut policy = openshift(json!({}));
    policy["status"] = json!({"stockTaking": {"generation": 1, "completedAt": "2026-01-01T00:00:00Z"}});
    stocked.learn(policy.clone());
    stocked.rollout(1, "New");
    let (answer, trips_without) = trips(&stocked, 1, "u1").await;
    answer.admitted();
    assert_eq!((trips_with_list, trips_without), (3, 2));
    assert_eq!(stocked.store.count(Op::Pods), 0);
    // Under another generation of the policy it was not.
    policy["metadata"]["generation"] = 2.into();
    stocked.learn(policy);
    stocked.store_pod(&deployer(1, "u1"), "Succeeded");
    stocked.settled().await;
    stocked.rollout(2, "New");
    stocked.ask(OPENSHIFT, &deployer(2, "u2")).await.admitted();
    assert_eq!(stocked.store.count(Op::Pods), 1);
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
