//! Several lives in virtual time, with real certificates: at every moment what is served verifies under what is stored.

use std::time::Duration;

use proptest::prelude::*;
use rustls::pki_types::CertificateDer;
use tokio::time::Instant;

use super::held::{BUNDLE, CA_KEY, CERTIFICATE, Data, Held, KEY, NEXT_CA_KEY};
use super::plan::{Leaf, PATIENCE, Step, Terms, Trust, Why, plan};
use super::watch::TrustWatch;
use crate::tls::hold_back::{HoldBack, Look, Verdict};
use crate::tls::pair::Pair;
use crate::tls::trust::{Truster, certificates, verify};

const TERMS: Terms = Terms {
    authority: 9000,
    certificate: 3600,
};
const NOW: i64 = 1_800_000_000;
const NAME: &str = "deployer-guard.deployer-guard.svc";

/// How long API servers take to hear of what is stored, at most.
const LAG: i64 = 8;
const DELAY: Duration = Duration::from_secs(10);

/// A guard, two replicas, the stored configuration and API servers that hear of it late.
struct World {
    began: Instant,
    now: i64,
    secret: Data,
    /// The bundle of each stored entry, and the ones before with the time at which they were replaced.
    stored: Vec<(i64, Option<Vec<u8>>)>,
    guard: TrustWatch,
    replicas: Vec<Replica>,
    names: Vec<String>,
    /// What the guard would put back.
    good: Data,
}

struct Replica {
    served: Option<Pair>,
    hold_back: HoldBack,
}

impl Replica {
    fn new() -> Self {
        Self {
            served: None,
            hold_back: HoldBack::new(DELAY),
        }
    }
}

impl World {
    fn new() -> Self {
        Self {
            began: Instant::now(),
            now: NOW,
            secret: Data::new(),
            stored: vec![(NOW, None)],
            guard: TrustWatch::new(DELAY),
            replicas: vec![Replica::new(), Replica::new()],
            names: vec![NAME.to_owned()],
            good: Data::new(),
        }
    }

    fn at(&self) -> Instant {
        self.began + Duration::from_secs(u64::try_from(self.now - NOW).unwrap())
    }

    fn bundle(&self) -> Option<&[u8]> {
        self.stored.last().and_then(|(_, bundle)| bundle.as_deref())
    }

    /// The guard programs the configuration with the authorities of the Secret.
    fn programme(&mut self) {
        let bundle = self
            .secret
            .get(BUNDLE)
            .filter(|bundle| certificates(bundle).is_ok())
            .cloned();
        if bundle.is_some() && bundle.as_deref() != self.bundle() {
            self.stored.push((self.now, bundle));
        }
    }

    fn guard(&mut self) {
        for _ in 0..4 {
            let stored: Vec<Vec<CertificateDer<'static>>> = self
                .bundle()
                .map(|bundle| certificates(bundle).unwrap())
                .into_iter()
                .collect();
            self.guard.look(&stored, self.at(), self.at());
            let held = Held::read(&self.secret, &self.names, self.now);
            if held.is_good(self.now) {
                self.good = self.secret.clone();
            }
            let remembered = Held::read(&self.good, &self.names, self.now).is_good(self.now);
            let facts = held.facts(|ca| self.guard.of(ca), remembered);
            match plan(&facts, TERMS, self.now) {
                Step::Rest | Step::Wait => return,
                Step::Restore => self.secret = self.good.clone(),
                step => {
                    self.secret = held.after(&step, &self.names, &stored, TERMS, self.now).unwrap();
                }
            }
        }
    }

    fn replica(&mut self, i: usize) {
        let part = |key: &str| self.secret.get(key).cloned().unwrap_or_default();
        let provider = rustls::crypto::ring::default_provider();
        let Ok(pair) = Pair::parse(&part(CERTIFICATE), &part(KEY), &provider) else {
            return;
        };
        if pair.valid_at(self.now).is_err() {
            return;
        }
        let trusters = self.bundle().map(|bundle| Truster {
            entry: "p".into(),
            server_name: NAME.into(),
            bundle: Some(bundle.to_vec()),
        });
        let entries = Ok(trusters.into_iter().collect());
        let look = Look {
            entries: &entries,
            begun: self.at(),
            ended: self.at(),
            now: self.now,
        };
        let replica = &mut self.replicas[i];
        let served = replica.served.as_ref();
        if served.is_some_and(|served| served.fingerprint() == pair.fingerprint()) {
            return;
        }
        let holds = match served {
            Some(old) if HoldBack::is_needed(old, self.now) => {
                replica.hold_back.judge(&pair, old, &look) != Verdict::Serve
            }
            _ => false,
        };
        if !holds {
            replica.served = Some(pair);
        }
    }

    /// The bundles that an API server may go by now: what is stored, and what was until a moment ago.
    fn believed(&self) -> impl Iterator<Item = &[u8]> {
        let replaced = self.stored.iter().skip(1).map(|(at, _)| *at).chain([i64::MAX]);
        self.stored
            .iter()
            .zip(replaced)
            .filter(|(_, replaced)| self.now - LAG < *replaced)
            .filter_map(|((_, bundle), _)| bundle.as_deref())
    }

    /// What every replica serves verifies under what every API server may go by.
    fn check(&self) -> Result<(), String> {
        for (i, replica) in self.replicas.iter().enumerate() {
            let Some(served) = &replica.served else { continue };
            for bundle in self.believed() {
                verify(served.chain(), &certificates(bundle)?, Some(NAME), self.now)
                    .map_err(|why| format!("replica {i} at {}: {why}", self.now - NOW))?;
            }
        }
        Ok(())
    }
}

