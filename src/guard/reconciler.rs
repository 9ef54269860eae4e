//! The reconciliation of one guard, wired together.

use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::apply::Hand;
use super::board::{Board, Leads};
use super::duty::Duty;
use super::examine::{Examiner, Recent};
use super::lookout::Lookout;
use super::namespaces::Namespaces;
use super::queue::{Queue, work};
use super::reading::Reader;
use super::records::Records;
use super::relist::Relist;
use super::standing::Standing;
use super::stock::{Stock, StockTaker};
use super::tend::{Ending, tend};
use super::watch::{watch_claims, watch_policies};
use crate::cluster::events::Events;
use crate::cluster::upkeep::Upkeep;
use crate::domain::pursuit::Window;
use crate::observer::Observer;
use crate::statuses::Statuses;
use crate::telemetry::metrics::Metrics;

/// How a guard reconciles.
#[derive(Clone, Debug)]
pub struct Options {
    /// How long an admitted pod that nobody can find is believed to be on its way.
    pub window: Window,
    /// How often each policy's pods are listed, to find what a watch missed; up to a tenth later.
    pub relist: Duration,
    /// How often a key with an active deployer is examined although nothing was heard of it: an owner that is finished is found by
    /// that alone.
    pub recheck: Duration,
    /// Keys that are examined at once.
    pub at_once: usize,
    /// Our own namespace, which no policy ever matches.
    pub own_namespace: String,
    /// What would be done is put on record, and nothing is written.
    pub dry_run: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            window: Window::default(),
            relist: Duration::from_mins(1),
            recheck: Duration::from_mins(5),
            at_once: 8,
            own_namespace: "deployer-guard".into(),
            dry_run: false,
        }
    }
}

/// The reconciliation of one guard.
///
/// # Guarantees
/// - Leadership is asked for right before each write that needs it; each write carries the precondition that it was planned on.
/// - A loop that panics is begun again, and counted.
/// - Pending entries are confirmed and dropped whether this guard leads or not; except in a dry run, in which nothing is written.
pub struct Reconciler<S> {
    store: Arc<S>,
    board: Arc<Board>,
    leads: Arc<dyn Leads>,
    events: Events,
    metrics: Arc<Metrics>,
    options: Options,
}

impl<S: Upkeep> Reconciler<S> {
    /// Nothing is done until [`Self::run`] runs. What is taken to `events` is for a publisher.
    #[must_use]
    pub fn new(
        store: Arc<S>,
        board: Arc<Board>,
        leads: Arc<dyn Leads>,
        events: Events,
        metrics: Arc<Metrics>,
        options: Options,
    ) -> Self {
        Self {
            store,
            board,
            leads,
            events,
            metrics,
            options,
        }
    }

    /// Reconciles until `shutdown` completes. Then no action is begun, and it returns when the writes that are under way have ended.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        let stop = CancellationToken::new();
        let (metrics, rooms) = (Arc::clone(&self.metrics), self.rooms(&stop));
        // The status of claims is written until all that changes claims has ended.
        let (statuses, done) = (Arc::clone(&rooms.statuses), CancellationToken::new());
        let over = done.clone();
        let write = move || Arc::clone(&statuses).run(over.clone());
        let mut writing = JoinSet::new();
        writing.spawn(tend("statuses", metrics, done.clone(), Ending::Wait, write));
        let mut loops = rooms.open(&stop);
        shutdown.await;
        stop.cancel();
        while loops.join_next().await.is_some() {}
        done.cancel();
        while writing.join_next().await.is_some() {}
    }

    fn rooms(self, stop: &CancellationToken) -> Rooms<S> {
        let Self {
            store,
            board,
            leads,
            events,
            metrics,
            options,
        } = self;
        let lookout = Arc::new(Lookout::new(Queue::default()));
        let statuses = Arc::new(Statuses::new(Arc::<S>::clone(&store), Arc::clone(&metrics)));
        let observer = Observer::new(Arc::clone(&store), options.window, Arc::clone(&metrics));
        let observer = observer.telling(Arc::clone(&statuses));
        let observer = Arc::new(if options.dry_run {
            observer.only_watching()
        } else {
            observer
        });
        let records = Records::new(events, Arc::clone(&metrics));
        let (standing, stock) = (Arc::<Standing>::default(), Arc::<Stock>::default());
        let relist = Arc::new(Relist {
            store: Arc::clone(&store),
            lookout: Arc::clone(&lookout),
            observer: Arc::clone(&observer),
            metrics: Arc::clone(&metrics),
        });
        let examiner = Examiner {
            store: Arc::clone(&store),
            lookout: Arc::clone(&lookout),
            board: Arc::clone(&board),
            leads: Arc::clone(&leads),
            reader: Reader {
                store: Arc::clone(&store),
                lookout: Arc::clone(&lookout),
                own_namespace: options.own_namespace.clone(),
            },
            hand: Hand {
                store: Arc::clone(&store),
                lookout: Arc::clone(&lookout),
                observer: Arc::clone(&observer),
                statuses: Arc::clone(&statuses),
            },
            records: records.clone(),
            standing: Arc::clone(&standing),
            stock: Arc::clone(&stock),
            metrics: Arc::clone(&metrics),
            dry_run: options.dry_run,
            recheck: options.recheck,
            stop: stop.clone(),
            recent: Recent::default(),
        };
        let taker = StockTaker {
            lookout: Arc::clone(&lookout),
            board: Arc::clone(&board),
            leads: Arc::clone(&leads),
            stock: Arc::clone(&stock),
            relist: Arc::clone(&relist),
            window: options.window,
            dry_run: options.dry_run,
            metrics: Arc::clone(&metrics),
        };
        let duty = Duty {
            lookout: Arc::clone(&lookout),
            board,
            leads,
            records,
            standing,
            stock,
            relist,
            namespaces: Namespaces::new(Arc::clone(&store), options.own_namespace),
            statuses: (!options.dry_run).then(|| Arc::clone(&statuses)),
            metrics: Arc::clone(&metrics),
            period: options.relist,
            elected: Notify::new(),
            told: Mutex::default(),
        };
        Rooms {
            store,
            lookout,
            observer,
            statuses,
            examiner: Arc::new(examiner),
            taker: Arc::new(taker),
            duty: Arc::new(duty),
            metrics,
            at_once: options.at_once,
        }
    }
}

