//! What a deployer pod works for.

use super::{KeyScope, Policy, text};
use crate::domain::expression::{Expression, ExpressionError, Scope};
use crate::domain::key::{Key, Subject};
use serde_json::Value;
use std::fmt;

/// The longest name of a config or generation, in bytes.
pub const MAX_IDENTITY: usize = 512;

/// What a deployer pod works for, within its namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Identity {
    /// The name of the config.
    pub config: String,
    /// The name of the generation, where the policy says where it is read.
    pub generation: Option<String>,
}

impl Policy {
    /// The key of a pod with this identity under the policy.
    #[must_use]
    pub fn key(&self, namespace: &str, identity: &Identity) -> Key {
        let subject = match (self.scope, &identity.generation) {
            (KeyScope::Generation, Some(generation)) => Subject::Generation(generation.clone()),
            _ => Subject::Config(identity.config.clone()),
        };
        Key {
            policy: self.name.clone(),
            namespace: namespace.to_owned(),
            subject,
        }
    }
}

/// A deployer pod whose identity cannot be read. The texts name the field of the policy and what to set on the pod.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum IdentityError {
    /// The pod lacks the label or annotation.
    #[error("the pod has no {key}, which {field} of the policy reads; set it on the pod")]
    Missing {
        /// The field of the policy, like `spec.config.label`.
        field: String,
        /// The label or annotation, like `label app`.
        key: String,
    },
    /// The value is empty.
    #[error("{key} is empty, and {field} of the policy reads it; give it a value")]
    Empty {
        /// The field of the policy.
        field: String,
        /// The label or annotation, or `the value of the expression`.
        key: String,
    },
    /// The value is too long.
    #[error(
        "{key} has {length} bytes, and {field} of the policy reads at most {MAX_IDENTITY}; give it a shorter value"
    )]
    TooLong {
        /// The field of the policy.
        field: String,
        /// The label or annotation, or `the value of the expression`.
        key: String,
        /// Its length, in bytes.
        length: usize,
    },
    /// The value holds control characters.
    #[error("{key} holds control characters, and {field} of the policy reads it; give it a value without them")]
    ControlCharacters {
        /// The field of the policy.
        field: String,
        /// The label or annotation, or `the value of the expression`.
        key: String,
    },
    /// The expression fails.
    #[error(transparent)]
    Expression(#[from] ExpressionError),
}

/// Where a value came from.
#[derive(Clone, Copy, Debug)]
pub(super) enum Origin<'a> {
    Label(&'a str),
    Annotation(&'a str),
    Expression,
}

impl fmt::Display for Origin<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Label(key) => write!(f, "label {key}"),
            Self::Annotation(key) => write!(f, "annotation {key}"),
            Self::Expression => f.write_str("the value of the expression"),
        }
    }
}

/// Where a name is read on a pod.
#[derive(Clone, Debug)]
pub(super) enum Source {
    Label(String),
    Annotation(String),
    Expression(Expression),
}

impl Source {
    /// Reads the name. `field` is the part of the policy that this source stands in.
    pub(super) fn read(&self, field: &str, pod: &Value) -> Result<String, IdentityError> {
        let (field, origin, value) = match self {
            Self::Label(key) => (format!("{field}.label"), Origin::Label(key), text(pod, "labels", key)),
            Self::Annotation(key) => (
                format!("{field}.annotation"),
                Origin::Annotation(key),
                text(pod, "annotations", key),
            ),
            Self::Expression(expression) => {
                let value = expression.string(&Scope::new(&[("object", Some(pod))]))?;
                return check(expression.field(), &Origin::Expression, value);
            }
        };
        match value {
            Some(value) => check(&field, &origin, value.to_owned()),
            None => Err(IdentityError::Missing {
                field,
                key: origin.to_string(),
            }),
        }
    }
}

/// The value, if it can name something.
pub(super) fn check(field: &str, origin: &Origin<'_>, value: String) -> Result<String, IdentityError> {
    let (field, key) = (field.to_owned(), origin.to_string());
    if value.is_empty() {
        Err(IdentityError::Empty { field, key })
    } else if value.len() > MAX_IDENTITY {
        Err(IdentityError::TooLong {
            field,
            key,
            length: value.len(),
        })
    } else if value.chars().any(char::is_control) {
        Err(IdentityError::ControlCharacters { field, key })
    } else {
        Ok(value)
    }
}
