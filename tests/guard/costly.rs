//! Expressions that take long keep no other policy's keys waiting.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::sleep;

use crate::scene::{Guard, bound, holder, runner, runners, store, until};

/// Some tenths of a second on each pod that has the annotation `list`.
const COSTLY: &str = "has(object.metadata.annotations) && 'list' in object.metadata.annotations && \
    object.metadata.annotations.list.split('').map(a, object.metadata.annotations.list.split('').exists(b, a + b == '12')).size() > 0";
const PODS: usize = 6;

fn costly() -> Value {
    let mut policy = runners(json!({ "match": {
        "objectSelector": { "matchLabels": { "role": "costly" } },
        "matchConditions": [{ "name": "costly", "expression": COSTLY }],
    } }));
    policy["metadata"]["name"] = "costly".into();
    policy["metadata"]["uid"] = "policy-costly".into();
    policy
}

/// Both policies' watches and examinations run on one thread: whatever is evaluated there comes before all else.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_costly_policy_keeps_no_other_policys_key_waiting() {
    let store = store();
    store.memory.put(costly());
    let _guard = Guard::start(&store);
    store.memory.put(bound(runner("first", "first", 1)));
    until("the guard to do its work", || holder(&store, "first").is_some()).await;
    for number in 0..PODS {
        let name = format!("costly-{number}");
        let mut pod = bound(runner(&name, &name, 1));
        pod["metadata"]["labels"]["role"] = "costly".into();
        pod["metadata"]["annotations"] = json!({ "list": "1".repeat(300) });
        store.memory.put(pod);
    }
    // Whoever is to be late is late by now.
    sleep(Duration::from_millis(10)).await;
    store.memory.put(bound(runner("quick", "quick", 2)));
    until("the other policy's key to be held", || {
        holder(&store, "quick").is_some()
    })
    .await;
    let claims = store.memory.objects("DeployerClaim");
    let costly = claims
        .iter()
        .filter(|claim| claim["spec"]["policy"]["name"] == "costly");
    let done = costly.count();
    assert!(done < PODS, "all {done} costly ones came first");
    until("the costly ones to be held", || {
        let claims = store.memory.objects("DeployerClaim");
        let costly = claims
            .iter()
            .filter(|claim| claim["spec"]["policy"]["name"] == "costly");
        costly.count() == PODS
    })
    .await;
}
