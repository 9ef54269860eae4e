//! `deployer-guard crds` and `deployer-guard crds apply`

use std::io::Write;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Subcommand;
use tokio::time::timeout;

use super::kubernetes::KubernetesArgs;
use super::serve_to_the_end;
use crate::api::crd;
use crate::cluster::definitions::Definitions;
use crate::webhook::timeout::parse_go_duration;

/// Options of `crds`.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct CrdsArgs {
    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(Clone, Debug, Subcommand)]
enum Action {
    /// Make the CustomResourceDefinitions of a cluster those of this version, and wait until they are served. Objects stay
    Apply(ApplyArgs),
}

#[derive(Clone, Debug, clap::Args)]
struct ApplyArgs {
    /// How long it may take until they are served
    #[arg(long, env = "DEPLOYER_GUARD_TIMEOUT", value_name = "DURATION", default_value = "60s",
          value_parser = parse_go_duration)]
    timeout: Duration,
    #[command(flatten)]
    kubernetes: KubernetesArgs,
}

pub(super) fn run(args: &CrdsArgs) -> anyhow::Result<()> {
    if let Some(Action::Apply(args)) = &args.action {
        return serve_to_the_end(apply(args));
    }
    let manifests = crd::manifests().context("the CustomResourceDefinitions cannot be written as YAML")?;
    std::io::stdout()
        .write_all(manifests.as_bytes())
        .context("standard output cannot be written")
}

async fn apply(args: &ApplyArgs) -> anyhow::Result<()> {
    let definitions = Definitions::new(args.kubernetes.client().await?);
    let mut waits_for = String::from("the API server to answer");
    let applied = timeout(args.timeout, async {
        for definition in crd::crds() {
            let name = definition.metadata.name.clone().unwrap_or_default();
            let done = definitions.apply(&definition).await.with_context(|| {
                format!(
                    "CustomResourceDefinition {name} cannot be applied; who runs this needs get, create and patch on \
                     customresourcedefinitions (apiextensions.k8s.io)"
                )
            })?;
            println!("customresourcedefinition.apiextensions.k8s.io/{name} {done}");
            waits_for = format!("CustomResourceDefinition {name} to be established");
            definitions.established(&name).await?;
        }
        anyhow::Ok(())
    });
    match applied.await {
        Ok(applied) => applied,
        Err(_elapsed) => bail!(
            "timed out after {:?} waiting for {waits_for}; kubectl describe crd says what keeps it, and --timeout gives it longer",
            args.timeout
        ),
    }
}
