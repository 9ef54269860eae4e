//! What a guard does about pods that nobody admitted, and about claims whose holder ended.

use std::time::Duration;

use anyhow::{Context, ensure};
use deployer_guard::api::claim::{DeployerClaim, Outcome};
use deployer_guard_testkit::objects::apply_yaml;
use deployer_guard_testkit::until;
use k8s_openapi::api::core::v1::{Namespace, ReplicationController};
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::scene::{SOON, Scene, run};

fn generations() -> Value {
    json!({ "generation": { "label": "run" } })
}

fn outcomes(claim: &DeployerClaim) -> Vec<(String, Outcome)> {
    let outcomes = claim.spec.outcomes.iter();
    outcomes
        .map(|record| (record.generation.clone(), record.outcome))
        .collect()
}

#[test]
fn a_holder_that_ends_leaves_a_free_claim_and_its_outcome() {
    run(async {
        let scene = Scene::new("freed", generations()).await?;
        let mut took = Vec::new();
        for round in 1..=5 {
            let name = format!("run-{round}");
            scene
                .create(&scene.pod(&name, &json!({ "run": round.to_string() })))
                .await?;
            scene.until_held_by(&name).await?;
            scene.until_told("DeployerAdopted", "Pod", &name).await?;
            scene.set_phase(&name, "Succeeded").await?;
            let begun = Instant::now();
            let claim = scene
                .until_claim("the claim to be free", |claim| claim.spec.holder.is_none())
                .await?;
            took.push(begun.elapsed());
            ensure!(
                outcomes(&claim).contains(&(round.to_string(), Outcome::Completed)),
                "{:?}",
                claim.spec
            );
        }
        eprintln!("freed, as seen by a look every 50 ms: {took:?}");
        scene
            .until_told("ClaimFreed", "DeployerClaim", &scene.claim().await?.name_any())
            .await?;
        scene.nothing_failed()
    });
}

/// Nobody can read the pod any more: the last state in its DELETED event is the outcome.
#[test]
fn a_pod_that_finished_and_was_removed_at_once_has_completed() {
    run(async {
        let scene = Scene::new("finished-and-gone", generations()).await?;
        for round in 1..=5 {
            let name = format!("run-{round}");
            scene
                .create(&scene.pod(&name, &json!({ "run": round.to_string() })))
                .await?;
            scene.until_held_by(&name).await?;
            scene.set_phase(&name, "Succeeded").await?;
            scene.remove(&name).await?;
            let claim = scene
                .until_claim("the claim to be free", |claim| claim.spec.holder.is_none())
                .await?;
            ensure!(
                outcomes(&claim).contains(&(round.to_string(), Outcome::Completed)),
                "round {round}: {:?}",
                claim.spec
            );
        }
        scene.nothing_failed()
    });
}

#[test]
fn a_duplicate_that_has_not_started_is_deleted_and_the_holder_stays() {
    run(async {
        let scene = Scene::new("duplicate", json!({})).await?;
        scene.create_bound(scene.pod("first", &json!({}))).await?;
        let held = scene.until_held_by("first").await?;
        scene.create(&scene.pod("second", &json!({}))).await?;
        scene.until_gone("second").await?;
        for (kind, name) in [("Pod", "second"), ("Pod", "first"), ("DeployerPolicy", "duplicate")] {
            scene.until_told("DuplicateDeployer", kind, name).await?;
        }
        scene.until_told("DeployerDeleted", "Pod", "second").await?;
        let claim = scene
            .until_claim("the deleted pod to be forgotten", |claim| {
                claim.spec.condemned.is_empty()
            })
            .await?;
        ensure!(claim.spec.holder == held.spec.holder, "{:?}", claim.spec);
        ensure!(scene.pods().get_opt("first").await?.is_some(), "the holder is gone");
        ensure!(scene.metric("violations", "") == 0, "it is over");
        scene.nothing_failed()
    });
}

#[test]
fn a_duplicate_that_has_started_is_reported_until_it_ends() {
    run(async {
        let scene = Scene::new("started", json!({})).await?;
        scene.create_bound(scene.pod("first", &json!({}))).await?;
        scene.until_held_by("first").await?;
        scene.create_bound(scene.pod("second", &json!({}))).await?;
        let violated = |claim: &DeployerClaim, value: &str| {
            let conditions = claim.status.iter().flat_map(|status| &status.conditions);
            conditions
                .filter(|condition| condition.type_ == "Violated")
                .any(|condition| condition.status == value)
        };
        scene
            .until_claim("the claim to say so", |claim| violated(claim, "True"))
            .await?;
        scene
            .until_told("DuplicateDeployer", "DeployerPolicy", "started")
            .await?;
        ensure!(scene.metric("violations", "") == 1, "no violation is counted");
        scene.set_phase("second", "Failed").await?;
        scene
            .until_claim("the claim to say that it is over", |claim| violated(claim, "False"))
            .await?;
        ensure!(scene.metric("violations", "") == 0, "it is over");
        ensure!(scene.pods().get_opt("second").await?.is_some(), "it was deleted");
        scene.nothing_failed()
    });
}

