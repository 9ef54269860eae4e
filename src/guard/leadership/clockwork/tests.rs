use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use proptest::prelude::*;

use super::super::lease::{released, taken};
use super::*;

const LEASE: Duration = Duration::from_secs(15);
const SECOND: Duration = Duration::from_secs(1);

fn lease(spec: LeaseSpec) -> Lease {
    Lease {
        metadata: ObjectMeta {
            uid: Some("u".into()),
            ..ObjectMeta::default()
        },
        spec: Some(spec),
    }
}

fn held(holder: &str, term: i32, renewed: i64) -> Lease {
    lease(LeaseSpec {
        holder_identity: Some(holder.into()),
        lease_duration_seconds: Some(15),
        lease_transitions: Some(term),
        renew_time: Some(MicroTime(Timestamp::from_second(renewed).unwrap())),
        ..LeaseSpec::default()
    })
}

fn clockwork(identity: &str) -> Clockwork {
    Clockwork::new(identity.into(), Times::of(LEASE))
}

fn look(clockwork: &mut Clockwork, now: Instant, lease: &Lease) -> Next {
    clockwork.look(now, now, Some(&Reading::of(lease)))
}

#[test]
fn three_tries_fit_into_the_time_in_which_a_leader_leads() {
    for seconds in 3..=60 {
        let times = Times::of(Duration::from_secs(seconds));
        assert!(times.renew + 3 * times.attempt + 2 * times.pause <= times.safe);
        assert!(times.safe < times.lease);
    }
}

#[test]
fn another_is_left_alone_while_it_renews_whatever_its_clock_says() {
    let (mut clock, start) = (clockwork("us"), Instant::now());
    for i in 0..100 {
        // Its clock runs an hour behind, an hour ahead, backwards: only that it changes counts.
        for renewed in [-3600, 3600, -i] {
            let now = start + SECOND * (u32::try_from(i).unwrap() * 5);
            assert_eq!(look(&mut clock, now, &held("other", 3, renewed + i)), Next::Wait);
        }
    }
}

#[test]
fn another_is_followed_after_a_whole_lease_without_a_change() {
    let (mut clock, start) = (clockwork("us"), Instant::now());
    let dead = held("other", 3, 3600);
    assert_eq!(look(&mut clock, start, &dead), Next::Wait);
    assert_eq!(look(&mut clock, start + SECOND * 14, &dead), Next::Wait);
    let taking = Next::Take { term: 4, alone: true };
    assert_eq!(look(&mut clock, start + SECOND * 15, &dead), taking);
}

/// What was read before the lease was over says nothing about its end.
#[test]
fn a_slow_read_counts_from_its_beginning_and_a_first_one_from_its_end() {
    let (mut clock, start) = (clockwork("us"), Instant::now());
    let reading = Reading::of(&held("other", 3, 0));
    assert_eq!(clock.look(start, start + SECOND * 10, Some(&reading)), Next::Wait);
    assert_eq!(
        clock.look(start + SECOND * 24, start + SECOND * 40, Some(&reading)),
        Next::Wait
    );
    let taking = Next::Take { term: 4, alone: true };
    assert_eq!(
        clock.look(start + SECOND * 25, start + SECOND * 25, Some(&reading)),
        taking
    );
}

#[test]
fn a_longer_lease_of_another_is_respected() {
    let (mut clock, start) = (clockwork("us"), Instant::now());
    let mut dead = held("other", 3, 0);
    dead.spec.as_mut().unwrap().lease_duration_seconds = Some(40);
    for (seconds, wanted) in [
        (0, Next::Wait),
        (39, Next::Wait),
        (40, Next::Take { term: 4, alone: true }),
    ] {
        assert_eq!(look(&mut clock, start + SECOND * seconds, &dead), wanted, "{seconds}");
    }
}

