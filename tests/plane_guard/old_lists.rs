//! A guard whose world is an old one: every list is answered as it was long ago, and no watch says what came after, as with an API server
//! whose watch cache is broken; and lists whose answers come after the watch has said more.

use std::time::Duration;

use anyhow::ensure;
use deployer_guard_testkit::objects::apply_yaml;
use deployer_guard_testkit::{ApiProxy, Call, Stage, until};
use tokio::time::sleep;

use crate::ground::{Ground, bound, pod, policy, stage};
use crate::scene::{PROGRAM, SOON, run};

const P: &str = "old-lists";
/// A policy that is made while a list is under way.
const LATE: &str = "late-list";

#[test]
fn a_guard_whose_first_lists_are_old_harms_nobody_and_catches_up() {
    run(async {
        let mut ground = Ground::new(stage(), P).await?;
        let proxy = ground.behind_proxy(&[]).await?;
        ground.enforce(&[policy(P, &serde_json::json!({}))]).await?;
        let deployer = |name: &str, config: &str| pod(name, P, config);

        // The world that the next guard is to see.
        for config in ["ended", "removed", "again"] {
            let name = format!("{config}-1");
            ground.create(&deployer(&name, config)).await?;
            ground.until_held((P, config), &name).await?;
        }
        // Watch caches may be a little behind, in which case there would be nothing to be wrong about.
        until("the lists to be complete", SOON, async || {
            let listed = ground.pods().list(&kube::api::ListParams::default()).await?.items.len();
            ensure!(listed == 3, "{listed}");
            Ok(())
        })
        .await?;
        ground.guard().process().kill()?;
        proxy.record().await?;

        // The world as it is. Whoever the old one shows as active has ended, and whoever has the key is not in it.
        ground.set_phase("ended-1", "Succeeded").await?;
        ground.create(&deployer("ended-2", "ended")).await?;
        ground.remove("removed-1").await?;
        ground.create(&bound(deployer("removed-2", "removed"))).await?;
        ground.remove("again-1").await?;
        ground.create(&deployer("again-1", "again")).await?;
        ground.create(&deployer("new-1", "new")).await?;
        let keys = [
            ("ended", "ended-2"),
            ("removed", "removed-2"),
            ("again", "again-1"),
            ("new", "new-1"),
        ];
        let mut before = Vec::new();
        for (config, holder) in keys {
            let claim = ground.until_held((P, config), holder).await?;
            before.push((ground.uid(holder).await?, claim.spec));
        }

        let of_ours = |event: &serde_json::Value| {
            let kind = event["object"]["kind"].as_str().unwrap_or_default();
            matches!(kind, "Pod" | "DeployerClaim") || event["type"] == "BOOKMARK"
        };
        proxy.swallow(of_ours);
        proxy.replay(&["pods", "deployerclaims"]);
        ground.guard_behind(&proxy, &[]).await?;
        until("the guard to have looked at its old world for long", SOON, async || {
            let guard = ground.guard();
            ensure!(guard.leads().await?, "it does not lead");
            let examined = guard.metric("deployer_guard_guard_examinations_total").await?;
            ensure!(
                proxy.replayed() >= 8 && examined >= 4.0,
                "{} old lists, {examined} keys",
                proxy.replayed()
            );
            Ok(())
        })
        .await
        .map_err(|error| ground.blame(error))?;
        for ((config, holder), (uid, spec)) in keys.into_iter().zip(&before) {
            ensure!(ground.uid(holder).await? == *uid, "{holder} was replaced");
            let claim = ground.claim(P, config).await?;
            ensure!(claim.spec == *spec, "{:#?} became {:#?}", spec, claim.spec);
        }

        // What it cannot see yet.
        ground.end_webhook()?;
        ground.create(&deployer("ended-3", "ended")).await?;
        ground.set_phase("new-1", "Succeeded").await?;
        proxy.replay(&[]);
        proxy.swallow_nothing();
        ground.until_gone("ended-3").await?;
        ground.until_free((P, "new")).await?;
        ensure!(ground.uid("ended-2").await? == before[0].0, "the holder is gone");
        ground.end_with(&["ended-3"]).await.map(drop)
    });
}

#[test]
fn a_policy_that_is_made_while_the_policies_are_listed_is_put_in_force_at_once() {
    run(async {
        let mut ground = Ground::new(Stage::builder(PROGRAM).replicas(1), LATE).await?;
        let proxy = ApiProxy::start(&ground.stage.plane, 0).await?;
        // A watch lists page by page.
        let of_rounds = |call: &Call| call.is_list("deployerpolicies") && !call.query.contains("limit=");
        let mut held = proxy.hold_answers(of_rounds);
        ground.guard_behind(&proxy, &[]).await?;
        held.wait(1).await?;
        let policy = policy(LATE, &serde_json::json!({})).to_string();
        apply_yaml(&ground.client, &policy, "late-list").await?;
        // Until the watch has shown it.
        sleep(Duration::from_secs(1)).await;
        held.release().await;
        ground.stage.wait_enforced(LATE).await?;
        ground.end_with(&[]).await.map(drop)
    });
}
