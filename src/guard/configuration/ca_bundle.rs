//! The CA bundle by which the API server checks the webhook's certificate: from a file, from a Secret, or none.
//!
//! An authority that leaves its source stays in the bundle for some minutes: replicas that have not heard of the exchange yet
//! serve with its certificates. And it stays as long as replicas may have a reason not to exchange theirs: an entry that does not
//! trust the new authority, or a serving certificate in the Secret that the new authority did not issue.

mod leaving;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use data_encoding::BASE64;
use rustls::pki_types::CertificateDer;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep};

pub use self::leaving::LINGER;
use self::leaving::{Leaving, not_after};
use crate::telemetry::metrics::GuardMetrics;
use crate::tls::trust::certificates;

/// How often the file is looked at. Kubelet swaps a symlink, which a watch on the file does not see.
const INTERVAL: Duration = Duration::from_secs(1);
/// How long the very first bundle of a Secret waits to be used: from then on creates are sent to replicas, and they read the same Secret.
const HEAD_START: Duration = Duration::from_secs(2);

/// Where the bundle comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BundleSource {
    /// Nowhere: the API server trusts its system's roots.
    System,
    /// A file of PEM certificates.
    File(PathBuf),
    /// The `ca.crt` of a Secret, which somebody else reads: see [`CaBundle::learn`].
    Secret,
}

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

/// What is published now, and what was before.
#[derive(Debug, Default)]
struct Published {
    current: Option<Vec<u8>>,
    previous: Option<Vec<u8>>,
}

/// What the bundle is made of.
#[derive(Debug, Default)]
struct Parts {
    /// The last good content of the source.
    source: Vec<CertificateDer<'static>>,
    /// What is trusted beside it.
    leaving: Leaving,
    /// Our entries at the last look or own write. `None`: nobody looked yet.
    stored: Option<Vec<Trusting>>,
    /// Since when the source alone has vouched for the serving certificate beside it.
    vouched: Option<Instant>,
    /// From when on the first bundle may be used, as long as it may not.
    waits: Option<Instant>,
    /// The last fault of the source that was reported.
    reported: String,
}

/// An entry, and the authorities that it trusts.
#[derive(Debug)]
struct Trusting {
    entry: String,
    bundle: Vec<CertificateDer<'static>>,
}

/// The CA bundle of now.
#[derive(Debug)]
pub struct CaBundle {
    source: BundleSource,
    parts: Mutex<Parts>,
    published: ArcSwap<Published>,
    /// Told when the bundle is another.
    pub changed: Notify,
}

impl CaBundle {
    /// Reads the file, if there is to be one.
    ///
    /// # Errors
    /// If it is no bundle.
    pub fn load(source: BundleSource) -> Result<Self, CaBundleError> {
        let found = match &source {
            BundleSource::File(path) => read(path)?,
            BundleSource::System | BundleSource::Secret => Vec::new(),
        };
        let bundle = Self {
            source,
            parts: Mutex::default(),
            published: ArcSwap::default(),
            changed: Notify::new(),
        };
        let mut parts = bundle.lock();
        parts.source = found;
        bundle.publish(&parts);
        drop(parts);
        Ok(bundle)
    }

    /// The certificates of the last good content and those that left it a moment ago, PEM: nothing else that the source holds.
    #[must_use]
    pub fn current(&self) -> Option<Vec<u8>> {
        self.published.load().current.clone()
    }

    /// There is to be a bundle, and there is none yet, or replicas had no time yet to serve what it trusts. Nothing may be put in
    /// force: API servers would refuse what they send to the webhook.
    #[must_use]
    pub fn is_awaited(&self) -> bool {
        self.source != BundleSource::System && (self.published.load().current.is_none() || self.lock().waits.is_some())
    }

