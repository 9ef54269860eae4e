//! Since when every entry of ours has trusted which authority.

use std::collections::HashMap;
use std::time::Duration;

use rustls::pki_types::CertificateDer;
use tokio::time::Instant;

use super::held::Ca;
use super::plan::Trust;

/// What was seen of the stored entries.
#[derive(Debug)]
pub struct TrustWatch {
    delay: Duration,
    /// There is no entry: nobody calls.
    is_unused: bool,
    since: HashMap<CertificateDer<'static>, Instant>,
    /// When the last look was begun.
    begun: Option<Instant>,
}

impl TrustWatch {
    /// Nothing was seen yet. API servers need `delay` to hear of an authority.
    #[must_use]
    pub fn new(delay: Duration) -> Self {
        Self {
            delay,
            is_unused: false,
            since: HashMap::new(),
            begun: None,
        }
    }

    /// Takes in a live read: the bundle of each entry, empty where it has none or nobody can read it.
    pub fn look(&mut self, bundles: &[Vec<CertificateDer<'static>>], begun: Instant, ended: Instant) {
        self.is_unused = bundles.is_empty();
        self.begun = Some(begun);
        let by_all = |certificate: &CertificateDer<'_>| bundles.iter().all(|bundle| bundle.contains(certificate));
        self.since.retain(|certificate, _| by_all(certificate));
        for certificate in bundles.first().into_iter().flatten() {
            if by_all(certificate) && !self.since.contains_key(certificate) {
                self.since.insert(certificate.clone(), ended);
            }
        }
    }

    /// Who trusts an authority, as of the last look.
    #[must_use]
    pub fn of(&self, ca: &Ca) -> Trust {
        let Some(begun) = self.begun else { return Trust::Missing };
        if self.is_unused {
            return Trust::Settled;
        }
        match self.since.get(&ca.certificate) {
            None => Trust::Missing,
            Some(since) if begun.saturating_duration_since(*since) >= self.delay => Trust::Settled,
            Some(_) => Trust::Fresh,
        }
    }
}
