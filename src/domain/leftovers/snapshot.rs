//! What was read of one key, and what is remembered of its pods.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;

use crate::api::claim::{DeployerClaimSpec, Outcome, WaitingOwner};
use crate::domain::sighting::{Activity, Sighting};

/// What was read of one key: the claim first, then each pod by a quorum GET of its own name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// The config of the key; a claim that has to be made is made for it.
    pub config: String,
    /// The generation of the key, with `scope: Generation`.
    pub key_generation: Option<String>,
    /// The claim; `None` if a quorum GET found none.
    pub claim: Option<FoundClaim>,
    /// What the GET of each name found: `None` if there is no pod of that name. It holds every name that the claim names, and
    /// those that a watch or a list suggested.
    pub pods: BTreeMap<String, Option<FoundPod>>,
    /// What is remembered.
    pub memory: Memory,
}

/// The claim, as a quorum GET found it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FoundClaim {
    /// Its spec. Every write of it is conditional on the version that was read.
    pub spec: DeployerClaimSpec,
    /// The owners that wait for the key (`status.waiting`).
    pub waiting: Vec<WaitingOwner>,
    /// `metadata.creationTimestamp`.
    pub created: Option<Timestamp>,
    /// It has a deletionTimestamp: it is deleted already, and somebody's finalizer keeps it.
    pub terminating: bool,
}

/// A pod, as a quorum GET of its name found it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundPod {
    /// Its uid.
    pub uid: String,
    /// Whether it still works.
    pub activity: Activity,
    /// `spec.nodeName` is empty: it is bound to no node, so nothing of it ever ran.
    pub unstarted: bool,
    /// It has a deletionTimestamp.
    pub terminating: bool,
    /// `metadata.resourceVersion`: fences a delete against everything that happened since, binding to a node above all.
    pub resource_version: String,
    /// `metadata.creationTimestamp`, by the API server's clock. Compared between pods alone.
    pub created: Option<Timestamp>,
    /// Whether it works for this key.
    pub place: Place,
    /// What a live read of its owner found.
    pub owner: OwnerState,
}

/// Whether a pod works for the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// The policy matches it, and its identity is that of the key.
    Here {
        /// The generation it works for, where the policy knows generations.
        generation: Option<String>,
        /// The ordinal of the generation, where it is known. It may be computed from the owner: `None` where that is gone.
        ordinal: Option<i64>,
        /// The uid of the config, where it is known. As the ordinal.
        config_uid: Option<String>,
    },
    /// The policy does not match it (any more), or it works for another key.
    Elsewhere,
    /// The policy matches it, and its identity cannot be read; this is why. It blocks nobody.
    Unreadable(String),
}

/// What a live read of a pod's owner found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OwnerState {
    /// It is there, and is not finished; or the policy asks for no owner.
    Fine,
    /// A quorum GET found none of that name.
    Gone,
    /// There is another one under its name.
    Replaced,
    /// It satisfies the policy's `owner.finished`.
    Finished,
    /// It could not be read, or judged; this is why. It is taken for fine.
    Unread(String),
}

/// What is remembered of pods, by uid. All of it stays true however old the watch or list was that told it. Copy it before the claim is
/// read: only then is a pod that was stored and is not found gone.
///
/// Ages are times on this guard's monotonic clock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Uids that were seen in the store: a pod once stored that a later GET does not find is gone, and needs no W.
    pub stored: BTreeSet<String>,
    /// How pods ended whose last seen phase was Succeeded or Failed, in a DELETED event too.
    pub ends: BTreeMap<String, Outcome>,
    /// Those of `ends` that were known before anything of this snapshot was read: a GET that finds one active finds it revived. One that
    /// was told while the reads were under way may have ended after its GET.
    pub ended_before: BTreeSet<String>,
    /// When this guard first saw a pod active.
    pub active_since: BTreeMap<String, Duration>,
    /// Uids whose pending entry was seen, and was dropped by somebody.
    pub given_up: BTreeSet<String>,
    /// Owners that this guard took off `status.waiting` and has not touched yet.
    pub to_wake: Vec<WaitingOwner>,
    /// Since when this guard has seen the claim's spec (`metadata.generation`) as it is now. `None` if it has not before.
    pub unchanged_since: Option<Duration>,
}

impl FoundPod {
    /// What the GET found, as far as exclusion goes.
    #[must_use]
    pub fn sighting(&self) -> Sighting {
        Sighting::Present {
            uid: self.uid.clone(),
            activity: self.activity,
        }
    }
}

impl Snapshot {
    /// What a GET of this name found, as far as exclusion goes. `None` if the name was not read.
    #[must_use]
    pub fn sighting(&self, name: &str) -> Option<Sighting> {
        let found = self.pods.get(name)?;
        Some(found.as_ref().map_or(Sighting::Absent, FoundPod::sighting))
    }

    /// The pod with this name and uid, if it was found.
    #[must_use]
    pub fn pod(&self, name: &str, uid: &str) -> Option<&FoundPod> {
        self.pods.get(name)?.as_ref().filter(|pod| pod.uid == uid)
    }
}
