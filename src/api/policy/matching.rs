//! Which pods a policy matches.

use super::schema;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::KubeSchema;
use serde::{Deserialize, Serialize};

/// Which pods are deployers.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[x_kube(validation = Rule::new("(has(self.objectSelector) && ((has(self.objectSelector.matchLabels) && size(self.objectSelector.matchLabels) > 0) || (has(self.objectSelector.matchExpressions) && size(self.objectSelector.matchExpressions) > 0))) || (has(self.matchConditions) && size(self.matchConditions) > 0)")
    .message("spec.match must narrow: give spec.match.objectSelector at least one entry in matchLabels or matchExpressions, or add spec.match.matchConditions"))]
#[serde(rename_all = "camelCase")]
pub struct Match {
    /// Namespaces in which pods are matched, by their labels, as in a webhook configuration. kube-system and the
    /// namespace of deployer-guard are always out. Default: all others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::selector")]
    pub namespace_selector: Option<LabelSelector>,

    /// Pods that are matched, by their labels, as in a webhook configuration. Default: all, and matchConditions must
    /// narrow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::selector")]
    pub object_selector: Option<LabelSelector>,

    /// CEL expressions over object and oldObject that all must hold, at most 56. An expression that fails on a pod
    /// refuses that pod, whatever it is: guard each label and annotation with has() and in.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 56), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub match_conditions: Vec<MatchCondition>,
}

/// A condition that a pod must satisfy to be matched.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MatchCondition {
    /// The name of the condition, unique in the list: a qualified name, like my-condition or example.com/my-condition.
    /// The prefix deployer-guard.io/ is reserved.
    #[schemars(schema_with = "schema::qualified_name")]
    #[x_kube(validation = Rule::new("!self.startsWith('deployer-guard.io/')")
        .message("spec.match.matchConditions[].name may not begin with deployer-guard.io/: the prefix is reserved; choose another name"))]
    pub name: String,

    /// A CEL expression over object (the pod) and oldObject (the pod before an update, else null) that yields a bool.
    #[schemars(schema_with = "schema::expression")]
    pub expression: String,
}
