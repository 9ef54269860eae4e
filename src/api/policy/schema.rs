//! Schemas of single fields. Lengths are bounded so that the CEL rules of the CRD stay within the API server's cost
//! budget.

use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::{Value, json};

/// The longest CEL expression that a policy may hold, in characters.
pub(super) const MAX_EXPRESSION: u32 = 4096;

/// A DNS subdomain with a slash, then a name of at most 63 characters.
const LABEL_KEY: &str = r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$";

/// As a label key; the API server lets annotation keys have capital letters in the prefix too.
const ANNOTATION_KEY: &str = r"^([A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?(\.[A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$";

const LABEL_VALUE: &str = r"^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$";

/// The longest key: a prefix of 253 characters, a slash, a name of 63.
const MAX_KEY: u32 = 317;

/// A label key.
pub(super) fn label_key(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "minLength": 1, "maxLength": MAX_KEY, "pattern": LABEL_KEY})
}

/// An annotation key.
pub(super) fn annotation_key(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "minLength": 1, "maxLength": MAX_KEY, "pattern": ANNOTATION_KEY})
}

/// The name of a match condition.
pub(super) fn qualified_name(generator: &mut SchemaGenerator) -> Schema {
    label_key(generator)
}

/// A CEL expression.
pub(super) fn expression(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "minLength": 1, "maxLength": MAX_EXPRESSION})
}

/// A label selector as the API server judges those of a webhook configuration, so that a policy that it would refuse
/// there is refused here, where somebody sees it.
pub(super) fn selector(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "properties": {
            "matchLabels": {
                "description": "Labels that must all have the given value.",
                "type": "object",
                "maxProperties": 32,
                "additionalProperties": {"type": "string", "maxLength": 63, "pattern": LABEL_VALUE},
            },
            "matchExpressions": {
                "description": "Requirements that must all hold.",
                "type": "array",
                "maxItems": 32,
                "items": requirement(generator),
            },
        },
    })
}

fn requirement(generator: &mut SchemaGenerator) -> Value {
    json!({
        "description": "A requirement on one label.",
        "type": "object",
        "required": ["key", "operator"],
        "properties": {
            "key": described(label_key(generator), "The key of the label."),
            "operator": {
                "description": "How the label is compared: In, NotIn, Exists or DoesNotExist. A pod without the label satisfies NotIn.",
                "type": "string",
                "enum": ["In", "NotIn", "Exists", "DoesNotExist"],
            },
            "values": {
                "description": "The values for In and NotIn, at least one; none for Exists and DoesNotExist.",
                "type": "array",
                "maxItems": 64,
                "items": {"type": "string", "maxLength": 63, "pattern": LABEL_VALUE},
            },
        },
        "x-kubernetes-validations": [{
            "rule": "(self.operator in ['In', 'NotIn']) == (has(self.values) && size(self.values) > 0)",
            "message": "matchExpressions[].values must have at least one entry for In and NotIn, and none for Exists and DoesNotExist",
        }],
    })
}

fn described(mut schema: Schema, description: &str) -> Value {
    schema.insert("description".into(), description.into());
    schema.to_value()
}
