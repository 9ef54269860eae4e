//! Owners that wait for a key: whose deployers were refused because another one was in the way.
//!
//! The guard wakes them when the key becomes free. A controller that was refused gives up after a while, and the end of the
//! holder wakes nothing.

use std::cmp::Reverse;

use crate::api::claim::WaitingOwner;

/// A claim's status keeps this many owners, newest ordinals first: older ones are the least likely to be let in.
pub const MAX_WAITING: usize = 16;

/// Owners that are remembered as served until that is written. One is admitted at a time, so there are few.
const MAX_SERVED: usize = 64;

/// What became of owners, which their claim's status does not show yet. No owner is in both lists: the last word counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnerNews {
    waiting: Vec<WaitingOwner>,
    /// Uids, the last one first.
    served: Vec<String>,
}

impl OwnerNews {
    /// A deployer of this owner was refused because another one is in the way.
    pub fn waits(&mut self, owner: WaitingOwner) {
        self.served.retain(|uid| *uid != owner.uid);
        put(&mut self.waiting, owner);
    }

    /// A deployer of the owner with this uid was admitted.
    pub fn served(&mut self, uid: &str) {
        self.waiting.retain(|owner| owner.uid != uid);
        self.served.retain(|served| served != uid);
        self.served.insert(0, uid.to_owned());
        self.served.truncate(MAX_SERVED);
    }

    /// Takes back what could not be written: it is older than what is here.
    pub fn take_back(&mut self, older: Self) {
        let newer = std::mem::replace(self, older);
        for owner in newer.waiting {
            self.waits(owner);
        }
        for uid in newer.served.into_iter().rev() {
            self.served(&uid);
        }
    }

    /// How many owners wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Whether there is nothing to write.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.served.is_empty()
    }

    /// Changes the list of a claim's status accordingly.
    pub fn apply(&self, waiting: &mut Vec<WaitingOwner>) {
        if self.is_empty() {
            return;
        }
        waiting.retain(|owner| !self.served.contains(&owner.uid));
        for owner in &self.waiting {
            put(waiting, owner.clone());
        }
    }
}

/// One entry for each owner, newest ordinals first, those without one last. What is known of an owner stays known: not every
/// refusal reads its ordinal.
fn put(waiting: &mut Vec<WaitingOwner>, owner: WaitingOwner) {
    match waiting.iter_mut().find(|known| known.uid == owner.uid) {
        Some(known) => {
            let ordinal = owner.ordinal.or(known.ordinal);
            let unknown = std::mem::take(&mut known.unknown);
            *known = WaitingOwner { ordinal, ..owner };
            known.unknown.extend(unknown);
        }
        None => waiting.push(owner),
    }
    waiting.sort_by_key(|owner| Reverse(owner.ordinal));
    waiting.truncate(MAX_WAITING);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(uid: &str, ordinal: Option<i64>) -> WaitingOwner {
        WaitingOwner {
            name: format!("rc-{uid}"),
            uid: uid.to_owned(),
            kind: "ReplicationController".to_owned(),
            api_version: "v1".to_owned(),
            ordinal,
            ..WaitingOwner::default()
        }
    }

    /// What comes in: `w` waits with that ordinal, `s` is served.
    fn news(steps: &[(char, &str, Option<i64>)]) -> OwnerNews {
        let mut news = OwnerNews::default();
        for (step, uid, ordinal) in steps {
            match step {
                'w' => news.waits(owner(uid, *ordinal)),
                _ => news.served(uid),
            }
        }
        news
    }

    fn uids(waiting: &[WaitingOwner]) -> Vec<&str> {
        waiting.iter().map(|owner| owner.uid.as_str()).collect()
    }

    #[test]
    fn the_last_word_on_an_owner_counts_and_the_newest_come_first() {
        let before = || vec![owner("b", Some(2)), owner("x", None)];
        for (steps, expected) in [
            (&[][..], &["b", "x"][..]),
            (&[('w', "c", Some(3))], &["c", "b", "x"]),
            (&[('w', "a", Some(1))], &["b", "a", "x"]),
            (&[('w', "y", None)], &["b", "x", "y"]),
            (&[('w', "b", Some(2)), ('w', "b", Some(2))], &["b", "x"]),
            (&[('s', "b", None)], &["x"]),
            (&[('s', "z", None)], &["b", "x"]),
            (&[('w', "c", Some(3)), ('s', "c", None)], &["b", "x"]),
            (&[('s', "b", None), ('w', "b", Some(2))], &["b", "x"]),
            (&[('s', "b", None), ('s', "x", None)], &[]),
        ] {
            let mut waiting = before();
            news(steps).apply(&mut waiting);
            assert_eq!(uids(&waiting), expected, "{steps:?}");
        }
    }

    #[test]
    fn what_could_not_be_written_is_older_than_what_came_since() {
        for (older, newer, expected) in [
            (&[('w', "a", Some(1))][..], &[('w', "b", Some(2))][..], &["b", "a"][..]),
            (&[('w', "a", Some(1))], &[('s', "a", None)], &[]),
            (&[('s', "a", None)], &[('w', "a", Some(1))], &["a"]),
            (&[('s', "k", None)], &[], &[]),
            (&[('w', "k", Some(9))], &[], &["k"]),
        ] {
            let mut all = news(newer);
            all.take_back(news(older));
            let mut waiting = vec![owner("k", Some(9))];
            all.apply(&mut waiting);
            waiting.retain(|owner| expected.contains(&"k") || owner.uid != "k");
            assert_eq!(uids(&waiting), expected, "{older:?}, then {newer:?}");
        }
    }

    #[test]
    fn an_ordinal_once_known_stays_and_so_do_fields_of_newer_versions() {
        let mut known = owner("a", Some(7));
        known.unknown.insert("newer".into(), true.into());
        let mut waiting = vec![known.clone()];
        news(&[('w', "a", None)]).apply(&mut waiting);
        assert_eq!(waiting, [known]);
    }

    #[test]
    fn of_many_the_newest_are_kept() {
        let mut all = OwnerNews::default();
        for ordinal in 0..40 {
            all.waits(owner(&ordinal.to_string(), Some(ordinal)));
        }
        let mut waiting = vec![
            owner("newest", Some(100)),
            owner("oldest", Some(-1)),
            owner("none", None),
        ];
        all.apply(&mut waiting);
        assert_eq!(waiting.len(), MAX_WAITING);
        assert_eq!(uids(&waiting)[..3], ["newest", "39", "38"]);
        for uid in 0..1000 {
            all.served(&uid.to_string());
        }
        assert!(all.served.len() <= MAX_SERVED && all.waiting.is_empty());
    }
}
