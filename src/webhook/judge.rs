//! What a review asks of a policy, and what comes of it: CREATE goes to the desk of its key, UPDATE is judged at once.

use std::sync::Arc;

use futures::future::join_all;
use k8s_openapi::api::core::v1::ObjectReference;
use serde_json::{Value, json};
use tokio::time::{Instant, timeout_at};

use super::desk::Desks;
use super::policies::{Known, Policies, Target};
use super::review::{Request, ReviewError};
use super::ticket::{Decided, Question};
use crate::api::claim::PolicyReference;
use crate::api::policy::{Mode, Scope};
use crate::cluster::store::Store;
use crate::domain::admission::{Candidate, Rules, Ruling};
use crate::domain::answer::{Answer, Subject, answer};
use crate::domain::key::Key;
use crate::domain::policy::{Identity, OwnerReference, Policy};
use crate::domain::refusal::{Refusal, Undecided};
use crate::domain::sighting::Activity;
use crate::domain::standpoint::without_owner;

/// Judges reviews.
pub struct Judge<S> {
    store: Arc<S>,
    desks: Arc<Desks<S>>,
}

/// The pod that a review is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    /// Its namespace.
    pub namespace: String,
    /// Its final name.
    pub name: String,
    /// Its final uid.
    pub uid: String,
}

/// A decision on a review, reached or not.
#[derive(Clone, Debug)]
pub struct Judgement {
    /// The pod.
    pub pod: Pod,
    /// What was decided.
    pub ruling: Ruling,
    /// What the pod works for, where that could be read.
    pub key: Option<Key>,
    /// Its generation, where the policy knows generations.
    pub generation: Option<String>,
    /// Its owner, where the policy asks for one.
    pub owner: Option<OwnerReference>,
    /// The ordinal of its generation, where it was read.
    pub ordinal: Option<i64>,
    /// The claim of the key, where there is one.
    pub claim: Option<ObjectReference>,
    /// CREATE or UPDATE.
    pub operation: &'static str,
}

impl Judgement {
    /// No decision was reached before the pod was looked at.
    pub(super) fn unreached(request: &Request, why: Undecided) -> Self {
        let text = |field| {
            let value = request
                .object
                .as_ref()
                .and_then(|object| object.pointer(field))
                .and_then(Value::as_str);
            value.unwrap_or_default().to_owned()
        };
        let pod = Pod {
            namespace: request.namespace.clone().unwrap_or_default(),
            name: text("/metadata/name"),
            uid: text("/metadata/uid"),
        };
        Self::new(pod, operation(request).unwrap_or("OTHER"), why, None)
    }

    /// What the API server is told, under this version of the policy.
    #[must_use]
    pub fn answer(&self, known: &Known) -> Answer {
        let subject = Subject {
            policy: &known.name,
            policy_generation: known.generation,
            mode: known.mode,
            failure_policy: known.failure_policy,
            pod: &self.pod.name,
            key: self.key.as_ref(),
        };
        answer(&subject, &self.ruling)
    }

    /// A ruling that needed no claim.
    fn new(pod: Pod, operation: &'static str, ruling: impl Into<Ruling>, key: Option<Key>) -> Self {
        Self {
            pod,
            ruling: ruling.into(),
            key,
            generation: None,
            owner: None,
            ordinal: None,
            claim: None,
            operation,
        }
    }
}

/// A ruling on the pod alone: no desk is asked.
struct AnsweredAtOnce {
    ruling: Ruling,
    key: Option<Key>,
}

/// How a review is judged, beside the policy.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// Past this nothing is written for it.
    pub deadline: Instant,
    /// Stock was taken under this very version of the policy ([`Target::is_stocked`]): a new key needs no list of pods. Other
    /// policies that match the pod are asked as if none was taken under them.
    pub stock_taken: bool,
}

impl<S: Store> Judge<S> {
    /// Judges with these desks.
    #[must_use]
    pub fn new(store: Arc<S>, desks: Arc<Desks<S>>) -> Self {
        Self { store, desks }
    }

    /// Judges one review under one policy. `None`: the policy has nothing to say about it.
    ///
    /// # Errors
    /// If the review lacks what the operation needs.
    pub async fn judge(
        &self,
        policies: &Policies<S>,
        known: &Known,
        request: &Request,
        terms: Terms,
    ) -> Result<Option<Judgement>, ReviewError> {
        let deadline = terms.deadline;
        let is_pod = request.resource.group.is_empty() && request.resource.resource == "pods";
        if !is_pod || request.sub_resource.as_ref().is_some_and(|sub| !sub.is_empty()) {
            return Ok(None);
        }
        let Some(operation) = operation(request) else {
            return Ok(None);
        };
        let object = request.object()?;
        let pod = pod_of(request, object)?;
        let policy = match &known.policy {
            Ok(policy) => Arc::clone(policy),
            Err(why) => return Ok(Some(undecided(pod, operation, why.clone()))),
        };
        if operation == "UPDATE" {
            return Ok(self.update(&policy, pod, request, object, deadline).await);
        }
        let matched = self
            .desks
            .aside()
            .ask(&policy, (object, None), deadline, |policy, pod, _| {
                policy.matches(pod, None)
            });
        match matched.await {
            Ok(Ok(true)) => {}
            Ok(Ok(false)) => {
                // Of an older version of the policy, perhaps; else the API server and we do not agree.
                tracing::warn!(
                    policy = known.name,
                    namespace = pod.namespace,
                    pod = pod.name,
                    "the API server asked about a pod that the policy does not match; it was let through"
                );
                return Ok(None);
            }
            Ok(Err(error)) => return Ok(Some(undecided(pod, operation, error.to_string()))),
            Err(why) => return Ok(Some(Judgement::new(pod, operation, why, None))),
        }
        Ok(Some(self.create(policies, policy, pod, request, object, terms).await))
    }

