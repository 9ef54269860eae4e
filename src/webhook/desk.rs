//! One queue for each key: requests for one key that meet in this replica are decided one after another, and those that came
//! while a read was under way share the next one.
//!
//! The queue is an economy, not the guarantee: that is the compare-and-swap on the claim, which every round ends in.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep_until};

use super::guess::Guesses;
use super::round::{Pause, Round};
use crate::aside::Aside;
use crate::cluster::store::{ReadError, Store};
use crate::domain::admission::Ruling;
use crate::domain::key::Key;
use crate::domain::refusal::Undecided;
use crate::observer::Observer;
use crate::webhook::ticket::{Decided, Question, Ticket};

/// Pause before a namesake on its way is looked for again, and after a read or write that may succeed when tried again.
const PAUSE: Duration = Duration::from_millis(25);

/// What a desk gets past the deadline to say what took the time; part of the margin that is kept for the way back.
const GRACE: Duration = Duration::from_millis(20);

/// The longest pause, after trouble upon trouble.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// Decides on requests, those of one key one after another.
pub struct Desks<S> {
    store: Arc<S>,
    observer: Arc<Observer<S>>,
    aside: Aside,
    open: Mutex<HashMap<Key, Queue>>,
    guesses: Guesses,
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
            aside: Aside::new(),
            open: Mutex::default(),
            guesses: Guesses::default(),
        }
    }

    /// Decides on one request. Always answers by the question's deadline, or a few milliseconds after it.
    ///
    /// May be dropped at any time: what was begun for the request is finished by the desk's own task.
    pub async fn decide(self: &Arc<Self>, question: Question) -> Decided {
        let deadline = question.deadline;
        let (answer, answered) = oneshot::channel();
        self.enqueue(Ticket::new(question, answer));
        tokio::select! {
            biased;
            answered = answered => answered.unwrap_or_else(|_| Undecided::Panicked.into()),
            () = sleep_until(deadline + GRACE) => Undecided::Deadline.into(),
        }
    }

    /// Where the expressions of policies are evaluated.
    pub(super) fn aside(&self) -> &Aside {
        &self.aside
    }

    /// Whether nobody waits at any desk.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.lock().is_empty()
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
                    closed: false,
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
    /// The queue is gone already: what stands under the key now belongs to another desk.
    closed: bool,
}

impl<S> Drop for OpenDesk<S> {
    fn drop(&mut self) {
        if self.closed {
            return;
        }
        self.desks
            .open
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&self.key);
    }
}

impl<S: Store> OpenDesk<S> {
    async fn work(mut self) {
        let (mut waiting, mut troubles) = (Vec::new(), 0);
        loop {
            let Some((tickets, came)) = self.take(waiting) else {
                return;
            };
            let guess = self.desks.guesses.of(&self.key);
            let desks = &*self.desks;
            let mut round = Round::new(&desks.store, &desks.observer, &desks.aside, &self.key, guess);
            let left = round.run(tickets).await;
            self.desks.guesses.keep(&self.key, round.guess());
            waiting = left.tickets;
            troubles = if matches!(left.pause, Pause::AfterConflict | Pause::AfterTrouble) {
                troubles + 1
            } else {
                0
            };
            let pause = length(left.pause, troubles);
            if !pause.is_zero() && !waiting.is_empty() {
                // Whoever runs out of time is told so in time.
                let deadlines = waiting.iter().map(|ticket| ticket.question.deadline);
                let until = deadlines.chain([Instant::now() + pause]).min();
                tokio::select! {
                    () = sleep_until(until.unwrap_or_else(Instant::now)) => {}
                    () = came.notified() => {}
                }
            }
        }
    }

    /// Everything that waits now, the oldest first. `None` closes the desk: nobody can come between the look and the closing.
    fn take(&mut self, mut waiting: Vec<Ticket>) -> Option<(Vec<Ticket>, Arc<Notify>)> {
        let mut open = self.desks.lock();
        let queue = open.get_mut(&self.key)?;
        waiting.append(&mut queue.tickets);
        waiting.retain(|ticket| !ticket.is_abandoned());
        if waiting.is_empty() {
            open.remove(&self.key);
            self.closed = true;
            return None;
        }
        Some((waiting, Arc::clone(&queue.came)))
    }
}

/// How long to wait before the next round, after so many in a row that came to nothing.
fn length(pause: Pause, troubles: u32) -> Duration {
    match pause {
        Pause::None => Duration::ZERO,
        Pause::BeforeAnotherLook => PAUSE,
        // A lost race is read again at once; one that is lost again and again may be no race.
        Pause::AfterConflict if troubles < 4 => Duration::ZERO,
        Pause::AfterConflict | Pause::AfterTrouble => (PAUSE * 2_u32.pow(troubles.min(5))).min(LONGEST_PAUSE),
    }
}

impl From<Undecided> for Decided {
    fn from(why: Undecided) -> Self {
        Self {
            ruling: Ruling::Undecided(why),
            claim: None,
            ordinal: None,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::memory::MemoryStore;
    use crate::domain::key::Subject;
    use crate::domain::pursuit::Window;
    use crate::telemetry::metrics::Metrics;

    /// Between the closing of a desk and its end, the next request may open another one under the same key.
    #[test]
    fn a_desk_that_closed_takes_no_later_one_with_it() {
        let store = Arc::new(MemoryStore::new());
        let observer = Observer::new(Arc::clone(&store), Window::default(), Arc::new(Metrics::new()));
        let desks = Arc::new(Desks::new(store, Arc::new(observer)));
        let key = Key {
            policy: "p".into(),
            namespace: "shop".into(),
            subject: Subject::Config("cfg".into()),
        };
        let opened = || {
            desks.lock().insert(key.clone(), Queue::default());
            OpenDesk {
                desks: Arc::clone(&desks),
                key: key.clone(),
                closed: false,
            }
        };
        let mut first = opened();
        assert!(first.take(Vec::new()).is_none() && desks.is_idle());
        let second = opened();
        drop(first);
        assert!(!desks.is_idle());
        // One that ends without closing, by a panic, takes its queue with it.
        drop(second);
        assert!(desks.is_idle());
    }
}
