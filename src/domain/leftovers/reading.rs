//! From a pod and its owner, as the API server shows them, to what a plan knows of them. The identity is read by the parser that
//! admission uses.

use jiff::Timestamp;
use serde_json::Value;

use super::snapshot::{FoundPod, OwnerState, Place};
use crate::domain::key::Key;
use crate::domain::policy::{OwnerReference, Policy};
use crate::domain::sighting::Activity;

/// A live read of the owner that a pod names.
#[derive(Clone, Copy, Debug)]
pub enum OwnerRead<'a> {
    /// A quorum GET found this.
    Found(&'a Value),
    /// A quorum GET found none of that name.
    Absent,
    /// It was not read; this is why.
    Failed(&'a str),
}

impl FoundPod {
    /// What a quorum GET found. `owner` is what a live read found of the owner that [`Policy::owner_reference`] gives for this pod; it is not
    /// looked at where the policy asks for none, or the pod names none.
    #[must_use]
    pub fn read(policy: &Policy, key: &Key, pod: &Value, owner: OwnerRead<'_>) -> Self {
        let text = |pointer: &str| pod.pointer(pointer).and_then(Value::as_str);
        let field = |pointer: &str| text(pointer).unwrap_or_default().to_owned();
        let (state, owner) = owner_state(policy, pod, owner);
        Self {
            uid: field("/metadata/uid"),
            activity: Activity::of_phase(text("/status/phase")),
            unstarted: text("/spec/nodeName").is_none_or(str::is_empty),
            terminating: text("/metadata/deletionTimestamp").is_some(),
            resource_version: field("/metadata/resourceVersion"),
            created: text("/metadata/creationTimestamp").and_then(|time| time.parse::<Timestamp>().ok()),
            place: place(policy, key, pod, owner),
            owner: state,
        }
    }
}

/// Whether the pod works for the key. `owner` is its owner, if it was found and is the one that the pod names: what is computed from an owner
/// that is not there is not known.
fn place(policy: &Policy, key: &Key, pod: &Value, owner: Option<&Value>) -> Place {
    match policy.matches(pod, None) {
        Ok(true) => {}
        Ok(false) => return Place::Elsewhere,
        Err(error) => return Place::Unreadable(error.to_string()),
    }
    match policy.identity(pod) {
        Ok(identity) if Key::of(policy, &key.namespace, &identity) == *key => Place::Here {
            generation: identity.generation,
            ordinal: policy.ordinal(pod, owner).ok().flatten(),
            config_uid: policy.config_uid(pod, owner).ok().flatten(),
        },
        Ok(_) => Place::Elsewhere,
        Err(error) => Place::Unreadable(error.to_string()),
    }
}

/// What the read says, and the owner if it is the right one.
fn owner_state<'a>(policy: &Policy, pod: &Value, read: OwnerRead<'a>) -> (OwnerState, Option<&'a Value>) {
    let reference = match policy.owner_reference(pod) {
        Ok(None) => return (OwnerState::Fine, None),
        Ok(Some(reference)) => reference,
        // A pod that names no owner, or several, says nothing of an owner that is gone.
        Err(error) => return (OwnerState::Unread(error.to_string()), None),
    };
    match read {
        OwnerRead::Absent => (OwnerState::Gone, None),
        OwnerRead::Failed(why) => (OwnerState::Unread(why.to_owned()), None),
        OwnerRead::Found(owner) if !is(&reference, owner) => (OwnerState::Replaced, None),
        OwnerRead::Found(owner) => match policy.owner_finished(pod, owner) {
            Ok(true) => (OwnerState::Finished, Some(owner)),
            Ok(false) => (OwnerState::Fine, Some(owner)),
            Err(error) => (OwnerState::Unread(error.to_string()), Some(owner)),
        },
    }
}

fn is(reference: &OwnerReference, owner: &Value) -> bool {
    owner.pointer("/metadata/uid").and_then(Value::as_str) == Some(&reference.uid)
}
