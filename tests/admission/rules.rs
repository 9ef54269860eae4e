//! Identity, and the guarantees G2 to G4.

use serde_json::{Value, json};

use crate::world::{OPENSHIFT, Replica, deployer, openshift, rollout, runner};

#[tokio::test]
async fn an_identity_that_cannot_be_read_is_refused_by_its_field() {
    let replica = Replica::new();
    let long = "x".repeat(513);
    for (app, text) in [
        (Value::Null, "has no label app"),
        (json!(""), "label app is empty"),
        (json!(long), "label app has 513 bytes"),
        (json!("a\nb"), "label app holds control characters"),
        (json!("a\u{0}b"), "label app holds control characters"),
    ] {
        let mut review = runner("a", "u1", "shop");
        let labels = review["request"]["object"]["metadata"]["labels"]
            .as_object_mut()
            .unwrap();
        labels.remove("app");
        if !app.is_null() {
            labels.insert("app".into(), app);
        }
        let answer = replica.ask("runners", &review).await;
        answer.refused(403, "IdentityInvalid");
        assert!(answer.message().contains(text), "{text}: {}", answer.message());
        assert_eq!(answer.0["status"]["details"]["causes"][0]["field"], "spec.config.label");
        assert!(!answer.audit().contains_key("key"));
    }
    assert!(replica.store.began().is_empty());
    // Whatever else a name holds is fine, and stays apart from its lookalikes.
    for (number, app) in ["a b", "a/b", "a-b", "Käse", &"x".repeat(512)].into_iter().enumerate() {
        replica
            .ask("runners", &runner(&format!("r{number}"), &format!("v{number}"), app))
            .await
            .admitted();
    }
    assert_eq!(replica.claims().len(), 5);
}

/// How a run ended, and whether the generation may be run again under each `reruns`.
#[tokio::test]
async fn reruns_say_whether_a_generation_runs_again() {
    for (ended, reruns, cause) in [
        ("Succeeded", "Always", None),
        ("Succeeded", "AfterFailure", Some("GenerationCompleted")),
        ("Succeeded", "Never", Some("GenerationCompleted")),
        ("Failed", "Always", None),
        ("Failed", "AfterFailure", None),
        ("Failed", "Never", Some("GenerationAlreadyRun")),
        ("gone", "Always", None),
        ("gone", "AfterFailure", None),
        ("gone", "Never", Some("GenerationAlreadyRun")),
    ] {
        let replica = Replica::new();
        let mut policy = openshift(json!({"reruns": reruns}));
        policy["metadata"]["generation"] = 2.into();
        replica.learn(policy);
        replica.rollout(1, "New");
        let first = deployer(1, "u1");
        replica.run(OPENSHIFT, &first).await;
        if ended == "gone" {
            replica.remove_pod(&first);
        } else {
            replica.store_pod(&first, ended);
            // While its object is there, the name is taken whatever the policy says.
            let again = replica.ask(OPENSHIFT, &deployer(1, "u2")).await;
            again.refused(409, "AlreadyExists");
            // Another pod of the same generation is judged by G2 alone.
            let mut policy = openshift(json!({"reruns": reruns}));
            policy["metadata"]["generation"] = 3.into();
            policy["spec"]["match"]
                .as_object_mut()
                .unwrap()
                .remove("matchConditions");
            replica.learn(policy);
        }
        let mut again = deployer(1, "u3");
        if ended != "gone" {
            again["request"]["object"]["metadata"]["name"] = "cfg-1-deploy-again".into();
        }
        let answer = replica.ask(OPENSHIFT, &again).await;
        match cause {
            None => answer.admitted(),
            Some(cause) => answer.refused(403, cause),
        }
        // The claim remembers after the pod is gone, or is as it was where the run was refused.
        let outcomes: Vec<_> = replica
            .spec()
            .outcomes
            .iter()
            .map(|it| format!("{:?}", it.outcome))
            .collect();
        let remembered = match ended {
            "Succeeded" => "Completed",
            "Failed" => "Failed",
            _ => "Unknown",
        };
        let expected: &[&str] = if cause.is_none() { &[remembered] } else { &[] };
        assert_eq!(outcomes, expected, "{ended} {reruns}");
    }
}

#[tokio::test]
async fn an_older_generation_does_not_start_after_a_newer_one_was_seen() {
    for (older, code) in [("Deny", 403), ("Allow", 0)] {
        let replica = Replica::new();
        let mut policy = openshift(json!({"olderGenerations": older}));
        policy["metadata"]["generation"] = 2.into();
        replica.learn(policy);
        for version in [9, 10] {
            replica.rollout(version, "New");
        }
        let newest = deployer(10, "u10");
        replica.run(OPENSHIFT, &newest).await;
        replica.store_pod(&newest, "Failed");
        let answer = replica.ask(OPENSHIFT, &deployer(9, "u9")).await;
        assert_eq!(answer.code(), code, "{older} {}", answer.0);
        if code == 403 {
            answer.refused(403, "OlderGeneration");
            assert!(
                answer.message().contains("ordinal 9, and 10 (\"cfg-10\") is newer"),
                "{}",
                answer.message()
            );
        }
    }
}

