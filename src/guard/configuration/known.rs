//! The policies of the cluster as they were last heard of: where to look. What is written is based on live reads.

use std::collections::BTreeMap;
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

/// By name; one that cannot be read, as one that a newer version wrote, with the reason.
type Policies = BTreeMap<String, Result<DeployerPolicy, String>>;

/// All policies at one moment.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Those that can be read, by name.
    pub readable: Vec<DeployerPolicy>,
    /// The names of the others, and why they cannot be read.
    pub unreadable: BTreeMap<String, String>,
}

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

    /// All of them, as they are known now.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let mut snapshot = Snapshot::default();
        for (name, policy) in self.lock().iter() {
            match policy {
                Ok(policy) => snapshot.readable.push(policy.clone()),
                Err(why) => drop(snapshot.unreadable.insert(name.clone(), why.clone())),
            }
        }
        snapshot
    }

    /// The policy of this name, as it was last heard of.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<DeployerPolicy> {
        self.lock().get(name).cloned()?.ok()
    }

    fn learn(&self, name: String, policy: Result<DeployerPolicy, String>) {
        let version = policy.as_ref().map(version_of).ok();
        let before = self.lock().insert(name, policy);
        if before.is_none_or(|before| before.as_ref().map(version_of).ok() != version) {
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
            let versions = versions.map(|(name, policy)| (name.clone(), policy.as_ref().map(version_of).ok()));
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

fn readable(policy: DeserializeGuard<DeployerPolicy>) -> Result<DeployerPolicy, String> {
    policy.0.map_err(|why| why.to_string())
}
