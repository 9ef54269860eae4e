//! Every shape of values that the chart keeps in `ci` installs, upgrades to the next one, and is uninstalled.

use anyhow::{Context, ensure};
use deployer_guard_testkit::objects::make_namespace;
use deployer_guard_testkit::{Helm, NAMESPACE, Pki, Release, chart};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use serde_json::json;

use crate::cert_manager;
use crate::site::Site;
use crate::work::{BY_LABEL, deployer};

/// The shape with a Secret that somebody else fills, and its name.
pub(crate) const OWN_SECRET: (&str, &str) = ("own-secret-values.yaml", "own-certificate");
/// The shape whose guards only tell, so that nothing is put in force.
const WATCHED: &str = "own-secret-watched-values.yaml";

/// The names of the files, in order.
fn shapes() -> anyhow::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(chart().join("ci")).context("the chart's ci directory")? {
        let name = entry?
            .file_name()
            .into_string()
            .ok()
            .context("a name that is no text")?;
        names.extend(name.ends_with("-values.yaml").then_some(name));
    }
    names.sort();
    ensure!(names.len() > 1, "there are {names:?}");
    Ok(names)
}

/// A Secret with a certificate for the webhook.
pub(crate) async fn make_secret(site: &Site, name: &str) -> anyhow::Result<()> {
    if Api::<Namespace>::all(site.client()).get_opt(NAMESPACE).await?.is_none() {
        make_namespace(&site.client(), NAMESPACE, &[], true).await?;
    }
    let pki = Pki::new(name)?;
    let pair = pki.serving(&["deployer-guard.deployer-guard.svc"])?;
    let bytes = |text: &str| ByteString(text.as_bytes().to_vec());
    let secret = json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "kubernetes.io/tls",
        "metadata": { "name": name },
        "data": { "tls.crt": bytes(&pair.certificate), "tls.key": bytes(&pair.key), "ca.crt": bytes(&pki.ca()) },
    });
    secrets(site)
        .patch(name, &PatchParams::apply("cert-manager"), &Patch::Apply(secret))
        .await?;
    Ok(())
}

fn secrets(site: &Site) -> Api<Secret> {
    Api::namespaced(site.client(), NAMESPACE)
}

/// One is admitted, and another refused.
async fn decides(site: &Site, release: &Release<'_>, namespace: &str) -> anyhow::Result<()> {
    release.enforce(BY_LABEL).await?;
    site.in_force().await?;
    site.namespace(namespace).await?;
    site.admitted_soon(namespace, &deployer("cfg", "first", &[])).await?;
    site.refused(namespace, &deployer("cfg", "second", &[])).await?;
    site.delete_namespace(namespace).await
}

/// With Helm 4.
pub(crate) async fn helm4(site: &Site) -> anyhow::Result<()> {
    Release::of(&site.node, Helm::Four).uninstall_if_there().await?;
    site.others().await?;
    for shape in shapes()? {
        shaped(site, &shape).await.with_context(|| shape.clone())?;
        println!("  {shape}");
    }
    Release::of(&site.node, Helm::Four).uninstall().await?;
    // What others put there, they take away.
    secrets(site).delete(OWN_SECRET.1, &DeleteParams::default()).await?;
    cert_manager::forget(site).await
}

async fn shaped(site: &Site, shape: &str) -> anyhow::Result<()> {
    let namespace = format!("shape-{}", shape.trim_end_matches("-values.yaml"));
    if shape == OWN_SECRET.0 {
        make_secret(site, OWN_SECRET.1).await?;
    }
    let release = Release::upgrade_or_install(&site.node, Helm::Four, &[shape]).await?;
    if shape != WATCHED {
        decides(site, &release, &namespace).await?;
    }
    Ok(())
}

/// With Helm 3: two shapes, from nothing.
pub(crate) async fn helm3(site: &Site) -> anyhow::Result<()> {
    Release::of(&site.node, Helm::Four).uninstall_if_there().await?;
    let release = Release::install(&site.node, Helm::Three, &["default-values.yaml"]).await?;
    decides(site, &release, "helm-3").await?;
    release.upgrade(&["openshift-values.yaml"]).await?;
    decides(site, &release, "helm-3-upgraded").await?;
    release.uninstall().await
}
