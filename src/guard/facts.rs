//! What is remembered of pods, by uid: facts that never become untrue, however old the watch or list was that told them.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use super::spot::Spot;
use crate::api::claim::{DeployerClaimSpec, Outcome, WaitingOwner};
use crate::domain::leftovers::Memory;
use crate::domain::sighting::Activity;

/// A pod that is not active any more is remembered for this long after it was last heard of: longer than any examination of
/// its key is delayed, and than a late arrival takes.
const KEPT: Duration = Duration::from_hours(1);
/// Pods that are remembered. Beyond it those that are not active are forgotten, the oldest first.
const MAX_FACTS: usize = 50_000;

#[derive(Clone, Debug, Default)]
struct Fact {
    /// When it was learnt that it was in the store.
    stored: Option<Duration>,
    end: Option<Outcome>,
    /// When that was learnt first.
    ended: Option<Duration>,
    active_since: Option<Duration>,
    given_up: bool,
    /// Since when reads do not find it, although a watch shows it as active.
    missed: Option<Duration>,
    heard: Duration,
}

/// What is remembered of pods, and of owners that are to be woken. Times are on the guard's monotonic clock.
#[derive(Debug, Default)]
pub(super) struct Facts {
    pods: HashMap<Box<str>, Fact>,
    to_wake: HashMap<Spot, Vec<WaitingOwner>>,
}

impl Facts {
    fn fact(&mut self, uid: &str, now: Duration) -> &mut Fact {
        let fact = self.pods.entry(uid.into()).or_default();
        fact.heard = fact.heard.max(now);
        fact
    }

    /// The pod was seen in the store, like this.
    pub(super) fn stored(&mut self, uid: &str, activity: Activity, now: Duration) {
        let fact = self.fact(uid, now);
        fact.stored.get_or_insert(now);
        match activity {
            Activity::Active => {
                fact.active_since.get_or_insert(now);
            }
            Activity::Succeeded => {
                fact.ended.get_or_insert(now);
                fact.end = Some(Outcome::Completed);
            }
            Activity::Failed => {
                fact.ended.get_or_insert(now);
                let completed = fact.end.filter(|end| *end == Outcome::Completed);
                fact.end = completed.or(Some(Outcome::Failed));
            }
        }
    }

    /// The pod was in the store, and is no longer shown.
    pub(super) fn gone(&mut self, uid: &str, now: Duration) {
        self.fact(uid, now).stored.get_or_insert(now);
    }

    /// A claim was seen to change: pending entries that left it without a trace were given up by somebody.
    pub(super) fn claim_changed(&mut self, before: &[Box<str>], after: &DeployerClaimSpec, now: Duration) {
        for uid in before {
            let listed = after.entries().any(|entry| *entry.uid == **uid)
                || after.outcomes.iter().any(|record| *record.pod_uid == **uid);
            if !listed && self.pods.get(uid).is_none_or(|fact| fact.stored.is_none()) {
                self.fact(uid, now).given_up = true;
            }
        }
    }

    /// An owner was taken off the list of those who wait, and is to be woken.
    pub(super) fn unlisted(&mut self, spot: &Spot, owner: &WaitingOwner) {
        let owners = self.to_wake.entry(spot.clone()).or_default();
        if owners.iter().all(|other| other.uid != owner.uid) {
            owners.push(owner.clone());
        }
    }

    /// An owner was woken, or is gone.
    pub(super) fn woke(&mut self, spot: &Spot, owner: &WaitingOwner) {
        let Some(owners) = self.to_wake.get_mut(spot) else {
            return;
        };
        owners.retain(|other| other.uid != owner.uid);
        if owners.is_empty() {
            self.to_wake.remove(spot);
        }
    }

    /// Whether it is remembered how a pod ended.
    pub(super) fn knows_end(&self, uid: &str) -> bool {
        self.pods.get(uid).is_some_and(|fact| fact.end.is_some())
    }

    /// Takes note that a read did not find a pod that a watch shows as active; since when that is so.
    pub(super) fn missed_since(&mut self, uid: &str, now: Duration) -> Duration {
        *self.fact(uid, now).missed.get_or_insert(now)
    }

