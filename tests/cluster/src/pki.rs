//! A certificate authority for one test.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};

/// A certificate authority, made in process.
///
/// Each certificate is valid from 1975 to 4096 (what rcgen takes unless told): no test depends on the clock.
pub struct Pki {
    issuer: CertifiedIssuer<'static, KeyPair>,
    usage: ExtendedKeyUsagePurpose,
}

/// A certificate and its private key.
#[derive(Debug, Clone)]
pub struct Issued {
    /// The certificate, PEM.
    pub certificate: String,
    /// The private key, PKCS#8 PEM (ECDSA P-256).
    pub key: String,
}

impl Pki {
    /// Makes an authority with the given common name.
    ///
    /// # Errors
    /// If rcgen cannot make a key.
    pub fn new(common_name: &str) -> anyhow::Result<Self> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, common_name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
        Ok(Self {
            issuer,
            usage: ExtendedKeyUsagePurpose::ServerAuth,
        })
    }

    /// Makes one whose certificates are those of clients.
    ///
    /// # Errors
    /// As [`Pki::new`].
    pub fn client(common_name: &str) -> anyhow::Result<Self> {
        Ok(Self {
            usage: ExtendedKeyUsagePurpose::ClientAuth,
            ..Self::new(common_name)?
        })
    }

    /// The authority's certificate, PEM: what a `caBundle` holds (base64 of it).
    #[must_use]
    pub fn ca(&self) -> String {
        self.issuer.pem()
    }

    /// Makes a serving (or client) certificate for the given DNS names and IP addresses, the first of which is its common name.
    ///
    /// # Errors
    /// If a name is not one that a certificate can hold.
    pub fn serving(&self, names: &[&str]) -> anyhow::Result<Issued> {
        self.serving_until(names, 4096)
    }

    /// The same, valid until the first day of a year.
    ///
    /// # Errors
    /// If a name is not one that a certificate can hold.
    pub fn serving_until(&self, names: &[&str], year: i32) -> anyhow::Result<Issued> {
        let key = KeyPair::generate()?;
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let mut params = CertificateParams::new(names.clone()).with_context(|| format!("names {names:?}"))?;
        if let Some(first) = names.first() {
            params.distinguished_name.push(DnType::CommonName, first.clone());
        }
        params.not_after = date_time_ymd(year, 1, 1);
        params.extended_key_usages = vec![self.usage.clone()];
        params.use_authority_key_identifier_extension = true;
        let certificate = params.signed_by(&key, &self.issuer)?;
        Ok(Issued {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
        })
    }

    /// Makes a client's certificate: the user and the group (if any) that an API server takes it for.
    ///
    /// # Errors
    /// If a name is not one that a certificate can hold.
    pub fn client_certificate(&self, user: &str, group: &str) -> anyhow::Result<Issued> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, user);
        if !group.is_empty() {
            params.distinguished_name.push(DnType::OrganizationName, group);
        }
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        params.use_authority_key_identifier_extension = true;
        let certificate = params.signed_by(&key, &self.issuer)?;
        Ok(Issued {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
        })
    }

    /// Writes the authority's certificate to `DIRECTORY/ca.crt`; returns the path.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write_ca(&self, directory: &Path) -> anyhow::Result<PathBuf> {
        let path = directory.join("ca.crt");
        write(&path, &self.ca())?;
        Ok(path)
    }
}

impl std::fmt::Debug for Pki {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pki").finish_non_exhaustive()
    }
}

impl Issued {
    /// Writes `DIRECTORY/STEM.crt` and `DIRECTORY/STEM.key`; returns both paths, in that order.
    ///
    /// Each file is replaced by a rename, so that a reader never sees half of one.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn write(&self, directory: &Path, stem: &str) -> anyhow::Result<(PathBuf, PathBuf)> {
        let certificate = directory.join(format!("{stem}.crt"));
        let key = directory.join(format!("{stem}.key"));
        write(&certificate, &self.certificate)?;
        write(&key, &self.key)?;
        Ok((certificate, key))
    }
}

/// Writes a file by way of a temporary name beside it.
pub(crate) fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    let temp = path.with_extension("new");
    fs::write(&temp, text)
        .and_then(|()| fs::rename(&temp, path))
        .with_context(|| format!("writing {}", path.display()))
}

/// A key pair to sign service-account tokens with: private and public key, PEM.
pub(crate) fn signing_key() -> anyhow::Result<(String, String)> {
    let key = KeyPair::generate()?;
    Ok((key.serialize_pem(), key.public_key_pem()))
}
