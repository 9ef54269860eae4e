//! The reference of all fields in `docs/api.md`, of what the schema of the custom resources says of them.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};

const HEAD: &str = "# Fields of DeployerPolicy and DeployerClaim

Generated from the types in src/api. Not to be edited by hand. `kubectl explain deployerpolicy.spec --recursive` says the same on a cluster.
Examples are in [policies/](../policies), the CEL of expressions in [expressions.md](expressions.md), and what a refusal's reason means in
[reasons.md](reasons.md).
";

/// The whole document.
pub(crate) fn document(definitions: &[CustomResourceDefinition]) -> String {
    let mut text = HEAD.to_owned();
    for definition in definitions {
        let version = &definition.spec.versions[0];
        let kind = &definition.spec.names.kind;
        let schema = version
            .schema
            .as_ref()
            .and_then(|schema| schema.open_api_v3_schema.as_ref());
        let schema = schema.expect("a schema");
        let scope = &definition.spec.scope;
        let _ = write!(
            text,
            "\n## {kind}\n\n`apiVersion: {}/{}`, `kind: {kind}`, scope {scope}, short name `{}`. {}\n",
            definition.spec.group,
            version.name,
            definition
                .spec
                .names
                .short_names
                .iter()
                .flatten()
                .next()
                .expect("a short name"),
            said(schema)
        );
        for (part, of) in properties(schema) {
            let _ = write!(text, "\n### {kind} {part}\n\n{}\n\n", said(of));
            text.push_str("| Field | Type | Default | |\n|---|---|---|---|\n");
            rows(&mut text, part, of);
        }
    }
    text
}

/// A row for each field, those in it after it.
fn rows(text: &mut String, path: &str, of: &JSONSchemaProps) {
    let required = of.required.as_deref().unwrap_or_default();
    for (name, field) in properties(of) {
        let (items, path) = (items(field), format!("{path}.{name}"));
        let default = match &field.default {
            Some(default) if properties(field).is_empty() => format!("`{}`", default.0),
            _ if required.contains(name) => "required".into(),
            _ => String::new(),
        };
        let _ = writeln!(text, "| `{path}` | {} | {default} | {} |", type_of(field), said(field));
        match items {
            Some(item) => rows(text, &format!("{path}[]"), item),
            None => rows(text, &path, field),
        }
    }
}

/// What kind of value it is; of a list, how long, of a number, from where to where.
fn type_of(field: &JSONSchemaProps) -> String {
    if let Some(item) = items(field) {
        let most = field.max_items.map(|most| format!(", at most {most}"));
        return format!("list of {}{}", type_of(item), most.unwrap_or_default());
    }
    if let Some(values) = &field.enum_ {
        let values: Vec<_> = values.iter().map(|value| value.0.as_str().expect("a text")).collect();
        return values.join(", ");
    }
    if let Some(JSONSchemaPropsOrBool::Schema(value)) = &field.additional_properties {
        return format!("map to {}", type_of(value));
    }
    let kind = field.type_.as_deref().expect("a type");
    let number = |bound: f64| format!("{bound}");
    match (field.format.as_deref(), field.minimum, field.maximum) {
        (Some("date-time"), ..) => "time".into(),
        (_, Some(least), Some(most)) => format!("{kind}, {} to {}", number(least), number(most)),
        (_, Some(least), None) => format!("{kind}, at least {}", number(least)),
        (_, None, Some(most)) => format!("{kind}, at most {}", number(most)),
        _ => kind.into(),
    }
}

/// What its documentation says, on one line and safe in a table.
fn said(of: &JSONSchemaProps) -> String {
    let words: Vec<_> = of.description.iter().flat_map(|text| text.split_whitespace()).collect();
    words.join(" ").replace('|', "\\|").replace('<', "\\<")
}

fn properties(of: &JSONSchemaProps) -> BTreeMap<&String, &JSONSchemaProps> {
    of.properties.iter().flatten().collect()
}

fn items(field: &JSONSchemaProps) -> Option<&JSONSchemaProps> {
    match &field.items {
        Some(JSONSchemaPropsOrArray::Schema(item)) => Some(item),
        _ => None,
    }
}
