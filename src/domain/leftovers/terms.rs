//! Under which rules a key is looked at, and when.

use std::time::Duration;

use jiff::Timestamp;

use crate::api::claim::PolicyReference;
use crate::api::policy::{Leftovers, Mode, Wake};
use crate::domain::policy::Policy;

/// Under which rules a key is looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terms {
    /// The policy, as a claim refers to it.
    pub policy: PolicyReference,
    /// The mode is Enforce. Otherwise nothing is condemned, deleted or woken.
    pub armed: bool,
    /// This guard believes that it leads. Otherwise it confirms, and does nothing else. Leadership is checked again at each write.
    pub leads: bool,
    /// Stock is being taken for the first time under this uid of the policy: deployers that nobody admitted under it are spared.
    /// It is over when every key was planned for without an action and without a [`Crowded`](super::Finding::Crowded) finding.
    pub first_stock: bool,
    /// The policy's `metadata.creationTimestamp`. A pod that is not younger was there before the policy, whatever list failed to show it,
    /// and is spared. (Both are the API server's clock; it can only keep a pod from being deleted.)
    pub policy_created: Option<Timestamp>,
    /// What becomes of leftovers.
    pub leftovers: Leftovers,
    /// Whether waiting owners are woken when the key becomes free.
    pub wake: Wake,
}

impl Terms {
    /// The rules of a policy.
    #[must_use]
    pub fn of(policy: &Policy, policy_created: Option<Timestamp>, leads: bool, first_stock: bool) -> Self {
        Self {
            policy: PolicyReference {
                name: policy.name.clone(),
                uid: policy.uid.clone(),
                generation: Some(policy.generation),
                ..PolicyReference::default()
            },
            armed: policy.mode == Mode::Enforce,
            leads,
            first_stock,
            policy_created,
            leftovers: policy.leftovers,
            wake: policy.owner_rule().map_or(Wake::Never, |owner| owner.wake),
        }
    }
}

/// When a key is looked at: taken before the claim was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// Time on this guard's monotonic clock, since an origin of its choice. All ages are measured by it.
    pub monotonic: Duration,
    /// Time for the record, and for the generous bound after which a claim of no more use is removed by a guard that was restarted.
    pub wall: Timestamp,
}
