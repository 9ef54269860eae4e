//! Events about refusals: made after the answer, from a bounded queue, by one task. What is dropped is counted.

mod recorder;

use std::sync::Arc;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::timeout;

use self::recorder::Recorder;
use crate::domain::answer::truncate;
use crate::telemetry::metrics::{EventResult, Metrics};

/// Longest time that publishing one may take: an API server that hangs must not stop the others.
const CALL_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(10);
/// Events that may wait. Beyond that they are dropped: no answer waits for a record.
const QUEUE: usize = 1024;
/// Longest note that the API server takes is 1,024 bytes (FACTS: longer ones are refused).
const MAX_NOTE: usize = 1000;

/// A refusal, as an Event says it.
#[derive(Clone, Debug)]
pub struct Notice {
    /// What it is about; one Event for each.
    pub regarding: Vec<ObjectReference>,
    /// The holder, where there is one.
    pub related: Option<ObjectReference>,
    /// As `DeployerRejected`.
    pub reason: &'static str,
    /// The text of the answer.
    pub note: String,
}

/// Takes notices without waiting.
#[derive(Clone)]
pub struct Events {
    queue: Sender<Notice>,
    metrics: Arc<Metrics>,
}

/// Publishes what was taken.
pub struct Publisher {
    queue: Receiver<Notice>,
    recorder: Recorder,
    metrics: Arc<Metrics>,
}

impl Events {
    /// The two ends of the queue. What comes out of it is for a [`Publisher`].
    #[must_use]
    pub fn new(metrics: Arc<Metrics>) -> (Self, Receiver<Notice>) {
        let (sender, receiver) = channel(QUEUE);
        (Self { queue: sender, metrics }, receiver)
    }

    /// Takes a notice, or drops and counts it.
    pub fn take(&self, notice: Notice) {
        // A refusal without owner and claim has nothing that an Event could be about.
        if notice.regarding.is_empty() || self.queue.try_send(notice).is_err() {
            self.metrics.event(EventResult::Dropped);
        }
    }
}

impl Publisher {
    /// Publishes the notices of a queue. `instance` tells the replicas apart.
    #[must_use]
    pub fn new(queue: Receiver<Notice>, client: Client, instance: String, metrics: Arc<Metrics>) -> Self {
        Self {
            queue,
            recorder: Recorder::new(client, instance),
            metrics,
        }
    }

    /// Publishes until every [`Events`] is gone.
    pub async fn run(mut self) {
        while let Some(mut notice) = self.queue.recv().await {
            truncate(&mut notice.note, MAX_NOTE);
            for regarding in &notice.regarding {
                let published = timeout(CALL_TIMEOUT, self.recorder.publish(&notice, regarding));
                match published
                    .await
                    .unwrap_or_else(|_| Err(kube::Error::Service("timed out".into())))
                {
                    Ok(()) => self.metrics.event(EventResult::Published),
                    Err(error) => {
                        self.metrics.event(EventResult::Failed);
                        tracing::debug!(error = %error, "an Event could not be published");
                    }
                }
            }
        }
    }
}
