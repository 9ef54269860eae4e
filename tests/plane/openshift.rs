//! The policy for `OpenShift` `DeploymentConfigs`, with objects of the exact shape that its controllers make.

use anyhow::ensure;
use deployer_guard_testkit::Stage;
use k8s_openapi::api::core::v1::ReplicationController;
use kube::api::{Api, DeleteParams};
use serde_json::{Value, json};

use crate::common::{Rollout, run};
use crate::scene::{Scene, in_outage, openshift_policy};

/// Pods that look like deployers of `cfg-1`: hooks, a helper of a custom strategy, an application pod.
fn lookalikes(namespace: &str) -> anyhow::Result<Vec<Value>> {
    let mut pods = Vec::new();
    let mut add = |text: &str, name: &str| -> anyhow::Result<()> {
        let mut pod: Value = serde_json::from_str(text)?;
        let metadata = &mut pod["metadata"];
        metadata["name"] = json!(name);
        metadata["namespace"] = json!(namespace);
        for field in [
            "uid",
            "creationTimestamp",
            "generation",
            "ownerReferences",
            "generateName",
        ] {
            if let Some(metadata) = metadata.as_object_mut() {
                metadata.remove(field);
            }
        }
        let containers = pod["spec"]["containers"].clone();
        let container = json!([{ "name": containers[0]["name"], "image": containers[0]["image"] }]);
        pod["spec"] =
            json!({ "containers": container, "restartPolicy": "Never", "automountServiceAccountToken": false });
        pods.push(pod);
        Ok(())
    };
    for hook in ["pre", "mid", "post"] {
        add(
            include_str!("../data/openshift/hook-pod.json"),
            &format!("cfg-1-hook-{hook}"),
        )?;
    }
    // As the deployer, under another name.
    add(include_str!("../data/openshift/deployer-pod.json"), "cfg-1-helper")?;
    add(include_str!("../data/openshift/application-pod.json"), "cfg-1-x7k2p")?;
    Ok(pods)
}

#[test]
fn hook_helper_and_application_pods_never_reach_the_webhook() {
    run(async {
        let scene = Scene::openshift("openshift-lookalikes").await?;
        let (_, deployer) = scene.begun("cfg", 1).await?;
        scene.admits(&deployer).await?;
        for pod in lookalikes(&scene.namespace)? {
            let answer = scene.create(&pod).await?;
            ensure!(answer.is_created(), "{}: {}", pod["metadata"]["name"], answer.message());
        }
        let pods: Vec<_> = scene.decisions()?.iter().map(|line| line["pod"].clone()).collect();
        assert_eq!(pods, ["cfg-1-deploy"]);
        Ok(())
    });
}

#[test]
fn hook_helper_and_application_pods_are_created_with_every_replica_down_and_deployers_are_not() {
    run(async {
        let scene = in_outage("outage-lookalikes").await?;
        for pod in lookalikes(&scene.namespace)? {
            let answer = scene.create(&pod).await?;
            ensure!(answer.is_created(), "{}: {}", pod["metadata"]["name"], answer.message());
        }
        let (_, deployer) = scene.begun("cfg", 1).await?;
        let answer = scene.create(&deployer).await?;
        assert_eq!(answer.code, 500);
        ensure!(
            answer.message().contains("failed calling webhook"),
            "{}",
            answer.message()
        );
        Ok(())
    });
}

#[test]
fn an_old_rollout_does_not_come_back_after_a_newer_one_was_seen() {
    run(async {
        let scene = Scene::openshift("openshift-old").await?;
        let (_, old) = scene.begun("cfg", 1).await?;
        let (newer, new) = scene.begun("cfg", 2).await?;
        scene.admits(&new).await?;
        scene.refuses(&old, "DeployerActive").await?;

        scene.set_phase(&newer.deployer(), "Failed").await?;
        let message = scene.refuses(&old, "OlderGeneration").await?;
        assert_eq!(
            message,
            "DeployerPolicy \"openshift-deploymentconfig\" refuses pod \"cfg-1-deploy\" for \"cfg\" (OlderGeneration): its generation has ordinal 1, and 2 \
             (\"cfg-2\") is newer (policy spec.olderGenerations: Deny). To go back to an old version, start a new generation from it"
        );
        scene.delete(&newer.deployer()).await?;
        scene.refuses(&old, "OlderGeneration").await?;
        let (_, newest) = scene.begun("cfg", 3).await?;
        scene.admits(&newest).await
    });
}

