//! Where to look: what watches and lists showed, and what is remembered of it. One for each guard.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::board::PolicyVersion;
use super::claims::{Claims, Sums};
use super::facts::Facts;
use super::pods::{Belongs, Pods, activity_of};
use super::queue::Queue;
use super::spot::Spot;
use crate::api::DeployerClaim;
use crate::aside::Aside;
use crate::cluster::request::REQUEST;
use crate::domain::policy::Policy;

/// A policy whose pods are watched.
#[derive(Debug)]
pub(super) struct Watched {
    pub(super) version: PolicyVersion,
    pub(super) policy: Arc<Policy>,
    pub(super) pods: Mutex<Pods>,
    /// All pods were shown once.
    pub(super) complete: AtomicBool,
    /// The watch has missed something and is to begin anew.
    pub(super) anew: Notify,
    /// Ends its watch.
    pub(super) stop: CancellationToken,
}

/// What watches and lists showed.
#[derive(Debug)]
pub(super) struct Lookout {
    pub(super) queue: Queue,
    /// Where costly expressions are evaluated: no other policy waits for them.
    pub(super) aside: Aside,
    origin: Instant,
    claims: Mutex<Claims>,
    facts: Mutex<Facts>,
    policies: Mutex<BTreeMap<Arc<str>, Arc<Watched>>>,
    /// The watch of claims has missed something and is to begin anew.
    pub(super) claims_anew: Notify,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Watched {
    /// A version of a policy, of which no pod is known.
    pub(super) fn new(policy: Arc<Policy>, stop: CancellationToken) -> Self {
        Self {
            version: PolicyVersion {
                name: policy.name.clone(),
                uid: policy.uid.clone(),
                generation: policy.generation,
            },
            policy,
            pods: Mutex::default(),
            complete: AtomicBool::new(false),
            anew: Notify::new(),
            stop,
        }
    }

    pub(super) fn pods(&self) -> MutexGuard<'_, Pods> {
        lock(&self.pods)
    }

    pub(super) fn is_complete(&self) -> bool {
        self.complete.load(Ordering::Acquire)
    }
}

impl Lookout {
    pub(super) fn new(queue: Queue) -> Self {
        Self {
            queue,
            aside: Aside::new(),
            origin: Instant::now(),
            claims: Mutex::default(),
            facts: Mutex::default(),
            policies: Mutex::default(),
            claims_anew: Notify::new(),
        }
    }

    /// Time on this guard's monotonic clock.
    pub(super) fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    pub(super) fn claims(&self) -> MutexGuard<'_, Claims> {
        lock(&self.claims)
    }

    pub(super) fn facts(&self) -> MutexGuard<'_, Facts> {
        lock(&self.facts)
    }

    pub(super) fn policies(&self) -> MutexGuard<'_, BTreeMap<Arc<str>, Arc<Watched>>> {
        lock(&self.policies)
    }

    pub(super) fn watched(&self) -> Vec<Arc<Watched>> {
        self.policies().values().cloned().collect()
    }

    /// A pod is in the store like this. Gives what is to be examined.
    pub(super) async fn pod_shown(&self, watched: &Watched, pod: &Value) -> Vec<Spot> {
        self.remember(pod);
        watched.pods().seen(uid_of(pod));
        if !activity_of(pod).is_active() {
            return self.pod_over(watched, pod).await;
        }
        let belongs = self.belongs(watched, pod).await;
        watched.pods().show(pod, belongs)
    }

    /// A pod is gone, and this was its last state. Gives what is to be examined.
    pub(super) async fn pod_gone(&self, watched: &Watched, pod: &Value) -> Vec<Spot> {
        // How it ended counts, even if nobody saw it before.
        self.remember(pod);
        self.facts().gone(uid_of(pod), self.now());
        self.pod_over(watched, pod).await
    }

    /// A pod is not active any more. Gives what is to be examined.
    async fn pod_over(&self, watched: &Watched, pod: &Value) -> Vec<Spot> {
        let before = watched.pods().lost(uid_of(pod));
        if before.is_some() {
            return before.into_iter().collect();
        }
        // One that was never shown active may be a holder all the same.
        match self.belongs(watched, pod).await {
            Belongs::To(spot) => vec![spot],
            Belongs::Unreadable(_) | Belongs::Nowhere => Vec::new(),
        }
    }

    /// What a pod is to a policy.
    async fn belongs(&self, watched: &Watched, pod: &Value) -> Belongs {
        let deadline = Instant::now() + REQUEST;
        let asked = self
            .aside
            .ask(&watched.policy, (pod, None), deadline, |policy, pod, _| {
                Belongs::of(policy, pod)
            });
        let unsaid = |_| Belongs::Unreadable("the policy's expressions were not evaluated in time".into());
        asked.await.unwrap_or_else(unsaid)
    }

    /// A pod is gone, and nobody knows how it ended. Gives what is to be examined.
    pub(super) fn pod_lost(&self, watched: &Watched, uid: &str) -> Option<Spot> {
        self.facts().gone(uid, self.now());
        watched.pods().lost(uid)
    }

    /// What a read of a pod found.
    pub(super) fn remember(&self, pod: &Value) {
        self.facts().stored(uid_of(pod), activity_of(pod), self.now());
    }

    /// A claim is in the store like this. Gives its spot if it is to be examined.
    pub(super) fn claim_shown(&self, claim: &DeployerClaim) -> Option<Spot> {
        let now = self.now();
        self.claims().show(claim, &mut self.facts(), now)
    }

    /// The names of the pods that look active for a spot.
    pub(super) fn suggested(&self, spot: &Spot) -> Vec<String> {
        let watched = self.policies().get(&spot.policy).cloned();
        watched.map(|watched| watched.pods().names(spot)).unwrap_or_default()
    }

    /// Whether the watch shows a pod as active.
    pub(super) fn shows_active(&self, spot: &Spot, uid: &str) -> bool {
        let watched = self.policies().get(&spot.policy).cloned();
        watched.is_some_and(|watched| watched.pods().get(uid).is_some())
    }

    /// Every spot of a policy that has a claim or an active pod.
    pub(super) fn spots_of(&self, policy: &str) -> BTreeSet<Spot> {
        let mut spots: BTreeSet<Spot> = self.claims().spots(policy).collect();
        let watched = self.policies().get(policy).cloned();
        spots.extend(watched.iter().flat_map(|watched| {
            let pods = watched.pods();
            pods.spots().cloned().collect::<Vec<_>>()
        }));
        spots
    }

    /// Every spot that has a claim or an active pod.
    pub(super) fn everything(&self) -> BTreeSet<Spot> {
        let mut spots: BTreeSet<Spot> = self.claims().all().collect();
        for watched in self.watched() {
            spots.extend(watched.pods().spots().cloned());
        }
        spots
    }

    /// Sums over the claims of each policy.
    pub(super) fn sums(&self) -> HashMap<Arc<str>, Sums> {
        self.claims().sums()
    }

    /// Forgets facts that nobody needs any more.
    pub(super) fn sweep(&self) {
        let mut active: HashSet<Box<str>> = HashSet::new();
        for watched in self.watched() {
            active.extend(watched.pods().uids().map(Box::from));
        }
        let now = self.now();
        self.facts().sweep(&active, now);
    }
}

fn uid_of(pod: &Value) -> &str {
    pod.pointer("/metadata/uid").and_then(Value::as_str).unwrap_or_default()
}
