//! Decisions as tables: what was read, and what follows.

use std::slice::from_ref;

use super::*;
use crate::api::claim::{GenerationOutcome, NewestGeneration, PodReference};
use crate::domain::sighting::Activity;

const ACTIVE: Activity = Activity::Active;

fn candidate() -> Candidate {
    Candidate {
        name: "p".into(),
        uid: "up".into(),
        generation: Some("g5".into()),
        requested_by: Some("alice".into()),
    }
}

fn rules() -> Rules {
    Rules {
        policy: PolicyReference {
            name: "policy".into(),
            ..PolicyReference::default()
        },
        config: "cfg".into(),
        key_generation: None,
        reruns: Reruns::Always,
        older_generations: OlderGenerations::Allow,
        stock_taken: false,
    }
}

fn entry(name: &str, uid: &str, ordinal: Option<i64>, config_uid: &str) -> ClaimEntry {
    ClaimEntry {
        name: name.into(),
        uid: uid.into(),
        generation: Some(format!("g{}", ordinal.unwrap_or_default())),
        ordinal,
        config_uid: Some(config_uid.into()),
        ..ClaimEntry::default()
    }
}

fn held(holder: ClaimEntry) -> DeployerClaimSpec {
    DeployerClaimSpec {
        protocol: PROTOCOL,
        holder: Some(holder),
        ..DeployerClaimSpec::default()
    }
}

fn pending(entries: &[ClaimEntry]) -> DeployerClaimSpec {
    DeployerClaimSpec {
        protocol: PROTOCOL,
        holder: entries.last().cloned(),
        pending: entries.to_vec(),
        ..DeployerClaimSpec::default()
    }
}

fn blocker(name: &str, uid: &str, generation: Option<&str>) -> Blocker {
    Blocker {
        name: name.into(),
        uid: uid.into(),
        generation: generation.map(Into::into),
    }
}

/// What was read: everything that is not said is absent.
struct Read {
    claim: Option<DeployerClaimSpec>,
    found: Vec<(&'static str, &'static str, Activity)>,
    strangers: Vec<Stranger>,
    rules: Rules,
    patience_over: bool,
}

impl Read {
    fn of(claim: impl Into<Option<DeployerClaimSpec>>) -> Self {
        Self {
            claim: claim.into(),
            found: Vec::new(),
            strangers: Vec::new(),
            rules: rules(),
            patience_over: false,
        }
    }

    fn found(mut self, name: &'static str, uid: &'static str, activity: Activity) -> Self {
        self.found.push((name, uid, activity));
        self
    }

    fn under(mut self, change: impl FnOnce(&mut Rules)) -> Self {
        change(&mut self.rules);
        self
    }

    fn decide(&self) -> Step {
        let names = self.claim.iter().flat_map(DeployerClaimSpec::names);
        let names = names
            .chain(self.strangers.iter().map(|pod| pod.name.as_str()))
            .chain(["p"]);
        let mut pods: BTreeMap<String, Sighting> = names.map(|name| (name.to_owned(), Sighting::Absent)).collect();
        for (name, uid, activity) in &self.found {
            let sighting = Sighting::Present {
                uid: (*uid).into(),
                activity: *activity,
            };
            pods.insert((*name).into(), sighting);
        }
        let standpoint = Standpoint::Eligible {
            config_uid: Some("c".into()),
            ordinal: Some(5),
        };
        let evidence = Evidence {
            claim: self.claim.as_ref(),
            pods: &pods,
            beside: &BTreeMap::new(),
            strangers: Some(&self.strangers),
            standpoint: Some(&standpoint),
            patience_over: self.patience_over,
            now: Timestamp::UNIX_EPOCH,
        };
        decide(&candidate(), &self.rules, &evidence)
    }

    fn written(&self) -> DeployerClaimSpec {
        match self.decide() {
            Step::Write(next) => *next,
            other => panic!("not admitted: {other:?}"),
        }
    }

    fn refusal(&self) -> Option<Refusal> {
        match self.decide() {
            Step::Answer(Ruling::Refused(refusal)) => Some(refusal),
            Step::Write(_) => None,
            other => panic!("neither refused nor admitted: {other:?}"),
        }
    }

    fn ruling(&self) -> Ruling {
        match self.decide() {
            Step::Answer(ruling) => ruling,
            other => panic!("no answer: {other:?}"),
        }
    }
}

