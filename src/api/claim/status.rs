//! What a claim's status shows to people. Written in the background; no decision is made by it.

use super::UnknownFields;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a claim's status shows to people.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DeployerClaimStatus {
    /// Free, Pending (the holder is not yet seen in the store), or Held, as of the last change of the claim: a holder that has finished
    /// since then keeps nobody out.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Phase")]
    pub phase: Option<Phase>,

    /// Owners whose deployers were refused because another one was in the way, and that wait for the key: one entry for each, newest
    /// ordinals first, at most 16. Kept only where the policy says spec.owner.wake: OnRelease.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub waiting: Vec<WaitingOwner>,

    /// Refusals for this key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rejections: Option<Rejections>,

    /// What is out of order with the claim.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,

    /// Fields of newer versions.
    #[serde(flatten)]
    #[schemars(skip)]
    pub unknown: UnknownFields,
}

/// Whether a key is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Phase {
    /// Nobody holds it.
    #[default]
    Free,
    /// Its holder was admitted and is not yet seen in the store.
    Pending,
    /// Its holder was seen in the store.
    Held,
}

/// An owner that waits for a key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WaitingOwner {
    /// The name of the owner.
    pub name: String,

    /// The uid of the owner.
    pub uid: String,

    /// The kind of the owner.
    pub kind: String,

    /// The group and version of the owner.
    pub api_version: String,

    /// The ordinal of the generation that it wants to roll out, if the policy says how it is computed and it was read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ordinal: Option<i64>,

    /// Fields of newer versions.
    #[serde(flatten)]
    #[schemars(skip)]
    pub unknown: UnknownFields,
}

/// Refusals for a key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Rejections {
    /// How many there were. Written in the background, so it may be too low; the metrics are exact, and say how many will not be
    /// counted here.
    pub count: i64,

    /// The last of them, newest first; some may be missing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub recent: Vec<Rejection>,

    /// The last batch that each writer counted, the latest first: one whose answer was lost is not counted twice.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub batches: Vec<Batch>,

    /// Fields of newer versions.
    #[serde(flatten)]
    #[schemars(skip)]
    pub unknown: UnknownFields,
}

/// Refusals that were counted together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Batch {
    /// One run of one replica.
    pub writer: String,

    /// Grows with each batch of that writer.
    pub number: i64,

    /// Fields of newer versions.
    #[serde(flatten)]
    #[schemars(skip)]
    pub unknown: UnknownFields,
}

/// One refusal.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Rejection {
    /// When it was refused.
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub time: Timestamp,

    /// The name of the pod that was refused.
    pub pod: String,

    /// The generation of that pod, if the policy says where it is read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<String>,

    /// The user who asked for it.
    pub requested_by: String,

    /// Why, as one word.
    pub reason: String,

    /// Why, as the client was told.
    pub message: String,

    /// Fields of newer versions.
    #[serde(flatten)]
    #[schemars(skip)]
    pub unknown: UnknownFields,
}
