//! Uninstalling, with everything in use.

use anyhow::ensure;
use deployer_guard_testkit::{NAMESPACE, until};
use serde_json::Value;

use crate::site::{SOON, Site, text};
use crate::work::{deployer, program};

/// What `helm uninstall` keeps: the custom resources, with all that is stored of them, and the namespace, which is not Helm's.
const KEPT: [&str; 3] = [
    "customresourcedefinition.apiextensions.k8s.io/deployerclaims.deployer-guard.io",
    "customresourcedefinition.apiextensions.k8s.io/deployerpolicies.deployer-guard.io",
    "namespace/deployer-guard",
];

/// With deployers that work, claims and policies: afterwards pods can be made and namespaces deleted, and nothing of ours is left but
/// what is kept by intent.
pub(crate) async fn uninstall(site: &Site) -> anyhow::Result<()> {
    let release = site.usual().await?;
    for namespace in ["leaving", "stays"] {
        site.namespace(namespace).await?;
        site.admitted(namespace, &deployer("cfg", "first", &[])).await?;
        site.wait_phase(namespace, "first", "Running").await?;
        site.refused(namespace, &deployer("cfg", "second", &[])).await?;
    }
    release.uninstall().await?;
    let mut other = program(&[]);
    other["metadata"]["name"] = "other".into();
    site.admitted("stays", &other).await?;
    site.admitted_soon("stays", &deployer("cfg", "second", &[])).await?;
    site.delete_namespace("leaving").await?;
    // Pods of ours may still be ending: they serve on for a moment, and have then no right to record what they refused last.
    until("nothing else of ours to be left", SOON, async || {
        let left = left(site).await?;
        let more: Vec<_> = left.iter().filter(|object| !KEPT.contains(&object.as_str())).collect();
        ensure!(more.is_empty(), "these are left: {more:?}");
        Ok(())
    })
    .await?;
    let claims = site
        .kubectl(&["-n", "stays", "get", "deployerclaims", "-o=name"])
        .await?;
    ensure!(!claims.is_empty(), "the claims are gone");
    site.delete_namespace("stays").await?;
    site.delete_namespace(NAMESPACE).await
}

/// Kinds that say nothing of what is left: records, the custom resources that are kept, and what the API server makes of their definitions.
fn passed_over(kind: &str) -> bool {
    ["events", "deployer-guard.io", "apiservices"]
        .iter()
        .any(|word| kind.contains(word))
}

/// Every object of ours: by label, by name, and all that is in our namespace.
async fn left(site: &Site) -> anyhow::Result<Vec<String>> {
    let kinds = site.kubectl(&["api-resources", "--verbs=list", "-o=name"]).await?;
    let mut found = Vec::new();
    for kind in kinds.lines().filter(|kind| !passed_over(kind)) {
        let listed = site.kubectl(&["get", kind, "--all-namespaces", "-o=json"]).await?;
        let listed: Value = serde_json::from_str(&listed)?;
        for object in listed["items"].as_array().into_iter().flatten() {
            let (name, namespace) = (text(object, "/metadata/name"), text(object, "/metadata/namespace"));
            let ours = name.contains("deployer-guard")
                || namespace == NAMESPACE
                || text(object, "/metadata/labels/app.kubernetes.io~1name") == NAMESPACE;
            // Every namespace has these.
            let everywhere = matches!(name, "default" | "kube-root-ca.crt");
            if ours && !everywhere {
                found.push(
                    format!("{kind}/{name}")
                        .replace("customresourcedefinitions.", "customresourcedefinition.")
                        .replace("namespaces/", "namespace/"),
                );
            }
        }
    }
    Ok(found)
}
