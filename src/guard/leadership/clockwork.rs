//! When this process leads: a state machine over what was read of the Lease, with the time as an argument.
//!
//! # Why two never lead
//! - A leader counts its time from *before* the write that renewed the Lease was sent, and leads for [`Times::safe`] from then.
//! - A candidate takes the Lease of another only after it has seen it unchanged for a whole lease, which is longer, and by a
//!   write that is conditional on that very version. Whenever the leader's last write took effect, its time began before.
//! - Whoever finds itself named without such a write (the crate's acquire is unconditional, a Lease made anew, an edit by
//!   hand) waits until the time of everybody who might have led before is over, and then leads only if it is still named.
//!
//! No clock of another machine counts: `renewTime` is compared with itself alone. All of it is on the monotonic clock, which
//! stands still while a machine is suspended: one reason more why nobody relies on leadership for what must not go wrong.

use std::time::Duration;

use tokio::time::Instant;

use super::lease::Reading;

/// The times that leadership is made of; all come from the length of the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// How long an unchanged Lease keeps others out.
    pub lease: Duration,
    /// How long after the beginning of a renewal this process leads: two thirds of the lease.
    pub safe: Duration,
    /// From one renewal to the next: with three tries, the last of which ends within `safe`.
    pub renew: Duration,
    /// How long one try may take.
    pub attempt: Duration,
    /// The pause after a try that failed.
    pub pause: Duration,
    /// How often one that does not lead looks.
    pub look: Duration,
}

impl Times {
    /// The times of a lease of this length.
    #[must_use]
    pub fn of(lease: Duration) -> Self {
        Self {
            lease,
            safe: lease * 2 / 3,
            renew: lease / 5,
            attempt: lease * 2 / 15,
            pause: lease / 75,
            look: lease / 15,
        }
    }
}

/// What to do after a look at the Lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// There is none: make one.
    Create,
    /// It names us: renew it.
    Renew,
    /// It may be taken, on condition that it is still the version that was read.
    Take {
        /// What `leaseTransitions` becomes.
        term: i32,
        /// Nobody else can lead any more.
        alone: bool,
    },
    /// Somebody else has it.
    Wait,
}

/// One time in which the Lease names this process.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Tenure {
    uid: String,
    term: i32,
    /// From when on nobody else leads.
    alone_from: Instant,
    /// Until when this process leads unless it renews.
    until: Instant,
}

/// The state machine.
#[derive(Debug)]
pub struct Clockwork {
    identity: String,
    times: Times,
    tenure: Option<Tenure>,
    /// The Lease of another, and when it was first seen like this.
    unchanged: Option<(Reading, Instant)>,
    /// The uid and term of a conditional write of ours, whose answer may have been lost.
    tried: Option<(String, i32)>,
}

impl Clockwork {
    /// Nothing is known yet.
    #[must_use]
    pub fn new(identity: String, times: Times) -> Self {
        Self {
            identity,
            times,
            tenure: None,
            unchanged: None,
            tried: None,
        }
    }

    /// Whether this process leads.
    #[must_use]
    pub fn leads(&self, now: Instant) -> bool {
        let leads = |tenure: &Tenure| tenure.alone_from <= now && now < tenure.until;
        self.tenure.as_ref().is_some_and(leads)
    }

    /// The term that this process leads in, or waits to lead in.
    #[must_use]
    pub fn term(&self) -> Option<i32> {
        self.tenure.as_ref().map(|tenure| tenure.term)
    }

    /// What to do, after a live read between two moments. `None`: there is no Lease.
    pub fn look(&mut self, begun: Instant, ended: Instant, reading: Option<&Reading>) -> Next {
        let Some(reading) = reading else {
            (self.tenure, self.unchanged, self.tried) = (None, None, None);
            return Next::Create;
        };
        if reading.holder.as_deref() == Some(&self.identity) {
            self.unchanged = None;
            return match reading.term {
                Some(_) => Next::Renew,
                // The crate could renew it, and nobody could take it over from us.
                None => Next::Take { term: 1, alone: false },
            };
        }
        self.tenure = None;
        let term = reading.term.and_then(|term| term.checked_add(1)).unwrap_or(1);
        if reading.is_released() || self.is_over(begun, ended, reading) {
            return Next::Take { term, alone: true };
        }
        Next::Wait
    }

    /// Whether the Lease of another was seen unchanged for a whole lease, up to the beginning of this read.
    fn is_over(&mut self, begun: Instant, ended: Instant, reading: &Reading) -> bool {
        let since = match &self.unchanged {
            Some((before, since)) if before == reading => *since,
            _ => ended,
        };
        self.unchanged = Some((reading.clone(), since));
        let lease = reading.duration.unwrap_or_default().max(self.times.lease);
        begun.saturating_duration_since(since) >= lease
    }

    /// A conditional write is about to be sent, after which nobody else leads.
    pub fn trying(&mut self, uid: &str, term: i32) {
        self.tried = Some((uid.to_owned(), term));
    }

    /// That write was refused: somebody else was first.
    pub fn lost(&mut self) {
        self.tried = None;
    }

    /// The Lease was read live after a write that began at `begun`; the read ended at `ended`.
    pub fn confirm(&mut self, begun: Instant, ended: Instant, reading: Option<&Reading>) {
        let ours = reading.filter(|reading| reading.holder.as_deref() == Some(&self.identity));
        let Some((reading, term)) = ours.and_then(|reading| Some((reading, reading.term?))) else {
            self.tenure = None;
            return;
        };
        self.unchanged = None;
        let until = begun + self.times.safe;
        let same = |tenure: &&mut Tenure| tenure.uid == reading.uid && tenure.term == term;
        if let Some(tenure) = self.tenure.as_mut().filter(same) {
            tenure.until = tenure.until.max(until);
            return;
        }
        let won = self.tried.take() == Some((reading.uid.clone(), term));
        self.tenure = Some(Tenure {
            uid: reading.uid.clone(),
            term,
            alone_from: if won { begun } else { ended + self.times.safe },
            until,
        });
    }

    /// This process leads no more, until it is named again.
    pub fn resign(&mut self) {
        (self.tenure, self.tried) = (None, None);
    }
}

#[cfg(test)]
mod tests;
