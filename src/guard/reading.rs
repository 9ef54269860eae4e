//! Everything that is read of one key, live, and turned into what the plan takes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, StreamExt, TryStreamExt};
use kube::ResourceExt;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::lookout::Lookout;
use super::pods::activity_of;
use super::spot::Spot;
use crate::api::DeployerClaim;
use crate::cluster::request::{REQUEST, read_within};
use crate::cluster::store::{OwnerKind, ReadError};
use crate::cluster::upkeep::Upkeep;
use crate::domain::key::{Key, Subject};
use crate::domain::leftovers::{FoundClaim, FoundPod, Memory, OwnerRead, OwnerState, Place, Snapshot};
use crate::domain::policy::Policy;

/// Pods of one key that are read side by side.
const AT_A_TIME: usize = 8;
/// The namespace that no policy ever matches, beside our own.
const KUBE_SYSTEM: &str = "kube-system";

/// What was read of a key.
#[derive(Clone, Debug)]
pub(super) struct Reading {
    pub(super) claim: Option<DeployerClaim>,
    pub(super) snapshot: Snapshot,
    /// Some pod that was found is active.
    pub(super) busy: bool,
}

/// Reads keys.
#[derive(Debug)]
pub(super) struct Reader<S> {
    pub(super) store: Arc<S>,
    pub(super) lookout: Arc<Lookout>,
    /// Our own namespace, which no policy ever matches.
    pub(super) own_namespace: String,
}

impl<S: Upkeep> Reader<S> {
    /// Reads a key: the claim first, then each pod that it names or that was suggested, and their owners.
    ///
    /// Without a policy no pod works for the key. `begun` is the guard's time before anything of it was read.
    ///
    /// # Errors
    /// If a read fails that is needed. An owner that cannot be read is part of what was read.
    pub(super) async fn read(
        &self,
        spot: &Spot,
        policy: Option<&Arc<Policy>>,
        begun: Duration,
    ) -> Result<Reading, ReadError> {
        let claim = read_within("the claim", self.store.claim(&spot.namespace, &spot.claim)).await?;
        let policy = match policy {
            Some(policy) if self.is_in(policy, &spot.namespace).await? => Some(policy),
            _ => None,
        };
        let mut names: BTreeSet<String> = self.lookout.suggested(spot).into_iter().collect();
        names.extend(claim.iter().flat_map(|claim| claim.spec.names()).map(str::to_owned));
        let read = stream::iter(names).map(|name| async move {
            let pod = read_within(&name, self.store.whole_pod(&spot.namespace, &name)).await?;
            Ok::<_, ReadError>((name, pod))
        });
        let found: BTreeMap<String, Option<Value>> = read.buffer_unordered(AT_A_TIME).try_collect().await?;
        let mut snapshot = Snapshot::default();
        let key = self.key_of(spot, policy, claim.as_ref(), &found).await?;
        if let Some((key, config)) = &key {
            snapshot.config.clone_from(config);
            if let Subject::Generation(generation) = &key.subject {
                snapshot.key_generation = Some(generation.clone());
            }
        }
        for (name, pod) in found {
            let read = match (&pod, policy, &key) {
                (Some(pod), Some(policy), Some((key, _))) => Some(self.found(policy, key, pod).await?),
                (Some(pod), _, _) => Some(elsewhere(pod)),
                (None, _, _) => None,
            };
            if let Some(pod) = &pod {
                self.lookout.remember(pod);
            }
            snapshot.pods.insert(name, read);
        }
        let busy = snapshot.pods.values().flatten().any(|pod| pod.activity.is_active());
        snapshot.memory = self.memory(spot, claim.as_ref(), &snapshot, begun);
        snapshot.claim = claim.as_ref().map(|claim| FoundClaim {
            spec: claim.spec.clone(),
            waiting: claim
                .status
                .as_ref()
                .map(|status| status.waiting.clone())
                .unwrap_or_default(),
            created: claim.creation_timestamp().map(|time| time.0),
            terminating: claim.metadata.deletion_timestamp.is_some(),
        });
        Ok(Reading { claim, snapshot, busy })
    }

    /// Whether a policy speaks of this namespace.
    async fn is_in(&self, policy: &Policy, namespace: &str) -> Result<bool, ReadError> {
        if namespace == KUBE_SYSTEM || namespace == self.own_namespace {
            return Ok(false);
        }
        if !policy.selects_namespaces() {
            return Ok(true);
        }
        let labels = read_within("the namespace", self.store.namespace_labels(namespace)).await?;
        Ok(policy.matches_namespace(&json!({ "metadata": { "labels": labels } })))
    }

