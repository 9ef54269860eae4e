//! What is out of order with a key.

use std::time::Duration;

use crate::api::claim::PodReference;

/// What is out of order with a key. Each is over when a later plan for the key no longer has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// *Violation*: this pod is active beside the one that stays.
    Duplicate {
        /// The one too many.
        pod: PodReference,
        /// The one that stays.
        beside: PodReference,
    },
    /// *Violation*: this pod had finished, or the claim had moved on from it, and it is active (again).
    Revived(PodReference),
    /// This active pod was admitted so long ago that its entry was dropped, and was stored after that. Where another has the key it is a
    /// `Duplicate` too.
    LateArrival(PodReference),
    /// The owner of this active pod has nothing left for it to do.
    Orphan {
        /// The pod.
        pod: PodReference,
        /// What is wrong with the owner.
        why: OrphanWhy,
    },
    /// The owner of this active pod could not be read or judged.
    OwnerUnread {
        /// The pod.
        pod: PodReference,
        /// Why.
        why: String,
    },
    /// This pod has been active for longer than the policy's `stuckAfterSeconds`, as far as this guard has seen.
    Stuck {
        /// The pod.
        pod: PodReference,
        /// For how long this guard has seen it active. It grows: keep it out of texts that are to aggregate.
        active_for: Duration,
    },
    /// This condemned pod is active and is not deleted.
    CondemnedStays {
        /// The pod.
        pod: PodReference,
        /// Why not.
        why: CondemnedStays,
    },
    /// The claim names this active pod, and the policy no longer matches it, or it now works for another key.
    IdentityChanged(PodReference),
    /// The policy matches this active pod, and its identity cannot be read.
    IdentityUnreadable {
        /// The pod.
        pod: PodReference,
        /// Why.
        why: String,
    },
    /// The claim's lists of condemned or spared pods are full: these active pods are left out, neither deleted nor kept by the claim.
    Crowded(Vec<PodReference>),
    /// The claim is of a newer protocol than ours, and is left alone.
    NewerProtocol {
        /// That of the claim.
        protocol: i32,
    },
}

impl Finding {
    /// Two deployers work for one key, or one works that must not: what pages.
    #[must_use]
    pub fn is_violation(&self) -> bool {
        matches!(self, Self::Duplicate { .. } | Self::Revived(_))
    }
}

/// What is wrong with an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrphanWhy {
    /// It is gone.
    Gone,
    /// Another has its name.
    Replaced,
    /// It is cancelled or final, as `owner.finished` says.
    Finished,
}

/// Why a condemned pod that is active is not deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CondemnedStays {
    /// It has started: it was bound to a node before it could be deleted.
    Started,
    /// It is being deleted already, and something keeps it.
    Terminating,
    /// The policy's mode is not Enforce.
    Disarmed,
    /// The policy no longer matches it.
    IdentityChanged,
    /// The claim names it as holder or pending, too. No write of ours does that.
    HoldsTheClaim,
}
