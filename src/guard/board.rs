//! What the rooms of the guard tell each other about each policy: since when it is in force, what was counted under it, and
//! whether stock was taken.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::api::policy::PolicyCounts;

/// Whether this process leads, to be asked right before each write that needs a leader.
pub trait Leads: Send + Sync {
    /// True only while the Lease, as this process last read it live, names it, and a safe part of the lease's duration is left,
    /// on this process's own monotonic clock from before the renewal was sent that this read found.
    fn leads(&self) -> bool;
}

/// One version of a policy.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PolicyVersion {
    /// `metadata.name`.
    pub name: String,
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.generation`.
    pub generation: i64,
}

/// What is known of one version of a policy.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Notice {
    /// Since when the entry of this very version has stood in the stored webhook configuration without a break, exactly as it is to
    /// be, as far as this guard can be sure. `None`: it does not stand there, or nobody looked yet.
    pub in_force_since: Option<Instant>,
    /// The stored entry says that stock was taken, and this guard knows no reason to doubt that.
    pub stocked: bool,
    /// Counts of the last round.
    pub counts: Option<PolicyCounts>,
    /// This guard has taken stock, and the stored entry is to say so; see [`Notice::is_stock_taken`].
    pub stock_taken: Option<StockTaken>,
}

/// Every deployer that came in before the policy was in force had a claim or was reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StockTaken {
    /// The [`Notice::in_force_since`] under which stock was taken. It says nothing of another time in force.
    pub in_force_since: Instant,
    /// When it was over.
    pub at: Timestamp,
}

impl Notice {
    /// Whether this guard has taken stock while the entry was in force as it still is, without a break.
    #[must_use]
    pub fn is_stock_taken(&self) -> bool {
        self.stock_taken
            .is_some_and(|taken| self.in_force_since == Some(taken.in_force_since))
    }

    /// The entry did not stand as it is to be: whoever came in meanwhile was not seen.
    pub(super) fn broken(&mut self) {
        (self.in_force_since, self.stocked, self.stock_taken) = (None, false, None);
    }
}

/// The board on which the rooms of one guard leave what others need. Forgets versions that are gone.
#[derive(Debug)]
pub struct Board {
    notices: Mutex<HashMap<PolicyVersion, Notice>>,
    changed: watch::Sender<()>,
    stock_taken: Notify,
}

impl Default for Board {
    fn default() -> Self {
        Self {
            notices: Mutex::default(),
            changed: watch::Sender::new(()),
            stock_taken: Notify::new(),
        }
    }
}

impl Board {
    /// What is known of a version; nothing, if it was never heard of.
    #[must_use]
    pub fn read(&self, version: &PolicyVersion) -> Notice {
        self.lock().get(version).cloned().unwrap_or_default()
    }

    /// Changes what is known of a version, and tells the others if that made a difference.
    pub fn note(&self, version: &PolicyVersion, change: impl FnOnce(&mut Notice)) {
        let mut notices = self.lock();
        let notice = notices.entry(version.clone()).or_default();
        let before = notice.clone();
        change(notice);
        let differs = *notice != before;
        drop(notices);
        if differs {
            self.changed.send_replace(());
        }
    }

    /// Stock was taken under a version while it was in force since then. False if it is not in force since then any more: that
    /// stock-taking is worth nothing.
    pub(super) fn note_stock(&self, version: &PolicyVersion, in_force_since: Instant) -> bool {
        let mut taken = false;
        self.note(version, |notice| {
            taken = notice.in_force_since == Some(in_force_since);
            if taken {
                let at = Timestamp::now();
                notice.stock_taken = Some(StockTaken { in_force_since, at });
            }
        });
        if taken {
            self.stock_taken.notify_one();
        }
        taken
    }

    /// Told when stock was taken under a version: its entry is to say so.
    pub(super) fn stock_taken(&self) -> &Notify {
        &self.stock_taken
    }

    /// Forgets every version that is not among these.
    pub fn keep(&self, versions: &[PolicyVersion]) {
        self.lock().retain(|version, _| versions.contains(version));
    }

    /// Tells of each change.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<PolicyVersion, Notice>> {
        self.notices.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(generation: i64) -> PolicyVersion {
        PolicyVersion {
            name: "p".into(),
            uid: "u".into(),
            generation,
        }
    }

    #[test]
    fn others_are_told_of_what_makes_a_difference_alone() {
        let board = Board::default();
        let mut told = board.subscribe();
        board.note(&version(1), |notice| notice.stocked = false);
        assert!(!told.has_changed().unwrap());
        board.note(&version(1), |notice| notice.counts = Some(PolicyCounts::default()));
        assert!(told.has_changed().unwrap());
        told.mark_unchanged();
        board.note(&version(1), |notice| notice.counts = Some(PolicyCounts::default()));
        assert!(!told.has_changed().unwrap());
    }

    #[tokio::test(start_paused = true)]
    async fn stock_is_taken_of_one_time_in_force_alone() {
        let board = Board::default();
        let first = Instant::now();
        assert!(!board.note_stock(&version(1), first), "it is not in force");
        board.note(&version(1), |notice| notice.in_force_since = Some(first));
        assert!(!board.read(&version(1)).is_stock_taken());
        assert!(board.note_stock(&version(1), first));
        assert!(board.read(&version(1)).is_stock_taken());
        tokio::time::advance(std::time::Duration::from_secs(1)).await;
        let again = Instant::now();
        board.note(&version(1), |notice| notice.in_force_since = Some(again));
        assert!(!board.read(&version(1)).is_stock_taken(), "of the time before");
        assert!(!board.note_stock(&version(1), first));
    }

    #[test]
    fn versions_that_are_gone_are_forgotten() {
        let board = Board::default();
        for generation in [1, 2] {
            board.note(&version(generation), |notice| {
                notice.stocked = true;
            });
        }
        board.keep(&[version(2)]);
        assert_eq!(board.read(&version(1)), Notice::default());
        assert_ne!(board.read(&version(2)), Notice::default());
    }
}
