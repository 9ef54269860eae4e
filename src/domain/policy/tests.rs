#![allow(
    clippy::needless_pass_by_value,
    reason = "tables of literals read better without references"
)]

use super::*;
use crate::api::DeployerPolicy;
use crate::api::policy::MatchCondition;
use crate::domain::expression::any_json;
use proptest::prelude::*;
use serde_json::json;

fn policy(spec: Value) -> Result<Policy, Vec<FieldError>> {
    let object = json!({
        "apiVersion": "deployer-guard.io/v1alpha1",
        "kind": "DeployerPolicy",
        "metadata": {"name": "test", "uid": "u", "generation": 3},
        "spec": spec,
    });
    let object: DeployerPolicy = serde_json::from_value(object).expect("the spec is readable");
    Policy::compile(&object)
}

/// The smallest policy, with some fields replaced.
fn with(changes: Value) -> Result<Policy, Vec<FieldError>> {
    let mut spec =
        json!({"match": {"objectSelector": {"matchLabels": {"role": "deployer"}}}, "config": {"label": "app"}});
    for (field, value) in changes.as_object().expect("fields") {
        spec[field] = value.clone();
    }
    policy(spec)
}

fn errors(changes: Value) -> Vec<String> {
    let errors = with(changes.clone()).expect_err(&changes.to_string());
    errors.iter().map(ToString::to_string).collect()
}

fn pod(labels: Value, annotations: Value) -> Value {
    json!({"metadata": {"name": "p", "labels": labels, "annotations": annotations}})
}

#[test]
fn defaults_depend_on_what_is_given() {
    let policy = with(json!({})).unwrap();
    assert_eq!(
        (policy.reruns, policy.older_generations),
        (Reruns::Always, OlderGenerations::Allow)
    );
    assert_eq!(
        (policy.timeout.as_secs(), policy.mode, policy.failure_policy),
        (5, Mode::Enforce, FailurePolicy::Fail)
    );
    assert_eq!(
        (policy.name.as_str(), policy.uid.as_str(), policy.generation),
        ("test", "u", 3)
    );
    let policy = with(json!({"generation": {"label": "v"}})).unwrap();
    assert_eq!(
        (policy.reruns, policy.older_generations),
        (Reruns::AfterFailure, OlderGenerations::Allow)
    );
    let policy = with(json!({"generation": {"label": "v", "ordinal": "1"}})).unwrap();
    assert_eq!(
        (policy.reruns, policy.older_generations),
        (Reruns::AfterFailure, OlderGenerations::Deny)
    );
    let policy = with(json!({"generation": {"label": "v", "ordinal": "1"}, "scope": "Generation"})).unwrap();
    assert_eq!(
        (policy.reruns, policy.older_generations),
        (Reruns::AfterFailure, OlderGenerations::Allow)
    );
}

#[test]
fn what_only_warns_or_records_refuses_nothing_when_undecided() {
    for (mode, wanted) in [
        ("Enforce", FailurePolicy::Fail),
        ("Warn", FailurePolicy::Ignore),
        ("Audit", FailurePolicy::Ignore),
    ] {
        let policy = with(json!({"mode": mode, "failurePolicy": "Fail"})).unwrap();
        assert_eq!(policy.failure_policy, wanted, "{mode}");
    }
}

