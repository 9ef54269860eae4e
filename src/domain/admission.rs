//! The decision on one CREATE, as a function of what was read so far (DESIGN section 4).
//!
//! [`decide`] never waits and never reads. It says what it needs next, and the caller reads that, live, and asks again. The
//! same function is driven by the webhook over a real API server, and by the exhaustive model check.
//!
//! # Assumptions on the caller
//! - Each read began after the request arrived; each read of a pod in `pods` began after the claim in the same evidence was
//!   read, or before a write of that claim by the same caller, conditional on the version read before: then what ended has
//!   left the claim, and what is pending in it is still on its way. Reads in `beside` may be older than the claim.
//! - `Step::Write` is carried out as one write that is conditional on the version of that claim (on its absence, where there
//!   is none), and the request is answered only after it; a conflict means new evidence.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::claim::{MAX_PENDING, Standing};
use super::refusal::{Blocker, Refusal, Undecided};
use super::sighting::{Activity, Sighting};
use crate::api::claim::{ClaimEntry, DeployerClaimSpec, Outcome, PROTOCOL, PolicyReference};
use crate::api::policy::{OlderGenerations, Reruns};

/// A pod that asks to be created, as far as it is known from the pod alone.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Candidate {
    /// Its final name.
    pub name: String,
    /// Its final uid.
    pub uid: String,
    /// The generation it works for, where the policy knows generations.
    pub generation: Option<String>,
    /// Who asks, for the record.
    pub requested_by: Option<String>,
}

/// What the policy asks of a decision.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Rules {
    /// The policy, as a claim refers to it.
    pub policy: PolicyReference,
    /// The config of the key.
    pub config: String,
    /// The generation of the key, with `scope: Generation`.
    pub key_generation: Option<String>,
    /// G2.
    pub reruns: Reruns,
    /// G3.
    pub older_generations: OlderGenerations,
    /// Every deployer that came in before this version of the policy was in force, and since, has a claim or was reported: no list is
    /// needed.
    pub stock_taken: bool,
}

/// What is known of a candidate only after its owner was read (at once, for a policy that asks for none).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Standpoint {
    /// The owner allows it.
    Eligible {
        /// The uid of the config, where the policy asks for it.
        config_uid: Option<String>,
        /// The ordinal of the generation, where the policy asks for it.
        ordinal: Option<i64>,
    },
    /// The owner forbids it, or lacks what the policy reads.
    Refused(Refusal),
}

/// A pod that a list showed as active for the key, where the key has no claim.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Stranger {
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// The generation it works for.
    pub generation: Option<String>,
}

/// Everything that was read for the decision so far.
#[derive(Clone, Copy, Debug)]
pub struct Evidence<'a> {
    /// The claim; `None` if a quorum GET found none.
    pub claim: Option<&'a DeployerClaimSpec>,
    /// What GETs of pod names found that began after the claim was read.
    pub pods: &'a BTreeMap<String, Sighting>,
    /// What GETs of pod names found that were sent side by side with that of the claim. Of a pod that was seen in the store once
    /// they tell where it was found and how it ended, which stays true; never that it is gone, since it may have come later.
    pub beside: &'a BTreeMap<String, Sighting>,
    /// What a list found, wanted wherever nobody took stock: a claim names nobody who came in while the webhook was bypassed, or who
    /// was let in under another version of the policy. A list may make a verdict worse, never better.
    pub strangers: Option<&'a [Stranger]>,
    /// What the owner says.
    pub standpoint: Option<&'a Standpoint>,
    /// A pending pod of the candidate's own name was looked for long enough to be taken over.
    pub patience_over: bool,
    /// The time for the record. Nothing is decided from it.
    pub now: Timestamp,
}

/// What has to be read before the decision can go on; everything in one of these may be read side by side.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Wanted {
    /// Pods to GET by name.
    pub pods: BTreeSet<String>,
    /// List the deployers of the namespace.
    pub strangers: bool,
    /// Read the owner.
    pub owner: bool,
}

/// What a decision came to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Ruling {
    /// The claim names this pod: it may be created.
    Admitted,
    /// A pod of that name exists: the store will refuse it, and so do we, changing nothing.
    NameExists,
    /// The pod must not be created now.
    Refused(Refusal),
    /// No decision can be reached.
    Undecided(Undecided),
}

/// What the caller does next.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Read this, and decide again with it.
    Read(Wanted),
    /// A pod of the same name is on its way: read again, from the claim on, in a moment.
    LookAgain,
    /// Write this claim, then answer Admitted. On a conflict, begin again with the claim.
    Write(Box<DeployerClaimSpec>),
    /// Answer this. Nothing is written.
    Answer(Ruling),
}

