//! The webhook's own judge over a cluster in memory, and before it what the API server does: whether it asks at all, and
//! what it stores after.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::report::{Decision, Holder, Identity, Owner, OwnerState, Reviewed, Verdict};
use super::reviews::Review;
use super::snapshot::{Snapshot, unknown_namespace};
use crate::api::DeployerPolicy;
use crate::cluster::memory::MemoryStore;
use crate::cluster::store::{OwnerKind, Store};
use crate::cluster::webhook_configuration::never_matched;
use crate::domain::answer;
use crate::domain::key::Key;
use crate::domain::policy::{OwnerReference, Policy};
use crate::domain::pursuit::Window;
use crate::domain::refusal::{Blocker, Refusal};
use crate::domain::sighting::Activity;
use crate::observer::Observer;
use crate::telemetry::metrics::Metrics;
use crate::webhook::desk::Desks;
use crate::webhook::judge::{Judge, Judgement, Terms};
use crate::webhook::policies::{Known, Policies};
use crate::webhook::review::Request;

/// How long a decision may take. Nothing waits for anything but a namesake that is on its way, for 300 ms.
const PATIENCE: Duration = Duration::from_secs(30);

/// A cluster in memory with a webhook.
pub(super) struct Rehearsal {
    store: Arc<MemoryStore>,
    policies: Arc<Policies<MemoryStore>>,
    /// By name.
    known: Vec<Arc<Known>>,
    judge: Judge<MemoryStore>,
    guard_namespace: String,
}

/// Why the API server does not ask the webhook.
struct Unasked {
    reason: &'static str,
    explanation: String,
}

impl Rehearsal {
    /// A cluster with these objects, in which these policies are in force.
    pub(super) fn new(snapshot: &Snapshot, policies: &[DeployerPolicy], guard_namespace: &str) -> anyhow::Result<Self> {
        let store = Arc::new(snapshot.store());
        let metrics = Arc::new(Metrics::new());
        let observer = Observer::new(Arc::clone(&store), Window::default(), metrics);
        let desks = Arc::new(Desks::new(Arc::clone(&store), Arc::new(observer)));
        let rehearsal = Self {
            policies: Arc::new(Policies::new(Arc::clone(&store))),
            known: policies.iter().map(|policy| Arc::new(Known::new(policy))).collect(),
            judge: Judge::new(Arc::clone(&store), desks),
            guard_namespace: guard_namespace.to_owned(),
            store,
        };
        for policy in policies {
            rehearsal.policies.learn(policy);
            // Where one policy asks for the verdict of another, that is read live too.
            rehearsal
                .store
                .put(serde_json::to_value(policy).context("a policy cannot be written")?);
        }
        Ok(rehearsal)
    }

    /// Decides on a review under every policy. What is allowed is stored.
    ///
    /// # Errors
    /// If the review lacks what a decision needs, with the place it was given.
    pub(super) async fn decide(&self, review: &Review, snapshot: &Snapshot) -> anyhow::Result<Reviewed> {
        let request = &review.request;
        let namespace = request.namespace.clone().unwrap_or_default();
        let mut notes = review.notes.clone();
        if !namespace.is_empty() && !snapshot.has_namespace(&namespace) {
            self.store.put(unknown_namespace(&namespace));
            if self.compiled().any(|(_, policy)| policy.selects_namespaces()) {
                notes.push(format!(
                    "namespace {namespace:?} is not in the snapshot: it is taken to have no label but kubernetes.io/metadata.name"
                ));
            }
        }
        let mut decisions = Vec::new();
        for (known, policy) in self.compiled() {
            decisions.push(self.under(known, policy, review).await?);
        }
        let allowed = decisions.iter().all(|decision| decision.allowed);
        if allowed && !request.dry_run.unwrap_or_default() {
            self.store_pod(request, &namespace).await;
        }
        let text = |field: &str| {
            let objects = [request.object.as_ref(), request.old_object.as_ref()];
            let found = objects
                .into_iter()
                .flatten()
                .find_map(|object| object.pointer(field)?.as_str());
            found.unwrap_or_default().to_owned()
        };
        Ok(Reviewed {
            source: review.place.to_string(),
            operation: request.operation.clone(),
            pod: text("/metadata/name"),
            uid: text("/metadata/uid"),
            namespace,
            user: request.user_info.username.clone(),
            dry_run: request.dry_run.unwrap_or_default(),
            verdict: decisions
                .iter()
                .map(|decision| decision.verdict)
                .max()
                .unwrap_or(Verdict::NotMatched),
            allowed,
            notes,
            decisions,
        })
    }

