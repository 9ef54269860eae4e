//! Where the identity of a deployer pod is read.

use super::schema;
use kube::KubeSchema;
use serde::{Deserialize, Serialize};

/// Where the name of the config is read on a deployer pod: exactly one of label, annotation, expression.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[x_kube(validation = Rule::new("[has(self.label), has(self.annotation), has(self.expression)].filter(given, given).size() == 1")
    .message("spec.config needs exactly one of label, annotation and expression: give one and remove the others"))]
#[serde(rename_all = "camelCase")]
pub struct Config {
    /// The key of the label of the pod whose value names the config.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::label_key")]
    pub label: Option<String>,

    /// The key of the annotation of the pod whose value names the config.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::annotation_key")]
    pub annotation: Option<String>,

    /// A CEL expression over object (the pod) that yields a string, the name of the config.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::expression")]
    pub expression: Option<String>,

    /// A CEL expression over object (the pod) and owner that yields a string, the uid of the config: a config made
    /// anew under an old name then starts afresh. Left out: a config is known by its name alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::expression")]
    pub uid: Option<String>,
}

/// Where the generation is read on a deployer pod: exactly one of label, annotation, expression.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[x_kube(validation = Rule::new("[has(self.label), has(self.annotation), has(self.expression)].filter(given, given).size() == 1")
    .message("spec.generation needs exactly one of label, annotation and expression: give one and remove the others"))]
#[serde(rename_all = "camelCase")]
pub struct Generation {
    /// The key of the label of the pod whose value names the generation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::label_key")]
    pub label: Option<String>,

    /// The key of the annotation of the pod whose value names the generation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::annotation_key")]
    pub annotation: Option<String>,

    /// A CEL expression over object (the pod) that yields a string, the name of the generation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::expression")]
    pub expression: Option<String>,

    /// A CEL expression over object (the pod) and owner that yields an int that grows with each generation of the
    /// config. Left out: generations are not ordered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::expression")]
    pub ordinal: Option<String>,
}
