//! Modes, dry run, failure policies, the sources of an identity, scopes, updates, and what goes on without us.

use std::time::Duration;

use anyhow::{Context, ensure};
use deployer_guard_testkit::objects::{Answer, create_pod_with};
use deployer_guard_testkit::until;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::events::v1::Event;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams};
use serde_json::{Value, json};

use crate::common::run;
use crate::scene::{IGNORES_OUTAGES, SOON, Scene, in_outage, outage, pod, policy};

/// A namespace with an active deployer `first` of config `a`, under a policy of the namespace's name.
async fn held(name: &str, spec: &Value) -> anyhow::Result<Scene> {
    let scene = Scene::under(&[policy(name, spec)], name).await?;
    scene.admits(&pod("first", &[("scene", name), ("config", "a")])).await?;
    Ok(scene)
}

fn second(scene: &Scene) -> Value {
    pod("second", &[("scene", &scene.namespace), ("config", "a")])
}

#[test]
fn warn_creates_the_second_deployer_and_warns_its_client() {
    run(async {
        let scene = held("mode-warn", &json!({ "mode": "Warn" })).await?;
        let answer = scene.create(&second(&scene)).await?;
        assert_eq!(answer.code, 201);
        assert_eq!(
            answer.warnings,
            [
                "DeployerPolicy \"mode-warn\" refuses pod \"second\" for \"a\" (DeployerActive): deployer pod \"first\" is active, and only one deployer may work \
                 at once. Wait until it has finished, or end it: kubectl -n mode-warn delete pod first"
            ]
        );
        event(&scene, "DeployerWouldBeRejected").await.map(drop)
    });
}

#[test]
fn audit_creates_the_second_deployer_and_only_records() {
    run(async {
        let scene = held("mode-audit", &json!({ "mode": "Audit" })).await?;
        let answer = scene.create(&second(&scene)).await?;
        assert_eq!((answer.code, answer.warnings.len()), (201, 0));
        event(&scene, "DeployerWouldBeRejected").await?;
        let verdict = until("the audit annotation", SOON, async || {
            let events = scene.stage.plane.audit_events()?;
            let of_it = events.iter().find(|event| {
                event["objectRef"]["namespace"] == "mode-audit"
                    && event["objectRef"]["name"] == "second"
                    && event["verb"] == "create"
            });
            let annotations = &of_it.context("not in the audit log")?["annotations"];
            annotations["mode-audit.policies.deployer-guard.io/verdict"]
                .as_str()
                .map(str::to_owned)
                .context("no annotation")
        })
        .await?;
        assert_eq!(verdict, "Refused: DeployerActive");
        let lines = scene.decisions()?;
        let line = lines.iter().find(|line| line["pod"] == "second").context("a line")?;
        let message = line["message"].as_str().unwrap_or_default();
        ensure!(
            line["allowed"] == true && message.contains("deployer pod \"first\" is active"),
            "{line}"
        );
        Ok(())
    });
}

async fn event(scene: &Scene, reason: &str) -> anyhow::Result<Event> {
    let api: Api<Event> = Api::namespaced(scene.client.clone(), &scene.namespace);
    until(&format!("an Event {reason}"), SOON, async || {
        let events = api.list(&ListParams::default()).await?.items;
        let reasons: Vec<_> = events.iter().map(|event| event.reason.clone()).collect();
        let found = events.into_iter().find(|event| event.reason.as_deref() == Some(reason));
        found.with_context(|| format!("{reasons:?}"))
    })
    .await
}

#[test]
fn a_dry_run_gets_the_same_verdict_and_writes_nothing() {
    run(async {
        let name = "dry-run";
        let scene = Scene::under(&[policy(name, &json!({}))], name).await?;
        let dry = async |pod: &Value| create_pod_with(&scene.client, name, pod, "dryRun=All").await;
        let first = pod("first", &[("scene", name), ("config", "a")]);
        assert_eq!(dry(&first).await?.code, 201);
        ensure!(scene.claims().await?.is_empty(), "a claim was written");

        scene.admits(&first).await?;
        let before = scene.claim().await?;
        let refused = dry(&second(&scene)).await?;
        let message = |answer: &Answer| answer.message().to_owned();
        assert_eq!((refused.code, message(&refused)), {
            let really = scene.create(&second(&scene)).await?;
            (really.code, message(&really))
        });
        scene.set_phase("first", "Succeeded").await?;
        assert_eq!(dry(&second(&scene)).await?.code, 201);
        assert_eq!(scene.claim().await?.spec, before.spec);
        let dry: Vec<_> = scene.decisions()?.iter().map(|line| line["dry_run"].clone()).collect();
        assert_eq!(dry.iter().filter(|dry| **dry == true).count(), 3, "{dry:?}");
        Ok(())
    });
}

