//! `DeployerPolicy` objects in files, read strictly: a field that is misspelt must not be a rule that is not there.

use std::path::PathBuf;

use anyhow::{bail, ensure};
use kube::Resource;
use serde_json::Value;

use super::{Manifest, Reader};
use crate::api::{DeployerPolicy, GROUP, crd};
use crate::domain::policy::{FieldError, Policy};

/// The policies of some files, in their order; objects of other API groups are passed over.
///
/// # Errors
/// What is wrong with each of them, with its place, field and remedy: fields that are not known, the first value that does not fit,
/// what [`Policy::compile`] finds in one that could be read, names that are missing or given twice.
pub(in crate::cli) fn policies(reader: &mut Reader, files: &[PathBuf]) -> anyhow::Result<Vec<DeployerPolicy>> {
    let (mut policies, mut errors) = (Vec::<DeployerPolicy>::new(), Vec::new());
    for manifest in reader.read_all(files)? {
        if group(&manifest.api_version) != GROUP && manifest.kind != DeployerPolicy::kind(&()) {
            continue;
        }
        let name = manifest.text("/metadata/name").unwrap_or_default().to_owned();
        match read(&manifest) {
            Ok(Some(_))
                if policies
                    .iter()
                    .any(|policy| policy.metadata.name.as_ref() == Some(&name)) =>
            {
                errors.push(format!(
                    "{}: DeployerPolicy {name:?} is given twice; remove one of them",
                    manifest.place
                ));
            }
            Ok(policy) => policies.extend(policy),
            Err(found) => {
                let (kind, place) = (&manifest.kind, &manifest.place);
                errors.extend(found.iter().map(|error| format!("{place}: {kind} {name:?}: {error}")));
            }
        }
    }
    if !errors.is_empty() {
        bail!("{}", errors.join("\n"));
    }
    Ok(policies)
}

/// Refuses to go on without a policy.
///
/// # Errors
/// If there is none.
pub(in crate::cli) fn ensure_some(policies: &[DeployerPolicy]) -> anyhow::Result<()> {
    ensure!(
        !policies.is_empty(),
        "no DeployerPolicy is in the given files; write one, or begin with one of the policies directory"
    );
    Ok(())
}

/// Reads one object; `None` for the other kinds of the group.
fn read(manifest: &Manifest) -> Result<Option<DeployerPolicy>, Vec<FieldError>> {
    let wrong = |field: &str, message: String| Err(vec![FieldError::new(field, message)]);
    let (wanted, kind) = (DeployerPolicy::api_version(&()), DeployerPolicy::kind(&()));
    match &*manifest.kind {
        "DeployerClaim" => return Ok(None),
        other if other != kind => {
            return wrong(
                "kind",
                format!("there is no kind {other} in the group {GROUP}; give {kind}"),
            );
        }
        _ if manifest.api_version != wanted => {
            return wrong(
                "apiVersion",
                format!("{:?} is not known here; give {wanted}", manifest.api_version),
            );
        }
        _ if manifest.text("/metadata/name").is_none() => {
            return wrong("metadata.name", "the policy has no name; give it one".into());
        }
        _ => {}
    }
    let policy = strict(manifest.object.clone())?;
    Policy::compile(&policy).map(|_| Some(policy))
}

/// The policy, if every field of it is known. Its status is of the cluster that it came from.
fn strict(mut object: Value) -> Result<DeployerPolicy, Vec<FieldError>> {
    if let Some(object) = object.as_object_mut() {
        object.remove("status");
    }
    let (mut unknown, mut track) = (Vec::new(), serde_path_to_error::Track::new());
    let deserializer = serde_path_to_error::Deserializer::new(object, &mut track);
    let read = serde_ignored::deserialize(deserializer, |path| unknown.push(Path::of(&path)));
    let read = read.map_err(|error: serde_json::Error| {
        FieldError::new(
            &track.path().to_string(),
            format!("{error}; see kubectl explain deployerpolicy.spec"),
        )
    });
    let is_known = |path: &Path| matches!(path.0.as_slice(), [Step::Key(key)] if key == "apiVersion" || key == "kind");
    let unknown = unknown.iter().filter(|path| !is_known(path)).map(Path::unknown);
    let errors: Vec<FieldError> = unknown.chain(read.as_ref().err().cloned()).collect();
    match read {
        Ok(policy) if errors.is_empty() => Ok(policy),
        _ => Err(errors),
    }
}

/// A field of an object.
struct Path(Vec<Step>);

enum Step {
    Key(String),
    Index(usize),
}

impl Path {
    fn of(path: &serde_ignored::Path<'_>) -> Self {
        use serde_ignored::Path::{Map, NewtypeStruct, NewtypeVariant, Root, Seq, Some};
        match path {
            Root => Self(Vec::new()),
            Seq { parent, index } => Self::of(parent).then(Step::Index(*index)),
            Map { parent, key } => Self::of(parent).then(Step::Key(key.clone())),
            Some { parent } | NewtypeStruct { parent } | NewtypeVariant { parent } => Self::of(parent),
        }
    }

