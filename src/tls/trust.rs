//! Whether an API server that trusts a bundle would accept a certificate.

use rustls::RootCertStore;
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use x509_parser::certificate::BasicExtension;
use x509_parser::extensions::KeyUsage;
use x509_parser::x509::X509Version;

use super::pem;

/// One of our entries of the stored webhook configuration, as far as trust goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Truster {
    /// The name of the entry.
    pub entry: String,
    /// The name that the API server expects in the certificate: that of the Service, or the host of the URL.
    pub server_name: String,
    /// Its CA bundle, PEM. `None`: the API server trusts its system's roots, which are not known here.
    pub bundle: Option<Vec<u8>>,
}

/// Reads a bundle: the certificates in it, and nothing else that it holds.
///
/// # Errors
/// If it holds no certificate, or something that is none.
pub fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let certificates = pem::certificates(pem)?;
    for (i, certificate) in certificates.iter().enumerate() {
        x509_parser::parse_x509_certificate(certificate)
            .map_err(|_| format!("its CERTIFICATE section {} holds none", i + 1))?;
    }
    Ok(certificates)
}

/// Whether a client that trusts these certificates alone would accept the chain (leaf first) at this time, in seconds since
/// the Unix epoch; with a name, whether for that name.
///
/// As an API server does: an authority that expired vouches for nothing, nor does a certificate that may not sign others
/// (`may_sign`), and a leaf that is itself in the bundle is trusted.
///
/// # Errors
/// With why it would not.
pub fn verify(
    chain: &[CertificateDer<'_>],
    bundle: &[CertificateDer<'_>],
    name: Option<&str>,
    now: i64,
) -> Result<(), String> {
    let (leaf, intermediates) = chain.split_first().ok_or("there is no certificate")?;
    let parsed = ParsedCertificate::try_from(leaf).map_err(|error| error.to_string())?;
    let time = u64::try_from(now).unwrap_or_default();
    let time = UnixTime::since_unix_epoch(std::time::Duration::from_secs(time));
    let mut roots = RootCertStore::empty();
    let living = bundle
        .iter()
        .filter(|certificate| lives(certificate, now) && may_sign(certificate));
    roots.add_parsable_certificates(living.cloned().map(CertificateDer::into_owned));
    let algorithms = default_provider().signature_verification_algorithms;
    let intermediates: Vec<_> = intermediates.iter().filter(|other| may_sign(other)).cloned().collect();
    let itself = bundle.contains(leaf) && lives(leaf, now);
    if !itself {
        verify_server_cert_signed_by_trust_anchor(&parsed, &roots, &intermediates, time, algorithms.all)
            .map_err(|error| error.to_string())?;
    }
    if let Some(name) = name {
        let expected = ServerName::try_from(name).map_err(|error| format!("{name:?}: {error}"))?;
        verify_server_name(&parsed, &expected).map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// Whether a certificate is valid at this time, in seconds since the Unix epoch.
pub(super) fn lives(certificate: &CertificateDer<'_>, now: i64) -> bool {
    x509_parser::parse_x509_certificate(certificate).is_ok_and(|(_, parsed)| {
        let validity = parsed.validity();
        (validity.not_before.timestamp()..=validity.not_after.timestamp()).contains(&now)
    })
}

/// Whether Go, and so the API server, would take a signature by this certificate (`x509.Certificate.CheckSignatureFrom`): it says that it
/// is an authority (before version 3 it cannot), and where it says what its key is for, signing certificates is among that. webpki asks
/// neither of a trust anchor, and of others the first alone.
pub(crate) fn may_sign(certificate: &CertificateDer<'_>) -> bool {
    x509_parser::parse_x509_certificate(certificate).is_ok_and(|(_, parsed)| {
        let may = |usage: Option<_>| usage.is_none_or(|usage: BasicExtension<&KeyUsage>| usage.value.key_cert_sign());
        let is_ca = match parsed.basic_constraints() {
            Ok(Some(constraints)) => constraints.value.ca,
            // Those of before version 3 cannot say so.
            Ok(None) => parsed.version() != X509Version::V3,
            Err(_) => false,
        };
        is_ca && parsed.key_usage().is_ok_and(may)
    })
}

impl Truster {
    /// Whether this entry would accept the chain now.
    ///
    /// # Errors
    /// With why it would not.
    pub fn trusts(&self, chain: &[CertificateDer<'_>], now: i64) -> Result<(), String> {
        let Some(bundle) = &self.bundle else { return Ok(()) };
        verify(chain, &certificates(bundle)?, Some(&self.server_name), now)
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair, KeyUsagePurpose};

    use super::*;
    use crate::guard::certificates::authority::{Life, Made, authority, serving};

    const NOW: i64 = 1_800_000_000;

    fn parsed(made: &Made) -> Vec<CertificateDer<'static>> {
        certificates(made.certificate.as_bytes()).unwrap()
    }

    #[test]
    fn what_may_not_sign_certificates_vouches_for_none() {
        use KeyUsagePurpose::{CrlSign, DigitalSignature, KeyCertSign};
        let unconstrained = IsCa::Ca(BasicConstraints::Unconstrained);
        for (what, is_ca, usages, accepted) in [
            ("an authority", unconstrained, vec![KeyCertSign, CrlSign], true),
            ("one that does not say what its key is for", unconstrained, vec![], true),
            (
                "one whose key is for something else",
                unconstrained,
                vec![DigitalSignature],
                false,
            ),
            ("none", IsCa::ExplicitNoCa, vec![KeyCertSign], false),
            ("one that does not say whether it is", IsCa::NoCa, vec![], false),
        ] {
            let key = KeyPair::generate().unwrap();
            let mut params = CertificateParams::default();
            (params.is_ca, params.key_usages) = (is_ca, usages);
            let ca = params.self_signed(&key).unwrap();
            let life = Life::from(NOW, 1000);
            let leaf = serving(ca.der(), &key.serialize_pem(), &["webhook.example".to_owned()], life).unwrap();
            let verified = verify(&parsed(&leaf), &[ca.der().clone()], Some("webhook.example"), NOW);
            assert_eq!(
                (may_sign(ca.der()), verified.is_ok()),
                (accepted, accepted),
                "{what}: {verified:?}"
            );
        }
    }

    #[test]
    fn a_chain_is_accepted_for_its_names_under_its_authority_while_both_live() {
        let (ours, other) = [(); 2].map(|()| authority(Life::from(NOW, 1000)).unwrap()).into();
        let names = ["webhook.example".to_owned(), "127.0.0.1".to_owned()];
        let ca = parsed(&ours);
        let leaf = serving(&ca[0], &ours.key, &names, Life::from(NOW, 5000)).unwrap();
        let chain = parsed(&leaf);
        let both = [parsed(&other), ca.clone()].concat();
        for (what, bundle, name, at, accepted) in [
            ("its authority", &ca, "webhook.example", NOW, true),
            ("an address", &ca, "127.0.0.1", NOW, true),
            ("beside another", &both, "webhook.example", NOW, true),
            ("another alone", &parsed(&other), "webhook.example", NOW, false),
            ("another name", &ca, "other.example", NOW, false),
            ("itself", &chain, "webhook.example", NOW, true),
            ("an authority that expired", &ca, "webhook.example", NOW + 1001, false),
            ("itself, expired", &chain, "webhook.example", NOW + 5001, false),
            ("too early", &ca, "webhook.example", NOW - 1000, false),
        ] {
            assert_eq!(verify(&chain, bundle, Some(name), at).is_ok(), accepted, "{what}");
        }
        assert!(verify(&[], &ca, None, NOW).is_err());
    }
}
