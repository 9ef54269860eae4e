//! Several lives in virtual time, with real certificates: at every moment what is served verifies under what is stored.

use std::time::Duration;

use proptest::prelude::*;
use rustls::pki_types::CertificateDer;
use tokio::time::Instant;

use super::authority::{Life, Made, authority, serving};
use super::held::{BUNDLE, CA_KEY, CERTIFICATE, Data, Held, KEY, NEXT_CA_KEY, OURS, vouch};
use super::plan::{Leaf, PATIENCE, Step, Terms, Trust, Why, plan};
use super::telling::told;
use super::watch::TrustWatch;
use crate::guard::configuration::ca_bundle::{BundleSource, CaBundle, LINGER, pem};
use crate::telemetry::metrics::GuardMetrics;
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
    entries: Vec<Entry>,
    ca_bundle: CaBundle,
    metrics: GuardMetrics,
    /// The guard fills the Secret; else somebody else does.
    is_self_managed: bool,
    guard: TrustWatch,
    replicas: Vec<Replica>,
    names: Vec<String>,
    /// What the guard would put back.
    good: Data,
}

/// An entry: its bundle, and the ones before with the time at which they were replaced.
#[derive(Default)]
struct Entry {
    stored: Vec<(i64, Vec<u8>)>,
    /// The API server does not let us change it.
    is_stuck: bool,
}

impl Entry {
    fn bundle(&self) -> Option<&[u8]> {
        self.stored.last().map(|(_, bundle)| bundle.as_slice())
    }

