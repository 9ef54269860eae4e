//! One action of a plan, carried out as one write with its precondition.

use std::sync::Arc;

use jiff::Timestamp;

use super::lookout::Lookout;
use super::spot::Spot;
use crate::api::DeployerClaim;
use crate::api::claim::WaitingOwner;
use crate::cluster::request::write_within;
use crate::cluster::store::{Failure, OwnerKind, WriteError};
use crate::cluster::upkeep::{Fence, Upkeep, WOKEN_ANNOTATION};
use crate::domain::leftovers::{Action, Change};
use crate::observer::{Observer, Origin};
use crate::statuses::Statuses;

/// Carries out actions.
pub(super) struct Hand<S> {
    pub(super) store: Arc<S>,
    pub(super) lookout: Arc<Lookout>,
    pub(super) observer: Arc<Observer<S>>,
    pub(super) statuses: Arc<Statuses>,
}

/// Whether an action takes a leader. What an observer does as well does not.
pub(super) fn needs_leader(action: &Action) -> bool {
    !matches!(
        action,
        Action::WriteClaim {
            change: Change::Confirmed { .. },
            ..
        }
    )
}

impl<S: Upkeep> Hand<S> {
    /// Carries out one action on the claim as it was read.
    ///
    /// # Errors
    /// As the write's.
    pub(super) async fn carry_out(
        &self,
        spot: &Spot,
        read: Option<&DeployerClaim>,
        action: &Action,
    ) -> Result<(), WriteError> {
        match action {
            Action::WriteClaim { next, .. } => self.write(spot, read, next).await,
            Action::DeletePod { pod, resource_version } => {
                let fence = Fence {
                    namespace: &spot.namespace,
                    name: &pod.name,
                    uid: &pod.uid,
                    version: resource_version,
                };
                write_within(self.store.delete_pod(fence)).await
            }
            Action::Wake(owner) => self.wake(spot, owner).await,
            Action::Unlist(owner) => self.unlist(spot, read, owner).await,
            Action::RemoveClaim => match read {
                Some(claim) => write_within(self.store.delete_claim(claim)).await,
                None => Ok(()),
            },
        }
    }

    async fn write(
        &self,
        spot: &Spot,
        read: Option<&DeployerClaim>,
        next: &crate::api::claim::DeployerClaimSpec,
    ) -> Result<(), WriteError> {
        let written = match read {
            Some(read) => write_within(self.store.update_claim(read, next.clone())).await?,
            None => write_within(self.store.create_claim(&spot.namespace, &spot.claim, next.clone())).await?,
        };
        self.observer.saw(&written, Origin::Theirs);
        self.statuses.changed(&written);
        Ok(())
    }

    /// An owner that is gone, or was made anew, is as good as woken: it no longer waits.
    async fn wake(&self, spot: &Spot, owner: &WaitingOwner) -> Result<(), WriteError> {
        let kind = OwnerKind {
            api_version: owner.api_version.clone(),
            kind: owner.kind.clone(),
        };
        let now = Timestamp::now().to_string();
        let woken = self.store.annotate_owner(
            &spot.namespace,
            &kind,
            (&owner.name, &owner.uid),
            (WOKEN_ANNOTATION, &now),
        );
        match write_within(woken).await {
            Ok(()) | Err(WriteError::Conflict | WriteError::Refused(Failure::Answered { code: 404 | 422, .. })) => {
                self.lookout.facts().woke(spot, owner);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    async fn unlist(&self, spot: &Spot, read: Option<&DeployerClaim>, owner: &WaitingOwner) -> Result<(), WriteError> {
        let Some(claim) = read else { return Ok(()) };
        let mut status = claim.status.clone().unwrap_or_default();
        status.waiting.retain(|other| other.uid != owner.uid);
        let unlisted = write_within(self.store.update_claim_status(claim, status)).await;
        // Where the answer was lost it may be off the list: woken in vain does no harm, never woken does.
        if matches!(unlisted, Ok(()) | Err(WriteError::Unknown(_))) {
            self.lookout.facts().unlisted(spot, owner);
        }
        unlisted
    }
}