/// Decides on one CREATE from what was read so far.
#[must_use]
pub fn decide(candidate: &Candidate, rules: &Rules, evidence: &Evidence<'_>) -> Step {
    let blank = DeployerClaimSpec::default();
    let claim = evidence.claim.unwrap_or(&blank);
    if let Some(ruling) = settled_by_claim(candidate, claim) {
        return Step::Answer(ruling);
    }
    let view = match View::of(claim, candidate, rules, evidence) {
        Ok(view) => view,
        Err(ruling) => return Step::Answer(ruling),
    };
    if view.missing != Wanted::default() {
        return Step::Read(view.missing);
    }
    let (config_uid, ordinal) = match evidence.standpoint {
        None => {
            return Step::Read(Wanted {
                owner: true,
                ..Wanted::default()
            });
        }
        Some(Standpoint::Refused(refusal)) => return refuse(refusal.clone()),
        Some(Standpoint::Eligible { config_uid, ordinal }) => (config_uid.clone(), *ordinal),
    };
    let entry = ClaimEntry {
        name: candidate.name.clone(),
        uid: candidate.uid.clone(),
        generation: candidate.generation.clone(),
        ordinal,
        config_uid,
        requested_by: candidate.requested_by.clone(),
        admitted_at: Some(evidence.now),
        ..ClaimEntry::default()
    };
    if let Some(refusal) =
        older_generation(&entry, rules, claim, &view.ended).or_else(|| rerun(&entry, rules, claim, &view.ended))
    {
        return refuse(refusal);
    }
    if view.namesake_on_its_way && !evidence.patience_over {
        return Step::LookAgain;
    }
    if claim.pending.len() >= MAX_PENDING {
        return refuse(Refusal::TooManyPending);
    }
    let mut next = claim.admitted(entry, &view.ended, evidence.now);
    next.policy.name.clone_from(&rules.policy.name);
    next.policy.uid.clone_from(&rules.policy.uid);
    next.policy.generation = rules.policy.generation;
    next.config.clone_from(&rules.config);
    next.generation.clone_from(&rules.key_generation);
    Step::Write(Box::new(next))
}

fn refuse(refusal: Refusal) -> Step {
    Step::Answer(Ruling::Refused(refusal))
}

/// What the claim alone settles, before any pod is read.
fn settled_by_claim(candidate: &Candidate, claim: &DeployerClaimSpec) -> Option<Ruling> {
    if claim.protocol > PROTOCOL {
        return Some(Ruling::Undecided(Undecided::NewerProtocol {
            protocol: claim.protocol,
        }));
    }
    if claim.is_condemned(&candidate.uid) {
        return Some(Ruling::Refused(Refusal::DeployerCondemned));
    }
    // The same uid again is the same request, whose first answer was lost.
    claim
        .entries()
        .any(|entry| entry.uid == candidate.uid)
        .then_some(Ruling::Admitted)
}

impl Evidence<'_> {
    /// Where the pod of an entry stands, if what was read tells.
    fn standing(&self, claim: &DeployerClaimSpec, entry: &ClaimEntry) -> Option<Standing> {
        if let Some(found) = self.pods.get(&entry.name) {
            return Some(claim.standing(entry, found));
        }
        let found = self.beside.get(&entry.name)?;
        let tells = found.of(&entry.uid).is_some() || claim.is_pending(&entry.uid);
        tells.then(|| claim.standing(entry, found))
    }

    /// Whether a pod is there and active; nothing, if that is still to be read.
    fn is_active(&self, name: &str, uid: &str) -> Option<bool> {
        if let Some(found) = self.pods.get(name) {
            return Some(found.of(uid).is_some_and(Activity::is_active));
        }
        self.beside.get(name)?.of(uid).map(Activity::is_active)
    }

    /// What stands under the candidate's own name, where the claim names no pod of that name that may be on its way.
    fn own_name(&self, candidate: &Candidate) -> Option<&Sighting> {
        self.pods
            .get(&candidate.name)
            .or_else(|| self.beside.get(&candidate.name))
    }
}

/// The pods that matter for the key, judged; and what is still to be read.
#[derive(Default)]
struct View {
    missing: Wanted,
    ended: Vec<(ClaimEntry, Outcome)>,
    namesake_on_its_way: bool,
}

impl View {
    /// `Err` is an answer that stands whatever else is read: something is in the way.
    fn of(
        claim: &DeployerClaimSpec,
        candidate: &Candidate,
        rules: &Rules,
        evidence: &Evidence<'_>,
    ) -> Result<Self, Ruling> {
        let mut view = Self::default();
        view.judge_entries(claim, candidate, evidence)?;
        view.judge_others(claim, candidate, evidence)?;
        match evidence.strangers {
            _ if rules.stock_taken => {}
            Some(strangers) => view.judge_strangers(strangers, candidate, evidence)?,
            None => view.missing.strangers = true,
        }
        match evidence.own_name(candidate) {
            // Where another deployer is active, that is what whoever asks has to know: it is read first.
            Some(Sighting::Present { .. }) if view.missing == Wanted::default() => return Err(Ruling::NameExists),
            Some(_) => {}
            None => view.want(&candidate.name),
        }
        view.missing.owner = view.missing != Wanted::default() && evidence.standpoint.is_none();
        Ok(view)
    }

