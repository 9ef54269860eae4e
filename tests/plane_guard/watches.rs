//! Watches that say nothing although they look well, that lose one event, and whose place in history is gone.

use anyhow::ensure;
use deployer_guard_testkit::{ApiProxy, ControlPlane, Program, Stage, until};
use serde_json::{Value, json};

use crate::ground::{Ground, bound, pod, policy, stage};
use crate::scene::{PROGRAM, SOON, run};

const P: &str = "watches";

/// Whatever a watch of pods or claims says.
fn of_ours(event: &Value) -> bool {
    let kind = event["object"]["kind"].as_str().unwrap_or_default();
    matches!(kind, "Pod" | "DeployerClaim")
}

#[test]
fn what_a_dead_watch_and_a_lost_event_hide_is_found_by_lists() {
    run(async {
        let mut ground = Ground::new(stage(), P).await?;
        let proxy = ground.behind_proxy(&[]).await?;
        ground.enforce(&[policy(P, &json!({}))]).await?;
        silent(&ground, &proxy).await?;
        lost(&ground, &proxy).await?;
        let missed = ground
            .guard()
            .metric("deployer_guard_guard_missed_changes_total")
            .await?;
        ensure!(missed >= 3.0, "{missed} missed changes were counted");
        ground.end_with(&["crowded-2"]).await.map(drop)
    });
}

/// Holders end, another comes in after one of them, and a duplicate beside one.
async fn silent(ground: &Ground, proxy: &ApiProxy) -> anyhow::Result<()> {
    let deployer = |name: &str, config: &str| pod(name, P, config);
    for config in ["over", "removed", "crowded"] {
        let name = format!("{config}-1");
        ground.create(&deployer(&name, config)).await?;
        ground.until_held((P, config), &name).await?;
    }
    let holder = ground.uid("crowded-1").await?;
    ground.end_webhook()?;
    proxy.swallow(of_ours);
    ground.create(&bound(deployer("fresh-1", "fresh"))).await?;
    ground.set_phase("over-1", "Succeeded").await?;
    ground.remove("removed-1").await?;
    ground.create(&deployer("removed-2", "removed")).await?;
    ground.create(&deployer("crowded-2", "crowded")).await?;
    ground.until_held((P, "fresh"), "fresh-1").await?;
    ground.until_free((P, "over")).await?;
    ground.until_held((P, "removed"), "removed-2").await?;
    ground.until_gone("crowded-2").await?;
    ensure!(ground.uid("crowded-1").await? == holder, "the holder is gone");
    ensure!(proxy.swallowed() > 0, "the watches were not dead");
    proxy.swallow_nothing();
    Ok(())
}

/// A pod's last event alone does not pass.
async fn lost(ground: &Ground, proxy: &ApiProxy) -> anyhow::Result<()> {
    let key = (P, "lost");
    ground.create(&pod("lost-1", P, "lost")).await?;
    ground.until_held(key, "lost-1").await?;
    let before = proxy.swallowed();
    proxy.swallow(|event| event["type"] == "DELETED" && event["object"]["metadata"]["name"] == "lost-1");
    ground.remove("lost-1").await?;
    ground.until_free(key).await?;
    ensure!(proxy.swallowed() > before, "the event was not lost");
    proxy.swallow_nothing();
    // The name is one that the guard takes for active still, where it has not begun its watch anew.
    ground.create(&pod("lost-1", P, "lost")).await?;
    ground.until_held(key, "lost-1").await.map(drop)
}

/// The guard has no lists to help it: its watches have to begin anew.
#[test]
fn a_watch_whose_place_in_history_is_gone_begins_anew() {
    run(async {
        let plane = ControlPlane::builder().api_servers(2);
        let stage = Stage::builder(PROGRAM).plane(plane).replicas(1);
        let mut ground = Ground::new(stage, "compacted").await?;
        let proxy = ground.behind_proxy(&["--relist-period", "1h"]).await?;
        ground.enforce(&[policy("compacted", &json!({}))]).await?;
        let deployer = |name: &str, config: &str| pod(name, "compacted", config);
        // The replica talks to the API server that is to be restarted; this client to the other.
        ground.client = ground.stage.plane.client(1);
        ground.end_webhook()?;
        for config in ["over", "crowded"] {
            let name = format!("{config}-1");
            ground.create(&deployer(&name, config)).await?;
            ground.until_held(("compacted", config), &name).await?;
        }
        let holder = ground.uid("crowded-1").await?;
        proxy.swallow(of_ours);
        ground.remove("over-1").await?;
        ground.create(&deployer("over-2", "over")).await?;
        ground.create(&deployer("crowded-2", "crowded")).await?;
        until("the watches to have lost something", SOON, async || {
            ensure!(proxy.swallowed() >= 3, "{} events", proxy.swallowed());
            Ok(())
        })
        .await?;
        ground.stage.plane.compact().await?;
        let claim = ground.claim("compacted", "over").await?;
        ensure!(
            claim.spec.holder.is_some_and(|holder| holder.name == "over-1"),
            "it heard of it"
        );
        proxy.swallow_nothing();
        // An API server that has just begun has no history in memory.
        ground.stage.plane.restart(Program::ApiServer(0)).await?;
        ground.until_held(("compacted", "over"), "over-2").await?;
        ground.until_gone("crowded-2").await?;
        ensure!(proxy.expired() > 0, "no watch was told that its place is gone");
        ensure!(ground.uid("crowded-1").await? == holder, "the holder is gone");
        ground.end_with(&["crowded-2"]).await.map(drop)
    });
}
