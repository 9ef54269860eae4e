//! `DeployerPolicy`: which pods are deployers, what they work for, and what is refused.
//!
//! The doc comments of fields are what `kubectl explain` shows.

mod identity;
mod matching;
mod owner;
mod schema;
mod status;

pub use identity::{Config, Generation};
pub use matching::{Match, MatchCondition};
pub use owner::{Owner, Wake};
pub use status::{DeployerPolicyStatus, PolicyCounts, StockTaking};

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Which pods are deployers, which config each works for, and what is refused.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "deployer-guard.io",
    version = "v1alpha1",
    kind = "DeployerPolicy",
    plural = "deployerpolicies",
    shortname = "dpol",
    status = "DeployerPolicyStatus",
    derive = "PartialEq",
    derive = "Default",
    doc = "A DeployerPolicy says which pods are deployers, which config each of them works for, and that at most one of them may be active for it at a time.",
    validation = Rule::new("size(self.metadata.name) <= 63")
        .message("metadata.name may have at most 63 characters: it is part of the webhook's name; choose a shorter one"),
    printcolumn = r#"{"name": "Mode", "type": "string", "jsonPath": ".spec.mode"}"#,
    printcolumn = r#"{"name": "Scope", "type": "string", "jsonPath": ".spec.scope"}"#,
    printcolumn = r#"{"name": "Accepted", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Accepted\")].status"}"#,
    printcolumn = r#"{"name": "Enforced", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Enforced\")].status"}"#,
    printcolumn = r#"{"name": "Claims", "type": "integer", "jsonPath": ".status.counts.claims"}"#,
    printcolumn = r#"{"name": "Rejections", "type": "integer", "jsonPath": ".status.counts.rejections"}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name": "Violations", "type": "integer", "priority": 1, "jsonPath": ".status.counts.violations"}"#,
    printcolumn = r#"{"name": "Reason", "type": "string", "priority": 1, "jsonPath": ".status.conditions[?(@.type==\"Enforced\")].reason"}"#
)]
#[x_kube(
    validation = Rule::new("has(self.generation) == has(oldSelf.generation)")
        .message("spec.generation can neither be added nor removed: it is part of what claims remember; make a new policy under another name"),
    validation = Rule::new("self.scope != 'Generation' || has(self.generation)")
        .message("spec.scope Generation needs spec.generation: say where a pod's generation is read, or use scope Config"),
    validation = Rule::new("!has(self.reruns) || self.reruns == 'Always' || has(self.generation)")
        .message("spec.reruns other than Always needs spec.generation: say where a pod's generation is read, or leave reruns out"),
    validation = Rule::new("!has(self.olderGenerations) || self.olderGenerations == 'Allow' || (self.scope == 'Config' && has(self.generation) && has(self.generation.ordinal))")
        .message("spec.olderGenerations Deny needs spec.scope Config and spec.generation.ordinal: give both, or use Allow"),
)]
#[serde(rename_all = "camelCase")]
pub struct DeployerPolicySpec {
    /// What is done with a verdict: Enforce refuses; Warn admits and warns the client; Audit admits and only records.
    /// In Warn and Audit nothing is ever deleted or woken. Default Enforce.
    #[serde(default)]
    pub mode: Mode,

    /// What happens when no decision can be reached (a store that does not answer, no webhook replica up): Fail
    /// refuses the deployer pod, Ignore admits it. In the modes Warn and Audit always Ignore. Default Fail.
    #[serde(default)]
    pub failure_policy: FailurePolicy,

    /// How long the API server waits for a decision, in seconds, from 1 to 30. Default 5.
    #[serde(default = "default_timeout_seconds")]
    #[schemars(range(min = 1, max = 30))]
    pub timeout_seconds: i32,

    /// Which pods are deployers. It must narrow: give an objectSelector that is not empty, or matchConditions.
    /// Pods that do not match never leave the API server.
    #[serde(rename = "match")]
    pub match_: Match,