#[test]
fn a_complete_rollout_does_not_come_back() {
    run(async {
        let scene = Scene::openshift("openshift-complete").await?;
        let (rollout, deployer) = scene.begun("cfg", 1).await?;
        scene.admits(&deployer).await?;
        rollout.set_phase(&scene.client, "Running").await?;
        scene.set_phase(&rollout.deployer(), "Succeeded").await?;
        rollout.set_phase(&scene.client, "Complete").await?;

        // Its pod is still there: the name is taken.
        assert_eq!(scene.create(&deployer).await?.code, 409);
        scene.delete(&rollout.deployer()).await?;
        let message = scene.refuses(&deployer, "OwnerNotEligible").await?;
        ensure!(
            message.contains("its owner, ReplicationController \"cfg-1\", is not in a state that may start a deployer"),
            "{message}"
        );
        Ok(())
    });
}

#[test]
fn a_rollout_that_was_seen_to_complete_does_not_come_back_though_its_controller_says_new_again() {
    run(async {
        // Older rollouts are allowed, so that only the outcome stands in the way.
        let label = ("scene", "completed");
        let policy = openshift_policy("completed", label, &json!({ "olderGenerations": "Allow" }))?;
        let scene = Scene::under(&[policy], "openshift-completed").await?;
        let (first, first_pod) = labelled(&scene, 1, label).await?;
        scene.admits(&first_pod).await?;
        scene.set_phase(&first.deployer(), "Succeeded").await?;
        first.set_phase(&scene.client, "Complete").await?;

        let (second, second_pod) = labelled(&scene, 2, label).await?;
        scene.admits(&second_pod).await?;
        scene.set_phase(&second.deployer(), "Failed").await?;
        scene.delete(&first.deployer()).await?;
        first.set_phase(&scene.client, "New").await?;
        let message = scene.refuses(&first_pod, "GenerationCompleted").await?;
        assert_eq!(
            message,
            "DeployerPolicy \"completed\" refuses pod \"cfg-1-deploy\" for \"cfg\" (GenerationCompleted): generation \"cfg-1\" has completed and is not run again \
             (policy spec.reruns). Start a new generation"
        );
        Ok(())
    });
}

#[test]
fn a_zombie_of_a_failed_rollout_does_not_take_the_key_from_the_rightful_one() {
    run(async {
        let scene = Scene::openshift("openshift-zombie").await?;
        let (failed, zombie) = scene.begun("cfg", 1).await?;
        scene.admits(&zombie).await?;
        scene.set_phase(&failed.deployer(), "Failed").await?;
        failed.set_phase(&scene.client, "Failed").await?;
        scene.delete(&failed.deployer()).await?;

        let (_, rightful) = scene.begun("cfg", 2).await?;
        scene.refuses(&zombie, "OwnerNotEligible").await?;
        scene.admits(&rightful).await?;
        scene.refuses(&zombie, "DeployerActive").await?;

        // And where nothing is known of the config yet.
        let (never_seen, zombie) = scene.begun("other", 1).await?;
        never_seen.set_phase(&scene.client, "Failed").await?;
        scene.refuses(&zombie, "OwnerNotEligible").await?;
        let (_, rightful) = scene.begun("other", 2).await?;
        scene.admits(&rightful).await
    });
}

#[test]
fn a_cancelled_rollout_is_refused_whatever_the_case_of_true() {
    run(async {
        let scene = Scene::openshift("openshift-cancelled").await?;
        let (rollout, deployer) = scene.begun("cfg", 1).await?;
        for value in ["true", "TRUE", "True"] {
            rollout
                .annotate(&scene.client, "openshift.io/deployment.cancelled", value)
                .await?;
            scene.refuses(&deployer, "OwnerNotEligible").await?;
        }
        rollout
            .annotate(&scene.client, "openshift.io/deployment.cancelled", "false")
            .await?;
        scene.admits(&deployer).await
    });
}