#[test]
fn what_is_wrong_is_named_with_its_field() {
    for (changes, wanted) in [
        (json!({"match": {}}), "spec.match: the policy would match every pod"),
        (
            json!({"match": {"objectSelector": {}}}),
            "spec.match: the policy would match every pod",
        ),
        (json!({"timeoutSeconds": 31}), "spec.timeoutSeconds: "),
        (
            json!({"config": {}}),
            "spec.config: exactly one of label, annotation and expression",
        ),
        (
            json!({"config": {"label": "a", "annotation": "b"}}),
            "spec.config: exactly one of",
        ),
        (json!({"generation": {}}), "spec.generation: exactly one of"),
        (
            json!({"scope": "Generation"}),
            "spec.scope: scope Generation needs spec.generation",
        ),
        (
            json!({"reruns": "Never"}),
            "spec.reruns: reruns other than Always needs spec.generation",
        ),
        (
            json!({"olderGenerations": "Deny"}),
            "spec.olderGenerations: Deny needs spec.scope Config",
        ),
        (
            json!({"config": {"expression": "owner.metadata.name"}}),
            "spec.config.expression: line 1, column 1: unknown variable owner; this field may read object",
        ),
        (
            json!({"config": {"label": "a", "uid": "owner.x"}}),
            "spec.config.uid: line 1, column 1: unknown variable owner",
        ),
        (
            json!({"config": {"expression": "object."}}),
            "spec.config.expression: line 1, column 8: syntax error",
        ),
        (
            json!({"generation": {"label": "v", "ordinal": "f(object)"}}),
            "spec.generation.ordinal: line 1, column 2: unknown function f",
        ),
        (
            json!({"owner": {"apiVersion": "v1", "kind": "Job", "expression": "pod.x"}}),
            "spec.owner.expression: line 1, column 1: unknown variable pod; this field may read object and owner",
        ),
        (
            json!({"owner": {"apiVersion": "v1", "kind": "Job", "finished": "pod.x"}}),
            "spec.owner.finished: line 1, column 1: unknown variable pod; this field may read object and owner",
        ),
        (
            json!({"match": {"objectSelector": {"matchExpressions": [{"key": "a", "operator": "Is"}]}}}),
            "spec.match.objectSelector.matchExpressions[0].operator: ",
        ),
        (
            json!({"match": {"objectSelector": {"matchExpressions": [{"key": "a", "operator": "In"}]}}}),
            "spec.match.objectSelector.matchExpressions[0].values: ",
        ),
        (
            json!({"match": {"matchConditions": [{"name": "deployer-guard.io/x", "expression": "true"}]}}),
            "spec.match.matchConditions[0].name: the prefix",
        ),
        (
            json!({"match": {"matchConditions": [{"name": "x", "expression": "true"}, {"name": "x", "expression": "true"}]}}),
            "spec.match.matchConditions[1].name: the name is given twice",
        ),
        (
            json!({"match": {"matchConditions": [{"name": "x", "expression": "1"}]}}),
            "spec.match.matchConditions[0].expression: the expression must yield a bool, but it yields a int",
        ),
        (
            json!({"match": {"matchConditions": [{"name": "x", "expression": "owner == null"}]}}),
            "spec.match.matchConditions[0].expression: line 1, column 1: unknown variable owner; this field may read object and oldObject",
        ),
    ] {
        let errors = errors(changes.clone());
        assert!(errors[0].starts_with(wanted), "{changes}: {errors:?}");
        assert_eq!(errors.len(), 1, "{changes}: {errors:?}");
    }
}

#[test]
fn all_errors_are_told_at_once() {
    let errors = errors(json!({
        "timeoutSeconds": 0, "config": {"expression": "("}, "generation": {"label": "v", "ordinal": "x"}, "scope": "Generation",
        "olderGenerations": "Deny", "match": {"matchConditions": [{"name": "a", "expression": "y"}, {"name": "b", "expression": "z"}]},
    }));
    assert_eq!(errors.len(), 6, "{errors:#?}");
}

#[test]
fn a_condition_that_fails_on_other_pods_is_refused_with_the_guard_to_add() {
    for (expression, wanted) in [
        (
            "object.metadata.labels['a'] == 'x'",
            Some("has(object.metadata.labels) && 'a' in object.metadata.labels && ..."),
        ),
        (
            "has(object.metadata.labels) && object.metadata.labels['a'] == 'x'",
            Some("'a' in object.metadata.labels"),
        ),
        (
            "object.metadata.annotations.b == 'x'",
            Some("has(object.metadata.annotations) && 'b' in object.metadata.annotations"),
        ),
        ("oldObject.metadata.name == 'x'", Some("without an oldObject")),
        ("object.spec.nodeName == ''", Some("there is no nodeName")),
        (
            "has(object.metadata.labels) && 'a' in object.metadata.labels && object.metadata.labels['a'] == 'x'",
            None,
        ),
        ("object.?metadata.?labels[?'a'].orValue('') == 'x'", None),
        ("oldObject != null && oldObject.metadata.name == 'x'", None),
        ("object.metadata.name.endsWith('-deploy')", None),
    ] {
        let result = with(json!({"match": {"matchConditions": [{"name": "x", "expression": expression}]}}));
        match (result, wanted) {
            (Ok(_), None) => {}
            (Err(errors), Some(wanted)) => assert!(errors[0].message.contains(wanted), "{expression}: {}", errors[0]),
            (result, _) => panic!("{expression}: {result:?}"),
        }
    }
}

