//! Rollouts as `OpenShift`'s controller carries them out, with what goes wrong there.

use std::time::Duration;

use serde_json::json;

use crate::world::{OPENSHIFT, Replica, deployer, openshift};

fn with_reruns(reruns: &str) -> Replica {
    let replica = Replica::new();
    let mut policy = openshift(json!({"reruns": reruns}));
    policy["metadata"]["generation"] = 2.into();
    replica.learn(policy);
    replica
}

/// origin PR 16129: the deployer was created, the update of the phase was lost to a 409, a user deleted the half-done pod, and
/// the `ReplicationController` is still New, so the controller creates the deployer again.
#[tokio::test]
async fn a_deployer_deleted_half_done_while_its_rollout_is_still_new() {
    for (reruns, cause) in [
        ("Always", None),
        ("AfterFailure", None),
        ("Never", Some("GenerationAlreadyRun")),
    ] {
        let replica = with_reruns(reruns);
        replica.rollout(1, "New");
        let first = deployer(1, "u1");
        replica.run(OPENSHIFT, &first).await;
        // The key comes back to the queue while the pod is there.
        replica
            .ask(OPENSHIFT, &deployer(1, "u2"))
            .await
            .refused(409, "AlreadyExists");
        replica.remove_pod(&first);
        let again = replica.ask(OPENSHIFT, &deployer(1, "u3")).await;
        match cause {
            None => again.admitted(),
            Some(cause) => {
                again.refused(403, cause);
                assert!(again.message().contains("outcome Unknown"), "{}", again.message());
            }
        }
    }
}

/// The same, where nobody ever saw the pod in the store: it is as if it had never been.
#[tokio::test(start_paused = true)]
async fn a_deployer_deleted_before_anybody_saw_it() {
    for reruns in ["Always", "AfterFailure", "Never"] {
        let replica = with_reruns(reruns);
        replica.rollout(1, "New");
        replica.ask(OPENSHIFT, &deployer(1, "u1")).await.admitted();
        // Another rollout waits for it until it is given up, the same name takes over at once.
        replica.rollout(2, "New");
        replica
            .ask(OPENSHIFT, &deployer(2, "u2"))
            .await
            .refused(403, "DeployerPending");
        replica.ask(OPENSHIFT, &deployer(1, "u3")).await.admitted();
        replica.settled().await;
        replica.ask(OPENSHIFT, &deployer(2, "u4")).await.admitted();
    }
}

#[tokio::test]
async fn the_zombie_of_a_failed_rollout_does_not_take_the_key() {
    let replica = Replica::new();
    replica.rollout(1, "New");
    replica.rollout(2, "New");
    let (first, second) = (deployer(1, "u1"), deployer(2, "u2"));
    replica.run(OPENSHIFT, &first).await;
    replica.store_pod(&first, "Failed");
    replica.rollout(1, "Failed");
    // A deployer that is Failed and still terminating does not hold the key.
    replica.run(OPENSHIFT, &second).await;
    replica.remove_pod(&first);
    // The old controller comes back, with a view in which its rollout is New.
    replica
        .ask(OPENSHIFT, &deployer(1, "u3"))
        .await
        .refused(403, "DeployerActive");
    replica.store_pod(&second, "Succeeded");
    replica
        .ask(OPENSHIFT, &deployer(1, "u4"))
        .await
        .refused(403, "OwnerNotEligible");
    replica.rollout(1, "New");
    replica
        .ask(OPENSHIFT, &deployer(1, "u5"))
        .await
        .refused(403, "OlderGeneration");
}

#[tokio::test]
async fn a_terminating_deployer_holds_until_it_is_gone() {
    let replica = Replica::new();
    replica.rollout(1, "New");
    replica.rollout(2, "New");
    let mut first = deployer(1, "u1");
    replica.run(OPENSHIFT, &first).await;
    first["request"]["object"]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    replica.store_pod(&first, "Running");
    replica
        .ask(OPENSHIFT, &deployer(2, "u2"))
        .await
        .refused(403, "DeployerActive");
    replica.remove_pod(&first);
    replica.ask(OPENSHIFT, &deployer(2, "u2")).await.admitted();
}

