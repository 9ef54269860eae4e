//! What was heard of the policies: by a watch, which goes on, and by lists and reads, which find what it missed.
//!
//! An answer may be older than what the watch says before it arrives. So a list, or a read, counts for the names of which the watch has
//! said nothing since it was asked for; of the others the watch knows more, or will say more. Versions are not compared: they begin
//! anew where an etcd is restored.

use std::collections::{BTreeMap, BTreeSet};

use super::{PolicyVersion, version_of};
use crate::api::DeployerPolicy;
use crate::api::policy::DeployerPolicyStatus;

/// A policy as it is stored.
pub type Stored = Result<DeployerPolicy, Box<Unreadable>>;

/// A policy that cannot be read, as one that a newer version wrote.
#[derive(Clone, Debug)]
pub struct Unreadable {
    /// Which version of it.
    pub version: PolicyVersion,
    /// Its status. `None`: that cannot be read either.
    pub status: Option<DeployerPolicyStatus>,
    /// What cannot be read.
    pub why: String,
}

/// What was heard of the policies, by name.
#[derive(Debug, Default)]
pub(super) struct Heard {
    policies: BTreeMap<String, Stored>,
    /// How often the watch has spoken.
    spoken: u64,
    /// When it last spoke of a name, in that count, as far as an answer may still come that was asked for before that.
    of: BTreeMap<String, u64>,
    /// When it last spoke of all.
    of_all: u64,
}

/// When something was asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked(u64);

impl Heard {
    /// All policies, by name.
    pub(super) fn policies(&self) -> &BTreeMap<String, Stored> {
        &self.policies
    }

    /// To be called before a list, or a read, is sent. One is asked for after the other.
    pub(super) fn ask(&self) -> Asked {
        Asked(self.spoken)
    }

    /// The watch shows all policies that there are. Gives whether that is another version of any than was known, as the others do.
    pub(super) fn watch_began(&mut self, all: BTreeMap<String, Stored>) -> bool {
        self.spoken += 1;
        self.of_all = self.spoken;
        self.of.clear();
        let versions = |policies: &BTreeMap<String, Stored>| policies.values().map(version).collect::<Vec<_>>();
        let changed = versions(&self.policies) != versions(&all);
        self.policies = all;
        changed
    }

    /// The watch shows a policy, or that there is none of this name any more.
    pub(super) fn watch_says(&mut self, name: &str, policy: Option<Stored>) -> bool {
        self.spoken += 1;
        self.of.insert(name.to_owned(), self.spoken);
        self.put(name, policy)
    }

    /// A list shows all policies that there were.
    pub(super) fn listed(&mut self, asked: Asked, mut all: BTreeMap<String, Stored>) -> bool {
        let names: BTreeSet<String> = self.policies.keys().chain(all.keys()).cloned().collect();
        let mut changed = false;
        for name in names.iter().filter(|name| self.counts(asked, name)).collect::<Vec<_>>() {
            changed |= self.put(name, all.remove(name));
        }
        // Whatever is asked for from now on was asked for later.
        self.of.clear();
        changed
    }

    /// A read shows a policy, or that there is none of this name. `None`: the watch has spoken of it meanwhile; ask again.
    pub(super) fn read(&mut self, asked: Asked, name: &str, policy: Option<Stored>) -> Option<bool> {
        self.counts(asked, name).then(|| self.put(name, policy))
    }

    fn counts(&self, Asked(asked): Asked, name: &str) -> bool {
        self.of_all <= asked && self.of.get(name).is_none_or(|spoken| *spoken <= asked)
    }

    fn put(&mut self, name: &str, policy: Option<Stored>) -> bool {
        let now = policy.as_ref().map(version);
        let before = match policy {
            Some(policy) => self.policies.insert(name.to_owned(), policy),
            None => self.policies.remove(name),
        };
        before.as_ref().map(version) != now
    }
}