    async fn create(
        &self,
        policies: &Policies<S>,
        policy: Arc<Policy>,
        pod: Pod,
        request: &Request,
        object: &Value,
        terms: Terms,
    ) -> Judgement {
        let dry_run = request.dry_run.unwrap_or_default();
        let owner = named_owner(&policy, object);
        let asked = self.question(
            policy,
            &pod,
            &request.user_info.username,
            object,
            terms.deadline,
            dry_run,
        );
        let question = match asked.await {
            Ok(mut question) => {
                question.rules.stock_taken = terms.stock_taken;
                question
            }
            Err(answered) => {
                return Judgement {
                    owner,
                    ..Judgement::new(pod, "CREATE", answered.ruling, answered.key)
                };
            }
        };
        let (key, generation) = (question.key.clone(), question.candidate.generation.clone());
        let refused_elsewhere = self.refused_by_others(policies, &question, request, object).await;
        let Decided { ruling, claim, ordinal } = match refused_elsewhere {
            Some(refusal) => {
                return Judgement {
                    owner,
                    ..Judgement::new(pod, "CREATE", refusal, Some(key))
                };
            }
            None => self.desks.decide(question).await,
        };
        Judgement {
            generation,
            owner,
            ordinal,
            claim,
            ..Judgement::new(pod, "CREATE", ruling, Some(key))
        }
    }

    /// The read-only verdict of every other enforced policy that matches the pod: where one of them refuses, a claim
    /// under this one would be a leftover. What cannot be reached here is left to the other policy's own call, and takes no
    /// more than half of this one's time.
    async fn refused_by_others(
        &self,
        policies: &Policies<S>,
        question: &Question,
        request: &Request,
        object: &Value,
    ) -> Option<Refusal> {
        let others = policies.others(&question.policy.name).into_iter().filter_map(|known| {
            let policy = known.policy.as_ref().ok()?;
            (known.mode == Mode::Enforce).then(|| Arc::clone(policy))
        });
        let verdicts =
            join_all(others.map(async |policy| self.refused_by(policies, policy, question, request, object).await))
                .await;
        verdicts.into_iter().flatten().next()
    }

    async fn refused_by(
        &self,
        policies: &Policies<S>,
        policy: Arc<Policy>,
        ours: &Question,
        request: &Request,
        object: &Value,
    ) -> Option<Refusal> {
        let namespace = &ours.key.namespace;
        let now = Instant::now();
        let deadline = now + ours.deadline.saturating_duration_since(now) / 2;
        let matched = self
            .desks
            .aside()
            .ask(&policy, (object, None), deadline, |policy, pod, _| {
                policy.matches(pod, None)
            });
        if !matches!(matched.await, Ok(Ok(true))) {
            return None;
        }
        if policy.selects_namespaces() {
            let labels = timeout_at(deadline, self.store.namespace_labels(namespace))
                .await
                .ok()?
                .ok()?;
            if !policy.matches_namespace(&json!({ "metadata": { "labels": labels } })) {
                return None;
            }
        }
        let (name, uid, generation) = (policy.name.clone(), policy.uid.clone(), policy.generation);
        let pod = Pod {
            namespace: namespace.clone(),
            name: ours.candidate.name.clone(),
            uid: ours.candidate.uid.clone(),
        };
        let asked = self.question(policy, &pod, &request.user_info.username, object, deadline, true);
        let (ruling, key) = match asked.await {
            Err(answered) => (answered.ruling, answered.key),
            Ok(question) => {
                let key = question.key.clone();
                (self.desks.decide(question).await.ruling, Some(key))
            }
        };
        let Ruling::Refused(refusal) = ruling else {
            return None;
        };
        // The policy is known from a watch, and nothing is decided from a cache.
        let live = Target {
            name: name.clone(),
            version: None,
            stocked: false,
        };
        let live = timeout_at(deadline, policies.find(&live)).await.ok()?.ok()??;
        if (&live.uid, live.generation) != (&uid, generation) {
            return None;
        }
        let message = refusal.explain(key.as_ref(), &pod.name);
        Some(Refusal::OtherPolicy {
            policy: name,
            reason: refusal.reason(),
            message,
        })
    }

