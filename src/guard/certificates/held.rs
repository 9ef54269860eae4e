//! What the Secret holds, and how a step changes it.

use std::collections::BTreeMap;
use std::fmt;

use rcgen::{KeyPair, PublicKeyData};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use super::authority::{Life, MakeError, authority, serving};
use super::plan::{Authority, Facts, Leaf, Step, Terms, Trust};
use crate::guard::configuration::ca_bundle::pem;
use crate::tls::pair::Pair;
use crate::tls::trust::{certificates, may_sign, verify};

/// The serving certificate, the leaf first.
pub const CERTIFICATE: &str = "tls.crt";
/// Its key.
pub const KEY: &str = "tls.key";
/// All authorities that live, and some that did.
pub const BUNDLE: &str = "ca.crt";
/// The key of the authority that issues.
pub const CA_KEY: &str = "ca.key";
/// The key of the authority that joined last, and does not issue yet.
pub const NEXT_CA_KEY: &str = "ca-next.key";

/// The keys that are ours in the Secret.
pub const OURS: [&str; 5] = [CERTIFICATE, KEY, BUNDLE, CA_KEY, NEXT_CA_KEY];

/// For how long after its end an authority stays in the bundle, in seconds: a clock ahead of its time must not cost it.
pub(in crate::guard) const GRACE: i64 = 30 * 24 * 3600;
/// The newest authorities, which stay however long ago they ended: whoever's clock says so may be wrong.
const NEWEST: usize = 3;
/// How many authorities stay at most, beside those that are in use: each entry of the configuration repeats them.
const MOST: usize = 8;

/// The data of the Secret.
pub type Data = BTreeMap<String, Vec<u8>>;

/// An authority in the bundle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ca {
    /// Its certificate.
    pub certificate: CertificateDer<'static>,
    /// Its times.
    pub life: Life,
}

/// What the data say.
pub struct Held {
    data: Data,
    bundle: Vec<Ca>,
    current: Option<Ca>,
    next: Option<Ca>,
    leaf: Leaf,
    useless: Option<String>,
    clutter: Option<String>,
}

impl Held {
    /// Reads the data. Whatever is in them, it is no error: what is of no use is not there.
    #[must_use]
    pub fn read(data: &Data, names: &[String], now: i64) -> Self {
        let (bundle, mut clutter) = authorities(data.get(BUNDLE).map(Vec::as_slice).unwrap_or_default());
        let of = |key: &str| {
            let public = KeyPair::from_pem(text(data.get(key)?)).ok()?.subject_public_key_info();
            bundle
                .iter()
                .find(|ca| public_key(&ca.certificate) == Some(&public))
                .cloned()
        };
        let (current, next) = (of(CA_KEY), of(NEXT_CA_KEY));
        if next.is_none() && data.contains_key(NEXT_CA_KEY) {
            clutter = Some(format!("{NEXT_CA_KEY}, which is the key of no authority in {BUNDLE}"));
        }
        let leaf = leaf(data, current.as_ref(), names, now);
        let is_served = matches!(leaf, Leaf::Good(life) if life.holds(now));
        let useless = match &current {
            Some(ca) if !is_served && ca.life.holds(now) => useless(ca, data, names, now),
            _ => None,
        };
        let used = |ca: &Ca| [&current, &next].contains(&&Some(ca.clone())) || issued(ca, data);
        let before = bundle.len();
        let bundle = trimmed(&bundle, used, now);
        if bundle.len() < before {
            clutter = Some("authorities that ended long ago, or are too many".into());
        }
        Self {
            data: data.clone(),
            bundle,
            current,
            next,
            leaf,
            useless,
            clutter,
        }
    }

    /// What counts of it for a plan. `trust`: who trusts an authority.
    #[must_use]
    pub fn facts(&self, trust: impl Fn(&Ca) -> Trust, is_remembered: bool) -> Facts {
        let known = |ca: &Option<Ca>| {
            ca.as_ref().map(|ca| Authority {
                life: ca.life,
                trust: trust(ca),
            })
        };
        Facts {
            is_empty: OURS.iter().all(|key| self.data.get(*key).is_none_or(Vec::is_empty)),
            is_remembered,
            current: known(&self.current).filter(|_| self.useless.is_none()),
            next: known(&self.next),
            leaf: self.leaf.clone(),
            useless: self.useless.clone(),
            clutter: self.clutter.clone(),
        }
    }

