//! Writes the status of claims, in the background: the phase, who was refused, and which owners wait.
//!
//! What comes in within a second is written together: at most one write a second for each claim, and none in the way of a
//! decision. What has to be dropped is counted, and what is written is counted once: a batch whose answer was lost is known
//! again in the status by its number.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::{StreamExt, stream};
use kube::ResourceExt;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::api::claim::{Batch, DeployerClaim, PROTOCOL, Rejection, WaitingOwner};
use crate::cluster::events::moments_after;
use crate::cluster::store::{Store, WriteError};
use crate::domain::claim_status::{Unwritten, holds, updated};
use crate::telemetry::metrics::Metrics;

/// How often what came in is written.
const PERIOD: Duration = Duration::from_secs(1);
/// Claims whose status may wait to be written.
const MAX_CLAIMS: usize = 4096;
/// Statuses that are written at a time.
const AT_A_TIME: usize = 4;
/// Longest time that a write may take.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// The pause before what was in another's way at the end is written again.
const AGAIN: Duration = Duration::from_millis(100);
/// Periods over which a write is tried again.
const MAX_TRIES: u32 = 30;

/// Where a claim is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Place {
    namespace: String,
    name: String,
}

#[derive(Debug, Default)]
struct Due {
    /// What came in since.
    unwritten: Unwritten,
    /// What may be written or not. It is sent again as it is, before anything newer.
    in_doubt: Option<InDoubt>,
    tries: u32,
}

#[derive(Debug)]
struct InDoubt {
    batch: Batch,
    unwritten: Unwritten,
    /// An answer was lost before.
    sent_before: bool,
}

/// Takes in what the status of claims should say.
pub struct Statuses {
    store: Arc<dyn Store>,
    due: Mutex<HashMap<Place, Due>>,
    metrics: Arc<Metrics>,
    /// This run of this replica.
    writer: String,
    batches: AtomicI64,
}

impl Statuses {
    /// Nothing is written until [`Self::run`] runs.
    #[must_use]
    pub fn new(store: Arc<dyn Store>, metrics: Arc<Metrics>) -> Self {
        Self {
            store,
            due: Mutex::default(),
            metrics,
            writer: writer(),
            batches: AtomicI64::new(1),
        }
    }

    /// The claim's spec was written: its phase may have changed. Waits for nothing.
    pub fn changed(&self, claim: &DeployerClaim) {
        self.lags(&claim.namespace().unwrap_or_default(), &claim.name_any());
    }

    /// The phase of a claim is not that of its spec, as far as is known: who was to write it may have ended. Waits for nothing.
    pub fn lags(&self, namespace: &str, claim: &str) {
        self.note(namespace, claim, |_| {});
    }

    /// A deployer was refused for the key of this claim. Waits for nothing.
    pub fn refused(&self, namespace: &str, claim: &str, rejection: Rejection) {
        self.note(namespace, claim, |unwritten| unwritten.add(rejection));
    }

    /// An owner waits for the key of this claim. Waits for nothing.
    pub fn waits(&self, namespace: &str, claim: &str, owner: WaitingOwner) {
        self.note(namespace, claim, |unwritten| unwritten.owners.waits(owner));
    }

    /// A deployer of the owner with this uid was given the key of this claim. Waits for nothing.
    pub fn served(&self, namespace: &str, claim: &str, owner: &str) {
        self.note(namespace, claim, |unwritten| unwritten.owners.served(owner));
    }

    fn note(&self, namespace: &str, name: &str, add: impl FnOnce(&mut Unwritten)) {
        let mut due = self.lock();
        let full = due.len() >= MAX_CLAIMS;
        let due = match due.entry(Place {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }) {
            Entry::Vacant(_) if full => {
                let mut lost = Unwritten::default();
                add(&mut lost);
                return self.count_dropped(&lost);
            }
            Entry::Vacant(place) => place.insert(Due::default()),
            Entry::Occupied(due) => due.into_mut(),
        };
        add(&mut due.unwritten);
    }