#[tokio::test]
async fn a_config_made_anew_starts_afresh() {
    let replica = Replica::new();
    replica.rollout(5, "New");
    let fifth = deployer(5, "u5");
    replica.run(OPENSHIFT, &fifth).await;
    replica.store_pod(&fifth, "Succeeded");
    replica.store.memory.remove(&rollout(5, "New"));
    let mut owner = rollout(1, "New");
    owner["metadata"]["ownerReferences"][0]["uid"] = "another-deploymentconfig".into();
    replica.store.memory.put(owner);
    replica.ask(OPENSHIFT, &deployer(1, "u1")).await.admitted();
}

#[tokio::test]
async fn the_owner_must_exist_be_the_one_named_and_be_new() {
    let replica = Replica::new();
    let refused = async |change: &dyn Fn(&mut Value), cause: &str| {
        let mut owner = rollout(1, "New");
        change(&mut owner);
        replica.store.memory.put(owner);
        let answer = replica.ask(OPENSHIFT, &deployer(1, "u1")).await;
        answer.refused(403, cause);
        assert_eq!(
            answer.0["status"]["details"]["causes"][0]["field"],
            "metadata.ownerReferences"
        );
    };
    replica
        .ask(OPENSHIFT, &deployer(1, "u1"))
        .await
        .refused(403, "OwnerGone");
    let annotate = |key: &'static str, value: &'static str| {
        move |rc: &mut Value| rc["metadata"]["annotations"][key] = value.into()
    };
    for phase in ["Pending", "Running", "Complete", "Failed", "", "new"] {
        refused(&annotate("openshift.io/deployment.phase", phase), "OwnerNotEligible").await;
    }
    refused(
        &annotate("openshift.io/deployment.cancelled", "TRUE"),
        "OwnerNotEligible",
    )
    .await;
    refused(
        &annotate("openshift.io/deployment.cancelled", "true"),
        "OwnerNotEligible",
    )
    .await;
    refused(&|rc| rc["metadata"]["uid"] = "another".into(), "OwnerReplaced").await;
    refused(
        &|rc| drop(rc["metadata"].as_object_mut().unwrap().remove("annotations")),
        "OwnerNotEligible",
    )
    .await;
    assert_eq!(replica.store.writes(), 0);
    replica.rollout(1, "New");
    replica.ask(OPENSHIFT, &deployer(1, "u1")).await.admitted();
}

#[tokio::test]
async fn an_owner_that_lacks_what_the_policy_reads_is_refused_by_that_field() {
    let replica = Replica::new();
    for (pointer, field) in [
        ("/metadata/ownerReferences", "spec.config.uid"),
        (
            "/metadata/annotations/openshift.io~1deployment-config.latest-version",
            "spec.generation.ordinal",
        ),
    ] {
        let mut owner = rollout(1, "New");
        *owner.pointer_mut(pointer).unwrap() = if pointer.ends_with("version") {
            json!("one")
        } else {
            json!([])
        };
        replica.store.memory.put(owner);
        let answer = replica.ask(OPENSHIFT, &deployer(1, "u1")).await;
        answer.refused(403, "IdentityInvalid");
        assert_eq!(answer.0["status"]["details"]["causes"][0]["field"], field);
    }
}

#[tokio::test]
async fn a_pod_names_exactly_one_owner_of_the_kind() {
    let replica = Replica::new();
    replica.rollout(1, "New");
    let owners = |owners: Value| {
        let mut review = deployer(1, "u1");
        review["request"]["object"]["metadata"]["ownerReferences"] = owners;
        review
    };
    let owner = |kind: &str, name: &str, uid: &str| json!({"apiVersion": "v1", "kind": kind, "name": name, "uid": uid});
    let own = owner("ReplicationController", "cfg-1", "rc-1");
    for (references, cause) in [
        (Value::Null, "OwnerMissing"),
        (json!([]), "OwnerMissing"),
        (json!([owner("Pod", "cfg-1", "rc-1")]), "OwnerMissing"),
        (
            json!([own, owner("ReplicationController", "cfg-2", "rc-2")]),
            "OwnerAmbiguous",
        ),
        (json!([own, own]), "OwnerAmbiguous"),
        (json!([owner("ReplicationController", "cfg-1", "")]), "IdentityInvalid"),
    ] {
        let answer = replica.ask(OPENSHIFT, &owners(references.clone())).await;
        answer.refused(403, cause);
        assert_eq!(answer.audit()["key"], "shop/cfg", "{references}");
    }
    assert!(replica.store.began().is_empty());
    replica
        .ask(OPENSHIFT, &owners(json!([own, owner("Pod", "x", "y")])))
        .await
        .admitted();
}
