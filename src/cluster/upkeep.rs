//! What only the guard needs of a cluster: pods in full, watches, lists that tell where to look, and deletes that are fenced.

use async_trait::async_trait;
use futures::stream::BoxStream;
use kube::runtime::watcher::Event;
use serde_json::Value;

use super::store::{Failure, OwnerKind, ReadError, Store, WriteError};
use crate::api::{DeployerClaim, DeployerPolicy};

/// What an owner is touched with, so that its controller looks at it again. Its value says when.
pub const WOKEN_ANNOTATION: &str = "deployer-guard.io/woken-at";

/// A watch that goes on for ever: a broken connection is made again with growing pauses, and after a 410 it begins anew.
///
/// An error says that it does not work at the moment, and is for the log.
pub type Watch<K> = BoxStream<'static, Result<Event<K>, Failure>>;

/// An object as a list shows it: enough to tell whether a watch has shown the same.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Listed {
    /// Where it is.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// Its `resourceVersion`.
    pub version: String,
}

/// An object in the very version that was read live: what a delete is conditional on.
#[derive(Clone, Copy, Debug)]
pub struct Fence<'a> {
    /// Where it is.
    pub namespace: &'a str,
    /// Its name.
    pub name: &'a str,
    /// Its uid.
    pub uid: &'a str,
    /// Its `resourceVersion`.
    pub version: &'a str,
}

/// What only the guard needs of a cluster.
///
/// # Guarantees that every implementation gives
/// - A delete is done on the very version given, or not at all ([`WriteError::Conflict`]).
/// - What a list or a watch shows may be old, and may be wrong: it only tells where to look.
#[async_trait]
pub trait Upkeep: Store {
    /// Reads one pod in full, by a quorum read. `None`: there is none of that name.
    async fn whole_pod(&self, namespace: &str, name: &str) -> Result<Option<Value>, ReadError>;

    /// Deletes a pod, if it is still the version that was read.
    async fn delete_pod(&self, pod: Fence<'_>) -> Result<(), WriteError>;

    /// Deletes a claim, if it is still the version that was read.
    async fn delete_claim(&self, read: &DeployerClaim) -> Result<(), WriteError>;

    /// Sets one annotation of an owner, if it still has this uid. Nothing else in it changes.
    async fn annotate_owner(
        &self,
        namespace: &str,
        kind: &OwnerKind,
        owner: (&str, &str),
        annotation: (&str, &str),
    ) -> Result<(), WriteError>;

    /// Lists the active pods of all namespaces that a label selector matches.
    async fn list_active_pods(&self, label_selector: &str) -> Result<Vec<Listed>, ReadError>;

    /// Lists the claims of all namespaces.
    async fn list_claims(&self) -> Result<Vec<Listed>, ReadError>;

    /// Watches the claims of all namespaces.
    fn watch_claims(&self) -> Watch<DeployerClaim>;

    /// Watches the pods of all namespaces that a label selector matches.
    fn watch_pods(&self, label_selector: &str) -> Watch<Value>;

    /// Watches the policies.
    fn watch_policies(&self) -> Watch<DeployerPolicy>;
}
