//! The guard's side of the webhook's certificates.

use std::time::Duration;

use anyhow::ensure;

use super::backend::BackendArgs;
use crate::flags::written;
use crate::guard::certificates::plan::Terms;
use crate::guard::certificates::{INTERVAL, SelfManaged, Settings};
use crate::webhook::timeout::parse_go_duration;

/// The shortest life of a certificate: a renewal takes some seconds.
const SHORTEST: Duration = Duration::from_secs(10);
/// The last third of a life is the time for an exchange.
const THIRD: u32 = 3;

/// The Secret with the certificates, on the command line.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct CertificateArgs {
    /// The name of a Secret in our namespace whose ca.crt is the CA bundle, in place of a file
    #[arg(
        long,
        env = "DEPLOYER_GUARD_TLS_SECRET",
        value_name = "NAME",
        value_parser = crate::flags::name,
        conflicts_with = "ca_bundle_file"
    )]
    tls_secret: Option<String>,
    /// Make an authority and the serving certificate in that Secret, and renew both at two thirds of their lives
    #[arg(long, env = "DEPLOYER_GUARD_SELF_MANAGED_TLS", requires = "tls_secret")]
    self_managed_tls: bool,
    /// How long an authority of --self-managed-tls lives
    #[arg(long, env = "DEPLOYER_GUARD_CA_LIFETIME", value_name = "DURATION", default_value = "8760h",
          value_parser = parse_go_duration)]
    ca_lifetime: Duration,
    /// How long a serving certificate of --self-managed-tls lives
    #[arg(long, env = "DEPLOYER_GUARD_CERTIFICATE_LIFETIME", value_name = "DURATION", default_value = "2160h",
          value_parser = parse_go_duration)]
    certificate_lifetime: Duration,
    /// How long the stored webhook configuration must have trusted a new authority before it issues: API servers learn of it a
    /// moment after it is stored
    #[arg(long, env = "DEPLOYER_GUARD_TRUST_DELAY", value_name = "DURATION", default_value = "10s",
          value_parser = parse_go_duration)]
    trust_delay: Duration,
}

impl CertificateArgs {
    /// What the flags ask for, if there is to be a Secret.
    pub(super) fn settings(
        &self,
        backend: &BackendArgs,
        configuration: &str,
        dry_run: bool,
    ) -> anyhow::Result<Option<Settings>> {
        let Some(name) = &self.tls_secret else { return Ok(None) };
        let self_managed = self.self_managed_tls.then(|| self.self_managed(backend)).transpose()?;
        Ok(Some(Settings {
            namespace: backend.namespace.clone(),
            name: name.clone(),
            self_managed,
            server_name: backend.names().swap_remove(0),
            configuration: configuration.to_owned(),
            dry_run,
        }))
    }

    fn self_managed(&self, backend: &BackendArgs) -> anyhow::Result<SelfManaged> {
        let (authority, certificate) = (self.ca_lifetime, self.certificate_lifetime);
        ensure!(
            certificate >= SHORTEST,
            "--certificate-lifetime {}: give {} or more",
            written(certificate),
            written(SHORTEST)
        );
        ensure!(
            certificate <= authority,
            "--certificate-lifetime {} is more than --ca-lifetime {}: no certificate outlives its authority",
            written(certificate),
            written(authority)
        );
        // A new authority is waited for by the guard, which looks each second, and then what it issued by the replicas.
        let exchange = self.trust_delay * 2 + INTERVAL * 3;
        ensure!(
            authority / THIRD >= exchange,
            "--ca-lifetime {} is too short for --trust-delay {}: give {} or more, since an authority is exchanged within the \
             last third of its life, and that takes {}",
            written(authority),
            written(self.trust_delay),
            written(exchange * THIRD),
            written(exchange)
        );
        let renewal = self.trust_delay + INTERVAL * 2;
        ensure!(
            certificate / THIRD >= renewal,
            "--certificate-lifetime {} is too short for --trust-delay {}: give {} or more, since a certificate is renewed \
             within the last third of its life, and that takes {}",
            written(certificate),
            written(self.trust_delay),
            written(renewal * THIRD),
            written(renewal)
        );
        let seconds = |life: Duration| i64::try_from(life.as_secs()).unwrap_or(i64::MAX);
        Ok(SelfManaged {
            names: backend.names(),
            terms: Terms {
                authority: seconds(authority),
                certificate: seconds(certificate),
            },
            trust_delay: self.trust_delay,
        })
    }
}
