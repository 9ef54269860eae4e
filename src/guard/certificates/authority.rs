//! Makes authorities and certificates: ECDSA P-256, with lives in seconds.

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PublicKeyData,
};
use rustls::pki_types::CertificateDer;
use sha2::{Digest, Sha256};
use time::OffsetDateTime;

/// By how much a certificate is valid before it is made, where its life is long: clocks differ.
const BACKDATED: i64 = 300;
/// A short life is backdated by this part of it.
const SHORT: i64 = 10;

/// Why nothing was made.
#[derive(Debug, thiserror::Error)]
pub enum MakeError {
    /// A key or certificate cannot be made of what is given.
    #[error("the certificate cannot be made: {0}")]
    Make(#[from] rcgen::Error),
    /// The key of the authority is none. What is wrong with it is not said: that might quote it.
    #[error("the certificate cannot be made: the authority's key cannot be read")]
    Key,
    /// A life ends beyond what a certificate can say.
    #[error("the certificate cannot be made: its life ends too late: {0}")]
    Time(#[from] time::error::ComponentRange),
}

/// A certificate and its key, PEM.
pub struct Made {
    /// The certificate.
    pub certificate: String,
    /// Its key, PKCS#8.
    pub key: String,
}

/// The times of a certificate, in seconds since the Unix epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life {
    /// When it begins to be valid.
    pub not_before: i64,
    /// The last second in which it is valid.
    pub not_after: i64,
}

impl Life {
    /// The life of what is made now for so many seconds.
    #[must_use]
    pub fn from(now: i64, seconds: i64) -> Self {
        Self {
            not_before: now - BACKDATED.min(seconds / SHORT),
            not_after: now + seconds,
        }
    }

    /// When it was made, if it was made here.
    #[must_use]
    pub fn made(self) -> i64 {
        let whole = self.not_after - self.not_before;
        self.not_before + BACKDATED.min(whole / (SHORT + 1))
    }

    /// When it is to be renewed: at two thirds.
    #[must_use]
    pub fn due(self) -> i64 {
        let made = self.made();
        made + (self.not_after - made) * 2 / 3
    }

    /// Whether it is valid at this time.
    #[must_use]
    pub fn holds(self, now: i64) -> bool {
        (self.not_before..=self.not_after).contains(&now)
    }
}

/// Makes an authority.
///
/// # Errors
/// If the system gives no key.
pub fn authority(life: Life) -> Result<Made, MakeError> {
    let key = KeyPair::generate()?;
    let print = Sha256::digest(key.subject_public_key_info());
    let mut params = params(life)?;
    // Another name for each: who looks for an issuer by name finds one.
    let name = format!(
        "deployer-guard CA {:02x}{:02x}{:02x}{:02x}",
        print[0], print[1], print[2], print[3]
    );
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    Ok(Made {
        certificate: params.self_signed(&key)?.pem(),
        key: key.serialize_pem(),
    })
}

/// Makes a serving certificate for these DNS names or IP addresses.
///
/// # Errors
/// If the authority's key cannot sign, or a name is not one that a certificate can hold.
pub fn serving(
    authority: &CertificateDer<'_>,
    authority_key: &str,
    names: &[String],
    life: Life,
) -> Result<Made, MakeError> {
    let issuer = Issuer::from_ca_cert_der(authority, KeyPair::from_pem(authority_key).map_err(|_| MakeError::Key)?)?;
    let key = KeyPair::generate()?;
    let mut params = params(life)?;
    params.subject_alt_names = CertificateParams::new(names)?.subject_alt_names;
    params.distinguished_name.push(DnType::CommonName, "deployer-guard");
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;
    Ok(Made {
        certificate: params.signed_by(&key, &issuer)?.pem(),
        key: key.serialize_pem(),
    })
}

fn params(life: Life) -> Result<CertificateParams, MakeError> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.not_before = OffsetDateTime::from_unix_timestamp(life.not_before)?;
    params.not_after = OffsetDateTime::from_unix_timestamp(life.not_after)?;
    Ok(params)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_life_is_renewed_at_two_thirds_whether_it_is_long_or_short() {
        let year = 8760 * 3600;
        for (seconds, backdated) in [(year, 300), (15, 1), (60, 6)] {
            let life = Life::from(1_000_000, seconds);
            assert_eq!(life.not_before, 1_000_000 - backdated);
            assert_eq!(life.not_after, 1_000_000 + seconds);
            assert_eq!(life.made(), 1_000_000, "{seconds}");
            assert_eq!(life.due(), 1_000_000 + seconds * 2 / 3);
        }
    }
}
