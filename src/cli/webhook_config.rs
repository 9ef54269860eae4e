//! `deployer-guard webhook-config`

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, ensure};

use super::manifests::{Reader, policies};
use crate::cluster::webhook_configuration::{Backend, generate};

/// Options of `webhook-config`.
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "A policy that is read back from the cluster (kubectl get deployerpolicies -o yaml) carries its uid \
    and generation, and its entry names them; one from a file does not, and is then read live at each call. \
    Policies are checked as the webhook checks them, and for fields that are not known; the API server checks more: \
    kubectl apply --dry-run=server -f policy.yaml"
)]
pub(super) struct WebhookConfigArgs {
    /// Files of DeployerPolicy objects, YAML or JSON, several in one file or a List; `-` is standard input
    #[arg(required = true, value_name = "FILE")]
    policies: Vec<PathBuf>,
    /// The CA bundle (PEM) by which the API server checks the webhook's certificate; without it, its system's roots
    #[arg(long, env = "DEPLOYER_GUARD_CA_BUNDLE", value_name = "FILE")]
    ca_bundle: Option<PathBuf>,
    /// The URL of the webhook, without a path, in place of a Service
    #[arg(long, env = "DEPLOYER_GUARD_URL", value_name = "URL", conflicts_with_all = ["service", "service_port"])]
    url: Option<String>,
    /// The namespace of deployer-guard, which is never matched
    #[arg(
        long,
        env = "DEPLOYER_GUARD_NAMESPACE",
        value_name = "NAMESPACE",
        default_value = "deployer-guard"
    )]
    namespace: String,
    /// The name of the Service
    #[arg(
        long,
        env = "DEPLOYER_GUARD_SERVICE",
        value_name = "NAME",
        default_value = "deployer-guard"
    )]
    service: String,
    /// The port of the Service
    #[arg(
        long,
        env = "DEPLOYER_GUARD_SERVICE_PORT",
        value_name = "PORT",
        default_value = "443"
    )]
    service_port: std::num::NonZeroU16,
    /// The name of the configuration
    #[arg(
        long,
        env = "DEPLOYER_GUARD_CONFIGURATION",
        value_name = "NAME",
        default_value = "deployer-guard"
    )]
    name: String,
}

pub(super) fn run(args: &WebhookConfigArgs) -> anyhow::Result<()> {
    let policies = policies(&mut Reader::default(), &args.policies)?;
    if let Some(url) = &args.url {
        check_url(url)?;
    }
    let ca_bundle = args.ca_bundle.as_ref().map(|file| {
        let pem = std::fs::read(file).with_context(|| format!("--ca-bundle {} cannot be read", file.display()))?;
        let is_pem = pem.windows(27).any(|window| window == b"-----BEGIN CERTIFICATE-----");
        ensure!(is_pem, "--ca-bundle {} holds no PEM certificate", file.display());
        Ok(pem)
    });
    let backend = match &args.url {
        Some(url) => Backend::Url(url.clone()),
        None => Backend::Service {
            namespace: args.namespace.clone(),
            name: args.service.clone(),
            port: args.service_port.get().into(),
        },
    };
    let configuration = generate(
        &policies,
        &backend,
        ca_bundle.transpose()?.as_deref(),
        &args.namespace,
        &args.name,
    );
    let yaml = serde_saphyr::to_string(&configuration).context("the configuration cannot be written as YAML")?;
    std::io::stdout()
        .write_all(yaml.as_bytes())
        .context("standard output cannot be written")
}

/// The URL of the webhook, to which paths are added.
fn check_url(url: &str) -> anyhow::Result<()> {
    let host = url.strip_prefix("https://").unwrap_or_default().trim_end_matches('/');
    ensure!(
        !host.is_empty() && !host.contains(['/', '?', '#']),
        "--url {url}: give https://HOST:PORT and no path; the API server calls webhooks over https:// alone"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_has_a_host_and_no_path() {
        for (url, accepted) in [
            ("https://127.0.0.1:8443", true),
            ("https://webhook.example/", true),
            ("https://", false),
            ("https://webhook.example/admit", false),
            ("https://webhook.example?a=b", false),
            ("http://webhook.example", false),
            ("webhook.example", false),
        ] {
            assert_eq!(check_url(url).is_ok(), accepted, "{url}");
        }
    }
}
