//! What is on record of a decision: one log line, the metrics, and for a refusal Events on the owner and the claim.

use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Resource;

use crate::api::DeployerPolicy;
use crate::api::claim::{Rejection, WaitingOwner};
use crate::api::policy::Mode;
use crate::cluster::events::{Events, Notice};
use crate::domain::admission::Ruling;
use crate::domain::answer::{Answer, reason, refusal, verdict};
use crate::domain::key::Key;
use crate::domain::policy::OwnerReference;
use crate::domain::refusal::{Blocker, Refusal};
use crate::statuses::Statuses;
use crate::telemetry::metrics::{DecisionLabels, Metrics};

/// Keeps the records.
#[derive(Clone)]
pub struct Records {
    metrics: Arc<Metrics>,
    events: Events,
    statuses: Option<Arc<Statuses>>,
}

/// One decision, to be recorded.
#[derive(Clone, Copy, Debug)]
pub struct Decision<'a> {
    /// `request.uid` of the review.
    pub request: &'a str,
    /// When the call came in.
    pub received: Instant,
    /// The policy's name and generation.
    pub policy: (&'a str, i64),
    /// The policy's uid; empty if it was never read.
    pub policy_uid: &'a str,
    /// What is done with a refusal.
    pub mode: Mode,
    /// CREATE or UPDATE.
    pub operation: &'static str,
    /// Nothing is stored whatever is answered.
    pub dry_run: bool,
    /// Who asked.
    pub user: &'a str,
    /// Namespace, name and uid of the pod.
    pub pod: (&'a str, &'a str, &'a str),
    /// What it works for.
    pub key: Option<&'a Key>,
    /// Its generation, where the policy knows generations.
    pub generation: Option<&'a str>,
    /// The ordinal of that generation, where it was read.
    pub ordinal: Option<i64>,
    /// Its owner.
    pub owner: Option<&'a OwnerReference>,
    /// The policy has owners that wait woken when the key becomes free.
    pub wakes: bool,
    /// The claim, where there is one.
    pub claim: Option<&'a ObjectReference>,
    /// What was decided.
    pub ruling: &'a Ruling,
    /// What was answered.
    pub answer: &'a Answer,
}

impl Records {
    /// Keeps records in these places.
    #[must_use]
    pub fn new(metrics: Arc<Metrics>, events: Events) -> Self {
        Self {
            metrics,
            events,
            statuses: None,
        }
    }

    /// Keeps refusals in the status of claims, too.
    #[must_use]
    pub fn telling(self, statuses: Arc<Statuses>) -> Self {
        Self {
            statuses: Some(statuses),
            ..self
        }
    }

    /// A fault of ours was met, outside the handler itself: its own panics are counted where they are caught.
    pub fn panicked(&self) {
        self.metrics.panicked();
    }

    /// Puts a decision on record. Waits for nothing.
    pub fn keep(&self, decision: &Decision<'_>) {
        let took = decision.received.elapsed();
        self.metrics.decided(
            &DecisionLabels {
                // A name that was never read comes from a URL, which anybody may write.
                policy: if decision.policy.1 > 0 {
                    decision.policy.0.to_owned()
                } else {
                    String::new()
                },
                operation: decision.operation,
                verdict: verdict(decision.ruling),
                reason: reason(decision.ruling),
                dry_run: decision.dry_run,
            },
            took,
        );
        log(decision, took);
        if decision.dry_run {
            return;
        }
        if refusal(decision.ruling).is_some() {
            self.events.take(notice(decision));
            self.tell_claim(decision);
        }
        self.tell_of_owner(decision);
    }

    /// An owner whose deployer another one keeps out waits for the key, until a deployer of it is admitted. In the modes that
    /// let a refused pod in, nobody waits.
    fn tell_of_owner(&self, decision: &Decision<'_>) {
        let (Some(statuses), Some(key), Some(owner)) = (&self.statuses, decision.key, decision.owner) else {
            return;
        };
        if !decision.wakes || decision.mode != Mode::Enforce {
            return;
        }
        let (namespace, claim) = (decision.pod.0, key.claim_name());
        match decision.ruling {
            Ruling::Admitted => statuses.served(namespace, &claim, &owner.uid),
            Ruling::Refused(Refusal::DeployerActive(_) | Refusal::DeployerPending(_)) => {
                let waiting = WaitingOwner {
                    name: owner.name.clone(),
                    uid: owner.uid.clone(),
                    kind: owner.kind.clone(),
                    api_version: owner.api_version.clone(),
                    ordinal: decision.ordinal,
                    ..WaitingOwner::default()
                };
                statuses.waits(namespace, &claim, waiting);
            }
            Ruling::Refused(_) | Ruling::NameExists | Ruling::Undecided(_) => {}
        }
    }

    fn tell_claim(&self, decision: &Decision<'_>) {
        // Where the decision found no claim, one may have been made since; if not, that is counted.
        let name = decision.key.map(Key::claim_name);
        let (Some(statuses), Some(claim), Some(refusal)) = (&self.statuses, name, refusal(decision.ruling)) else {
            return;
        };
        let rejection = Rejection {
            time: Timestamp::now(),
            pod: decision.pod.1.to_owned(),
            generation: decision.generation.map(str::to_owned),
            requested_by: decision.user.to_owned(),
            reason: refusal.reason().to_owned(),
            message: decision.answer.text.clone().unwrap_or_default(),
            ..Rejection::default()
        };
        statuses.refused(decision.pod.0, &claim, rejection);
    }
}

fn log(decision: &Decision<'_>, took: Duration) {
    let (namespace, pod, pod_uid) = decision.pod;
    let message = decision.answer.text.as_deref();
    let key = decision.key.map(ToString::to_string);
    let claim = decision.claim.and_then(|claim| claim.name.as_deref());
    let holder = refusal(decision.ruling)
        .and_then(Refusal::blocker)
        .map(|blocker| blocker.name.as_str());
    tracing::info!(
        target: "deployer_guard::decision",
        request = decision.request,
        policy = decision.policy.0,
        policy_generation = decision.policy.1,
        mode = ?decision.mode,
        operation = decision.operation,
        dry_run = decision.dry_run,
        user = decision.user,
        namespace,
        pod,
        pod_uid,
        key,
        claim,
        verdict = verdict(decision.ruling),
        reason = reason(decision.ruling),
        allowed = decision.answer.denial.is_none(),
        holder,
        message,
        took_ms = (took.as_secs_f64() * 1e6).round() / 1e3,
        "decided"
    );
}

fn notice(decision: &Decision<'_>) -> Notice {
    let namespace = decision.pod.0;
    let owner = decision.owner.map(|owner| ObjectReference {
        api_version: Some(owner.api_version.clone()),
        kind: Some(owner.kind.clone()),
        name: Some(owner.name.clone()),
        namespace: Some(namespace.to_owned()),
        uid: Some(owner.uid.clone()),
        ..ObjectReference::default()
    });
    let holder = refusal(decision.ruling)
        .and_then(Refusal::blocker)
        .map(|Blocker { name, uid, .. }| ObjectReference {
            api_version: Some("v1".into()),
            kind: Some("Pod".into()),
            name: Some(name.clone()),
            namespace: Some(namespace.to_owned()),
            uid: Some(uid.clone()),
            ..ObjectReference::default()
        });
    let mut regarding: Vec<_> = owner.into_iter().chain(decision.claim.cloned()).collect();
    let mut related = holder;
    if regarding.is_empty() && !decision.policy_uid.is_empty() {
        regarding.push(policy(decision));
        // The Event is in another namespace than the pod: who was refused must be said.
        related.get_or_insert_with(|| refused_pod(decision));
    }
    Notice {
        regarding,
        related,
        reason: if decision.mode == Mode::Enforce {
            "DeployerRejected"
        } else {
            "DeployerWouldBeRejected"
        },
        action: "Admit",
        note: decision.answer.text.clone().unwrap_or_default(),
        ..Notice::default()
    }
}

/// The policy: what a refusal is about that found neither owner nor claim. The pod itself was never in the store.
fn policy(decision: &Decision<'_>) -> ObjectReference {
    ObjectReference {
        api_version: Some(DeployerPolicy::api_version(&()).into_owned()),
        kind: Some(DeployerPolicy::kind(&()).into_owned()),
        name: Some(decision.policy.0.to_owned()),
        uid: Some(decision.policy_uid.to_owned()),
        ..ObjectReference::default()
    }
}

/// The pod that was refused, without its uid: each attempt has another one, and equal refusals are one Event.
fn refused_pod(decision: &Decision<'_>) -> ObjectReference {
    let (namespace, name, _) = decision.pod;
    ObjectReference {
        api_version: Some("v1".into()),
        kind: Some("Pod".into()),
        name: Some(name.to_owned()),
        namespace: Some(namespace.to_owned()),
        ..ObjectReference::default()
    }
}
