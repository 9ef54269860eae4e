//! What the rooms of the guard tell each other about each policy: since when it is in force, what was counted under it, and
//! whether stock was taken.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use tokio::sync::watch;
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
    /// Since when, without a break, this guard has found the entry of this very version in the stored webhook configuration.
    /// `None`: it is not there, or nobody looked yet.
    pub in_force_since: Option<Instant>,
    /// Counts of the last round.
    pub counts: Option<PolicyCounts>,
    /// When every deployer that came in before the policy was in force had a claim or was reported.
    pub stock_taken: Option<Timestamp>,
}

/// The board on which the rooms of one guard leave what others need. Forgets versions that are gone.
#[derive(Debug)]
pub struct Board {
    notices: Mutex<HashMap<PolicyVersion, Notice>>,
    changed: watch::Sender<()>,
}

impl Default for Board {
    fn default() -> Self {
        Self {
            notices: Mutex::default(),
            changed: watch::Sender::new(()),
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
        board.note(&version(1), |notice| notice.stock_taken = None);
        assert!(!told.has_changed().unwrap());
        board.note(&version(1), |notice| notice.counts = Some(PolicyCounts::default()));
        assert!(told.has_changed().unwrap());
        told.mark_unchanged();
        board.note(&version(1), |notice| notice.counts = Some(PolicyCounts::default()));
        assert!(!told.has_changed().unwrap());
    }

    #[test]
    fn versions_that_are_gone_are_forgotten() {
        let board = Board::default();
        for generation in [1, 2] {
            board.note(&version(generation), |notice| {
                notice.stock_taken = Some(Timestamp::UNIX_EPOCH);
            });
        }
        board.keep(&[version(2)]);
        assert_eq!(board.read(&version(1)), Notice::default());
        assert_ne!(board.read(&version(2)), Notice::default());
    }
}
