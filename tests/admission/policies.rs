//! Which policy a call is about, and pods that two policies match.

use std::time::Duration;

use deployer_guard::cluster::store::Failure;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::faulty::{Fault, Gate, Op};
use crate::world::{Answer, OPENSHIFT, Replica, deployer, openshift, runner, runners};

const TIMEOUT: Duration = Duration::from_secs(10);

async fn ask(replica: &Replica, path: &str, review: &Value) -> Answer {
    let (status, body) = replica.send(path, review.to_string(), TIMEOUT).await;
    assert_eq!(status, 200, "{body}");
    Answer::read(&body, review)
}

#[tokio::test]
async fn a_policy_that_does_not_exist_allows_with_a_warning() {
    let replica = Replica::new();
    for path in ["/admit/unknown", "/admit/unknown/some-uid/4"] {
        let answer = ask(&replica, path, &runner("a", "u1", "shop")).await;
        assert!(answer.is_allowed());
        assert!(
            answer.warnings()[0].contains("DeployerPolicy \"unknown\" does not exist"),
            "{}",
            answer.0
        );
    }
    // One that is known from before, but gone.
    replica.store.memory.remove(&runners(json!({})));
    let answer = ask(&replica, "/admit/runners/another-uid/1", &runner("a", "u1", "shop")).await;
    assert!(answer.is_allowed() && answer.warnings().len() == 1);
    assert_eq!(replica.store.writes(), 0);
}

#[tokio::test]
async fn a_version_newer_than_the_known_one_is_read_live_and_an_older_one_is_not() {
    let replica = Replica::new();
    let mut newer = runners(json!({"mode": "Warn"}));
    newer["metadata"]["generation"] = 5.into();
    replica.store.memory.put(newer);
    replica.run("runners", &runner("a", "u1", "shop")).await;
    let second = runner("b", "u2", "shop");
    for (path, policy, reads) in [
        ("/admit/runners/policy-runners/1", "runners@1", 0),
        ("/admit/runners/policy-runners/0", "runners@1", 0),
        ("/admit/runners/policy-runners/2", "runners@5", 1),
        ("/admit/runners/policy-runners/5", "runners@5", 1),
        ("/admit/runners/another-uid/1", "runners@5", 1),
        ("/admit/runners", "runners@5", 1),
    ] {
        let before = replica.store.count(Op::Policy);
        let answer = ask(&replica, path, &second).await;
        assert_eq!(answer.audit()["policy"], policy, "{path}");
        assert_eq!(answer.is_allowed(), policy == "runners@5", "{path}");
        assert_eq!(replica.store.count(Op::Policy) - before, reads, "{path}");
    }
}

#[tokio::test]
async fn a_policy_that_cannot_be_read_decides_nothing() {
    for (failure_policy, code) in [("Fail", 503), ("Ignore", 0)] {
        let replica = Replica::new();
        let mut policy = runners(json!({"failurePolicy": failure_policy}));
        policy["metadata"]["generation"] = 2.into();
        replica.learn(policy);
        replica
            .store
            .fail(Op::Policy, Failure::Forbidden("deployerpolicies".into()));
        let answer = ask(&replica, "/admit/runners/policy-runners/3", &runner("a", "u1", "shop")).await;
        assert_eq!(
            (answer.code(), answer.verdict().as_str()),
            (code, "Undecided: ReadFailed")
        );
        // Of an unknown one not even the failure policy is known.
        ask(&replica, "/admit/unknown/u/1", &runner("a", "u1", "shop"))
            .await
            .refused(503, "ReadFailed");
    }
}

#[tokio::test]
async fn a_policy_whose_read_does_not_end_is_undecided_at_the_deadline() {
    let replica = Replica::new();
    replica.store.plan(Op::Policy, 1, Fault::Hold(Gate::shut()));
    let review = runner("a", "u1", "shop");
    let (_, body) = replica
        .send("/admit/runners", review.to_string(), Duration::from_millis(400))
        .await;
    Answer::read(&body, &review).refused(503, "ReadFailed");
}

/// A deployer of `OpenShift` that the policy for runners matches too.
fn both(version: u32, uid: &str, app: &str) -> Value {
    let mut review = deployer(version, uid);
    let labels = &mut review["request"]["object"]["metadata"]["labels"];
    labels["role"] = "runner".into();
    labels["app"] = app.into();
    review
}

