//! A policy or a claim that nobody here can read, as one that a newer version stored: it harms none but itself.

use std::time::Duration;

use anyhow::{Context, ensure};
use deployer_guard::api::{DeployerClaim, DeployerPolicy};
use deployer_guard_testkit::objects::{Answer, apply_yaml, create_pod, loosen_schema, make_namespace};
use deployer_guard_testkit::{Stage, until};
use k8s_openapi::api::admissionregistration::v1::{ValidatingWebhook, ValidatingWebhookConfiguration};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, Resource, ResourceExt};
use serde_json::{Value, json};

use crate::common::{PROGRAM, run};
use crate::scene::{pod, policy};

const LIMIT: Duration = Duration::from_mins(1);
const CONFIGURATION: &str = "deployer-guard";
const NAMESPACE: &str = "unreadable";

/// Writes what our types do not know, as soon as the wider schema is in use.
async fn store<K: Resource<DynamicType = ()>>(client: &Client, name: &str, patch: &Value) -> anyhow::Result<()> {
    let kind = ApiResource::erase::<K>(&());
    let api: Api<DynamicObject> = if kind.kind == "DeployerClaim" {
        Api::namespaced_with(client.clone(), NAMESPACE, &kind)
    } else {
        Api::all_with(client.clone(), &kind)
    };
    until("the wider schema to be in use", LIMIT, async || {
        api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
        Ok(())
    })
    .await
}

async fn entry(client: &Client, policy: &str) -> anyhow::Result<ValidatingWebhook> {
    let configurations: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
    let entries = configurations.get(CONFIGURATION).await?.webhooks.unwrap_or_default();
    let name = format!("{policy}.policies.deployer-guard.io");
    entries
        .into_iter()
        .find(|entry| entry.name == name)
        .with_context(|| format!("no entry {name}"))
}

async fn create(client: &Client, policy: &str, config: &str, name: &str) -> anyhow::Result<Answer> {
    let pod = pod(name, &[("scene", policy), ("config", config)]);
    create_pod(client, NAMESPACE, &pod).await
}

/// Under a policy that is as it always was, one is admitted and another refused.
async fn decides(client: &Client, config: &str) -> anyhow::Result<()> {
    let first = create(client, "readable", config, &format!("{config}-1")).await?;
    ensure!(first.is_created(), "{}", first.message());
    let second = create(client, "readable", config, &format!("{config}-2")).await?;
    ensure!(!second.is_created(), "two were admitted");
    ensure!(
        second.message().contains(&format!("{config}-1")),
        "{}",
        second.message()
    );
    Ok(())
}

/// The claim of a config, as it is stored.
async fn claim_of(client: &Client, config: &str) -> anyhow::Result<DynamicObject> {
    let kind = ApiResource::erase::<DeployerClaim>(&());
    let claims: Api<DynamicObject> = Api::namespaced_with(client.clone(), NAMESPACE, &kind);
    let all = claims.list(&ListParams::default()).await?;
    let claim = all.into_iter().find(|claim| claim.data["spec"]["config"] == config);
    claim.with_context(|| format!("no claim of {config}"))
}

