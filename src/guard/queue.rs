//! Which spots are examined when: each as early as anybody asked, one examination of a spot at a time, a few at once.

use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::StreamExt;
use futures::channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};
use futures::stream::FuturesUnordered;
use kube::runtime::scheduler::{ScheduleRequest, scheduler};
use tokio::time::Instant;

use super::spot::Spot;
use crate::telemetry::metrics::Metrics;

/// Between two of many that nobody waits for: what is urgent then finds a free hand.
const SPREAD: Duration = Duration::from_millis(2);
/// First and longest pause after an examination that came to nothing.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

type Requests = UnboundedReceiver<ScheduleRequest<Spot>>;

/// Takes spots to be examined. Clones feed the same queue.
#[derive(Clone, Debug, Default)]
pub(super) struct Queue(Arc<Mutex<Option<UnboundedSender<ScheduleRequest<Spot>>>>>);

/// What came of an examination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Examined {
    /// There is nothing to do until something changes.
    AtRest,
    /// To be examined again after this time.
    Again(Duration),
    /// It could not be carried out: again soon, and later each time.
    Failed,
}

impl Queue {
    /// What comes out of the queue from now on, for [`work`]. What was in it before is lost: a worker that is begun again
    /// examines everything.
    pub(super) fn open(&self) -> Requests {
        let (sender, receiver) = unbounded();
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(sender);
        receiver
    }

    /// Now, or as soon as the examination of this spot that is under way has ended.
    pub(super) fn now(&self, spot: Spot) {
        self.at(spot, Instant::now());
    }

    /// Then, unless it is examined sooner.
    pub(super) fn at(&self, message: Spot, run_at: Instant) {
        // Without a worker there is nothing to lose: the next one examines everything.
        if let Some(sender) = &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            let _ = sender.unbounded_send(ScheduleRequest { message, run_at });
        }
    }

    /// All of them, one after the other.
    pub(super) fn spread(&self, spots: impl IntoIterator<Item = Spot>) {
        let mut at = Instant::now();
        for spot in spots {
            self.at(spot, at);
            at += SPREAD;
        }
    }
}

/// Examines what comes out of a queue until `shutdown` completes; then ends what is under way, and begins nothing.
///
/// An examination that panics is counted, and counts as failed.
pub(super) async fn work<F, E>(
    requests: Requests,
    queue: Queue,
    at_once: usize,
    metrics: Arc<Metrics>,
    shutdown: impl Future<Output = ()>,
    examine: F,
) where
    F: Fn(Spot) -> E,
    E: Future<Output = Examined> + Send + 'static,
{
    let mut due = pin!(scheduler(requests));
    let mut shutdown = pin!(shutdown);
    let mut running = FuturesUnordered::new();
    let mut busy: HashSet<Spot> = HashSet::new();
    let mut failures: HashMap<Spot, u32> = HashMap::new();
    loop {
        let full = busy.len() >= at_once;
        let mut next = due.as_mut().hold_unless(|spot| !full && !busy.contains(spot));
        tokio::select! {
            biased;
            () = &mut shutdown => break,
            Some((spot, examined)) = running.next(), if !running.is_empty() => {
                busy.remove(&spot);
                settle(&queue, &mut failures, spot, examined);
            }
            Some(spot) = next.next() => {
                busy.insert(spot.clone());
                let examination = tokio::spawn(examine(spot.clone()));
                let metrics = Arc::clone(&metrics);
                running.push(async move {
                    let Ok(examined) = examination.await else {
                        metrics.reconciling().loop_restarted("examination");
                        tracing::error!(%spot, "an examination panicked; trying again");
                        return (spot, Examined::Failed);
                    };
                    (spot, examined)
                });
            }
        }
    }
    while running.next().await.is_some() {}
}

fn settle(queue: &Queue, failures: &mut HashMap<Spot, u32>, spot: Spot, examined: Examined) {
    let again = match examined {
        Examined::AtRest => {
            failures.remove(&spot);
            return;
        }
        Examined::Again(pause) => {
            failures.remove(&spot);
            pause
        }
        Examined::Failed => {
            let times = failures.entry(spot.clone()).or_default();
            let pause = FIRST_PAUSE * 2_u32.pow((*times).min(16));
            *times += 1;
            pause.min(LONGEST_PAUSE)
        }
    };
    queue.at(spot, Instant::now() + again);
}

#[cfg(test)]
mod tests {
    use tokio::sync::watch;
    use tokio::time::sleep;

    use super::*;

    /// Spots that were examined, each with the time since the beginning, in milliseconds.
    type Log = Arc<Mutex<Vec<(String, u128)>>>;