/// What happens beside the run of time.
#[derive(Clone, Copy, Debug)]
enum Event {
    RestartGuard,
    RestartReplica(usize),
    Remove(&'static str),
    Break(&'static str),
    Empty,
    Pass(i64),
}

const KEYS: [&str; 5] = [CERTIFICATE, KEY, BUNDLE, CA_KEY, NEXT_CA_KEY];

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        4 => (1..2000i64).prop_map(Event::Pass),
        2 => Just(Event::RestartGuard),
        2 => (0..2usize).prop_map(Event::RestartReplica),
        1 => prop::sample::select(&KEYS[..]).prop_map(Event::Remove),
        1 => prop::sample::select(&KEYS[..]).prop_map(Event::Break),
        1 => Just(Event::Empty),
    ];
    prop::collection::vec(event, 1..12)
}

/// So many seconds pass: the guard looks each second where something is under way, the replicas each five.
fn pass(world: &mut World, seconds: i64) -> Result<(), String> {
    let until = world.now + seconds;
    while world.now < until {
        let before = world.secret.clone();
        world.guard();
        world.programme();
        for i in 0..2 {
            if (world.now + 2 * i64::try_from(i).unwrap()) % 5 == 0 {
                world.replica(i);
            }
        }
        world.check()?;
        let waits = world.secret != before
            || world.secret.contains_key(NEXT_CA_KEY)
            || world.replicas.iter().any(|replica| {
                let served = replica.served.as_ref().map(|served| served.chain()[0].clone());
                let wanted = world.secret.get(CERTIFICATE).and_then(|pem| certificates(pem).ok());
                served != wanted.map(|wanted| wanted[0].clone())
            });
        world.now += if waits { 1 } else { 47 };
    }
    Ok(())
}

#[test]
fn over_ten_lives_of_an_authority_each_replica_serves_what_is_trusted() {
    let mut world = World::new();
    pass(&mut world, 60).unwrap();
    let first = world.secret.get(BUNDLE).cloned();
    assert!(world.replicas.iter().all(|replica| replica.served.is_some()));
    pass(&mut world, 10 * TERMS.authority).unwrap();
    assert_ne!(world.secret.get(BUNDLE).cloned(), first);
    let held = Held::read(&world.secret, &world.names, world.now);
    assert!(held.is_good(world.now) && held.bundle().len() <= 2, "{held:?}");
    assert!(world.stored.len() > 10, "{}", world.stored.len());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_is_lost_or_restarted_nobody_serves_what_is_not_trusted(events in events()) {
        let mut world = World::new();
        for event in events {
            match event {
                Event::RestartGuard => {
                    world.guard = TrustWatch::new(DELAY);
                    world.good.clear();
                }
                Event::RestartReplica(i) => world.replicas[i] = Replica::new(),
                Event::Remove(key) => drop(world.secret.remove(key)),
                Event::Break(key) => drop(world.secret.insert(key.into(), b"nonsense".to_vec())),
                Event::Empty => world.secret.clear(),
                Event::Pass(seconds) => pass(&mut world, seconds).map_err(TestCaseError::fail)?,
            }
        }
        // Long enough for whatever waits to be trusted.
        pass(&mut world, 60 + PATIENCE).map_err(TestCaseError::fail)?;
        let held = Held::read(&world.secret, &world.names, world.now);
        prop_assert!(held.is_good(world.now), "{held:?}");
        for replica in &world.replicas {
            let served = replica.served.as_ref().map(|pair| pair.valid_at(world.now).is_ok());
            prop_assert_eq!(served, Some(true));
        }
    }
}

#[test]
fn a_certificate_for_other_names_is_of_no_use_and_the_next_one_has_the_right_ones() {
    let mut world = World::new();
    pass(&mut world, 30).unwrap();
    let authority = world.secret.get(CA_KEY).cloned();
    let names = [
        NAME.to_owned(),
        "other.deployer-guard.svc".to_owned(),
        "127.0.0.1".to_owned(),
    ];
    let held = Held::read(&world.secret, &names, world.now);
    let facts = held.facts(|_| Trust::Fresh, false);
    assert!(
        !held.is_good(world.now) && matches!(&facts.leaf, Leaf::Bad(why) if why.contains("other.deployer-guard.svc"))
    );
    world.names = names.to_vec();
    pass(&mut world, 30).unwrap();
    assert!(Held::read(&world.secret, &names, world.now).is_good(world.now));
    assert_eq!(world.secret.get(CA_KEY).cloned(), authority, "the authority stays");
}

#[test]
fn a_secret_that_was_filled_by_hand_is_tidied_and_what_is_not_ours_stays() {
    let mut world = World::new();
    pass(&mut world, 30).unwrap();
    let leaf = world.secret[CERTIFICATE].clone();
    world.secret.insert("note".into(), b"mine".to_vec());
    world.secret.get_mut(BUNDLE).unwrap().extend_from_slice(&leaf);
    world.guard();
    assert_eq!(
        certificates(&world.secret[BUNDLE]).unwrap().len(),
        1,
        "a leaf is no authority"
    );
    assert_eq!(
        (&world.secret["note"][..], &world.secret[CERTIFICATE]),
        (&b"mine"[..], &leaf)
    );
}

#[test]
fn every_reason_is_documented() {
    let documented = include_str!("../../../docs/reasons.md");
    let steps = [
        Step::Restore,
        Step::Join(Why::None),
        Step::Promote(Why::Trusted),
        Step::Issue(Why::Due),
        Step::Tidy("x".into()),
    ];
    for step in steps {
        let (reason, text) = super::told(&step);
        assert!(documented.contains(&format!("| `{reason}` |")), "{reason}");
        assert!(!text.is_empty());
    }
}