/// The parts of a guard's reconciliation.
struct Rooms<S> {
    store: Arc<S>,
    lookout: Arc<Lookout>,
    observer: Arc<Observer<S>>,
    statuses: Arc<Statuses>,
    examiner: Arc<Examiner<S>>,
    taker: Arc<StockTaker<S>>,
    duty: Arc<Duty<S>>,
    metrics: Arc<Metrics>,
    at_once: usize,
}

impl<S: Upkeep> Rooms<S> {
    /// Begins all loops.
    fn open(self, stop: &CancellationToken) -> JoinSet<()> {
        let mut loops = Loops {
            set: JoinSet::new(),
            metrics: Arc::clone(&self.metrics),
            stop: stop.clone(),
        };
        self.examine(&mut loops);
        self.watch(&mut loops);
        loops.on(&self.taker, "stock", |taker| async move { taker.run().await });
        loops.on(&self.duty, "leadership", |duty| async move {
            duty.follow_leadership().await;
        });
        loops.on(&self.duty, "counts", |duty| async move { duty.count().await });
        loops.on(&self.duty, "lists", |duty| async move { duty.list().await });
        loops.set
    }

    fn examine(&self, loops: &mut Loops) {
        let (examiner, lookout, at_once) = (Arc::clone(&self.examiner), Arc::clone(&self.lookout), self.at_once);
        let (metrics, stop) = (Arc::clone(&self.metrics), loops.stop.clone());
        loops.tend("examinations", Ending::Wait, move || {
            let (examiner, metrics) = (Arc::clone(&examiner), Arc::clone(&metrics));
            let (queue, stopped) = (lookout.queue.clone(), stop.clone().cancelled_owned());
            let requests = queue.open();
            queue.spread(lookout.everything());
            let examine = move |spot| {
                let examiner = Arc::clone(&examiner);
                async move { examiner.examine(&spot).await }
            };
            work(requests, queue, at_once, metrics, stopped, examine)
        });
    }

    fn watch(&self, loops: &mut Loops) {
        let (store, lookout, observer) = (
            Arc::clone(&self.store),
            Arc::clone(&self.lookout),
            Arc::clone(&self.observer),
        );
        loops.tend("claims", Ending::Abort, move || {
            watch_claims(Arc::clone(&store), Arc::clone(&lookout), Arc::clone(&observer))
        });
        let (store, lookout, metrics) = (
            Arc::clone(&self.store),
            Arc::clone(&self.lookout),
            Arc::clone(&self.metrics),
        );
        let stop = loops.stop.clone();
        loops.tend("policies", Ending::Abort, move || {
            watch_policies(
                Arc::clone(&store),
                Arc::clone(&lookout),
                Arc::clone(&metrics),
                stop.clone(),
            )
        });
    }
}

/// The loops of a guard.
struct Loops {
    set: JoinSet<()>,
    metrics: Arc<Metrics>,
    stop: CancellationToken,
}

impl Loops {
    fn tend<T>(&mut self, name: &'static str, ending: Ending, begin: impl FnMut() -> T + Send + 'static)
    where
        T: Future<Output = ()> + Send + 'static,
    {
        self.set
            .spawn(tend(name, Arc::clone(&self.metrics), self.stop.clone(), ending, begin));
    }

    fn on<D: Send + Sync + 'static, T>(
        &mut self,
        duty: &Arc<D>,
        name: &'static str,
        begin: impl Fn(Arc<D>) -> T + Send + 'static,
    ) where
        T: Future<Output = ()> + Send + 'static,
    {
        let duty = Arc::clone(duty);
        self.tend(name, Ending::Abort, move || begin(Arc::clone(&duty)));
    }
}
