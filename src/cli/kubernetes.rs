//! How the cluster is reached.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

use crate::webhook::timeout::parse_go_duration;

/// How the cluster is reached, on the command line.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct KubernetesArgs {
    /// The kubeconfig file; without it, the Pod's ServiceAccount, or $KUBECONFIG and ~/.kube/config
    #[arg(long, env = "DEPLOYER_GUARD_KUBECONFIG", value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// How long a connection to the API server may take to be made
    #[arg(long, env = "DEPLOYER_GUARD_CONNECT_TIMEOUT", value_name = "DURATION", default_value = "2s",
          value_parser = parse_go_duration)]
    connect_timeout: Duration,
}

impl KubernetesArgs {
    /// A client that never retries by itself: past an admission's deadline nothing may be written.
    pub(super) async fn client(&self) -> anyhow::Result<Client> {
        let mut config = match &self.kubeconfig {
            Some(file) => {
                let kubeconfig = Kubeconfig::read_from(file)
                    .with_context(|| format!("--kubeconfig {} cannot be read", file.display()))?;
                Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
                    .await
                    .with_context(|| format!("--kubeconfig {} cannot be used", file.display()))?
            }
            None => Config::infer()
                .await
                .context("the API server cannot be found: run in a Pod with a ServiceAccount, or give --kubeconfig")?,
        };
        config.default_retry = false;
        config.connect_timeout = Some(self.connect_timeout);
        tracing::info!(url = %config.cluster_url, "the API server");
        Client::try_from(config).context("the client for the API server cannot be made")
    }
}