#[test]
fn what_was_there_when_the_policy_came_into_force_is_never_deleted() {
    run(async {
        let scene = Scene::before("old-friends").await?;
        for name in ["a", "b", "c"] {
            scene.create(&scene.pod(name, &json!({}))).await?;
        }
        let version = scene.policy(json!({})).await?;
        let begun = std::time::Instant::now();
        scene
            .guarded
            .board
            .note(&version, |notice| notice.in_force_since = Some(begun.into()));
        // The window of these tests, and the API servers' lag, are 14 s.
        until("stock to be taken", Duration::from_secs(90), async || {
            let notice = scene.guarded.board.read(&version);
            ensure!(notice.stock_taken.is_some(), "{notice:?}");
            Ok(())
        })
        .await?;
        ensure!(begun.elapsed() > Duration::from_secs(14), "after {:?}", begun.elapsed());
        let claim = scene.claim().await?;
        ensure!(
            claim.spec.holder.is_some() && claim.spec.condemned.is_empty(),
            "{:?}",
            claim.spec
        );
        let left = scene.pods().list(&ListParams::default()).await?.items.len();
        ensure!(left == 3, "{left} pods are left");
        let counts = until("counts", SOON, async || {
            scene
                .guarded
                .board
                .read(&version)
                .counts
                .filter(|counts| counts.violations > 0)
                .context("none")
        })
        .await?;
        ensure!(
            (counts.claims, counts.active, counts.violations) == (1, 3, 1),
            "{counts:?}"
        );
        scene.nothing_failed()
    });
}

#[test]
fn an_owner_that_waits_is_touched_once_when_the_key_is_free() {
    run(async {
        let owner = json!({ "apiVersion": "v1", "kind": "ReplicationController", "wake": "OnRelease" });
        let scene = Scene::new("waking", json!({ "owner": owner })).await?;
        apply_yaml(&scene.client, MAY_WAKE, "test").await?;
        let owners: Api<ReplicationController> = Api::namespaced(scene.client.clone(), scene.name);
        let made: ReplicationController = serde_json::from_value(json!({
            "metadata": { "name": "rc" },
            "spec": { "replicas": 0, "selector": { "app": "x" }, "template": {
                "metadata": { "labels": { "app": "x" } },
                "spec": { "containers": [{ "name": "x", "image": "x" }] },
            } },
        }))?;
        let owner = owners.create(&PostParams::default(), &made).await?;
        let uid = owner.uid().context("a uid")?;
        let mut pod = scene.pod("first", &json!({}));
        pod["metadata"]["ownerReferences"] =
            json!([{ "apiVersion": "v1", "kind": "ReplicationController", "name": "rc", "uid": uid }]);
        scene.create(&pod).await?;
        let claim = scene.until_held_by("first").await?;
        let waiting = json!({ "status": { "waiting": [
            { "name": "rc", "uid": uid, "kind": "ReplicationController", "apiVersion": "v1" },
            { "name": "gone", "uid": "gone", "kind": "ReplicationController", "apiVersion": "v1" },
        ] } });
        scene
            .claims()
            .patch_status(&claim.name_any(), &PatchParams::default(), &Patch::Merge(waiting))
            .await?;
        sleep(Duration::from_secs(1)).await;
        let woken = async || {
            anyhow::Ok(
                owners
                    .get("rc")
                    .await?
                    .annotations()
                    .get("deployer-guard.io/woken-at")
                    .cloned(),
            )
        };
        ensure!(woken().await?.is_none(), "the key is taken");
        scene.set_phase("first", "Succeeded").await?;
        let first = until("the owner to be woken", SOON, async || {
            woken().await?.context("not yet")
        })
        .await?;
        scene
            .until_claim("nobody to wait", |claim| {
                claim.status.as_ref().is_none_or(|status| status.waiting.is_empty())
            })
            .await?;
        sleep(Duration::from_secs(2)).await;
        ensure!(woken().await? == Some(first), "it was woken twice");
        scene.nothing_failed()
    });
}

/// `spec.owner.wake` needs one right more.
const MAY_WAKE: &str = r"
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: may-wake}
rules:
- {apiGroups: [''], resources: [replicationcontrollers], verbs: [patch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: may-wake}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: may-wake}
subjects: [{kind: ServiceAccount, name: deployer-guard, namespace: deployer-guard}]
";

#[test]
fn a_namespace_that_is_deleted_while_deployers_come_and_go_is_gone() {
    run(async {
        let scene = Scene::new("dying", json!({})).await?;
        for number in 0..5 {
            let mut pod = scene.pod(&format!("pod-{number}"), &json!({}));
            pod["metadata"]["labels"]["config"] = json!(format!("cfg-{number}"));
            scene.create(&pod).await?;
        }
        until("claims", SOON, async || {
            let claims = scene.claims().list(&ListParams::default()).await?.items.len();
            ensure!(claims == 5, "{claims}");
            Ok(())
        })
        .await?;
        let namespaces: Api<Namespace> = Api::all(scene.client.clone());
        namespaces.delete("dying", &DeleteParams::default()).await?;
        until("the namespace to be gone", Duration::from_secs(90), async || {
            let found = namespaces.get_opt("dying").await?;
            ensure!(found.is_none(), "{:?}", found.and_then(|namespace| namespace.status));
            Ok(())
        })
        .await
    });
}
