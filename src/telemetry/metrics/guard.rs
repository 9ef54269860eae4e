//! The metrics of a guard: leadership, and the webhook configuration.

use std::fmt;
use std::sync::{Arc, OnceLock};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric as _};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::registry::Registry;

/// What came of a try at the Lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseTry {
    /// It was renewed.
    Renewed,
    /// It was taken.
    Taken,
    /// Another was first.
    Lost,
    /// Another has it.
    Waited,
    /// No answer, or a refusal.
    Failed,
}

/// What came of something that the guard did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is done.
    Done,
    /// What it was based on had changed: it is done anew.
    Conflict,
    /// The API server refused, or did not answer.
    Failed,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

impl From<Outcome> for ResultLabel {
    fn from(outcome: Outcome) -> Self {
        let result = match outcome {
            Outcome::Done => "done",
            Outcome::Conflict => "conflict",
            Outcome::Failed => "failed",
        };
        Self { result }
    }
}

type Check = Box<dyn Fn() -> bool + Send + Sync>;

/// The metrics of a guard. [`Metrics::with_guard`](super::Metrics::with_guard) prints them.
#[derive(Default)]
pub struct GuardMetrics {
    leads: Arc<OnceLock<Check>>,
    term: Gauge,
    lease_tries: Family<ResultLabel, Counter>,
    configuration_writes: Family<ResultLabel, Counter>,
    configuration_drifts: Counter,
    configuration_missing: Gauge,
    policies_refused: Gauge,
    policies_unanswered: Gauge,
    status_writes: Family<ResultLabel, Counter>,
    ca_bundle_failures: Counter,
    ca_not_after: Gauge,
    certificate_writes: Family<ResultLabel, Counter>,
}

impl GuardMetrics {
    pub(super) fn register(&self, registry: &mut Registry) {
        let own = registry.sub_registry_with_prefix("deployer_guard");
        own.register(
            "leader_term",
            "The leaseTransitions of the Lease when this guard last led",
            self.term.clone(),
        );
        own.register("lease_tries", "Tries at the Lease", self.lease_tries.clone());
        own.register(
            "configuration_writes",
            "Writes of the webhook configuration",
            self.configuration_writes.clone(),
        );
        own.register(
            "configuration_drifts",
            "Times that our part of the webhook configuration was found changed by somebody else",
            self.configuration_drifts.clone(),
        );
        own.register(
            "configuration_missing",
            "1 while the webhook configuration does not exist",
            self.configuration_missing.clone(),
        );
        own.register(
            "policies_not_enforced",
            "Policies whose entry is not in the stored webhook configuration",
            self.policies_refused.clone(),
        );
        own.register(
            "policies_unanswered",
            "Policies whose entry is stored while an API server, when last asked, did not reach the webhook",
            self.policies_unanswered.clone(),
        );
        own.register(
            "policy_status_writes",
            "Writes of a policy's status",
            self.status_writes.clone(),
        );
        own.register(
            "ca_bundle_reload_failures",
            "Contents of the CA bundle file or of the Secret's ca.crt that could not be used",
            self.ca_bundle_failures.clone(),
        );
        own.register(
            "ca_not_after_seconds",
            "When the last authority of the CA bundle expires, Unix time; 0 where there is none",
            self.ca_not_after.clone(),
        );
        own.register(
            "certificate_writes",
            "Writes of the Secret with the certificates",
            self.certificate_writes.clone(),
        );
        registry.register_collector(Box::new(Leader(Arc::clone(&self.leads))));
    }

    /// How to know whether this process leads, at each scrape. The first one given counts.
    pub fn leads_if(&self, leads: impl Fn() -> bool + Send + Sync + 'static) {
        let _first_counts = self.leads.set(Box::new(leads));
    }

    /// Says in which term this process leads.
    pub fn term(&self, term: i32) {
        self.term.set(term.into());
    }

    /// Counts a try at the Lease.
    pub fn lease_tried(&self, outcome: LeaseTry) {
        let result = match outcome {
            LeaseTry::Renewed => "renewed",
            LeaseTry::Taken => "taken",
            LeaseTry::Lost => "lost",
            LeaseTry::Waited => "waited",
            LeaseTry::Failed => "failed",
        };
        self.lease_tries.get_or_create(&ResultLabel { result }).inc();
    }

    /// Counts a write of the webhook configuration.
    pub fn configuration_written(&self, outcome: Outcome) {
        self.configuration_writes.get_or_create(&outcome.into()).inc();
    }

    /// Our part of the webhook configuration was found changed by somebody else.
    pub fn configuration_drifted(&self) {
        self.configuration_drifts.inc();
    }

    /// Says whether the webhook configuration exists, and how many policies have no entry in it.
    pub fn enforced(&self, missing: bool, not_enforced: usize) {
        self.configuration_missing.set(missing.into());
        self.policies_refused
            .set(i64::try_from(not_enforced).unwrap_or(i64::MAX));
    }

    /// Says for how many policies no API server reached the webhook. Only the guard that leads asks.
    pub fn unanswered(&self, policies: usize) {
        self.policies_unanswered
            .set(i64::try_from(policies).unwrap_or(i64::MAX));
    }

    /// Counts a write of a policy's status.
    pub fn status_written(&self, outcome: Outcome) {
        self.status_writes.get_or_create(&outcome.into()).inc();
    }

    /// Says when the last authority of the CA bundle expires, in seconds since the Unix epoch.
    pub fn ca_not_after(&self, seconds: i64) {
        self.ca_not_after.set(seconds);
    }

    /// Counts a write of the Secret with the certificates.
    pub fn certificates_written(&self, outcome: Outcome) {
        self.certificate_writes.get_or_create(&outcome.into()).inc();
    }

    /// The CA bundle's source has a content that cannot be used.
    pub fn ca_bundle_failed(&self) {
        self.ca_bundle_failures.inc();
    }
}

impl fmt::Debug for GuardMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GuardMetrics").finish_non_exhaustive()
    }
}

/// Whether this process leads at the time of the scrape: a value that was set before could be a paused leader's.
struct Leader(Arc<OnceLock<Check>>);

impl Collector for Leader {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let leads = self.0.get().is_some_and(|leads| leads());
        let gauge = ConstGauge::new(i64::from(leads));
        let metric = encoder.encode_descriptor(
            "deployer_guard_leader",
            "1 if this guard leads now",
            None,
            gauge.metric_type(),
        )?;
        gauge.encode(metric)
    }
}

impl fmt::Debug for Leader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Leader")
    }
}