    /// Whether it is worth to be put back where it is lost.
    #[must_use]
    pub fn is_good(&self, now: i64) -> bool {
        self.current.as_ref().is_some_and(|ca| ca.life.holds(now))
            && matches!(self.leaf, Leaf::Good(life) if life.holds(now))
    }

    /// Why its certificate is of no use, if it is not.
    #[must_use]
    pub fn fault(&self) -> Option<&str> {
        match &self.leaf {
            Leaf::Good(_) => None,
            Leaf::Bad(why) => Some(why),
        }
    }

    /// The authority that waits to be trusted.
    #[must_use]
    pub fn waiting(&self) -> Option<&Ca> {
        self.next.as_ref().or(self.current.as_ref())
    }

    /// The authorities that stay.
    #[must_use]
    pub fn bundle(&self) -> &[Ca] {
        &self.bundle
    }

    /// The data after a step. `stored`: the bundles of our entries, whose authorities are kept where none of the Secret's issues.
    ///
    /// # Errors
    /// If a certificate cannot be made.
    pub fn after(
        &self,
        step: &Step,
        names: &[String],
        stored: &[Vec<CertificateDer<'static>>],
        terms: Terms,
        now: i64,
    ) -> Result<Data, MakeError> {
        let mut data = self.data.clone();
        let mut bundle = self.bundle.clone();
        match step {
            Step::Join(_) => {
                if self.useless.is_some() || self.current.as_ref().is_none_or(|ca| !ca.life.holds(now)) {
                    let others = stored
                        .iter()
                        .flatten()
                        .filter_map(|certificate| ca(certificate.clone()));
                    bundle.extend(others.filter(|ca| now <= ca.life.not_after + GRACE));
                    // The key of one that expired stays until another issues: it may be the clock that is wrong.
                }
                let made = authority(Life::from(now, terms.authority))?;
                bundle.extend(authorities(made.certificate.as_bytes()).0);
                data.insert(NEXT_CA_KEY.into(), made.key.into_bytes());
            }
            Step::Promote(_) => {
                if let Some(key) = data.remove(NEXT_CA_KEY) {
                    data.insert(CA_KEY.into(), key);
                }
                issue(&mut data, self.next.as_ref(), names, terms, now)?;
            }
            Step::Issue(_) => issue(&mut data, self.current.as_ref(), names, terms, now)?,
            Step::Tidy(_) => {
                if self.next.is_none() {
                    data.remove(NEXT_CA_KEY);
                }
            }
            Step::Restore | Step::Wait | Step::Doubt | Step::Rest => return Ok(data),
        }
        let mut all: Vec<&CertificateDer<'_>> = Vec::new();
        for ca in &bundle {
            if !all.contains(&&ca.certificate) {
                all.push(&ca.certificate);
            }
        }
        data.insert(BUNDLE.into(), pem(all.into_iter()));
        Ok(data)
    }
}

impl fmt::Debug for Held {
    /// Without the data: there are keys among them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held")
            .field("keys", &self.data.keys())
            .field("bundle", &self.bundle.len())
            .field("current", &self.current.as_ref().map(|ca| ca.life))
            .field("next", &self.next.as_ref().map(|ca| ca.life))
            .field("leaf", &self.leaf)
            .field("useless", &self.useless)
            .field("clutter", &self.clutter)
            .finish()
    }
}

fn issue(data: &mut Data, issuer: Option<&Ca>, names: &[String], terms: Terms, now: i64) -> Result<(), MakeError> {
    let Some(issuer) = issuer else { return Ok(()) };
    let key = data.get(CA_KEY).map(|key| text(key).to_owned()).unwrap_or_default();
    let made = serving(&issuer.certificate, &key, names, terms.leaf(issuer.life, now))?;
    data.insert(CERTIFICATE.into(), made.certificate.into_bytes());
    data.insert(KEY.into(), made.key.into_bytes());
    Ok(())
}

/// Less those that ended long ago, and those that are too many; the newest stay, and those that are in use.
fn trimmed(bundle: &[Ca], is_used: impl Fn(&Ca) -> bool, now: i64) -> Vec<Ca> {
    let newer = |ca: &Ca| {
        let newer = bundle.iter().filter(|other| other.life.not_before > ca.life.not_before);
        newer.count()
    };
    let stays = |ca: &&Ca| match newer(ca) {
        0..NEWEST => true,
        NEWEST..MOST => is_used(ca) || now <= ca.life.not_after + GRACE,
        _ => is_used(ca),
    };
    bundle.iter().filter(stays).cloned().collect()
}

