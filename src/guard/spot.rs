//! Where a key's claim is, whether there is one or not.

use std::fmt;
use std::sync::Arc;

/// The claim of a key, by namespace and name. What is examined.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Spot {
    /// The name of the policy.
    pub(super) policy: Arc<str>,
    /// The namespace of the claim and of its pods.
    pub(super) namespace: Arc<str>,
    /// The name of the claim.
    pub(super) claim: Arc<str>,
}

impl Spot {
    /// A spot.
    #[must_use]
    pub(super) fn new(policy: &str, namespace: &str, claim: &str) -> Self {
        Self {
            policy: policy.into(),
            namespace: namespace.into(),
            claim: claim.into(),
        }
    }
}

impl fmt::Display for Spot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.claim)
    }
}
