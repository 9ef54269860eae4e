//! A webhook configuration that is emptied, edited or deleted, and the duplicates that come in meanwhile.

use anyhow::ensure;
use deployer_guard::api::DeployerClaim;
use deployer_guard_testkit::objects::apply_yaml;
use deployer_guard_testkit::{NAMESPACE, until};
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};

use crate::ground::{Ground, pod, policy, stage};
use crate::scene::{SOON, run};

const P: &str = "unguarded";
const Q: &str = "unguarded-too";

fn configurations(ground: &Ground) -> Api<ValidatingWebhookConfiguration> {
    Api::all(ground.client.clone())
}

async fn entries(ground: &Ground) -> anyhow::Result<Vec<Value>> {
    let stored = configurations(ground).get(NAMESPACE).await?;
    Ok(stored.webhooks.iter().flatten().map(|entry| json!(entry)).collect())
}

async fn merge(ground: &Ground, entries: &Value) -> anyhow::Result<()> {
    let patch = json!({ "webhooks": entries });
    configurations(ground)
        .patch(NAMESPACE, &PatchParams::default(), &Patch::Merge(patch))
        .await?;
    Ok(())
}

/// The entries, edited so that the webhook is never called.
fn never(entries: &[Value]) -> Vec<Value> {
    let mut edited = entries.to_vec();
    for entry in &mut edited {
        entry["matchConditions"] = json!([{ "name": "never", "expression": "false" }]);
    }
    edited
}

/// Waits until a policy's condition `Enforced` has this reason.
async fn enforced(ground: &Ground, policy: &str, reason: &str) -> anyhow::Result<()> {
    until(&format!("{policy} to say {reason}"), SOON, async || {
        let status = ground.policies().get(policy).await?.status.unwrap_or_default();
        let said = status.conditions.iter().find(|condition| condition.type_ == "Enforced");
        ensure!(said.is_some_and(|said| said.reason == reason), "{said:?}");
        Ok(())
    })
    .await
    .map_err(|error| ground.blame(error))
}

/// A duplicate comes in past a configuration that is not as it should be.
async fn comes_in(ground: &Ground, name: &str) -> anyhow::Result<()> {
    ground.lets_in(&pod(name, P, "a")).await?;
    ground.create(&pod(name, P, "a")).await.map(drop)
}

#[test]
fn a_duplicate_that_came_in_past_a_broken_configuration_is_removed_and_the_configuration_mended_or_left() {
    run(async {
        let ground = Ground::new(stage().guards(2), P).await?;
        let fail = json!({ "failurePolicy": "Fail" });
        ground.enforce(&[policy(P, &fail), policy(Q, &fail)]).await?;
        let holder = ground.create(&pod("a-1", P, "a")).await?;
        ground.until_held((P, "a"), "a-1").await?;
        ground.refuses(&pod("late", P, "a")).await?;
        let right = entries(&ground).await?;

        // Guards that run put it right in a moment; these begin when it has happened.
        for (name, broken) in [("emptied-2", json!([])), ("edited-2", json!(never(&right)))] {
            for guard in &ground.stage.guards {
                guard.process().kill()?;
            }
            merge(&ground, &broken).await?;
            comes_in(&ground, name).await?;
            for guard in &ground.stage.guards {
                guard.process().restart()?;
            }
            ground.until_gone(name).await?;
            for policy in [P, Q] {
                enforced(&ground, policy, "InForce").await?;
            }
            ground.refuses(&pod("late", P, "a")).await?;
            // Others may have come in of which nobody knows yet.
            until("stock to be taken anew", SOON, async || {
                ensure!(!ground.is_stock_taken(P).await?, "it is said to be taken");
                Ok(())
            })
            .await?;
            ensure!(entries(&ground).await? == right, "{:#?}", entries(&ground).await?);
        }

        let deleted = DeleteParams::default();
        configurations(&ground).delete(NAMESPACE, &deleted).await?;
        for policy in [P, Q] {
            enforced(&ground, policy, "ConfigurationMissing").await?;
        }
        comes_in(&ground, "deleted-2").await?;
        ground.until_gone("deleted-2").await?;
        ensure!(
            configurations(&ground).get_opt(NAMESPACE).await?.is_none(),
            "it was made anew"
        );
        ground.stage.apply_configuration().await?;
        for policy in [P, Q] {
            enforced(&ground, policy, "InForce").await?;
        }
        ground.refuses(&pod("late", P, "a")).await?;
        ensure!(ground.uid("a-1").await? == holder, "the holder is gone");
        ground.end_with(&["emptied-2", "edited-2", "deleted-2"]).await.map(drop)
    });
}

/// Under a policy that the API server takes no entry for, everybody comes in: they are reported, and those of other policies are kept out.
#[test]
fn a_policy_that_is_refused_lets_in_its_own_alone() {
    run(async {
        let ground = Ground::new(stage().guards(1), "refused-too").await?;
        let conditions = json!([{ "name": "not a name", "expression": "true" }]);
        let selector = json!({ "matchLabels": { "scene": "refused" } });
        let refused = json!({ "match": { "objectSelector": selector, "matchConditions": conditions } });
        let refused = policy("refused", &refused);
        ground
            .allow(
                "match/properties/matchConditions/items/properties/name/pattern",
                &refused,
            )
            .await?;
        apply_yaml(&ground.client, &refused.to_string(), "test").await?;
        ground
            .enforce(&[policy(P, &json!({ "failurePolicy": "Fail" }))])
            .await?;
        enforced(&ground, "refused", "Refused").await?;
        let mut uids = Vec::new();
        for name in ["refused-1", "refused-2"] {
            uids.push((name, ground.create(&pod(name, "refused", "a")).await?));
        }
        ground.create(&pod("a-1", P, "a")).await?;
        ground.until_held((P, "a"), "a-1").await?;
        ground.refuses(&pod("a-2", P, "a")).await?;
        ground.until_logged("DuplicateDeployer", "refused-2").await?;
        let both = |claim: &DeployerClaim| claim.spec.holder.is_some() && claim.spec.spared.len() == 2;
        ground
            .until_claim(("refused", "a"), "one that spares both", both)
            .await?;
        for (name, uid) in uids {
            ensure!(ground.uid(name).await? == uid, "{name} was replaced");
        }

        // A guard that runs mends an entry in a moment, in which others may have come in.
        let right = entries(&ground).await?;
        ensure!(ground.is_stock_taken(P).await?);
        merge(&ground, &json!(never(&right))).await?;
        until("the entry to be mended, and stock to be taken anew", SOON, async || {
            ensure!(entries(&ground).await? == right, "it is not mended");
            ensure!(!ground.is_stock_taken(P).await?, "stock is said to be taken");
            Ok(())
        })
        .await
        .map_err(|error| ground.blame(error))?;
        ground.end_with(&["refused-2"]).await.map(drop)
    });
}