    /// The authorities of the source alone.
    #[must_use]
    pub fn source(&self) -> Vec<CertificateDer<'static>> {
        self.lock().source.clone()
    }

    /// What is wrong with the source, as it was last reported; empty if nothing is.
    #[must_use]
    pub fn fault(&self) -> String {
        self.lock().reported.clone()
    }

    /// Whether this is the bundle, or was the one before it, or is what it will be when more has left it: another guard may have let
    /// go of that earlier.
    #[must_use]
    pub fn knows(&self, bundle: Option<&[u8]>) -> bool {
        let published = self.published.load();
        if let Some(found) = bundle.and_then(|bundle| certificates(bundle).ok()) {
            let parts = self.lock();
            let is_known = |ca| parts.source.contains(ca) || parts.leaving.contains(ca);
            if !parts.source.is_empty()
                && parts.source.iter().all(|ca| found.contains(ca))
                && found.iter().all(is_known)
            {
                return true;
            }
        }
        let known = [
            Some(&published.current),
            published.previous.is_some().then_some(&published.previous),
        ];
        known.into_iter().flatten().any(|known| known.as_deref() == bundle)
    }

    /// Takes in a good content of the source, and whether it vouches for the serving certificate beside it, by itself. Gives whether the
    /// bundle changed.
    pub fn learn(
        &self,
        found: Vec<CertificateDer<'static>>,
        vouches: bool,
        at: Instant,
        metrics: &GuardMetrics,
    ) -> bool {
        metrics.ca_not_after(found.iter().filter_map(not_after).max().unwrap_or_default());
        let mut parts = self.lock();
        parts.reported.clear();
        if !vouches || parts.source != found {
            parts.vouched = None;
        }
        if vouches {
            parts.vouched.get_or_insert(at);
        }
        if self.published.load().current.is_none() {
            parts.waits = Some(at + HEAD_START);
        }
        let before = std::mem::replace(&mut parts.source, found);
        let Parts { source, leaving, .. } = &mut *parts;
        leaving.source_became(source, before, at);
        self.settle(&mut parts, at)
    }

    /// Takes in that the source is no bundle. It is reported once, and the last good one stays.
    pub fn failed(&self, fault: &str, at: Instant, metrics: &GuardMetrics) {
        let mut parts = self.lock();
        if parts.reported != fault {
            let stays = parts.source.first().map(|_| "the last good CA bundle stays");
            tracing::warn!(fault, stays, "there is no CA bundle to be had");
            metrics.ca_bundle_failed();
            fault.clone_into(&mut parts.reported);
        }
        self.settle(&mut parts, at);
    }

    /// Takes in the names and bundles of our entries as they were just read, or written by this guard; a bundle is empty where there is
    /// none. Gives whether another guard asked for something.
    ///
    /// At the first look, what is stored may come from before an exchange that this process did not see: it stays for a while, too. And
    /// so it does at every look while another guard leads, which may go by another source. While this one leads, what an entry holds
    /// and did not hold before was asked for by a guard that goes by another source (`joining`), or by its own
    /// administrator; the rest is this guard's own, or drift.
    pub fn found_stored<'a>(
        &self,
        entries: impl Iterator<Item = (&'a str, &'a [u8])>,
        leads: bool,
        at: Instant,
    ) -> bool {
        if self.source == BundleSource::System {
            return false;
        }
        let trusting = |(entry, bundle): (&str, &[u8])| Trusting {
            entry: entry.to_owned(),
            bundle: certificates(bundle).unwrap_or_default(),
        };
        let stored: Vec<_> = entries.map(trusting).collect();
        let mut parts = self.lock();
        if !stored.is_empty() {
            // Creates are sent to replicas already.
            parts.waits = None;
        }
        let before = parts.stored.take();
        let is_news = before.is_none() || !leads;
        let mut is_asked = false;
        for Trusting { entry, bundle } in &stored {
            let before = before.iter().flatten().find(|before| before.entry == *entry);
            for certificate in bundle
                .iter()
                .filter(|ca| !parts.source.contains(ca))
                .cloned()
                .collect::<Vec<_>>()
            {
                let asked = !is_news && before.is_some_and(|before| !before.bundle.contains(&certificate));
                if is_news || asked {
                    is_asked |= parts.leaving.keep(certificate, asked, at);
                }
            }
        }
        parts.stored = Some(stored);
        self.settle(&mut parts, at);
        is_asked
    }

    /// Looks at the file each second until `stop`, and lets go of what has stayed long enough.
    pub async fn keep_fresh(&self, metrics: &GuardMetrics, mut stop: watch::Receiver<bool>) {
        loop {
            if let BundleSource::File(path) = &self.source {
                match read(path) {
                    Ok(found) if found != self.lock().source => {
                        tracing::info!(file = %path.display(), "the CA bundle changed");
                        self.learn(found, true, Instant::now(), metrics);
                    }
                    Ok(same) => drop(self.learn(same, true, Instant::now(), metrics)),
                    Err(error) => self.failed(&error.to_string(), Instant::now(), metrics),
                }
            } else {
                let mut parts = self.lock();
                self.settle(&mut parts, Instant::now());
            }
            tokio::select! {
                () = sleep(INTERVAL) => {}
                _ = stop.wait_for(|stop| *stop) => return,
            }
        }
    }

    /// Lets go of what has stayed long enough, unless it is still needed; publishes what is left. Gives whether that is new.
    fn settle(&self, parts: &mut Parts, at: Instant) -> bool {
        if self.is_enough(parts, at) {
            parts.leaving.let_go(at);
        }
        let stored = parts.stored.as_deref().unwrap_or_default();
        parts
            .leaving
            .trim(|ca| stored.iter().any(|entry| entry.bundle.contains(ca)));
        let waited = parts.waits.take_if(|until| *until <= at).is_some();
        let changed = self.publish(parts) | waited;
        if changed {
            self.changed.notify_one();
        }
        changed
    }

    /// Whether replicas are well with what the source holds, and nothing else: every entry of ours trusts it, and the serving
    /// certificate in the Secret is one that it vouches for, and was for as long as replicas take to serve with it.
    fn is_enough(&self, parts: &Parts, at: Instant) -> bool {
        let trusts = |entry: &Trusting| parts.source.iter().all(|ca| entry.bundle.contains(ca));
        !parts.source.is_empty()
            && parts.stored.as_ref().is_some_and(|stored| stored.iter().all(trusts))
            && (self.source != BundleSource::Secret || parts.vouched.is_some_and(|since| since + LINGER <= at))
    }

    fn publish(&self, parts: &Parts) -> bool {
        let mut all: Vec<_> = Vec::new();
        for certificate in parts.source.iter().chain(parts.leaving.certificates()) {
            if !all.contains(&certificate) {
                all.push(certificate);
            }
        }
        let current = (!all.is_empty()).then(|| pem(all.into_iter()));
        let before = self.published.load_full();
        let changed = before.current != current;
        if changed {
            let previous = before.current.clone();
            self.published.store(Arc::new(Published { current, previous }));
        }
        changed
    }

    fn lock(&self) -> MutexGuard<'_, Parts> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The certificates in a file, and nothing else of it: a key beside them must not be published.
fn read(path: &Path) -> Result<Vec<CertificateDer<'static>>, CaBundleError> {
    let content = std::fs::read(path).map_err(|source| CaBundleError::Read {
        path: path.to_owned(),
        source,
    })?;
    certificates(&content).map_err(|why| CaBundleError::Content {
        path: path.to_owned(),
        why,
    })
}

/// Certificates as PEM, one after another.
pub(in crate::guard) fn pem<'a>(certificates: impl Iterator<Item = &'a CertificateDer<'a>>) -> Vec<u8> {
    let mut pem = String::new();
    for certificate in certificates {
        pem.push_str("-----BEGIN CERTIFICATE-----\n");
        let text = BASE64.encode(certificate);
        for line in text.as_bytes().chunks(64) {
            pem.push_str(&String::from_utf8_lossy(line));
            pem.push('\n');
        }
        pem.push_str("-----END CERTIFICATE-----\n");
    }
    pem.into_bytes()
}

#[cfg(test)]
mod tests;
