//! A `DeployerPolicy`, compiled: the one place that says which pods are deployers and what they work for. Webhook,
//! guard and command line use it alike.

mod compile;
mod field;
mod identity;
mod matching;
mod owner;
mod selector;
mod trial;

pub use field::FieldError;
pub use identity::{Identity, IdentityError, MAX_IDENTITY};
pub use matching::Mismatch;
pub use owner::{OwnerError, OwnerReference, OwnerRule};

use super::expression::{Expression, ExpressionError, Keys, Reads, Scope};
use crate::api::policy::{FailurePolicy, Leftovers, Mode, OlderGenerations, Reruns, Scope as KeyScope, Wake};
use identity::Source;
use matching::Condition;
use selector::Selector;
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The labels and annotations that a policy matches or reads on a pod.
pub type WatchedKeys = Reads;

/// The annotation by which kubelet marks the mirror of a static pod.
pub const MIRROR_ANNOTATION: &str = "kubernetes.io/config.mirror";

/// A compiled `DeployerPolicy`.
///
/// Made by [`Policy::compile`] alone, so whoever has one can evaluate it.
#[derive(Clone, Debug)]
pub struct Policy {
    /// `metadata.name`.
    pub name: String,
    /// `metadata.uid`; empty for a policy that is not stored.
    pub uid: String,
    /// `metadata.generation`; 0 for a policy that is not stored.
    pub generation: i64,
    /// What is done with a verdict.
    pub mode: Mode,
    /// What happens when no decision can be reached; `Ignore` in the modes `Warn` and `Audit`, whatever the policy says.
    pub failure_policy: FailurePolicy,
    /// How long the API server waits for a decision.
    pub timeout: Duration,
    /// For what at most one deployer may be active.
    pub scope: KeyScope,
    /// Whether a generation may be run again, the default filled in.
    pub reruns: Reruns,
    /// Whether an older generation may start, the default filled in.
    pub older_generations: OlderGenerations,
    /// Whether the policy says where a pod's generation is read.
    pub has_generation: bool,
    /// What becomes of leftovers.
    pub leftovers: Leftovers,
    namespace_selector: Selector,
    object_selector: Selector,
    conditions: Vec<Condition>,
    config: Source,
    config_uid: Option<Expression>,
    generation_source: Option<Source>,
    ordinal: Option<Expression>,
    owner: Option<OwnerRule>,
    watched: WatchedKeys,
}

impl Policy {
    /// The policy's `objectSelector`, as the `labelSelector` parameter of a list.
    #[must_use]
    pub fn label_selector(&self) -> String {
        self.object_selector.to_string()
    }

    /// Whether the policy's `namespaceSelector` selects anything less than all namespaces.
    #[must_use]
    pub fn selects_namespaces(&self) -> bool {
        self.namespace_selector != Selector::default()
    }

    /// Whether the policy's `namespaceSelector` matches a namespace object. That kube-system and our own namespace are
    /// out is not known here.
    #[must_use]
    pub fn matches_namespace(&self, namespace: &Value) -> bool {
        self.namespace_selector.matches(&labels(namespace))
    }

    /// What a matched pod works for, from the pod alone.
    ///
    /// # Errors
    /// A part of it is missing, empty, too long, or holds control characters, or its expression fails.
    pub fn identity(&self, pod: &Value) -> Result<Identity, IdentityError> {
        let config = self.config.read("spec.config", pod)?;
        let generation = self
            .generation_source
            .as_ref()
            .map(|source| source.read("spec.generation", pod))
            .transpose()?;
        Ok(Identity { config, generation })
    }

    /// The owner that a matched pod names: its one ownerReference of the policy's group and kind, whatever the version.
    /// `None` where the policy asks for no owner.
    ///
    /// # Errors
    /// The pod names no such owner, or several.
    pub fn owner_reference(&self, pod: &Value) -> Result<Option<OwnerReference>, OwnerError> {
        self.owner.as_ref().map(|owner| owner.reference(pod)).transpose()
    }

    /// Whether the owner, as it is now, may have a deployer started. True where the policy has no expression for it.
    ///
    /// # Errors
    /// The expression fails.
    pub fn owner_allows(&self, pod: &Value, owner: &Value) -> Result<bool, ExpressionError> {
        let Some(expression) = self.owner.as_ref().and_then(|owner| owner.expression.as_ref()) else {
            return Ok(true);
        };
        expression.bool(&Scope::new(&[("object", Some(pod)), ("owner", Some(owner))]))
    }

