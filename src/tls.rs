//! Serving certificates that are read again when the content of their files changes.
//!
//! Kubelet replaces a mounted Secret by swapping a symlink, which a watch on the file does not see: the files are polled
//! and their content is compared.

use std::convert::Infallible;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use sha2::{Digest, Sha256};

use crate::telemetry::metrics::Metrics;
use crate::webhook::timeout::parse_go_duration;

/// Which certificate to serve with, on the command line.
#[derive(Clone, Debug, clap::Args)]
pub struct TlsArgs {
    /// The serving certificate and its chain, PEM, leaf first. Read again when its content changes
    #[arg(long, env = "DEPLOYER_GUARD_TLS_CERT_FILE", value_name = "FILE")]
    pub tls_cert_file: PathBuf,
    /// The private key of the serving certificate, PEM. Read again when its content changes
    #[arg(long, env = "DEPLOYER_GUARD_TLS_KEY_FILE", value_name = "FILE")]
    pub tls_key_file: PathBuf,
    /// How often the certificate files are looked at
    #[arg(long, env = "DEPLOYER_GUARD_TLS_RELOAD_INTERVAL", value_name = "DURATION", default_value = "1s",
          value_parser = parse_go_duration)]
    pub tls_reload_interval: Duration,
}

impl TlsArgs {
    /// Reads the files that the flags name.
    ///
    /// # Errors
    /// As [`TlsFiles::load`].
    pub fn load(&self) -> Result<TlsFiles, TlsError> {
        TlsFiles::load(&self.tls_cert_file, &self.tls_key_file)
            .map(|files| files.reread_every(self.tls_reload_interval))
    }
}

/// Why a certificate and its key cannot be served with.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("cannot read {}: {source}; {flag} must name a PEM file that this process may read", path.display())]
    Read {
        /// The flag that names the file.
        flag: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The certificate file holds no certificate, or what it holds is not PEM.
    #[error("no certificate in {}: {why}; --tls-cert-file must name a PEM file with the leaf certificate first", path.display())]
    Certificate {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The key file holds no private key, or what it holds is not PEM.
    #[error("no private key in {}: {source}; --tls-key-file must name a PEM file with one PKCS#8, SEC1 or PKCS#1 key", path.display())]
    Key {
        /// The file.
        path: PathBuf,
        /// What the parser said.
        source: pem::Error,
    },
    /// The key is of no use, or is not the key of the certificate.
    #[error(
        "{} and {} do not go together: {source}; --tls-key-file must name the private key of the first certificate in --tls-cert-file",
        cert.display(), key.display()
    )]
    Pair {
        /// The certificate file.
        cert: PathBuf,
        /// The key file.
        key: PathBuf,
        /// What rustls said.
        source: rustls::Error,
    },
}

/// A certificate and its key, loaded from two files and served with until better ones are there.
///
/// Guarantees: there is always a pair to serve with, and its key belongs to its certificate. A pair that is missing,
/// half written or mismatched never replaces a good one.
pub struct TlsFiles {
    cert: PathBuf,
    key: PathBuf,
    interval: Duration,
    provider: Arc<CryptoProvider>,
    current: ArcSwap<Pair>,
}

/// One good pair.
struct Pair {
    certified: Arc<CertifiedKey>,
    content: Content,
    not_after: i64,
}

/// What tells one content of the two files from another: a digest, so that the key is not kept twice.
#[derive(Clone, PartialEq, Eq)]
enum Content {
    Digest([u8; 32]),
    Unreadable(PathBuf, io::ErrorKind),
}

/// What a look at the files found.
enum Look {
    Unchanged,
    Renewed(Pair),
    Broken(Content, TlsError),
}