#[test]
fn an_absurd_lease_is_taken_after_one_lease_of_ours_and_not_before() {
    let hour = |ahead| Some(MicroTime(Timestamp::now() + Duration::from_hours(1) * ahead));
    let absurd: Vec<(&str, LeaseSpec)> = vec![
        ("empty", LeaseSpec::default()),
        (
            "a holder alone",
            LeaseSpec {
                holder_identity: Some("kubectl".into()),
                ..LeaseSpec::default()
            },
        ),
        (
            "an hour ahead",
            LeaseSpec {
                renew_time: hour(1),
                ..held("other", 3, 0).spec.unwrap()
            },
        ),
        ("1970", held("other", 3, 0).spec.unwrap()),
        (
            "no duration",
            LeaseSpec {
                lease_duration_seconds: Some(0),
                ..held("other", 3, 0).spec.unwrap()
            },
        ),
        (
            "a huge duration",
            LeaseSpec {
                lease_duration_seconds: Some(i32::MAX),
                ..held("other", 3, 0).spec.unwrap()
            },
        ),
        (
            "a negative duration",
            LeaseSpec {
                lease_duration_seconds: Some(-1),
                ..held("other", 3, 0).spec.unwrap()
            },
        ),
        ("negative transitions", held("other", -7, 0).spec.unwrap()),
        ("the last transition", held("other", i32::MAX, 0).spec.unwrap()),
        ("no holder", held("", 3, 0).spec.unwrap()),
    ];
    for (what, spec) in absurd {
        let (mut clock, start, lease) = (clockwork("us"), Instant::now(), lease(spec));
        assert_eq!(look(&mut clock, start, &lease), Next::Wait, "{what}");
        assert_eq!(look(&mut clock, start + SECOND * 14, &lease), Next::Wait, "{what}");
        let Next::Take { term, alone: true } = look(&mut clock, start + SECOND * 15, &lease) else {
            panic!("{what}: it is not taken");
        };
        let ours = taken(&lease, "us", LEASE, term, Timestamp::now());
        let reading = Reading::of(&ours);
        assert_eq!(
            (reading.holder.as_deref(), reading.term, reading.duration),
            (Some("us"), Some(term), Some(LEASE)),
            "{what}"
        );
    }
}

#[test]
fn one_that_was_released_is_taken_at_once() {
    let mut clock = clockwork("us");
    let free = released(&held("other", 3, 0), Timestamp::now());
    let taking = Next::Take { term: 4, alone: true };
    assert_eq!(look(&mut clock, Instant::now(), &free), taking);
}

#[test]
fn a_leader_leads_from_its_conditional_write_until_two_thirds_of_a_lease_after_it_began_its_last_one() {
    let (mut clock, start) = (clockwork("us"), Instant::now());
    clock.trying("u", 4);
    assert!(!clock.leads(start));
    // The answer took nine seconds: they count.
    clock.confirm(start, start + SECOND * 9, Some(&Reading::of(&held("us", 4, 1))));
    assert!(clock.leads(start + SECOND * 9));
    assert!(!clock.leads(start + SECOND * 10));
    clock.confirm(
        start + SECOND * 9,
        start + SECOND * 9,
        Some(&Reading::of(&held("us", 4, 2))),
    );
    assert!(clock.leads(start + SECOND * 18));
    clock.confirm(
        start + SECOND * 18,
        start + SECOND * 18,
        Some(&Reading::of(&held("other", 5, 3))),
    );
    assert!(!clock.leads(start + SECOND * 18));
}

/// The crate took it by its unconditional patch, somebody made it anew, or an admin wrote our name into it.
#[test]
fn one_that_is_named_without_its_conditional_write_waits_for_the_time_of_others_to_end() {
    let (mut clock, start) = (clockwork("us"), Instant::now());
    let ours = Reading::of(&held("us", 4, 1));
    clock.confirm(start, start + SECOND, Some(&ours));
    for seconds in 1..11 {
        let now = start + SECOND * seconds;
        clock.confirm(now, now, Some(&ours));
        assert!(!clock.leads(now), "{seconds}");
    }
    let now = start + SECOND * 11;
    clock.confirm(now, now, Some(&ours));
    assert!(clock.leads(now));
}

#[test]
fn a_lost_answer_to_its_conditional_write_costs_no_wait() {
    let (mut clock, start) = (clockwork("us"), Instant::now());
    clock.trying("u", 4);
    let ours = held("us", 4, 1);
    assert_eq!(look(&mut clock, start, &ours), Next::Renew);
    clock.confirm(start, start, Some(&Reading::of(&ours)));
    assert!(clock.leads(start));
}

#[test]
fn who_resigned_leads_no_more() {
    let (mut clock, start) = (clockwork("us"), Instant::now());
    clock.trying("u", 4);
    clock.confirm(start, start, Some(&Reading::of(&held("us", 4, 1))));
    clock.resign();
    assert!(!clock.leads(start));
}

/// A store with one Lease, and what happens to a write of each kind.
struct World {
    now: Instant,
    version: u64,
    lease: Option<Lease>,
    /// The next uid.
    made: u64,
}

#[derive(Clone, Debug)]
enum Step {
    Idle,
    Reading {
        begun: Instant,
    },
    Read {
        begun: Instant,
        seen: Option<(u64, Lease)>,
    },
    Writing {
        begun: Instant,
        seen: Option<(u64, Lease)>,
        next: Next,
    },
    Rereading {
        begun: Instant,
    },
    Reread {
        begun: Instant,
        seen: Option<Lease>,
    },
}

