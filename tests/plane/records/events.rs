//! Events of refusals.

use anyhow::{Context, ensure};
use deployer_guard_testkit::until;
use k8s_openapi::api::events::v1::Event;
use kube::api::{Api, ListParams};
use serde_json::json;

use super::held;
use crate::common::run;
use crate::scene::{SOON, Scene, pod, policy};

/// Waits for so many observations of refusals of a kind of object; gives their Events.
async fn rejections(scene: &Scene, kind: &str, observed: i32) -> anyhow::Result<Vec<Event>> {
    let api: Api<Event> = Api::namespaced(scene.client.clone(), &scene.namespace);
    until(&format!("{observed} refusals on a {kind}"), SOON, async || {
        let events = api.list(&ListParams::default()).await?.items;
        let of_it: Vec<Event> = events
            .into_iter()
            .filter(|event| event.regarding.as_ref().and_then(|it| it.kind.as_deref()) == Some(kind))
            .collect();
        let count: i32 = of_it
            .iter()
            .map(|event| event.series.as_ref().map_or(1, |series| series.count))
            .sum();
        ensure!(count == observed, "{count} so far");
        Ok(of_it)
    })
    .await
}

#[test]
fn a_refusal_is_an_event_on_the_controller_and_on_the_claim_with_the_holder_beside_it() {
    run(async {
        let (scene, holder, second) = held("records-event").await?;
        let message = scene.refuses(&second, "DeployerActive").await?;
        let claim = scene.claim().await?;
        for (kind, name) in [
            ("ReplicationController", "cfg-2".to_owned()),
            ("DeployerClaim", claim.metadata.name.clone().context("a name")?),
        ] {
            let event = rejections(&scene, kind, 1).await?.remove(0);
            let regarding = event.regarding.context("regarding")?;
            assert_eq!(regarding.name, Some(name));
            ensure!(regarding.uid.is_some(), "no uid");
            let related = event.related.context("related")?;
            assert_eq!(
                (related.kind.as_deref(), related.name.as_deref(), related.uid.as_deref()),
                (Some("Pod"), Some("cfg-1-deploy"), Some(holder.as_str()))
            );
            assert_eq!(event.reason.as_deref(), Some("DeployerRejected"));
            assert_eq!(event.type_.as_deref(), Some("Warning"));
            assert_eq!(event.reporting_controller.as_deref(), Some("deployer-guard.io/webhook"));
            assert_eq!(event.note.as_ref(), Some(&message));
        }
        let (_, described) = scene.kubectl(&["describe", "rc", "cfg-2"]).await?;
        ensure!(
            described.contains("DeployerRejected")
                && described.contains("deployer pod \"cfg-1-deploy\" (generation \"cfg-1\") is active"),
            "{described}"
        );
        let (_, described) = scene.kubectl(&["describe", "dclaim"]).await?;
        ensure!(described.contains("DeployerRejected"), "{described}");
        let (_, listed) = scene.kubectl(&["get", "events"]).await?;
        ensure!(
            listed.contains("DeployerRejected") && listed.contains("replicationcontroller/cfg-2"),
            "{listed}"
        );
        Ok(())
    });
}

#[test]
fn a_refusal_for_the_pod_alone_is_an_event_on_its_owner() {
    run(async {
        let (scene, _, mut second) = held("records-pod-alone").await?;
        second["metadata"]["annotations"] = json!({});
        let message = scene.refuses(&second, "IdentityInvalid").await?;
        let event = rejections(&scene, "ReplicationController", 1).await?.remove(0);
        assert_eq!(event.regarding.and_then(|owner| owner.name).as_deref(), Some("cfg-2"));
        assert_eq!(event.note, Some(message));

        let out = json!({ "metadata": { "annotations": { "openshift.io/deployment-config.name": "x" } } });
        ensure!(scene.patch("cfg-1-deploy", &out).await.is_err(), "it was changed");
        let events = rejections(&scene, "ReplicationController", 2).await?;
        let owners = events
            .iter()
            .filter_map(|event| event.regarding.as_ref()?.name.as_deref());
        assert_eq!(owners.collect::<std::collections::BTreeSet<_>>().len(), 2);
        Ok(())
    });
}

#[test]
fn a_refusal_that_repeats_is_one_event_of_each_replica_with_a_count() {
    run(async {
        let (scene, _, second) = held("records-series").await?;
        for _ in 0..6 {
            scene.refuses(&second, "DeployerActive").await?;
        }
        let events = rejections(&scene, "ReplicationController", 6).await?;
        ensure!(events.len() <= scene.stage.replicas.len(), "{} Events", events.len());
        let listed = scene.kubectl(&["get", "events", "-o", "wide"]).await?.1;
        ensure!(listed.contains("DeployerRejected"), "{listed}");
        Ok(())
    });
}

#[test]
fn refusals_of_different_pods_by_one_holder_are_different_events() {
    run(async {
        let (scene, _, second) = held("records-notes").await?;
        let (_, third) = scene.begun("cfg", 3).await?;
        for _ in 0..4 {
            scene.refuses(&second, "DeployerActive").await?;
            scene.refuses(&third, "DeployerActive").await?;
        }
        let events = rejections(&scene, "DeployerClaim", 8).await?;
        for pod in ["cfg-2-deploy", "cfg-3-deploy"] {
            let of_it = events
                .iter()
                .filter(|event| event.note.as_ref().is_some_and(|note| note.contains(pod)));
            let count: i32 = of_it
                .map(|event| event.series.as_ref().map_or(1, |series| series.count))
                .sum();
            assert_eq!(count, 4, "{pod}");
        }
        Ok(())
    });
}

/// Neither owner nor claim can be found for such a pod, and the pod never was in the store. Events of what has no namespace are
/// in `default`.
#[test]
fn a_refusal_without_owner_and_claim_is_an_event_on_the_policy() {
    run(async {
        let name = "records-policy";
        let scene = Scene::under(&[policy(name, &json!({}))], name).await?;
        for _ in 0..3 {
            scene
                .refuses(&pod("nobody", &[("scene", name)]), "IdentityInvalid")
                .await?;
        }
        let api: Api<Event> = Api::namespaced(scene.client.clone(), "default");
        until("three refusals on the policy", SOON, async || {
            let events = api.list(&ListParams::default()).await?.items;
            let of_it = events.iter().filter(|event| {
                let regarding = event.regarding.as_ref();
                regarding
                    .is_some_and(|it| it.kind.as_deref() == Some("DeployerPolicy") && it.name.as_deref() == Some(name))
            });
            let mut count = 0;
            for event in of_it {
                let pod = event.related.clone().unwrap_or_default();
                ensure!(
                    pod.namespace.as_deref() == Some(name) && pod.name.as_deref() == Some("nobody"),
                    "{pod:?}"
                );
                count += event.series.as_ref().map_or(1, |series| series.count);
            }
            ensure!(count == 3, "{count} so far");
            Ok(())
        })
        .await?;
        let described = scene.kubectl(&["describe", "deployerpolicy", name]).await?.1;
        ensure!(described.contains("DeployerRejected"), "{described}");
        Ok(())
    });
}
