//! Events about refusals, and about what a guard did or found: made afterwards, from a bounded queue, by one task. What is
//! dropped is counted.

mod recorder;

use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use self::recorder::Recorder;
use crate::domain::answer::truncate;
use crate::telemetry::metrics::{EventResult, Metrics};

/// How long the last records of a process that ends may take.
const LAST: Duration = Duration::from_secs(4);
/// Longest time that publishing one may take: an API server that hangs must not stop the others.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Events that may wait. Beyond that they are dropped: no answer waits for a record.
const QUEUE: usize = 1024;
/// Events that are published at once, and the time after which there may be one more: writes that compete with admissions in
/// the API server and in etcd. In a flood the queue fills, and what does not fit is counted.
const BURST: u32 = 64;
const SPACING: Duration = Duration::from_millis(40);
/// Longest note that the API server takes is 1,024 bytes (FACTS: longer ones are refused).
const MAX_NOTE: usize = 1000;

/// Whether something is out of order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Severity {
    /// The normal course of things.
    Normal,
    /// Somebody should look.
    #[default]
    Warning,
}

/// What an Event says.
#[derive(Clone, Debug, Default)]
pub struct Notice {
    /// What it is about; one Event for each.
    pub regarding: Vec<ObjectReference>,
    /// The holder, where there is one.
    pub related: Option<ObjectReference>,
    /// Whether something is out of order.
    pub severity: Severity,
    /// As `DeployerRejected`.
    pub reason: &'static str,
    /// What was done about it, as `Admit`.
    pub action: &'static str,
    /// The text, cut to what an API server takes.
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
    pace: Pace,
}

/// Lets [`BURST`] pass at once, and from then on one for each [`SPACING`].
#[derive(Debug)]
struct Pace {
    /// When all that passed would have passed without a burst.
    paid: Instant,
}

impl Pace {
    fn new() -> Self {
        Self { paid: Instant::now() }
    }

    /// When the next one may pass.
    fn next(&mut self, now: Instant) -> Instant {
        self.paid = self.paid.max(now) + SPACING;
        self.paid.checked_sub(SPACING * BURST).unwrap_or(now).max(now)
    }
}

impl Events {
    /// The two ends of the queue. What comes out of it is for a [`Publisher`].
    #[must_use]
    pub fn new(metrics: Arc<Metrics>) -> (Self, Receiver<Notice>) {
        let (sender, receiver) = channel(QUEUE);
        (Self { queue: sender, metrics }, receiver)
    }

    /// Takes a notice, or drops it and counts the Events that it would have become.
    pub fn take(&self, notice: Notice) {
        let events = notice.regarding.len();
        if self.queue.try_send(notice).is_err() {
            (0..events).for_each(|_| self.metrics.event(EventResult::Dropped));
        }
    }
}

/// Completes when the last records of a process have had their time, which begins with `stop`.
pub(crate) async fn moments_after(stop: &CancellationToken) {
    stop.cancelled().await;
    sleep(LAST).await;
}

impl Publisher {
    /// Publishes the notices of a queue. `instance` tells the replicas apart.
    #[must_use]
    pub fn new(queue: Receiver<Notice>, client: Client, instance: String, metrics: Arc<Metrics>) -> Self {
        Self {
            queue,
            recorder: Recorder::new(client, instance),
            metrics,
            pace: Pace::new(),
        }
    }

    /// Names another program part as the one that reports.
    #[must_use]
    pub fn reporting_as(self, controller: &'static str) -> Self {
        Self {
            recorder: self.recorder.reporting_as(controller),
            ..self
        }
    }

    /// Publishes until every [`Events`] is gone, or until `stop`; then what waits still, for a moment. What is left is counted.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut over = pin!(moments_after(&stop));
        loop {
            let next = tokio::select! {
                biased;
                next = self.queue.recv() => next,
                () = stop.cancelled(), if !self.queue.is_closed() => {
                    self.queue.close();
                    continue;
                }
            };
            let Some(notice) = next else { return };
            tokio::select! {
                () = self.publish(notice) => {}
                () = &mut over => return self.drop_rest(),
            }
        }
    }

    fn drop_rest(&mut self) {
        let mut dropped = 1;
        while let Ok(notice) = self.queue.try_recv() {
            dropped += notice.regarding.len();
        }
        tracing::warn!(dropped, "Events could not be published in time");
        (0..dropped).for_each(|_| self.metrics.event(EventResult::Dropped));
    }

    async fn publish(&mut self, mut notice: Notice) {
        truncate(&mut notice.note, MAX_NOTE);
        for regarding in &notice.regarding {
            // What waits for a namespace that ends is not asked for one by one.
            if self.recorder.is_ending(regarding) {
                self.metrics.event(EventResult::Failed);
                continue;
            }
            sleep_until(self.pace.next(Instant::now())).await;
            let published = timeout(CALL_TIMEOUT, self.recorder.publish(&notice, regarding));
            // One that cannot be made takes no others with it.
            let published = AssertUnwindSafe(published).catch_unwind().await;
            let failed = |why: &str| Err(kube::Error::Service(why.into()));
            match published.map_or_else(
                |_panicked| failed("panicked"),
                |published| published.unwrap_or_else(|_elapsed| failed("timed out")),
            ) {
                Ok(()) => self.metrics.event(EventResult::Published),
                Err(error) => {
                    self.metrics.event(EventResult::Failed);
                    tracing::debug!(error = %error, "an Event could not be published");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_at_once_and_a_flood_is_spaced() {
        let mut pace = Pace::new();
        let now = Instant::now();
        for _ in 0..BURST {
            assert_eq!(pace.next(now), now);
        }
        let flood: Vec<_> = (1..=3).map(|_| pace.next(now)).collect();
        assert!(flood.iter().zip(&flood[1..]).all(|(one, next)| *next == *one + SPACING));
        assert!(flood[0] > now && flood[2] <= now + SPACING * 3);
        let later = now + SPACING * (BURST + 3);
        for _ in 0..BURST {
            assert_eq!(pace.next(later), later, "after a rest there is a burst again");
        }
    }
}
