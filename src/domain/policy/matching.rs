//! Whether a policy matches a pod, and which part of it does not.

use super::{MIRROR_ANNOTATION, Policy, labels, text};
use crate::domain::expression::{Expression, ExpressionError, Scope};
use serde_json::Value;
use std::fmt;

/// One of `spec.match.matchConditions`.
#[derive(Clone, Debug)]
pub(super) struct Condition {
    pub(super) name: String,
    pub(super) expression: Expression,
}

/// The first part of a policy that does not match a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mismatch<'a> {
    /// The pod is kubelet's mirror of a static pod, which no policy matches.
    MirrorPod,
    /// `spec.match.objectSelector` does not select its labels.
    ObjectSelector,
    /// The condition of this name, in `spec.match.matchConditions`, does not hold.
    Condition(&'a str),
}

impl Mismatch<'_> {
    /// The machine-readable reason, in upper camel case.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::MirrorPod => "MirrorPod",
            Self::ObjectSelector => "ObjectSelector",
            Self::Condition(_) => "MatchCondition",
        }
    }
}

impl fmt::Display for Mismatch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MirrorPod => write!(
                f,
                "the pod is the mirror of a static pod (annotation {MIRROR_ANNOTATION}), which no policy matches"
            ),
            Self::ObjectSelector => f.write_str("spec.match.objectSelector does not select the pod's labels"),
            Self::Condition(name) => {
                write!(
                    f,
                    "condition {name:?} of spec.match.matchConditions does not hold for the pod"
                )
            }
        }
    }
}

impl Policy {
    /// Whether the policy matches a pod, as the API server would decide for a request that carries it. `old` is the pod
    /// before an update. For an update ask twice, for the pod after and for the pod before: either is enough.
    ///
    /// # Errors
    /// A condition fails, and no other says that the pod does not match.
    pub fn matches(&self, object: &Value, old: Option<&Value>) -> Result<bool, ExpressionError> {
        self.mismatch(object, old).map(|mismatch| mismatch.is_none())
    }

    /// The part of the policy that does not match a pod; `None` where all of it does. As [`matches`](Self::matches).
    ///
    /// # Errors
    /// A condition fails, and no other says that the pod does not match.
    pub fn mismatch(&self, object: &Value, old: Option<&Value>) -> Result<Option<Mismatch<'_>>, ExpressionError> {
        if text(object, "annotations", MIRROR_ANNOTATION).is_some() {
            return Ok(Some(Mismatch::MirrorPod));
        }
        if !self.object_selector.matches(&labels(object)) {
            return Ok(Some(Mismatch::ObjectSelector));
        }
        let scope = Scope::new(&[("object", Some(object)), ("oldObject", old)]);
        let mut failure = None;
        for condition in &self.conditions {
            match condition.expression.bool(&scope) {
                Ok(true) => {}
                Ok(false) => return Ok(Some(Mismatch::Condition(&condition.name))),
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        failure.map_or(Ok(None), Err)
    }
}
