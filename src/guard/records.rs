//! What is on record of what the guard did and found: an Event, a log line and a metric for each.

use std::sync::Arc;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Resource;

use super::reason::{Reason, why_it_stays};
use super::spot::Spot;
use super::standing::pods_of;
use crate::api::claim::{ClaimEntry, PodReference};
use crate::api::{DeployerClaim, DeployerPolicy};
use crate::cluster::events::{Events, Notice, Severity};
use crate::domain::leftovers::{Action, Change, Condemnation, Finding, OrphanWhy};
use crate::telemetry::metrics::Metrics;

/// Keeps the records of a guard.
#[derive(Clone)]
pub(super) struct Records {
    events: Events,
    metrics: Arc<Metrics>,
}

/// What a record is about.
#[derive(Clone, Copy, Debug)]
pub(super) struct About<'a> {
    pub(super) spot: &'a Spot,
    /// The policy's uid; empty if there is no such policy any more.
    pub(super) policy_uid: &'a str,
    /// The config or generation, for people.
    pub(super) subject: &'a str,
    pub(super) claim: Option<&'a DeployerClaim>,
}

/// What became of an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Done {
    /// The API server has done it.
    Yes,
    /// Nothing is ever written in a dry run.
    Would,
    /// What it was based on had changed.
    Conflict,
    /// The API server refused, or did not answer.
    Failed,
}

impl Done {
    fn word(self) -> &'static str {
        match self {
            Self::Yes => "done",
            Self::Would => "dry_run",
            Self::Conflict => "conflict",
            Self::Failed => "failed",
        }
    }
}

impl Records {
    pub(super) fn new(events: Events, metrics: Arc<Metrics>) -> Self {
        Self { events, metrics }
    }

    /// An action was carried out, or was not.
    pub(super) fn acted(&self, about: &About<'_>, action: &Action, done: Done) {
        if let Action::WriteClaim {
            change: Change::Adopted { spared, .. },
            ..
        } = action
            && !spared.is_empty()
        {
            let note = note_of_spared(about, spared);
            self.record(about, Reason::DeployerSpared, spared, note, done);
        }
        let note = note_of_action(about, action);
        self.record(about, Reason::of_action(action), &pods_of_action(action), note, done);
    }

    fn record(&self, about: &About<'_>, reason: Reason, pods: &[PodReference], mut note: String, done: Done) {
        let metrics = self.metrics.reconciling();
        metrics.acted(&about.spot.policy, reason.word(), done.word());
        if !matches!(done, Done::Yes | Done::Would) {
            return;
        }
        if done == Done::Would {
            note = format!("dry run, nothing was done: {note}");
        }
        tracing::info!(
            target: "deployer_guard::guard",
            reason = reason.word(),
            policy = &*about.spot.policy,
            namespace = &*about.spot.namespace,
            claim = &*about.spot.claim,
            dry_run = done == Done::Would,
            note,
            "acted"
        );
        // It is woken next, and that is told.
        if reason != Reason::OwnerUnlisted {
            let policy = matches!(reason, Reason::ClaimRemoved);
            self.tell(about, reason, pods, policy, "Reconcile", note);
        }
    }

    /// An action failed, for this reason.
    pub(super) fn failed(&self, about: &About<'_>, action: &Action, why: &dyn std::fmt::Display) {
        self.acted(about, action, Done::Failed);
        tracing::warn!(
            target: "deployer_guard::guard",
            reason = Reason::of_action(action).word(),
            policy = &*about.spot.policy,
            namespace = &*about.spot.namespace,
            claim = &*about.spot.claim,
            error = %why,
            "an action failed"
        );
    }

    /// Something is out of order, and was not before.
    pub(super) fn found(&self, about: &About<'_>, finding: &Finding) {
        let reason = Reason::of_finding(finding);
        self.metrics.reconciling().found(&about.spot.policy, reason.word());
        let note = note_of_finding(about, finding);
        tracing::warn!(
            target: "deployer_guard::guard",
            reason = reason.word(),
            violation = finding.is_violation(),
            policy = &*about.spot.policy,
            namespace = &*about.spot.namespace,
            claim = &*about.spot.claim,
            note,
            "found"
        );
        self.tell(about, reason, &pods_of(finding), finding.is_violation(), "Report", note);
    }