/// Whether an authority may have issued the serving certificate.
fn issued(ca: &Ca, data: &Data) -> bool {
    let Some(leaf) = data.get(CERTIFICATE).and_then(|pem| certificates(pem).ok()) else {
        return false;
    };
    let names = leaf.first().and_then(|leaf| {
        let (_, leaf) = x509_parser::parse_x509_certificate(leaf).ok()?;
        let (_, ca) = x509_parser::parse_x509_certificate(&ca.certificate).ok()?;
        Some(leaf.issuer().as_raw() == ca.subject().as_raw())
    });
    names.unwrap_or_default()
}

/// The authorities in a bundle, and what else is in it.
fn authorities(bundle: &[u8]) -> (Vec<Ca>, Option<String>) {
    let (mut found, mut clutter) = (Vec::new(), None);
    for section in CertificateDer::pem_slice_iter(bundle) {
        match section.ok().and_then(ca) {
            Some(ca) if found.contains(&ca) => clutter = Some("an authority twice".into()),
            Some(ca) => found.push(ca),
            None => clutter = Some("something that is no authority".into()),
        }
    }
    (found, clutter)
}

fn ca(certificate: CertificateDer<'static>) -> Option<Ca> {
    if !may_sign(&certificate) {
        return None;
    }
    let life = {
        let (_, parsed) = x509_parser::parse_x509_certificate(&certificate).ok()?;
        let validity = parsed.validity();
        Life {
            not_before: validity.not_before.timestamp(),
            not_after: validity.not_after.timestamp(),
        }
    };
    Some(Ca { certificate, life })
}

fn public_key<'a>(certificate: &'a CertificateDer<'_>) -> Option<&'a [u8]> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate).ok()?;
    Some(parsed.tbs_certificate.subject_pki.raw)
}

fn leaf(data: &Data, issuer: Option<&Ca>, names: &[String], now: i64) -> Leaf {
    let part = |key: &str| data.get(key).map(Vec::as_slice).filter(|part| !part.is_empty());
    let (certificate, key) = match (part(CERTIFICATE), part(KEY)) {
        (Some(certificate), Some(key)) => (certificate, key),
        (None, None) => return Leaf::Bad("there is none".into()),
        (None, Some(_)) => return Leaf::Bad(format!("there is no {CERTIFICATE}")),
        (Some(_), None) => return Leaf::Bad(format!("there is no {KEY}")),
    };
    let pair = match Pair::parse(certificate, key, &rustls::crypto::ring::default_provider()) {
        Ok(pair) => pair,
        Err(why) => return Leaf::Bad(why.to_string()),
    };
    let life = Life {
        not_before: pair.not_before(),
        not_after: pair.not_after(),
    };
    if !life.holds(now) {
        return Leaf::Good(life);
    }
    let Some(issuer) = issuer else {
        return Leaf::Bad("the authority that issued it is not here".into());
    };
    match good_for(pair.chain(), issuer, names, now) {
        Ok(()) => Leaf::Good(life),
        Err(why) => Leaf::Bad(why),
    }
}

fn good_for(chain: &[CertificateDer<'_>], issuer: &Ca, names: &[String], now: i64) -> Result<(), String> {
    let authority = std::slice::from_ref(&issuer.certificate);
    for name in names {
        verify(chain, authority, Some(name), now).map_err(|why| format!("it is not good for {name}: {why}"))?;
    }
    Ok(())
}

/// Why what an authority would issue now is of no use. None of ours is like that: somebody put it there, and it may not vouch for our
/// names, say.
fn useless(issuer: &Ca, data: &Data, names: &[String], now: i64) -> Option<String> {
    let key = data.get(CA_KEY).map(|key| text(key).to_owned()).unwrap_or_default();
    let made = serving(&issuer.certificate, &key, names, issuer.life).map_err(|why| why.to_string());
    let chain = made.and_then(|made| certificates(made.certificate.as_bytes()));
    chain.and_then(|chain| good_for(&chain, issuer, names, now)).err()
}

/// Whether these authorities alone vouch for the pair beside them, under this name: it is whole, and replicas serve with it.
#[must_use]
pub fn vouch(authorities: &[CertificateDer<'static>], data: &Data, name: &str, now: i64) -> bool {
    let part = |key: &str| data.get(key).map(Vec::as_slice).unwrap_or_default();
    Pair::parse(part(CERTIFICATE), part(KEY), &rustls::crypto::ring::default_provider())
        .is_ok_and(|pair| verify(pair.chain(), authorities, Some(name), now).is_ok())
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap_or_default()
}

#[cfg(test)]
mod tests;