impl TlsFiles {
    /// Reads both files and checks that they go together. Call it before a socket is bound.
    ///
    /// # Errors
    /// If a file cannot be read or parsed, or the key is not the certificate's. The text names the flag to mend.
    pub fn load(cert: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Result<Self, TlsError> {
        let (cert, key) = (cert.into(), key.into());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let (cert_pem, key_pem) = (read(&cert, "--tls-cert-file")?, read(&key, "--tls-key-file")?);
        let pair = parse(&cert, &cert_pem, &key, &key_pem, &provider)?;
        Ok(Self {
            cert,
            key,
            interval: Duration::from_secs(1),
            provider,
            current: ArcSwap::from_pointee(pair),
        })
    }

    /// Sets how often [`TlsFiles::keep_fresh`] looks at the files (default: each second, never more often than each
    /// 10 ms).
    #[must_use]
    pub fn reread_every(mut self, interval: Duration) -> Self {
        self.interval = interval.max(Duration::from_millis(10));
        self
    }

    /// When the certificate now served expires, in seconds since the Unix epoch.
    #[must_use]
    pub fn not_after(&self) -> i64 {
        self.current.load().not_after
    }

    /// A server configuration that resolves to the pair that is current at each handshake; ALPN h2 and http/1.1, TLS 1.2
    /// and 1.3, no client certificates.
    ///
    /// # Panics
    /// Never: the protocol versions are the provider's own.
    #[must_use]
    pub fn server_config(self: &Arc<Self>) -> rustls::ServerConfig {
        let mut config = rustls::ServerConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_safe_default_protocol_versions()
            .expect("ring provides TLS 1.2 and 1.3")
            .with_no_client_auth()
            .with_cert_resolver(Arc::clone(self) as Arc<dyn ResolvesServerCert>);
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        config
    }

    /// Looks at the files again and again, and serves with a new pair as soon as both of its files are there. Ends only by
    /// being dropped.
    ///
    /// What is found broken is reported once for each distinct content, and only if the next look finds it still so: two
    /// files are never swapped in one instant.
    pub async fn keep_fresh(self: Arc<Self>, metrics: Arc<Metrics>) -> Infallible {
        metrics.certificate_not_after(self.not_after());
        let mut seen_broken: Option<(Content, bool)> = None;
        loop {
            tokio::time::sleep(self.interval).await;
            match self.look().await {
                Look::Unchanged => seen_broken = None,
                Look::Renewed(pair) => {
                    tracing::info!(not_after = pair.not_after, file = %self.cert.display(), "serving with a new certificate");
                    metrics.certificate_not_after(pair.not_after);
                    self.current.store(Arc::new(pair));
                    seen_broken = None;
                }
                Look::Broken(content, error) => {
                    let reported = match &seen_broken {
                        Some((before, reported)) if *before == content => {
                            if !reported {
                                tracing::warn!(%error, "the certificate files are not usable; the last good pair stays");
                                metrics.certificate_reload_failed();
                            }
                            true
                        }
                        _ => false,
                    };
                    seen_broken = Some((content, reported));
                }
            }
        }
    }

    async fn look(&self) -> Look {
        let cert_pem = match tokio::fs::read(&self.cert).await {
            Ok(bytes) => bytes,
            Err(source) => return unreadable("--tls-cert-file", &self.cert, source),
        };
        let key_pem = match tokio::fs::read(&self.key).await {
            Ok(bytes) => bytes,
            Err(source) => return unreadable("--tls-key-file", &self.key, source),
        };
        let content = digest(&cert_pem, &key_pem);
        if content == self.current.load().content {
            return Look::Unchanged;
        }
        match parse(&self.cert, &cert_pem, &self.key, &key_pem, &self.provider) {
            Ok(pair) => Look::Renewed(pair),
            Err(error) => Look::Broken(content, error),
        }
    }
}

impl ResolvesServerCert for TlsFiles {
    fn resolve(&self, _client_hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.current.load().certified))
    }
}

impl fmt::Debug for TlsFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsFiles")
            .field("cert", &self.cert)
            .field("key", &self.key)
            .finish_non_exhaustive()
    }
}

fn read(path: &Path, flag: &'static str) -> Result<Vec<u8>, TlsError> {
    std::fs::read(path).map_err(|source| TlsError::Read {
        flag,
        path: path.to_owned(),
        source,
    })
}

fn unreadable(flag: &'static str, path: &Path, source: io::Error) -> Look {
    Look::Broken(
        Content::Unreadable(path.to_owned(), source.kind()),
        TlsError::Read {
            flag,
            path: path.to_owned(),
            source,
        },
    )
}

fn digest(cert_pem: &[u8], key_pem: &[u8]) -> Content {
    let mut hash = Sha256::new();
    hash.update(Sha256::digest(cert_pem));
    hash.update(Sha256::digest(key_pem));
    Content::Digest(hash.finalize().into())
}

fn parse(
    cert: &Path,
    cert_pem: &[u8],
    key: &Path,
    key_pem: &[u8],
    provider: &CryptoProvider,
) -> Result<Pair, TlsError> {
    let broken = |why: String| TlsError::Certificate {
        path: cert.to_owned(),
        why,
    };
    let chain = CertificateDer::pem_slice_iter(cert_pem)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| broken(error.to_string()))?;
    let leaf = chain
        .first()
        .ok_or_else(|| broken("the file has no CERTIFICATE section".to_owned()))?;
    let (_, parsed) = x509_parser::parse_x509_certificate(leaf).map_err(|error| broken(error.to_string()))?;
    let not_after = parsed.validity().not_after.timestamp();
    let private = PrivateKeyDer::from_pem_slice(key_pem).map_err(|source| TlsError::Key {
        path: key.to_owned(),
        source,
    })?;
    let certified = CertifiedKey::from_der(chain, private, provider).map_err(|source| TlsError::Pair {
        cert: cert.to_owned(),
        key: key.to_owned(),
        source,
    })?;
    Ok(Pair {
        certified: Arc::new(certified),
        content: digest(cert_pem, key_pem),
        not_after,
    })
}
