//! From the object to the compiled policy, with all that is wrong with it.
//!
//! The schema of the resource refuses most of this too. It is checked again because policies also come from files.

use super::field::FieldError;
use super::identity::Source;
use super::matching::Condition;
use super::owner::OwnerRule;
use super::selector::Selector;
use super::{Policy, WatchedKeys};
use crate::api::policy::{
    DeployerPolicy, DeployerPolicySpec, MatchCondition, OlderGenerations, Reruns, Scope as KeyScope,
};
use crate::domain::expression::{Expression, Fault, Keys, Reads, Scope, within};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::time::Duration;

/// The most matchConditions that a policy may have. The API server takes 64 for a webhook; some are ours.
pub(super) const MAX_CONDITIONS: usize = 56;

/// What a condition may cost on a pod with next to nothing in it: it is tried on one for each key that it reads.
const TRIAL: u64 = 200_000;

/// Collects errors while the rest is compiled.
#[derive(Default)]
struct Errors(Vec<FieldError>);

impl Errors {
    fn add(&mut self, field: &str, message: impl Into<String>) {
        self.0.push(FieldError::new(field, message));
    }

    fn take<T, E: Into<FieldError>>(&mut self, result: Result<T, E>) -> Option<T> {
        result.map_err(|error| self.0.push(error.into())).ok()
    }

    fn take_all<T>(&mut self, result: Result<T, Vec<FieldError>>) -> Option<T> {
        result.map_err(|errors| self.0.extend(errors)).ok()
    }

    /// Compiles an expression that must yield `wanted`.
    fn expression(
        &mut self,
        field: &str,
        source: Option<&String>,
        variables: &[&str],
        wanted: &'static str,
    ) -> Option<Expression> {
        let compiled = Expression::compile(field, source?, variables);
        self.take(compiled.and_then(|expression| expression.check_yields(wanted).map(|()| expression)))
    }
}

impl Policy {
    /// Compiles a policy.
    ///
    /// # Errors
    /// Everything that is wrong with it, each with the field, the position in an expression, and the remedy.
    pub fn compile(policy: &DeployerPolicy) -> Result<Self, Vec<FieldError>> {
        let spec = &policy.spec;
        let mut errors = Errors::default();
        check_rules(policy, &mut errors);
        let owner_variables: &[&str] = if spec.owner.is_some() {
            &["object", "owner"]
        } else {
            &["object"]
        };
        let namespace_selector = errors.take_all(Selector::new(
            "spec.match.namespaceSelector",
            spec.match_.namespace_selector.as_ref(),
        ));
        let object_selector = errors.take_all(Selector::new(
            "spec.match.objectSelector",
            spec.match_.object_selector.as_ref(),
        ));
        let conditions = conditions(&spec.match_.match_conditions, &mut errors);
        let config = &spec.config;
        let config_source = source(
            "spec.config",
            [&config.label, &config.annotation, &config.expression],
            &mut errors,
        );
        let config_uid = errors.expression("spec.config.uid", config.uid.as_ref(), owner_variables, "string");
        let generation = spec.generation.as_ref();
        let generation_source = generation.and_then(|generation| {
            let fields = [&generation.label, &generation.annotation, &generation.expression];
            source("spec.generation", fields, &mut errors)
        });
        let ordinal = generation.and_then(|generation| generation.ordinal.as_ref());
        let ordinal = errors.expression("spec.generation.ordinal", ordinal, owner_variables, "int");
        let owner = spec.owner.as_ref().map(|owner| OwnerRule {
            api_version: owner.api_version.clone(),
            kind: owner.kind.clone(),
            expression: errors.expression(
                "spec.owner.expression",
                owner.expression.as_ref(),
                owner_variables,
                "bool",
            ),
            finished: errors.expression("spec.owner.finished", owner.finished.as_ref(), owner_variables, "bool"),
            wake: owner.wake,
        });
        let (Some(namespace_selector), Some(object_selector), Some(config), true) =
            (namespace_selector, object_selector, config_source, errors.0.is_empty())
        else {
            return Err(errors.0);
        };
        let mut compiled = Self {
            name: policy.metadata.name.clone().unwrap_or_default(),
            uid: policy.metadata.uid.clone().unwrap_or_default(),
            generation: policy.metadata.generation.unwrap_or_default(),
            mode: spec.mode,
            failure_policy: spec.effective_failure_policy(),
            timeout: Duration::from_secs(u64::try_from(spec.timeout_seconds).unwrap_or_default()),
            scope: spec.scope,
            reruns: spec.effective_reruns(),
            older_generations: spec.effective_older_generations(),
            has_generation: spec.generation.is_some(),
            leftovers: spec.leftovers,
            namespace_selector,
            object_selector,
            conditions,
            config,
            config_uid,
            generation_source,
            ordinal,
            owner,
            watched: WatchedKeys::default(),
        };
        compiled.watched = watched(&compiled);
        Ok(compiled)
    }
}

