//! Keeps a loop going: one that panics, or ends, is begun again with growing pauses.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::telemetry::metrics::Metrics;

/// First and longest pause before a loop is begun again: a leader's Lease outlasts the first ones.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// How a loop is ended when it is asked to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// At once: it does nothing that has to be ended.
    Abort,
    /// By itself: it watches the same token.
    Wait,
}

/// Keeps a loop going until `stop` is cancelled, and counts how often it was begun again.
pub(super) async fn tend<T>(
    name: &'static str,
    metrics: Arc<Metrics>,
    stop: CancellationToken,
    ending: Ending,
    mut make: impl FnMut() -> T,
) where
    T: Future<Output = ()> + Send + 'static,
{
    let mut pause = FIRST_PAUSE;
    loop {
        let begun = Instant::now();
        // Aborted with this future, too.
        let mut task = JoinSet::new();
        task.spawn(make());
        tokio::select! {
            _ended = task.join_next() => {}
            () = stop.cancelled() => {
                if ending == Ending::Abort {
                    task.abort_all();
                }
                let _ended = task.join_next().await;
            }
        }
        if stop.is_cancelled() {
            return;
        }
        metrics.reconciling().loop_restarted(name);
        tracing::error!(
            name,
            ?pause,
            "a loop of the guard ended or panicked; beginning it again"
        );
        if begun.elapsed() > LONGEST_PAUSE * 2 {
            pause = FIRST_PAUSE;
        }
        tokio::select! {
            () = sleep(pause) => {}
            () = stop.cancelled() => return,
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_loop_that_panics_is_begun_again_with_growing_pauses_and_counted() {
        let (metrics, stop) = (Arc::new(Metrics::new()), CancellationToken::new());
        let log = Arc::new(Mutex::new(Vec::new()));
        let (notes, origin) = (Arc::clone(&log), Instant::now());
        let begin = move || {
            notes.lock().unwrap().push(origin.elapsed().as_millis());
            async { panic!("asked to panic") }
        };
        let tended = tokio::spawn(tend("a", Arc::clone(&metrics), stop.clone(), Ending::Abort, begin));
        sleep(Duration::from_millis(1500)).await;
        assert_eq!(*log.lock().unwrap(), [0, 200, 600, 1400]);
        assert!(metrics.encode().contains("guard_loop_restarts_total{name=\"a\"} 4"));
        stop.cancel();
        tended.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_is_asked_to_end_is_aborted_or_waited_for() {
        for (ending, finishes) in [(Ending::Abort, false), (Ending::Wait, true)] {
            let stop = CancellationToken::new();
            let finished = Arc::new(Mutex::new(false));
            let (token, note) = (stop.clone(), Arc::clone(&finished));
            let begin = move || {
                let (token, note) = (token.clone(), Arc::clone(&note));
                async move {
                    token.cancelled().await;
                    sleep(Duration::from_secs(1)).await;
                    *note.lock().unwrap() = true;
                }
            };
            let tended = tokio::spawn(tend("a", Arc::new(Metrics::new()), stop.clone(), ending, begin));
            sleep(Duration::from_secs(1)).await;
            stop.cancel();
            tended.await.unwrap();
            assert_eq!(*finished.lock().unwrap(), finishes, "{ending:?}");
        }
    }
}
