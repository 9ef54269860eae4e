//! The policies of the cluster as they were last heard of: where to look. What is written is based on live reads.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::{Mutex, MutexGuard, PoisonError};

use futures::StreamExt;
use kube::api::ListParams;
use kube::core::DeserializeGuard;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, ResourceExt};
use tokio::sync::{Notify, watch};

use super::super::board::PolicyVersion;
use crate::api::DeployerPolicy;
use crate::cluster::request::within;
use crate::cluster::store::Failure;

/// The version of a policy.
#[must_use]
pub fn version_of(policy: &DeployerPolicy) -> PolicyVersion {
    PolicyVersion {
        name: policy.name_any(),
        uid: policy.uid().unwrap_or_default(),
        generation: policy.metadata.generation.unwrap_or_default(),
    }
}

/// By name; `None` for one that cannot be read, as one that a newer version wrote.
type Policies = BTreeMap<String, Option<DeployerPolicy>>;

/// The policies as they were last heard of.
pub struct Known {
    api: Api<DeserializeGuard<DeployerPolicy>>,
    policies: Mutex<Policies>,
    /// Told when there is another version than before.
    pub changed: Notify,
}

impl Known {
    /// Nothing is known yet.
    #[must_use]
    pub fn new(client: Client) -> Self {
        Self {
            api: Api::all(client),
            policies: Mutex::default(),
            changed: Notify::new(),
        }
    }

    /// Follows the policies until `stop`.
    pub async fn follow(&self, mut stop: watch::Receiver<bool>) {
        let mut events = pin!(watcher(self.api.clone(), watcher::Config::default()).default_backoff());
        let mut listed = BTreeMap::new();
        loop {
            let event = tokio::select! {
                event = events.next() => event,
                _ = stop.wait_for(|stop| *stop) => return,
            };
            match event {
                Some(Ok(Event::Init)) => listed = BTreeMap::new(),
                Some(Ok(Event::InitApply(policy))) => drop(listed.insert(policy.name_any(), readable(policy))),
                Some(Ok(Event::InitDone)) => self.replace(std::mem::take(&mut listed)),
                Some(Ok(Event::Apply(policy))) => self.learn(policy.name_any(), readable(policy)),
                Some(Ok(Event::Delete(policy))) => self.forget(&policy.name_any()),
                Some(Err(error)) => tracing::warn!(%error, "the policies cannot be watched; trying again"),
                None => return,
            }
        }
    }

    /// Lists the policies: finds what a watch missed.
    ///
    /// # Errors
    /// If they cannot be listed.
    pub async fn list(&self) -> Result<(), Failure> {
        let list = within(self.api.list(&ListParams::default())).await?;
        let policies = list.items.into_iter();
        let policies = policies.map(|policy| (policy.name_any(), readable(policy)));
        self.replace(policies.collect());
        Ok(())
    }

    /// Reads one policy live, and remembers it.
    ///
    /// # Errors
    /// If the API server does not answer with it.
    pub async fn read(&self, name: &str) -> Result<(), Failure> {
        match within(self.api.get_opt(name)).await? {
            Some(policy) => self.learn(name.to_owned(), readable(policy)),
            None => self.forget(name),
        }
        Ok(())
    }

    /// All that can be read, by name.
    #[must_use]
    pub fn all(&self) -> Vec<DeployerPolicy> {
        self.lock().values().flatten().cloned().collect()
    }

    /// The names of those that are there and cannot be read.
    #[must_use]
    pub fn unreadable(&self) -> BTreeSet<String> {
        let policies = self.lock();
        let unreadable = policies.iter().filter(|(_, policy)| policy.is_none());
        unreadable.map(|(name, _)| name.clone()).collect()
    }

    /// The policy of this name, as it was last heard of.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<DeployerPolicy> {
        self.lock().get(name).cloned().flatten()
    }

    fn learn(&self, name: String, policy: Option<DeployerPolicy>) {
        let version = policy.as_ref().map(version_of);
        let before = self.lock().insert(name, policy);
        if before.is_none_or(|before| before.as_ref().map(version_of) != version) {
            self.changed.notify_one();
        }
    }

    fn forget(&self, name: &str) {
        if self.lock().remove(name).is_some() {
            self.changed.notify_one();
        }
    }

    fn replace(&self, policies: Policies) {
        let versions = |policies: &Policies| {
            let versions = policies.iter();
            let versions = versions.map(|(name, policy)| (name.clone(), policy.as_ref().map(version_of)));
            versions.collect::<Vec<_>>()
        };
        let mut known = self.lock();
        let changed = versions(&known) != versions(&policies);
        *known = policies;
        drop(known);
        if changed {
            self.changed.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Policies> {
        self.policies.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The policy, if it can be read.
fn readable(policy: DeserializeGuard<DeployerPolicy>) -> Option<DeployerPolicy> {
    policy.0.ok()
}