    /// What is remembered of these pods, and of owners at this spot.
    ///
    /// That a pod was in the store counts only if it was learnt before `begun`, which was before the claim was read: told while the
    /// pod's own GET was under way, it would make an older "not found" look like the pod's end. How a pod ended is true at any time; that it
    /// is active again is not, where its end was told meanwhile.
    #[must_use]
    pub(super) fn of<'a>(
        &self,
        spot: &Spot,
        pods: impl Iterator<Item = &'a str>,
        begun: Duration,
        unchanged_since: Option<Duration>,
    ) -> Memory {
        let mut memory = Memory {
            unchanged_since,
            to_wake: self.to_wake.get(spot).cloned().unwrap_or_default(),
            ..Memory::default()
        };
        for uid in pods {
            let Some(fact) = self.pods.get(uid) else { continue };
            if fact.stored.is_some_and(|learnt| learnt < begun) {
                memory.stored.insert(uid.to_owned());
            }
            if fact.ended.is_some_and(|learnt| learnt < begun) {
                memory.ended_before.insert(uid.to_owned());
            }
            if fact.given_up {
                memory.given_up.insert(uid.to_owned());
            }
            memory.ends.extend(fact.end.map(|end| (uid.to_owned(), end)));
            let since = fact.active_since.map(|since| (uid.to_owned(), since));
            memory.active_since.extend(since);
        }
        memory
    }

    /// Forgets what nobody needs any more. `active` are the pods that watches show as active.
    pub(super) fn sweep(&mut self, active: &HashSet<Box<str>>, now: Duration) {
        self.pods
            .retain(|uid, fact| active.contains(uid) || now.saturating_sub(fact.heard) < KEPT);
        let excess = self.pods.len().saturating_sub(MAX_FACTS);
        if excess > 0 {
            let mut idle: Vec<(Duration, Box<str>)> = self
                .pods
                .iter()
                .filter(|(uid, _)| !active.contains(*uid))
                .map(|(uid, fact)| (fact.heard, uid.clone()))
                .collect();
            idle.sort_unstable();
            for (_, uid) in idle.into_iter().take(excess) {
                self.pods.remove(&uid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::api::claim::{ClaimEntry, GenerationOutcome};

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn of(facts: &Facts, uid: &str) -> Memory {
        facts.of(&Spot::new("p", "shop", "c"), [uid].into_iter(), Duration::MAX, None)
    }

    #[test]
    fn an_end_is_remembered_whatever_is_heard_after_it() {
        let mut facts = Facts::default();
        facts.stored("u", Activity::Active, at(1));
        facts.stored("u", Activity::Succeeded, at(2));
        facts.stored("u", Activity::Active, at(3));
        facts.stored("u", Activity::Failed, at(4));
        facts.gone("u", at(5));
        let memory = of(&facts, "u");
        assert_eq!(memory.ends["u"], Outcome::Completed);
        assert_eq!(memory.active_since["u"], at(1));
        assert!(memory.stored.contains("u"));
        assert_eq!(of(&facts, "other"), Memory::default());
    }

    /// Else a GET that found nothing, a store, and its event make a pod that works look like one that is gone.
    #[test]
    fn that_a_pod_was_stored_counts_only_if_it_was_known_before_anything_was_read() {
        let (mut facts, spot) = (Facts::default(), Spot::new("p", "shop", "c"));
        facts.stored("u", Activity::Active, at(5));
        facts.stored("u", Activity::Succeeded, at(7));
        for (begun, known) in [(at(4), false), (at(5), false), (at(6), true)] {
            let memory = facts.of(&spot, ["u"].into_iter(), begun, None);
            assert_eq!(memory.stored.contains("u"), known, "{begun:?}");
            assert!(!memory.ended_before.contains("u"), "{begun:?}");
            assert_eq!(memory.ends["u"], Outcome::Completed);
        }
        let later = facts.of(&spot, ["u"].into_iter(), at(8), None);
        assert!(later.ended_before.contains("u"));
    }

    #[test]
    fn an_entry_that_left_a_claim_without_a_trace_was_given_up() {
        let entry = |uid: &str| ClaimEntry {
            uid: uid.into(),
            ..ClaimEntry::default()
        };
        let after = DeployerClaimSpec {
            holder: Some(entry("confirmed")),
            pending: vec![entry("pending")],
            outcomes: vec![GenerationOutcome {
                pod_uid: "ended".into(),
                ..GenerationOutcome::default()
            }],
            ..DeployerClaimSpec::default()
        };
        let mut facts = Facts::default();
        facts.stored("stored", Activity::Active, at(1));
        let before = ["confirmed", "pending", "ended", "stored", "dropped"].map(Box::from);
        facts.claim_changed(&before, &after, at(2));
        let spot = Spot::new("p", "shop", "c");
        let given_up = facts
            .of(&spot, before.iter().map(|uid| &**uid), Duration::MAX, None)
            .given_up;
        assert_eq!(given_up, BTreeSet::from(["dropped".to_owned()]));
    }

    #[test]
    fn an_owner_is_to_be_woken_until_it_is() {
        let (mut facts, spot) = (Facts::default(), Spot::new("p", "shop", "c"));
        let owner = WaitingOwner {
            uid: "rc".into(),
            ..WaitingOwner::default()
        };
        facts.unlisted(&spot, &owner);
        assert_eq!(
            facts.of(&spot, std::iter::empty(), Duration::MAX, None).to_wake,
            std::slice::from_ref(&owner)
        );
        facts.woke(&spot, &owner);
        assert_eq!(
            facts.of(&spot, std::iter::empty(), Duration::MAX, None),
            Memory::default()
        );
    }

    #[test]
    fn active_pods_are_never_forgotten_and_others_after_an_hour() {
        let mut facts = Facts::default();
        facts.stored("active", Activity::Active, at(0));
        facts.stored("ended", Activity::Failed, at(0));
        let active = HashSet::from([Box::from("active")]);
        facts.sweep(&active, at(3599));
        assert!(of(&facts, "ended").stored.contains("ended"));
        facts.sweep(&active, at(3601));
        assert_eq!(of(&facts, "ended"), Memory::default());
        assert!(of(&facts, "active").stored.contains("active"));
    }

    #[test]
    fn of_too_many_the_oldest_that_are_not_active_go() {
        let mut facts = Facts::default();
        let active: HashSet<Box<str>> = HashSet::from(["first".into()]);
        facts.stored("first", Activity::Active, at(0));
        for number in 0..MAX_FACTS {
            facts.gone(&number.to_string(), at(1 + number as u64 / 100));
        }
        facts.sweep(&active, at(600));
        assert!(of(&facts, "first").stored.contains("first"));
        assert_eq!(of(&facts, "0"), Memory::default());
        assert!(of(&facts, &(MAX_FACTS - 1).to_string()).stored.len() == 1);
    }
}
