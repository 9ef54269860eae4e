//! `deployer-guard webhook-config`

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, ensure};

use super::backend::BackendArgs;
use super::manifests::{Reader, ensure_some, policies};
use crate::cluster::webhook_configuration::generate;
use crate::flags;

/// Options of `webhook-config`.
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "A policy that is read back from the cluster (kubectl get deployerpolicies -o yaml) carries its uid \
    and generation, and its entry names them; one from a file does not, and is then read live at each call. An empty List, as kubectl \
    prints it where there is no policy, leaves the entry that judges policies. \
    Policies are checked as the webhook checks them, and for fields that are not known; the API server checks more: \
    kubectl apply --dry-run=server -f policy.yaml"
)]
pub(super) struct WebhookConfigArgs {
    /// Files of DeployerPolicy objects, YAML or JSON, several in one file or a List; `-` is standard input
    #[arg(required = true, value_name = "FILE")]
    policies: Vec<PathBuf>,
    /// The CA bundle (PEM) by which the API server checks the webhook's certificate; without it, its system's roots
    #[arg(long, env = "DEPLOYER_GUARD_CA_BUNDLE_FILE", value_name = "FILE")]
    ca_bundle_file: Option<PathBuf>,
    #[command(flatten)]
    backend: BackendArgs,
    /// The name of the configuration
    #[arg(
        long,
        env = "DEPLOYER_GUARD_CONFIGURATION",
        value_name = "NAME",
        default_value = "deployer-guard",
        value_parser = flags::name
    )]
    name: String,
}

pub(super) fn run(args: &WebhookConfigArgs) -> anyhow::Result<()> {
    let mut reader = Reader::default();
    let policies = policies(&mut reader, &args.policies)?;
    if !reader.saw_empty_list {
        ensure_some(&policies)?;
    }
    let backend = args.backend.backend()?;
    let ca_bundle = args.ca_bundle_file.as_ref().map(|file| {
        let pem = std::fs::read(file).with_context(|| format!("--ca-bundle-file {} cannot be read", file.display()))?;
        let is_pem = pem.windows(27).any(|window| window == b"-----BEGIN CERTIFICATE-----");
        ensure!(is_pem, "--ca-bundle-file {} holds no PEM certificate", file.display());
        Ok(pem)
    });
    let configuration = generate(
        &policies,
        &backend,
        ca_bundle.transpose()?.as_deref(),
        &args.backend.namespace,
        &args.name,
    );
    let yaml = serde_saphyr::to_string(&configuration).context("the configuration cannot be written as YAML")?;
    std::io::stdout()
        .write_all(yaml.as_bytes())
        .context("standard output cannot be written")
}
