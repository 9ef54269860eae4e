//! The witness: every event of the pods, from the store's own order.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use futures::TryStreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ApiResource, DeleteParams, DynamicObject, ListParams, PostParams, WatchEvent, WatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::active::{ActivePods, Report};
use crate::ports::random;
use crate::wait::until;

/// After this long without an event the watch is taken up at the next API server: this one may be paused.
const IDLE: Duration = Duration::from_secs(3);

/// How long no API server at all may answer.
const OUTAGE: Duration = Duration::from_secs(90);

/// How the marker that ends a watch begins.
const MARKER: &str = "store-watch-marker-";

/// Watches the pods of a namespace (or of all) and keeps, for each key, which of them are active.
///
/// # Guarantees
/// No event is missed: the watch begins at the version of a list and is taken up after the last event seen, at the next
/// of its API servers, whenever a connection ends or is quiet. If the store no longer has what follows (410), the watch
/// fails and [`StoreWatch::finish`] says so.
pub struct StoreWatch {
    marker_apis: Vec<Api<Pod>>,
    seen: Arc<Mutex<Seen>>,
    task: JoinHandle<anyhow::Error>,
}

#[derive(Debug, Default)]
struct Seen {
    pods: ActivePods,
    markers: HashSet<String>,
    version: u64,
}

impl StoreWatch {
    /// Begins to watch, through the given clients in turn. `key` says what a pod (its whole JSON) works for, `None` for a
    /// pod that is of no interest: what a label selector would do is done there.
    ///
    /// # Errors
    /// If the first list fails.
    pub async fn start<K>(clients: Vec<Client>, namespace: Option<&str>, key: K) -> anyhow::Result<Self>
    where
        K: Fn(&Value) -> Option<String> + Send + Sync + 'static,
    {
        let resource = ApiResource::erase::<Pod>(&());
        let apis: Vec<Api<DynamicObject>> = clients
            .iter()
            .map(|client| match namespace {
                Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
                None => Api::all_with(client.clone(), &resource),
            })
            .collect();
        let marker_apis = clients
            .into_iter()
            .map(|client| Api::namespaced(client, namespace.unwrap_or("default")))
            .collect();
        let first = apis.first().context("a StoreWatch needs a client")?;
        let list = first
            .list(&ListParams::default())
            .await
            .context("listing the pods to begin a StoreWatch with")?;
        let mut seen = Seen {
            version: number(list.metadata.resource_version.as_deref())?,
            ..Seen::default()
        };
        for pod in &list.items {
            let pod = serde_json::to_value(pod)?;
            let key = key(&pod);
            let version = seen.version;
            seen.pods.changed(&pod, key, version);
        }
        let seen = Arc::new(Mutex::new(seen));
        let task = tokio::spawn(follow(apis, Arc::clone(&seen), key));
        Ok(Self {
            marker_apis,
            seen,
            task,
        })
    }

    /// What was seen until now; it may lag the store.
    #[must_use]
    pub fn so_far(&self) -> Report {
        lock(&self.seen).pods.report.clone()
    }

    /// Waits until the watch has caught up with the store, and ends it.
    ///
    /// It makes a pod without labels, waits for it to come by, and deletes it.
    ///
    /// # Errors
    /// If the watch failed, or does not catch up within 60 s, or no pod can be made in the namespace.
    pub async fn finish(mut self) -> anyhow::Result<Report> {
        let limit = Duration::from_mins(1);
        let name = format!("{MARKER}{:016x}", random());
        let marker: Pod = serde_json::from_value(json!({
            "metadata": {"name": name},
            "spec": {"containers": [{"name": "none", "image": "none"}], "automountServiceAccountToken": false},
        }))?;
        let mut turn = self.marker_apis.iter().cycle();
        until("a marker pod to be made", limit, || {
            let api = turn.next().cloned();
            let marker = &marker;
            async move {
                let api = api.context("no client")?;
                match timeout(IDLE, api.create(&PostParams::default(), marker)).await? {
                    Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
                    result => Ok(result.map(drop)?),
                }
            }
        })
        .await?;
        let caught_up = until("the watch to see its marker", limit, async || {
            let seen = lock(&self.seen);
            ensure!(
                seen.markers.contains(&name),
                "it is at resourceVersion {}",
                seen.version
            );
            Ok(())
        });
        tokio::select! {
            result = caught_up => result?,
            error = &mut self.task => return Err(error.context("the watch's task")?.context("the watch failed")),
        }
        for api in &self.marker_apis {
            if let Ok(Ok(_)) = timeout(IDLE, api.delete(&name, &DeleteParams::default().grace_period(0))).await {
                break;
            }
        }
        Ok(self.so_far())
    }
}

