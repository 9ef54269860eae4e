//! Authorities that are trusted beside the source of the bundle: those that left it, and those that others asked for.

use std::time::Duration;

use data_encoding::HEXLOWER;
use rustls::pki_types::CertificateDer;
use sha2::{Digest, Sha256};
use tokio::time::Instant;

use crate::guard::certificates::held::GRACE;
use crate::tls::pair::now;

/// How long an authority stays in the bundle that is no longer in the source.
pub const LINGER: Duration = Duration::from_mins(5);
/// How long one stays that never was in the source: replicas that go by another source may serve by it for as long as an upgrade takes.
pub(super) const FOREIGN: Duration = Duration::from_hours(1);
/// How many stay at most, beside those that replicas may still serve by. Those go first that left first.
pub(super) const MOST: usize = 8;
/// How many of these stay, whatever replicas serve by: a bundle of a system's roots holds some 150.
const MOST_STORED: usize = 256;

/// An authority that is not in the source, or no longer.
#[derive(Debug)]
struct Authority {
    certificate: CertificateDer<'static>,
    /// It never was in the source, as far as this process knows.
    is_foreign: bool,
    /// From when on it may go.
    until: Instant,
}

/// All of them, oldest first.
#[derive(Debug, Default)]
pub(super) struct Leaving(Vec<Authority>);

impl Leaving {
    /// Whether an authority is among them.
    pub(super) fn contains(&self, certificate: &CertificateDer<'_>) -> bool {
        self.certificates().any(|known| known == certificate)
    }

    /// Each of them.
    pub(super) fn certificates(&self) -> impl Iterator<Item = &CertificateDer<'static>> {
        self.0.iter().map(|authority| &authority.certificate)
    }

    /// The source held `before`, and now holds `found`.
    pub(super) fn source_became(
        &mut self,
        found: &[CertificateDer<'static>],
        before: Vec<CertificateDer<'static>>,
        at: Instant,
    ) {
        self.0.retain(|authority| !found.contains(&authority.certificate));
        let left = before.into_iter().filter(|old| !found.contains(old));
        self.0.extend(left.map(|certificate| Authority {
            certificate,
            is_foreign: false,
            until: at + LINGER,
        }));
    }

    /// Keeps an authority that an entry holds. Gives whether it was asked for, and is news.
    pub(super) fn keep(&mut self, certificate: CertificateDer<'static>, asked: bool, at: Instant) -> bool {
        let until = at + FOREIGN;
        match self.0.iter_mut().find(|known| known.certificate == certificate) {
            // What left the source goes when its time has come, unless somebody asks for it.
            Some(known) if known.is_foreign || asked => {
                known.until = known.until.max(until);
                false
            }
            Some(_) => false,
            None => {
                if asked {
                    tracing::warn!(
                        authority = described(&certificate),
                        "somebody else made an entry trust an authority: another guard that goes by another source, in an upgrade. \
                         All entries trust it for an hour, and as long as a guard asks for it"
                    );
                }
                self.0.push(Authority {
                    certificate,
                    is_foreign: true,
                    until,
                });
                asked
            }
        }
    }

    /// Lets go of those that have stayed long enough.
    pub(super) fn let_go(&mut self, at: Instant) {
        self.0.retain(|authority| at < authority.until);
    }

    /// Lets go of those that came first, where there are too many. One that an entry trusts and that has not ended long ago counts apart:
    /// a bundle of a hundred authorities may have been in force, and who knows which of them vouches for what a replica serves with.
    pub(super) fn trim(&mut self, is_trusted: impl Fn(&CertificateDer<'static>) -> bool) {
        let now = now();
        let is_needed = |authority: &Authority| {
            let ca = &authority.certificate;
            is_trusted(ca) && not_after(ca).is_some_and(|end| now <= end + GRACE)
        };
        let spare = self.0.iter().filter(|authority| !is_needed(authority)).count();
        let surplus = spare.saturating_sub(MOST);
        let cut = self.0.extract_if(.., |authority| !is_needed(authority)).take(surplus);
        drop(cut.collect::<Vec<_>>());
        let surplus = self.0.len().saturating_sub(MOST_STORED);
        if surplus > 0 {
            tracing::warn!(
                surplus,
                "more authorities than {MOST_STORED} are trusted: those go that came first"
            );
            self.0.drain(..surplus);
        }
    }
}

/// When a certificate ends, in seconds since 1970.
pub(super) fn not_after(certificate: &CertificateDer<'_>) -> Option<i64> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate).ok()?;
    Some(parsed.validity().not_after.timestamp())
}

/// The subject of a certificate, and its SHA-256.
fn described(certificate: &CertificateDer<'_>) -> String {
    let subject = x509_parser::parse_x509_certificate(certificate).map(|(_, parsed)| parsed.subject().to_string());
    let print = HEXLOWER.encode(&Sha256::digest(certificate));
    format!("{} (sha256 {print})", subject.unwrap_or_default())
}
