//! The CA bundle by which the API server checks the webhook's certificate, read again when its file changes.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use data_encoding::BASE64;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use tokio::sync::{Notify, watch};
use tokio::time::sleep;

use crate::telemetry::metrics::GuardMetrics;

/// How often the file is looked at. Kubelet swaps a symlink, which a watch on the file does not see.
const INTERVAL: Duration = Duration::from_secs(1);

/// Why a file is no CA bundle.
#[derive(Debug, thiserror::Error)]
pub enum CaBundleError {
    /// It cannot be read.
    #[error("--ca-bundle-file {} cannot be read: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It holds no certificate, or something that is none.
    #[error("--ca-bundle-file {} must hold one or more PEM certificates: {why}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
}

/// The last good bundle and the one before.
#[derive(Debug, Default)]
struct Bundles {
    current: Option<Vec<u8>>,
    previous: Option<Vec<u8>>,
}

/// The CA bundle in a file, or none: then the API server trusts its system's roots.
#[derive(Debug)]
pub struct CaBundle {
    path: Option<PathBuf>,
    bundles: ArcSwap<Bundles>,
}

impl CaBundle {
    /// Reads the file, if there is to be one.
    ///
    /// # Errors
    /// If it is no bundle.
    pub fn load(path: Option<PathBuf>) -> Result<Self, CaBundleError> {
        let current = path.as_deref().map(read).transpose()?;
        Ok(Self {
            path,
            bundles: ArcSwap::from_pointee(Bundles {
                current,
                previous: None,
            }),
        })
    }

    /// The certificates of the last good content, PEM: nothing else that the file holds.
    #[must_use]
    pub fn current(&self) -> Option<Vec<u8>> {
        self.bundles.load().current.clone()
    }

    /// Whether this is the bundle, or was the one before it.
    #[must_use]
    pub fn knows(&self, bundle: Option<&[u8]>) -> bool {
        let bundles = self.bundles.load();
        let known = [
            Some(&bundles.current),
            bundles.previous.is_some().then_some(&bundles.previous),
        ];
        known.into_iter().flatten().any(|known| known.as_deref() == bundle)
    }

    /// Looks at the file each second until `stop`; tells of each new bundle. A content that is none is reported once, and the
    /// last good one stays.
    pub async fn keep_fresh(&self, metrics: &GuardMetrics, changed: &Notify, mut stop: watch::Receiver<bool>) {
        let Some(path) = &self.path else {
            let _stopped = stop.wait_for(|stop| *stop).await;
            return;
        };
        let mut reported = String::new();
        loop {
            tokio::select! {
                () = sleep(INTERVAL) => {}
                _ = stop.wait_for(|stop| *stop) => return,
            }
            match read(path) {
                Ok(pem) => {
                    reported.clear();
                    let before = self.bundles.load_full();
                    if before.current.as_ref() != Some(&pem) {
                        tracing::info!(file = %path.display(), "the CA bundle changed");
                        self.bundles.store(Arc::new(Bundles {
                            current: Some(pem),
                            previous: before.current.clone(),
                        }));
                        changed.notify_one();
                    }
                }
                Err(error) if error.to_string() != reported => {
                    tracing::warn!(%error, "the last good CA bundle stays");
                    metrics.ca_bundle_failed();
                    reported = error.to_string();
                }
                Err(_reported_before) => {}
            }
        }
    }
}

/// The certificates in a file, and nothing else of it: a key beside them must not be published.
fn read(path: &Path) -> Result<Vec<u8>, CaBundleError> {
    let content = std::fs::read(path).map_err(|source| CaBundleError::Read {
        path: path.to_owned(),
        source,
    })?;
    parse(&content).map_err(|why| CaBundleError::Content {
        path: path.to_owned(),
        why,
    })
}

fn parse(content: &[u8]) -> Result<Vec<u8>, String> {
    let certificates = CertificateDer::pem_slice_iter(content)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| error.to_string())?;
    if certificates.is_empty() {
        return Err("it has no CERTIFICATE section".into());
    }
    let mut pem = String::new();
    for (i, certificate) in certificates.iter().enumerate() {
        x509_parser::parse_x509_certificate(certificate)
            .map_err(|error| format!("number {} is no certificate: {error}", i + 1))?;
        pem.push_str("-----BEGIN CERTIFICATE-----\n");
        let text = BASE64.encode(certificate);
        for line in text.as_bytes().chunks(64) {
            pem.push_str(&String::from_utf8_lossy(line));
            pem.push('\n');
        }
        pem.push_str("-----END CERTIFICATE-----\n");
    }
    Ok(pem.into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn certificate() -> (String, String) {
        let issued = rcgen::generate_simple_self_signed(["ca".to_owned()]).unwrap();
        (issued.cert.pem(), issued.signing_key.serialize_pem())
    }

    #[test]
    fn a_bundle_holds_all_certificates_of_the_file_and_no_key() {
        let ((one, key), (two, _)) = (certificate(), certificate());
        let bundle = parse(format!("# the old one\n{one}{key}{two}").as_bytes()).unwrap();
        let bundle = String::from_utf8(bundle).unwrap();
        assert_eq!(
            bundle.replace("\r\n", "\n"),
            format!("{one}{two}").replace("\r\n", "\n")
        );
        assert!(!bundle.contains("PRIVATE"));
    }

    #[test]
    fn what_is_no_bundle_is_refused_with_what_is_wrong() {
        let (good, _) = certificate();
        for (content, why) in [
            (String::new(), "no CERTIFICATE section"),
            ("nonsense".to_owned(), "no CERTIFICATE section"),
            (
                format!("{good}-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"),
                "number 2 is no certificate",
            ),
            (good[..good.len() / 2].to_owned(), ""),
        ] {
            let error = parse(content.as_bytes()).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }
}