impl std::fmt::Debug for StoreWatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoreWatch")
            .field("seen", &self.so_far())
            .finish_non_exhaustive()
    }
}

impl Drop for StoreWatch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Follows the events until that is no longer possible; returns why.
async fn follow(
    apis: Vec<Api<DynamicObject>>,
    seen: Arc<Mutex<Seen>>,
    key: impl Fn(&Value) -> Option<String> + Send + Sync + 'static,
) -> anyhow::Error {
    let mut last_answer = Instant::now();
    for api in apis.iter().cycle() {
        match follow_one(api, &seen, &key, &mut last_answer).await {
            Ok(()) => {}
            Err(error) if is_final(&error) || last_answer.elapsed() > OUTAGE => return error,
            Err(_passing) => sleep(Duration::from_millis(50)).await,
        }
    }
    anyhow::anyhow!("no client")
}

/// Follows the events at one API server until its connection ends or is quiet.
async fn follow_one(
    api: &Api<DynamicObject>,
    seen: &Mutex<Seen>,
    key: &(impl Fn(&Value) -> Option<String> + Send + Sync),
    last_answer: &mut Instant,
) -> anyhow::Result<()> {
    let from = lock(seen).version.to_string();
    let events = timeout(IDLE, api.watch(&WatchParams::default(), &from))
        .await
        .context("opening a watch")??;
    let mut events = std::pin::pin!(events);
    *last_answer = Instant::now();
    while let Ok(event) = timeout(IDLE, events.try_next()).await {
        let Some(event) = event? else { break };
        *last_answer = Instant::now();
        let (pod, gone) = match event {
            WatchEvent::Added(pod) | WatchEvent::Modified(pod) => (pod, false),
            WatchEvent::Deleted(pod) => (pod, true),
            WatchEvent::Bookmark(mark) => {
                lock(seen).version = number(Some(&mark.metadata.resource_version))?;
                continue;
            }
            WatchEvent::Error(status) => bail!(kube::Error::Api(status)),
        };
        let version = number(pod.metadata.resource_version.as_deref())?;
        let name = pod.metadata.name.clone().unwrap_or_default();
        let pod = serde_json::to_value(pod)?;
        let key = key(&pod);
        let mut seen = lock(seen);
        ensure!(
            version > seen.version,
            OutOfOrder {
                version,
                after: seen.version
            }
        );
        seen.version = version;
        if name.starts_with(MARKER) {
            seen.markers.insert(name);
            continue;
        }
        seen.pods.report.events += 1;
        if gone {
            seen.pods.gone(&pod, version);
        } else {
            seen.pods.changed(&pod, key, version);
        }
    }
    Ok(())
}

/// An API server sent an event that is not newer than the one before.
#[derive(Debug)]
struct OutOfOrder {
    version: u64,
    after: u64,
}

impl std::fmt::Display for OutOfOrder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "an event of resourceVersion {} came after {}",
            self.version, self.after
        )
    }
}

impl std::error::Error for OutOfOrder {}

/// Whether trying again cannot help: events are lost, out of order, or not allowed to be seen.
fn is_final(error: &anyhow::Error) -> bool {
    let code = match error.downcast_ref::<kube::Error>() {
        Some(kube::Error::Api(status)) => status.code,
        _ => 0,
    };
    matches!(code, 401 | 403 | 404 | 410) || error.is::<OutOfOrder>()
}

fn number(resource_version: Option<&str>) -> anyhow::Result<u64> {
    let text = resource_version.context("no resourceVersion")?;
    text.parse()
        .with_context(|| format!("resourceVersion {text} is no number"))
}

fn lock(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}