/// The name of the holder with another uid is another pod. It is found by a list, which is made until stock was taken.
#[tokio::test]
async fn a_pod_under_the_holders_name_is_not_the_holder() {
    let replica = Replica::new();
    replica.rollout(1, "New");
    replica.rollout(2, "New");
    replica.run(OPENSHIFT, &deployer(1, "u1")).await;
    replica.store_pod(&deployer(1, "bypassed"), "Running");
    let answer = replica.ask(OPENSHIFT, &deployer(2, "u2")).await;
    answer.refused(403, "DeployerActive");
    assert_eq!(answer.audit()["holder"], "cfg-1-deploy bypassed");
    let stocked = format!("/admit/{OPENSHIFT}/policy-openshift/1/stocked");
    let review = deployer(2, "u2");
    replica
        .ask_at(&stocked, &review, Duration::from_secs(10))
        .await
        .admitted();
}

/// The entry was emptied and is back, without the word that stock was taken: the key's claim, which this version of the policy wrote,
/// is free, and does not know of the deployer that came in between.
#[tokio::test]
async fn who_came_in_past_an_emptied_configuration_is_found_beside_a_free_claim() {
    for gone in [false, true] {
        let replica = Replica::new();
        for version in 1..=3 {
            replica.rollout(version, "New");
        }
        let first = deployer(1, "u1");
        replica.run(OPENSHIFT, &first).await;
        replica.store_pod(&first, "Succeeded");
        if gone {
            replica.remove_pod(&first);
        }
        replica.store_pod(&deployer(2, "bypassed"), "Running");
        let answer = replica.ask(OPENSHIFT, &deployer(3, "u3")).await;
        answer.refused(403, "DeployerActive");
        assert_eq!(answer.audit()["holder"], "cfg-2-deploy bypassed");
        replica.store_pod(&deployer(2, "bypassed"), "Failed");
        replica.ask(OPENSHIFT, &deployer(3, "u4")).await.admitted();
    }
}

#[tokio::test]
async fn deployers_from_before_the_first_claim_are_found() {
    let replica = Replica::new();
    replica.rollout(2, "New");
    replica.store_pod(&deployer(1, "u1"), "Running");
    let answer = replica.ask(OPENSHIFT, &deployer(2, "u2")).await;
    answer.refused(403, "DeployerActive");
    assert_eq!(answer.audit()["holder"], "cfg-1-deploy u1");
    replica.store_pod(&deployer(1, "u1"), "Failed");
    // One whose identity cannot be read blocks nobody.
    let mut unreadable = deployer(3, "u3");
    unreadable["request"]["object"]["metadata"]["annotations"] = json!({});
    replica.store_pod(&unreadable, "Running");
    replica.ask(OPENSHIFT, &deployer(2, "u2")).await.admitted();
}

#[tokio::test]
async fn a_claim_of_a_newer_protocol_is_not_written() {
    let replica = Replica::new();
    replica.rollout(1, "New");
    replica.run(OPENSHIFT, &deployer(1, "u1")).await;
    replica.remove_pod(&deployer(1, "u1"));
    let mut claim = serde_json::to_value(replica.claim().unwrap()).unwrap();
    claim["spec"]["protocol"] = 2.into();
    replica.store.memory.put(claim);
    let writes = replica.store.writes();
    replica
        .ask(OPENSHIFT, &deployer(1, "u2"))
        .await
        .refused(503, "NewerProtocol");
    assert_eq!(replica.store.writes(), writes);
}

/// An outcome that a newer version knows, or a slip of an editor. The text is the same however the rest of the claim changes.
#[tokio::test]
async fn a_claim_that_cannot_be_read_is_named_with_what_to_do() {
    let replica = Replica::new();
    replica.rollout(1, "New");
    let first = deployer(1, "u1");
    replica.run(OPENSHIFT, &first).await;
    replica.store_pod(&first, "Succeeded");
    replica.rollout(2, "New");
    replica.run(OPENSHIFT, &deployer(2, "u2")).await;
    let mut claim = serde_json::to_value(replica.claim().unwrap()).unwrap();
    claim["spec"]["outcomes"][0]["outcome"] = "Superseded".into();
    let name = claim["metadata"]["name"].as_str().unwrap().to_owned();
    replica.store.memory.put(claim);
    let writes = replica.store.writes();
    let answer = replica.ask(OPENSHIFT, &deployer(2, "u3")).await;
    answer.refused(503, "ClaimUnreadable");
    for part in ["Superseded", &format!("kubectl -n shop edit deployerclaim {name}")] {
        assert!(answer.message().contains(part), "{}", answer.message());
    }
    assert_eq!(replica.store.writes(), writes);
}
