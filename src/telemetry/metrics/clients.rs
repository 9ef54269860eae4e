//! How many callers were not served because of their certificate, by reason.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;

/// Callers that were not served because of their certificate.
#[derive(Debug, Default)]
pub struct ClientRefusals {
    asked: AtomicU64,
    shown: AtomicU64,
    not_trusted: AtomicU64,
    other_name: AtomicU64,
}

impl ClientRefusals {
    /// A caller answered the question for its certificate. Unless [`ClientRefusals::shown`] follows, it has none.
    pub fn asked(&self) {
        self.asked.fetch_add(1, Ordering::Relaxed);
    }

    /// The caller that was asked has a certificate.
    pub fn shown(&self) {
        self.shown.fetch_add(1, Ordering::Relaxed);
    }

    /// Its certificate is not of the authorities.
    pub fn not_trusted(&self) {
        self.not_trusted.fetch_add(1, Ordering::Relaxed);
    }

    /// Its certificate has none of the names.
    pub fn other_name(&self) {
        self.other_name.fetch_add(1, Ordering::Relaxed);
    }

    fn by_reason(&self) -> [(&'static str, u64); 3] {
        // In this order: one who was asked and shows a certificate between the two must not be counted as without.
        let shown = self.shown.load(Ordering::Relaxed);
        let asked = self.asked.load(Ordering::Relaxed);
        [
            ("no_certificate", asked.saturating_sub(shown)),
            ("not_trusted", self.not_trusted.load(Ordering::Relaxed)),
            ("other_name", self.other_name.load(Ordering::Relaxed)),
        ]
    }
}

/// Prints them at each scrape.
#[derive(Debug)]
pub(super) struct Collected(pub(super) Arc<ClientRefusals>);

impl Collector for Collected {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let mut metric = encoder.encode_descriptor(
            "deployer_guard_client_refusals",
            "Callers that were not served because of their client certificate",
            None,
            MetricType::Counter,
        )?;
        for (reason, count) in self.0.by_reason() {
            let labels = [("reason", reason)];
            ConstCounter::new(count).encode(metric.encode_family(&labels)?)?;
        }
        Ok(())
    }
}
