//! Who may call: only those with a certificate of a given authority, under a given name.
//!
//! The check is made in the handshake. A caller that fails it is told so by a TLS alert, and is not heard.

use std::convert::Infallible;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme};
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::X509Certificate;

use super::trust::{certificates, lives};
use crate::telemetry::metrics::ClientRefusals;

/// Who may call, on the command line.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct ClientArgs {
    /// Serve only callers with a client certificate of one of these authorities (PEM), so that nobody but the API servers is served;
    /// they have to be given one. Read again when its content changes
    #[arg(long, env = "DEPLOYER_GUARD_CLIENT_CA_FILE", value_name = "FILE")]
    pub client_ca_file: Option<PathBuf>,
    /// A name that the client certificate must have, as its common name or a DNS name; may be repeated. Without one, any
    /// certificate of the authority will do
    #[arg(
        long,
        env = "DEPLOYER_GUARD_CLIENT_NAME",
        value_name = "NAME",
        value_delimiter = ',',
        requires = "client_ca_file"
    )]
    pub client_name: Vec<String>,
}

/// Why callers cannot be checked.
#[derive(Debug, thiserror::Error)]
pub enum ClientsError {
    /// The file cannot be read.
    #[error("--client-ca-file {} cannot be read: {source}; it must name a PEM file that this process may read", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// What it holds is no authority.
    #[error("--client-ca-file {} must hold one or more PEM certificates of authorities: {why}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
}

/// The check of callers.
pub struct Clients {
    path: PathBuf,
    names: Vec<String>,
    interval: Duration,
    provider: Arc<CryptoProvider>,
    current: ArcSwap<Authorities>,
    refusals: Arc<ClientRefusals>,
}

/// The last good content of the file.
struct Authorities {
    content: Vec<CertificateDer<'static>>,
    /// For all of them.
    verifier: Arc<dyn ClientCertVerifier>,
}

impl Authorities {
    /// The check by those that are valid at this time: of itself, it does not look at the times of an authority.
    fn at(&self, now: UnixTime, provider: &Arc<CryptoProvider>) -> Result<Arc<dyn ClientCertVerifier>, Error> {
        let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        if self.content.iter().all(|one| lives(one, now)) {
            return Ok(Arc::clone(&self.verifier));
        }
        let living: Vec<_> = self.content.iter().filter(|one| lives(one, now)).cloned().collect();
        verifier(&living, provider).map_err(|why| {
            tracing::debug!(why, "no authority of callers is valid");
            Error::InvalidCertificate(CertificateError::UnknownIssuer)
        })
    }
}

impl ClientArgs {
    /// The check that the flags ask for, if they do.
    ///
    /// # Errors
    /// If the file holds no authority. The text names the flag to mend.
    pub fn load(&self, interval: Duration, refusals: &Arc<ClientRefusals>) -> Result<Option<Clients>, ClientsError> {
        let Some(path) = &self.client_ca_file else {
            return Ok(None);
        };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        Ok(Some(Clients {
            current: ArcSwap::from_pointee(read(path, &provider)?),
            path: path.clone(),
            names: self.client_name.clone(),
            interval: interval.max(Duration::from_millis(10)),
            provider,
            refusals: Arc::clone(refusals),
        }))
    }
}

impl Clients {
    /// Reads the file again and again. A content that is no authority is reported once, and the last good one stays.
    pub(super) async fn keep_fresh(self: Arc<Self>) -> Infallible {
        let mut reported = String::new();
        loop {
            tokio::time::sleep(self.interval).await;
            match read(&self.path, &self.provider) {
                Ok(new) => {
                    reported.clear();
                    if new.content != self.current.load().content {
                        tracing::info!(file = %self.path.display(), "the authorities of callers changed");
                        self.current.store(Arc::new(new));
                    }
                }
                Err(error) if error.to_string() != reported => {
                    tracing::warn!(%error, "the last good authorities of callers stay");
                    reported = error.to_string();
                }
                Err(_reported_before) => {}
            }
        }
    }

    fn is_named(&self, certificate: &CertificateDer<'_>) -> bool {
        self.names.is_empty()
            || x509_parser::parse_x509_certificate(certificate)
                .is_ok_and(|(_, parsed)| names(&parsed).any(|name| self.names.iter().any(|one| one == name)))
    }

    fn verifier(&self) -> Arc<dyn ClientCertVerifier> {
        Arc::clone(&self.current.load().verifier)
    }
}

/// The common names and DNS names of a certificate.
fn names<'a>(certificate: &'a X509Certificate<'a>) -> impl Iterator<Item = &'a str> {
    let common = certificate.subject().iter_common_name();
    let common = common.filter_map(|name| name.as_str().ok());
    let alternative = certificate.subject_alternative_name().ok().flatten();
    let alternative = alternative.into_iter().flat_map(|names| &names.value.general_names);
    common.chain(alternative.filter_map(|name| match name {
        GeneralName::DNSName(name) => Some(*name),
        _ => None,
    }))
}

fn read(path: &Path, provider: &Arc<CryptoProvider>) -> Result<Authorities, ClientsError> {
    let pem = std::fs::read(path).map_err(|source| ClientsError::Read {
        path: path.to_owned(),
        source,
    })?;
    parse(path, &pem, provider)
}

