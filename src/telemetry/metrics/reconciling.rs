//! The metrics of a guard's reconciliation.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ActionLabels {
    policy: String,
    action: &'static str,
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FindingLabels {
    policy: String,
    finding: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PolicyLabel {
    policy: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LoopLabel {
    name: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

/// The metrics of a guard's reconciliation.
#[derive(Debug, Default)]
pub struct Reconciling {
    actions: Family<ActionLabels, Counter>,
    findings: Family<FindingLabels, Counter>,
    violations: Family<PolicyLabel, Gauge>,
    examinations: Family<ResultLabel, Counter>,
    missed: Family<PolicyLabel, Counter>,
    loop_restarts: Family<LoopLabel, Counter>,
    stock_not_taken: Gauge,
    stock_failures: Family<PolicyLabel, Counter>,
}

impl Reconciling {
    /// Names them in a registry whose prefix is `deployer_guard`.
    pub(super) fn register(&self, own: &mut Registry) {
        own.register(
            "guard_actions",
            "What the guard did, or would have done, by what came of it",
            self.actions.clone(),
        );
        own.register(
            "guard_findings",
            "What the guard found out of order, each counted once",
            self.findings.clone(),
        );
        own.register(
            "violations",
            "Keys with more than one active deployer, or one that is active again: page somebody",
            self.violations.clone(),
        );
        own.register(
            "guard_examinations",
            "Examinations of a key, by what came of them",
            self.examinations.clone(),
        );
        own.register(
            "guard_missed_changes",
            "Changes that a list showed and no watch had",
            self.missed.clone(),
        );
        own.register(
            "guard_loop_restarts",
            "Loops that panicked or ended, and were begun again",
            self.loop_restarts.clone(),
        );
        own.register(
            "policies_stock_not_taken",
            "Policies in force under which stock is not taken: each admission costs a list of pods",
            self.stock_not_taken.clone(),
        );
        own.register(
            "guard_stock_failures",
            "Stock-takings that could not be begun: a list or a read failed",
            self.stock_failures.clone(),
        );
    }

    /// Counts an action by what came of it. Both words from fixed lists.
    pub fn acted(&self, policy: &str, action: &'static str, result: &'static str) {
        let labels = ActionLabels {
            policy: policy.to_owned(),
            action,
            result,
        };
        self.actions.get_or_create(&labels).inc();
    }

    /// Counts a finding, when it is new.
    pub fn found(&self, policy: &str, finding: &'static str) {
        let policy = policy.to_owned();
        self.findings.get_or_create(&FindingLabels { policy, finding }).inc();
    }

    /// Says how many keys of a policy are violated.
    pub fn violations(&self, policy: &str, count: i64) {
        let policy = policy.to_owned();
        self.violations.get_or_create(&PolicyLabel { policy }).set(count);
    }

    /// Forgets the gauge of a policy that is gone.
    pub fn forget(&self, policy: &str) {
        let policy = policy.to_owned();
        self.violations.remove(&PolicyLabel { policy });
    }

    /// Counts an examination by what came of it.
    pub fn examined(&self, result: &'static str) {
        self.examinations.get_or_create(&ResultLabel { result }).inc();
    }

    /// A list showed so many changes that no watch had shown. Those of claims have no policy.
    pub fn missed(&self, policy: &str, count: usize) {
        let policy = policy.to_owned();
        let count = u64::try_from(count).unwrap_or(u64::MAX);
        self.missed.get_or_create(&PolicyLabel { policy }).inc_by(count);
    }

    /// Says under how many policies in force stock is not taken.
    pub fn stock_not_taken(&self, policies: usize) {
        self.stock_not_taken.set(i64::try_from(policies).unwrap_or(i64::MAX));
    }

    /// Counts a stock-taking that could not be begun.
    pub fn stock_failed(&self, policy: &str) {
        let policy = policy.to_owned();
        self.stock_failures.get_or_create(&PolicyLabel { policy }).inc();
    }

    /// Counts a loop that was begun again.
    pub fn loop_restarted(&self, name: &'static str) {
        self.loop_restarts.get_or_create(&LoopLabel { name }).inc();
    }
}
