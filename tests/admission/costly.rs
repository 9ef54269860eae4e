//! Expressions that take long keep nobody of another policy waiting, and are answered for at their deadline.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use serde_json::{Value, json};

use crate::world::{Replica, review, runner, runners};

/// Some tenths of a second on each pod that has the annotation `list`.
const COSTLY: &str = "has(object.metadata.annotations) && 'list' in object.metadata.annotations && \
    object.metadata.annotations.list.split('').map(a, object.metadata.annotations.list.split('').exists(b, a + b == '12')).size() > 0";

/// A policy for pods with the label `role: costly`.
fn costly(conditions: usize, more: Value) -> Value {
    let conditions: Vec<_> = (0..conditions)
        .map(|i| json!({"name": format!("c{i}"), "expression": COSTLY}))
        .collect();
    let mut policy = runners(json!({
        "match": {"objectSelector": {"matchLabels": {"role": "costly"}}, "matchConditions": conditions},
    }));
    policy["metadata"]["name"] = "costly".into();
    policy["metadata"]["uid"] = "policy-costly".into();
    if let Value::Object(more) = more {
        for (field, value) in more {
            policy["spec"][field] = value;
        }
    }
    policy
}

/// A pod of the costly policy whose annotation has so many characters.
fn pod(name: &str, length: usize) -> Value {
    let mut review = runner(name, name, name);
    let metadata = &mut review["request"]["object"]["metadata"];
    metadata["labels"]["role"] = "costly".into();
    metadata["annotations"] = json!({"list": "1".repeat(length)});
    review
}

/// Evaluated where calls are answered, these hold both threads for far longer than the other policy's call may take.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_costly_policy_keeps_no_other_policy_waiting() {
    let replica = Arc::new(Replica::new());
    replica.learn(costly(4, json!({})));
    let ask = |place: usize| {
        let replica = Arc::clone(&replica);
        tokio::spawn(async move {
            let review = pod(&format!("costly-{place}"), 300);
            replica.ask_within("costly", &review, Duration::from_secs(8)).await
        })
    };
    let asked: Vec<_> = (0..60).map(ask).collect();
    for place in 0..20 {
        let name = format!("runner-{place}");
        let one = Arc::clone(&replica);
        // As the server does: each call is a task of its own.
        let answer = tokio::spawn(async move {
            let review = runner(&name, &name, &name);
            one.ask_within("runners", &review, Duration::from_secs(5)).await
        });
        answer.await.unwrap().admitted();
    }
    let answers: Vec<_> = join_all(asked).await.into_iter().map(Result::unwrap).collect();
    for answer in &answers {
        if !answer.is_allowed() {
            answer.refused(503, "ExpressionsTooCostly");
            assert!(answer.message().contains("Make them simpler"), "{}", answer.message());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_costly_has_the_same_verdict() {
    let replica = Replica::new();
    replica.learn(costly(1, json!({"config": {"expression": "object.metadata.annotations.list.split('').map(a, object.metadata.annotations.list.split('').exists(b, a == b) ? a : '2').size() == 1 ? 'never' : object.metadata.labels.app"}})));
    let first = pod("a", 300);
    replica.run("costly", &first).await;
    let mut second = pod("b", 300);
    second["request"]["object"]["metadata"]["labels"]["app"] = "a".into();
    replica.ask("costly", &second).await.refused(403, "DeployerActive");
    // And an update of what the policy reads.
    let mut update = review("update-label");
    update["request"]["oldObject"] = first["request"]["object"].clone();
    update["request"]["object"] = first["request"]["object"].clone();
    update["request"]["object"]["metadata"]["labels"]["app"] = "c".into();
    replica.ask("costly", &update).await.refused(403, "IdentityChanged");
}

/// A list of pods that are costly to judge is judged aside too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_that_came_in_without_a_claim_are_found_however_costly_they_are() {
    let replica = Replica::new();
    replica.learn(costly(1, json!({"config": {"label": "role"}})));
    for place in 0..12 {
        let mut other = pod(&format!("other-{place}"), 100);
        other["request"]["object"]["status"]["phase"] = "Running".into();
        replica.store.memory.put(other["request"]["object"].clone());
    }
    replica
        .ask("costly", &pod("a", 100))
        .await
        .refused(403, "DeployerActive");
}

fn verdict_on(policy: &Value) -> Value {
    let mut review = review("create");
    review["request"]["resource"] =
        json!({"group": "deployer-guard.io", "version": "v1alpha1", "resource": "deployerpolicies"});
    review["request"]["object"] = policy.clone();
    review
}

async fn validated(policy: &Value) -> Value {
    let replica = Replica::new();
    let (status, body) = replica
        .send(
            "/validate/deployerpolicies",
            verdict_on(policy).to_string(),
            Duration::from_secs(10),
        )
        .await;
    assert_eq!(status, 200, "{body}");
    serde_json::from_str::<Value>(&body).unwrap()["response"].clone()
}

#[tokio::test]
async fn an_expression_that_is_costly_on_a_large_pod_is_warned_of_or_refused() {
    let with = |expression: &str| {
        let conditions = json!([{"name": "c", "expression": expression}]);
        runners(json!({"match": {"objectSelector": {"matchLabels": {"role": "x"}}, "matchConditions": conditions}}))
    };
    let fine = validated(&with("has(object.metadata.labels) && 'app' in object.metadata.labels")).await;
    assert_eq!(
        (&fine["allowed"], &fine["warnings"]),
        (&json!(true), &Value::Null),
        "{fine}"
    );

    let warned = validated(&with("object == oldObject")).await;
    assert_eq!(warned["allowed"], true, "{warned}");
    let text = warned["warnings"][0].as_str().unwrap_or_default();
    assert!(
        text.starts_with("spec.match.matchConditions[0].expression: ") && text.contains("make it simpler"),
        "{warned}"
    );

    let all = "object.spec.containers.all(a, ";
    let refused = validated(&with(&format!("{}true{}", all.repeat(7), ")".repeat(7)))).await;
    assert_eq!(
        (&refused["allowed"], &refused["status"]["code"]),
        (&json!(false), &json!(422)),
        "{refused}"
    );
    let text = refused["status"]["message"].as_str().unwrap_or_default();
    assert!(
        text.starts_with("spec.match.matchConditions[0].expression: ") && text.contains("make it simpler"),
        "{refused}"
    );

    // On any pod at all.
    let digits = "['0', '1', '2', '3', '4', '5', '6', '7', '8', '9'].all(a, ";
    let refused = validated(&with(&format!("{}true{}", digits.repeat(6), ")".repeat(6)))).await;
    let text = refused["status"]["message"].as_str().unwrap_or_default();
    assert!(
        text.contains("even on a pod with next to nothing in it; make it simpler"),
        "{refused}"
    );
}

/// They are counted before the first of them is compiled.
#[tokio::test]
async fn too_many_conditions_are_refused_by_their_number_alone() {
    let conditions: Vec<_> = (0..20_000)
        .map(|i| json!({"name": format!("c{i}"), "expression": "object."}))
        .collect();
    let policy =
        runners(json!({"match": {"objectSelector": {"matchLabels": {"role": "x"}}, "matchConditions": conditions}}));
    let refused = validated(&policy).await;
    let causes = refused["status"]["details"]["causes"].as_array().map(Vec::len);
    assert_eq!(causes, Some(1), "{}", refused["status"]["message"]);
    let text = refused["status"]["message"].as_str().unwrap_or_default();
    assert!(
        text.contains("spec.match.matchConditions: there may be at most 56 conditions; join some with &&"),
        "{text}"
    );
}
