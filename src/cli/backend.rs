//! Where the API servers find the webhook.

use anyhow::{Context, ensure};
use http1::uri::Authority;
use rustls::pki_types::ServerName;

use crate::cluster::secrets::host;
use crate::cluster::webhook_configuration::Backend;
use crate::flags;

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
        default_value = "deployer-guard",
        value_parser = flags::label
    )]
    pub(super) namespace: String,
    /// The name of the Service
    #[arg(
        long,
        env = "DEPLOYER_GUARD_SERVICE",
        value_name = "NAME",
        default_value = "deployer-guard",
        value_parser = flags::label
    )]
    service: String,
    /// The port of the Service
    #[arg(
        long,
        env = "DEPLOYER_GUARD_SERVICE_PORT",
        value_name = "PORT",
        default_value = "443",
        value_parser = flags::port
    )]
    service_port: u16,
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
            port: self.service_port.into(),
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
    let rest = url.strip_prefix("https://").with_context(|| {
        format!("--url {url}: give https://HOST:PORT; the API server calls webhooks over https:// alone")
    })?;
    let authority: Authority = rest
        .strip_suffix('/')
        .unwrap_or(rest)
        .parse()
        .ok()
        .with_context(|| format!("--url {url}: give https://HOST:PORT and no path"))?;
    ensure!(
        !authority.as_str().contains('@'),
        "--url {url}: leave out what stands before @; the API server takes no user in it"
    );
    let host = host(url);
    ensure!(
        ServerName::try_from(host).is_ok(),
        "--url {url}: {host:?} is neither a DNS name nor an IP address that a certificate can be for"
    );
    let port = authority
        .as_str()
        .rsplit_once(']')
        .map_or(authority.as_str(), |(_, port)| port);
    let port = port.split_once(':').map(|(_, port)| port);
    ensure!(
        port.is_none_or(|port| port.starts_with(|c: char| c.is_ascii_digit()) && flags::port(port).is_ok()),
        "--url {url}: the port must be a number from 1 to 65535"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_has_a_host_that_a_certificate_can_be_for_a_port_and_nothing_else() {
        for (url, fault) in [
            ("https://127.0.0.1:8443", None),
            ("https://[::1]:8443", None),
            ("https://[::1]", None),
            ("https://webhook.example/", None),
            ("https://", Some("HOST:PORT")),
            ("https://webhook.example/admit", Some("no path")),
            ("https://webhook.example//", Some("no path")),
            ("https://webhook.example?a=b", Some("no path")),
            ("https://webhook.example#a", Some("no path")),
            ("http://webhook.example", Some("https:// alone")),
            ("webhook.example", Some("https:// alone")),
            ("https://user:word@webhook.example", Some("before @")),
            ("https://[::1", Some("HOST:PORT")),
            ("https://[::g]", Some("neither")),
            ("https://::1", Some("HOST:PORT")),
            ("https://webhook_.example:443x", Some("")),
            ("https://-.example", Some("neither")),
            ("https://a b", Some("HOST:PORT")),
            ("https://:443", Some("neither")),
            ("https://webhook.example:", Some("65535")),
            ("https://webhook.example:0", Some("65535")),
            ("https://webhook.example:+443", Some("65535")),
            ("https://webhook.example:65536", Some("65535")),
        ] {
            match (check_url(url).map_err(|error| format!("{error:#}")), fault) {
                (Ok(()), None) => {}
                (Err(text), Some(fault)) if text.contains(fault) => {}
                (found, _) => panic!("{url}: {found:?}"),
            }
        }
    }
}
