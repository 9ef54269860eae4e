//! Who was active, and which claims moved on, each in the order of the store.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use deployer_guard::api::DeployerClaim;
use deployer_guard::api::claim::ClaimEntry;
use deployer_guard_testkit::{ControlPlane, Report, StoreWatch, until};
use futures::{StreamExt, TryStreamExt};
use kube::api::{Api, ListParams, WatchEvent, WatchParams};
use kube::{Client, ResourceExt};
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// After this long without an event the watch is taken up at the next API server: this one may be paused.
const IDLE: Duration = Duration::from_secs(3);

/// A claim that no longer names a pod as its holder, or that is gone with it.
#[derive(Clone, Debug)]
pub(crate) struct MovedOn {
    pub(crate) claim: String,
    pub(crate) from: ClaimEntry,
    /// Of the write that did it.
    pub(crate) version: u64,
}

#[derive(Default)]
struct Seen {
    version: u64,
    holders: HashMap<String, ClaimEntry>,
    moved_on: Vec<MovedOn>,
}

/// Watches the pods and the claims of one namespace.
pub(crate) struct Witness {
    pods: StoreWatch,
    claims: Vec<Api<DeployerClaim>>,
    seen: Arc<Mutex<Seen>>,
    task: JoinHandle<anyhow::Error>,
}

/// What a [`Witness`] saw.
pub(crate) struct Testimony {
    pub(crate) pods: Report,
    pub(crate) moved_on: Vec<MovedOn>,
}

impl Witness {
    /// Begins to watch; a pod's key is its label `config`. Nothing is there yet.
    pub(crate) async fn start(plane: &ControlPlane, namespace: &str) -> anyhow::Result<Self> {
        let key = |pod: &serde_json::Value| pod["metadata"]["labels"]["config"].as_str().map(str::to_owned);
        let pods = StoreWatch::start(plane.clients(), Some(namespace), key).await?;
        let of = |client: Client| Api::namespaced(client, namespace);
        let claims: Vec<Api<DeployerClaim>> = plane.clients().into_iter().map(of).collect();
        let list = until("the claims to be listed", Duration::from_secs(30), async || {
            Ok(claims[0].list(&ListParams::default()).await?)
        })
        .await?;
        ensure!(list.items.is_empty(), "there are claims already");
        let seen = Seen {
            version: number(list.metadata.resource_version.as_deref())?,
            ..Seen::default()
        };
        let seen = Arc::new(Mutex::new(seen));
        let task = tokio::spawn(follow(claims.clone(), Arc::clone(&seen)));
        Ok(Self {
            pods,
            claims,
            seen,
            task,
        })
    }

    /// Waits until both watches have caught up with the store, and ends them.
    pub(crate) async fn finish(mut self) -> anyhow::Result<Testimony> {
        let pods = self.pods.finish().await?;
        let mut newest = 0;
        for claim in self.claims[0].list(&ListParams::default()).await? {
            newest = newest.max(number(claim.resource_version().as_deref())?);
        }
        let seen = Arc::clone(&self.seen);
        let caught_up = until("the watch of claims to catch up", Duration::from_mins(1), async || {
            let version = lock(&seen).version;
            ensure!(version >= newest, "it is at {version}, not {newest}");
            Ok(())
        });
        tokio::select! {
            result = caught_up => result?,
            error = &mut self.task => return Err(error?.context("the watch of claims")),
        }
        self.task.abort();
        let moved_on = std::mem::take(&mut lock(&self.seen).moved_on);
        Ok(Testimony { pods, moved_on })
    }
}

impl Testimony {
    /// No claim moved on from a pod that was active at that moment.
    pub(crate) fn no_claim_of_an_active_pod_was_freed(&self) -> anyhow::Result<()> {
        for moved in &self.moved_on {
            let life = self.pods.lives.get(&moved.from.uid);
            ensure!(
                life.is_none_or(|life| !life.covers(moved.version)),
                "claim {} moved on from {:?} at {}, while that was active: {life:?}",
                moved.claim,
                moved.from,
                moved.version
            );
        }
        Ok(())
    }

    /// Never were two active.
    pub(crate) fn never_two(&self) -> anyhow::Result<()> {
        ensure!(self.pods.violations.is_empty(), "{:#?}", self.pods.violations);
        Ok(())
    }

    /// Whenever two were active, one of them was among these: it did not come in through the webhook.
    pub(crate) fn never_two_but_for(&self, bypassed: impl Fn(&str) -> bool) -> anyhow::Result<()> {
        for violation in &self.pods.violations {
            let admitted = violation.pods.iter().filter(|pod| !bypassed(&pod.name)).count();
            ensure!(admitted <= 1, "{violation:#?}");
        }
        Ok(())
    }
}

async fn follow(apis: Vec<Api<DeployerClaim>>, seen: Arc<Mutex<Seen>>) -> anyhow::Error {
    for api in apis.iter().cycle() {
        if let Err(error) = follow_one(api, &seen).await {
            let status = error.downcast_ref::<kube::Error>();
            if matches!(status, Some(kube::Error::Api(status)) if status.code == 410) {
                return error;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
    anyhow::anyhow!("no API server")
}

async fn follow_one(api: &Api<DeployerClaim>, seen: &Mutex<Seen>) -> anyhow::Result<()> {
    let from = lock(seen).version.to_string();
    let params = WatchParams::default();
    let events = timeout(IDLE, api.watch(&params, &from)).await??;
    let mut events = events.boxed();
    while let Some(event) = timeout(IDLE, events.try_next()).await?? {
        let (claim, gone) = match event {
            WatchEvent::Added(claim) | WatchEvent::Modified(claim) => (claim, false),
            WatchEvent::Deleted(claim) => (claim, true),
            WatchEvent::Bookmark(_) => continue,
            WatchEvent::Error(status) => bail!(kube::Error::Api(status)),
        };
        let version = number(claim.resource_version().as_deref())?;
        let name = claim.name_any();
        let now = claim.spec.holder.filter(|_| !gone);
        let mut seen = lock(seen);
        seen.version = version;
        let before = match &now {
            Some(holder) => seen.holders.insert(name.clone(), holder.clone()),
            None => seen.holders.remove(&name),
        };
        if let Some(from) = before.filter(|before| now.as_ref().is_none_or(|now| now.uid != before.uid)) {
            seen.moved_on.push(MovedOn {
                claim: name,
                from,
                version,
            });
        }
    }
    Ok(())
}

fn number(version: Option<&str>) -> anyhow::Result<u64> {
    let text = version.context("no resourceVersion")?;
    text.parse().with_context(|| format!("resourceVersion {text}"))
}

fn lock(seen: &Mutex<Seen>) -> std::sync::MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}
