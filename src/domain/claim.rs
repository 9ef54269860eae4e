//! The transitions of a claim: pure functions from one `spec` and what was seen to the next.
//!
//! Invariant that all of them keep: every pending entry has the holder's name, because only a pod of that very name is
//! admitted while one is on its way (the store lets only one of them in at a time).

mod guarded;

pub use guarded::{MAX_CONDEMNED, MAX_SPARED};

use crate::api::claim::{ClaimEntry, DeployerClaimSpec, GenerationOutcome, NewestGeneration, Outcome, PROTOCOL};

use jiff::Timestamp;

use super::sighting::{Activity, Sighting};

/// A claim remembers the outcomes of this many generations (G2).
pub const MAX_OUTCOMES: usize = 32;
/// A claim remembers this many admitted pods that are not in the store yet.
pub const MAX_PENDING: usize = 32;
/// A claim remembers the newest ordinal of this many uids of its config.
pub const MAX_NEWEST: usize = 4;

/// Where the pod of an entry stands, judged by a live GET of its own name alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Standing {
    /// In the store, and neither Succeeded nor Failed.
    Active,
    /// Admitted, never seen in the store, and not given up: it may still arrive.
    OnItsWay,
    /// It was in the store and has finished or is gone. What nobody saw is `Unknown`.
    Ended(Outcome),
}

impl DeployerClaimSpec {
    /// Every pod that may be active under this claim: the pending ones, and the holder.
    pub fn entries(&self) -> impl Iterator<Item = &ClaimEntry> {
        let holder = self.holder.iter().filter(|holder| !self.is_pending(&holder.uid));
        holder.chain(&self.pending)
    }

