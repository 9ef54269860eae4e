//! Every shape of values that the chart keeps in `ci` installs, upgrades to the next one, and is uninstalled.

use anyhow::{Context, ensure};
use deployer_guard_testkit::{Helm, Release, chart};

use crate::site::Site;
use crate::work::{BY_LABEL, deployer};

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

async fn decides(site: &Site, release: &Release<'_>, namespace: &str) -> anyhow::Result<()> {
    release.enforce(BY_LABEL).await?;
    site.namespace(namespace).await?;
    site.admitted_soon(namespace, &deployer("cfg", "first", &[])).await?;
    site.refused(namespace, &deployer("cfg", "second", &[])).await?;
    site.delete_namespace(namespace).await
}

/// With Helm 4.
pub(crate) async fn helm4(site: &Site) -> anyhow::Result<()> {
    for shape in shapes()? {
        let namespace = format!("shape-{}", shape.trim_end_matches("-values.yaml"));
        let release = Release::upgrade_or_install(&site.node, Helm::Four, &[&shape]).await;
        let release = release.with_context(|| shape.clone())?;
        decides(site, &release, &namespace)
            .await
            .with_context(|| shape.clone())?;
        println!("  {shape}");
    }
    Ok(())
}

/// With Helm 3: two shapes, from nothing.
pub(crate) async fn helm3(site: &Site) -> anyhow::Result<()> {
    Release::of(&site.node, Helm::Four).uninstall().await?;
    let shapes = shapes()?;
    let release = Release::install(&site.node, Helm::Three, &[&shapes[0]]).await?;
    decides(site, &release, "helm-3").await?;
    release.upgrade(&[&shapes[1]]).await?;
    decides(site, &release, "helm-3-upgraded").await?;
    release.uninstall().await
}