    /// The bundles that an API server may go by now: what is stored, and what was until a moment ago.
    fn believed(&self, now: i64) -> impl Iterator<Item = &[u8]> {
        let replaced = self.stored.iter().skip(1).map(|(at, _)| *at).chain([i64::MAX]);
        self.stored
            .iter()
            .zip(replaced)
            .filter(move |(_, replaced)| now - LAG < *replaced)
            .map(|((_, bundle), _)| bundle.as_slice())
    }
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
            entries: vec![Entry::default(), Entry::default(), Entry::default()],
            ca_bundle: CaBundle::load(BundleSource::Secret).unwrap(),
            metrics: GuardMetrics::default(),
            is_self_managed: true,
            guard: TrustWatch::new(DELAY),
            replicas: vec![Replica::new(), Replica::new()],
            names: vec![NAME.to_owned()],
            good: Data::new(),
        }
    }

    fn at(&self) -> Instant {
        self.began + Duration::from_secs(u64::try_from(self.now - NOW).unwrap())
    }

    fn bundles(&self) -> Vec<Vec<CertificateDer<'static>>> {
        let bundles = self.entries.iter().filter_map(Entry::bundle);
        bundles.map(|bundle| certificates(bundle).unwrap()).collect()
    }

    /// The guard programs the configuration with what the Secret holds.
    fn programme(&mut self) {
        let at = self.at();
        let stored = ["a", "b", "c"].into_iter().zip(&self.entries);
        let stored = stored.filter_map(|(name, entry)| Some((name, entry.bundle()?)));
        self.ca_bundle.found_stored(stored, true, at);
        match self.secret.get(BUNDLE).and_then(|pem| certificates(pem).ok()) {
            Some(found) => {
                let vouches = vouch(&found, &self.secret, NAME, self.now);
                self.ca_bundle.learn(found, vouches, at, &self.metrics);
            }
            None => self.ca_bundle.failed("it is no bundle", at, &self.metrics),
        }
        let Some(bundle) = self.ca_bundle.current().filter(|_| !self.ca_bundle.is_awaited()) else {
            return;
        };
        for entry in self.entries.iter_mut().filter(|entry| !entry.is_stuck) {
            if entry.bundle() != Some(&bundle) {
                entry.stored.push((self.now, bundle.clone()));
            }
        }
    }

    fn guard(&mut self) {
        for _ in 0..4 {
            if !self.is_self_managed {
                return;
            }
            let stored = self.bundles();
            self.guard.look(&stored, self.at(), self.at());
            let held = Held::read(&self.secret, &self.names, self.now);
            if held.is_good(self.now) {
                self.good = self.secret.clone();
            }
            let remembered = Held::read(&self.good, &self.names, self.now).is_good(self.now);
            let facts = held.facts(|ca| self.guard.of(ca), remembered);
            match plan(&facts, TERMS, self.now) {
                Step::Rest | Step::Wait | Step::Doubt => return,
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
        let trusters = self.entries.iter().filter_map(Entry::bundle).map(|bundle| Truster {
            entry: "p".into(),
            server_name: NAME.into(),
            bundle: Some(bundle.to_vec()),
        });
        let entries = Ok(trusters.collect());
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
        let is_served = match served.filter(|served| HoldBack::is_needed(Some(served), self.now)) {
            Some(served) => replica.hold_back.judge(served, &pair, &look) == Verdict::Serve,
            None => true,
        };
        if is_served {
            replica.served = Some(pair);
        }
    }

    /// Whether the Secret is good, and every replica serves what has not expired.
    fn is_well(&self) -> bool {
        let served = |replica: &Replica| {
            replica
                .served
                .as_ref()
                .is_some_and(|pair| pair.valid_at(self.now).is_ok())
        };
        Held::read(&self.secret, &self.names, self.now).is_good(self.now) && self.replicas.iter().all(served)
    }

    /// What every replica serves verifies under what every API server may go by, for each entry that the guard can keep right.
    fn check(&self) -> Result<(), String> {
        for (i, replica) in self.replicas.iter().enumerate() {
            let Some(served) = &replica.served else { continue };
            let entries = self.entries.iter().filter(|entry| !entry.is_stuck);
            for bundle in entries.flat_map(|entry| entry.believed(self.now)) {
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
    Stick,
    Pass(i64),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        4 => (1..2000i64).prop_map(Event::Pass),
        2 => Just(Event::RestartGuard),
        2 => (0..2usize).prop_map(Event::RestartReplica),
        1 => prop::sample::select(&OURS[..]).prop_map(Event::Remove),
        1 => prop::sample::select(&OURS[..]).prop_map(Event::Break),
        1 => Just(Event::Empty),
        1 => Just(Event::Stick),
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
            if world.replicas[i].served.is_none() || (world.now + 2 * i64::try_from(i).unwrap()) % 5 == 0 {
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
    assert!(held.is_good(world.now) && held.bundle().len() <= 8, "{held:?}");
    assert!(world.entries[0].stored.len() > 10);
}

#[test]
fn where_an_entry_never_trusts_a_new_authority_the_others_are_served_without_a_gap_when_the_old_one_ends() {
    for beside in [0, 1, 2, 3, 4] {
        let mut world = World::new();
        pass(&mut world, 2000 + beside).unwrap();
        world.entries[1].is_stuck = true;
        pass(&mut world, 2 * TERMS.authority).unwrap();
        assert!(world.is_well());
    }
}

fn cases() -> u32 {
    std::env::var("PROPTEST_CASES")
        .ok()
        .and_then(|cases| cases.parse().ok())
        .unwrap_or(24)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]

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
                Event::Stick => world.entries[1].is_stuck = true,
                Event::Pass(seconds) => pass(&mut world, seconds).map_err(TestCaseError::fail)?,
            }
        }
        // Long enough for whatever waits to be trusted.
        pass(&mut world, 60 + PATIENCE).map_err(TestCaseError::fail)?;
        let held = Held::read(&world.secret, &world.names, world.now);
        prop_assert!(world.is_well(), "{held:?}");
    }
}

/// Who exchanges an authority and its certificate, in which order.
#[derive(Clone, Copy, Debug)]
enum Order {
    AtOnce,
    AuthorityFirst,
    CertificateFirst,
    KeyLast,
}

#[test]
fn whoever_exchanges_an_authority_in_whatever_order_no_entry_that_can_be_written_refuses_what_is_served() {
    for order in [
        Order::AtOnce,
        Order::AuthorityFirst,
        Order::CertificateFirst,
        Order::KeyLast,
    ] {
        for stuck in [false, true] {
            exchange(order, stuck).unwrap_or_else(|why| panic!("{order:?}, stuck: {stuck}: {why}"));
        }
    }
}

/// The data of a Secret that somebody else fills.
fn foreign(now: i64) -> Data {
    let Made { certificate, key } = authority(Life::from(now, 90_000)).unwrap();
    let ca = certificates(certificate.as_bytes()).unwrap();
    let leaf = serving(&ca[0], &key, &[NAME.to_owned()], Life::from(now, 80_000)).unwrap();
    Data::from([
        (BUNDLE.to_owned(), pem(ca.iter())),
        (CERTIFICATE.to_owned(), leaf.certificate.into_bytes()),
        (KEY.to_owned(), leaf.key.into_bytes()),
    ])
}

fn exchange(order: Order, stuck: bool) -> Result<(), String> {
    let linger = i64::try_from(LINGER.as_secs()).unwrap();
    let mut world = World::new();
    world.is_self_managed = false;
    world.secret = foreign(world.now);
    pass(&mut world, 60)?;
    world.entries[1].is_stuck = stuck;
    let new = foreign(world.now);
    let whole = [BUNDLE, CERTIFICATE, KEY];
    let steps: [&[&str]; 2] = match order {
        Order::AtOnce => [&whole, &[]],
        Order::AuthorityFirst => [&[BUNDLE], &[CERTIFICATE, KEY]],
        Order::CertificateFirst => [&[CERTIFICATE, KEY], &[BUNDLE]],
        Order::KeyLast => [&[BUNDLE, CERTIFICATE], &[KEY]],
    };
    for step in steps {
        for key in step {
            world.secret.insert((*key).to_owned(), new[*key].clone());
        }
        pass(&mut world, 2 * linger + 100)?;
    }
    if !stuck {
        let left = certificates(world.entries[0].bundle().unwrap())?;
        assert_eq!(left, certificates(&new[BUNDLE])?, "{order:?}: the old authority goes");
        let leaf = &certificates(&new[CERTIFICATE])?[0];
        let served = world.replicas.iter().map(|replica| replica.served.as_ref());
        assert!(served.flatten().all(|pair| &pair.chain()[0] == leaf), "{order:?}");
    }
    Ok(())
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
        let (reason, text) = told(&step);
        assert!(documented.contains(&format!("| `{reason}` |")), "{reason}");
        assert!(!text.is_empty());
    }
}