    fn want(&mut self, name: &str) {
        self.missing.pods.insert(name.to_owned());
    }

    fn judge_entries(
        &mut self,
        claim: &DeployerClaimSpec,
        candidate: &Candidate,
        evidence: &Evidence<'_>,
    ) -> Result<(), Ruling> {
        for entry in claim.entries() {
            let Some(standing) = evidence.standing(claim, entry) else {
                self.want(&entry.name);
                continue;
            };
            let namesake = entry.name == candidate.name;
            match standing {
                Standing::Active if namesake => return Err(Ruling::NameExists),
                Standing::Active => return Err(Ruling::Refused(Refusal::DeployerActive(entry.into()))),
                Standing::OnItsWay if namesake => self.namesake_on_its_way = true,
                Standing::OnItsWay => return Err(Ruling::Refused(Refusal::DeployerPending(entry.into()))),
                Standing::Ended(outcome) => self.ended.push((entry.clone(), outcome)),
            }
        }
        Ok(())
    }

    /// A condemned or spared pod holds nothing, but while it is active nobody else may be.
    fn judge_others(
        &mut self,
        claim: &DeployerClaimSpec,
        candidate: &Candidate,
        evidence: &Evidence<'_>,
    ) -> Result<(), Ruling> {
        for pod in claim.condemned.iter().chain(&claim.spared) {
            match evidence.is_active(&pod.name, &pod.uid) {
                None => self.want(&pod.name),
                Some(true) if pod.name == candidate.name => return Err(Ruling::NameExists),
                Some(true) => {
                    let by = Blocker {
                        name: pod.name.clone(),
                        uid: pod.uid.clone(),
                        generation: None,
                    };
                    return Err(Ruling::Refused(Refusal::DeployerActive(by)));
                }
                Some(false) => {}
            }
        }
        Ok(())
    }

    fn judge_strangers(
        &mut self,
        strangers: &[Stranger],
        candidate: &Candidate,
        evidence: &Evidence<'_>,
    ) -> Result<(), Ruling> {
        for pod in strangers.iter().filter(|pod| pod.uid != candidate.uid) {
            match evidence.is_active(&pod.name, &pod.uid) {
                None => self.want(&pod.name),
                Some(true) if pod.name == candidate.name => {
                    return Err(Ruling::NameExists);
                }
                Some(true) => {
                    let by = Blocker {
                        name: pod.name.clone(),
                        uid: pod.uid.clone(),
                        generation: pod.generation.clone(),
                    };
                    return Err(Ruling::Refused(Refusal::DeployerActive(by)));
                }
                Some(false) => {}
            }
        }
        Ok(())
    }
}

/// G3: the newest ordinal seen in the store or now on its way, for the same config uid.
fn older_generation(
    pod: &ClaimEntry,
    rules: &Rules,
    claim: &DeployerClaimSpec,
    ended: &[(ClaimEntry, Outcome)],
) -> Option<Refusal> {
    if rules.older_generations == OlderGenerations::Allow {
        return None;
    }
    let ordinal = pod.ordinal?;
    let seen = claim
        .newest(pod.config_uid.as_deref())
        .map(|newest| (newest.ordinal, newest.generation.clone()));
    let known = claim.pending.iter().chain(ended.iter().map(|(entry, _)| entry));
    let known = known.filter(|entry| entry.config_uid == pod.config_uid);
    let (newest, newest_generation) = seen
        .into_iter()
        .chain(known.filter_map(|entry| Some((entry.ordinal?, entry.generation.clone()))))
        .max()?;
    (ordinal < newest).then_some(Refusal::OlderGeneration {
        ordinal,
        newest,
        newest_generation,
    })
}

/// G2: how the generation's last run ended, as the claim remembers it or as it was just seen.
fn rerun(
    pod: &ClaimEntry,
    rules: &Rules,
    claim: &DeployerClaimSpec,
    ended: &[(ClaimEntry, Outcome)],
) -> Option<Refusal> {
    let generation = pod.generation.clone()?;
    let remembered = claim.outcome(pod.config_uid.as_deref(), &generation);
    let just_seen = ended
        .iter()
        .filter(|(entry, _)| entry.generation.as_ref() == Some(&generation) && entry.config_uid == pod.config_uid)
        .map(|(_, outcome)| *outcome);
    let outcomes: Vec<Outcome> = just_seen.chain(remembered).collect();
    match rules.reruns {
        Reruns::Always => None,
        _ if outcomes.contains(&Outcome::Completed) => Some(Refusal::GenerationCompleted { generation }),
        Reruns::AfterFailure => None,
        Reruns::Never => outcomes.first().map(|outcome| Refusal::GenerationAlreadyRun {
            generation,
            outcome: *outcome,
        }),
    }
}

#[cfg(test)]
mod tests;
