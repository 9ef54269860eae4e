//! Pods that have nothing to do with the test.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use kube::Client;
use serde_json::json;
use tokio::sync::Semaphore;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::objects::create_pod;

/// Creates and deletes that are under way at once.
const AT_ONCE: usize = 32;
/// Pods deleted in a second.
const RATE: u32 = 150;

/// Pods without labels that are deleted all the time.
#[derive(Debug)]
pub struct Churn {
    begun: Instant,
    gone: Arc<AtomicUsize>,
    task: tokio::task::JoinHandle<()>,
}

impl Churn {
    /// Creates and deletes 150 pods a second, by the clients in turn; fewer where the machine cannot do that.
    ///
    /// # Panics
    /// In its task, if there is no client.
    #[must_use]
    pub fn begin(clients: Vec<Client>, namespace: &'static str) -> Self {
        Self::of(clients, namespace, 0)
    }

    /// The same, but the first `ready` pods are there before it begins, so that deletes alone are to be carried out.
    ///
    /// # Errors
    /// If one of them cannot be made.
    ///
    /// # Panics
    /// If there is no client.
    pub async fn prepared(clients: Vec<Client>, namespace: &'static str, ready: usize) -> anyhow::Result<Self> {
        let made = stream::iter(0..ready).map(|number| {
            let client = clients[number % clients.len()].clone();
            async move { make(&client, namespace, number).await }
        });
        made.buffer_unordered(AT_ONCE).try_collect::<()>().await?;
        Ok(Self::of(clients, namespace, ready))
    }

    fn of(clients: Vec<Client>, namespace: &'static str, ready: usize) -> Self {
        let gone = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&gone);
        let task = tokio::spawn(async move {
            let mut ticks = interval(Duration::from_secs(1) / RATE);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
            let at_work = Arc::new(Semaphore::new(AT_ONCE));
            let mut pods = tokio::task::JoinSet::new();
            for number in 0_usize.. {
                ticks.tick().await;
                let Ok(permit) = Arc::clone(&at_work).acquire_owned().await else {
                    return;
                };
                while pods.try_join_next().is_some() {}
                let (client, counted) = (clients[number % clients.len()].clone(), Arc::clone(&counted));
                pods.spawn(async move {
                    let there = number < ready || make(&client, namespace, number).await.is_ok();
                    if there && delete(&client, namespace, number).await.is_ok() {
                        counted.fetch_add(1, Ordering::Relaxed);
                    }
                    drop(permit);
                });
            }
        });
        Self {
            begun: Instant::now(),
            gone,
            task,
        }
    }

    /// Stops; how many pods a second went.
    #[must_use]
    pub fn end(self) -> f64 {
        self.task.abort();
        let count = u32::try_from(self.gone.load(Ordering::Relaxed)).unwrap_or(u32::MAX);
        f64::from(count) / self.begun.elapsed().as_secs_f64()
    }
}

fn name(number: usize) -> String {
    format!("unrelated-{number}")
}

async fn make(client: &Client, namespace: &str, number: usize) -> anyhow::Result<()> {
    let pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": name(number) },
        "spec": {
            "containers": [{ "name": "none", "image": "none" }],
            "automountServiceAccountToken": false,
        },
    });
    let answer = create_pod(client, namespace, &pod).await?;
    ensure!(answer.is_created(), "{} {}", answer.code, answer.message());
    Ok(())
}

/// The answer is not read as a pod: that takes longer than the rest.
async fn delete(client: &Client, namespace: &str, number: usize) -> anyhow::Result<()> {
    let path = format!(
        "/api/v1/namespaces/{namespace}/pods/{}?gracePeriodSeconds=0",
        name(number)
    );
    let request = http::Request::delete(path).body(Vec::new())?;
    client.request_text(request).await.context("deleting a pod")?;
    Ok(())
}
