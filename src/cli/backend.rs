//! Where the API servers find the webhook.

use anyhow::ensure;

use crate::cluster::secrets::host;
use crate::cluster::webhook_configuration::Backend;

/// Where the API servers find the webhook, on the command line.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct BackendArgs {
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
    pub(super) namespace: String,
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
}

impl BackendArgs {
    /// The URL if one is given, else the Service.
    pub(super) fn backend(&self) -> anyhow::Result<Backend> {
        if let Some(url) = &self.url {
            check_url(url)?;
            return Ok(Backend::Url(url.clone()));
        }
        Ok(Backend::Service {
            namespace: self.namespace.clone(),
            name: self.service.clone(),
            port: self.service_port.get().into(),
        })
    }
}

impl BackendArgs {
    /// The names by which the API servers call the webhook: what its certificate is for.
    pub(super) fn names(&self) -> Vec<String> {
        if let Some(url) = &self.url {
            return vec![host(url).to_owned()];
        }
        let name = format!("{}.{}.svc", self.service, self.namespace);
        vec![name.clone(), format!("{name}.cluster.local")]
    }
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
