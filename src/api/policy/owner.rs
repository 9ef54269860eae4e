//! The object that a deployer pod works for.

use super::schema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The object that a deployer pod works for, read live at each admission.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Owner {
    /// The group and version that the owner is read with, for example v1 or apps/v1. An ownerReference with another
    /// version of the group counts too.
    #[schemars(
        length(min = 1, max = 317),
        regex(
            pattern = r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?v[0-9]+((alpha|beta)[0-9]+)?$"
        )
    )]
    pub api_version: String,

    /// The kind of the owner, for example ReplicationController.
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[A-Za-z][A-Za-z0-9]*$"))]
    pub kind: String,

    /// A CEL expression over owner and object (the pod) that yields a bool: whether the owner, as it is now, may have
    /// a deployer started. Left out: it is enough that the owner exists with the uid that the pod names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::expression")]
    pub expression: Option<String>,

    /// A CEL expression over owner and object (the pod) that yields a bool: whether the owner, as it is now, is cancelled or final,
    /// so that a deployer that has not started for it has nothing left to do. Such a deployer is an orphan: see
    /// leftovers.orphans. Admission does not ask it. Left out: only an owner that is gone or was replaced makes an orphan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::expression")]
    pub finished: Option<String>,

    /// Whether owners that were refused and wait for the key are touched with a no-op annotation when it becomes free,
    /// so that their controller tries again: Never or OnRelease. Default Never.
    #[serde(default)]
    pub wake: Wake,
}

/// Whether waiting owners are woken when a key becomes free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Wake {
    /// They are left alone.
    #[default]
    Never,
    /// Each gets one no-op annotation patch.
    OnRelease,
}
