//! The CRD manifests, generated from the types.

use super::{DeployerClaim, DeployerPolicy};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use kube::CustomResourceExt;

/// The definitions of both resources, policies first.
///
/// They differ from what the derive gives in two things. Descriptions have no line breaks, which `kubectl explain` would
/// keep; and no field is `nullable`, so that the API server stores no `null` (it drops one where there is a default, and
/// refuses it elsewhere) and a validation rule's `has()` means what it says.
#[must_use]
pub fn crds() -> Vec<CustomResourceDefinition> {
    vec![definition::<DeployerPolicy>(), definition::<DeployerClaim>()]
}

/// A definition as a manifest, with a word on where it comes from.
///
/// # Errors
/// It cannot be written as YAML.
pub fn manifest(crd: &CustomResourceDefinition) -> Result<String, serde_saphyr::ser::Error> {
    let yaml = serde_saphyr::to_string(crd)?;
    Ok(format!(
        "# Generated from the types in src/api. Not to be edited by hand.\n{yaml}"
    ))
}

/// Both definitions as one YAML stream.
///
/// # Errors
/// They cannot be written as YAML.
pub fn manifests() -> Result<String, serde_saphyr::ser::Error> {
    let manifests = crds().iter().map(manifest).collect::<Result<Vec<_>, _>>()?;
    Ok(manifests.join("---\n"))
}

fn definition<R: CustomResourceExt>() -> CustomResourceDefinition {
    let mut crd = R::crd();
    for version in &mut crd.spec.versions {
        if let Some(schema) = version
            .schema
            .as_mut()
            .and_then(|schema| schema.open_api_v3_schema.as_mut())
        {
            tidy(schema);
        }
    }
    crd
}

fn tidy(schema: &mut JSONSchemaProps) {
    schema.nullable = None;
    schema.description = schema.description.take().map(|text| text.replace('\n', " "));
    for property in schema
        .properties
        .iter_mut()
        .flat_map(|properties| properties.values_mut())
    {
        tidy(property);
    }
    if let Some(JSONSchemaPropsOrArray::Schema(items)) = &mut schema.items {
        tidy(items);
    }
    if let Some(JSONSchemaPropsOrBool::Schema(values)) = &mut schema.additional_properties {
        tidy(values);
    }
}