    /// Every policy that is given compiles: the reader saw to that.
    fn compiled(&self) -> impl Iterator<Item = (&Known, &Arc<Policy>)> {
        self.known
            .iter()
            .filter_map(|known| Some((&**known, known.policy.as_ref().ok()?)))
    }

    async fn under(&self, known: &Known, policy: &Policy, review: &Review) -> anyhow::Result<Decision> {
        let request = &review.request;
        let unasked = self.unasked(policy, request).await;
        if let Some(unasked) = unasked {
            return Ok(not_matched(known, unasked));
        }
        let before = self.holder(policy, request).await;
        let deadline = Instant::now() + PATIENCE;
        // The pods that are given are looked at in any case.
        let terms = Terms {
            deadline,
            stock_taken: false,
        };
        let judged = self.judge.judge(&self.policies, known, request, terms).await;
        let judged =
            judged.with_context(|| format!("{}: AdmissionReview: give it as an API server sends it", review.place))?;
        Ok(match judged {
            Some(judgement) => self.decision(known, policy, request, &judgement, before).await,
            None => not_matched(
                known,
                Unasked {
                    reason: "PodFinished",
                    explanation: "the pod has finished, and of that the policy has nothing to say".into(),
                },
            ),
        })
    }

    /// Why the API server does not ask the webhook about a request under a policy. A condition that fails is left to the judge.
    async fn unasked(&self, policy: &Policy, request: &Request) -> Option<Unasked> {
        let unasked = |reason, explanation: String| Some(Unasked { reason, explanation });
        let is_pod = request.resource.group.is_empty() && request.resource.resource == "pods";
        let sub = request.sub_resource.as_deref().unwrap_or_default();
        if !is_pod || !sub.is_empty() || !matches!(request.operation.as_str(), "CREATE" | "UPDATE") {
            return unasked(
                "NotRegistered",
                "the webhook is asked about CREATE and UPDATE of pods alone".into(),
            );
        }
        let namespace = request.namespace.as_deref().unwrap_or_default();
        if never_matched(&self.guard_namespace).contains(&namespace) {
            return unasked(
                "NamespaceExcluded",
                format!("no policy matches in namespace {namespace:?}, whatever its selector"),
            );
        }
        if policy.selects_namespaces() {
            let labels = self.store.namespace_labels(namespace).await.unwrap_or_default();
            if !policy.matches_namespace(&json!({ "metadata": { "labels": labels } })) {
                return unasked(
                    "NamespaceSelector",
                    format!("spec.match.namespaceSelector does not select namespace {namespace:?}"),
                );
            }
        }
        let new = request.object().ok()?;
        let old = request.old_object.as_ref().filter(|old| old.is_object());
        let updated = old.filter(|_| request.operation == "UPDATE");
        if updated.is_some_and(|old| policy.changed_keys(old, new).is_empty()) {
            return unasked(
                "NothingChanged",
                "the update changes no label or annotation that the policy matches or reads".into(),
            );
        }
        let mismatch = policy.mismatch(new, old).ok()??;
        if let Some(old) = updated {
            // What takes a pod out of the match is judged too.
            policy.mismatch(old, Some(old)).ok()??;
        }
        unasked(mismatch.reason(), mismatch.to_string())
    }

    async fn decision(
        &self,
        known: &Known,
        policy: &Policy,
        request: &Request,
        judgement: &Judgement,
        before: Option<Holder>,
    ) -> Decision {
        let answer = judgement.answer(known);
        let pod = request.object.as_ref().unwrap_or(&Value::Null);
        let namespace = &judgement.pod.namespace;
        let (owner, found) = match &judgement.owner {
            Some(reference) => {
                let (owner, found) = self.owner(namespace, reference).await;
                (Some(owner), found)
            }
            None => (None, None),
        };
        let blocker = match answer::refusal(&judgement.ruling).and_then(Refusal::blocker) {
            Some(blocker) => Some(self.seen(namespace, blocker).await),
            None => None,
        };
        Decision {
            policy: known.name.clone(),
            mode: known.mode,
            verdict: (&judgement.ruling).into(),
            reason: answer::reason(&judgement.ruling).to_owned(),
            explanation: answer.text.clone(),
            allowed: answer.denial.is_none(),
            code: answer.denial.as_ref().map_or(200, |denial| denial.code),
            message: answer.denial.map(|denial| denial.message),
            warnings: answer.warnings,
            identity: identity(policy, pod, found.as_ref()),
            owner,
            key: judgement.key.as_ref().map(ToString::to_string),
            claim: judgement.key.as_ref().map(Key::claim_name),
            holder: blocker.or(before),
        }
    }