fn parse(path: &Path, pem: &[u8], provider: &Arc<CryptoProvider>) -> Result<Authorities, ClientsError> {
    let content = |why: String| ClientsError::Content {
        path: path.to_owned(),
        why,
    };
    let found = certificates(pem).map_err(content)?;
    for (i, certificate) in found.iter().enumerate() {
        if !is_authority(certificate) {
            return Err(content(format!(
                "its CERTIFICATE section {} is no authority, by its basicConstraints",
                i + 1
            )));
        }
    }
    Ok(Authorities {
        verifier: verifier(&found, provider).map_err(content)?,
        content: found,
    })
}

/// The check by these authorities, whatever their times.
fn verifier(
    authorities: &[CertificateDer<'static>],
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, String> {
    let mut roots = RootCertStore::empty();
    for certificate in authorities {
        roots.add(certificate.clone()).map_err(|error| error.to_string())?;
    }
    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider))
        .build()
        .map_err(|error| error.to_string())
}

fn is_authority(certificate: &CertificateDer<'_>) -> bool {
    x509_parser::parse_x509_certificate(certificate).is_ok_and(|(_, parsed)| parsed.is_ca())
}

impl ClientCertVerifier for Clients {
    /// Asked when the caller's certificates have come. If there are some, [`Clients::verify_client_cert`] follows at once; if
    /// there are none, the handshake ends here: that is how those without one are counted.
    fn client_auth_mandatory(&self) -> bool {
        self.refusals.asked();
        true
    }

    /// No hints: which authorities there are may change between the two messages.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.refusals.shown();
        let current = self.current.load();
        let verified = current
            .at(now, &self.provider)
            .and_then(|verifier| verifier.verify_client_cert(end_entity, intermediates, now))
            .inspect_err(|error| {
                self.refusals.not_trusted();
                tracing::debug!(%error, "a caller's certificate is not trusted");
            })?;
        if !self.is_named(end_entity) {
            self.refusals.other_name();
            return Err(Error::InvalidCertificate(
                CertificateError::ApplicationVerificationFailure,
            ));
        }
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verifier().verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verifier().verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.verifier().supported_verify_schemes()
    }
}

impl fmt::Debug for Clients {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Clients")
            .field("names", &self.names)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{
        BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    };
    use time::OffsetDateTime;

    use super::*;

    const NOW: i64 = 1_800_000_000;

    fn at(seconds: i64) -> OffsetDateTime {
        OffsetDateTime::from_unix_timestamp(seconds).unwrap()
    }

    fn params(name: &str, days: i64) -> CertificateParams {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        (params.not_before, params.not_after) = (at(NOW - 1000), at(NOW + days * 86_400));
        params
    }

    /// An authority with so many days to live, and a certificate of it for this use.
    fn issued(days: i64, usage: ExtendedKeyUsagePurpose) -> (String, String) {
        let (key, leaf_key) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
        let mut ca = params("callers", days);
        ca.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        ca.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let certificate = ca.self_signed(&key).unwrap().pem();
        let mut leaf = params("kube-apiserver", 100);
        leaf.extended_key_usages = vec![usage];
        let leaf = leaf.signed_by(&leaf_key, &Issuer::new(ca, key)).unwrap();
        (certificate, leaf.pem())
    }

    fn load(content: &str) -> Result<Clients, ClientsError> {
        let (path, provider) = (
            PathBuf::from("ca.crt"),
            Arc::new(rustls::crypto::ring::default_provider()),
        );
        Ok(Clients {
            current: ArcSwap::from_pointee(parse(&path, content.as_bytes(), &provider)?),
            path,
            names: Vec::new(),
            interval: Duration::from_secs(1),
            provider,
            refusals: Arc::default(),
        })
    }

    fn verify(clients: &Clients, leaf: &str, now: i64) -> Result<(), String> {
        let leaf = &certificates(leaf.as_bytes()).unwrap()[0];
        let now = UnixTime::since_unix_epoch(Duration::from_secs(now.try_into().unwrap()));
        let verified = clients.verify_client_cert(leaf, &[], now);
        verified.map(drop).map_err(|error| error.to_string())
    }

    #[test]
    fn a_caller_needs_a_certificate_for_clients_of_an_authority_that_has_not_expired() {
        let (short, one) = issued(1, ExtendedKeyUsagePurpose::ClientAuth);
        let (long, other) = issued(50, ExtendedKeyUsagePurpose::ClientAuth);
        let (servers, server) = issued(50, ExtendedKeyUsagePurpose::ServerAuth);
        let clients = load(&format!("{short}{long}{servers}")).unwrap();
        let later = NOW + 2 * 86_400;
        for (what, leaf, now, served) in [
            ("all live", &one, NOW, true),
            ("all live, another", &other, NOW, true),
            ("its authority expired", &one, later, false),
            ("another authority expired", &other, later, true),
            ("all expired", &other, NOW + 60 * 86_400, false),
            ("it is for servers", &server, NOW, false),
        ] {
            assert_eq!(verify(&clients, leaf, now).is_ok(), served, "{what}");
        }
    }

    #[test]
    fn a_certificate_that_is_no_authority_is_none_in_the_file_either() {
        let (ca, leaf) = issued(50, ExtendedKeyUsagePurpose::ClientAuth);
        let error = load(&format!("{ca}{leaf}")).unwrap_err().to_string();
        assert!(
            error.contains("section 2 is no authority") && error.contains("--client-ca-file"),
            "{error}"
        );
        let itself = load(&leaf).map(|clients| verify(&clients, &leaf, NOW));
        assert!(itself.is_err(), "a leaf does not vouch for itself");
    }
}