    /// What the desk of the pod's key is asked; or why nobody needs to be asked.
    async fn question(
        &self,
        policy: Arc<Policy>,
        pod: &Pod,
        user: &str,
        object: &Value,
        deadline: Instant,
        dry_run: bool,
    ) -> Result<Question, Box<AnsweredAtOnce>> {
        let answered = |ruling: Ruling, key| Box::new(AnsweredAtOnce { ruling, key });
        let refused = |refusal: Refusal, key| answered(refusal.into(), key);
        let read = self
            .desks
            .aside()
            .ask(&policy, (object, None), deadline, |policy, pod, _| {
                let standpoint = || (!policy.needs_owner()).then(|| without_owner(policy, pod));
                policy.identity(pod).map(|identity| (identity, standpoint()))
            });
        let read = read.await.map_err(|why| answered(why.into(), None))?;
        let (identity, standpoint) = read.map_err(|error| refused(error.into(), None))?;
        let key = Key::of(&policy, &pod.namespace, &identity);
        let owner = policy
            .owner_reference(object)
            .map_err(|error| refused(error.into(), Some(key.clone())))?;
        let rules = rules(&policy, &identity);
        let candidate = Candidate {
            name: pod.name.clone(),
            uid: pod.uid.clone(),
            generation: identity.generation,
            requested_by: Some(user.to_owned()),
        };
        Ok(Question {
            key,
            candidate,
            pod: Arc::new(object.clone()),
            owner,
            policy,
            rules,
            standpoint,
            deadline,
            dry_run,
        })
    }

    /// What a policy matches or reads on a pod cannot change while the pod is active.
    async fn update(
        &self,
        policy: &Arc<Policy>,
        pod: Pod,
        request: &Request,
        new: &Value,
        deadline: Instant,
    ) -> Option<Judgement> {
        let old = request.old_object.as_ref().filter(|old| old.is_object())?;
        // What does not matter is let through first: a condition that fails must keep nobody from releasing a finalizer.
        let phase = old.pointer("/status/phase").and_then(Value::as_str);
        let keys = policy.changed_keys(old, new);
        if keys.is_empty() || !Activity::of_phase(phase).is_active() {
            return None;
        }
        let looked = self
            .desks
            .aside()
            .ask(policy, (new, Some(old)), deadline, |policy, new, old| {
                let old = old.unwrap_or(&Value::Null);
                match (policy.matches(new, Some(old)), policy.matches(old, Some(old))) {
                    (Ok(true), _) | (_, Ok(true)) => {
                        Ok(Some(policy.identity(old).or_else(|_| policy.identity(new)).ok()))
                    }
                    (Ok(false), Ok(false)) => Ok(None),
                    (Err(error), _) | (_, Err(error)) => Err(error),
                }
            });
        let identity = match looked.await {
            Ok(Ok(Some(identity))) => identity,
            Ok(Ok(None)) => return None,
            Ok(Err(error)) => return Some(undecided(pod, "UPDATE", error.to_string())),
            Err(why) => return Some(Judgement::new(pod, "UPDATE", why, None)),
        };
        let key = identity.map(|identity| Key::of(policy, &pod.namespace, &identity));
        let owner = named_owner(policy, old).or_else(|| named_owner(policy, new));
        Some(Judgement {
            owner,
            ..Judgement::new(pod, "UPDATE", Refusal::IdentityChanged { keys }, key)
        })
    }
}

/// What the policy asks of a decision on a pod with this identity, as far as nobody says that stock was taken.
fn rules(policy: &Policy, identity: &Identity) -> Rules {
    Rules {
        policy: PolicyReference {
            name: policy.name.clone(),
            uid: policy.uid.clone(),
            generation: Some(policy.generation),
            ..PolicyReference::default()
        },
        config: identity.config.clone(),
        key_generation: identity
            .generation
            .clone()
            .filter(|_| policy.scope == Scope::Generation),
        reruns: policy.reruns,
        older_generations: policy.older_generations,
        stock_taken: false,
    }
}

/// The owner that the policy asks for, where the pod names exactly one: whose record a refusal belongs to, whatever it is for.
fn named_owner(policy: &Policy, pod: &Value) -> Option<OwnerReference> {
    policy.owner_reference(pod).ok().flatten()
}

/// The operations that are decided.
fn operation(request: &Request) -> Option<&'static str> {
    ["CREATE", "UPDATE"]
        .into_iter()
        .find(|operation| *operation == request.operation)
}

fn undecided(pod: Pod, operation: &'static str, why: String) -> Judgement {
    Judgement::new(pod, operation, Undecided::PolicyUnusable { why }, None)
}

fn pod_of(request: &Request, object: &Value) -> Result<Pod, ReviewError> {
    let text = |field: &'static str| {
        let value = object
            .pointer(field)
            .and_then(Value::as_str)
            .filter(|value| !value.is_empty());
        value.map(str::to_owned).ok_or(ReviewError::NoField(field))
    };
    let namespace = request.namespace.clone().filter(|namespace| !namespace.is_empty());
    Ok(Pod {
        namespace: namespace.ok_or(ReviewError::NoField("/request/namespace"))?,
        name: text("/metadata/name")?,
        uid: text("/metadata/uid")?,
    })
}
