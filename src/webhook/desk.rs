//! One queue for each key: requests for one key that meet in this replica are decided one after another, and those that came
//! while a read was under way share the next one.
//!
//! The queue is an economy, not the guarantee: that is the compare-and-swap on the claim, which every round ends in.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep};

use super::round::Round;
use crate::cluster::store::{ReadError, Store};
use crate::domain::admission::Ruling;
use crate::domain::key::Key;
use crate::domain::refusal::Undecided;
use crate::observer::Observer;
use crate::webhook::ticket::{Decided, Question, Ticket};

/// Pause before a namesake on its way is looked for again, and after a read or write that may succeed when tried again.
const PAUSE: Duration = Duration::from_millis(25);

/// Decides on requests, those of one key one after another.
pub struct Desks<S> {
    store: Arc<S>,
    observer: Arc<Observer<S>>,
    open: Mutex<HashMap<Key, Queue>>,
}

#[derive(Default)]
struct Queue {
    tickets: Vec<Ticket>,
    came: Arc<Notify>,
}

impl<S: Store> Desks<S> {
    /// No desk is open yet; the first request for a key opens its desk, the last one to leave closes it.
    #[must_use]
    pub fn new(store: Arc<S>, observer: Arc<Observer<S>>) -> Self {
        Self {
            store,
            observer,
            open: Mutex::default(),
        }
    }

    /// Decides on one request. Always answers by the question's deadline.
    ///
    /// May be dropped at any time: what was begun for the request is finished by the desk's own task.
    pub async fn decide(self: &Arc<Self>, question: Question) -> Decided {
        let deadline = question.deadline;
        let (answer, answered) = oneshot::channel();
        self.enqueue(Ticket::new(question, answer));
        tokio::select! {
            answered = answered => answered.unwrap_or_else(|_| Undecided::Panicked.into()),
            () = tokio::time::sleep_until(deadline) => Undecided::Deadline.into(),
        }
    }

    fn enqueue(self: &Arc<Self>, ticket: Ticket) {
        let key = ticket.question.key.clone();
        match self.lock().entry(key.clone()) {
            Entry::Occupied(mut queue) => {
                let queue = queue.get_mut();
                queue.tickets.push(ticket);
                queue.came.notify_one();
            }
            Entry::Vacant(place) => {
                place.insert(Queue {
                    tickets: vec![ticket],
                    came: Arc::default(),
                });
                let desk = OpenDesk {
                    desks: Arc::clone(self),
                    key,
                };
                tokio::spawn(desk.work());
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Queue>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A desk at work. However it ends, also by a panic, its queue goes with it: whoever waits in it is answered `Panicked`, and
/// the next request opens a new desk.
struct OpenDesk<S> {
    desks: Arc<Desks<S>>,
    key: Key,
}

impl<S> Drop for OpenDesk<S> {
    fn drop(&mut self) {
        self.desks
            .open
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&self.key);
    }
}

impl<S: Store> OpenDesk<S> {
    async fn work(self) {
        let mut waiting = Vec::new();
        loop {
            let Some((tickets, came)) = self.take(waiting) else {
                return;
            };
            let round = Round::new(&self.desks.store, &self.desks.observer, &self.key);
            let left = round.run(tickets).await;
            waiting = left.tickets;
            if left.pause && !waiting.is_empty() {
                tokio::select! {
                    () = sleep(PAUSE) => {}
                    () = came.notified() => {}
                }
            }
        }
    }

    /// Everything that waits now, the oldest first. `None` closes the desk: nobody can come between the look and the closing.
    fn take(&self, mut waiting: Vec<Ticket>) -> Option<(Vec<Ticket>, Arc<Notify>)> {
        let mut open = self.desks.lock();
        let queue = open.get_mut(&self.key)?;
        waiting.append(&mut queue.tickets);
        waiting.retain(|ticket| !ticket.is_abandoned());
        if waiting.is_empty() {
            open.remove(&self.key);
            return None;
        }
        Some((waiting, Arc::clone(&queue.came)))
    }
}

impl From<Undecided> for Decided {
    fn from(why: Undecided) -> Self {
        Self {
            ruling: Ruling::Undecided(why),
            claim: None,
        }
    }
}

impl From<ReadError> for Undecided {
    fn from(error: ReadError) -> Self {
        Self::ReadFailed {
            what: error.what,
            why: error.why.to_string(),
        }
    }
}

/// Whether a moment has come.
pub(super) fn passed(moment: Instant) -> bool {
    Instant::now() >= moment
}
