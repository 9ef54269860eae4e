//! What else is in the cluster: pods in the namespace, active deployers, writes to another type.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::PostParams;
use serde_json::json;
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval};

use crate::side::{Place, Side};

/// Pods that are created at a time.
const WIDTH: usize = 16;
/// Clients that write to another type.
const WRITERS: u32 = 4;

/// Fills the namespace: `pods` in all, `deployers` of them active deployers under the policy, one for each config.
pub(crate) async fn fill(place: &Place, pods: usize, deployers: usize) -> anyhow::Result<()> {
    let sides = std::iter::repeat_n(Side::Ours, deployers)
        .chain(std::iter::repeat_n(Side::None, pods.saturating_sub(deployers)));
    stream::iter(sides.enumerate())
        .map(|(number, side)| async move {
            let pod = place.pod(side, &format!("crowd-{number}"), 1).await?;
            let answer = place.create(&pod).await?;
            ensure!(answer.is_created(), "{}", answer.message());
            Ok(())
        })
        .buffer_unordered(WIDTH)
        .try_collect()
        .await
}

/// Writes to `ConfigMap`s until it is dropped.
pub(crate) struct Churn {
    writers: Vec<JoinHandle<()>>,
    written: Arc<AtomicU32>,
    begun: Instant,
}

impl Churn {
    /// Begins to write that often a second. Each writer has an object of its own, and waits for its answers: a cluster
    /// that cannot keep up is written to less often.
    pub(crate) async fn start(place: &Place, per_second: u32) -> anyhow::Result<Self> {
        let api: Api<ConfigMap> = Api::namespaced(place.client.clone(), &place.namespace);
        let written = Arc::new(AtomicU32::new(0));
        let mut writers = Vec::new();
        for writer in 0..WRITERS {
            let mut object: ConfigMap =
                serde_json::from_value(json!({ "metadata": { "name": format!("churn-{writer}") } }))?;
            api.create(&PostParams::default(), &object)
                .await
                .context("making a ConfigMap")?;
            let (api, written) = (api.clone(), Arc::clone(&written));
            let mut ticks = interval(Duration::from_secs(1) * WRITERS / per_second);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
            writers.push(tokio::spawn(async move {
                for count in 1_u64.. {
                    ticks.tick().await;
                    object.data = Some(BTreeMap::from([("count".to_owned(), count.to_string())]));
                    let name = format!("churn-{writer}");
                    if api.replace(&name, &PostParams::default(), &object).await.is_ok() {
                        written.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }));
        }
        Ok(Self {
            writers,
            written,
            begun: Instant::now(),
        })
    }

    /// How many writes a second there really were.
    pub(crate) fn per_second(&self) -> f64 {
        f64::from(self.written.load(Ordering::Relaxed)) / self.begun.elapsed().as_secs_f64()
    }
}

impl Drop for Churn {
    fn drop(&mut self) {
        for writer in &self.writers {
            writer.abort();
        }
    }
}
