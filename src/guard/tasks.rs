//! Tasks of a guard that end together: each is begun again after a panic, and all end when they are asked to.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::tend::{Ending, tend};
use crate::telemetry::metrics::Metrics;

/// Tasks that are asked to end together.
pub struct Tasks {
    set: JoinSet<()>,
    stop: watch::Sender<bool>,
    ending: CancellationToken,
    metrics: Arc<Metrics>,
}

impl Tasks {
    /// No task yet. Needs a tokio runtime.
    #[must_use]
    pub fn new(metrics: Arc<Metrics>) -> Self {
        Self {
            set: JoinSet::new(),
            stop: watch::Sender::new(false),
            ending: CancellationToken::new(),
            metrics,
        }
    }

    /// Turns true when the tasks are to end: between two writes, never within one.
    #[must_use]
    pub fn stop(&self) -> watch::Receiver<bool> {
        self.stop.subscribe()
    }

    /// Begins a task; whenever it ends or panics without being asked to end, it is begun again, ever more slowly, and that is counted.
    pub fn tend<F: Future<Output = ()> + Send + 'static>(
        &mut self,
        name: &'static str,
        begin: impl FnMut() -> F + Send + 'static,
    ) {
        let (metrics, ending) = (Arc::clone(&self.metrics), self.ending.clone());
        self.set.spawn(tend(name, metrics, ending, Ending::Wait, begin));
    }

    /// Asks all tasks to end, and waits until they have, for `limit` at most. Gives whether all did.
    pub async fn end(&mut self, limit: Duration) -> bool {
        // Before they hear of it: one that ends at once is not begun again.
        self.ending.cancel();
        self.stop.send_replace(true);
        let all = async { while self.set.join_next().await.is_some() {} };
        timeout(limit, all).await.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_is_under_way_is_finished_at_the_end_but_not_for_ever() {
        for (work, finished) in [(Duration::from_secs(3), true), (Duration::from_secs(8), false)] {
            let mut tasks = Tasks::new(Arc::new(Metrics::new()));
            tasks.tend("test", move || sleep(work));
            sleep(Duration::from_secs(1)).await;
            assert_eq!(tasks.end(Duration::from_secs(5)).await, finished);
        }
    }
}
