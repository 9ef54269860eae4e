//! The policy for `OpenShift`, on objects as its controllers make them.

use super::*;

const POLICY: &str = include_str!("../../../../policies/openshift-deploymentconfig.yaml");
const DEPLOYER: &str = include_str!("../../../../tests/data/openshift/deployer-pod.json");
const HOOK: &str = include_str!("../../../../tests/data/openshift/hook-pod.json");
const APPLICATION: &str = include_str!("../../../../tests/data/openshift/application-pod.json");
const OWNER: &str = include_str!("../../../../tests/data/openshift/replicationcontroller.json");

fn policy() -> Policy {
    let policy: DeployerPolicy = serde_saphyr::from_str(POLICY).expect("the policy is YAML");
    Policy::compile(&policy).expect("the policy compiles")
}

fn object(text: &str) -> Value {
    serde_json::from_str(text).expect("the object is JSON")
}

/// The `ReplicationController` with other annotations; null removes one.
fn owner(annotations: Value) -> Value {
    let mut owner = object(OWNER);
    for (key, value) in annotations.as_object().expect("annotations") {
        let all = owner["metadata"]["annotations"].as_object_mut().expect("annotations");
        if value.is_null() {
            all.remove(key)
        } else {
            all.insert(key.clone(), value.clone())
        };
    }
    owner
}

#[test]
fn the_deployer_is_matched_and_its_lookalikes_are_not() {
    let policy = policy();
    let mut helper = object(DEPLOYER);
    helper["metadata"]["name"] = "cfg-1-helper".into();
    for (pod, wanted) in [
        (object(DEPLOYER), true),
        (object(HOOK), false),
        (object(APPLICATION), false),
        (helper, false),
    ] {
        assert_eq!(policy.matches(&pod, None), Ok(wanted), "{}", pod["metadata"]["name"]);
    }
}

#[test]
fn config_generation_and_owner_are_read() {
    let (policy, pod, owner) = (policy(), object(DEPLOYER), object(OWNER));
    assert_eq!(
        policy.identity(&pod),
        Ok(Identity {
            config: "cfg".into(),
            generation: Some("cfg-1".into())
        })
    );
    assert_eq!(policy.ordinal(&pod, Some(&owner)), Ok(Some(1)));
    let uid = owner["metadata"]["ownerReferences"][0]["uid"]
        .as_str()
        .map(str::to_owned);
    assert_eq!(policy.config_uid(&pod, Some(&owner)), Ok(uid));
    let reference = policy.owner_reference(&pod).unwrap().unwrap();
    assert_eq!(
        (
            reference.api_version.as_str(),
            reference.kind.as_str(),
            reference.name.as_str()
        ),
        ("v1", "ReplicationController", "cfg-1")
    );
    assert_eq!(reference.uid, owner["metadata"]["uid"].as_str().unwrap());
    assert!(policy.ordinal(&pod, None).is_err() && policy.config_uid(&pod, None).is_err());
}

#[test]
fn a_replication_controller_may_start_a_deployer_only_when_new_and_not_cancelled() {
    let (policy, pod) = (policy(), object(DEPLOYER));
    let (phase, cancelled) = ("openshift.io/deployment.phase", "openshift.io/deployment.cancelled");
    for (annotations, wanted) in [
        (json!({phase: "New"}), true),
        (json!({phase: "Pending"}), false),
        (json!({phase: "Running"}), false),
        (json!({phase: "Complete"}), false),
        (json!({phase: "Failed"}), false),
        (json!({phase: "new"}), false),
        (json!({phase: null}), false),
        (json!({phase: "New", cancelled: "true"}), false),
        (json!({phase: "New", cancelled: "TRUE"}), false),
        (json!({phase: "New", cancelled: "false"}), true),
        (json!({phase: "New", cancelled: ""}), true),
    ] {
        assert_eq!(
            policy.owner_allows(&pod, &owner(annotations.clone())),
            Ok(wanted),
            "{annotations}"
        );
    }
    let mut bare = object(OWNER);
    bare["metadata"].as_object_mut().unwrap().remove("annotations");
    assert_eq!(policy.owner_allows(&pod, &bare), Ok(false));
}

#[test]
fn only_what_names_the_rollout_is_watched() {
    let policy = policy();
    let (old, mut new) = (object(DEPLOYER), object(DEPLOYER));
    new["metadata"]["labels"]["mine"] = "x".into();
    new["metadata"]["annotations"]["openshift.io/deployment.name"] = "x".into();
    new["metadata"]["finalizers"] = json!(["x"]);
    assert!(policy.changed_keys(&old, &new).is_empty());
    new["metadata"]["labels"]["openshift.io/deployer-pod-for.name"] = "cfg-2".into();
    new["metadata"]["annotations"]["openshift.io/deployment-config.name"] = "other".into();
    assert_eq!(
        policy.changed_keys(&old, &new),
        [
            "label openshift.io/deployer-pod-for.name",
            "annotation openshift.io/deployment-config.name"
        ]
    );
}

#[test]
fn settings_are_those_of_its_page() {
    let policy = policy();
    assert_eq!(
        (policy.reruns, policy.older_generations),
        (Reruns::AfterFailure, OlderGenerations::Deny)
    );
    assert_eq!((policy.mode, policy.scope), (Mode::Enforce, KeyScope::Config));
    assert!(policy.needs_owner() && policy.has_generation);
}