#[test]
fn a_free_key_is_given_to_the_pod_with_all_that_is_known_of_it() {
    let next = Read::of(None).written();
    let holder = ClaimEntry {
        requested_by: Some("alice".into()),
        admitted_at: Some(Timestamp::UNIX_EPOCH),
        ..entry("p", "up", Some(5), "c")
    };
    assert_eq!(next.pending, from_ref(&holder));
    assert_eq!(next.holder, Some(holder));
    assert_eq!(
        (next.protocol, &*next.config, &*next.policy.name),
        (PROTOCOL, "cfg", "policy")
    );
}

#[test]
fn everything_is_read_side_by_side_before_anything_is_decided() {
    let no_pods = BTreeMap::new();
    let first = |claim| {
        let evidence = Evidence {
            claim,
            pods: &no_pods,
            beside: &no_pods,
            strangers: None,
            standpoint: None,
            patience_over: false,
            now: Timestamp::UNIX_EPOCH,
        };
        match decide(&candidate(), &rules(), &evidence) {
            Step::Read(wanted) => (
                wanted.pods.into_iter().collect::<Vec<_>>(),
                wanted.strangers,
                wanted.owner,
            ),
            other => panic!("decided blindly: {other:?}"),
        }
    };
    assert_eq!(first(None), (vec!["p".to_owned()], true, true));
    let mut claim = held(entry("q", "uq", None, "c"));
    claim.condemned.push(PodReference {
        name: "r".into(),
        uid: "ur".into(),
        ..PodReference::default()
    });
    let all = vec!["p".to_owned(), "q".into(), "r".into()];
    assert_eq!(first(Some(&claim)), (all, true, true));
}

/// A read that may be older than the claim: what it found is so, what it did not find may have come since.
#[test]
fn what_was_read_beside_the_claim_tells_what_is_there_and_not_what_is_gone() {
    let there = |uid: &str, activity| Sighting::Present {
        uid: uid.into(),
        activity,
    };
    let q = entry("q", "uq", None, "c");
    let condemned = DeployerClaimSpec {
        condemned: vec![PodReference {
            name: "q".into(),
            uid: "uq".into(),
            ..PodReference::default()
        }],
        ..held(entry("r", "ur", None, "c"))
    };
    let active = || refuse(Refusal::DeployerActive(blocker("q", "uq", Some("g0"))));
    let want = |names: &[&str]| {
        Step::Read(Wanted {
            pods: names.iter().map(ToString::to_string).collect(),
            strangers: false,
            owner: false,
        })
    };
    let on_its_way = refuse(Refusal::DeployerPending(blocker("q", "uq", Some("g0"))));
    let table = [
        ("active", held(q.clone()), there("uq", ACTIVE), Some(active())),
        ("ended", held(q.clone()), there("uq", Activity::Succeeded), None),
        ("gone", held(q.clone()), Sighting::Absent, Some(want(&["q"]))),
        ("another", held(q.clone()), there("other", ACTIVE), Some(want(&["q"]))),
        (
            "pending, not there",
            pending(from_ref(&q)),
            Sighting::Absent,
            Some(on_its_way),
        ),
        (
            "pending, there",
            pending(from_ref(&q)),
            there("uq", ACTIVE),
            Some(active()),
        ),
        (
            "pending, ended",
            pending(from_ref(&q)),
            there("uq", Activity::Failed),
            None,
        ),
        ("condemned, gone", condemned, Sighting::Absent, Some(want(&["q", "r"]))),
    ];
    let standpoint = Standpoint::Eligible {
        config_uid: None,
        ordinal: None,
    };
    for (what, claim, found, expected) in table {
        let beside = BTreeMap::from([("p".to_owned(), Sighting::Absent), ("q".to_owned(), found)]);
        let evidence = Evidence {
            claim: Some(&claim),
            pods: &BTreeMap::new(),
            beside: &beside,
            strangers: Some(&[]),
            standpoint: Some(&standpoint),
            patience_over: false,
            now: Timestamp::UNIX_EPOCH,
        };
        let step = decide(&candidate(), &rules(), &evidence);
        match expected {
            Some(expected) => assert_eq!(step, expected, "{what}"),
            None => assert!(matches!(step, Step::Write(_)), "{what}: {step:?}"),
        }
    }
}