#[test]
fn a_clock_that_jumps_is_not_believed_for_a_while() {
    let at = Instant::now();
    let mut memory = super::Memory::new(DELAY);
    let hour = Duration::from_hours(1);
    for (passed, wall, believed) in [
        (Duration::ZERO, 0, true),
        (Duration::from_secs(1), 2, true),
        (hour, 3600 + 50, true),
        (hour * 2, 86_400, false),
        (hour * 2 + Duration::from_mins(4), 86_400 + 240, false),
        (hour * 2 + Duration::from_mins(5), 86_400 + 300, true),
        (hour * 3, 3600 * 3, false),
        (hour * 4, 3600 * 4, true),
    ] {
        assert_eq!(memory.trusts_clock(NOW + wall, at + passed), believed, "{wall}");
    }
}

#[test]
fn writes_that_fail_are_tried_again_ever_more_slowly() {
    let at = Instant::now();
    let mut memory = super::Memory::new(DELAY);
    assert!(!memory.pauses(at));
    for seconds in [1, 2, 4, 8, 16, 32, 64, 120, 120] {
        memory.failed(at);
        assert!(memory.pauses(at + Duration::from_millis(seconds * 1000 - 1)));
        assert!(!memory.pauses(at + Duration::from_secs(seconds)), "{seconds}");
    }
}

#[test]
fn what_is_put_back_leaves_what_others_keep_in_the_secret() {
    let data = |pairs: &[(&str, &str)]| -> Data {
        let pairs = pairs
            .iter()
            .map(|(key, value)| ((*key).to_owned(), value.as_bytes().to_vec()));
        pairs.collect()
    };
    let remembered = data(&[(CERTIFICATE, "ours"), ("theirs", "old")]);
    let restored = super::restored(data(&[("theirs", "new"), (NEXT_CA_KEY, "")]), &remembered);
    assert_eq!(restored, data(&[(CERTIFICATE, "ours"), ("theirs", "new")]));
}
