//! Pods that have nothing to do with the test.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::{Api, DeleteParams};
use serde_json::json;
use tokio::sync::Semaphore;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::objects::create_pod;

/// Pods without labels that are created and deleted all the time.
#[derive(Debug)]
pub struct Churn {
    begun: Instant,
    gone: Arc<AtomicUsize>,
    task: tokio::task::JoinHandle<()>,
}

impl Churn {
    /// 150 pods a second, by the clients in turn; fewer where the machine cannot do that.
    ///
    /// # Panics
    /// In its task, if there is no client.
    #[must_use]
    pub fn begin(clients: Vec<Client>, namespace: &'static str) -> Self {
        let gone = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&gone);
        let task = tokio::spawn(async move {
            let mut ticks = interval(Duration::from_secs(1) / 150);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
            let at_work = Arc::new(Semaphore::new(32));
            let mut pods = tokio::task::JoinSet::new();
            for number in 0_usize.. {
                ticks.tick().await;
                let Ok(permit) = Arc::clone(&at_work).acquire_owned().await else {
                    return;
                };
                while pods.try_join_next().is_some() {}
                let (client, counted) = (clients[number % clients.len()].clone(), Arc::clone(&counted));
                pods.spawn(async move {
                    let name = format!("unrelated-{number}");
                    let pod = json!({
                        "apiVersion": "v1",
                        "kind": "Pod",
                        "metadata": { "name": name },
                        "spec": {
                            "containers": [{ "name": "none", "image": "none" }],
                            "automountServiceAccountToken": false,
                        },
                    });
                    let made = create_pod(&client, namespace, &pod).await;
                    if made.is_ok_and(|answer| answer.is_created()) {
                        let pods: Api<Pod> = Api::namespaced(client, namespace);
                        if pods.delete(&name, &DeleteParams::default()).await.is_ok() {
                            counted.fetch_add(1, Ordering::Relaxed);
                        }
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

    /// Stops; how many pods a second came and went.
    #[must_use]
    pub fn end(self) -> f64 {
        self.task.abort();
        let count = u32::try_from(self.gone.load(Ordering::Relaxed)).unwrap_or(u32::MAX);
        f64::from(count) / self.begun.elapsed().as_secs_f64()
    }
}
