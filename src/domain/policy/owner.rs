//! The object that a deployer pod works for.

use crate::api::policy::Wake;
use crate::domain::expression::Expression;
use serde_json::Value;

/// The longest name that an object has, in bytes.
const MAX_NAME: usize = 253;

/// The longest uid that is read, in bytes; an API server makes them of 36.
const MAX_UID: usize = 128;

/// What a policy asks of the owner.
#[derive(Clone, Debug)]
pub struct OwnerRule {
    /// The group and version that the owner is read with.
    pub api_version: String,
    /// The kind of the owner.
    pub kind: String,
    /// Whether the owner, as it is now, may have a deployer started.
    pub expression: Option<Expression>,
    /// Whether the owner, as it is now, is cancelled or final.
    pub finished: Option<Expression>,
    /// Whether waiting owners are woken when a key becomes free.
    pub wake: Wake,
}

/// The owner that a pod names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OwnerReference {
    /// The group and version to read it with: the policy's, not the pod's.
    pub api_version: String,
    /// Its kind.
    pub kind: String,
    /// Its name, in the pod's namespace.
    pub name: String,
    /// Its uid.
    pub uid: String,
}

/// A deployer pod that does not say which owner it works for.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum OwnerError {
    /// It names none.
    #[error(
        "the pod has no ownerReference to a {kind} ({api_version}), which spec.owner of the policy asks for; let its owner create it"
    )]
    Missing {
        /// The group and version that the policy asks for.
        api_version: String,
        /// The kind that the policy asks for.
        kind: String,
    },
    /// It names several.
    #[error(
        "the pod has {count} ownerReferences to a {kind} ({api_version}), and spec.owner of the policy asks for one; leave one"
    )]
    Several {
        /// The group and version that the policy asks for.
        api_version: String,
        /// The kind that the policy asks for.
        kind: String,
        /// How many.
        count: usize,
    },
    /// The one that it names has no uid, or a name that no object has.
    #[error(
        "the pod's ownerReference to a {kind} ({api_version}) has no uid, or a name that no object has; give it those of its owner"
    )]
    Malformed {
        /// The group and version that the policy asks for.
        api_version: String,
        /// The kind that the policy asks for.
        kind: String,
    },
}

impl OwnerRule {
    pub(super) fn reference(&self, pod: &Value) -> Result<OwnerReference, OwnerError> {
        let (api_version, kind) = (self.api_version.clone(), self.kind.clone());
        let references = pod
            .get("metadata")
            .and_then(|metadata| metadata.get("ownerReferences")?.as_array());
        let of_kind: Vec<&Value> = references
            .into_iter()
            .flatten()
            .filter(|reference| self.is_of_kind(reference))
            .collect();
        match of_kind.as_slice() {
            [] => Err(OwnerError::Missing { api_version, kind }),
            [reference] => match (field(reference, "name"), field(reference, "uid")) {
                (name, uid) if is_name(name) && (1..=MAX_UID).contains(&uid.len()) => Ok(OwnerReference {
                    api_version,
                    kind,
                    name: name.into(),
                    uid: uid.into(),
                }),
                _ => Err(OwnerError::Malformed { api_version, kind }),
            },
            several => Err(OwnerError::Several {
                api_version,
                kind,
                count: several.len(),
            }),
        }
    }

    fn is_of_kind(&self, reference: &Value) -> bool {
        field(reference, "kind") == self.kind && group(field(reference, "apiVersion")) == group(&self.api_version)
    }
}

/// Whether an object may have this name. The API server takes any text in an ownerReference, and the name becomes part of a
/// URL: `rc-1?resourceVersion=0` would be read from a cache, and `../` would be another object.
fn is_name(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~:@!$&'()*+,;=".contains(&byte);
    (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(is_plain) && !matches!(name, "." | "..")
}

fn field<'a>(reference: &'a Value, name: &str) -> &'a str {
    reference.get(name).and_then(Value::as_str).unwrap_or_default()
}

/// The group of an apiVersion; empty for the core group.
fn group(api_version: &str) -> &str {
    api_version.rsplit_once('/').map_or("", |(group, _)| group)
}
