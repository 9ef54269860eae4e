//! What deployer-guard reports on a policy.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What deployer-guard reports on a policy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DeployerPolicyStatus {
    /// Accepted: the policy compiles and its owner kind may be read. Enforced: its entry for this generation is in the
    /// stored webhook configuration.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,

    /// The metadata.generation that this status is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// Counts over all namespaces, as of the guard's last round.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub counts: Option<PolicyCounts>,

    /// That the guard has taken stock under a version of this policy: every deployer that came in before it was in force has a
    /// claim or was reported. Under another version, and until then, a key without a claim costs a list of the namespace's pods.
    /// Once it was taken, whoever comes in past the webhook is no longer one that was there before the policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "StockTaking")]
    pub stock_taking: Option<StockTaking>,
}

/// That stock was taken under a version of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StockTaking {
    /// The metadata.generation of the policy under which stock was taken; 0 if its entry was missing or changed after that, so
    /// that stock is to be taken anew.
    pub generation: i64,

    /// When it was taken. For people to read: no decision is made by it.
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub completed_at: Timestamp,
}

impl StockTaking {
    /// That stock was taken, and does not count for this version any more.
    #[must_use]
    pub fn not_under(self, generation: i64) -> Self {
        let generation = if self.generation == generation {
            0
        } else {
            self.generation
        };
        Self { generation, ..self }
    }
}

/// Counts of a policy, over all namespaces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PolicyCounts {
    /// Claims that exist.
    pub claims: i64,
    /// Deployer pods that are active.
    pub active: i64,
    /// Deployer pods that were admitted and are not yet seen in the store.
    pub pending: i64,
    /// Refusals that the claims have recorded.
    pub rejections: i64,
    /// Keys with more than one active deployer.
    pub violations: i64,
}
