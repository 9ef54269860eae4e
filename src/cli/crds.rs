//! `deployer-guard crds`

use std::io::Write;

use anyhow::Context;

use crate::api::crd;

pub(super) fn run() -> anyhow::Result<()> {
    let manifests = crd::manifests().context("the CustomResourceDefinitions cannot be written as YAML")?;
    std::io::stdout()
        .write_all(manifests.as_bytes())
        .context("standard output cannot be written")
}
