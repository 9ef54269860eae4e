//! What is done to a release while deployers are created all the time: no create fails for another reason than a rule.

use anyhow::{Context, ensure};
use deployer_guard_testkit::{NAMESPACE, Release, until};
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::ResourceExt;
use kube::api::{Api, EvictParams, Patch, PatchParams};
use serde_json::json;

use crate::certificates::{SECRET, served};
use crate::shapes::{OWN_SECRET, make_secret};
use crate::site::{NEXT, SOON, Site};
use crate::work::nothing_failed;

/// A namespace in which creates go on, while something is done.
pub(crate) async fn under_stream<F>(site: &Site, namespace: &str, done: F) -> anyhow::Result<()>
where
    F: Future<Output = anyhow::Result<()>>,
{
    site.namespace(namespace).await?;
    let witness = site.witness(namespace).await?;
    let stream = site.stream(namespace);
    until("the stream to flow", SOON, async || {
        let flow = stream.so_far();
        ensure!(flow.admitted > 0 && flow.refused > 0, "it has {flow:?}");
        Ok(())
    })
    .await?;
    let done = done.await;
    let flow = stream.end().await;
    done?;
    nothing_failed(&flow)?;
    witness.never_two().await?;
    site.delete_namespace(namespace).await
}

/// A new image, and then other values: all pods are replaced, twice.
pub(crate) async fn image_and_values(site: &Site) -> anyhow::Result<()> {
    let release = site.usual().await?;
    under_stream(site, "upgrades", async {
        let before = names(&release).await?;
        let tag = format!("image.tag={NEXT}");
        release.upgrade(&[&tag]).await?;
        release.wait_ready(2).await?;
        let after = names(&release).await?;
        ensure!(
            before.iter().all(|name| !after.contains(name)),
            "{before:?} and {after:?}"
        );
        release.upgrade(&[]).await?;
        release.wait_ready(2).await
    })
    .await
}

/// One replica after the other is evicted, as a drain does; the budget keeps one of them.
pub(crate) async fn eviction(site: &Site) -> anyhow::Result<()> {
    let release = site.usual().await?;
    under_stream(site, "evictions", async {
        let pods: Api<Pod> = Api::namespaced(site.client(), NAMESPACE);
        for name in names(&release).await? {
            until("the budget to allow an eviction", SOON, async || {
                pods.evict(&name, &EvictParams::default()).await?;
                Ok(())
            })
            .await?;
            site.wait_gone(NAMESPACE, &name).await?;
        }
        release.wait_ready(2).await
    })
    .await
}

/// The serving certificate is made anew under the same authority, and then the authority is replaced.
pub(crate) async fn certificates(site: &Site) -> anyhow::Result<()> {
    let release = site.usual().await?;
    let secrets: Api<Secret> = Api::namespaced(site.client(), NAMESPACE);
    Box::pin(under_stream(site, "renewals", async {
        for taken_away in ["tls.crt", "ca.key"] {
            let before = served(site, &release).await?;
            let patch = Patch::Merge(json!({ "data": { taken_away: null } }));
            secrets.patch(SECRET, &PatchParams::default(), &patch).await?;
            until("a new certificate to be served by all", 2 * SOON, async || {
                let now = served(site, &release).await?;
                ensure!(now.iter().all(|one| !before.contains(one)), "{now:?} after {before:?}");
                Ok(())
            })
            .await
            .with_context(|| format!("{taken_away} was taken away"))?;
        }
        Ok(())
    }))
    .await
}

/// The certificate is somebody else's from now on, and then the guard's again.
pub(crate) async fn makers(site: &Site) -> anyhow::Result<()> {
    let release = site.usual().await?;
    make_secret(site, OWN_SECRET.1).await?;
    Box::pin(under_stream(site, "makers", async {
        for values in [&[OWN_SECRET.0][..], &[]] {
            let before = served(site, &release).await?;
            release.upgrade(values).await?;
            release.wait_ready(2).await?;
            let now = served(site, &release).await?;
            ensure!(
                !now.is_empty() && now.iter().all(|one| !before.contains(one)),
                "{now:?} after {before:?}"
            );
        }
        Ok(())
    }))
    .await
}

async fn names(release: &Release<'_>) -> anyhow::Result<Vec<String>> {
    Ok(release.pods().await?.iter().map(ResourceExt::name_any).collect())
}