#[test]
fn where_stock_was_taken_no_list_is_asked_for() {
    for (stock_taken, claim) in [
        (true, None),
        (false, None),
        (true, Some(held(entry("q", "uq", None, "c")))),
        (false, Some(held(entry("q", "uq", None, "c")))),
        (true, Some(DeployerClaimSpec::default())),
        (false, Some(DeployerClaimSpec::default())),
    ] {
        let mut rules = rules();
        rules.stock_taken = stock_taken;
        rules.policy.generation = Some(7);
        let evidence = Evidence {
            claim: claim.as_ref(),
            pods: &BTreeMap::new(),
            beside: &BTreeMap::new(),
            strangers: None,
            standpoint: None,
            patience_over: false,
            now: Timestamp::UNIX_EPOCH,
        };
        match decide(&candidate(), &rules, &evidence) {
            Step::Read(wanted) => assert_eq!(wanted.strangers, !stock_taken),
            other => panic!("decided blindly: {other:?}"),
        }
    }
}

#[test]
fn what_the_owner_forbids_is_refused() {
    let refusal = Refusal::OwnerGone { owner: "RC".into() };
    let standpoint = Standpoint::Refused(refusal.clone());
    let pods = BTreeMap::from([("p".to_owned(), Sighting::Absent)]);
    let evidence = Evidence {
        claim: None,
        pods: &pods,
        beside: &BTreeMap::new(),
        strangers: Some(&[]),
        standpoint: Some(&standpoint),
        patience_over: false,
        now: Timestamp::UNIX_EPOCH,
    };
    assert_eq!(decide(&candidate(), &rules(), &evidence), refuse(refusal));
}

#[test]
fn the_claim_alone_settles_a_newer_protocol_a_condemned_pod_and_the_same_uid() {
    let newer = DeployerClaimSpec {
        protocol: PROTOCOL + 1,
        ..pending(&[entry("p", "up", None, "c")])
    };
    let protocol = PROTOCOL + 1;
    assert_eq!(
        Read::of(newer).ruling(),
        Ruling::Undecided(Undecided::NewerProtocol { protocol })
    );
    let mut condemned = held(entry("p", "up", None, "c"));
    condemned.condemned.push(PodReference {
        name: "p".into(),
        uid: "up".into(),
        ..PodReference::default()
    });
    assert_eq!(
        Read::of(condemned).ruling(),
        Ruling::Refused(Refusal::DeployerCondemned)
    );
    assert_eq!(Read::of(held(entry("p", "up", None, "c"))).ruling(), Ruling::Admitted);
    let again = pending(&[entry("p", "up", None, "c"), entry("p", "u2", None, "c")]);
    assert_eq!(Read::of(again).ruling(), Ruling::Admitted);
}

#[test]
fn one_pod_at_a_time() {
    let q = entry("q", "uq", Some(1), "c");
    let by_q = || blocker("q", "uq", Some("g1"));
    let condemned = DeployerClaimSpec {
        condemned: vec![PodReference {
            name: "q".into(),
            uid: "uq".into(),
            ..PodReference::default()
        }],
        ..DeployerClaimSpec::default()
    };
    let spared = DeployerClaimSpec {
        spared: condemned.condemned.clone(),
        ..DeployerClaimSpec::default()
    };
    for (case, read, expected) in [
        (
            "holder active",
            Read::of(held(q.clone())).found("q", "uq", ACTIVE),
            Some(Refusal::DeployerActive(by_q())),
        ),
        (
            "pending arrived",
            Read::of(pending(from_ref(&q))).found("q", "uq", ACTIVE),
            Some(Refusal::DeployerActive(by_q())),
        ),
        (
            "pending not there",
            Read::of(pending(from_ref(&q))),
            Some(Refusal::DeployerPending(by_q())),
        ),
        (
            "another under the pending name",
            Read::of(pending(from_ref(&q))).found("q", "u", ACTIVE),
            Some(Refusal::DeployerPending(by_q())),
        ),
        ("holder gone", Read::of(held(q.clone())), None),
        (
            "another under the holder's name",
            Read::of(held(q.clone())).found("q", "u", ACTIVE),
            None,
        ),
        (
            "holder finished",
            Read::of(held(q.clone())).found("q", "uq", Activity::Failed),
            None,
        ),
        (
            "pending arrived and finished",
            Read::of(pending(&[q])).found("q", "uq", Activity::Succeeded),
            None,
        ),
        (
            "condemned active",
            Read::of(condemned.clone()).found("q", "uq", ACTIVE),
            Some(Refusal::DeployerActive(blocker("q", "uq", None))),
        ),
        ("condemned gone", Read::of(condemned.clone()), None),
        (
            "spared active",
            Read::of(spared.clone()).found("q", "uq", ACTIVE),
            Some(Refusal::DeployerActive(blocker("q", "uq", None))),
        ),
        ("spared gone", Read::of(spared.clone()), None),
        (
            "spared finished",
            Read::of(spared).found("q", "uq", Activity::Failed),
            None,
        ),
        (
            "condemned finished",
            Read::of(condemned).found("q", "uq", Activity::Failed),
            None,
        ),
    ] {
        assert_eq!(read.refusal(), expected, "{case}");
    }
}