#[test]
fn selectors_select_as_the_api_server_does() {
    let select = |selector: Value, labels: Value| {
        let policy = with(
            json!({"match": {"objectSelector": selector, "matchConditions": [{"name": "x", "expression": "true"}]}}),
        );
        policy.unwrap().matches(&pod(labels, json!({})), None).unwrap()
    };
    let requirement = |operator: &str, values: Value| {
        let mut requirement = json!({"key": "a", "operator": operator});
        if !values.is_null() {
            requirement["values"] = values;
        }
        json!({"matchExpressions": [requirement]})
    };
    for (selector, on_x, on_z, on_none) in [
        (json!({}), true, true, true),
        (json!({"matchLabels": {"a": "x"}}), true, false, false),
        (requirement("In", json!(["x", "y"])), true, false, false),
        (requirement("NotIn", json!(["x", "y"])), false, true, true),
        (requirement("Exists", Value::Null), true, true, false),
        (requirement("DoesNotExist", Value::Null), false, false, true),
        (
            json!({"matchLabels": {"a": "x"}, "matchExpressions": [{"key": "b", "operator": "DoesNotExist"}]}),
            true,
            false,
            false,
        ),
        (
            json!({"matchLabels": {"a": "x"}, "matchExpressions": [{"key": "b", "operator": "Exists"}]}),
            false,
            false,
            false,
        ),
    ] {
        let came = [json!({"a": "x"}), json!({"a": "z"}), Value::Null].map(|labels| select(selector.clone(), labels));
        assert_eq!(came, [on_x, on_z, on_none], "{selector}");
    }
}

#[test]
fn a_mirror_pod_is_never_matched() {
    let policy = with(json!({})).unwrap();
    assert!(
        policy
            .matches(&pod(json!({"role": "deployer"}), json!({})), None)
            .unwrap()
    );
    assert!(
        !policy
            .matches(
                &pod(json!({"role": "deployer"}), json!({"kubernetes.io/config.mirror": "x"})),
                None
            )
            .unwrap()
    );
}

#[test]
fn a_condition_that_says_no_outweighs_one_that_fails() {
    let number =
        "!has(object.metadata.labels) || !('n' in object.metadata.labels) || int(object.metadata.labels['n']) > 1";
    let conditions =
        json!([{"name": "n", "expression": number}, {"name": "p", "expression": "object.metadata.name == 'p'"}]);
    let policy = with(json!({"match": {"matchConditions": conditions}})).unwrap();
    assert!(policy.matches(&pod(json!({"n": "2"}), json!({})), None).unwrap());
    let error = policy.matches(&pod(json!({"n": "two"}), json!({})), None).unwrap_err();
    assert_eq!(
        error.to_string(),
        "spec.match.matchConditions[0].expression: the evaluation fails: int fails"
    );
    let mut other = pod(json!({"n": "two"}), json!({}));
    other["metadata"]["name"] = "q".into();
    assert!(!policy.matches(&other, None).unwrap());
}

