//! Deletes that arrive late: what they are about has been made anew under the same name.

use anyhow::{Context, ensure};
use deployer_guard_testkit::ApiProxy;
use kube::ResourceExt;
use kube::api::DeleteParams;
use serde_json::json;
use tokio::time::timeout;

use crate::ground::{Ground, pod, policy, stage};
use crate::scene::{SOON, run};

const P: &str = "fences";
/// A policy under which free claims go at once.
const FLEETING: &str = "fleeting";

#[test]
fn a_late_delete_does_not_meet_what_was_made_anew_under_the_name() {
    run(async {
        let mut ground = Ground::new(stage(), P).await?;
        let proxy = ground.behind_proxy(&[]).await?;
        // Our schema keeps claims for minutes at least.
        let fleeting = policy(FLEETING, &json!({ "leftovers": { "keepClaimsSeconds": 1 } }));
        ground
            .allow("leftovers/properties/keepClaimsSeconds/minimum", &fleeting)
            .await?;
        ground.enforce(&[policy(P, &json!({})), fleeting]).await?;
        claim(&ground, &proxy).await?;
        a_pod(&ground, &proxy).await?;
        ground.end_with(&["twice-2"]).await.map(drop)
    });
}

/// A claim of no more use is removed by somebody else, and made anew for another deployer, just before the guard removes it.
async fn claim(ground: &Ground, proxy: &ApiProxy) -> anyhow::Result<()> {
    let (key, one) = ((FLEETING, "made-anew"), pod("anew-1", FLEETING, "made-anew"));
    ground.create(&one).await?;
    let name = ground.until_held(key, "anew-1").await?.name_any();
    let held_name = name.clone();
    let mut held = proxy.hold(move |call| call.is_delete("deployerclaims", &held_name));
    ground.set_phase("anew-1", "Succeeded").await?;
    timeout(SOON, held.wait(1))
        .await
        .context("the claim is not removed")
        .map_err(|error| ground.blame(error))??;
    ground.claims().delete(&name, &DeleteParams::default()).await?;
    ground.create(&pod("anew-2", FLEETING, "made-anew")).await?;
    let made = ground.until_held(key, "anew-2").await?;
    held.release().await;
    let after = ground.claim(FLEETING, "made-anew").await?;
    ensure!(
        after.uid() == made.uid() && after.spec == made.spec,
        "{:#?}",
        after.spec
    );
    ground.refuses(&pod("anew-3", FLEETING, "made-anew")).await
}

/// A condemned pod is removed by somebody else, its key becomes free, and the next deployer has its name, just before the guard
/// deletes it.
async fn a_pod(ground: &Ground, proxy: &ApiProxy) -> anyhow::Result<()> {
    let key = (P, "twice");
    ground.create(&pod("twice-1", P, "twice")).await?;
    ground.until_held(key, "twice-1").await?;
    ground.end_webhook()?;
    let mut held = proxy.hold(|call| call.is_delete("pods", "twice-2"));
    let condemned = ground.create(&pod("twice-2", P, "twice")).await?;
    timeout(SOON, held.wait(1))
        .await
        .context("it is not deleted")
        .map_err(|error| ground.blame(error))??;
    let claim = ground.claim(P, "twice").await?;
    ensure!(
        claim.spec.condemned.iter().any(|pod| pod.uid == condemned),
        "it was not condemned first: {:?}",
        claim.spec
    );
    ground.remove("twice-2").await?;
    ground.set_phase("twice-1", "Succeeded").await?;
    let next = ground.create(&pod("twice-2", P, "twice")).await?;
    held.release().await;
    ensure!(ground.uid("twice-2").await? == next, "the new one was deleted");
    let claim = ground.until_held(key, "twice-2").await?;
    ensure!(claim.spec.holder.is_some_and(|holder| holder.uid == next));
    Ok(())
}
