//! Writes the status of claims, in the background: the phase, who was refused, and which owners wait.
//!
//! What comes in within a second is written together: at most one write a second for each claim, and none in the way of a
//! decision. What has to be dropped is counted.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::{StreamExt, stream};
use kube::ResourceExt;
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::api::claim::{DeployerClaim, Rejection, WaitingOwner};
use crate::cluster::store::{Store, WriteError};
use crate::domain::claim_status::{Unwritten, updated};
use crate::telemetry::metrics::Metrics;

/// How often what came in is written.
const PERIOD: Duration = Duration::from_secs(1);
/// Claims whose status may wait to be written.
const MAX_CLAIMS: usize = 4096;
/// Statuses that are written at a time.
const AT_A_TIME: usize = 4;
/// Longest time that a write may take.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);
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
    unwritten: Unwritten,
    tries: u32,
}

/// Takes in what the status of claims should say.
pub struct Statuses {
    store: Arc<dyn Store>,
    due: Mutex<HashMap<Place, Due>>,
    metrics: Arc<Metrics>,
}

impl Statuses {
    /// Nothing is written until [`Self::run`] runs.
    #[must_use]
    pub fn new(store: Arc<dyn Store>, metrics: Arc<Metrics>) -> Self {
        Self {
            store,
            due: Mutex::default(),
            metrics,
        }
    }

    /// The claim's spec was written: its phase may have changed. Waits for nothing.
    pub fn changed(&self, claim: &DeployerClaim) {
        self.note(&claim.namespace().unwrap_or_default(), &claim.name_any(), 0, |_| {});
    }

    /// A deployer was refused for the key of this claim. Waits for nothing.
    pub fn refused(&self, namespace: &str, claim: &str, rejection: Rejection) {
        self.note(namespace, claim, 1, |unwritten| unwritten.add(rejection));
    }

    /// An owner waits for the key of this claim. Waits for nothing.
    pub fn waits(&self, namespace: &str, claim: &str, owner: WaitingOwner) {
        self.note(namespace, claim, 0, |unwritten| unwritten.owners.waits(owner));
    }

    /// A deployer of the owner with this uid was given the key of this claim. Waits for nothing.
    pub fn served(&self, namespace: &str, claim: &str, owner: &str) {
        self.note(namespace, claim, 0, |unwritten| unwritten.owners.served(owner));
    }

    /// `refusals` is what `add` adds.
    fn note(&self, namespace: &str, name: &str, refusals: u64, add: impl FnOnce(&mut Unwritten)) {
        let mut due = self.lock();
        let full = due.len() >= MAX_CLAIMS;
        let due = match due.entry(Place {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }) {
            Entry::Vacant(_) if full => return self.metrics.status_dropped(refusals),
            Entry::Vacant(place) => place.insert(Due::default()),
            Entry::Occupied(due) => due.into_mut(),
        };
        add(&mut due.unwritten);
    }

    /// Writes what came in, once a second, for ever.
    pub async fn run(self: Arc<Self>) {
        let mut ticks = interval(PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let due = std::mem::take(&mut *self.lock());
            stream::iter(due)
                .for_each_concurrent(AT_A_TIME, |(place, due)| async { self.settle(place, due).await })
                .await;
        }
    }

    async fn settle(&self, place: Place, due: Due) {
        match timeout(CALL_TIMEOUT, self.write(&place, &due.unwritten)).await {
            Ok(Written::Done) => {}
            Ok(Written::Again) | Err(_) if due.tries < MAX_TRIES => self.put_back(place, due),
            Ok(Written::Again | Written::Gone) | Err(_) => self.drop_due(&due),
        }
    }

    async fn write(&self, place: &Place, unwritten: &Unwritten) -> Written {
        let claim = match self.store.claim(&place.namespace, &place.name).await {
            Ok(Some(claim)) => claim,
            Ok(None) => return Written::Gone,
            Err(_) => return Written::Again,
        };
        let status = updated(claim.status.as_ref(), &claim.spec, unwritten);
        if claim.status.as_ref() == Some(&status) {
            return Written::Done;
        }
        match self.store.update_claim_status(&claim, status).await {
            Ok(()) => Written::Done,
            // A namespace that is being deleted takes no writes; there is nobody left to read them.
            Err(WriteError::Refused(_)) => Written::Gone,
            Err(WriteError::Conflict | WriteError::Shed(_) | WriteError::Unknown(_)) => Written::Again,
        }
    }

    fn put_back(&self, place: Place, older: Due) {
        let mut due = self.lock();
        let now = due.entry(place).or_default();
        now.tries = older.tries + 1;
        now.unwritten.take_back(older.unwritten);
    }

    fn drop_due(&self, due: &Due) {
        self.metrics.status_dropped(due.unwritten.count.unsigned_abs());
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Place, Due>> {
        self.due.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a write came to.
enum Written {
    Done,
    /// The claim changed, or the API server did not answer: in the next period.
    Again,
    /// The claim is gone, or may not be written.
    Gone,
}
