//! A certificate and its key that go together.

use std::fmt;
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::CertificateDer;
use rustls::sign::CertifiedKey;
use sha2::{Digest, Sha256};

use super::pem;

/// Why a content is no pair to serve with.
#[derive(Debug, thiserror::Error)]
pub enum PairError {
    /// There is no certificate, or what is there is not PEM.
    #[error("no certificate: {0}")]
    Certificate(String),
    /// There is no private key, or what is there is not PEM.
    #[error("no private key: {0}")]
    Key(&'static str),
    /// The key is of no use, or is not the key of the certificate.
    #[error("certificate and key do not go together: {0}")]
    Mismatch(#[source] rustls::Error),
    /// The certificate expired.
    #[error("the certificate expired at {}", time(*.0))]
    Expired(i64),
    /// The certificate is not valid yet, by this machine's clock.
    #[error("the certificate is not valid before {}; is this machine's clock right?", time(*.0))]
    NotYetValid(i64),
}

/// What tells one content from another: a digest, so that the key is not kept twice.
pub type Fingerprint = [u8; 32];

/// One good pair.
#[derive(Clone)]
pub struct Pair {
    certified: Arc<CertifiedKey>,
    fingerprint: Fingerprint,
    not_before: i64,
    not_after: i64,
}

impl Pair {
    /// Reads a pair, both parts PEM, the leaf certificate first. Whether it is valid now is not looked at.
    ///
    /// # Errors
    /// If a part is missing or broken, or the key is not that of the first certificate.
    pub fn parse(cert_pem: &[u8], key_pem: &[u8], provider: &CryptoProvider) -> Result<Self, PairError> {
        let certificate = |why: &str| PairError::Certificate(why.to_owned());
        let chain = pem::certificates(cert_pem).map_err(certificate)?;
        let (_, parsed) = chain
            .first()
            .and_then(|leaf| x509_parser::parse_x509_certificate(leaf).ok())
            .ok_or_else(|| certificate("the first CERTIFICATE section holds none"))?;
        let validity = parsed.validity();
        let (not_before, not_after) = (validity.not_before.timestamp(), validity.not_after.timestamp());
        let private = pem::private_key(key_pem).map_err(PairError::Key)?;
        let certified = CertifiedKey::from_der(chain, private, provider).map_err(PairError::Mismatch)?;
        Ok(Self {
            certified: Arc::new(certified),
            fingerprint: fingerprint(cert_pem, key_pem),
            not_before,
            not_after,
        })
    }

    /// Whether it is valid at this time, in seconds since the Unix epoch.
    ///
    /// # Errors
    /// If it is not yet, or no longer.
    pub fn valid_at(&self, now: i64) -> Result<(), PairError> {
        if now < self.not_before {
            return Err(PairError::NotYetValid(self.not_before));
        }
        if now > self.not_after {
            return Err(PairError::Expired(self.not_after));
        }
        Ok(())
    }

    /// The certificates, the leaf first.
    #[must_use]
    pub fn chain(&self) -> &[CertificateDer<'static>] {
        &self.certified.cert
    }

    /// What handshakes are answered with.
    #[must_use]
    pub fn certified(&self) -> &Arc<CertifiedKey> {
        &self.certified
    }

    /// What tells its content from another.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// When the leaf begins to be valid, in seconds since the Unix epoch.
    #[must_use]
    pub fn not_before(&self) -> i64 {
        self.not_before
    }

    /// When the leaf expires, in seconds since the Unix epoch.
    #[must_use]
    pub fn not_after(&self) -> i64 {
        self.not_after
    }
}

impl fmt::Debug for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pair")
            .field("not_after", &self.not_after)
            .finish_non_exhaustive()
    }
}

/// The fingerprint of a content, whether it is a pair or not.
#[must_use]
pub fn fingerprint(cert_pem: &[u8], key_pem: &[u8]) -> Fingerprint {
    let mut hash = Sha256::new();
    hash.update(Sha256::digest(cert_pem));
    hash.update(Sha256::digest(key_pem));
    hash.finalize().into()
}

/// A time for people.
pub(crate) fn time(seconds: i64) -> String {
    jiff::Timestamp::from_second(seconds).map_or_else(|_| seconds.to_string(), |time| time.to_string())
}

/// The time of this machine, in seconds since the Unix epoch.
#[must_use]
pub fn now() -> i64 {
    jiff::Timestamp::now().as_second()
}
