//! The metrics of one process. Labels are bounded: policies, verdicts and reasons, never configs or pods.

use std::fmt::{self, Write as _};
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric as _};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

mod clients;
mod guard;
mod reconciling;

pub use clients::ClientRefusals;
pub use guard::{GuardMetrics, LeaseTry, Outcome};
pub use reconciling::Reconciling;

/// The content type of [`Metrics::encode`].
pub const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What a decision is counted by.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct DecisionLabels {
    /// The policy's name, or "" where there is none.
    pub policy: String,
    /// The operation of the request, `CREATE` or `UPDATE`.
    pub operation: &'static str,
    /// The verdict.
    pub verdict: &'static str,
    /// The reason of the verdict.
    pub reason: &'static str,
    /// Whether the request was a dry run.
    pub dry_run: bool,
}

/// What became of an Event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventResult {
    /// The API server has it.
    Published,
    /// The queue was full, or there was nothing that it could be about.
    Dropped,
    /// The API server refused it, could not be reached, or its answer was lost; or the namespace is ending.
    Failed,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct VerdictLabel {
    verdict: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CodeLabel {
    code: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ApiLabels {
    verb: &'static str,
    resource: &'static str,
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

/// All metrics, and the registry that prints them. Share it in an `Arc`.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    decisions: Family<DecisionLabels, Counter>,
    decision_duration: Family<VerdictLabel, Histogram, fn() -> Histogram>,
    in_flight: Gauge,
    panics: Counter,
    overloaded: Counter,
    http_errors: Family<CodeLabel, Counter>,
    api_requests: Family<ApiLabels, Counter>,
    events: Family<ResultLabel, Counter>,
    pending_followed: Gauge,
    pending_confirmed: Counter,
    pending_dropped: Counter,
    statuses_dropped: Counter,
    waiting_dropped: Counter,
    certificate_not_after: Gauge,
    certificate_reload_failures: Counter,
    certificate_source_broken: Gauge,
    certificate_held_back: Gauge,
    ready: Gauge,
    client_refusals: Arc<ClientRefusals>,
    reconciling: Reconciling,
}

/// Buckets from a read that was shared to the longest timeout of a webhook, in seconds.
fn decision_histogram() -> Histogram {
    Histogram::new([
        0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
    ])
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// All metrics at zero.
    #[must_use]
    pub fn new() -> Self {
        let mut metrics = Self {
            registry: Registry::default(),
            decisions: Family::default(),
            decision_duration: Family::new_with_constructor(decision_histogram),
            in_flight: Gauge::default(),
            panics: Counter::default(),
            overloaded: Counter::default(),
            http_errors: Family::default(),
            api_requests: Family::default(),
            events: Family::default(),
            pending_followed: Gauge::default(),
            pending_confirmed: Counter::default(),
            pending_dropped: Counter::default(),
            statuses_dropped: Counter::default(),
            waiting_dropped: Counter::default(),
            certificate_not_after: Gauge::default(),
            certificate_reload_failures: Counter::default(),
            certificate_source_broken: Gauge::default(),
            certificate_held_back: Gauge::default(),
            ready: Gauge::default(),
            client_refusals: Arc::default(),
            reconciling: Reconciling::default(),
        };
        metrics.register();
        metrics
    }

    /// All metrics at zero, those of a guard among them.
    #[must_use]
    pub fn with_guard(guard: &Arc<GuardMetrics>) -> Self {
        let mut metrics = Self::new();
        guard.register(&mut metrics.registry);
        metrics
    }

    fn register(&mut self) {
        let own = self.registry.sub_registry_with_prefix("deployer_guard");
        own.register("decisions", "Admission decisions", self.decisions.clone());
        own.register(
            "decision_duration_seconds",
            "Time from a call's arrival to its answer",
            self.decision_duration.clone(),
        );
        own.register("in_flight", "Admission calls being decided", self.in_flight.clone());
        own.register("panics", "Panics while a call was decided", self.panics.clone());
        own.register(
            "overloaded",
            "Calls not decided because a bound was reached",
            self.overloaded.clone(),
        );
        own.register(
            "http_errors",
            "Calls answered with an HTTP error",
            self.http_errors.clone(),
        );
        own.register(
            "api_requests",
            "Requests to the Kubernetes API",
            self.api_requests.clone(),
        );
        own.register(
            "events",
            "Kubernetes Events by what became of them",
            self.events.clone(),
        );
        own.register(
            "pending_followed",
            "Pending pods being followed to their end",
            self.pending_followed.clone(),
        );
        own.register(
            "pending_confirmed",
            "Pending pods seen in the store",
            self.pending_confirmed.clone(),
        );
        own.register(
            "pending_dropped",
            "Pending pods that never arrived",
            self.pending_dropped.clone(),
        );
        own.register(
            "claim_rejections_dropped",
            "Refusals that a claim's status will not show: the claim is gone, or too many waited",
            self.statuses_dropped.clone(),
        );
        own.register(
            "claim_waiting_dropped",
            "Refused owners that a claim's status will not show as waiting, so that nobody wakes them",
            self.waiting_dropped.clone(),
        );
        own.register(
            "certificate_not_after_seconds",
            "When the serving certificate expires, Unix time",
            self.certificate_not_after.clone(),
        );
        own.register(
            "certificate_reload_failures",
            "Contents of the certificate files or Secret that could not be served with",
            self.certificate_reload_failures.clone(),
        );
        own.register(
            "certificate_source_broken",
            "1 while the certificate files or Secret are missing, or hold nothing that could be served with",
            self.certificate_source_broken.clone(),
        );
        own.register(
            "certificate_held_back",
            "1 while a new certificate waits for the stored webhook configuration to trust it",
            self.certificate_held_back.clone(),
        );
        own.register("ready", "1 while /readyz says that all is well", self.ready.clone());
        self.reconciling.register(own);
        own.register(
            "build",
            "The running program",
            Info::new([("version", env!("CARGO_PKG_VERSION"))]),
        );
        self.registry.register_collector(Box::new(ProcessMemory));
        self.registry
            .register_collector(Box::new(clients::Collected(Arc::clone(&self.client_refusals))));
    }

    /// Counts a decision, and how long it took from the call's arrival to its answer.
    pub fn decided(&self, labels: &DecisionLabels, took: Duration) {
        self.decisions.get_or_create(labels).inc();
        self.decision_duration
            .get_or_create(&VerdictLabel {
                verdict: labels.verdict,
            })
            .observe(took.as_secs_f64());
    }

    /// Marks a call as being decided, until the returned mark is dropped.
    #[must_use]
    pub fn in_flight(&self) -> InFlight {
        self.in_flight.inc();
        InFlight(self.in_flight.clone())
    }

    /// Counts a panic.
    pub fn panicked(&self) {
        self.panics.inc();
    }

    /// Counts a call that was not decided because a bound was reached.
    pub fn overloaded(&self) {
        self.overloaded.inc();
    }

    /// Counts an HTTP error answer.
    pub fn http_error(&self, code: u16) {
        self.http_errors.get_or_create(&CodeLabel { code }).inc();
    }

    /// Counts a request to the Kubernetes API, for instance `("get", "pods", "ok")`. All three from fixed lists.
    pub fn api_request(&self, verb: &'static str, resource: &'static str, result: &'static str) {
        self.api_requests
            .get_or_create(&ApiLabels { verb, resource, result })
            .inc();
    }

    /// Counts an Event by what became of it.
    pub fn event(&self, result: EventResult) {
        let result = match result {
            EventResult::Published => "published",
            EventResult::Dropped => "dropped",
            EventResult::Failed => "failed",
        };
        self.events.get_or_create(&ResultLabel { result }).inc();
    }

    /// Says how many pending pods are being followed.
    pub fn pending_followed(&self, count: usize) {
        self.pending_followed.set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// Counts a pending pod that was seen in the store.
    pub fn pending_confirmed(&self) {
        self.pending_confirmed.inc();
    }

    /// Counts a pending pod that was given up.
    pub fn pending_dropped(&self) {
        self.pending_dropped.inc();
    }

    /// So many refusals will not be shown by their claim's status.
    pub fn status_dropped(&self, refusals: u64) {
        self.statuses_dropped.inc_by(refusals);
    }

    /// So many owners that wait will not be shown by their claim's status.
    pub fn waiting_dropped(&self, owners: u64) {
        self.waiting_dropped.inc_by(owners);
    }

    /// Says when the serving certificate expires, in seconds since the Unix epoch.
    pub fn certificate_not_after(&self, seconds: i64) {
        self.certificate_not_after.set(seconds);
    }

    /// Counts a content of the certificate files or Secret that could not be served with.
    pub fn certificate_reload_failed(&self) {
        self.certificate_reload_failures.inc();
    }

    /// Says whether what the certificate files or Secret hold now could not be served with.
    pub fn certificate_source_broken(&self, broken: bool) {
        self.certificate_source_broken.set(broken.into());
    }

    /// Says whether a new certificate waits to be trusted.
    pub fn certificate_held_back(&self, held_back: bool) {
        self.certificate_held_back.set(held_back.into());
    }

    /// Says whether this process is ready.
    pub fn ready(&self, ready: bool) {
        self.ready.set(ready.into());
    }

    /// Those of callers that are not served.
    #[must_use]
    pub fn client_refusals(&self) -> &Arc<ClientRefusals> {
        &self.client_refusals
    }

    /// Those of a guard's reconciliation.
    #[must_use]
    pub fn reconciling(&self) -> &Reconciling {
        &self.reconciling
    }

    /// All metrics as `OpenMetrics` text ([`OPEN_METRICS`]).
    #[must_use]
    pub fn encode(&self) -> String {
        let mut text = String::new();
        if prometheus_client::encoding::text::encode(&mut text, &self.registry).is_err() {
            let _ = text.write_str("# EOF\n");
        }
        text
    }
}

/// A call being decided; counted until it is dropped.
#[derive(Debug)]
pub struct InFlight(Gauge);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// The resident memory of this process, read at each scrape.
#[derive(Debug)]
struct ProcessMemory;

impl Collector for ProcessMemory {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let Some(bytes) = resident_bytes() else { return Ok(()) };
        let gauge = ConstGauge::new(bytes);
        let metric = encoder.encode_descriptor(
            "process_resident_memory_bytes",
            "Resident memory",
            None,
            gauge.metric_type(),
        )?;
        gauge.encode(metric)
    }
}

/// `VmRSS` of `/proc/self/status`, which is in kB whatever the page size is.
fn resident_bytes() -> Option<i64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: i64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kilobytes * 1024)
}