    /// A pod as it was read, with what its owner says.
    async fn found(&self, policy: &Arc<Policy>, key: &Key, pod: &Value) -> Result<FoundPod, ReadError> {
        let owner = self.owner_of(policy, key, pod).await;
        let key = key.clone();
        let read = move |policy: &Policy, pod: &Value, _: Option<&Value>| {
            let owner = match &owner {
                Ok(Some(owner)) => OwnerRead::Found(owner),
                Ok(None) => OwnerRead::Absent,
                Err(why) => OwnerRead::Failed(why),
            };
            FoundPod::read(policy, &key, pod, owner)
        };
        let found = self
            .lookout
            .aside
            .ask(policy, (pod, None), Instant::now() + REQUEST, read)
            .await;
        found.map_err(|_| said_nothing(policy))
    }

    /// The owner that a pod names; or why it was not read.
    async fn owner_of(&self, policy: &Policy, key: &Key, pod: &Value) -> Result<Option<Value>, String> {
        let reference = match policy.owner_reference(pod) {
            Ok(Some(reference)) if activity_of(pod).is_active() => reference,
            // What has ended has no need of its owner.
            _ => return Err("it was not asked for".into()),
        };
        let kind = OwnerKind {
            api_version: reference.api_version,
            kind: reference.kind,
        };
        let read = self.store.owner(&key.namespace, &kind, &reference.name);
        read_within("the owner", read).await.map_err(|error| error.to_string())
    }

    /// The key of a spot: of the claim, or of a pod that works for it. `None`: nobody says what it is.
    async fn key_of(
        &self,
        spot: &Spot,
        policy: Option<&Arc<Policy>>,
        claim: Option<&DeployerClaim>,
        found: &BTreeMap<String, Option<Value>>,
    ) -> Result<Option<(Key, String)>, ReadError> {
        if let Some(claim) = claim {
            return Ok(Some(key_of_claim(spot, claim)));
        }
        let Some(policy) = policy else { return Ok(None) };
        for pod in found.values().flatten() {
            let read = |policy: &Policy, pod: &Value, _: Option<&Value>| policy.identity(pod).ok();
            let identity = self
                .lookout
                .aside
                .ask(policy, (pod, None), Instant::now() + REQUEST, read)
                .await;
            let Some(identity) = identity.map_err(|_| said_nothing(policy))? else {
                continue;
            };
            let key = Key::of(policy, &spot.namespace, &identity);
            if key.claim_name() == *spot.claim {
                return Ok(Some((key, identity.config)));
            }
        }
        Ok(None)
    }

    fn memory(&self, spot: &Spot, claim: Option<&DeployerClaim>, snapshot: &Snapshot, begun: Duration) -> Memory {
        let named = claim.iter().flat_map(|claim| {
            let spec = &claim.spec;
            let entries = spec.entries().map(|entry| entry.uid.as_str());
            let others = spec.condemned.iter().chain(&spec.spared);
            entries.chain(others.map(|pod| pod.uid.as_str()))
        });
        let found = snapshot.pods.values().flatten().map(|pod| pod.uid.as_str());
        let unchanged_since = claim.and_then(|claim| self.lookout.claims().unchanged_since(claim));
        self.lookout
            .facts()
            .of(spot, named.chain(found), begun, unchanged_since)
    }
}

fn key_of_claim(spot: &Spot, claim: &DeployerClaim) -> (Key, String) {
    let spec = &claim.spec;
    let subject = match &spec.generation {
        Some(generation) => Subject::Generation(generation.clone()),
        None => Subject::Config(spec.config.clone()),
    };
    let key = Key {
        policy: spot.policy.to_string(),
        namespace: spot.namespace.to_string(),
        subject,
    };
    (key, spec.config.clone())
}

/// The policy's expressions were not evaluated in time: nothing is concluded from that.
fn said_nothing(policy: &Policy) -> ReadError {
    ReadError::timed_out(format!("what the expressions of policy {:?} say", policy.name))
}

/// A pod that no policy speaks of.
fn elsewhere(pod: &Value) -> FoundPod {
    let text = |pointer| pod.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    FoundPod {
        uid: text("/metadata/uid").to_owned(),
        activity: activity_of(pod),
        unstarted: text("/spec/nodeName").is_empty(),
        terminating: !text("/metadata/deletionTimestamp").is_empty(),
        resource_version: text("/metadata/resourceVersion").to_owned(),
        created: text("/metadata/creationTimestamp").parse().ok(),
        place: Place::Elsewhere,
        owner: OwnerState::Fine,
    }
}
