//! Taking stock under each version of a policy: every deployer that came in before its entry was in force gets a claim, or is
//! reported. Then the entry itself says so, in its URL, and a new key needs no list of pods as long as it stands.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBuilder};
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::board::{Board, Leads, PolicyVersion};
use super::lookout::{Lookout, Watched};
use super::relist::Relist;
use super::spot::Spot;
use crate::cluster::upkeep::Upkeep;
use crate::domain::pursuit::Window;
use crate::telemetry::metrics::Metrics;

/// How often it is looked whether stock can be taken.
const PERIOD: Duration = Duration::from_secs(1);
/// Time that API servers may take to see a change of the webhook configuration, beyond the window of a create that was admitted
/// before that: they watch it, and the API server's own bound on that lag is a second or two.
const LAG: Duration = Duration::from_secs(10);
/// A stock-taking that is not over by then begins anew.
const LONGEST: Duration = Duration::from_mins(10);
/// First and longest pause after one that could not be begun; each may be up to twice as long, so that guards do not go together.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Stock-takings under way, and those that are over.
#[derive(Debug, Default)]
pub(super) struct Stock {
    takes: Mutex<HashMap<PolicyVersion, Take>>,
    /// Uids of policies under which this guard has taken stock.
    taken: Mutex<HashSet<String>>,
}

#[derive(Debug)]
struct Take {
    begun: Instant,
    in_force_since: Instant,
    left: BTreeSet<Spot>,
}

