//! What is to be done about one key beside admission, as a function of what was read of it (DESIGN section 5).
//!
//! [`plan`] never waits and never reads. A guard reads one key live, asks it, carries out the first action, and begins again
//! with the claim until no action is left. The same function is driven by the guard over a real API server, and by the
//! exhaustive model check, in which two guards that both lead act on snapshots of any age.
//!
//! # Guarantees
//! - The holder and the pending pods are never deleted. (An orphaned holder that has not started first leaves the claim for the
//!   condemned, in one write.)
//! - An active pod that the claim names (holder, pending, condemned or spared) stays in it: no action makes a claim look free
//!   while one of its pods works.
//! - Nobody is made holder beside a pod that is active under the claim or on its way, and no condemned pod ever is.
//! - A pod is deleted only if the claim, as it is stored, condemns it; by a delete that cannot succeed once it is bound to a node.
//! - A guard that does not lead confirms, and does nothing else. In the modes Warn and Audit nothing is condemned, deleted or woken.
//! - A claim of a newer protocol is left alone.
//!
//! # Assumptions on the caller
//! - Every pod was read by a quorum GET of its own that began after the claim was read, and every pod that the claim names
//!   ([`DeployerClaimSpec::names`](crate::api::claim::DeployerClaimSpec::names)) was. Pods that only a list or a watch suggested may be missing.
//! - An action is carried out as one write with the precondition that it states; a conflict means new snapshots.
//! - What is remembered ([`Memory`]) was copied *before* the claim was read, as `now` was taken: that a pod was stored, told while its GET was
//!   under way, would make an older "not found" look like its end, and free the claim of a pod that works.
//! - Every age is of the guard's own monotonic clock.

mod action;
mod actions;
mod finding;
mod findings;
mod reading;
mod snapshot;
mod terms;
mod view;

pub use action::{Action, Change, Condemnation, Plan};
pub use finding::{CondemnedStays, Finding, OrphanWhy};
pub use reading::OwnerRead;
pub use snapshot::{FoundClaim, FoundPod, Memory, OwnerState, Place, Snapshot};
pub use terms::{Now, Terms};

/// Says what is to be done about a key.
#[must_use]
pub fn plan(snapshot: &Snapshot, terms: &Terms, now: Now) -> Plan {
    let view = view::View::of(snapshot, terms);
    Plan {
        actions: actions::actions(&view, now),
        findings: findings::findings(&view, now),
    }
}

#[cfg(test)]
mod tests;
