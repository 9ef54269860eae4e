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

    /// That the guard has taken stock under this version of the policy, and the stored entry says so: every deployer that came in
    /// before it was in force had a claim or was reported. For people to read: no admission is decided by it. Until then, a key
    /// without a claim costs a list of the namespace's pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "StockTaking")]
    pub stock_taking: Option<StockTaking>,

    /// When stock was first taken, under whatever version of this policy: deployers that were met before are never deleted by
    /// the guard. It stays when stock has to be taken again, so that what comes in during a bypass is none of those.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", extend("format" = "date-time"))]
    pub first_stock_taken_at: Option<Timestamp>,
}

/// That stock was taken under a version of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StockTaking {
    /// The metadata.generation of the policy under which stock was taken.
    pub generation: i64,

    /// When it was taken.
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub completed_at: Timestamp,
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
