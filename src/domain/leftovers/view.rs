//! The pods of one key, judged by the snapshot.

use std::cmp::Reverse;

use super::actions::is_deletable;
use super::finding::OrphanWhy;
use super::snapshot::{FoundPod, OwnerState, Place, Snapshot};
use super::terms::Terms;
use crate::api::claim::{ClaimEntry, DeployerClaimSpec, Outcome, PodReference};
use crate::api::policy::LeftoverAction;
use crate::domain::claim::Standing;

/// A pod of the snapshot, with the name under which it was found.
#[derive(Clone, Copy, Debug)]
pub(super) struct Named<'a> {
    pub(super) name: &'a str,
    pub(super) pod: &'a FoundPod,
}

/// A pod that one of the claim's lists names.
#[derive(Clone, Copy, Debug)]
pub(super) struct Listed<'a> {
    pub(super) reference: &'a PodReference,
    pub(super) found: Found<'a>,
}

/// What the GET of a listed pod's name says of that pod.
#[derive(Clone, Copy, Debug)]
pub(super) enum Found<'a> {
    /// The name was not read, which the caller should have done: nothing is concluded.
    Unknown,
    /// There is none, or another pod.
    Gone,
    /// It is there.
    There(&'a FoundPod),
}

/// The pods of one key, judged.
pub(super) struct View<'a> {
    pub(super) snapshot: &'a Snapshot,
    pub(super) terms: &'a Terms,
    /// The claim's spec; a blank one where there is none.
    pub(super) spec: DeployerClaimSpec,
    /// Holder and pending, each with its standing; `None`: its name was not read.
    pub(super) entries: Vec<(ClaimEntry, Option<Standing>)>,
    /// Active pods of this key that are neither entries nor condemned. Spared ones are among them.
    pub(super) strangers: Vec<Named<'a>>,
    /// The stranger that is to have the key, because nobody else has it.
    pub(super) heir: Option<Named<'a>>,
}

impl<'a> View<'a> {
    pub(super) fn of(snapshot: &'a Snapshot, terms: &'a Terms) -> Self {
        let spec = snapshot
            .claim
            .as_ref()
            .map_or_else(|| blank(snapshot, terms), |claim| claim.spec.clone());
        let entries: Vec<_> = spec
            .entries()
            .map(|entry| (entry.clone(), standing(snapshot, &spec, entry)))
            .collect();
        let is_stranger = |pod: &FoundPod| {
            pod.activity.is_active()
                && matches!(pod.place, Place::Here { .. })
                && !spec.is_entry(&pod.uid)
                && !spec.is_condemned(&pod.uid)
        };
        let strangers = found(snapshot).filter(|named| is_stranger(named.pod)).collect();
        let mut view = Self {
            snapshot,
            terms,
            spec,
            entries,
            strangers,
            heir: None,
        };
        view.heir = view.choose_heir();
        view
    }

    /// An entry is active, on its way, or was not read.
    pub(super) fn is_held(&self) -> bool {
        let ended = |standing: &Option<Standing>| matches!(standing, Some(Standing::Ended(_)));
        !self.entries.iter().all(|(_, standing)| ended(standing))
    }

    /// Entries that ended, with their outcomes.
    pub(super) fn ended(&self) -> Vec<(ClaimEntry, Outcome)> {
        let ended = |(entry, standing): &(ClaimEntry, Option<Standing>)| match standing {
            Some(Standing::Ended(outcome)) => Some((entry.clone(), *outcome)),
            _ => None,
        };
        self.entries.iter().filter_map(ended).collect()
    }

    pub(super) fn condemned(&self) -> impl Iterator<Item = Listed<'_>> {
        self.spec.condemned.iter().map(|pod| self.look_up(pod))
    }

    pub(super) fn spared(&self) -> impl Iterator<Item = Listed<'_>> {
        self.spec.spared.iter().map(|pod| self.look_up(pod))
    }

    fn look_up<'b>(&'b self, reference: &'b PodReference) -> Listed<'b> {
        let found = match self.snapshot.pods.get(&reference.name) {
            None => Found::Unknown,
            Some(_) => match self.snapshot.pod(&reference.name, &reference.uid) {
                Some(pod) => Found::There(pod),
                None => Found::Gone,
            },
        };
        Listed { reference, found }
    }

    /// The pod was there before the policy came into force.
    pub(super) fn predates(&self, pod: &FoundPod) -> bool {
        let older = pod
            .created
            .zip(self.terms.policy_created)
            .is_some_and(|(pod, policy)| pod <= policy);
        self.terms.first_stock || older
    }

    /// Another pod has the key, or keeps it: a condemned pod that has started, or that something holds back, is no longer to be had rid of.
    pub(super) fn is_beside(&self, stranger: Named<'_>) -> bool {
        let other_heir = self.heir.is_some_and(|heir| heir.pod.uid != stranger.pod.uid);
        let keeps = |listed: Listed<'_>| matches!(listed.found, Found::There(pod) if pod.activity.is_active() && !is_deletable(self, pod));
        self.is_held() || other_heir || self.condemned().any(keeps)
    }

    /// The stranger is to be condemned, as an orphan.
    pub(super) fn is_doomed_orphan(&self, stranger: Named<'_>) -> bool {
        self.may_be_condemned(stranger.pod)
            && self.terms.leftovers.orphans == LeftoverAction::DeleteUnstarted
            && orphan(stranger.pod).is_some()
    }

    /// The stranger is to be condemned, as a duplicate.
    pub(super) fn is_doomed_duplicate(&self, stranger: Named<'_>) -> bool {
        self.may_be_condemned(stranger.pod)
            && self.terms.leftovers.duplicates == LeftoverAction::DeleteUnstarted
            && self.is_beside(stranger)
    }

    /// What holds for each condemned pod, whatever the reason.
    pub(super) fn may_be_condemned(&self, pod: &FoundPod) -> bool {
        self.terms.armed
            && pod.activity.is_active()
            && pod.unstarted
            && matches!(pod.place, Place::Here { .. })
            && !self.predates(pod)
            && !self.spec.is_spared(&pod.uid)
            && !self.spec.is_pending(&pod.uid)
    }

    /// Nobody is adopted while a condemned pod is active: it is deleted first, or has started and keeps the key itself.
    fn choose_heir(&self) -> Option<Named<'a>> {
        let is_active = |listed: Listed<'_>| match listed.found {
            Found::Unknown => true,
            Found::Gone => false,
            Found::There(pod) => pod.activity.is_active(),
        };
        if self.is_held() || self.condemned().any(is_active) {
            return None;
        }
        first_among(
            self.strangers
                .iter()
                .copied()
                .filter(|pod| !self.is_doomed_orphan(*pod)),
        )
    }
}