/// The rules between fields.
fn check_rules(policy: &DeployerPolicy, errors: &mut Errors) {
    let spec = &policy.spec;
    check_name(policy.metadata.name.as_deref(), errors);
    if !(1..=30).contains(&spec.timeout_seconds) {
        errors.add("spec.timeoutSeconds", "the timeout must be from 1 to 30 seconds");
    }
    let narrows = spec.match_.object_selector.as_ref().is_some_and(|selector| {
        selector.match_labels.as_ref().is_some_and(|labels| !labels.is_empty())
            || selector
                .match_expressions
                .as_ref()
                .is_some_and(|expressions| !expressions.is_empty())
    });
    if !narrows && spec.match_.match_conditions.is_empty() {
        errors.add(
            "spec.match",
            "the policy would match every pod; give an objectSelector with an entry, or matchConditions",
        );
    }
    check_generation_rules(spec, errors);
}

fn check_generation_rules(spec: &DeployerPolicySpec, errors: &mut Errors) {
    let ordinal = spec
        .generation
        .as_ref()
        .is_some_and(|generation| generation.ordinal.is_some());
    if spec.generation.is_none() && spec.scope == KeyScope::Generation {
        errors.add(
            "spec.scope",
            "scope Generation needs spec.generation; say where it is read, or use scope Config",
        );
    }
    if spec.generation.is_none() && spec.effective_reruns() != Reruns::Always {
        errors.add(
            "spec.reruns",
            "reruns other than Always needs spec.generation; say where it is read, or leave reruns out",
        );
    }
    let comparable = spec.scope == KeyScope::Config && ordinal;
    if !comparable && spec.effective_older_generations() == OlderGenerations::Deny {
        errors.add(
            "spec.olderGenerations",
            "Deny needs spec.scope Config and spec.generation.ordinal; give both, or use Allow",
        );
    }
}

/// The name of an object, and a label of the webhook's name. A policy without a name is in no cluster yet.
fn check_name(name: Option<&str>, errors: &mut Errors) {
    let Some(name) = name else { return };
    if name.len() > 63 {
        errors.add(
            "metadata.name",
            "the name may have at most 63 characters; choose a shorter one",
        );
    }
    let alphanumeric = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_label = |label: &str| {
        label.bytes().all(|byte| alphanumeric(byte) || byte == b'-')
            && label.bytes().next().is_some_and(alphanumeric)
            && label.bytes().last().is_some_and(alphanumeric)
    };
    if !name.split('.').all(is_label) {
        errors.add(
            "metadata.name",
            "the name may hold lower case letters, digits, - and . alone, and each part between dots begins and ends with a letter \
             or digit; choose another",
        );
    }
}

fn source(field: &str, [label, annotation, expression]: [&Option<String>; 3], errors: &mut Errors) -> Option<Source> {
    match (label, annotation, expression) {
        (Some(key), None, None) => Some(Source::Label(key.clone())),
        (None, Some(key), None) => Some(Source::Annotation(key.clone())),
        (None, None, Some(_)) => {
            let field = format!("{field}.expression");
            errors
                .expression(&field, expression.as_ref(), &["object"], "string")
                .map(Source::Expression)
        }
        _ => {
            errors.add(
                field,
                "exactly one of label, annotation and expression is needed; give one and remove the others",
            );
            None
        }
    }
}

fn conditions(conditions: &[MatchCondition], errors: &mut Errors) -> Vec<Condition> {
    if conditions.len() > MAX_CONDITIONS {
        errors.add(
            "spec.match.matchConditions",
            "there may be at most 56 conditions; join some with &&",
        );
        // To compile and try them all could take long.
        return Vec::new();
    }
    let mut names = BTreeSet::new();
    let mut compiled = Vec::new();
    for (index, condition) in conditions.iter().enumerate() {
        let field = format!("spec.match.matchConditions[{index}]");
        if condition.name.starts_with("deployer-guard.io/") {
            errors.add(
                &format!("{field}.name"),
                "the prefix deployer-guard.io/ is reserved; choose another name",
            );
        }
        if !names.insert(condition.name.as_str()) {
            errors.add(&format!("{field}.name"), "the name is given twice; choose another");
        }
        let field = format!("{field}.expression");
        let expression = errors.expression(&field, Some(&condition.expression), &["object", "oldObject"], "bool");
        let checked = expression.and_then(|expression| errors.take(check_on_other_pods(expression)));
        compiled.extend(checked.map(|expression| Condition {
            name: condition.name.clone(),
            expression,
        }));
    }
    compiled
}