#[test]
fn a_name_that_exists_is_a_conflict_whoever_has_it() {
    let p = entry("p", "u1", None, "c");
    let marked = || DeployerClaimSpec {
        condemned: vec![PodReference {
            name: "p".into(),
            uid: "u1".into(),
            ..PodReference::default()
        }],
        ..DeployerClaimSpec::default()
    };
    for (case, read) in [
        ("holder", Read::of(held(p.clone())).found("p", "u1", ACTIVE)),
        ("pending", Read::of(pending(from_ref(&p))).found("p", "u1", ACTIVE)),
        ("finished", Read::of(held(p)).found("p", "u1", Activity::Succeeded)),
        ("condemned", Read::of(marked()).found("p", "u1", ACTIVE)),
        (
            "unknown to the claim",
            Read::of(DeployerClaimSpec::default()).found("p", "u1", ACTIVE),
        ),
        ("no claim", Read::of(None).found("p", "u1", ACTIVE)),
    ] {
        assert_eq!(read.ruling(), Ruling::NameExists, "{case}");
    }
}

#[test]
fn a_namesake_on_its_way_is_looked_for_again_then_taken_over_and_stays_listed() {
    let first = entry("p", "u1", None, "c");
    let mut read = Read::of(pending(from_ref(&first)));
    assert_eq!(read.decide(), Step::LookAgain);
    read.patience_over = true;
    let next = read.written();
    assert_eq!(next.pending[0], first);
    assert_eq!((next.pending.len(), &*next.pending[1].uid), (2, "up"));
    assert_eq!(next.holder.map(|holder| holder.uid).as_deref(), Some("up"));
}

#[test]
fn too_many_pending_are_refused() {
    let entries: Vec<_> = (0..MAX_PENDING)
        .map(|i| entry("p", &format!("u{i}"), None, "c"))
        .collect();
    let mut read = Read::of(pending(&entries));
    read.patience_over = true;
    assert_eq!(read.refusal(), Some(Refusal::TooManyPending));
    read.claim = Some(pending(&entries[1..]));
    assert_eq!(read.written().pending.len(), MAX_PENDING);
}

#[test]
fn a_list_makes_a_verdict_worse_and_only_a_get_decides() {
    let stranger = |name: &str| Stranger {
        name: name.into(),
        uid: "us".into(),
        generation: Some("g1".into()),
    };
    let listed = |name: &str| Read {
        strangers: vec![stranger(name)],
        ..Read::of(None)
    };
    let active = Refusal::DeployerActive(blocker("s", "us", Some("g1")));
    assert_eq!(listed("s").found("s", "us", ACTIVE).refusal(), Some(active));
    assert_eq!(listed("s").refusal(), None, "gone by GET");
    assert_eq!(listed("s").found("s", "us", Activity::Succeeded).refusal(), None);
    assert_eq!(listed("s").found("s", "other", ACTIVE).refusal(), None);
    assert_eq!(listed("p").found("p", "us", ACTIVE).ruling(), Ruling::NameExists);
}

#[test]
fn an_ended_holder_is_replaced_and_its_outcome_recorded() {
    for (found, outcome) in [
        (None, Outcome::Unknown),
        (Some(Activity::Succeeded), Outcome::Completed),
        (Some(Activity::Failed), Outcome::Failed),
    ] {
        let read = Read::of(held(entry("q", "uq", Some(4), "c")));
        let next = found
            .into_iter()
            .fold(read, |read, activity| read.found("q", "uq", activity))
            .written();
        assert_eq!(next.outcome(Some("c"), "g4"), Some(outcome));
        assert_eq!(next.newest(Some("c")).map(|newest| newest.ordinal), Some(4));
        assert_eq!(next.holder.map(|holder| holder.uid).as_deref(), Some("up"));
    }
}