#[test]
fn with_every_replica_down_fail_refuses_and_ignore_admits() {
    run(async {
        let scene = in_outage("outage-policies").await?;
        let (_, deployer) = scene.begun("cfg", 1).await?;
        let answer = scene.create(&deployer).await?;
        assert_eq!(answer.code, 500, "{}", answer.message());
        let ignored = pod("ignored", &[("scene", IGNORES_OUTAGES), ("config", "a")]);
        assert_eq!(scene.create(&ignored).await?.code, 201);
        Ok(())
    });
}

#[test]
fn the_config_is_read_from_a_label_an_annotation_or_an_expression() {
    run(async {
        for (name, config) in [
            ("identity-label", json!({ "label": "app" })),
            (
                "identity-annotation",
                json!({ "label": null, "annotation": "example.com/app" }),
            ),
            (
                "identity-expression",
                json!({ "label": null, "expression": "object.metadata.name.split('-')[0] + '/' + object.metadata.labels['app']" }),
            ),
        ] {
            let scene = Scene::under(&[policy(name, &json!({ "config": config }))], name).await?;
            let made = |pod_name: &str, app: &str| {
                let mut pod = pod(pod_name, &[("scene", name), ("app", app)]);
                pod["metadata"]["annotations"] = json!({ "example.com/app": format!("{app} with a space") });
                pod
            };
            scene.admits(&made("x-1", "one")).await?;
            scene.refuses(&made("x-2", "one"), "DeployerActive").await?;
            scene.admits(&made("x-3", "two")).await?;
            let configs: Vec<_> = scene
                .claims()
                .await?
                .into_iter()
                .map(|claim| claim.spec.config)
                .collect();
            assert_eq!(configs.len(), 2, "{configs:?}");

            let mut nameless = pod("x-4", &[("scene", name)]);
            nameless["metadata"]["annotations"] = json!({});
            let message = scene.refuses(&nameless, "IdentityInvalid").await?;
            ensure!(message.contains("spec.config."), "{message}");
        }
        Ok(())
    });
}

#[test]
fn with_scope_generation_two_generations_may_run_and_one_of_each() {
    run(async {
        let name = "scope-generation";
        let spec = json!({ "scope": "Generation", "generation": { "label": "version" } });
        let scene = Scene::under(&[policy(name, &spec)], name).await?;
        let of =
            |pod_name: &str, version: &str| pod(pod_name, &[("scene", name), ("config", "a"), ("version", version)]);
        scene.admits(&of("one", "1")).await?;
        scene.admits(&of("two", "2")).await?;
        scene.refuses(&of("another-two", "2"), "DeployerActive").await?;
        assert_eq!(scene.claims().await?.len(), 2);
        Ok(())
    });
}

fn refusal(result: kube::Result<k8s_openapi::api::core::v1::Pod>) -> anyhow::Result<String> {
    match result {
        Err(kube::Error::Api(status)) if status.code == 403 => Ok(status.message.clone()),
        Err(error) => Err(error.into()),
        Ok(pod) => anyhow::bail!("pod {} was changed", pod.name_any()),
    }
}

#[test]
fn a_plain_pod_cannot_be_labelled_into_a_deployer() {
    run(async {
        let scene = held("labelled-in", &json!({})).await?;
        scene.create(&pod("plain", &[("config", "b")])).await?;
        let become_one = json!({ "metadata": { "labels": { "scene": "labelled-in" } } });
        let message = refusal(scene.patch("plain", &become_one).await)?;
        ensure!(
            message.ends_with(
                "DeployerPolicy \"labelled-in\" refuses pod \"plain\" for \"b\" (IdentityChanged): label scene of an active deployer pod cannot be added, changed or \
                 removed, because the policy matches or reads it. Wait until the pod has finished, or delete it"
            ),
            "{message}"
        );
        Ok(())
    });
}