/// An error on a pod that is no deployer refuses that pod, so a condition must not fail on what other pods lack: all of
/// their labels and annotations, or any one of those that it reads.
fn check_on_other_pods(expression: Expression) -> Result<Expression, FieldError> {
    for metadata in other_pods(expression.reads()) {
        let pod = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": metadata,
            "spec": {"containers": [{"name": "main", "image": "image"}]},
            "status": {},
        });
        let scope = Scope::new(&[("object", Some(&pod)), ("oldObject", Some(&Value::Null))]);
        let tried = within(TRIAL, || expression.bool(&scope)).value;
        match tried.unwrap_or_else(|| Err(expression.too_expensive())) {
            Ok(_) => {}
            Err(error) if error.fault == Fault::TooExpensive => {
                let message = "the expression takes too many steps even on a pod with next to nothing in it; make it simpler: fewer macros within macros";
                return Err(FieldError::new(expression.field(), message));
            }
            Err(error) if matches!(error.fault, Fault::WrongType { .. }) => return Err(error.into()),
            Err(error) => {
                let (field, key) = example(&expression);
                let message = format!(
                    "on a pod that lacks one of these labels and annotations, and without an oldObject, {}; there the API server \
                     would refuse that pod, whatever it is. Guard what may be absent: has(object.metadata.{field}) && \
                     '{key}' in object.metadata.{field} && ...",
                    error.fault,
                );
                return Err(FieldError::new(expression.field(), message));
            }
        }
    }
    Ok(expression)
}

/// The metadata of pods that are no deployers: without labels and annotations, with others, with all that are read, and with
/// all of them but one.
fn other_pods(reads: &Reads) -> Vec<Value> {
    let keys = |keys: &Keys| match keys {
        Keys::Some(keys) => keys.iter().map(|key| (key.clone(), json!("1"))).collect::<Map<_, _>>(),
        Keys::All => Map::new(),
    };
    let (labels, annotations) = (keys(&reads.labels), keys(&reads.annotations));
    let metadata = |labels: &Map<_, _>, annotations: &Map<_, _>| json!({"name": "pod", "namespace": "default", "labels": labels, "annotations": annotations});
    let other = Map::from_iter([(String::new(), json!(""))]);
    let mut pods = vec![json!({"name": "pod", "namespace": "default"}), metadata(&other, &other)];
    pods.push(metadata(&labels, &annotations));
    let without = |all: &Map<String, Value>, key: &String| {
        let mut rest = all.clone();
        rest.remove(key);
        rest
    };
    pods.extend(labels.keys().map(|key| metadata(&without(&labels, key), &annotations)));
    pods.extend(
        annotations
            .keys()
            .map(|key| metadata(&labels, &without(&annotations, key))),
    );
    pods
}

/// A key that the expression reads, to show how it is guarded.
fn example(expression: &Expression) -> (&'static str, &str) {
    let reads = expression.reads();
    if first(&reads.labels).is_none() && first(&reads.annotations).is_some() {
        ("annotations", first(&reads.annotations).unwrap_or("key"))
    } else {
        ("labels", first(&reads.labels).unwrap_or("key"))
    }
}

fn first(keys: &Keys) -> Option<&str> {
    match keys {
        Keys::Some(keys) => keys.iter().next().map(String::as_str),
        Keys::All => None,
    }
}

fn watched(policy: &Policy) -> WatchedKeys {
    let mut watched = WatchedKeys::default();
    for key in policy.object_selector.keys() {
        watched.labels.insert(key);
    }
    for source in [Some(&policy.config), policy.generation_source.as_ref()]
        .into_iter()
        .flatten()
    {
        match source {
            Source::Label(key) => watched.labels.insert(key),
            Source::Annotation(key) => watched.annotations.insert(key),
            Source::Expression(expression) => watched.extend(expression.reads()),
        }
    }
    let owner = policy.owner.as_ref();
    let others = [
        policy.config_uid.as_ref(),
        policy.ordinal.as_ref(),
        owner.and_then(|owner| owner.expression.as_ref()),
        owner.and_then(|owner| owner.finished.as_ref()),
    ];
    let conditions = policy.conditions.iter().map(|condition| &condition.expression);
    for expression in conditions.chain(others.into_iter().flatten()) {
        watched.extend(expression.reads());
    }
    watched
}
