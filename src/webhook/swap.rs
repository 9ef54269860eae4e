//! The one write of an admission.

use std::sync::Arc;

use tokio::time::{Instant, timeout_at};

use crate::api::claim::{DeployerClaim, DeployerClaimSpec};
use crate::cluster::store::{Failure, Store, WriteError};
use crate::domain::key::Key;
use crate::observer::{Observer, Origin};

/// The one write of an admission, which is finished once it was begun.
pub(super) struct CompareAndSwap<S> {
    pub(super) store: Arc<S>,
    pub(super) observer: Arc<Observer<S>>,
    pub(super) key: Key,
    /// The version that the decision was made on.
    pub(super) read: Option<DeployerClaim>,
}

impl<S: Store> CompareAndSwap<S> {
    /// Past the deadline nothing is sent any more. What was sent may still be carried out: it is followed.
    pub(super) async fn run(self, next: DeployerClaimSpec, deadline: Instant) -> Result<DeployerClaim, WriteError> {
        let (namespace, name) = (&self.key.namespace, self.key.claim_name());
        let write = async {
            match &self.read {
                Some(claim) => self.store.update_claim(claim, next).await,
                None => self.store.create_claim(namespace, &name, next).await,
            }
        };
        let written = timeout_at(deadline, write).await;
        let written = written.unwrap_or(Err(WriteError::Unknown(Failure::TimedOut)));
        match &written {
            Ok(claim) => self.observer.saw(claim, Origin::Ours),
            Err(WriteError::Unknown(_)) => self.observer.suspect(namespace.clone(), name, self.read.as_ref()),
            Err(WriteError::Conflict | WriteError::Refused(_) | WriteError::Shed(_)) => {}
        }
        written
    }
}
