//! The Secret of the release gets contents that are no good, and is deleted: what was good goes on being served.

use std::collections::BTreeSet;

use anyhow::{Context, ensure};
use deployer_guard_testkit::{NAMESPACE, Pki, Release, until};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use serde_json::json;

use crate::site::{SOON, Site};
use crate::work::{deployer, nothing_failed};

/// The Secret of the chart's own certificates.
pub(crate) const SECRET: &str = "deployer-guard-tls";
/// The port of the webhook's metrics, and the metric of contents that were not taken.
const HEALTH: u16 = 8080;
const FAILURES: &str = "deployer_guard_certificate_reload_failures_total";
const NOT_AFTER: &str = "deployer_guard_certificate_not_after_seconds";

/// When the certificates end that the replicas serve: a new certificate ends at another moment.
pub(crate) async fn served(site: &Site, release: &Release<'_>) -> anyhow::Result<BTreeSet<u64>> {
    let mut moments = BTreeSet::new();
    for pod in release.pods().await? {
        let end = site.metric(&pod, HEALTH, NOT_AFTER).await?;
        moments.insert(end.to_bits());
    }
    Ok(moments)
}

/// The sum of contents that were not taken, over both replicas.
async fn failures(site: &Site, release: &Release<'_>) -> anyhow::Result<f64> {
    let mut sum = 0.0;
    for pod in release.pods().await? {
        sum += site.metric(&pod, HEALTH, FAILURES).await?;
    }
    Ok(sum)
}

/// Half of a pair, a key of another, an expired certificate, nothing at all, no Secret: under a stream of creates none of them fails, the
/// metric tells, and the Secret is put right without a restart.
pub(crate) async fn faults(site: &Site) -> anyhow::Result<()> {
    let namespace = "certificates";
    let release = site.usual().await?;
    site.namespace(namespace).await?;
    let witness = site.witness(namespace).await?;
    let secrets: Api<Secret> = Api::namespaced(site.client(), NAMESPACE);
    let authority = Pki::new("stranger")?;
    let stranger = authority.serving(&["deployer-guard.deployer-guard.svc"])?;
    let expired = authority.serving_until(&["deployer-guard.deployer-guard.svc"], 2021)?;
    let bytes = |text: &str| json!(ByteString(text.as_bytes().to_vec()));
    let restarts = restarts(&release).await?;
    let stream = site.stream(namespace);
    for (what, data) in [
        (
            "half of a pair",
            json!({ "tls.crt": bytes("-----BEGIN CERTIFICATE-----\nMIIB") }),
        ),
        ("the key of another", json!({ "tls.key": bytes(&stranger.key) })),
        (
            "a pair of a stranger",
            json!({ "tls.crt": bytes(&stranger.certificate), "tls.key": bytes(&stranger.key) }),
        ),
        (
            "an expired certificate",
            json!({ "tls.crt": bytes(&expired.certificate), "tls.key": bytes(&expired.key) }),
        ),
        (
            "nothing",
            json!({ "tls.crt": null, "tls.key": null, "ca.crt": null, "ca.key": null }),
        ),
    ] {
        secrets
            .patch(SECRET, &PatchParams::default(), &Patch::Merge(json!({ "data": data })))
            .await?;
        let fault = secrets.get(SECRET).await?.resource_version();
        restored(&secrets, fault)
            .await
            .with_context(|| format!("the Secret held {what}"))?;
    }
    secrets.delete(SECRET, &DeleteParams::default()).await?;
    restored(&secrets, None).await.context("the Secret was deleted")?;
    until("the replicas to have told", SOON, async || {
        let failures = failures(site, &release).await?;
        ensure!(failures > 0.0, "none has");
        Ok(())
    })
    .await?;
    let flow = stream.end().await;
    nothing_failed(&flow)?;
    ensure!(self::restarts(&release).await? == restarts, "a container was restarted");
    site.admitted_soon(namespace, &deployer("cfg", "first", &[])).await?;
    witness.never_two().await?;
    site.delete_namespace(namespace).await
}

/// Waits until the Secret is whole again, in another version than this one.
async fn restored(secrets: &Api<Secret>, fault: Option<String>) -> anyhow::Result<()> {
    until("the Secret to be put right", SOON, async || {
        let secret = secrets.get(SECRET).await?;
        ensure!(secret.resource_version() != fault, "nobody has written it");
        let data = secret.data.clone().unwrap_or_default();
        for key in ["tls.crt", "tls.key", "ca.crt"] {
            let text = data
                .get(key)
                .map(|value| String::from_utf8_lossy(&value.0).into_owned());
            let whole = text.is_some_and(|text| text.trim_end().ends_with("-----") && text.len() > 200);
            ensure!(whole, "{key} of {} is not", secret.name_any());
        }
        Ok(())
    })
    .await
}

async fn restarts(release: &Release<'_>) -> anyhow::Result<Vec<(String, i32)>> {
    let mut restarts = Vec::new();
    for pod in release.pods().await? {
        let statuses = pod
            .status
            .iter()
            .flat_map(|status| status.container_statuses.iter().flatten());
        restarts.push((pod.name_any(), statuses.map(|status| status.restart_count).sum()));
    }
    restarts.sort();
    Ok(restarts)
}
