//! What a round reads beside the claim, before it knows what it needs: a guess from the round before. It saves a trip, and
//! decides nothing.

use std::num::NonZeroUsize;
use std::sync::{Mutex, PoisonError};

use lru::LruCache;

use crate::api::claim::DeployerClaimSpec;
use crate::domain::key::Key;

/// Keys whose guess is kept; those that were not asked for longest go first.
const MAX_KEYS: NonZeroUsize = NonZeroUsize::new(4096).unwrap();
/// Pods that are read on a guess.
const MAX_NAMES: usize = 4;

/// What the next round on a key will probably need.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Guess {
    /// The pods that the claim named.
    pub(super) names: Vec<String>,
    /// One of them stood in the way.
    pub(super) held: bool,
}

impl Guess {
    /// After a claim was read or written.
    pub(super) fn after(claim: Option<&DeployerClaimSpec>, held: bool) -> Self {
        let names = claim.into_iter().flat_map(DeployerClaimSpec::names);
        Self {
            names: names.take(MAX_NAMES).map(str::to_owned).collect(),
            held,
        }
    }

    /// Whether the first of so many requests will probably get beyond the pods that the claim names. One alone is worth a read in vain;
    /// of many that meet, all are probably refused.
    pub(super) fn is_worth_more_than_names(&self, requests: usize) -> bool {
        requests == 1 || !self.held
    }
}

/// The guesses of one replica.
#[derive(Debug)]
pub(super) struct Guesses {
    of: Mutex<LruCache<Key, Guess>>,
}

impl Default for Guesses {
    fn default() -> Self {
        Self {
            of: Mutex::new(LruCache::new(MAX_KEYS)),
        }
    }
}

impl Guesses {
    pub(super) fn of(&self, key: &Key) -> Guess {
        let mut guesses = self.of.lock().unwrap_or_else(PoisonError::into_inner);
        guesses.get(key).cloned().unwrap_or_default()
    }

    pub(super) fn keep(&self, key: &Key, guess: Guess) {
        let mut guesses = self.of.lock().unwrap_or_else(PoisonError::into_inner);
        guesses.put(key.clone(), guess);
    }
}