#[test]
fn a_retry_after_a_failure_works() {
    run(async {
        let scene = Scene::openshift("openshift-retry").await?;
        let (rollout, deployer) = scene.begun("cfg", 1).await?;
        for phase in ["Failed", "New"] {
            scene.admits(&deployer).await?;
            scene.set_phase(&rollout.deployer(), "Failed").await?;
            rollout.set_phase(&scene.client, phase).await?;
            // `oc rollout retry`: the pods go with grace 0, then the phase is New again.
            scene.delete(&rollout.deployer()).await?;
            rollout.set_phase(&scene.client, "New").await?;
        }
        scene.admits(&deployer).await
    });
}

#[test]
fn a_config_made_anew_under_an_old_name_starts_afresh() {
    run(async {
        let scene = Scene::openshift("openshift-anew").await?;
        let controllers: Api<ReplicationController> = Api::namespaced(scene.client.clone(), &scene.namespace);
        for version in [1, 2] {
            let (rollout, deployer) = scene.begun("cfg", version).await?;
            scene.admits(&deployer).await?;
            scene.set_phase(&rollout.deployer(), "Succeeded").await?;
        }
        for version in [1, 2] {
            let rollout = scene.rollout("cfg", version);
            scene.delete(&rollout.deployer()).await?;
            controllers.delete(&rollout.name(), &DeleteParams::background()).await?;
        }
        let anew = Rollout {
            config_uid: "0b8f2f5e-0000-4000-8000-0000000000aa".into(),
            ..scene.rollout("cfg", 1)
        };
        let deployer = anew.pod(&anew.begin(&scene.client, "New").await?);
        scene.admits(&deployer).await?;

        // It still is one config: a deployer of the old one's successor waits.
        let next = Rollout {
            version: 2,
            config_uid: anew.config_uid.clone(),
            ..scene.rollout("cfg", 2)
        };
        let deployer = next.pod(&next.begin(&scene.client, "New").await?);
        scene.refuses(&deployer, "DeployerActive").await?;
        Ok(())
    });
}

#[test]
fn a_deployer_that_has_failed_and_is_terminating_does_not_hold_the_config() {
    run(async {
        let scene = Scene::openshift("openshift-terminating").await?;
        let (first, mut deployer) = scene.begun("cfg", 1).await?;
        let (_, next) = scene.begun("cfg", 2).await?;
        deployer["spec"]["nodeName"] = json!("no-such-node");
        scene.admits(&deployer).await?;
        scene.set_phase(&first.deployer(), "Running").await?;
        scene.delete_gracefully(&first.deployer()).await?;
        scene.refuses(&next, "DeployerActive").await?;

        scene.set_phase(&first.deployer(), "Failed").await?;
        ensure!(scene.exists(&first.deployer()).await?, "it is gone");
        scene.admits(&next).await
    });
}

#[test]
fn a_deployer_whose_controller_is_gone_or_was_replaced_is_refused() {
    run(async {
        let scene = Scene::openshift("openshift-owner").await?;
        let (rollout, deployer) = scene.begun("cfg", 1).await?;
        let controllers: Api<ReplicationController> = Api::namespaced(scene.client.clone(), &scene.namespace);
        controllers.delete(&rollout.name(), &DeleteParams::background()).await?;
        let message = scene.refuses(&deployer, "OwnerGone").await?;
        ensure!(
            message.ends_with("its owner, ReplicationController \"cfg-1\", does not exist: the rollout was removed. Start a new rollout"),
            "{message}"
        );
        let uid = rollout.begin(&scene.client, "New").await?;
        let message = scene.refuses(&deployer, "OwnerReplaced").await?;
        ensure!(
            message.contains("ReplicationController \"cfg-1\", exists with another uid"),
            "{message}"
        );
        scene.admits(&rollout.pod(&uid)).await
    });
}