/// Its version, and whether it can be read.
fn version(policy: &Stored) -> (PolicyVersion, bool) {
    match policy {
        Ok(policy) => (version_of(policy), true),
        Err(unreadable) => (unreadable.version.clone(), false),
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    const NAMES: [&str; 2] = ["a", "b"];

    /// The store as it is after each write.
    type World = BTreeMap<&'static str, i64>;

    fn policy(name: &str, generation: i64) -> Stored {
        let policy = json!({
            "apiVersion": "deployer-guard.io/v1alpha1",
            "kind": "DeployerPolicy",
            "metadata": { "name": name, "uid": "u", "generation": generation },
            "spec": { "match": { "objectSelector": { "matchLabels": { "role": "x" } } }, "config": { "label": "app" } },
        });
        super::super::readable(serde_json::from_value(policy).unwrap())
    }

    fn all(world: &World) -> BTreeMap<String, Stored> {
        let all = world.iter();
        all.map(|(name, generation)| ((*name).to_owned(), policy(name, *generation)))
            .collect()
    }

    fn known(heard: &Heard) -> BTreeMap<&str, i64> {
        let known = heard.policies().iter();
        known
            .map(|(name, policy)| (name.as_str(), version(policy).0.generation))
            .collect()
    }

    #[test]
    fn a_list_from_before_a_policy_was_made_does_not_take_it_away() {
        let mut heard = Heard::default();
        heard.watch_began(BTreeMap::new());
        let asked = heard.ask();
        assert!(heard.watch_says("a", Some(policy("a", 1))));
        assert!(!heard.listed(asked, BTreeMap::new()));
        assert_eq!(known(&heard), [("a", 1)].into());
        // One that was asked for later does.
        let asked = heard.ask();
        assert!(heard.listed(asked, BTreeMap::new()));
        assert_eq!(known(&heard), BTreeMap::new());
    }

    #[test]
    fn a_list_from_before_a_policy_was_removed_or_changed_brings_nothing_back() {
        let mut heard = Heard::default();
        heard.watch_began(all(&[("a", 1), ("b", 1)].into()));
        let asked = heard.ask();
        heard.watch_says("a", None);
        heard.watch_says("b", Some(policy("b", 2)));
        assert!(!heard.listed(asked, all(&[("a", 1), ("b", 1)].into())));
        assert_eq!(known(&heard), [("b", 2)].into());
    }

    #[test]
    fn a_list_counts_for_those_of_which_the_watch_said_nothing() {
        let mut heard = Heard::default();
        heard.watch_began(all(&[("a", 1)].into()));
        let asked = heard.ask();
        heard.watch_says("a", Some(policy("a", 2)));
        assert!(heard.listed(asked, all(&[("a", 1), ("b", 1)].into())));
        assert_eq!(known(&heard), [("a", 2), ("b", 1)].into());
    }

    #[test]
    fn a_read_is_asked_for_again_if_the_watch_spoke_of_it_meanwhile() {
        let mut heard = Heard::default();
        let asked = heard.ask();
        heard.watch_says("a", Some(policy("a", 2)));
        assert_eq!(heard.read(asked, "a", Some(policy("a", 1))), None);
        assert_eq!(heard.read(asked, "b", Some(policy("b", 1))), Some(true));
        heard.watch_began(BTreeMap::new());
        assert_eq!(heard.read(asked, "b", Some(policy("b", 1))), None);
        let asked = heard.ask();
        assert_eq!(heard.read(asked, "a", Some(policy("a", 2))), Some(true));
        assert_eq!(heard.read(asked, "a", Some(policy("a", 2))), Some(false));
        assert_eq!(known(&heard), [("a", 2)].into());
    }

    #[derive(Clone, Debug)]
    enum Step {
        /// A policy is made or changed, or removed.
        Write(usize, bool),
        /// The watch says the next thing that it has not said.
        Watch,
        /// The watch begins anew, with some of what it has not said.
        Begin(usize),
        /// A list is asked for, and answered at once; the answer is under way.
        Ask,
        /// It arrives.
        Arrive,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => (0..NAMES.len(), any::<bool>()).prop_map(|(name, made)| Step::Write(name, made)),
            3 => Just(Step::Watch),
            1 => any::<usize>().prop_map(Step::Begin),
            2 => Just(Step::Ask),
            2 => Just(Step::Arrive),
        ]
    }

    proptest! {
        /// However late the watch and the lists are: when both have said all, what is known is what is stored. And a list alone, of
        /// which nothing was heard meanwhile, is enough.
        #[test]
        fn what_is_known_in_the_end_is_what_is_stored(steps in vec(step(), 0..40), dead in any::<bool>()) {
            let mut heard = Heard::default();
            let (mut generation, mut said, mut list) = (0, 0, None);
            // All worlds, and which name was written last before each.
            let mut worlds = vec![(World::new(), "")];
            for step in steps {
                match step {
                    Step::Write(name, made) => {
                        let (mut world, name) = (worlds.last().unwrap().0.clone(), NAMES[name]);
                        generation += 1;
                        if made {
                            world.insert(name, generation);
                        } else if world.remove(name).is_none() {
                            continue;
                        }
                        worlds.push((world, name));
                    }
                    Step::Watch => if said + 1 < worlds.len() {
                        said += 1;
                        let (world, name) = &worlds[said];
                        heard.watch_says(name, world.get(name).map(|generation| policy(name, *generation)));
                    },
                    Step::Begin(more) => {
                        said += more % (worlds.len() - said);
                        heard.watch_began(all(&worlds[said].0));
                    }
                    Step::Ask => list = Some((heard.ask(), worlds.last().unwrap().0.clone())),
                    Step::Arrive => if let Some((asked, world)) = list.take() {
                        heard.listed(asked, all(&world));
                    },
                }
            }
            if let Some((asked, world)) = list {
                heard.listed(asked, all(&world));
            }
            if dead {
                let asked = heard.ask();
                heard.listed(asked, all(&worlds.last().unwrap().0));
            } else {
                for (world, name) in &worlds[said + 1..] {
                    heard.watch_says(name, world.get(name).map(|generation| policy(name, *generation)));
                }
            }
            prop_assert_eq!(known(&heard), worlds.last().unwrap().0.clone());
        }
    }
}
