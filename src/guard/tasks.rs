//! The tasks of a guard: each is begun again after a panic, and all end when they are asked to.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::telemetry::metrics::GuardMetrics;

/// The first and the longest pause before a task is begun again, and how long it must have run for the first one.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(30));

/// Tasks that are asked to end together.
pub struct Tasks {
    set: JoinSet<()>,
    stop: watch::Sender<bool>,
    metrics: Arc<GuardMetrics>,
}

impl Tasks {
    /// No task yet. Needs a tokio runtime.
    #[must_use]
    pub fn new(metrics: Arc<GuardMetrics>) -> Self {
        Self {
            set: JoinSet::new(),
            stop: watch::Sender::new(false),
            metrics,
        }
    }

    /// Turns true when the tasks are to end: between two writes, never within one.
    #[must_use]
    pub fn stop(&self) -> watch::Receiver<bool> {
        self.stop.subscribe()
    }

    /// Begins a task; whenever it ends or panics without being asked to end, it is begun again, ever more slowly.
    pub fn tend<F: Future<Output = ()> + Send + 'static>(
        &mut self,
        name: &'static str,
        mut begin: impl FnMut() -> F + Send + 'static,
    ) {
        let (mut stop, metrics) = (self.stop(), Arc::clone(&self.metrics));
        self.set.spawn(async move {
            let mut pause = BACK_OFF.0;
            loop {
                let since = Instant::now();
                let ended = tokio::spawn(begin()).await;
                if *stop.borrow() {
                    return;
                }
                if ended.is_err() {
                    metrics.task_panicked(name);
                }
                if since.elapsed() > BACK_OFF.1 {
                    pause = BACK_OFF.0;
                }
                tracing::error!(task = name, again_in = ?pause, "a task of the guard ended; beginning it again");
                tokio::select! {
                    () = sleep(pause) => {}
                    _ = stop.wait_for(|stop| *stop) => return,
                }
                pause = (pause * 2).min(BACK_OFF.1);
            }
        });
    }

    /// Asks all tasks to end, and waits until they have, for `limit` at most. Gives whether all did.
    pub async fn end(&mut self, limit: Duration) -> bool {
        self.stop.send_replace(true);
        let all = async { while self.set.join_next().await.is_some() {} };
        timeout(limit, all).await.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_task_that_panics_is_begun_again_ever_more_slowly_and_counted() {
        let metrics = Arc::new(GuardMetrics::default());
        let mut tasks = Tasks::new(Arc::clone(&metrics));
        let begun = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&begun);
        tasks.tend("test", move || {
            counted.fetch_add(1, Ordering::Relaxed);
            async { panic!("a fault") }
        });
        sleep(Duration::from_millis(700)).await;
        assert_eq!(begun.load(Ordering::Relaxed), 3, "at 0, 200 and 600 ms");
        assert!(tasks.end(Duration::from_secs(1)).await);
        let text = crate::telemetry::metrics::Metrics::with_guard(&metrics).encode();
        assert!(
            text.contains("deployer_guard_task_panics_total{task=\"test\"} 3"),
            "{text}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_under_way_is_finished_at_the_end_but_not_for_ever() {
        for (work, finished) in [(Duration::from_secs(3), true), (Duration::from_secs(8), false)] {
            let mut tasks = Tasks::new(Arc::default());
            tasks.tend("test", move || sleep(work));
            sleep(Duration::from_secs(1)).await;
            assert_eq!(tasks.end(Duration::from_secs(5)).await, finished);
        }
    }
}