#[test]
fn an_identity_that_cannot_be_read_says_why() {
    let read = |config: Value, pod: &Value| {
        with(json!({"config": config}))
            .unwrap()
            .identity(pod)
            .map(|identity| identity.config)
            .map_err(|error| error.to_string())
    };
    let label = json!({"label": "app"});
    let annotation = json!({"annotation": "app"});
    let expression = json!({"expression": "object.metadata.labels['app'] + '/x'"});
    let labelled = |value: &str| pod(json!({"app": value}), json!({"app": value}));
    assert_eq!(read(label.clone(), &labelled("a")), Ok("a".into()));
    assert_eq!(read(annotation.clone(), &labelled("a b")), Ok("a b".into()));
    assert_eq!(read(expression.clone(), &labelled("a")), Ok("a/x".into()));
    for (config, pod, wanted) in [
        (
            &label,
            pod(json!({}), json!({})),
            "the pod has no label app, which spec.config.label of the policy reads; set it on the pod",
        ),
        (
            &annotation,
            pod(Value::Null, Value::Null),
            "the pod has no annotation app, which spec.config.annotation of the policy reads",
        ),
        (&label, json!(null), "the pod has no label app"),
        (
            &label,
            labelled(""),
            "label app is empty, and spec.config.label of the policy reads it",
        ),
        (
            &annotation,
            labelled(&"é".repeat(257)),
            "annotation app has 514 bytes, and spec.config.annotation of the policy reads at most 512",
        ),
        (&annotation, labelled("a\nb"), "annotation app holds control characters"),
        (
            &annotation,
            labelled("a\u{85}b"),
            "annotation app holds control characters",
        ),
        (
            &expression,
            pod(json!({}), json!({})),
            "spec.config.expression: the evaluation fails: there is no app",
        ),
        (
            &json!({"expression": "dyn(object.metadata.name.size())"}),
            labelled("a"),
            "spec.config.expression: the expression must yield a string, but it yields a int",
        ),
        (
            &json!({"expression": "''"}),
            labelled("a"),
            "the value of the expression is empty, and spec.config.expression of the policy",
        ),
    ] {
        let came = read(config.clone(), &pod).unwrap_err();
        assert!(came.starts_with(wanted), "{config}: {came}");
    }
    let longest = "x".repeat(512);
    assert_eq!(read(annotation, &labelled(&longest)), Ok(longest));
}

#[test]
fn the_owner_is_the_one_reference_of_that_group_and_kind() {
    let policy = with(json!({"owner": {"apiVersion": "apps.example.com/v2", "kind": "Rollout"}})).unwrap();
    let reference = |api: &str, kind: &str, name: &str, uid: &str| json!({"apiVersion": api, "kind": kind, "name": name, "uid": uid});
    let read = |references: Value| policy.owner_reference(&json!({"metadata": {"ownerReferences": references}}));
    let ours = reference("apps.example.com/v1", "Rollout", "r", "1");
    let wanted = OwnerReference {
        api_version: "apps.example.com/v2".into(),
        kind: "Rollout".into(),
        name: "r".into(),
        uid: "1".into(),
    };
    assert_eq!(read(json!([ours])), Ok(Some(wanted.clone())));
    assert_eq!(
        read(json!([
            reference("v1", "Rollout", "x", "2"),
            ours,
            reference("apps.example.com/v1", "Job", "x", "3")
        ])),
        Ok(Some(wanted))
    );
    assert!(matches!(read(json!([])), Err(OwnerError::Missing { .. })));
    assert!(matches!(
        read(json!([reference("apps.example.org/v1", "Rollout", "r", "1")])),
        Err(OwnerError::Missing { .. })
    ));
    assert!(matches!(
        read(json!([ours, reference("apps.example.com/v2", "Rollout", "s", "2")])),
        Err(OwnerError::Several { count: 2, .. })
    ));
    assert!(matches!(
        read(json!([reference("apps.example.com/v1", "Rollout", "r", "")])),
        Err(OwnerError::Malformed { .. })
    ));
    assert_eq!(with(json!({})).unwrap().owner_reference(&json!({})), Ok(None));
}

