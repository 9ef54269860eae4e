//! UPDATE, and what nobody is asked about.

use serde_json::{Value, json};

use crate::world::{OPENSHIFT, Replica, deployer, openshift, review, runner};

const LABEL: &str = "openshift.io/deployer-pod-for.name";
const CONFIG: &str = "openshift.io/deployment-config.name";

/// An update of the deployer of version 1 in this phase.
fn update(phase: &str, change: impl FnOnce(&mut Value)) -> Value {
    let mut review = deployer(1, "u1");
    let mut old = review["request"]["object"].clone();
    old["status"]["phase"] = phase.into();
    let mut new = old.clone();
    change(&mut new);
    let request = &mut review["request"];
    request["operation"] = "UPDATE".into();
    request["object"] = new;
    request["oldObject"] = old;
    review
}

fn set(metadata: &'static str, key: &'static str, value: Value) -> impl FnOnce(&mut Value) {
    move |pod| {
        let all = pod["metadata"][metadata].as_object_mut().unwrap();
        match value {
            Value::Null => drop(all.remove(key)),
            value => drop(all.insert(key.into(), value)),
        }
    }
}

#[tokio::test]
async fn what_names_the_rollout_cannot_change_on_an_active_pod() {
    let replica = Replica::new();
    for phase in ["Pending", "Running", "Unknown", ""] {
        for (metadata, key, value, named) in [
            (
                "labels",
                LABEL,
                json!("cfg-2"),
                "label openshift.io/deployer-pod-for.name",
            ),
            // This takes the pod out of the match.
            ("labels", LABEL, Value::Null, "label openshift.io/deployer-pod-for.name"),
            (
                "annotations",
                CONFIG,
                json!("other"),
                "annotation openshift.io/deployment-config.name",
            ),
            (
                "annotations",
                CONFIG,
                Value::Null,
                "annotation openshift.io/deployment-config.name",
            ),
        ] {
            let answer = replica
                .ask(OPENSHIFT, &update(phase, set(metadata, key, value.clone())))
                .await;
            answer.refused(403, "IdentityChanged");
            assert!(answer.message().contains(named), "{}", answer.message());
            assert_eq!(answer.0["status"]["details"]["causes"][0]["field"], "metadata");
            assert_eq!(answer.audit()["key"], "shop/cfg", "{phase} {key} {value}");
        }
    }
    assert!(replica.store.began().is_empty(), "an update reads nothing");
}

#[tokio::test]
async fn a_finished_pod_may_change() {
    let replica = Replica::new();
    for phase in ["Succeeded", "Failed"] {
        let answer = replica
            .ask(OPENSHIFT, &update(phase, set("labels", LABEL, Value::Null)))
            .await;
        answer.not_matched();
    }
}

#[tokio::test]
async fn a_pod_cannot_be_brought_into_the_match_while_it_is_active() {
    let replica = Replica::new();
    let mut review = update("Running", |_| {});
    review["request"]["oldObject"]["metadata"]["labels"] = json!({});
    replica.ask(OPENSHIFT, &review).await.refused(403, "IdentityChanged");
    review["request"]["oldObject"]["metadata"]["labels"] = Value::Null;
    replica.ask(OPENSHIFT, &review).await.refused(403, "IdentityChanged");
}

#[tokio::test]
async fn other_changes_are_nobodys_business() {
    let replica = Replica::new();
    for review in [
        update("Running", |_| {}),
        update("Running", set("labels", "mine", json!("x"))),
        update(
            "Running",
            set("annotations", "openshift.io/deployment.name", json!("x")),
        ),
        update("Running", |pod| pod["metadata"]["finalizers"] = json!([])),
        update("Running", |pod| pod["metadata"]["ownerReferences"] = json!([])),
        update("Running", |pod| pod["spec"]["activeDeadlineSeconds"] = 5.into()),
    ] {
        replica.ask(OPENSHIFT, &review).await.not_matched();
    }
}

/// A condition that fails on a pod must not keep anybody from releasing its finalizers.
#[tokio::test]
async fn a_condition_that_fails_is_asked_only_about_a_change_that_matters() {
    let replica = Replica::new();
    let mut policy = openshift(json!({}));
    policy["metadata"]["generation"] = 2.into();
    policy["spec"]["match"]["matchConditions"][0]["expression"] =
        "!has(object.metadata.annotations) || !('n' in object.metadata.annotations) || int(object.metadata.annotations['n']) > 0".into();
    replica.learn(policy);
    let with_number = |mut review: Value| {
        for object in ["object", "oldObject"] {
            review["request"][object]["metadata"]["annotations"]["n"] = "x".into();
        }
        review
    };
    let finalizers = update("Running", |pod| pod["metadata"]["finalizers"] = json!([]));
    replica.ask(OPENSHIFT, &with_number(finalizers)).await.not_matched();
    let finished = update("Failed", set("labels", LABEL, Value::Null));
    replica.ask(OPENSHIFT, &with_number(finished)).await.not_matched();
    let renamed = update("Running", set("labels", LABEL, json!("cfg-2")));
    replica
        .ask(OPENSHIFT, &with_number(renamed))
        .await
        .refused(503, "PolicyUnusable");
}

#[tokio::test]
async fn the_update_that_an_api_server_sent_is_refused() {
    let answer = Replica::new().ask(OPENSHIFT, &review("update-label")).await;
    answer.refused(403, "IdentityChanged");
}

#[tokio::test]
async fn deletes_connects_and_subresources_are_allowed() {
    let replica = Replica::new();
    for name in ["delete", "connect-exec", "update-status"] {
        replica.ask(OPENSHIFT, &review(name)).await.not_matched();
    }
    let mut binding = deployer(1, "u1");
    binding["request"]["subResource"] = "binding".into();
    replica.ask(OPENSHIFT, &binding).await.not_matched();
    let mut job = deployer(1, "u1");
    job["request"]["resource"] = json!({"group": "batch", "version": "v1", "resource": "jobs"});
    replica.ask(OPENSHIFT, &job).await.not_matched();
    assert!(replica.store.began().is_empty());
}

#[tokio::test]
async fn mirror_pods_and_lookalikes_are_not_matched() {
    let replica = Replica::new();
    let mut mirror = runner("a", "u1", "shop");
    mirror["request"]["object"]["metadata"]["annotations"]["kubernetes.io/config.mirror"] = "x".into();
    replica.ask("runners", &mirror).await.not_matched();
    for name in ["hook-pod", "application-pod"] {
        let mut create = review("create");
        let text = std::fs::read_to_string(format!(
            "{}/tests/data/openshift/{name}.json",
            env!("CARGO_MANIFEST_DIR")
        ))
        .unwrap();
        create["request"]["object"] = serde_json::from_str(&text).unwrap();
        replica.ask(OPENSHIFT, &create).await.not_matched();
    }
    // The label is there, but the name is not the deployer's.
    replica
        .ask(OPENSHIFT, &review("create-generated-name"))
        .await
        .not_matched();
    assert!(replica.store.began().is_empty());
}
