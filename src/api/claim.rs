//! `DeployerClaim`: the object of one key, on which all decisions for that key are serialised.
//!
//! Every structure carries the fields that it does not know through a read and a write, so that two versions
//! may run side by side during an upgrade. The doc comments of fields are what `kubectl explain` shows.

mod status;

pub use status::{Batch, DeployerClaimStatus, Phase, Rejection, Rejections, WaitingOwner};

use jiff::Timestamp;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The version of the claim protocol that this build speaks. A claim with a higher one must not be written.
pub const PROTOCOL: i32 = 1;

/// Fields that this version does not know, kept as they are.
pub type UnknownFields = BTreeMap<String, serde_json::Value>;

/// What is decided for one key. Written by deployer-guard alone.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "deployer-guard.io",
    version = "v1alpha1",
    kind = "DeployerClaim",
    plural = "deployerclaims",
    shortname = "dclaim",
    namespaced,
    status = "DeployerClaimStatus",
    derive = "PartialEq",
    derive = "Default",
    doc = "A DeployerClaim says which deployer pod holds a config, which were just admitted for it, and what became of earlier ones. It is written by deployer-guard alone; deleting it forgets all of that.",
    printcolumn = r#"{"name": "Config", "type": "string", "jsonPath": ".spec.config"}"#,
    printcolumn = r#"{"name": "Generation", "type": "string", "jsonPath": ".spec.holder.generation"}"#,
    printcolumn = r#"{"name": "Holder", "type": "string", "jsonPath": ".spec.holder.name"}"#,
    printcolumn = r#"{"name": "Phase", "type": "string", "jsonPath": ".status.phase"}"#,
    printcolumn = r#"{"name": "Since", "type": "date", "jsonPath": ".spec.holder.admittedAt"}"#,
    printcolumn = r#"{"name": "Rejections", "type": "integer", "jsonPath": ".status.rejections.count"}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name": "Policy", "type": "string", "priority": 1, "jsonPath": ".spec.policy.name"}"#,
    printcolumn = r#"{"name": "Requested By", "type": "string", "priority": 1, "jsonPath": ".spec.holder.requestedBy"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct DeployerClaimSpec {
    /// The version of the claim protocol that wrote this claim. Nobody writes a claim with a newer one than its own.
    #[schemars(range(min = 1))]
    pub protocol: i32,

    /// The policy under which the claim was made.
    pub policy: PolicyReference,

    /// The name of the config that the claim is for.
    pub config: String,

    /// The generation that the claim is for. Set only where the policy's scope is Generation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<String>,

    /// The deployer pod that the claim was last given to. Absent: the key is free.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<ClaimEntry>,

    /// Deployer pods that were admitted and are not yet seen in the store; some may never get there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub pending: Vec<ClaimEntry>,

    /// Pods that are about to be deleted, and are never made holder again. Each stays here until it is gone, and while it is active
    /// nobody is admitted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub condemned: Vec<PodReference>,

    /// Deployer pods that are never deleted by deployer-guard, whatever the policy says of leftovers: those that were there when
    /// the policy first came into force, and those that were found beside the holder and are only to be reported. While one of them
    /// is active nobody is admitted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub spared: Vec<PodReference>,

    /// The newest generation seen, one entry for each uid of the config, at most 4.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 4))]
    pub newest: Vec<NewestGeneration>,

    /// What became of the last generations, at most 32, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub outcomes: Vec<GenerationOutcome>,

    /// Fields of newer versions.
    #[serde(flatten)]
    #[schemars(skip)]
    pub unknown: UnknownFields,
}

/// A policy, by name and uid, in a version.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PolicyReference {
    /// The name of the DeployerPolicy.
    pub name: String,

    /// The uid of the DeployerPolicy.
    pub uid: String,

    /// The generation of the DeployerPolicy under which a deployer was last admitted. For people to read: no decision is made by it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<i64>,

    /// Fields of newer versions.
    #[serde(flatten)]
    #[schemars(skip)]
    pub unknown: UnknownFields,
}

/// A deployer pod that was admitted for the key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClaimEntry {
    /// The name of the pod.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,

    /// The uid of the pod.
    pub uid: String,

    /// The generation that the pod rolls out, if the policy says where it is read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<String>,

    /// The ordinal of the generation, if the policy says how it is computed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ordinal: Option<i64>,

    /// The uid of the config, if the policy says how it is computed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_uid: Option<String>,

    /// The user who created the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested_by: Option<String>,

    /// When the pod was admitted. For people to read: no decision is made by it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", extend("format" = "date-time"))]
    pub admitted_at: Option<Timestamp>,

    /// Fields of newer versions.
    #[serde(flatten)]
    #[schemars(skip)]
    pub unknown: UnknownFields,
}

/// A pod, by name and uid.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodReference {
    /// The name of the pod.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,

    /// The uid of the pod.
    pub uid: String,

    /// Fields of newer versions.
    #[serde(flatten)]
    #[schemars(skip)]
    pub unknown: UnknownFields,
}

/// The newest generation seen of a config.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NewestGeneration {
    /// The uid of the config, if the policy says how it is computed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_uid: Option<String>,

    /// The highest ordinal seen.
    pub ordinal: i64,

    /// The generation that had it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<String>,

    /// Fields of newer versions.
    #[serde(flatten)]
    #[schemars(skip)]
    pub unknown: UnknownFields,
}

/// What became of a generation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GenerationOutcome {
    /// The generation.
    pub generation: String,

    /// The uid of the config, if the policy says how it is computed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_uid: Option<String>,

    /// The ordinal of the generation, if the policy says how it is computed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ordinal: Option<i64>,

    /// Completed (its pod Succeeded), Failed (its pod Failed), or Unknown (nobody saw its end).
    pub outcome: Outcome,

    /// The name of the pod.
    pub pod_name: String,

    /// The uid of the pod.
    pub pod_uid: String,

    /// When the outcome was written down. For people to read: no decision is made by it.
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub observed_at: Timestamp,

    /// Fields of newer versions.
    #[serde(flatten)]
    #[schemars(skip)]
    pub unknown: UnknownFields,
}

/// How a deployer pod ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum Outcome {
    /// Its pod Succeeded.
    Completed,
    /// Its pod Failed.
    Failed,
    /// Its pod went and nobody saw how.
    #[default]
    Unknown,
}
