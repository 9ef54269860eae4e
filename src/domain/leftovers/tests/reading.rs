//! What is known of a pod, from the objects of `OpenShift`.

use serde_json::{Value, json};

use super::*;
use crate::domain::key::{Key, Subject};
use crate::domain::policy::Policy;

fn policy(change: impl FnOnce(&mut Value)) -> Policy {
    let mut policy: Value =
        serde_saphyr::from_str(include_str!("../../../../policies/openshift-deploymentconfig.yaml")).unwrap();
    change(&mut policy);
    Policy::compile(&serde_json::from_value(policy).unwrap()).unwrap()
}

fn deployer() -> Value {
    serde_json::from_str(include_str!("../../../../tests/data/openshift/deployer-pod.json")).unwrap()
}

fn rollout(annotations: &[(&str, &str)]) -> Value {
    let mut rollout: Value = serde_json::from_str(include_str!(
        "../../../../tests/data/openshift/replicationcontroller.json"
    ))
    .unwrap();
    for (name, value) in annotations {
        rollout["metadata"]["annotations"][format!("openshift.io/{name}")] = json!(value);
    }
    rollout
}

fn key(config: &str) -> Key {
    Key {
        policy: "openshift-deploymentconfig".into(),
        namespace: "shop".into(),
        subject: Subject::Config(config.into()),
    }
}

fn read(pod: &Value, owner: OwnerRead<'_>) -> FoundPod {
    FoundPod::read(&policy(|_| {}), &key("cfg"), pod, owner)
}

#[test]
fn a_deployer_of_a_rollout() {
    let owner = rollout(&[]);
    let found = read(&deployer(), OwnerRead::Found(&owner));
    let place = Place::Here {
        generation: Some("cfg-1".into()),
        ordinal: Some(1),
        config_uid: owner["metadata"]["ownerReferences"][0]["uid"].as_str().map(Into::into),
    };
    assert_eq!((found.place, found.owner), (place, OwnerState::Fine));
    assert_eq!(found.uid, deployer()["metadata"]["uid"].as_str().unwrap());
    assert_eq!(found.created, Some("2026-11-30T13:26:16Z".parse().unwrap()));
}

#[test]
fn whether_it_has_started_and_still_works() {
    for (node, deleted, phase, expected) in [
        (json!(null), json!(null), json!(null), (true, false, Activity::Active)),
        (
            json!(""),
            json!(null),
            json!("Pending"),
            (true, false, Activity::Active),
        ),
        (
            json!("n1"),
            json!("2026-11-30T13:26:16Z"),
            json!("Running"),
            (false, true, Activity::Active),
        ),
        (
            json!("n1"),
            json!(null),
            json!("Failed"),
            (false, false, Activity::Failed),
        ),
    ] {
        let mut pod = deployer();
        pod["spec"]["nodeName"] = node;
        pod["metadata"]["deletionTimestamp"] = deleted;
        pod["status"] = json!({ "phase": phase });
        let found = read(&pod, OwnerRead::Absent);
        assert_eq!((found.unstarted, found.terminating, found.activity), expected);
    }
}

#[test]
fn owners() {
    let state = |owner: &Value| read(&deployer(), OwnerRead::Found(owner)).owner;
    for (annotations, expected) in [
        (&[("deployment.phase", "New")][..], OwnerState::Fine),
        (&[("deployment.phase", "Pending")], OwnerState::Fine),
        (&[("deployment.phase", "Running")], OwnerState::Fine),
        (&[("deployment.phase", "Complete")], OwnerState::Finished),
        (&[("deployment.phase", "Failed")], OwnerState::Finished),
        (&[("deployment.cancelled", "True")], OwnerState::Finished),
        (&[("deployment.cancelled", "false")], OwnerState::Fine),
    ] {
        assert_eq!(state(&rollout(annotations)), expected, "{annotations:?}");
    }
    let mut other = rollout(&[("deployment.phase", "Complete")]);
    other["metadata"]["uid"] = json!("other");
    assert_eq!(state(&other), OwnerState::Replaced);
    assert_eq!(state(&json!({})), OwnerState::Replaced);
    let gone = read(&deployer(), OwnerRead::Absent);
    let unknown = Place::Here {
        generation: Some("cfg-1".into()),
        ordinal: None,
        config_uid: None,
    };
    assert_eq!(
        (gone.owner, gone.place),
        (OwnerState::Gone, unknown),
        "what is read on the owner is not known"
    );
    assert_eq!(
        read(&deployer(), OwnerRead::Failed("why")).owner,
        OwnerState::Unread("why".into())
    );
}

/// A pod that names no owner is nobody's orphan: nothing is known of one that is gone.
#[test]
fn a_pod_without_an_owner_is_no_orphan() {
    let mut pod = deployer();
    pod["metadata"]["ownerReferences"] = json!([]);
    assert!(matches!(read(&pod, OwnerRead::Absent).owner, OwnerState::Unread(_)));
    let asks_none = policy(|policy| {
        let spec = policy["spec"].as_object_mut().unwrap();
        spec.remove("owner");
        spec["config"].as_object_mut().unwrap().remove("uid");
        spec["generation"].as_object_mut().unwrap().remove("ordinal");
        spec.remove("olderGenerations");
    });
    assert_eq!(
        FoundPod::read(&asks_none, &key("cfg"), &pod, OwnerRead::Absent).owner,
        OwnerState::Fine
    );
}

#[test]
fn places() {
    let owner = rollout(&[]);
    let place =
        |pod: &Value, config: &str| FoundPod::read(&policy(|_| {}), &key(config), pod, OwnerRead::Found(&owner)).place;
    assert_eq!(place(&deployer(), "other"), Place::Elsewhere);
    let mut hook = deployer();
    hook["metadata"]["name"] = json!("cfg-1-hook-pre");
    assert_eq!(place(&hook, "cfg"), Place::Elsewhere);
    let mut nameless = deployer();
    nameless["metadata"]["annotations"] = json!({});
    assert!(matches!(place(&nameless, "cfg"), Place::Unreadable(_)));
}

/// What it reads on the pod must not change while the pod works, as with the other expressions.
#[test]
fn what_says_that_an_owner_is_finished_is_watched() {
    let policy = policy(|policy| {
        policy["spec"]["owner"]["finished"] = json!("object.metadata.annotations['example.com/done'] == owner.kind");
    });
    let pod = |done: &str| json!({"metadata": {"annotations": {"example.com/done": done}}});
    assert_eq!(
        policy.changed_keys(&pod("a"), &pod("b")),
        ["annotation example.com/done"]
    );
    assert!(matches!(
        policy.owner_finished(&pod("Job"), &json!({"kind": "Job"})),
        Ok(true)
    ));
    assert!(policy.owner_finished(&json!({}), &json!({})).is_err());
}