    /// The names of all pods that a decision has to read.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries()
            .map(|entry| entry.name.as_str())
            .chain(self.condemned.iter().chain(&self.spared).map(|pod| pod.name.as_str()))
    }

    /// Admitted, and not yet seen in the store.
    #[must_use]
    pub fn is_pending(&self, uid: &str) -> bool {
        self.pending.iter().any(|entry| entry.uid == uid)
    }

    /// Marked to be deleted, as a duplicate or an orphan.
    #[must_use]
    pub fn is_condemned(&self, uid: &str) -> bool {
        self.condemned.iter().any(|pod| pod.uid == uid)
    }

    /// Judges an entry by what a GET of its name found. The GET must have begun after this claim was read.
    #[must_use]
    pub fn standing(&self, entry: &ClaimEntry, found: &Sighting) -> Standing {
        match found.of(&entry.uid) {
            Some(Activity::Active) => Standing::Active,
            Some(Activity::Succeeded) => Standing::Ended(Outcome::Completed),
            Some(Activity::Failed) => Standing::Ended(Outcome::Failed),
            None if self.is_pending(&entry.uid) => Standing::OnItsWay,
            None => Standing::Ended(Outcome::Unknown),
        }
    }

    /// The newest ordinal of a config with this uid that was seen in the store.
    #[must_use]
    pub fn newest(&self, config_uid: Option<&str>) -> Option<&NewestGeneration> {
        self.newest
            .iter()
            .find(|newest| newest.config_uid.as_deref() == config_uid)
    }

    /// How the last run of a generation ended, as far as the claim remembers.
    #[must_use]
    pub fn outcome(&self, config_uid: Option<&str>, generation: &str) -> Option<Outcome> {
        self.outcomes
            .iter()
            .find(|record| record.config_uid.as_deref() == config_uid && record.generation == generation)
            .map(|record| record.outcome)
    }

    /// Gives the claim to a pod, which becomes holder and pending. `ended` are the entries that ended, with their outcomes.
    #[must_use]
    pub fn admitted(&self, pod: ClaimEntry, ended: &[(ClaimEntry, Outcome)], now: Timestamp) -> Self {
        let mut next = self.clone();
        next.protocol = PROTOCOL;
        for (entry, outcome) in ended {
            next.end(entry, *outcome, now);
        }
        next.pending.push(pod.clone());
        next.holder = Some(pod);
        next
    }

    /// A pending pod was found in the store, by a GET that began after this claim was read. `None` if nothing changes.
    ///
    /// The pod becomes the holder if it is not. A holder that was seen before is gone then: the two have one name.
    #[must_use]
    pub fn confirmed(&self, uid: &str, activity: Activity, now: Timestamp) -> Option<Self> {
        if self.is_condemned(uid) {
            return None;
        }
        let entry = self.pending.iter().find(|entry| entry.uid == uid)?.clone();
        let replaced = self
            .holder
            .clone()
            .filter(|holder| holder.uid != uid && !self.is_pending(&holder.uid));
        if replaced.as_ref().is_some_and(|holder| holder.name != entry.name) {
            return None;
        }
        let mut next = self.clone();
        if let Some(holder) = replaced {
            next.end(&holder, Outcome::Unknown, now);
        }
        match activity {
            Activity::Active => {
                next.pending.retain(|pending| pending.uid != uid);
                next.raise(&entry);
                next.holder = Some(entry);
            }
            Activity::Succeeded => next.end(&entry, Outcome::Completed, now),
            Activity::Failed => next.end(&entry, Outcome::Failed, now),
        }
        Some(next)
    }

    /// A pending pod never arrived. `None` if nothing changes. It leaves no outcome: it was never run.
    #[must_use]
    pub fn dropped(&self, uid: &str) -> Option<Self> {
        self.is_pending(uid).then(|| {
            let mut next = self.clone();
            next.pending.retain(|entry| entry.uid != uid);
            next.holder.take_if(|holder| holder.uid == uid);
            next
        })
    }

    /// An entry that was in the store has ended.
    fn end(&mut self, entry: &ClaimEntry, outcome: Outcome, now: Timestamp) {
        self.pending.retain(|pending| pending.uid != entry.uid);
        self.holder.take_if(|holder| holder.uid == entry.uid);
        self.raise(entry);
        self.remember(entry, outcome, now);
    }

    /// The pod was seen in the store: its ordinal counts from now on (G3).
    fn raise(&mut self, entry: &ClaimEntry) {
        let Some(ordinal) = entry.ordinal else { return };
        let known = self
            .newest
            .iter()
            .position(|newest| newest.config_uid == entry.config_uid);
        let mut newest = known.map_or_else(NewestGeneration::default, |at| self.newest.remove(at));
        if known.is_none() || newest.ordinal < ordinal {
            newest.config_uid.clone_from(&entry.config_uid);
            newest.ordinal = ordinal;
            newest.generation.clone_from(&entry.generation);
        }
        self.newest.push(newest);
        let excess = self.newest.len().saturating_sub(MAX_NEWEST);
        self.newest.drain(..excess);
    }

    /// One record for each generation. Completed stays, whatever a later run (`reruns: Always`) came to.
    fn remember(&mut self, entry: &ClaimEntry, outcome: Outcome, now: Timestamp) {
        let Some(generation) = entry.generation.clone() else {
            return;
        };
        let known = self
            .outcomes
            .iter()
            .position(|record| record.generation == generation && record.config_uid == entry.config_uid);
        let mut record = known.map_or_else(GenerationOutcome::default, |at| self.outcomes.remove(at));
        if known.is_none() || record.outcome != Outcome::Completed {
            record = GenerationOutcome {
                generation,
                config_uid: entry.config_uid.clone(),
                ordinal: entry.ordinal,
                outcome,
                pod_name: entry.name.clone(),
                pod_uid: entry.uid.clone(),
                observed_at: now,
                unknown: record.unknown,
            };
        }
        self.outcomes.push(record);
        let excess = self.outcomes.len().saturating_sub(MAX_OUTCOMES);
        self.outcomes.drain(..excess);
    }
}

#[cfg(test)]
mod tests;
