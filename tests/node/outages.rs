//! What is killed comes back by itself, and meanwhile nothing but matched deployers is refused.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, ensure};
use deployer_guard_testkit::objects::create_pod;
use deployer_guard_testkit::{NAMESPACE, until};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams};
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::site::{SOON, Site};
use crate::work::{deployer, program};

/// How long guards are killed: seconds, or what this variable says.
const KILLING: (&str, u64) = ("DEPLOYER_GUARD_TEST_KILL_SECONDS", 40);
/// The pause between two kills of a guard.
const EVERY: Duration = Duration::from_secs(2);

/// A pod that no policy matches, and that nobody starts.
fn unrelated(name: &str) -> serde_json::Value {
    let mut pod = program(&[]);
    pod["metadata"] = json!({ "name": name });
    pod["spec"]["schedulerName"] = json!("nobody");
    pod
}

/// Both webhooks end at the same moment: deployers are refused until kubelet has started them again, and other pods never are.
pub(crate) async fn both_replicas(site: &Site) -> anyhow::Result<()> {
    let namespace = "both";
    let release = site.usual().await?;
    site.namespace(namespace).await?;
    let witness = site.witness(namespace).await?;
    let pods = release.pods().await?;
    let [one, other] = &pods[..] else {
        anyhow::bail!("{} pods", pods.len())
    };
    let (one, other) = (one.name_any(), other.name_any());
    let (one, other) = tokio::join!(
        release.kill_container(&one, "webhook"),
        release.kill_container(&other, "webhook")
    );
    one.and(other)?;
    let tried = AtomicUsize::new(0);
    let begun = Instant::now();
    until("a deployer to be admitted again", SOON, async || {
        let number = tried.fetch_add(1, Ordering::Relaxed);
        site.admitted(namespace, &unrelated(&format!("unrelated-{number}")))
            .await?;
        let answer = create_pod(&site.client(), namespace, &deployer("cfg", "first", &[])).await?;
        ensure!(answer.is_created(), "{} {}", answer.code, answer.message());
        Ok(())
    })
    .await?;
    let tried = tried.into_inner();
    println!(
        "  deployers were refused {} times, for {:.1} s",
        tried - 1,
        begun.elapsed().as_secs_f64()
    );
    let unrelated = Api::<Pod>::namespaced(site.client(), namespace)
        .list(&ListParams::default())
        .await?;
    ensure!(
        unrelated.items.len() == tried + 1,
        "an unrelated pod was refused: {} of {tried}",
        unrelated.items.len() - 1
    );
    release.wait_ready(2).await?;
    witness.never_two().await?;
    site.delete_namespace(namespace).await
}

/// Each guard is killed every two seconds, on both replicas, and matched creates are decided all the time.
pub(crate) async fn guards(site: &Site) -> anyhow::Result<()> {
    let namespace = "guards";
    let release = site.usual().await?;
    site.namespace(namespace).await?;
    let witness = site.witness(namespace).await?;
    let stream = site.stream(namespace);
    let seconds = std::env::var(KILLING.0).ok().and_then(|seconds| seconds.parse().ok());
    let end = Instant::now() + Duration::from_secs(seconds.unwrap_or(KILLING.1));
    let mut kills = 0;
    while Instant::now() < end {
        for pod in release.pods().await? {
            // Its parent may be waiting before it begins it again.
            kills += usize::from(release.kill_guard(&pod.name_any()).await.is_ok());
        }
        sleep(EVERY).await;
    }
    let flow = stream.end().await;
    println!("  guards were killed {kills} times");
    ensure!(kills >= 2, "guards were killed {kills} times");
    crate::work::nothing_failed(&flow)?;
    for pod in release.pods().await? {
        let statuses = pod
            .status
            .iter()
            .flat_map(|status| status.container_statuses.iter().flatten());
        let webhook = statuses.into_iter().find(|status| status.name == "webhook");
        ensure!(
            webhook.is_some_and(|status| status.ready),
            "a webhook is not ready because its guard is not"
        );
    }
    witness.never_two().await?;
    site.delete_namespace(namespace).await
}

/// All pods of ours are deleted at once, with the configuration in force: they are admitted, and come back.
pub(crate) async fn all_pods(site: &Site) -> anyhow::Result<()> {
    let release = site.usual().await?;
    let before: Vec<String> = release.pods().await?.iter().map(ResourceExt::name_any).collect();
    let pods: Api<Pod> = Api::namespaced(site.client(), NAMESPACE);
    for name in &before {
        pods.delete(name, &DeleteParams::default().grace_period(0)).await?;
    }
    for name in &before {
        site.wait_gone(NAMESPACE, name).await?;
    }
    release.wait_ready(2).await?;
    still_decides(site, "deleted").await
}

/// The whole cluster ends as in a power cut, and starts on the same data: a deployer that was there holds its key if it came back, and
/// all of ours is back unaided.
pub(crate) async fn power_cut(site: &Site) -> anyhow::Result<()> {
    let namespace = "power";
    let release = site.usual().await?;
    site.namespace(namespace).await?;
    let mut keeps = deployer("cfg", "first", &[]);
    keeps["spec"]["restartPolicy"] = json!("Always");
    site.admitted(namespace, &keeps).await?;
    site.wait_phase(namespace, "first", "Running").await?;
    site.node.reboot()?;
    site.node.wait_ready().await?;
    until("a second deployer to be refused by a rule", 2 * SOON, async || {
        site.refused(namespace, &deployer("cfg", "second", &[])).await.map(drop)
    })
    .await?;
    release.wait_ready(2).await?;
    site.wait_pod(namespace, "first", "started again", |pod| {
        let statuses = pod
            .status
            .iter()
            .flat_map(|status| status.container_statuses.iter().flatten());
        statuses.into_iter().any(|status| status.restart_count > 0)
    })
    .await?;
    site.delete_namespace(namespace).await?;
    still_decides(site, "restarted").await
}

/// One is admitted, and another refused.
async fn still_decides(site: &Site, namespace: &str) -> anyhow::Result<()> {
    site.namespace(namespace).await?;
    let witness = site.witness(namespace).await?;
    site.admitted_soon(namespace, &deployer("cfg", "first", &[])).await?;
    site.refused(namespace, &deployer("cfg", "second", &[]))
        .await
        .context("the second")?;
    witness.never_two().await?;
    site.delete_namespace(namespace).await
}
