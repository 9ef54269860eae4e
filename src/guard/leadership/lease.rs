//! The Lease: what is read of it, and what is written to it.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;

/// The shortest and the longest lease that a guard may be given: what a Lease says beyond is absurd.
pub const LENGTHS: (Duration, Duration) = (Duration::from_secs(3), Duration::from_mins(1));

/// What counts of a Lease. Two readings differ if anything in its spec does.
#[derive(Clone, Debug, PartialEq)]
pub struct Reading {
    /// `metadata.uid`.
    pub uid: String,
    /// `holderIdentity`, unless it is empty.
    pub holder: Option<String>,
    /// `leaseTransitions`, unless it is negative.
    pub term: Option<i32>,
    /// `leaseDurationSeconds`, unless no guard could have written it.
    pub duration: Option<Duration>,
    spec: LeaseSpec,
}

impl Reading {
    /// Reads a Lease, whatever is in it.
    #[must_use]
    pub fn of(lease: &Lease) -> Self {
        let spec = lease.spec.clone().unwrap_or_default();
        let seconds = spec
            .lease_duration_seconds
            .and_then(|seconds| u64::try_from(seconds).ok());
        let sane = |length: &Duration| (LENGTHS.0..=LENGTHS.1).contains(length);
        Self {
            uid: lease.metadata.uid.clone().unwrap_or_default(),
            holder: spec.holder_identity.clone().filter(|holder| !holder.is_empty()),
            term: spec.lease_transitions.filter(|term| *term >= 0),
            duration: seconds.map(Duration::from_secs).filter(sane),
            spec,
        }
    }

    /// Its holder ended its work and gave it up, in the form that other implementations use too: nobody, for 1 s. A Lease that
    /// lost its holder in another way looks different, and its holder may still lead.
    #[must_use]
    pub fn is_released(&self) -> bool {
        self.holder.is_none() && self.spec.holder_identity.is_some() && self.spec.lease_duration_seconds == Some(1)
    }
}

/// The Lease as it was read, taken by `identity`.
#[must_use]
pub fn taken(read: &Lease, identity: &str, length: Duration, term: i32, now: Timestamp) -> Lease {
    let mut lease = read.clone();
    let spec = lease.spec.get_or_insert_default();
    spec.holder_identity = Some(identity.to_owned());
    spec.lease_duration_seconds = Some(i32::try_from(length.as_secs()).unwrap_or(i32::MAX));
    spec.acquire_time = Some(MicroTime(now));
    spec.renew_time = Some(MicroTime(now));
    spec.lease_transitions = Some(term);
    lease
}

/// The Lease as it was read, given up.
#[must_use]
pub fn released(read: &Lease, now: Timestamp) -> Lease {
    let mut lease = read.clone();
    let spec = lease.spec.get_or_insert_default();
    spec.holder_identity = Some(String::new());
    spec.lease_duration_seconds = Some(1);
    spec.renew_time = Some(MicroTime(now));
    lease
}