    /// What was out of order is so no more.
    pub(super) fn over(about: &About<'_>, finding: &Finding) {
        tracing::info!(
            target: "deployer_guard::guard",
            reason = Reason::of_finding(finding).word(),
            violation = finding.is_violation(),
            policy = &*about.spot.policy,
            namespace = &*about.spot.namespace,
            claim = &*about.spot.claim,
            "over"
        );
    }

    fn tell(
        &self,
        about: &About<'_>,
        reason: Reason,
        pods: &[PodReference],
        on_policy: bool,
        action: &'static str,
        note: String,
    ) {
        let pods = pods.iter().map(|pod| reference(about, pod));
        let policy = (on_policy && !about.policy_uid.is_empty()).then(|| policy_reference(about));
        let regarding: Vec<_> = pods.chain(about.claim.map(claim_reference)).chain(policy).collect();
        if regarding.is_empty() {
            return;
        }
        self.events.take(Notice {
            regarding,
            related: None,
            severity: if reason.is_warning() {
                Severity::Warning
            } else {
                Severity::Normal
            },
            reason: reason.word(),
            action,
            note,
        });
    }
}

fn reference(about: &About<'_>, pod: &PodReference) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".into()),
        kind: Some("Pod".into()),
        namespace: Some(about.spot.namespace.to_string()),
        name: Some(pod.name.clone()),
        uid: Some(pod.uid.clone()),
        ..ObjectReference::default()
    }
}

fn claim_reference(claim: &DeployerClaim) -> ObjectReference {
    claim.object_ref(&())
}

fn policy_reference(about: &About<'_>) -> ObjectReference {
    ObjectReference {
        api_version: Some(DeployerPolicy::api_version(&()).into_owned()),
        kind: Some(DeployerPolicy::kind(&()).into_owned()),
        name: Some(about.spot.policy.to_string()),
        uid: Some(about.policy_uid.to_owned()),
        ..ObjectReference::default()
    }
}

fn entry_reference(entry: &ClaimEntry) -> PodReference {
    PodReference {
        name: entry.name.clone(),
        uid: entry.uid.clone(),
        ..PodReference::default()
    }
}

fn pods_of_action(action: &Action) -> Vec<PodReference> {
    match action {
        Action::WriteClaim { change, .. } => match change {
            Change::Confirmed { pod, .. } | Change::Adopted { pod, .. } => vec![entry_reference(pod)],
            Change::Spared(pods) => pods.clone(),
            Change::Condemned(pods) => pods.iter().map(|(pod, _)| pod.clone()).collect(),
            // They are gone, or have finished: that is about the claim.
            Change::Freed(_) | Change::Forgotten(_) => Vec::new(),
        },
        Action::DeletePod { pod, .. } => vec![pod.clone()],
        Action::Wake(_) | Action::Unlist(_) | Action::RemoveClaim => Vec::new(),
    }
}

fn key(about: &About<'_>) -> String {
    format!(
        "{}/{} (policy {})",
        about.spot.namespace, about.subject, about.spot.policy
    )
}

fn names<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ")
}

fn ends(ended: &[(ClaimEntry, crate::api::claim::Outcome)]) -> String {
    let ended = ended
        .iter()
        .map(|(entry, outcome)| format!("{:?} ({outcome:?})", entry.name));
    ended.collect::<Vec<_>>().join(", ")
}

fn note_of_spared(about: &About<'_>, pods: &[PodReference]) -> String {
    format!(
        "deployer {} for {} was not admitted; it is reported and never deleted by deployer-guard, and nobody is admitted while it is active",
        names(pods.iter().map(|pod| pod.name.as_str())),
        key(about)
    )
}

