//! Kubeconfig files and clients for one API server and one bearer token.

use std::path::Path;

use anyhow::Context;
use kube::config::AuthInfo;
use kube::{Client, Config};

use crate::pki::write;

/// What is needed to speak to an API server as somebody.
#[derive(Debug, Clone)]
pub(crate) struct Access<'a> {
    pub(crate) url: &'a str,
    pub(crate) ca_file: &'a Path,
    pub(crate) user: &'a str,
    pub(crate) token: &'a str,
}

impl Access<'_> {
    /// Writes a kubeconfig file with absolute paths.
    pub(crate) fn write_kubeconfig(&self, path: &Path) -> anyhow::Result<()> {
        let Access {
            url,
            ca_file,
            user,
            token,
        } = self;
        let ca_file = ca_file.display();
        let text = format!(
            "apiVersion: v1
kind: Config
clusters: [{{name: throwaway, cluster: {{server: \"{url}\", certificate-authority: \"{ca_file}\"}}}}]
users: [{{name: \"{user}\", user: {{token: \"{token}\"}}}}]
contexts: [{{name: throwaway, context: {{cluster: throwaway, user: \"{user}\"}}}}]
current-context: throwaway
"
        );
        write(path, &text)
    }

    /// A client that repeats nothing by itself: each call of a test is one request, whatever the answer.
    pub(crate) fn client(&self) -> anyhow::Result<Client> {
        let mut config = Config::new(self.url.parse().context("the API server's address")?);
        config.root_cert_file = Some(self.ca_file.to_owned());
        config.auth_info = AuthInfo {
            token: Some(self.token.to_owned().into()),
            ..AuthInfo::default()
        };
        config.default_retry = false;
        Client::try_from(config).context("making a client of the control plane")
    }
}
