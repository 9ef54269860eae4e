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

use rustls::crypto::CryptoProvider;

use super::pair::{Fingerprint, Pair, PairError, fingerprint, now};
use super::served::Served;
use crate::telemetry::metrics::Metrics;

/// Why a certificate and its key cannot be served with.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The flags name no certificate.
    #[error("where is the serving certificate? Give --tls-cert-file and --tls-key-file, or --tls-secret")]
    Source,
    /// The flags name one half of a pair. This one names the other.
    #[error("a certificate is served with its key: give {0}, too")]
    Half(&'static str),
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
    #[error("no private key in {}: {why}; --tls-key-file must name a PEM file with one PKCS#8, SEC1 or PKCS#1 key", path.display())]
    Key {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: &'static str,
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
    served: Arc<Served>,
}

/// What tells one content of the two files from another.
#[derive(Clone, PartialEq, Eq)]
enum Content {
    Digest(Fingerprint),
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
        let served = Arc::new(Served::default());
        let (cert_pem, key_pem) = (read(&cert, "--tls-cert-file")?, read(&key, "--tls-key-file")?);
        let pair = parse(&cert, &cert_pem, &key, &key_pem, served.provider())?;
        served.serve(pair);
        Ok(Self {
            cert,
            key,
            interval: Duration::from_secs(1),
            served,
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
        self.served.not_after().unwrap_or_default()
    }

    /// What handshakes are answered with.
    pub(super) fn served(&self) -> &Arc<Served> {
        &self.served
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
                Look::Unchanged => {
                    seen_broken = None;
                    metrics.certificate_source_broken(false);
                }
                Look::Renewed(pair) => {
                    tracing::info!(not_after = pair.not_after(), file = %self.cert.display(), "serving with a new certificate");
                    metrics.certificate_not_after(pair.not_after());
                    self.served.serve(pair);
                    seen_broken = None;
                    metrics.certificate_source_broken(false);
                }
                Look::Broken(content, error) => {
                    let reported = match &seen_broken {
                        Some((before, reported)) if *before == content => {
                            if !reported {
                                tracing::warn!(%error, "the certificate files are not usable; the last good pair stays");
                                metrics.certificate_reload_failed();
                                metrics.certificate_source_broken(true);
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
        let digest = fingerprint(&cert_pem, &key_pem);
        if self
            .served
            .current()
            .is_some_and(|current| current.fingerprint() == digest)
        {
            return Look::Unchanged;
        }
        match parse(&self.cert, &cert_pem, &self.key, &key_pem, self.served.provider()) {
            Ok(pair) => match pair.valid_at(now()) {
                // One that is good stays.
                Err(why)
                    if self
                        .served
                        .current()
                        .is_some_and(|current| current.valid_at(now()).is_ok()) =>
                {
                    let path = self.cert.clone();
                    let why = why.to_string();
                    Look::Broken(Content::Digest(digest), TlsError::Certificate { path, why })
                }
                _ => Look::Renewed(pair),
            },
            Err(error) => Look::Broken(Content::Digest(digest), error),
        }
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

fn parse(
    cert: &Path,
    cert_pem: &[u8],
    key: &Path,
    key_pem: &[u8],
    provider: &CryptoProvider,
) -> Result<Pair, TlsError> {
    Pair::parse(cert_pem, key_pem, provider).map_err(|error| match error {
        PairError::Key(why) => TlsError::Key {
            path: key.to_owned(),
            why,
        },
        PairError::Mismatch(source) => TlsError::Pair {
            cert: cert.to_owned(),
            key: key.to_owned(),
            source,
        },
        PairError::Certificate(why) => TlsError::Certificate {
            path: cert.to_owned(),
            why,
        },
        other => TlsError::Certificate {
            path: cert.to_owned(),
            why: other.to_string(),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::pem::leaks::{assert_quotes_nothing, broken_keys};

    #[test]
    fn an_error_names_the_file_and_quotes_nothing_of_a_key() {
        let provider = rustls::crypto::ring::default_provider();
        let (cert, key) = (Path::new("tls.crt"), Path::new("tls.key"));
        let made = rcgen::generate_simple_self_signed(["x".to_owned()]).unwrap();
        for (what, broken) in broken_keys() {
            for (cert_pem, file) in [(made.cert.pem().as_bytes(), "tls.key"), (&broken, "tls.crt")] {
                let error = parse(cert, cert_pem, key, &broken, &provider).unwrap_err();
                let text = format!("{error} {error:?}");
                assert!(text.contains(file), "{text}");
                assert_quotes_nothing(what, &text, &broken);
            }
        }
    }
}
