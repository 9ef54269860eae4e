use super::*;
use serde_json::{Value, json};

fn policy(name: &str, spec: &Value) -> DeployerPolicy {
    let metadata = json!({"name": name, "uid": "6f1c", "generation": 4});
    let kind = "DeployerPolicy";
    let object = json!({"apiVersion": "deployer-guard.io/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec});
    serde_json::from_value(object).expect("a policy")
}

fn labelled(name: &str) -> DeployerPolicy {
    policy(
        name,
        &json!({"match": {"objectSelector": {"matchLabels": {"role": "deployer"}}}, "config": {"annotation": "app"}}),
    )
}

fn generated(policies: &[DeployerPolicy]) -> Vec<ValidatingWebhook> {
    let backend = Backend::Url("https://127.0.0.1:8443/".into());
    let configuration = generate(policies, &backend, Some(b"ca"), "deployer-guard", "deployer-guard");
    assert_eq!(configuration.metadata.name.as_deref(), Some("deployer-guard"));
    configuration.webhooks.expect("webhooks")
}

fn condition<'a>(webhook: &'a ValidatingWebhook, name: &str) -> &'a str {
    let conditions = webhook.match_conditions.as_ref().expect("conditions");
    &conditions
        .iter()
        .find(|condition| condition.name == name)
        .expect(name)
        .expression
}

#[test]
fn there_is_one_entry_for_each_policy_that_compiles_and_one_for_policies() {
    let broken = policy("broken", &json!({"match": {}, "config": {}}));
    let names: Vec<_> = generated(&[labelled("b"), broken, labelled("a.b-c")])
        .into_iter()
        .map(|entry| entry.name)
        .collect();
    assert_eq!(
        names,
        [
            "policies.deployer-guard.io",
            "a.b-c.policies.deployer-guard.io",
            "b.policies.deployer-guard.io"
        ]
    );
}

#[test]
fn an_entry_is_narrow_and_takes_the_policys_settings() {
    let mut policy = labelled("app");
    policy.spec.timeout_seconds = 7;
    policy.spec.match_.namespace_selector = Some(LabelSelector {
        match_labels: Some([("team".into(), "a".into())].into()),
        match_expressions: None,
    });
    let entry = serde_json::to_value(&generated(&[policy])[1]).unwrap();
    let wanted = json!({
        "name": "app.policies.deployer-guard.io",
        "admissionReviewVersions": ["v1"],
        "clientConfig": {"url": "https://127.0.0.1:8443/admit/app/6f1c/4", "caBundle": "Y2E="},
        "failurePolicy": "Fail",
        "matchPolicy": "Equivalent",
        "sideEffects": "NoneOnDryRun",
        "timeoutSeconds": 7,
        "namespaceSelector": {
            "matchLabels": {"team": "a"},
            "matchExpressions": [
                {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system", "deployer-guard"]},
            ],
        },
        "objectSelector": {"matchLabels": {"role": "deployer"}},
        "rules": [{
            "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": ["pods"], "scope": "Namespaced",
        }],
        "matchConditions": [
            {"name": "deployer-guard.io/not-mirror", "expression": "!object.metadata.?annotations[?'kubernetes.io/config.mirror'].hasValue()"},
            {"name": "deployer-guard.io/identity-changed", "expression":
                "request.operation != 'UPDATE' || object.metadata.?labels[?'role'] != oldObject.metadata.?labels[?'role'] \
                 || object.metadata.?annotations[?'app'] != oldObject.metadata.?annotations[?'app']"},
        ],
    });
    assert_eq!(entry, wanted);
}

#[test]
fn what_only_warns_or_records_is_ignored_when_we_are_down() {
    for mode in ["Warn", "Audit"] {
        let mut policy = labelled("app");
        policy.spec.mode = serde_json::from_value(json!(mode)).unwrap();
        assert_eq!(
            generated(&[policy])[1].failure_policy.as_deref(),
            Some("Ignore"),
            "{mode}"
        );
    }
}

#[test]
fn policies_are_judged_but_never_held_up() {
    let entry = serde_json::to_value(&generated(&[])[0]).unwrap();
    assert_eq!(entry["failurePolicy"], "Ignore");
    assert_eq!(
        entry["clientConfig"]["url"],
        "https://127.0.0.1:8443/validate/deployerpolicies"
    );
    assert_eq!(
        entry["rules"][0]["resources"],
        json!(["deployerpolicies", "deployerpolicies/status"])
    );
    assert_eq!(entry["timeoutSeconds"], 5);
}

#[test]
fn a_service_is_named_with_its_path() {
    let backend = Backend::Service {
        namespace: "dg".into(),
        name: "webhook".into(),
        port: 443,
    };
    let mut unstored = labelled("app");
    unstored.metadata.uid = None;
    let webhooks = generate(&[unstored], &backend, None, "dg", "x").webhooks.unwrap();
    let client = serde_json::to_value(&webhooks[1].client_config).unwrap();
    assert_eq!(
        client,
        json!({"service": {"namespace": "dg", "name": "webhook", "port": 443, "path": "/admit/app"}})
    );
}

#[test]
fn a_users_condition_holds_for_the_pod_before_an_update_too() {
    let policy = policy(
        "app",
        &json!({"match": {"matchConditions": [{"name": "mine", "expression": "true // a comment"}]}, "config": {"label": "app"}}),
    );
    let webhooks = generated(&[policy]);
    assert_eq!(
        condition(&webhooks[1], "mine"),
        "(\ntrue // a comment\n) || (request.operation == 'UPDATE' && [oldObject].exists(object, (\ntrue // a comment\n)))"
    );
}

#[test]
fn labels_that_are_read_as_a_whole_are_compared_as_a_whole() {
    let policy = policy(
        "app",
        &json!({
            "match": {"objectSelector": {"matchLabels": {"role": "x"}}},
            "config": {"expression": "object.metadata.labels.exists(k, k == 'a') ? 'a' : object.metadata.annotations['it\\'s']"},
        }),
    );
    assert_eq!(
        condition(&generated(&[policy])[1], "deployer-guard.io/identity-changed"),
        "request.operation != 'UPDATE' || object.metadata.?labels != oldObject.metadata.?labels || \
         object.metadata.?annotations[?'it\\'s'] != oldObject.metadata.?annotations[?'it\\'s']"
    );
}

#[test]
fn a_literal_cannot_be_left() {
    for (text, wanted) in [
        ("a/b.c", "'a/b.c'"),
        ("'", r"'\''"),
        (r"\", r"'\\'"),
        ("a\nb", r"'a\u000ab'"),
        ("é", "'é'"),
    ] {
        assert_eq!(literal(text), wanted);
    }
}