#[tokio::test]
async fn where_one_policy_refuses_no_claim_is_written_under_the_other() {
    let replica = Replica::new();
    replica.run("runners", &runner("busy", "u0", "shop")).await;
    replica.rollout(1, "New");
    let pod = both(1, "u1", "shop");
    // As the API server calls them: side by side.
    let calls = async { tokio::join!(replica.ask(OPENSHIFT, &pod), replica.ask("runners", &pod)) };
    let (openshift, runners) = timeout(Duration::from_secs(2), calls).await.expect("no deadlock");
    openshift.refused(403, "RefusedByOtherPolicy");
    assert!(
        openshift
            .message()
            .contains("DeployerPolicy \"runners\" refuses it too (DeployerActive)"),
        "{}",
        openshift.message()
    );
    runners.refused(403, "DeployerActive");
    assert_eq!(replica.claim().unwrap().spec.policy.name, "runners");
}

#[tokio::test]
async fn where_both_admit_each_has_a_claim() {
    let replica = Replica::new();
    replica.rollout(1, "New");
    let pod = both(1, "u1", "shop");
    let calls = async { tokio::join!(replica.ask(OPENSHIFT, &pod), replica.ask("runners", &pod)) };
    let (openshift, runners) = timeout(Duration::from_secs(2), calls).await.expect("no deadlock");
    openshift.admitted();
    runners.admitted();
    let holders: Vec<_> = replica
        .claims()
        .into_iter()
        .map(|claim| claim.spec.holder.unwrap().uid)
        .collect();
    assert_eq!(holders, ["u1", "u1"]);
}

#[tokio::test]
async fn many_pods_of_two_policies_never_wait_for_each_other() {
    let replica = Replica::new();
    for version in 1..=8 {
        replica.rollout(version, "New");
    }
    let pods: Vec<_> = (1..=8)
        .map(|version| both(version, &format!("u{version}"), "shop"))
        .collect();
    let calls = pods
        .iter()
        .map(async |pod| tokio::join!(replica.ask(OPENSHIFT, pod), replica.ask("runners", pod)));
    let answers = timeout(Duration::from_secs(5), futures::future::join_all(calls))
        .await
        .expect("no deadlock");
    let through = answers.iter().filter(|(a, b)| a.is_allowed() && b.is_allowed()).count();
    assert!(through <= 1, "{answers:?}");
}

#[tokio::test]
async fn a_policy_that_only_warns_or_is_for_other_namespaces_does_not_count() {
    for (field, value, refused) in [
        ("mode", json!("Warn"), false),
        ("mode", json!("Audit"), false),
        ("mode", json!("Enforce"), true),
        ("namespaces", json!("blue"), false),
        ("namespaces", json!("red"), true),
    ] {
        let replica = Replica::new();
        replica.store.memory.put(
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop", "labels": {"team": "red"}}}),
        );
        replica.run("runners", &runner("busy", "u0", "shop")).await;
        let mut policy = runners(json!({}));
        policy["metadata"]["generation"] = 2.into();
        match field {
            "mode" => policy["spec"]["mode"] = value.clone(),
            _ => policy["spec"]["match"]["namespaceSelector"] = json!({"matchLabels": {"team": value.clone()}}),
        }
        replica.learn(policy);
        replica.rollout(1, "New");
        let answer = replica.ask(OPENSHIFT, &both(1, "u1", "shop")).await;
        assert_eq!(answer.code(), if refused { 403 } else { 0 }, "{field} {value}");
    }
}

/// What cannot be reached under another policy is left to that policy's own call, and does not use up this one's time.
#[tokio::test]
async fn another_policy_that_cannot_decide_does_not_stop_this_one() {
    let replica = Replica::new();
    let mut policy = openshift(json!({}));
    policy["metadata"]["generation"] = 2.into();
    replica.learn(policy);
    replica.store.plan(Op::Owner, 100, Fault::Hold(Gate::shut()));
    let answer = replica
        .ask_within("runners", &both(1, "u1", "shop"), Duration::from_secs(1))
        .await;
    answer.admitted();
}