    struct Bench {
        queue: Queue,
        log: Log,
        stop: watch::Sender<bool>,
        worker: tokio::task::JoinHandle<()>,
    }

    impl Bench {
        fn new(
            at_once: usize,
            takes: u64,
            examined: impl Fn(&Spot, usize) -> Examined + Send + Sync + 'static,
        ) -> Self {
            let queue = Queue::default();
            let requests = queue.open();
            let (log, begun, examined) = (Log::default(), Instant::now(), Arc::new(examined));
            let (stop, mut stopped) = watch::channel(false);
            let notes = Arc::clone(&log);
            let worker = tokio::spawn(work(
                requests,
                queue.clone(),
                at_once,
                Arc::new(Metrics::new()),
                async move {
                    let _ = stopped.wait_for(|stop| *stop).await;
                },
                move |spot| {
                    let (notes, examined) = (Arc::clone(&notes), Arc::clone(&examined));
                    async move {
                        let times = {
                            let mut notes = notes.lock().unwrap();
                            notes.push((spot.claim.to_string(), begun.elapsed().as_millis()));
                            notes.iter().filter(|(claim, _)| **claim == *spot.claim).count()
                        };
                        sleep(Duration::from_millis(takes)).await;
                        examined(&spot, times)
                    }
                },
            ));
            Self {
                queue,
                log,
                stop,
                worker,
            }
        }

        fn log(&self) -> Vec<(String, u128)> {
            self.log.lock().unwrap().clone()
        }
    }

    fn spot(claim: &str) -> Spot {
        Spot::new("p", "shop", claim)
    }

    #[tokio::test(start_paused = true)]
    async fn a_spot_is_examined_once_at_a_time_and_once_more_if_it_was_asked_for_meanwhile() {
        let bench = Bench::new(8, 100, |_, _| Examined::AtRest);
        for _ in 0..5 {
            bench.queue.now(spot("a"));
        }
        sleep(Duration::from_millis(50)).await;
        for _ in 0..5 {
            bench.queue.now(spot("a"));
        }
        sleep(Duration::from_secs(5)).await;
        let log = bench.log();
        assert_eq!(log.len(), 2, "{log:?}");
        assert!(log[1].1 - log[0].1 >= 100, "{log:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn so_many_are_examined_at_once_and_no_more() {
        let bench = Bench::new(2, 100, |_, _| Examined::AtRest);
        for claim in ["a", "b", "c", "d"] {
            bench.queue.now(spot(claim));
        }
        sleep(Duration::from_millis(90)).await;
        assert_eq!(bench.log().len(), 2);
        sleep(Duration::from_secs(1)).await;
        assert_eq!(bench.log().len(), 4);
    }

    #[tokio::test(start_paused = true)]
    async fn an_earlier_wish_wins_and_a_later_one_is_kept_from_what_came_of_it() {
        let bench = Bench::new(8, 0, |_, times| {
            if times == 1 {
                Examined::Again(Duration::from_mins(1))
            } else {
                Examined::AtRest
            }
        });
        bench.queue.at(spot("a"), Instant::now() + Duration::from_mins(5));
        bench.queue.now(spot("a"));
        sleep(Duration::from_hours(1)).await;
        let log = bench.log();
        assert_eq!(log.len(), 2, "{log:?}");
        assert!((60_000..61_000).contains(&log[1].1), "{log:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn what_fails_or_panics_is_tried_again_with_growing_pauses_and_harms_no_other() {
        let bench = Bench::new(8, 0, |spot, times| match (&*spot.claim, times) {
            ("bad", 1) => panic!("asked to panic"),
            ("bad", 2..=4) => Examined::Failed,
            _ => Examined::AtRest,
        });
        bench.queue.now(spot("bad"));
        bench.queue.now(spot("good"));
        sleep(Duration::from_hours(1)).await;
        let log = bench.log();
        let bad: Vec<u128> = log
            .iter()
            .filter(|(claim, _)| claim == "bad")
            .map(|(_, at)| *at)
            .collect();
        assert_eq!((log.len(), bad.len()), (6, 5), "{log:?}");
        let pauses: Vec<u128> = bad.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(pauses.windows(2).all(|pair| pair[1] > pair[0]), "{pauses:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn at_the_end_what_is_under_way_is_ended_and_nothing_begun() {
        let bench = Bench::new(1, 100, |_, _| Examined::AtRest);
        bench.queue.now(spot("a"));
        bench.queue.now(spot("b"));
        sleep(Duration::from_millis(50)).await;
        let begun = Instant::now();
        bench.stop.send_replace(true);
        bench.worker.await.unwrap();
        assert!(begun.elapsed() >= Duration::from_millis(40));
        assert_eq!(bench.log.lock().unwrap().len(), 1);
    }
}