async fn labelled(scene: &Scene, version: u32, label: (&str, &str)) -> anyhow::Result<(Rollout, Value)> {
    let (rollout, mut pod) = scene.begun("cfg", version).await?;
    pod["metadata"]["labels"][label.0] = json!(label.1);
    Ok((rollout, pod))
}

/// The deployer is created, the update of the phase is lost to a conflict, a user deletes the half-done pod, and the
/// controller, whose `ReplicationController` is still New, creates it again.
async fn origin_16129(reruns: &str) -> anyhow::Result<(Scene, Value)> {
    let name = format!("reruns-{}", reruns.to_lowercase());
    let label = ("scene", name.as_str());
    let policy = openshift_policy(&name, label, &json!({ "reruns": reruns }))?;
    let scene = Scene::under(&[policy], &name).await?;
    let (rollout, mut deployer) = labelled(&scene, 3, label).await?;
    deployer["spec"]["nodeName"] = json!("no-such-node");
    scene.admits(&deployer).await?;
    scene.delete_gracefully(&rollout.deployer()).await?;
    // While the first is terminating its name is taken, and a newer rollout has to wait for it too.
    assert_eq!(scene.create(&deployer).await?.code, 409);
    let (_, newer) = labelled(&scene, 4, label).await?;
    scene.refuses(&newer, "DeployerActive").await?;
    scene.delete(&rollout.deployer()).await?;
    Ok((scene, deployer))
}

#[test]
fn origin_16129_with_reruns_always_runs_the_rollout_again() {
    run(async {
        let (scene, deployer) = origin_16129("Always").await?;
        scene.admits(&deployer).await
    });
}

#[test]
fn origin_16129_with_reruns_after_failure_runs_the_rollout_again_since_nobody_saw_it_complete() {
    run(async {
        let (scene, deployer) = origin_16129("AfterFailure").await?;
        scene.admits(&deployer).await
    });
}

#[test]
fn origin_16129_with_a_deployer_that_was_seen_to_succeed_does_not_run_the_rollout_again() {
    run(async {
        let label = ("scene", "succeeded");
        let policy = openshift_policy("succeeded", label, &json!({ "olderGenerations": "Allow" }))?;
        let scene = Scene::under(&[policy], "openshift-succeeded").await?;
        let (rollout, deployer) = labelled(&scene, 3, label).await?;
        // Of one whose end nobody saw, AfterFailure knows no better than that it did not complete.
        scene.admits(&deployer).await?;
        scene.set_phase(&rollout.deployer(), "Succeeded").await?;
        scene.delete(&rollout.deployer()).await?;
        scene.admits(&deployer).await?;

        scene.set_phase(&rollout.deployer(), "Succeeded").await?;
        let (newer, newer_pod) = labelled(&scene, 4, label).await?;
        scene.admits(&newer_pod).await?;
        scene.set_phase(&newer.deployer(), "Failed").await?;
        scene.delete(&rollout.deployer()).await?;
        scene.refuses(&deployer, "GenerationCompleted").await?;
        Ok(())
    });
}

#[test]
fn origin_16129_with_reruns_never_refuses_the_rollout() {
    run(async {
        let (scene, deployer) = origin_16129("Never").await?;
        let message = scene.refuses(&deployer, "GenerationAlreadyRun").await?;
        assert_eq!(
            message,
            "DeployerPolicy \"reruns-never\" refuses pod \"cfg-3-deploy\" for \"cfg\" (GenerationAlreadyRun): generation \"cfg-3\" was run before (outcome Unknown) \
             and is not run again (policy spec.reruns: Never). Start a new generation"
        );
        let (_, newer) = labelled(&scene, 5, ("scene", "reruns-never")).await?;
        scene.admits(&newer).await
    });
}

#[test]
fn the_shipped_policy_has_the_default_of_reruns() {
    run(async {
        let scene = Scene::openshift("openshift-default").await?;
        let stage: &Stage = scene.stage;
        let output = stage
            .plane
            .kubectl(&[
                "get",
                "dpol",
                "openshift-deploymentconfig",
                "-o",
                "jsonpath={.spec.reruns}",
            ])
            .await?;
        assert_eq!(String::from_utf8(output.stdout)?, "AfterFailure");
        Ok(())
    });
}