    /// The owner that a pod names; and the object, if it is that one.
    async fn owner(&self, namespace: &str, reference: &OwnerReference) -> (Owner, Option<Value>) {
        let OwnerReference {
            api_version,
            kind,
            name,
            uid,
        } = reference.clone();
        let kind_of = OwnerKind {
            api_version: api_version.clone(),
            kind: kind.clone(),
        };
        let found = self.store.owner(namespace, &kind_of, &name).await.ok().flatten();
        let is_it = |owner: &Value| owner.pointer("/metadata/uid").and_then(Value::as_str) == Some(&uid);
        let (state, found) = match found {
            Some(owner) if is_it(&owner) => (OwnerState::Present, Some(owner)),
            Some(_) => (OwnerState::Replaced, None),
            None => (OwnerState::Absent, None),
        };
        let owner = Owner {
            api_version,
            kind,
            name,
            uid,
            state,
        };
        (owner, found)
    }

    /// The pod that the claim of the request's key is given to, before it is decided on.
    async fn holder(&self, policy: &Policy, request: &Request) -> Option<Holder> {
        let namespace = request.namespace.as_deref()?;
        let identity = policy.identity(request.object().ok()?).ok()?;
        let name = Key::of(policy, namespace, &identity).claim_name();
        let holder = self.store.claim(namespace, &name).await.ok()??.spec.holder?;
        Some(self.seen(namespace, &Blocker::from(&holder)).await)
    }

    async fn seen(&self, namespace: &str, pod: &Blocker) -> Holder {
        let found = self.store.pod(namespace, &pod.name).await.ok();
        Holder {
            name: pod.name.clone(),
            uid: pod.uid.clone(),
            generation: pod.generation.clone(),
            state: match found.and_then(|found| found.of(&pod.uid)) {
                Some(Activity::Active) => "Active",
                Some(Activity::Succeeded) => "Succeeded",
                Some(Activity::Failed) => "Failed",
                None => "Absent",
            },
        }
    }

    /// What the API server stores of a request that was allowed. A name that exists is not given twice.
    async fn store_pod(&self, request: &Request, namespace: &str) {
        let is_pod = request.resource.group.is_empty() && request.resource.resource == "pods";
        let is_whole = request.sub_resource.as_deref().unwrap_or_default().is_empty();
        let Some(mut pod) = request
            .object
            .clone()
            .filter(|object| is_pod && is_whole && object.is_object())
        else {
            return;
        };
        pod["apiVersion"] = "v1".into();
        pod["kind"] = "Pod".into();
        pod["metadata"]["namespace"] = namespace.into();
        let name = pod["metadata"]["name"].as_str().unwrap_or_default();
        let is_free = matches!(
            self.store.pod(namespace, name).await,
            Ok(crate::domain::sighting::Sighting::Absent)
        );
        if request.operation == "UPDATE" || request.operation == "CREATE" && is_free {
            self.store.put(pod);
        }
    }
}

/// What the pod works for, as far as it can be read.
fn identity(policy: &Policy, pod: &Value, owner: Option<&Value>) -> Option<Identity> {
    let identity = policy.identity(pod).ok()?;
    Some(Identity {
        config: identity.config,
        config_uid: policy.config_uid(pod, owner).ok().flatten(),
        generation: identity.generation,
        ordinal: policy.ordinal(pod, owner).ok().flatten(),
    })
}

fn not_matched(known: &Known, unasked: Unasked) -> Decision {
    Decision {
        policy: known.name.clone(),
        mode: known.mode,
        verdict: Verdict::NotMatched,
        reason: unasked.reason.into(),
        explanation: Some(unasked.explanation),
        allowed: true,
        code: 200,
        message: None,
        warnings: Vec::new(),
        identity: None,
        owner: None,
        key: None,
        claim: None,
        holder: None,
    }
}