impl Stock {
    /// Whether this guard has taken stock under a version of the policy with this uid.
    pub(super) fn was_taken(&self, uid: &str) -> bool {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner).contains(uid)
    }

    fn begin(&self, version: &PolicyVersion, in_force_since: Instant, left: BTreeSet<Spot>) {
        let take = Take {
            begun: Instant::now(),
            in_force_since,
            left,
        };
        self.lock().insert(version.clone(), take);
    }

    /// A key was examined, and there was nothing left to do. True if with it stock is taken.
    ///
    /// `examined` is when the examination began: one from before the stock-taking may not have known of every pod.
    pub(super) fn clean(&self, version: &PolicyVersion, spot: &Spot, examined: Instant) -> bool {
        let mut takes = self.lock();
        let Some(take) = takes.get_mut(version).filter(|take| examined >= take.begun) else {
            return false;
        };
        take.left.remove(spot) && take.left.is_empty()
    }

    /// Stock is taken, if the entry has been in force all the while.
    pub(super) fn taken(&self, board: &Board, version: &PolicyVersion) {
        let Some(take) = self.lock().remove(version) else {
            return;
        };
        if board.note_stock(version, take.in_force_since) {
            let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
            taken.insert(version.uid.clone());
            tracing::info!(
                policy = version.name,
                generation = version.generation,
                "stock was taken"
            );
        }
    }

    fn is_under_way(&self, version: &PolicyVersion, in_force_since: Instant) -> bool {
        let mut takes = self.lock();
        takes.retain(|_, take| take.begun.elapsed() < LONGEST);
        takes
            .get(version)
            .is_some_and(|take| take.in_force_since == in_force_since)
    }

    /// Another guard leads: it takes stock by itself.
    pub(super) fn clear(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<PolicyVersion, Take>> {
        self.takes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Begins stock-takings.
pub(super) struct StockTaker<S> {
    pub(super) lookout: Arc<Lookout>,
    pub(super) board: Arc<Board>,
    pub(super) leads: Arc<dyn Leads>,
    pub(super) stock: Arc<Stock>,
    pub(super) relist: Arc<Relist<S>>,
    pub(super) window: Window,
    pub(super) dry_run: bool,
    pub(super) metrics: Arc<Metrics>,
}

/// Stock-takings that could not be begun, each with when it is tried again, and the pauses after that.
#[derive(Default)]
struct Failing(HashMap<PolicyVersion, (Instant, Pauses)>);

type Pauses = <ExponentialBuilder as BackoffBuilder>::Backoff;

impl Failing {
    fn is_resting(&self, version: &PolicyVersion) -> bool {
        self.0.get(version).is_some_and(|(again, _)| Instant::now() < *again)
    }

    fn failed(&mut self, version: &PolicyVersion) -> Duration {
        let (again, pauses) = self
            .0
            .entry(version.clone())
            .or_insert_with(|| (Instant::now(), pauses()));
        let pause = pauses.next().unwrap_or(LONGEST_PAUSE);
        *again = Instant::now() + pause;
        pause
    }
}

fn pauses() -> Pauses {
    ExponentialBuilder::new()
        .with_min_delay(FIRST_PAUSE)
        .with_max_delay(LONGEST_PAUSE)
        .without_max_times()
        .with_jitter()
        .build()
}

impl<S: Upkeep> StockTaker<S> {
    /// Begins each stock-taking as soon as it can be begun, for ever.
    pub(super) async fn run(&self) {
        let mut ticks = interval(PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut failing = Failing::default();
        loop {
            ticks.tick().await;
            let all = self.lookout.watched();
            failing
                .0
                .retain(|version, _| all.iter().any(|watched| watched.version == *version));
            for watched in &all {
                self.look_at(watched, &mut failing).await;
            }
            let untaken = all.iter().filter(|watched| self.in_force_unstocked(watched).is_some());
            let counts = self.leads.leads() && !self.dry_run;
            self.metrics
                .reconciling()
                .stock_not_taken(if counts { untaken.count() } else { 0 });
        }
    }

    /// Since when a policy is in force, if no stock was taken since.
    fn in_force_unstocked(&self, watched: &Watched) -> Option<Instant> {
        let notice = self.board.read(&watched.version);
        let since = notice.in_force_since?;
        (!notice.stocked && !notice.is_stock_taken()).then_some(since)
    }

    async fn look_at(&self, watched: &Arc<Watched>, failing: &mut Failing) {
        let version = &watched.version;
        let Some(since) = self.in_force_unstocked(watched) else {
            return;
        };
        let wait = self.window.pending + self.window.settle + LAG;
        let due = since.elapsed() > wait && watched.is_complete() && self.leads.leads() && !self.dry_run;
        if !due || self.stock.is_under_way(version, since) || failing.is_resting(version) {
            return;
        }
        // A list may be old, and so may the watch: what either of them shows is examined.
        let pods = match self.relist.pods(watched).await {
            Ok(()) => watched.pods().spots().cloned().collect::<BTreeSet<_>>(),
            Err(error) => {
                self.metrics.reconciling().stock_failed(&version.name);
                let again_in = failing.failed(version);
                tracing::warn!(policy = version.name, error = %error, ?again_in, "stock cannot be taken yet; trying again");
                return;
            }
        };
        failing.0.remove(version);
        tracing::info!(policy = version.name, keys = pods.len(), "taking stock");
        let nothing = pods.is_empty();
        self.stock.begin(version, since, pods.clone());
        if nothing {
            self.stock.taken(&self.board, version);
        }
        self.lookout.queue.spread(pods);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_fails_is_tried_again_ever_more_slowly_but_always() {
        let version = PolicyVersion {
            name: "p".into(),
            uid: "u".into(),
            generation: 1,
        };
        let mut failing = Failing::default();
        assert!(!failing.is_resting(&version));
        let pauses: Vec<_> = (0..20).map(|_| failing.failed(&version)).collect();
        assert!(failing.is_resting(&version));
        assert!(pauses[0] >= FIRST_PAUSE && pauses[0] <= FIRST_PAUSE * 2, "{pauses:?}");
        let rest = &pauses[10..];
        assert!(
            rest.iter()
                .all(|pause| (LONGEST_PAUSE..=LONGEST_PAUSE * 2).contains(pause)),
            "{pauses:?}"
        );
        tokio::time::advance(LONGEST_PAUSE * 2).await;
        assert!(!failing.is_resting(&version));
    }
}