fn note_of_action(about: &About<'_>, action: &Action) -> String {
    let key = key(about);
    match action {
        Action::WriteClaim { change, .. } => match change {
            Change::Confirmed { pod, .. } => format!("admitted deployer {:?} for {key} is in the store", pod.name),
            Change::Freed(ended) => format!("{key} is free: {} ended", ends(ended)),
            Change::Adopted { pod, .. } => format!(
                "deployer {:?} was not admitted, and holds {key} from now on because nobody else does",
                pod.name
            ),
            Change::Spared(pods) => note_of_spared(about, pods),
            Change::Condemned(pods) => format!(
                "{}, and has not started; it is going to be deleted",
                pods.iter()
                    .map(|(pod, why)| condemned(pod, *why, &key))
                    .collect::<Vec<_>>()
                    .join(", ")
            ),
            Change::Forgotten(pods) => format!(
                "leftover {} of {key} is gone",
                names(pods.iter().map(|pod| pod.name.as_str()))
            ),
        },
        Action::DeletePod { pod, .. } => format!(
            "deployer {:?} for {key} was a leftover that never started, and is deleted",
            pod.name
        ),
        Action::Wake(owner) => format!(
            "{key} is free: {} {:?}, which waits for it, was touched",
            owner.kind, owner.name
        ),
        Action::Unlist(owner) => format!(
            "{} {:?} waits for {key} no longer, and is about to be touched",
            owner.kind, owner.name
        ),
        Action::RemoveClaim => format!("the claim of {key} was free and of no more use, and is removed"),
    }
}

fn condemned(pod: &PodReference, why: Condemnation, key: &str) -> String {
    match why {
        Condemnation::Duplicate => format!("deployer {:?} was not admitted while another has {key}", pod.name),
        Condemnation::Orphan(why) => format!("the owner of deployer {:?} for {key} {}", pod.name, orphan(why)),
    }
}

fn orphan(why: OrphanWhy) -> &'static str {
    match why {
        OrphanWhy::Gone => "is gone",
        OrphanWhy::Replaced => "is gone, and another has its name",
        OrphanWhy::Finished => "is cancelled or final",
    }
}

/// The same each time for the same cause.
pub(super) fn note_of_finding(about: &About<'_>, finding: &Finding) -> String {
    let key = key(about);
    match finding {
        Finding::Duplicate { pod, beside } => format!(
            "two deployers are active for {key}: {:?} beside {:?}; stop {:?} unless it is deleted in a moment",
            pod.name, beside.name, pod.name
        ),
        Finding::Revived(pod) => format!(
            "deployer {:?} for {key} had ended, and is active again; stop it if another works",
            pod.name
        ),
        Finding::LateArrival(pod) => format!(
            "deployer {:?} for {key} was stored long after it was admitted, when its place was given up; look at the API servers and etcd",
            pod.name
        ),
        Finding::Orphan { pod, why } => format!(
            "the owner of deployer {:?} for {key} {}; stop it",
            pod.name,
            orphan(*why)
        ),
        Finding::OwnerUnread { pod, why } => {
            format!("the owner of deployer {:?} for {key} cannot be judged: {why}", pod.name)
        }
        Finding::Stuck { pod, .. } => format!(
            "deployer {:?} has held {key} for longer than leftovers.stuckAfterSeconds; look at it, and stop it if it hangs",
            pod.name
        ),
        Finding::CondemnedStays { pod, why } => format!(
            "deployer {:?} for {key} is a leftover and stays: {}. Nobody is admitted while it is active",
            pod.name,
            why_it_stays(*why)
        ),
        Finding::IdentityChanged(pod) => format!(
            "deployer {:?} holds {key}, and the policy no longer matches it, or it now works for another; put its labels and annotations back",
            pod.name
        ),
        Finding::IdentityUnreadable { pod, why } => {
            format!("what deployer {:?} works for cannot be read: {why}", pod.name)
        }
        Finding::Crowded(pods) => format!(
            "the claim of {key} holds no more leftovers, and {} are left out; stop some",
            names(pods.iter().map(|pod| pod.name.as_str()))
        ),
        Finding::NewerProtocol { protocol } => format!(
            "the claim of {key} is of protocol {protocol}, newer than this guard's, and is left alone; finish the upgrade"
        ),
    }
}

/// The pod, for a finding that was made without a claim.
pub(super) fn pod_reference(name: &str, uid: &str) -> PodReference {
    PodReference {
        name: name.to_owned(),
        uid: uid.to_owned(),
        ..PodReference::default()
    }
}