    fn then(mut self, step: Step) -> Self {
        self.0.push(step);
        self
    }

    /// The complaint that the field is not known, with those that are known in its place.
    fn unknown(&self) -> FieldError {
        let known = self.siblings().unwrap_or_default();
        let remedy = if known.is_empty() {
            "remove it".to_owned()
        } else {
            format!("remove it, or give one of {}", known.join(", "))
        };
        FieldError::new(&text(&self.0), format!("there is no such field; {remedy}"))
    }

    /// The fields that the schema of the resource has where this one stands.
    fn siblings(&self) -> Option<Vec<String>> {
        let parent = self.0.split_last()?.1;
        let kind = DeployerPolicy::kind(&());
        let crd = crd::crds().into_iter().find(|crd| crd.spec.names.kind == kind)?;
        let version = serde_json::to_value(crd.spec.versions.into_iter().next()?).ok()?;
        let root = version.pointer("/schema/openAPIV3Schema")?;
        let schema = parent.iter().try_fold(root, |schema, step| match step {
            Step::Key(key) => schema.get("properties")?.get(key),
            Step::Index(_) => schema.get("items"),
        })?;
        let named = schema.get("properties")?.as_object()?.keys().cloned();
        // The schema leaves out what every object has.
        let common = ["apiVersion", "kind", "metadata"].map(str::to_owned);
        Some(common.into_iter().filter(|_| parent.is_empty()).chain(named).collect())
    }
}

/// As `spec.match.matchConditions[0].name`.
fn text(steps: &[Step]) -> String {
    let texts = steps.iter().enumerate().map(|(depth, step)| match step {
        Step::Key(key) if depth == 0 => key.clone(),
        Step::Key(key) => format!(".{key}"),
        Step::Index(index) => format!("[{index}]"),
    });
    texts.collect::<Vec<_>>().concat()
}

/// The group of an apiVersion; empty for the core group.
fn group(api_version: &str) -> &str {
    api_version.rsplit_once('/').map_or("", |(group, _)| group)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn complaints(change: impl Fn(&mut Value)) -> Vec<String> {
        let mut object = json!({
            "apiVersion": "deployer-guard.io/v1alpha1",
            "kind": "DeployerPolicy",
            "metadata": {"name": "p"},
            "spec": {
                "match": {
                    "objectSelector": {"matchExpressions": [{"key": "app", "operator": "Exists"}]},
                    "matchConditions": [{"name": "c", "expression": "true"}],
                },
                "config": {"label": "app"},
            },
        });
        change(&mut object);
        let errors = strict(object).and_then(|policy| Policy::compile(&policy)).err();
        errors.unwrap_or_default().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_field_that_is_not_known_is_named_with_those_that_are() {
        assert_eq!(complaints(|_| {}), [""; 0]);
        for (pointer, complaint) in [
            (
                "",
                "typo: there is no such field; remove it, or give one of apiVersion, kind, metadata, spec, status",
            ),
            ("/metadata", "metadata.typo: there is no such field; remove it"),
            (
                "/spec",
                "spec.typo: there is no such field; remove it, or give one of config, failurePolicy, generation,",
            ),
            (
                "/spec/match",
                "spec.match.typo: there is no such field; remove it, or give one of matchConditions, namespaceSelector, objectSelector",
            ),
            (
                "/spec/match/objectSelector",
                "spec.match.objectSelector.typo: there is no such field; remove it, or give one of matchExpressions, matchLabels",
            ),
            (
                "/spec/match/objectSelector/matchExpressions/0",
                "spec.match.objectSelector.matchExpressions[0].typo: there is no such field; remove it, or give one of key, operator, values",
            ),
            (
                "/spec/match/matchConditions/0",
                "spec.match.matchConditions[0].typo: there is no such field; remove it, or give one of expression, name",
            ),
            (
                "/spec/config",
                "spec.config.typo: there is no such field; remove it, or give one of annotation, expression, label, uid",
            ),
        ] {
            let found = complaints(|object| object.pointer_mut(pointer).unwrap()["typo"] = json!({"a": 1}));
            assert!(
                found.len() == 1 && found[0].starts_with(complaint),
                "{pointer}: {found:?}"
            );
        }
    }

    #[test]
    fn a_value_that_does_not_fit_is_named_with_its_field_beside_what_is_not_known() {
        let found = complaints(|object| {
            object["spec"]["Mode"] = "Warn".into();
            object["spec"]["mode"] = "Warm".into();
        });
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("spec.Mode: there is no such field"), "{found:?}");
        assert!(
            found[1].starts_with("spec.mode: unknown variant `Warm`, expected one of"),
            "{found:?}"
        );
    }

    /// What a cluster gives back holds more than what was applied.
    #[test]
    fn a_policy_that_was_read_back_is_read() {
        let found = complaints(|object| {
            object["metadata"]["uid"] = "u".into();
            object["metadata"]["managedFields"] =
                json!([{"manager": "m", "operation": "Update", "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {}}}]);
            object["status"] = json!({"ofANewerVersion": true, "conditions": "?"});
        });
        assert_eq!(found, [""; 0]);
    }
}
