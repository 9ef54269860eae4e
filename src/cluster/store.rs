//! What decisions need of a cluster: quorum reads by name, one list, and conditional writes of claims.

use async_trait::async_trait;
use serde_json::Value;

use crate::api::DeployerPolicy;
use crate::api::claim::{DeployerClaim, DeployerClaimSpec, DeployerClaimStatus};
use crate::domain::sighting::Sighting;

/// Why a call to the API server came to nothing. Four different answers stay four: not found is not among them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The API server refuses: a rule is missing in our `ClusterRole`.
    #[error("forbidden: {0}")]
    Forbidden(String),
    /// No answer in time.
    #[error("timed out")]
    TimedOut,
    /// No connection, or it broke.
    #[error("unreachable: {0}")]
    Unreachable(String),
    /// The API server answered with another error.
    #[error("the API server answered {code} {reason}: {message}")]
    Answered {
        /// HTTP code.
        code: u16,
        /// Machine-readable reason.
        reason: String,
        /// The API server's text.
        message: String,
    },
    /// The API server took an object and will not serve it: its text.
    #[error("{0}")]
    NotServed(String),
    /// An answer that cannot be read.
    #[error(
        "unreadable answer: {0}; if a newer version or an editor wrote the object, upgrade deployer-guard or correct it"
    )]
    Unreadable(String),
}

impl Failure {
    /// Another try may succeed soon: the connection broke, or the API server is overloaded or about to end.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Unreachable(_) => true,
            Self::Answered { code, .. } => matches!(code, 429 | 500 | 502 | 503 | 504),
            Self::Forbidden(_) | Self::TimedOut | Self::NotServed(_) | Self::Unreadable(_) => false,
        }
    }
}

/// A live read that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} could not be read: {why}")]
pub struct ReadError {
    /// What was read, as `pod "cfg-1-deploy"`.
    pub what: String,
    /// Why it failed.
    pub why: Failure,
}

impl From<ReadError> for Failure {
    fn from(error: ReadError) -> Self {
        error.why
    }
}

impl ReadError {
    /// It is there, and is not what it is to be.
    #[must_use]
    pub fn is_unreadable(&self) -> bool {
        matches!(self.why, Failure::Unreadable(_))
    }

    /// No answer came in time.
    #[must_use]
    pub fn timed_out(what: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            why: Failure::TimedOut,
        }
    }
}

/// A conditional write or delete that was not acknowledged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    /// The object changed, came into being or went since it was read. Nothing was written.
    #[error("it changed since it was read")]
    Conflict,
    /// Nothing was written, and trying again will not help.
    #[error("{0}")]
    Refused(Failure),
    /// Nothing was written, because the API server has too much to do: another try may succeed.
    #[error("{0}")]
    Shed(Failure),
    /// Whether it was written is not known: the answer was lost.
    #[error("{0} (whether it was written is not known)")]
    Unknown(Failure),
}

/// An owner, as a pod refers to it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OwnerKind {
    /// As `v1` or `batch/v1`.
    pub api_version: String,
    /// As `ReplicationController`.
    pub kind: String,
}

/// Which pods of a list are held.
pub type Keep<'a> = &'a (dyn Fn(&Value) -> bool + Send + Sync);

/// What decisions need of a cluster.
///
/// # Guarantees that every implementation gives
/// - A read by name is a quorum read, begun after the call: what it finds absent was not in the store at some time during it.
/// - A write of a claim is one compare-and-swap, on the version of the object given, or on its absence.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// Reads a claim. `None`: there is none.
    async fn claim(&self, namespace: &str, name: &str) -> Result<Option<DeployerClaim>, ReadError>;

    /// Reads one pod name.
    async fn pod(&self, namespace: &str, name: &str) -> Result<Sighting, ReadError>;

    /// Lists the pods of a namespace that a label selector matches. A list may be served from the API server's watch cache:
    /// it may make a verdict worse, never better.
    ///
    /// Only pods that `keep` wants are held: there may be very many others.
    async fn pods(&self, namespace: &str, label_selector: &str, keep: Keep<'_>) -> Result<Vec<Value>, ReadError>;

    /// Reads an owner, in the namespace if its kind is namespaced. `None`: there is none of that name.
    async fn owner(&self, namespace: &str, kind: &OwnerKind, name: &str) -> Result<Option<Value>, ReadError>;

    /// Reads the labels of a namespace.
    async fn namespace_labels(&self, name: &str) -> Result<std::collections::BTreeMap<String, String>, ReadError>;

    /// Reads a policy. `None`: there is none of that name.
    async fn policy(&self, name: &str) -> Result<Option<DeployerPolicy>, ReadError>;

    /// Creates a claim, if there is none of that name.
    async fn create_claim(
        &self,
        namespace: &str,
        name: &str,
        spec: DeployerClaimSpec,
    ) -> Result<DeployerClaim, WriteError>;

    /// Replaces a claim's spec, if it is still the version that was read. Everything else in the object stays.
    async fn update_claim(&self, read: &DeployerClaim, spec: DeployerClaimSpec) -> Result<DeployerClaim, WriteError>;

    /// Replaces a claim's status, if it is still the version that was read. Its spec stays.
    async fn update_claim_status(&self, read: &DeployerClaim, status: DeployerClaimStatus) -> Result<(), WriteError>;
}