    /// Writes what came in, once a second, until `stop`; then what is there still, for a moment. What is left is counted.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        let mut ticks = interval(PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let writing = async {
            while !stop.is_cancelled() {
                tokio::select! {
                    _ = ticks.tick() => {}
                    () = stop.cancelled() => {}
                }
                self.write_all().await;
            }
            while !self.lock().is_empty() {
                sleep(AGAIN).await;
                self.write_all().await;
            }
        };
        tokio::select! {
            () = writing => {}
            () = moments_after(&stop) => self.drop_rest(),
        }
    }

    async fn write_all(&self) {
        let places: Vec<_> = self.lock().keys().cloned().collect();
        stream::iter(places)
            .for_each_concurrent(AT_A_TIME, |place| async { self.settle(place).await })
            .await;
    }

    fn drop_rest(&self) {
        let rest = std::mem::take(&mut *self.lock());
        let claims = rest.len();
        let both = |due: Due| [Some(due.unwritten), due.in_doubt.map(|sent| sent.unwritten)];
        let lost: Vec<_> = rest.into_values().flat_map(both).flatten().collect();
        tracing::warn!(
            claims,
            rejections = lost.iter().map(|lost| lost.count).sum::<i64>(),
            waiting = lost.iter().map(|lost| lost.owners.waiting()).sum::<usize>(),
            "the status of claims does not say what was refused last: it could not be written in time"
        );
        for lost in &lost {
            self.count_dropped(lost);
        }
    }

    async fn settle(&self, place: Place) {
        let Some(due) = self.lock().remove(&place) else { return };
        let mut taken = Taken {
            statuses: self,
            place,
            due,
        };
        let Taken { place, due, .. } = &mut taken;
        let sent = due.in_doubt.get_or_insert_with(|| InDoubt {
            batch: self.next_batch(),
            unwritten: std::mem::take(&mut due.unwritten),
            sent_before: false,
        });
        let written = timeout(CALL_TIMEOUT, self.write(place, sent)).await;
        match written.unwrap_or(Written::Perhaps) {
            Written::Done => {
                due.in_doubt = None;
                due.tries = 0;
            }
            Written::No if due.tries < MAX_TRIES && !sent.sent_before => {
                due.tries += 1;
                let sent = due.in_doubt.take().map(|sent| sent.unwritten);
                due.unwritten.take_back(sent.unwrap_or_default());
            }
            Written::No | Written::Perhaps if due.tries < MAX_TRIES => due.tries += 1,
            Written::No | Written::Perhaps | Written::Never => {
                self.count_dropped(&sent.unwritten);
                self.count_dropped(&due.unwritten);
                *due = Due::default();
            }
        }
    }

    async fn write(&self, place: &Place, sent: &InDoubt) -> Written {
        let claim = match self.store.claim(&place.namespace, &place.name).await {
            Ok(Some(claim)) => claim,
            Ok(None) => return Written::Never,
            Err(_) => return Written::No,
        };
        if claim.spec.protocol > PROTOCOL {
            return Written::Never;
        }
        if sent.sent_before && holds(claim.status.as_ref(), &sent.batch) {
            return Written::Done;
        }
        let status = updated(claim.status.as_ref(), &claim.spec, &sent.unwritten, &sent.batch);
        if claim.status.as_ref() == Some(&status) {
            return Written::Done;
        }
        match self.store.update_claim_status(&claim, status).await {
            Ok(()) => Written::Done,
            // A namespace that is being deleted takes no writes; there is nobody left to read them.
            Err(WriteError::Refused(_)) => Written::Never,
            Err(WriteError::Conflict | WriteError::Shed(_)) => Written::No,
            Err(WriteError::Unknown(_)) => Written::Perhaps,
        }
    }

    fn next_batch(&self) -> Batch {
        Batch {
            writer: self.writer.clone(),
            number: self.batches.fetch_add(1, Ordering::Relaxed),
            ..Batch::default()
        }
    }

    /// What came in meanwhile is newer.
    fn put_back(&self, place: Place, older: Due) {
        let mut due = self.lock();
        let now = due.entry(place).or_default();
        now.tries = older.tries;
        now.in_doubt = older.in_doubt;
        now.unwritten.take_back(older.unwritten);
    }

    fn count_dropped(&self, lost: &Unwritten) {
        self.metrics.status_dropped(lost.count.unsigned_abs());
        self.metrics.waiting_dropped(lost.owners.waiting() as u64);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Place, Due>> {
        self.due.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is due for a claim, while it is written. What is left of it goes back, also when the write is given up halfway.
struct Taken<'a> {
    statuses: &'a Statuses,
    place: Place,
    due: Due,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let mut due = std::mem::take(&mut self.due);
        if let Some(sent) = &mut due.in_doubt {
            sent.sent_before = true;
        }
        if due.in_doubt.is_some() || !due.unwritten.is_empty() || due.tries > 0 {
            self.statuses.put_back(self.place.clone(), due);
        }
    }
}

/// What a write came to.
enum Written {
    Done,
    /// It was not written now: the claim changed, or could not be read. In the next period.
    No,
    /// Its answer was lost: in the next period, as the same batch.
    Perhaps,
    /// The claim is gone, or may not be written.
    Never,
}

/// A name that no other run of a replica has. A number that begins anew with each run needs it: a replica keeps its name over a
/// restart.
fn writer() -> String {
    format!("{:016x}", RandomState::new().hash_one(std::process::id()))
}
