//! cert-manager, the real one, makes the certificates, and renews them under a stream of creates.

use std::collections::BTreeSet;

use anyhow::{Context, ensure};
use deployer_guard_testkit::{NAMESPACE, Release, until};
use jiff::Timestamp;
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind, PostParams};
use serde_json::{Value, json};

use crate::certificates::served;
use crate::site::{SOON, Site};
use crate::upgrades::under_stream;

/// The shape whose certificates it makes.
const VALUES: &str = "cert-manager-values.yaml";
/// The Certificates of the chart: what is served, and the authority that issues it.
const SERVING: &str = "deployer-guard";
const AUTHORITY: &str = "deployer-guard-ca";
/// The Secrets that they are in.
const SERVING_SECRET: &str = "deployer-guard-certificate";
const SECRETS: [&str; 2] = [SERVING_SECRET, "deployer-guard-ca"];

/// It takes over from the guard; then what is served is renewed, under the same authority and after that under a new one; and at last
/// the guard takes over again.
pub(crate) async fn renewals(site: &Site) -> anyhow::Result<()> {
    let release = site.usual().await?;
    site.others().await?;
    Box::pin(under_stream(site, "cert-manager", async {
        let before = served(site, &release).await?;
        release.upgrade(&[VALUES]).await?;
        release.wait_ready(2).await?;
        exchanged(site, &release, &before).await.context("it took over")?;

        let authority = authority(site).await?;
        renewed(site, &release, &[SERVING]).await?;
        ensure!(self::authority(site).await? == authority, "the authority was exchanged");
        // Nothing is issued anew because its authority is.
        renewed(site, &release, &[AUTHORITY, SERVING]).await?;
        let next = self::authority(site).await?;
        ensure!(next != authority, "the authority was not exchanged");
        trusted(site, &[&authority, &next]).await?;

        let before = served(site, &release).await?;
        release.upgrade(&[]).await?;
        release.wait_ready(2).await?;
        exchanged(site, &release, &before).await.context("the guard took over")
    }))
    .await?;
    forget(site).await
}

/// Deletes its Secrets, which stay when the Certificates go.
pub(crate) async fn forget(site: &Site) -> anyhow::Result<()> {
    let secrets: Api<Secret> = Api::namespaced(site.client(), NAMESPACE);
    for name in SECRETS {
        secrets.delete(name, &DeleteParams::default()).await?;
    }
    Ok(())
}

/// Has these made anew, one after the other, and waits until all replicas serve another certificate.
async fn renewed(site: &Site, release: &Release<'_>, certificates: &[&str]) -> anyhow::Result<()> {
    let before = served(site, release).await?;
    for certificate in certificates {
        renew(site, certificate).await?;
    }
    exchanged(site, release, &before)
        .await
        .with_context(|| format!("{certificates:?} were renewed"))
}

/// Waits until no replica serves what one served before.
async fn exchanged(site: &Site, release: &Release<'_>, before: &BTreeSet<u64>) -> anyhow::Result<()> {
    until("a new certificate to be served by all", 2 * SOON, async || {
        let now = served(site, release).await?;
        let other = !now.is_empty() && now.is_disjoint(before);
        ensure!(other, "{now:?} after {before:?}");
        Ok(())
    })
    .await
}

/// What `cmctl renew` does; returns when the new certificate is in its Secret.
async fn renew(site: &Site, name: &str) -> anyhow::Result<()> {
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("cert-manager.io", "v1", "Certificate"));
    let api: Api<DynamicObject> = Api::namespaced_with(site.client(), NAMESPACE, &kind);
    let before = revision(&api.get(name).await?)?;
    until("a certificate to be asked for", SOON, async || {
        let mut certificate = api.get(name).await?;
        let asked = json!({
            "type": "Issuing",
            "status": "True",
            "reason": "ManuallyTriggered",
            "message": "Certificate re-issuance manually triggered",
            "lastTransitionTime": Time(Timestamp::now()),
            "observedGeneration": certificate.metadata.generation,
        });
        let conditions = certificate.data.pointer_mut("/status/conditions");
        let conditions = conditions.and_then(Value::as_array_mut).context("no conditions")?;
        conditions.retain(|condition| condition["type"] != "Issuing");
        conditions.push(asked);
        api.replace_status(name, &PostParams::default(), &certificate).await?;
        Ok(())
    })
    .await?;
    until("cert-manager to have made it", SOON, async || {
        let certificate = api.get(name).await?;
        ensure!(revision(&certificate)? > before, "it is {}", certificate.data["status"]);
        Ok(())
    })
    .await
    .with_context(|| format!("Certificate {name}"))
}

/// How often a Certificate was made.
fn revision(certificate: &DynamicObject) -> anyhow::Result<u64> {
    let revision = certificate.data.pointer("/status/revision").and_then(Value::as_u64);
    revision.context("it was never made")
}

/// The authority that vouches for what is served, PEM.
async fn authority(site: &Site) -> anyhow::Result<String> {
    let secrets: Api<Secret> = Api::namespaced(site.client(), NAMESPACE);
    let mut data = secrets.get(SERVING_SECRET).await?.data.unwrap_or_default();
    let authority = data.remove("ca.crt").context("no ca.crt")?;
    Ok(String::from_utf8(authority.0)?.trim().to_owned())
}

/// Every entry of the configuration trusts all of these.
async fn trusted(site: &Site, authorities: &[&String]) -> anyhow::Result<()> {
    let api: Api<ValidatingWebhookConfiguration> = Api::all(site.client());
    let entries = api.get(NAMESPACE).await?.webhooks.unwrap_or_default();
    ensure!(!entries.is_empty(), "there are no entries");
    for entry in entries {
        let bundle = entry.client_config.ca_bundle.context("no CA bundle")?;
        let bundle = String::from_utf8(bundle.0)?;
        for authority in authorities {
            ensure!(
                bundle.contains(*authority),
                "{} does not trust\n{authority}",
                entry.name
            );
        }
    }
    Ok(())
}