    /// Where the name of the config is read on a deployer pod: exactly one of label, annotation, expression.
    /// Immutable: another identity is another policy, and both may be in force while one replaces the other.
    #[x_kube(validation = Rule::new("self == oldSelf")
        .message("spec.config is immutable: claims are named by it; make a new policy under another name, then delete this one"))]
    pub config: Config,

    /// Where the generation (one rollout of the config) is read on a deployer pod: exactly one of label, annotation,
    /// expression. Left out: no generation is known, and reruns and olderGenerations are not judged. Immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("self == oldSelf")
        .message("spec.generation is immutable: claims remember generations by it; make a new policy under another name, then delete this one"))]
    pub generation: Option<Generation>,

    /// The object that a deployer pod works for, found by the pod's one ownerReference of this group and kind and
    /// read live at each admission. Left out: no owner is asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,

    /// For what at most one deployer may be active: Config (in one namespace), or Generation. Immutable. Default Config.
    #[serde(default)]
    #[x_kube(validation = Rule::new("self == oldSelf")
        .message("spec.scope is immutable: claims are named by it; make a new policy under another name, then delete this one"))]
    pub scope: Scope,

    /// Whether a generation may be run again: Always; AfterFailure (unless it completed); Never. Other than Always
    /// needs a generation. Default: AfterFailure where spec.generation is given, else Always.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Reruns")]
    pub reruns: Option<Reruns>,

    /// Whether a generation with a lower ordinal than the newest one seen may start: Allow or Deny. Deny needs scope
    /// Config and generation.ordinal. Default: Deny where both are given, else Allow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "OlderGenerations")]
    pub older_generations: Option<OlderGenerations>,

    /// What becomes of what admission cannot prevent or clean up.
    #[serde(default)]
    pub leftovers: Leftovers,
}

impl DeployerPolicySpec {
    /// `reruns` with its default filled in.
    #[must_use]
    pub fn effective_reruns(&self) -> Reruns {
        let default = if self.generation.is_some() {
            Reruns::AfterFailure
        } else {
            Reruns::Always
        };
        self.reruns.unwrap_or(default)
    }

    /// `failurePolicy` as it is in force: what only warns or records refuses nothing.
    #[must_use]
    pub fn effective_failure_policy(&self) -> FailurePolicy {
        self.failure_policy.under(self.mode)
    }

    /// `olderGenerations` with its default filled in.
    #[must_use]
    pub fn effective_older_generations(&self) -> OlderGenerations {
        let ordinal = self
            .generation
            .as_ref()
            .is_some_and(|generation| generation.ordinal.is_some());
        let comparable = self.scope == Scope::Config && ordinal;
        let default = if comparable {
            OlderGenerations::Deny
        } else {
            OlderGenerations::Allow
        };
        self.older_generations.unwrap_or(default)
    }
}

/// What is done with a verdict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Mode {
    /// A refusal refuses.
    #[default]
    Enforce,
    /// A refusal becomes a warning to the client.
    Warn,
    /// A refusal is recorded only.
    Audit,
}

/// What happens when no decision can be reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum FailurePolicy {
    /// The deployer pod is refused.
    #[default]
    Fail,
    /// The deployer pod is admitted.
    Ignore,
}

impl FailurePolicy {
    /// What it comes to under a mode: one that refuses nobody refuses nobody for want of a decision.
    #[must_use]
    pub fn under(self, mode: Mode) -> Self {
        if mode == Mode::Enforce { self } else { Self::Ignore }
    }
}

/// For what at most one deployer may be active.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Scope {
    /// For a config in a namespace.
    #[default]
    Config,
    /// For a generation in a namespace.
    Generation,
}

/// Whether a generation may be run again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Reruns {
    /// Whatever became of it.
    #[default]
    Always,
    /// Unless it completed. An outcome that nobody saw counts as a failure.
    AfterFailure,
    /// Not at all, whatever became of it.
    Never,
}

/// Whether a generation older than the newest one may start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum OlderGenerations {
    /// It may.
    #[default]
    Allow,
    /// It may not.
    Deny,
}

/// What becomes of what admission cannot prevent or clean up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Leftovers {
    /// What becomes of a second active deployer that came in by a bypass: Report, or DeleteUnstarted (deleted only
    /// while it is not bound to a node). Default DeleteUnstarted.
    pub duplicates: LeftoverAction,

    /// What becomes of a deployer whose owner is gone, was replaced, or has nothing left for it to do (owner.finished): Report,
    /// or DeleteUnstarted (deleted only while it is not bound to a node). owner.expression plays no part: it says who may start,
    /// and need not hold while a rollout runs. Default Report.
    pub orphans: LeftoverAction,

    /// After how many seconds of activity a deployer is reported as stuck, at least 60. Default 3600.
    #[schemars(range(min = 60, max = 31_536_000))]
    pub stuck_after_seconds: i64,

    /// How long a free claim, with the outcomes it remembers, is kept after its last use, in seconds, at least 300.
    /// Default 604800 (a week).
    #[schemars(range(min = 300, max = 315_360_000))]
    pub keep_claims_seconds: i64,
}

impl Default for Leftovers {
    fn default() -> Self {
        Self {
            duplicates: LeftoverAction::DeleteUnstarted,
            orphans: LeftoverAction::Report,
            stuck_after_seconds: 3600,
            keep_claims_seconds: 604_800,
        }
    }
}

/// What becomes of a leftover pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum LeftoverAction {
    /// It is reported.
    #[default]
    Report,
    /// It is deleted if it is not bound to a node, else reported.
    DeleteUnstarted,
}

fn default_timeout_seconds() -> i32 {
    5
}