/// The name becomes part of a URL, and the API server checks it for nothing but that it is there.
#[test]
fn a_name_that_no_object_has_is_never_read() {
    let policy = with(json!({"owner": {"apiVersion": "v1", "kind": "ReplicationController"}})).unwrap();
    let read = |name: &str, uid: &str| {
        let reference = json!({"apiVersion": "v1", "kind": "ReplicationController", "name": name, "uid": uid});
        policy.owner_reference(&json!({"metadata": {"ownerReferences": [reference]}}))
    };
    for name in ["cfg-1", "Cfg.1", "system:cfg", "..cfg", &"x".repeat(253)] {
        assert_eq!(read(name, "1").unwrap().unwrap().name, name);
    }
    for name in [
        "",
        ".",
        "..",
        "cfg-1?resourceVersion=0",
        "../configmaps/cfg-1",
        "cfg-1/status",
        "cfg-1#x",
        "cfg%2d1",
        "cfg 1",
        "cfg\n1",
        "cfg\u{0}",
        "c\u{f6}nfig",
        &"x".repeat(254),
    ] {
        assert!(matches!(read(name, "1"), Err(OwnerError::Malformed { .. })), "{name}");
    }
    assert!(matches!(
        read("cfg-1", &"u".repeat(129)),
        Err(OwnerError::Malformed { .. })
    ));
}

#[test]
fn what_differs_is_told_for_watched_keys_alone() {
    let policy = with(json!({
        "config": {"annotation": "config"}, "generation": {"expression": "object.metadata.labels['version']"},
    }))
    .unwrap();
    let old = pod(
        json!({"role": "deployer", "version": "1", "other": "a"}),
        json!({"config": "c", "other": "a"}),
    );
    let new = pod(
        json!({"version": "2", "other": "b"}),
        json!({"config": "d", "other": "b"}),
    );
    assert_eq!(
        policy.changed_keys(&old, &new),
        ["label role", "label version", "annotation config"]
    );
    assert!(policy.changed_keys(&old, &old).is_empty());
    assert_eq!(
        policy.changed_keys(&pod(Value::Null, Value::Null), &new),
        ["label version", "annotation config"]
    );
    let whole = with(json!({"config": {"expression": "string(size(object.metadata.labels))"}})).unwrap();
    assert_eq!(
        whole.changed_keys(&old, &new),
        ["label other", "label role", "label version"]
    );
}

proptest! {
    #[test]
    fn no_pod_makes_it_panic(pod in any_json(), owner in any_json()) {
        let policy = with(json!({
            "match": {"objectSelector": {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["x"]}]},
                "matchConditions": [{"name": "n", "expression": "object.?metadata.?labels.?app.orValue('') != 'y'"}]},
            "config": {"expression": "object.metadata.labels['app']", "uid": "owner.metadata.name"},
            "generation": {"annotation": "app", "ordinal": "int(owner.metadata.labels.app) + 1"},
            "owner": {"apiVersion": "v1", "kind": "Job", "expression": "owner.spec == object.spec"},
        })).unwrap();
        let _ = policy.matches(&pod, Some(&owner));
        let _ = policy.identity(&pod);
        let _ = policy.owner_reference(&pod);
        let _ = policy.owner_allows(&pod, &owner);
        let _ = policy.config_uid(&pod, Some(&owner));
        let _ = policy.ordinal(&pod, None);
        let _ = policy.changed_keys(&pod, &owner);
    }
}

mod fuzz;
mod openshift;
mod shipped;

#[test]
fn a_condition_may_not_fail_on_a_pod_that_lacks_one_of_the_keys_that_it_reads() {
    let guarded = "has(object.metadata.labels) && 'a' in object.metadata.labels && ";
    for (rest, accepted) in [
        ("object.metadata.labels['b'] == 'x'", false),
        (
            "'b' in object.metadata.labels && object.metadata.labels['b'] == 'x'",
            true,
        ),
        ("object.metadata.annotations['b'] == 'x'", false),
        ("object.metadata.labels['a'] == 'x'", true),
    ] {
        let mut policy = DeployerPolicy::default();
        policy.metadata.name = Some("p".into());
        policy.spec.config.label = Some("app".into());
        policy.spec.match_.match_conditions = vec![MatchCondition {
            name: "c".into(),
            expression: format!("{guarded}{rest}"),
        }];
        policy.spec.timeout_seconds = 5;
        let errors = Policy::compile(&policy).err().unwrap_or_default();
        assert_eq!(errors.is_empty(), accepted, "{rest}: {errors:?}");
    }
}
