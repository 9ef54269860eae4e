//! A policy that arrives when duplicates are already running.

use std::time::Duration;

use anyhow::ensure;
use deployer_guard_testkit::{ControlPlane, until};
use kube::ResourceExt;
use kube::api::ListParams;
use serde_json::json;

use crate::ground::{Ground, bound, pod, policy, stage};
use crate::scene::run;

const P: &str = "predecessors";
/// The window of these guards, the pause after it, and the API servers' lag are 26 s.
const STOCK_TAKING: Duration = Duration::from_secs(90);

#[test]
fn duplicates_that_are_older_than_the_policy_are_reported_and_never_deleted_whoever_leads() {
    run(async {
        let plane = ControlPlane::builder().api_server_flag("--request-timeout=5s");
        let window = ["--api-server-request-timeout", "5s", "--pending-window", "6s"];
        let stage = window.iter().fold(stage().plane(plane).guards(2), |stage, word| {
            stage.guard_argument(*word)
        });
        let ground = Ground::new(stage, P).await?;
        let old = ["old-1", "old-2", "old-3"];
        for name in old {
            let pod = pod(name, P, "crowded");
            let pod = if name == "old-3" { bound(pod) } else { pod };
            ground.create(&pod).await?;
        }
        ground.create(&pod("single-1", P, "single")).await?;
        ground.stage.enforce(&policy(P, &json!({})).to_string()).await?;
        let adopted = ground
            .until_claim((P, "crowded"), "held, with all of them spared", |claim| {
                claim.spec.holder.is_some() && claim.spec.spared.len() == 3
            })
            .await?;
        ground.until_held((P, "single"), "single-1").await?;
        let holder = adopted.spec.holder.map(|holder| holder.name).unwrap_or_default();
        for name in old.iter().filter(|name| **name != holder) {
            ground.until_logged("DuplicateDeployer", name).await?;
            ground.until_logged("DeployerSpared", name).await?;
        }
        ground.refuses(&pod("old-4", P, "crowded")).await?;

        // The next leader knows of it only what is written.
        let leader = ground.stage.wait_leader().await?;
        ground.stage.guards[leader].process().kill()?;
        until("stock to be taken", STOCK_TAKING, async || {
            ensure!(ground.is_stock_taken(P).await?, "it is not");
            Ok(())
        })
        .await
        .map_err(|error| ground.blame(error))?;
        let counts = ground.policies().get(P).await?.status.and_then(|status| status.counts);
        ensure!(
            counts
                .as_ref()
                .is_some_and(|counts| (counts.active, counts.violations) == (4, 1)),
            "{counts:?}"
        );
        // From now on there is no excuse.
        ground.end_webhook()?;
        ground.create(&pod("single-2", P, "single")).await?;
        ground.until_gone("single-2").await?;

        // The holder's end does not make an old one a duplicate to be deleted: one of them follows.
        ground.set_phase(&holder, "Succeeded").await?;
        let next = ground
            .until_claim((P, "crowded"), "held by the next", |claim| {
                let next = claim.spec.holder.as_ref().map(|holder| holder.name.as_str());
                next.is_some_and(|next| next != holder && old.contains(&next))
            })
            .await?;
        let left = ground.pods().list(&ListParams::default()).await?.items;
        let left: Vec<_> = left.iter().map(ResourceExt::name_any).collect();
        ensure!(
            left == ["old-1", "old-2", "old-3", "single-1"],
            "{left:?} are left, with {:?}",
            next.spec
        );
        ground.end_with(&["old-2", "old-3", "single-2"]).await.map(drop)
    });
}