struct Candidate {
    name: &'static str,
    clock: Clockwork,
    step: Step,
}

impl World {
    fn write(&mut self, mut lease: Lease) {
        self.version += 1;
        let renewed = Timestamp::from_second(i64::try_from(self.version).unwrap()).unwrap();
        lease.spec.get_or_insert_default().renew_time = Some(MicroTime(renewed));
        self.lease = Some(lease);
    }

    fn seen(&self) -> Option<(u64, Lease)> {
        self.lease.clone().map(|lease| (self.version, lease))
    }
}

impl Candidate {
    /// Goes one step on. `steals`: the crate takes another's Lease for expired, because of the clocks.
    fn go(&mut self, world: &mut World, steals: bool) {
        self.step = match self.step.clone() {
            Step::Idle if self.clock.leads(world.now) => Step::Writing {
                begun: world.now,
                seen: None,
                next: Next::Renew,
            },
            Step::Idle => Step::Reading { begun: world.now },
            Step::Reading { begun } => Step::Read {
                begun,
                seen: world.seen(),
            },
            Step::Read { begun, seen } => {
                let reading = seen.as_ref().map(|(_, lease)| Reading::of(lease));
                match self.clock.look(begun, world.now, reading.as_ref()) {
                    Next::Wait => Step::Idle,
                    next => {
                        if let (Next::Take { term, alone: true }, Some(reading)) = (next, &reading) {
                            self.clock.trying(&reading.uid, term);
                        }
                        Step::Writing {
                            begun: world.now,
                            seen,
                            next,
                        }
                    }
                }
            }
            Step::Writing { begun, seen, next } => self.write(world, begun, seen.as_ref(), next, steals),
            Step::Rereading { begun } => Step::Reread {
                begun,
                seen: world.lease.clone(),
            },
            Step::Reread { begun, seen } => {
                let reading = seen.as_ref().map(Reading::of);
                self.clock.confirm(begun, world.now, reading.as_ref());
                Step::Idle
            }
        };
    }

    fn write(
        &mut self,
        world: &mut World,
        begun: Instant,
        seen: Option<&(u64, Lease)>,
        next: Next,
        steals: bool,
    ) -> Step {
        match (next, seen, world.lease.clone()) {
            (Next::Take { term, .. }, Some((version, read)), _) => {
                if world.lease.is_none() || *version != world.version {
                    self.clock.lost();
                    return Step::Idle;
                }
                world.write(taken(read, self.name, LEASE, term, Timestamp::UNIX_EPOCH));
            }
            (_, _, None) => {
                world.made += 1;
                let mut lease = held(self.name, 0, 0);
                lease.metadata.uid = Some(world.made.to_string());
                world.write(lease);
            }
            (_, _, Some(lease)) if Reading::of(&lease).holder.as_deref() == Some(self.name) => world.write(lease),
            (_, _, Some(lease)) if steals => {
                let term = Reading::of(&lease).term.unwrap_or_default() + 1;
                world.write(taken(&lease, self.name, LEASE, term, Timestamp::UNIX_EPOCH));
            }
            // The crate renews without a look at the holder of what it writes to.
            (_, _, Some(lease)) => world.write(lease),
        }
        Step::Rereading { begun }
    }
}

/// One thing that happens: who goes on, after how long in milliseconds, and what else.
#[derive(Clone, Copy, Debug)]
struct Happening {
    who: usize,
    after: u16,
    steals: bool,
    deleted: bool,
}

fn happening() -> impl Strategy<Value = Happening> {
    let after = prop_oneof![8 => 0..1500_u16, 2 => 0..8000_u16, 1 => 9000..32_000_u16];
    (0..2_usize, after, prop::bool::weighted(0.1), prop::bool::weighted(0.02)).prop_map(
        |(who, after, steals, deleted)| Happening {
            who,
            after,
            steals,
            deleted,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever is slow, paused between any two steps, stolen by the crate or deleted: two never lead at one moment.
    #[test]
    fn two_never_lead(script in prop::collection::vec(happening(), 1..120)) {
        let mut world = World { now: Instant::now(), version: 0, lease: None, made: 0 };
        let mut candidates = ["one", "other"].map(|name| Candidate { name, clock: clockwork(name), step: Step::Idle });
        for happening in script {
            for _ in 0..10 {
                world.now += Duration::from_millis(happening.after.into()) / 10;
                let leading = candidates.iter().filter(|candidate| candidate.clock.leads(world.now));
                prop_assert!(leading.count() < 2, "both lead");
            }
            if happening.deleted {
                world.lease = None;
            }
            candidates[happening.who].go(&mut world, happening.steals);
        }
    }
}