/// Who stays where several are active and nobody holds: the newest generation, else the oldest pod. Ordinals of different uids of
/// a config do not compare, so the oldest pod says of which uid the newest generation is.
pub(super) fn first_among<'a>(pods: impl Iterator<Item = Named<'a>> + Clone) -> Option<Named<'a>> {
    let age = |named: &Named<'a>| (named.pod.created.is_none(), named.pod.created, named.name);
    let oldest = pods.clone().min_by_key(age)?;
    let Some((config_uid, Some(_))) = rank(oldest) else {
        return Some(oldest);
    };
    let comparable = pods.filter(|named| matches!(rank(*named), Some((uid, Some(_))) if uid == config_uid));
    comparable.min_by_key(|named| (Reverse(rank(*named).and_then(|(_, ordinal)| ordinal)), age(named)))
}

/// The uid of the config, and the ordinal.
fn rank(named: Named<'_>) -> Option<(Option<&str>, Option<i64>)> {
    match &named.pod.place {
        Place::Here {
            ordinal, config_uid, ..
        } => Some((config_uid.as_deref(), *ordinal)),
        Place::Elsewhere | Place::Unreadable(_) => None,
    }
}

/// What is wrong with the pod's owner.
pub(super) fn orphan(pod: &FoundPod) -> Option<OrphanWhy> {
    match pod.owner {
        OwnerState::Gone => Some(OrphanWhy::Gone),
        OwnerState::Replaced => Some(OrphanWhy::Replaced),
        OwnerState::Finished => Some(OrphanWhy::Finished),
        OwnerState::Fine | OwnerState::Unread(_) => None,
    }
}

/// Every pod that was found.
pub(super) fn found(snapshot: &Snapshot) -> impl Iterator<Item = Named<'_>> {
    let pods = snapshot.pods.iter();
    pods.filter_map(|(name, found)| found.as_ref().map(|pod| Named { name, pod }))
}

impl Named<'_> {
    pub(super) fn reference(self) -> PodReference {
        PodReference {
            name: self.name.to_owned(),
            uid: self.pod.uid.clone(),
            ..PodReference::default()
        }
    }

    /// As the claim would have it as holder. `None` for a pod whose identity is not known.
    pub(super) fn entry(self) -> Option<ClaimEntry> {
        let Place::Here {
            generation,
            ordinal,
            config_uid,
        } = &self.pod.place
        else {
            return None;
        };
        Some(ClaimEntry {
            name: self.name.to_owned(),
            uid: self.pod.uid.clone(),
            generation: generation.clone(),
            ordinal: *ordinal,
            config_uid: config_uid.clone(),
            ..ClaimEntry::default()
        })
    }
}

/// By the GET alone; what is remembered adds that a pod which was stored once and is not there any more is gone, and how it ended.
fn standing(snapshot: &Snapshot, spec: &DeployerClaimSpec, entry: &ClaimEntry) -> Option<Standing> {
    let found = snapshot.sighting(&entry.name)?;
    let memory = &snapshot.memory;
    let end = || memory.ends.get(&entry.uid).copied().unwrap_or(Outcome::Unknown);
    Some(match spec.standing(entry, &found) {
        Standing::OnItsWay if memory.stored.contains(&entry.uid) => Standing::Ended(end()),
        Standing::Ended(Outcome::Unknown) => Standing::Ended(end()),
        standing => standing,
    })
}

/// A claim that a guard makes is under no generation of the policy: nobody was admitted under one.
fn blank(snapshot: &Snapshot, terms: &Terms) -> DeployerClaimSpec {
    let mut spec = DeployerClaimSpec {
        config: snapshot.config.clone(),
        generation: snapshot.key_generation.clone(),
        ..DeployerClaimSpec::default()
    };
    spec.policy.name.clone_from(&terms.policy.name);
    spec.policy.uid.clone_from(&terms.policy.uid);
    spec
}
