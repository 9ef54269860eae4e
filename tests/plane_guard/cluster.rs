//! The calls themselves: fenced deletes, a patch of an owner that is still the same, lists of what is active.

use anyhow::{Context, ensure};
use deployer_guard::api::claim::DeployerClaimSpec;
use deployer_guard::cluster::store::{OwnerKind, Store, WriteError};
use deployer_guard::cluster::upkeep::{Fence, Upkeep};
use kube::ResourceExt;
use kube::api::PostParams;
use serde_json::{Value, json};

use crate::scene::{Scene, run};

fn text(object: &Value, pointer: &str) -> String {
    object
        .pointer(pointer)
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned()
}

#[test]
fn a_delete_of_a_pod_is_of_the_version_that_was_read() {
    run(async {
        let scene = Scene::before("fenced-pod").await?;
        let store = &scene.guarded.store;
        scene.create(&scene.pod("p", &json!({}))).await?;
        let read = async || store.whole_pod(scene.name, "p").await?.context("a pod");
        let first = read().await?;
        let delete = async |pod: &Value, uid: Option<&str>| {
            let (own, version) = (text(pod, "/metadata/uid"), text(pod, "/metadata/resourceVersion"));
            let fence = Fence {
                namespace: scene.name,
                name: "p",
                uid: uid.unwrap_or(&own),
                version: &version,
            };
            store.delete_pod(fence).await
        };
        ensure!(delete(&first, Some("another")).await == Err(WriteError::Conflict));
        // As a scheduler would.
        let binding = json!({
            "apiVersion": "v1", "kind": "Binding", "metadata": { "name": "p" },
            "target": { "apiVersion": "v1", "kind": "Node", "name": "no-such-node" },
        });
        let params = PostParams::default();
        let _status: Value = scene
            .pods()
            .create_subresource("binding", "p", &params, &binding)
            .await?;
        ensure!(
            delete(&first, None).await == Err(WriteError::Conflict),
            "it was bound since it was read"
        );
        ensure!(read().await?.pointer("/metadata/deletionTimestamp").is_none());
        scene.set_phase("p", "Failed").await?;
        ensure!(delete(&read().await?, None).await == Ok(()));
        ensure!(store.whole_pod(scene.name, "p").await?.is_none());
        ensure!(delete(&first, None).await == Err(WriteError::Conflict), "it is gone");
        Ok(())
    });
}

#[test]
fn a_delete_of_a_claim_is_of_the_version_that_was_read() {
    run(async {
        let scene = Scene::before("fenced-claim").await?;
        let store = &scene.guarded.store;
        let spec = DeployerClaimSpec {
            protocol: 1,
            config: "cfg".into(),
            ..DeployerClaimSpec::default()
        };
        let first = store.create_claim(scene.name, "c", spec.clone()).await?;
        let next = DeployerClaimSpec {
            config: "other".into(),
            ..spec
        };
        let second = store.update_claim(&first, next).await?;
        ensure!(store.delete_claim(&first).await == Err(WriteError::Conflict));
        ensure!(
            store.list_claims().await?.iter().any(
                |claim| claim.namespace == scene.name && Some(&claim.version) == second.resource_version().as_ref()
            )
        );
        ensure!(store.delete_claim(&second).await == Ok(()));
        ensure!(store.claim(scene.name, "c").await?.is_none());
        ensure!(store.delete_claim(&second).await == Err(WriteError::Conflict));
        Ok(())
    });
}

#[test]
fn an_owner_is_touched_only_if_it_is_still_the_same() {
    run(async {
        let scene = Scene::before("touched").await?;
        // With rights that the guard has only where policies wake.
        let store = deployer_guard::cluster::live::LiveStore::new(
            scene.client.clone(),
            std::sync::Arc::clone(&scene.guarded.metrics),
        );
        let kind = OwnerKind {
            api_version: "v1".into(),
            kind: "Pod".into(),
        };
        scene.create(&scene.pod("owner", &json!({}))).await?;
        let owner = store.owner(scene.name, &kind, "owner").await?.context("an owner")?;
        let touch = async |uid: &str| {
            store
                .annotate_owner(scene.name, &kind, ("owner", uid), ("a/b", "c"))
                .await
        };
        ensure!(touch("another").await.is_err(), "another object was touched");
        let after = store.owner(scene.name, &kind, "owner").await?.context("an owner")?;
        ensure!(after.pointer("/metadata/annotations/a~1b").is_none());
        touch(&text(&owner, "/metadata/uid")).await?;
        let after = store.owner(scene.name, &kind, "owner").await?.context("an owner")?;
        ensure!(text(&after, "/metadata/annotations/a~1b") == "c");
        Ok(())
    });
}

#[test]
fn a_list_shows_the_active_pods_that_the_selector_matches() {
    run(async {
        let scene = Scene::before("listed").await?;
        let store = &scene.guarded.store;
        for name in ["active", "finished"] {
            scene.create(&scene.pod(name, &json!({}))).await?;
        }
        scene.set_phase("finished", "Succeeded").await?;
        let listed = store.list_active_pods("scene=listed").await?;
        let pod = store.whole_pod(scene.name, "active").await?.context("a pod")?;
        ensure!(listed.len() == 1, "{listed:?}");
        ensure!(
            (&*listed[0].namespace, &*listed[0].name) == (scene.name, "active")
                && listed[0].uid == text(&pod, "/metadata/uid")
                && listed[0].version == text(&pod, "/metadata/resourceVersion"),
            "{listed:?}"
        );
        Ok(())
    });
}