#[test]
fn what_identifies_an_active_deployer_cannot_be_changed_until_it_has_finished() {
    run(async {
        let scene = held("labelled-out", &json!({})).await?;
        for labels in [
            json!({ "scene": null }),
            json!({ "scene": "x" }),
            json!({ "config": "b" }),
        ] {
            let patch = json!({ "metadata": { "labels": labels } });
            refusal(scene.patch("first", &patch).await).with_context(|| labels.to_string())?;
        }
        // Others are nobody's business.
        scene
            .patch("first", &json!({ "metadata": { "labels": { "team": "blue" } } }))
            .await?;
        scene.set_phase("first", "Succeeded").await?;
        scene
            .patch("first", &json!({ "metadata": { "labels": { "scene": null } } }))
            .await?;
        Ok(())
    });
}

#[test]
fn finalizers_and_owners_of_a_deployer_can_be_patched_with_every_replica_down() {
    run(async {
        let scene = Scene::of(outage().await?, "outage-update");
        for metadata in [
            json!({ "finalizers": ["example.com/hold"] }),
            json!({ "finalizers": null }),
            json!({ "ownerReferences": null }),
        ] {
            scene.patch("cfg-1-deploy", &json!({ "metadata": metadata })).await?;
        }
        let out = json!({ "metadata": { "labels": { "openshift.io/deployer-pod-for.name": null } } });
        ensure!(
            scene.patch("cfg-1-deploy", &out).await.is_err(),
            "it was taken out of the match with nobody to judge that"
        );
        Ok(())
    });
}

#[test]
fn kubectl_apply_of_other_labels_works_with_every_replica_down() {
    run(async {
        let scene = Scene::of(outage().await?, "outage-update");
        let applied = std::fs::read_to_string(scene.stage.plane.directory().join("outage-update.json"))?;
        let mut pod: Value = serde_json::from_str(&applied)?;
        pod["metadata"]["labels"]["team"] = json!("blue");
        let file = scene.file("labels", &pod)?;
        let (done, printed) = scene.kubectl(&["apply", "-f", &file]).await?;
        ensure!(done, "{printed}");
        let stored = scene.pods().get("cfg-1-deploy").await?;
        assert_eq!(stored.labels().get("team").map(String::as_str), Some("blue"));
        Ok(())
    });
}

#[test]
fn a_namespace_with_deployers_can_be_deleted_with_every_replica_down() {
    run(async {
        let scene = Scene::of(outage().await?, "outage-namespace");
        ensure!(scene.exists("cfg-1-deploy").await?, "no deployer there");
        let api: Api<Namespace> = Api::all(scene.client.clone());
        api.delete(&scene.namespace, &DeleteParams::default()).await?;
        until("the namespace to be gone", Duration::from_mins(1), async || {
            let left = api.get_opt(&scene.namespace).await?;
            ensure!(
                left.is_none(),
                "{:?}",
                left.and_then(|namespace| namespace.status)
                    .and_then(|status| status.conditions)
            );
            Ok(())
        })
        .await
    });
}

/// What was let in beside the holder while the policy only warned counts from the moment on at which it is enforced.
#[test]
fn a_deployer_that_warn_let_in_counts_once_the_policy_is_enforced() {
    run(async {
        let scene = held("mode-switch", &json!({ "mode": "Warn" })).await?;
        assert_eq!(scene.create(&second(&scene)).await?.code, 201);
        scene
            .stage
            .enforce(&policy("mode-switch", &json!({ "mode": "Enforce" })).to_string())
            .await?;
        scene.set_phase("first", "Succeeded").await?;
        let third = pod("third", &[("scene", &scene.namespace), ("config", "a")]);
        let text = scene.refuses(&third, "DeployerActive").await?;
        ensure!(text.contains("\"second\""), "{text}");
        scene.set_phase("second", "Succeeded").await?;
        scene.admits(&third).await
    });
}
