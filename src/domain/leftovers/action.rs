//! What a guard does about a key.

use crate::api::claim::{ClaimEntry, DeployerClaimSpec, Outcome, PodReference, WaitingOwner};
use crate::domain::sighting::Activity;

use super::finding::{Finding, OrphanWhy};

/// What is to be done about a key, and what is to be said of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// In this order. Each is judged on the snapshot alone, and at most one of them can take effect on the claim: carry out the first,
    /// then begin again with the claim. Where the API server refuses one for good, the next may be tried on the same snapshot.
    pub actions: Vec<Action>,
    /// What is out of order, whether or not something is done about it. Not ordered by weight.
    pub findings: Vec<Finding>,
}

/// One write, with its precondition.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Write this as the claim's spec, conditional on the version that was read; where there was no claim, create it, conditional on its
    /// absence.
    WriteClaim {
        /// What it means, for Event, log and metric.
        change: Change,
        /// The whole spec.
        next: Box<DeployerClaimSpec>,
    },
    /// Delete this condemned pod, with its uid and resourceVersion as preconditions. It is bound to no node, so it goes at once.
    DeletePod {
        /// Name and uid.
        pod: PodReference,
        /// As it was read with the pod not bound to a node.
        resource_version: String,
    },
    /// Take this owner off `status.waiting`, conditional on the claim's version; then remember it in
    /// [`Memory::to_wake`](super::Memory::to_wake). Taken off first, because an owner that is woken and refused again is listed again.
    Unlist(WaitingOwner),
    /// Touch this owner with a no-op annotation patch, if it still has this uid; then, or if it is gone, forget that it is to be woken.
    Wake(WaitingOwner),
    /// Delete the claim, with its uid and resourceVersion as preconditions: it is free and of no more use.
    RemoveClaim,
}

/// What a write of the claim means.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// A pending pod was found in the store. The same transition as an observer's.
    Confirmed {
        /// The entry.
        pod: ClaimEntry,
        /// Whether it still works.
        activity: Activity,
    },
    /// Entries ended: these pods finished or are gone, and no longer hold the key.
    Freed(Vec<(ClaimEntry, Outcome)>),
    /// A deployer that was not admitted becomes the holder, because nobody else holds the key.
    Adopted {
        /// The new holder.
        pod: ClaimEntry,
        /// Entries that ended before, freed by the same write.
        ended: Vec<(ClaimEntry, Outcome)>,
        /// Pods that were there before the policy, spared by the same write.
        spared: Vec<PodReference>,
    },
    /// These pods are never to be deleted by us, and keep the key while they are active.
    Spared(Vec<PodReference>),
    /// These pods are to be deleted, and are never to be holder (again).
    Condemned(Vec<(PodReference, Condemnation)>),
    /// These condemned and spared pods are forgotten: they are gone, or, spared, have finished.
    Forgotten(Vec<PodReference>),
}

/// Why a pod is condemned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condemnation {
    /// Another pod has the key.
    Duplicate,
    /// Its owner has nothing left for it to do.
    Orphan(OrphanWhy),
}
