//! Creates without end, and what became of each.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams};
use kube::{Client, ResourceExt};
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};

use crate::objects::{Answer, create_pod};

/// How long a create may take: longer than an API server keeps one.
const PATIENCE: Duration = Duration::from_secs(40);

/// How long an admitted pod stays. One that goes before anybody of deployer-guard saw it keeps its key for the pending window.
const STAY: Duration = Duration::from_millis(500);

/// Pods that are created at a steady rate, each by one request; one that is admitted is deleted half a second later.
#[derive(Debug)]
pub struct Stream {
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
    seen: Arc<Mutex<Flow>>,
}

/// What became of the creates of a [`Stream`].
#[derive(Debug, Default, Clone)]
pub struct Flow {
    /// How many were admitted.
    pub admitted: usize,
    /// How many were refused by a rule.
    pub refused: usize,
    /// The others: when, after the stream began, and what was said.
    pub failed: Vec<(Duration, String)>,
}

impl Stream {
    /// Creates so many pods a second; `pod` makes the one of that number, and pods that come to have a name are deleted by it.
    #[must_use]
    pub fn begin(
        client: Client,
        namespace: &str,
        per_second: u32,
        pod: impl Fn(usize) -> Value + Send + 'static,
    ) -> Self {
        let (stop, stopped) = watch::channel(false);
        let seen = Arc::new(Mutex::new(Flow::default()));
        let task = tokio::spawn(flow(
            client,
            namespace.to_owned(),
            Duration::from_secs(1) / per_second,
            pod,
            stopped,
            Arc::clone(&seen),
        ));
        Self { stop, task, seen }
    }

    /// What was seen so far.
    #[must_use]
    pub fn so_far(&self) -> Flow {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Begins no further create, waits for the answers, and gives what became of all.
    pub async fn end(self) -> Flow {
        let _nobody_listens = self.stop.send(true);
        let _aborted = self.task.await;
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

async fn flow(
    client: Client,
    namespace: String,
    pause: Duration,
    pod: impl Fn(usize) -> Value,
    mut stopped: watch::Receiver<bool>,
    seen: Arc<Mutex<Flow>>,
) {
    let begun = Instant::now();
    let mut ticks = interval(pause);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut creates = JoinSet::new();
    for number in 0.. {
        tokio::select! {
            _ = ticks.tick() => {}
            _ = stopped.wait_for(|stopped| *stopped) => break,
        }
        let (client, namespace, seen, pod) = (client.clone(), namespace.clone(), Arc::clone(&seen), pod(number));
        creates.spawn(async move {
            let moment = begun.elapsed();
            let answer = timeout(PATIENCE, create_pod(&client, &namespace, &pod)).await;
            let answer = answer.unwrap_or_else(|_| Err(anyhow::anyhow!("no answer in {PATIENCE:?}")));
            let admitted = note(&seen, moment, answer);
            if let Some(name) = admitted {
                sleep(STAY).await;
                let api: Api<Pod> = Api::namespaced(client, &namespace);
                // Somebody else may have deleted it by now.
                let _gone = api.delete(&name, &DeleteParams::default().grace_period(0)).await;
            }
        });
        while creates.try_join_next().is_some() {}
    }
    while creates.join_next().await.is_some() {}
}

/// Counts an answer; the name of the pod, if it was admitted.
fn note(seen: &Mutex<Flow>, moment: Duration, answer: anyhow::Result<Answer>) -> Option<String> {
    let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
    match answer {
        Ok(answer) if is_refusal(&answer) => seen.refused += 1,
        Ok(Answer { result: Ok(pod), .. }) => {
            seen.admitted += 1;
            return Some(pod.name_any());
        }
        Ok(answer) => seen
            .failed
            .push((moment, format!("{} {}", answer.code, answer.message()))),
        Err(error) => seen.failed.push((moment, format!("{error:#}"))),
    }
    None
}

/// Whether a policy's rule refused it, and not the lack of a decision.
fn is_refusal(answer: &Answer) -> bool {
    answer.code == 403 && answer.message().contains("DeployerPolicy")
}