    /// Whether the owner, as it is now, is cancelled or final, so that a deployer that has not started for it has nothing left to
    /// do. False where the policy has no expression for it. Admission does not ask it.
    ///
    /// # Errors
    /// The expression fails.
    pub fn owner_finished(&self, pod: &Value, owner: &Value) -> Result<bool, ExpressionError> {
        let Some(expression) = self.owner.as_ref().and_then(|owner| owner.finished.as_ref()) else {
            return Ok(false);
        };
        expression.bool(&Scope::new(&[("object", Some(pod)), ("owner", Some(owner))]))
    }

    /// The uid of the config, where the policy says how it is computed.
    ///
    /// # Errors
    /// The expression fails (without an owner, if it reads the owner), or its value is no identity.
    pub fn config_uid(&self, pod: &Value, owner: Option<&Value>) -> Result<Option<String>, IdentityError> {
        let Some(expression) = &self.config_uid else {
            return Ok(None);
        };
        let value = expression.string(&Scope::new(&[("object", Some(pod)), ("owner", owner)]))?;
        identity::check(expression.field(), &identity::Origin::Expression, value).map(Some)
    }

    /// The ordinal of the pod's generation, where the policy says how it is computed.
    ///
    /// # Errors
    /// The expression fails (without an owner, if it reads the owner), or yields no int.
    pub fn ordinal(&self, pod: &Value, owner: Option<&Value>) -> Result<Option<i64>, IdentityError> {
        let Some(expression) = &self.ordinal else {
            return Ok(None);
        };
        Ok(Some(
            expression.int(&Scope::new(&[("object", Some(pod)), ("owner", owner)]))?,
        ))
    }

    /// Whether the owner must be read at admission.
    #[must_use]
    pub fn needs_owner(&self) -> bool {
        self.owner.is_some()
    }

    /// Whether owners that were refused are woken when the key becomes free.
    #[must_use]
    pub fn wakes_owners(&self) -> bool {
        self.owner.as_ref().is_some_and(|owner| owner.wake == Wake::OnRelease)
    }

    /// What the policy asks of the owner.
    #[must_use]
    pub fn owner_rule(&self) -> Option<&OwnerRule> {
        self.owner.as_ref()
    }

    /// The labels and annotations that the policy matches or reads on a pod.
    #[must_use]
    pub fn watched(&self) -> &WatchedKeys {
        &self.watched
    }

    /// The watched labels and annotations that differ between two states of a pod, like `label app` or
    /// `annotation example.com/config`; labels first, each in order.
    #[must_use]
    pub fn changed_keys(&self, old: &Value, new: &Value) -> Vec<String> {
        let mut changed = Vec::new();
        for (name, field, keys) in [
            ("label", "labels", &self.watched.labels),
            ("annotation", "annotations", &self.watched.annotations),
        ] {
            let differs = |key: &&str| text(old, field, key) != text(new, field, key);
            changed.extend(
                keys_of(keys, field, [old, new])
                    .into_iter()
                    .filter(differs)
                    .map(|key| format!("{name} {key}")),
            );
        }
        changed
    }
}

fn keys_of<'a>(keys: &'a Keys, field: &str, objects: [&'a Value; 2]) -> BTreeSet<&'a str> {
    match keys {
        Keys::Some(keys) => keys.iter().map(String::as_str).collect(),
        Keys::All => objects
            .into_iter()
            .filter_map(|object| map(object, field))
            .flat_map(Map::keys)
            .map(String::as_str)
            .collect(),
    }
}

fn map<'a>(object: &'a Value, field: &str) -> Option<&'a Map<String, Value>> {
    object.get("metadata")?.get(field)?.as_object()
}

/// The value of a label (`field` is `labels`) or annotation.
fn text<'a>(object: &'a Value, field: &str, key: &str) -> Option<&'a str> {
    map(object, field)?.get(key)?.as_str()
}

fn labels(object: &Value) -> BTreeMap<&str, &str> {
    let entries = map(object, "labels").into_iter().flatten();
    entries
        .filter_map(|(key, value)| Some((key.as_str(), value.as_str()?)))
        .collect()
}

#[cfg(test)]
mod tests;
