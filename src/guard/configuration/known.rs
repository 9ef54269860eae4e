//! The policies of the cluster as they were last heard of: where to look. What is written is based on live reads.

mod heard;

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Mutex, MutexGuard, PoisonError};

use futures::StreamExt;
use kube::api::ListParams;
use kube::core::{ApiResource, DynamicObject};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::{Mutex as Asking, Notify, watch};

use self::heard::Heard;
pub use self::heard::{Stored, Unreadable};
use super::super::board::PolicyVersion;
use crate::api::DeployerPolicy;
use crate::api::policy::DeployerPolicyStatus;
use crate::cluster::complaint::Complaint;
use crate::cluster::request::within;
use crate::cluster::store::Failure;

/// How often a policy is read that changes meanwhile.
const READS: usize = 5;

/// The version of a policy.
#[must_use]
pub fn version_of(policy: &impl Resource) -> PolicyVersion {
    PolicyVersion {
        name: policy.name_any(),
        uid: policy.uid().unwrap_or_default(),
        generation: policy.meta().generation.unwrap_or_default(),
    }
}

/// All policies at one moment, by name.
#[derive(Clone, Debug, Default)]
pub struct Snapshot(BTreeMap<String, Stored>);

impl Snapshot {
    /// Takes in a policy that was read, or that there is none of this name.
    pub fn put(&mut self, name: &str, policy: Option<Stored>) {
        match policy {
            Some(policy) => drop(self.0.insert(name.to_owned(), policy)),
            None => drop(self.0.remove(name)),
        }
    }

    /// Those that can be read, in the order of their names; and the others, by name.
    #[must_use]
    pub fn split(self) -> (Vec<DeployerPolicy>, BTreeMap<String, Unreadable>) {
        let (mut readable, mut unreadable) = (Vec::new(), BTreeMap::new());
        for (name, policy) in self.0 {
            match policy {
                Ok(policy) => readable.push(policy),
                Err(why) => drop(unreadable.insert(name, *why)),
            }
        }
        (readable, unreadable)
    }
}

/// The policies as they were last heard of.
pub struct Known {
    /// One that cannot be read is not to keep the others from being read.
    api: Api<DynamicObject>,
    heard: Mutex<Heard>,
    /// Held while something is asked for.
    asking: Asking<()>,
    /// Told when there is another version than before.
    pub changed: Notify,
}

impl Known {
    /// Nothing is known yet.
    #[must_use]
    pub fn new(client: Client) -> Self {
        Self {
            api: Api::all_with(client, &ApiResource::erase::<DeployerPolicy>(&())),
            heard: Mutex::default(),
            asking: Asking::default(),
            changed: Notify::new(),
        }
    }

    /// Follows the policies until `stop`.
    pub async fn follow(&self, mut stop: watch::Receiver<bool>) {
        let mut events = pin!(watcher(self.api.clone(), watcher::Config::default()).default_backoff());
        let mut complaint = Complaint::new("policies for the webhook configuration");
        let mut listed = BTreeMap::new();
        loop {
            let event = tokio::select! {
                event = events.next() => event,
                _ = stop.wait_for(|stop| *stop) => return,
            };
            if let Some(Ok(event)) = &event {
                complaint.hears("", event);
            }
            match event {
                Some(Ok(Event::Init)) => listed = BTreeMap::new(),
                Some(Ok(Event::InitApply(policy))) => drop(listed.insert(policy.name_any(), readable(policy))),
                Some(Ok(Event::InitDone)) => self.change(|heard| heard.watch_began(std::mem::take(&mut listed))),
                Some(Ok(Event::Apply(policy))) => {
                    let name = policy.name_any();
                    self.change(|heard| heard.watch_says(&name, Some(readable(policy))));
                }
                Some(Ok(Event::Delete(policy))) => self.change(|heard| heard.watch_says(&policy.name_any(), None)),
                Some(Err(why)) => complaint.fails("", &why.into()),
                None => return,
            }
        }
    }

    /// Lists the policies: finds what a watch missed. Nothing that the watch says meanwhile is undone.
    ///
    /// # Errors
    /// If they cannot be listed.
    pub async fn list(&self) -> Result<(), Failure> {
        let _asking = self.asking.lock().await;
        let asked = self.lock().ask();
        let list = within(self.api.list(&ListParams::default())).await?;
        let policies = list.items.into_iter();
        let policies = policies.map(|policy| (policy.name_any(), readable(policy)));
        self.change(|heard| heard.listed(asked, policies.collect()));
        Ok(())
    }

    /// Reads one policy live, and remembers it. `None`: there is none of this name.
    ///
    /// # Errors
    /// If the API server does not answer with it, or it changes all the while.
    pub async fn read(&self, name: &str) -> Result<Option<Stored>, Failure> {
        let _asking = self.asking.lock().await;
        for _ in 0..READS {
            let asked = self.lock().ask();
            let policy = within(self.api.get_opt(name)).await?.map(readable);
            let read = self.lock().read(asked, name, policy.clone());
            if let Some(changed) = read {
                if changed {
                    self.changed.notify_one();
                }
                return Ok(policy);
            }
        }
        let what = format!("DeployerPolicy {name:?} changed during {READS} reads");
        Err(Failure::Unreadable(what))
    }

    /// All of them, as they are known now.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot(self.lock().policies().clone())
    }

    /// The status of the policy of this name, as it was last heard of. `None`: there is no such policy, or its status cannot be read.
    #[must_use]
    pub fn status(&self, name: &str) -> Option<DeployerPolicyStatus> {
        match self.lock().policies().get(name)? {
            Ok(policy) => Some(policy.status.clone().unwrap_or_default()),
            Err(unreadable) => unreadable.status.clone(),
        }
    }

    fn change(&self, change: impl FnOnce(&mut Heard) -> bool) {
        if change(&mut self.lock()) {
            self.changed.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Heard> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn readable(policy: DynamicObject) -> Stored {
    let version = version_of(&policy);
    let policy = serde_json::to_value(policy).unwrap_or_default();
    DeployerPolicy::deserialize(&policy).map_err(|why| {
        let status = Option::deserialize(policy.get("status").unwrap_or(&Value::Null)).ok();
        Box::new(Unreadable {
            version,
            status: status.map(Option::unwrap_or_default),
            why: why.to_string(),
        })
    })
}
