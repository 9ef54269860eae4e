//! Each state of the Secret, and its step.

use super::Trust::{Fresh, Missing, Settled};
use super::*;

const TERMS: Terms = Terms {
    authority: 9000,
    certificate: 3600,
};
const NOW: i64 = 1_800_000_000;
/// An authority of this age is to be renewed; its certificate of [`DUE`] is.
const OLD: i64 = 6001;
const DUE: i64 = 2500;

fn life(age: i64, seconds: i64) -> Life {
    Life::from(NOW - age, seconds)
}

fn authority(age: i64, trust: Trust) -> Authority {
    let life = life(age, TERMS.authority);
    Authority { life, trust }
}

fn leaf(age: i64) -> Leaf {
    Leaf::Good(life(age, TERMS.certificate))
}

fn half() -> Leaf {
    Leaf::Bad("half".into())
}

fn because(why: &str) -> Why {
    Why::Bad(why.into())
}

fn facts(current: impl Into<Option<Authority>>, next: impl Into<Option<Authority>>, leaf: Leaf) -> Facts {
    Facts {
        is_empty: false,
        is_remembered: false,
        current: current.into(),
        next: next.into(),
        leaf,
        useless: None,
        clutter: None,
    }
}

fn hold<const N: usize>(rows: [(&str, Facts, Step); N]) {
    for (what, facts, step) in rows {
        assert_eq!(plan(&facts, TERMS, NOW), step, "{what}");
    }
}

#[test]
fn one_authority_issues_and_is_renewed_at_two_thirds_as_its_certificate_is() {
    let tired = facts(authority(8990, Settled), None, Leaf::Good(life(8990, 9000)));
    hold([
        (
            "all is well",
            facts(authority(100, Settled), None, leaf(100)),
            Step::Rest,
        ),
        (
            "one not trusted yet",
            facts(authority(100, Missing), None, leaf(100)),
            Step::Rest,
        ),
        (
            "a leaf is due",
            facts(authority(DUE, Settled), None, leaf(DUE)),
            Step::Issue(Why::Due),
        ),
        (
            "an authority is due",
            facts(authority(OLD, Settled), None, leaf(100)),
            Step::Join(Why::Due),
        ),
        (
            "both are",
            facts(authority(OLD, Settled), None, leaf(DUE)),
            Step::Issue(Why::Due),
        ),
        ("no new leaf would live longer", tired, Step::Join(Why::Due)),
    ]);
    let clutter = Facts {
        clutter: Some("x".into()),
        ..facts(authority(100, Settled), None, leaf(100))
    };
    hold([("clutter", clutter, Step::Tidy("x".into()))]);
}

#[test]
fn a_new_authority_waits_until_it_is_trusted_or_nothing_else_is_left() {
    let waits = |next, leaf| facts(authority(OLD, Settled), next, leaf);
    hold([
        (
            "one entry lacks it",
            waits(authority(10, Missing), leaf(100)),
            Step::Wait,
        ),
        (
            "API servers may not know it",
            waits(authority(10, Fresh), leaf(100)),
            Step::Wait,
        ),
        (
            "nobody ever trusts it",
            waits(authority(PATIENCE, Missing), leaf(100)),
            Step::Wait,
        ),
        (
            "a leaf is due",
            waits(authority(10, Fresh), leaf(DUE)),
            Step::Issue(Why::Due),
        ),
        (
            "a leaf is broken",
            waits(authority(10, Fresh), half()),
            Step::Issue(because("half")),
        ),
        (
            "trusted",
            waits(authority(10, Settled), leaf(100)),
            Step::Promote(Why::Trusted),
        ),
        ("a first one", facts(None, authority(10, Fresh), half()), Step::Wait),
        (
            "a first one that one entry never trusts",
            facts(None, authority(PATIENCE, Missing), half()),
            Step::Promote(Why::Overdue),
        ),
        (
            "the old one expired",
            facts(authority(9001, Settled), authority(PATIENCE, Fresh), leaf(3601)),
            Step::Promote(Why::Overdue),
        ),
    ]);
}

#[test]
fn what_is_of_no_use_is_made_anew_as_soon_as_it_would_be_trusted() {
    let broken = |authority| facts(authority, None, half());
    let nothing = "there is no authority whose key and certificate are both there";
    hold([
        ("trusted", broken(authority(100, Settled)), Step::Issue(because("half"))),
        (
            "trusted now",
            broken(authority(100, Fresh)),
            Step::Issue(because("half")),
        ),
        ("not trusted", broken(authority(100, Missing)), Step::Wait),
        (
            "not trusted for long",
            broken(authority(PATIENCE, Missing)),
            Step::Issue(because("half")),
        ),
        (
            "a leaf expired",
            facts(authority(4000, Settled), None, leaf(3601)),
            Step::Issue(because("it expired")),
        ),
        (
            "an authority expired",
            facts(authority(9001, Settled), None, leaf(3601)),
            Step::Join(because("it expired")),
        ),
        (
            "no authority",
            facts(None, None, leaf(100)),
            Step::Join(because(nothing)),
        ),
    ]);
    let empty = Facts {
        is_empty: true,
        ..facts(None, None, half())
    };
    let remembered = Facts {
        is_remembered: true,
        ..empty.clone()
    };
    hold([
        ("nothing", empty, Step::Join(Why::None)),
        ("nothing, and what was there is known", remembered, Step::Restore),
    ]);
}

#[test]
fn nothing_takes_the_place_of_an_authority_that_is_not_valid_yet() {
    let early = authority(-400, Settled);
    hold([
        ("the one that issues", facts(early, None, half()), Step::Doubt),
        ("and all is well", facts(early, None, leaf(-400)), Step::Doubt),
        (
            "with a successor",
            facts(early, authority(10, Settled), leaf(100)),
            Step::Doubt,
        ),
        ("the next one, alone", facts(None, early, half()), Step::Doubt),
        (
            "the next one, and the old one is due",
            facts(authority(OLD, Settled), early, leaf(100)),
            Step::Doubt,
        ),
        (
            "the next one, and a leaf is due",
            facts(authority(DUE, Settled), early, leaf(DUE)),
            Step::Issue(Why::Due),
        ),
        (
            "a leaf alone",
            facts(authority(100, Settled), None, leaf(-400)),
            Step::Issue(because("it is not valid yet")),
        ),
    ]);
}
