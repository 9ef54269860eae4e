//! Where the serving certificate comes from, on the command line.

use std::path::PathBuf;
use std::time::Duration;

use super::files::{TlsError, TlsFiles};
use crate::webhook::timeout::parse_go_duration;

/// Which certificate to serve with, on the command line.
#[derive(Clone, Debug, clap::Args)]
pub struct TlsArgs {
    /// The serving certificate and its chain, PEM, leaf first. Read again when its content changes
    #[arg(long, env = "DEPLOYER_GUARD_TLS_CERT_FILE", value_name = "FILE")]
    pub tls_cert_file: Option<PathBuf>,
    /// The private key of the serving certificate, PEM. Read again when its content changes
    #[arg(long, env = "DEPLOYER_GUARD_TLS_KEY_FILE", value_name = "FILE")]
    pub tls_key_file: Option<PathBuf>,
    /// How often the certificate files, and that of --client-ca-file, are looked at
    #[arg(long, env = "DEPLOYER_GUARD_TLS_RELOAD_INTERVAL", value_name = "DURATION", default_value = "1s",
          value_parser = parse_go_duration)]
    pub tls_reload_interval: Duration,
    /// The name of a Secret in our namespace with the pair (tls.crt, tls.key), in place of files. It is read through the API, and
    /// may still be empty: until it has a pair, nothing is served
    #[arg(long, env = "DEPLOYER_GUARD_TLS_SECRET", value_name = "NAME", value_parser = crate::flags::name,
          conflicts_with_all = ["tls_cert_file", "tls_key_file"])]
    pub tls_secret: Option<String>,
    /// How often the Secret is read
    #[arg(long, env = "DEPLOYER_GUARD_TLS_SECRET_INTERVAL", value_name = "DURATION", default_value = "5s",
          value_parser = parse_go_duration)]
    pub tls_secret_interval: Duration,
    /// How long the stored webhook configuration must have trusted a new certificate of the Secret before it is served: API servers
    /// learn of a new authority a moment after it is stored
    #[arg(long, env = "DEPLOYER_GUARD_TRUST_DELAY", value_name = "DURATION", default_value = "10s",
          value_parser = parse_go_duration)]
    pub trust_delay: Duration,
}

/// Where the serving certificate comes from.
#[derive(Debug)]
pub enum TlsSource {
    /// From two files, which were read.
    Files(TlsFiles),
    /// From the Secret of this name in our namespace.
    Secret(String),
}

impl TlsArgs {
    /// Reads the files that the flags name, or gives the name of the Secret.
    ///
    /// # Errors
    /// If the flags name neither, or only one of the two files; and as [`TlsFiles::load`].
    pub fn load(&self) -> Result<TlsSource, TlsError> {
        match (&self.tls_cert_file, &self.tls_key_file, &self.tls_secret) {
            (Some(cert), Some(key), None) => {
                let files = TlsFiles::load(cert, key)?;
                Ok(TlsSource::Files(files.reread_every(self.tls_reload_interval)))
            }
            (None, None, Some(secret)) => Ok(TlsSource::Secret(secret.clone())),
            (Some(_), None, _) => Err(TlsError::Half("--tls-key-file")),
            (None, Some(_), _) => Err(TlsError::Half("--tls-cert-file")),
            _ => Err(TlsError::Source),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        tls: TlsArgs,
    }

    #[test]
    fn exactly_one_way_to_a_certificate_is_taken() {
        let load = |flags: &[&str]| Cli::try_parse_from(["test"].iter().chain(flags)).map(|cli| cli.tls.load());
        assert!(matches!(load(&["--tls-secret", "s"]), Ok(Ok(TlsSource::Secret(name))) if name == "s"));
        for (flags, named) in [
            (&[][..], "--tls-secret"),
            (&["--tls-cert-file", "a"], "give --tls-key-file, too"),
            (&["--tls-key-file", "b"], "give --tls-cert-file, too"),
        ] {
            let refusal = load(flags).unwrap().unwrap_err().to_string();
            assert!(refusal.contains(named), "{refusal}");
        }
        assert!(load(&["--tls-secret", ""]).is_err());
        let both = ["--tls-secret", "s", "--tls-cert-file", "a", "--tls-key-file", "b"];
        assert!(load(&both).is_err(), "clap says that they exclude each other");
    }
}