/// G2, for what the claim remembers and for what was just seen alike.
#[test]
fn reruns() {
    let generation = || "g5".to_owned();
    let completed = || {
        Some(Refusal::GenerationCompleted {
            generation: generation(),
        })
    };
    let run = |outcome| {
        Some(Refusal::GenerationAlreadyRun {
            generation: generation(),
            outcome,
        })
    };
    for (reruns, outcome, expected) in [
        (Reruns::Always, Outcome::Completed, None),
        (Reruns::Always, Outcome::Failed, None),
        (Reruns::Always, Outcome::Unknown, None),
        (Reruns::AfterFailure, Outcome::Completed, completed()),
        (Reruns::AfterFailure, Outcome::Failed, None),
        (Reruns::AfterFailure, Outcome::Unknown, None),
        (Reruns::Never, Outcome::Completed, completed()),
        (Reruns::Never, Outcome::Failed, run(Outcome::Failed)),
        (Reruns::Never, Outcome::Unknown, run(Outcome::Unknown)),
    ] {
        for (config_uid, generation, same) in [("c", "g5", true), ("other", "g5", false), ("c", "g4", false)] {
            let expected = expected.clone().filter(|_| same);
            let claim = DeployerClaimSpec {
                outcomes: vec![GenerationOutcome {
                    generation: generation.into(),
                    config_uid: Some(config_uid.into()),
                    outcome,
                    ..GenerationOutcome::default()
                }],
                ..DeployerClaimSpec::default()
            };
            let remembered = Read::of(claim).under(|rules| rules.reruns = reruns);
            assert_eq!(
                remembered.refusal(),
                expected,
                "{reruns:?} {outcome:?} {config_uid} {generation}"
            );
            let holder = ClaimEntry {
                generation: Some(generation.into()),
                ..entry("q", "uq", Some(5), config_uid)
            };
            let seen = Read::of(held(holder)).under(|rules| rules.reruns = reruns);
            let seen = match outcome {
                Outcome::Completed => seen.found("q", "uq", Activity::Succeeded),
                Outcome::Failed => seen.found("q", "uq", Activity::Failed),
                Outcome::Unknown => seen,
            };
            assert_eq!(
                seen.refusal(),
                expected,
                "just seen: {reruns:?} {outcome:?} {config_uid} {generation}"
            );
        }
    }
}

/// G3. The candidate's ordinal is 5.
#[test]
fn older_generations() {
    let older = |newest: i64| {
        Some(Refusal::OlderGeneration {
            ordinal: 5,
            newest,
            newest_generation: Some(format!("g{newest}")),
        })
    };
    for (newest, config_uid, expected) in [(4, "c", None), (5, "c", None), (6, "c", older(6)), (6, "other", None)] {
        let seen = DeployerClaimSpec {
            newest: vec![NewestGeneration {
                config_uid: Some(config_uid.into()),
                ordinal: newest,
                generation: Some(format!("g{newest}")),
                ..NewestGeneration::default()
            }],
            ..DeployerClaimSpec::default()
        };
        let on_its_way = pending(&[entry("p", "u1", Some(newest), config_uid)]);
        let just_ended = held(entry("q", "uq", Some(newest), config_uid));
        for claim in [seen, on_its_way, just_ended] {
            let mut read = Read::of(claim.clone()).under(|rules| rules.older_generations = OlderGenerations::Deny);
            read.patience_over = true;
            assert_eq!(read.refusal(), expected, "{newest} {config_uid} {claim:?}");
            read.rules.older_generations = OlderGenerations::Allow;
            assert_eq!(read.refusal(), None);
        }
    }
}

/// Whoever came in while the webhook was bypassed, or was let in under another mode of the policy, is named by no claim: neither by a
/// free one nor by one whose holder has ended, whichever version of the policy wrote it.
#[test]
fn where_nobody_took_stock_a_claim_hides_nobody_who_is_listed() {
    let stranger = Stranger {
        name: "q".into(),
        uid: "uq".into(),
        generation: None,
    };
    for generation in [Some(3), Some(2), None] {
        for mut claim in [held(entry("h", "uh", None, "c")), DeployerClaimSpec::default()] {
            claim.policy.generation = generation;
            let mut read = Read::of(claim)
                .found("h", "uh", Activity::Succeeded)
                .found("q", "uq", ACTIVE)
                .under(|rules| rules.policy.generation = Some(3));
            read.strangers = vec![stranger.clone()];
            let refused = Refusal::DeployerActive(blocker("q", "uq", None));
            assert_eq!(read.refusal(), Some(refused), "{:?}", read.claim);
            read.rules.stock_taken = true;
            let next = read.written();
            assert_eq!((next.policy.generation, next.policy.name.as_str()), (Some(3), "policy"));
        }
    }
}

#[test]
fn what_a_newer_version_keeps_with_the_policy_stays() {
    let mut claim = held(entry("h", "uh", None, "c"));
    claim.policy.unknown.insert("newer".into(), 1.into());
    let Step::Write(next) = Read::of(claim).found("h", "uh", Activity::Succeeded).decide() else {
        panic!("not admitted")
    };
    assert_eq!(next.policy.unknown["newer"], 1);
}