/// The status of a policy says that this generation cannot be read, and what that means.
async fn says_so(client: &Client, policy: &str) -> anyhow::Result<()> {
    let policies: Api<DynamicObject> = Api::all_with(client.clone(), &ApiResource::erase::<DeployerPolicy>(&()));
    until("the policy's own status to say so", LIMIT, async || {
        let policy = policies.get(policy).await?;
        let generation = json!(policy.metadata.generation);
        let conditions = policy.data["status"]["conditions"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        for (kind, reason) in [("Accepted", "Unreadable"), ("Enforced", "EntryKept")] {
            let says = |condition: &Value| {
                condition["type"] == kind
                    && condition["status"] == "False"
                    && condition["reason"] == reason
                    && condition["observedGeneration"] == generation
            };
            ensure!(conditions.iter().any(says), "{conditions:?}");
        }
        Ok(())
    })
    .await
}

#[test]
fn what_cannot_be_read_harms_none_but_itself() {
    run(async {
        let stage = Stage::builder(PROGRAM)
            .replicas(1)
            .guard_argument("--relist-period")
            .guard_argument("1s")
            .guards(1)
            .start()
            .await?;
        let client = stage.plane.client(0);
        make_namespace(&client, NAMESPACE, &[], false).await?;
        let policies = ["readable", "strange"].map(|name| policy(name, &json!({})).to_string());
        stage.enforce(&policies.join("\n---\n")).await?;
        decides(&client, "before").await?;
        ensure!(create(&client, "strange", "cfg", "strange-1").await?.is_created());

        // The entry that judges policies is gone for a moment: it would not let such a policy in.
        let guard = stage.guards[0].process();
        guard.kill()?;
        let before = entry(&client, "strange").await?;
        let configurations: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
        let mut configuration = configurations.get(CONFIGURATION).await?;
        configuration
            .webhooks
            .iter_mut()
            .for_each(|entries| entries.retain(|entry| entry.name != "policies.deployer-guard.io"));
        configurations
            .replace(CONFIGURATION, &PostParams::default(), &configuration)
            .await?;
        let claim = claim_of(&client, "before").await?.name_any();
        // A newer version knows more values: its schema does not say that there are no others than ours.
        loosen_schema(&client, "deployerpolicies.deployer-guard.io", "mode/enum").await?;
        let outcome = "outcomes/items/properties/outcome/enum";
        loosen_schema(&client, "deployerclaims.deployer-guard.io", outcome).await?;
        store::<DeployerPolicy>(&client, "strange", &json!({ "spec": { "mode": "Newest" } })).await?;
        let at = "2026-01-01T00:00:00Z";
        let outcome =
            json!({ "generation": "g", "outcome": "Newest", "podName": "p", "podUid": "u", "observedAt": at });
        store::<DeployerClaim>(&client, &claim, &json!({ "spec": { "outcomes": [outcome] } })).await?;

        // Both begin anew, and know nothing.
        let webhook = stage.replicas[0].webhook.process();
        webhook.kill()?;
        webhook.wait_end(LIMIT).await?;
        webhook.restart()?;
        stage.replicas[0].wait_ready().await?;
        guard.restart()?;

        // The others are decided on, and followed.
        decides(&client, "after").await?;
        apply_yaml(
            &client,
            &policy("readable", &json!({ "timeoutSeconds": 7 })).to_string(),
            "test",
        )
        .await?;
        until("the other policy's entry to follow it", LIMIT, async || {
            ensure!(entry(&client, "readable").await?.timeout_seconds == Some(7));
            Ok(())
        })
        .await
        .map_err(|error| stage.guards[0].blame(error))?;
        stage.wait_enforced("readable").await?;
        let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
        pods.delete("after-1", &DeleteParams::default().grace_period(0)).await?;
        until("the claim of another config to be freed", LIMIT, async || {
            let claim = claim_of(&client, "after").await?;
            ensure!(claim.data["spec"]["holder"].is_null(), "{}", claim.data);
            Ok(())
        })
        .await
        .map_err(|error| stage.guards[0].blame(error))?;

        // It says what is the matter with it.
        says_so(&client, "strange")
            .await
            .map_err(|error| stage.guards[0].blame(error))?;
        // Its own entry stays, and its pods are not let in.
        let after = entry(&client, "strange").await?;
        ensure!(
            after.rules == before.rules && after.match_conditions == before.match_conditions,
            "{after:?}"
        );
        let refused = create(&client, "strange", "other", "strange-2").await?;
        ensure!(!refused.is_created(), "decided by nobody, and let in");
        // So with the claim, although nobody is active.
        pods.delete("before-1", &DeleteParams::default().grace_period(0))
            .await?;
        let refused = create(&client, "readable", "before", "before-3").await?;
        let status = refused
            .result
            .err()
            .context("the claim says nothing, and another was let in")?;
        let causes = status.details.map(|details| details.causes).unwrap_or_default();
        ensure!(causes[0].reason == "ClaimUnreadable", "{causes:?}");
        ensure!(stage.guards[0].metric("deployer_guard_policies_not_enforced").await? >= 1.0);
        Ok(())
    });
}
