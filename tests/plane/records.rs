//! What is on record of a decision, and how people find it.

mod claims;
mod crowd;
mod ending;
mod events;
mod flood;
mod logs;
mod metrics;
mod scrape;
mod sums;

use anyhow::ensure;
use serde_json::Value;

use crate::scene::{Scene, uid_of};

const VERDICTS: &str = "openshift-deploymentconfig.policies.deployer-guard.io";

/// Config `cfg` with `cfg-1-deploy` active, whose uid is given, and `cfg-2-deploy` to be refused.
async fn held(namespace: &str) -> anyhow::Result<(Scene, String, Value)> {
    let scene = Scene::openshift(namespace).await?;
    let (_, first) = scene.begun("cfg", 1).await?;
    let admitted = scene.create(&first).await?;
    ensure!(admitted.is_created(), "{}", admitted.message());
    scene.confirmed().await?;
    let (_, second) = scene.begun("cfg", 2).await?;
    Ok((scene, uid_of(&admitted), second))
}
