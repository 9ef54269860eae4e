//! Every action, and each rail that keeps a guard from it.

use super::*;
use crate::api::claim::Outcome;

/// Each row is what was read, and the actions as words.
fn check(rows: Vec<(&str, Snapshot, &[&str])>) {
    for (case, snapshot, expected) in rows {
        assert_eq!(words(&snapshot, &terms()), expected, "{case}");
    }
}

#[test]
fn what_is_done_about_holders_and_strangers() {
    let ordinal = |ordinal| move |pod: &mut FoundPod| pod.place = here(Some(ordinal), Some("c"));
    let aged = |second| move |pod: &mut FoundPod| pod.created = Some(at(second));
    let other_uid = |pod: &mut FoundPod| pod.uid = "other".into();
    check(vec![
        ("nothing", read(None, []), &[][..]),
        ("an active holder", read(held("a"), [pod("a", as_is)]), &[]),
        ("a pending pod that is not there", read(pending("a"), []), &[]),
        (
            "another pod under a pending name",
            read(pending("a"), [pod("a", other_uid)]),
            &["condemn a"],
        ),
        (
            "a pending pod that arrived",
            read(pending("a"), [pod("a", as_is)]),
            &["confirm a"],
        ),
        ("a holder that is gone", read(held("a"), []), &["free a Unknown"]),
        (
            "a holder that finished",
            read(held("a"), [pod("a", finished)]),
            &["free a Completed"],
        ),
        (
            "another under the holder's name",
            read(held("a"), [pod("a", other_uid)]),
            &["adopt a"],
        ),
        ("no claim, one active", read(None, [pod("s", as_is)]), &["adopt s"]),
        ("no claim, one started", read(None, [pod("s", started)]), &["adopt s"]),
        ("no claim, one finished", read(None, [pod("s", finished)]), &[]),
        (
            "a pending orphan and another",
            read(pending("a"), [pod("a", orphaned), pod("s", as_is)]),
            &["confirm a", "condemn s"],
        ),
        ("no claim, one of another key", read(None, [pod("s", elsewhere)]), &[]),
        (
            "no claim, two active",
            read(None, [pod("s", aged(2)), pod("t", aged(1))]),
            &["adopt t", "condemn s"],
        ),
        (
            "of one age",
            read(None, [pod("s", as_is), pod("t", as_is)]),
            &["adopt s", "condemn t"],
        ),
        (
            "the newest generation",
            read(None, [pod("s", ordinal(1)), pod("t", ordinal(2))]),
            &["adopt t", "condemn s"],
        ),
        (
            "an active holder and another",
            read(held("a"), [pod("a", as_is), pod("s", as_is)]),
            &["condemn s"],
        ),
        (
            "an active holder and one that started",
            read(held("a"), [pod("a", as_is), pod("s", started)]),
            &["spare s"],
        ),
        (
            "a pending pod and another",
            read(pending("a"), [pod("s", as_is)]),
            &["condemn s"],
        ),
        (
            "a holder that ended and another",
            read(held("a"), [pod("s", as_is)]),
            &["adopt s"],
        ),
        ("an orphan alone", read(None, [pod("s", orphaned)]), &["condemn s"]),
        (
            "a holder that is an orphan",
            read(held("a"), [pod("a", orphaned)]),
            &["condemn a"],
        ),
        (
            "a pending orphan that arrived",
            read(pending("a"), [pod("a", orphaned)]),
            &["confirm a"],
        ),
    ]);
}

#[test]
fn what_is_done_about_the_condemned_and_the_spared() {
    let aged = |second| move |pod: &mut FoundPod| pod.created = Some(at(second));
    check(vec![
        (
            "condemned",
            read(condemning(held("a"), "s"), [pod("a", as_is), pod("s", as_is)]),
            &["delete s"],
        ),
        (
            "condemned and started",
            read(condemning(held("a"), "s"), [pod("a", as_is), pod("s", started)]),
            &[],
        ),
        (
            "condemned and finished",
            read(condemning(held("a"), "s"), [pod("a", as_is), pod("s", finished)]),
            &[],
        ),
        (
            "condemned and gone",
            read(condemning(held("a"), "s"), [pod("a", as_is)]),
            &["forget s"],
        ),
        (
            "condemned, the holder gone",
            read(condemning(held("a"), "s"), [pod("s", as_is)]),
            &["free a Unknown", "delete s"],
        ),
        (
            "condemned, and another that has not started: it waits",
            read(condemning(free(), "s"), [pod("s", as_is), pod("t", as_is)]),
            &["delete s"],
        ),
        (
            "condemned and started, and another",
            read(condemning(free(), "s"), [pod("s", started), pod("t", as_is)]),
            &["condemn t"],
        ),
        (
            "spared beside the holder",
            read(sparing(held("a"), "s"), [pod("a", as_is), pod("s", as_is)]),
            &[],
        ),
        (
            "spared beside the holder, and another",
            read(
                sparing(held("a"), "s"),
                [pod("a", as_is), pod("s", as_is), pod("t", as_is)],
            ),
            &["condemn t"],
        ),
        (
            "spared, the holder gone",
            read(sparing(held("a"), "s"), [pod("s", as_is)]),
            &["adopt s"],
        ),
        (
            "spared, an orphan, holder",
            read(sparing(held("s"), "s"), [pod("s", orphaned)]),
            &[],
        ),
        (
            "spared and finished",
            read(sparing(held("a"), "s"), [pod("a", as_is), pod("s", finished)]),
            &["forget s"],
        ),
        (
            "spared and gone",
            read(sparing(held("a"), "s"), [pod("a", as_is)]),
            &["forget s"],
        ),
        (
            "there before the policy",
            read(held("a"), [pod("a", as_is), pod("s", aged(-1000))]),
            &["spare s"],
        ),
        (
            "there before the policy, no claim",
            read(None, [pod("s", aged(-1000))]),
            &["adopt s, spare s"],
        ),
    ]);
}

#[test]
fn what_each_rail_keeps_a_guard_from() {
    let duplicate = || read(held("a"), [pod("a", as_is), pod("s", as_is)]);
    let orphan = || read(held("a"), [pod("a", orphaned)]);
    let marked = || read(condemning(held("a"), "s"), [pod("a", as_is), pod("s", as_is)]);
    let ended = || read(held("a"), []);
    let arrived = || read(pending("a"), [pod("a", as_is)]);
    let found = || read(None, [pod("s", as_is)]);
    let rail = |change: fn(&mut Terms)| {
        let mut terms = terms();
        change(&mut terms);
        terms
    };
    let follows = rail(|terms| terms.leads = false);
    let disarmed = rail(|terms| terms.armed = false);
    let first = rail(|terms| terms.first_stock = true);
    let no_duplicates = rail(|terms| terms.leftovers.duplicates = LeftoverAction::Report);
    let no_orphans = rail(|terms| terms.leftovers.orphans = LeftoverAction::Report);
    for (case, snapshot, terms, expected) in [
        ("does not lead: confirms", arrived(), &follows, &["confirm a"][..]),
        ("does not lead: frees nothing", ended(), &follows, &[]),
        ("does not lead: adopts nobody", found(), &follows, &[]),
        ("does not lead: condemns nobody", duplicate(), &follows, &[]),
        ("does not lead: deletes nothing", marked(), &follows, &[]),
        ("disarmed: confirms", arrived(), &disarmed, &["confirm a"]),
        ("disarmed: frees", ended(), &disarmed, &["free a Unknown"]),
        ("disarmed: adopts", found(), &disarmed, &["adopt s"]),
        ("disarmed: keeps a duplicate", duplicate(), &disarmed, &["spare s"]),
        ("disarmed: keeps an orphan", orphan(), &disarmed, &[]),
        ("disarmed: deletes nothing", marked(), &disarmed, &[]),
        ("first stock: keeps a duplicate", duplicate(), &first, &["spare s"]),
        ("first stock: keeps an orphan", orphan(), &first, &[]),
        ("first stock: spares and adopts", found(), &first, &["adopt s, spare s"]),
        ("duplicates are reported", duplicate(), &no_duplicates, &["spare s"]),
        (
            "duplicates are reported: an orphan goes",
            orphan(),
            &no_duplicates,
            &["condemn a"],
        ),
        ("orphans are reported", orphan(), &no_orphans, &[]),
        (
            "orphans are reported: a duplicate goes",
            duplicate(),
            &no_orphans,
            &["condemn s"],
        ),
    ] {
        assert_eq!(words(&snapshot, terms), expected, "{case}");
    }
}

#[test]
fn what_each_pod_is_kept_from() {
    let unreadable = |pod: &mut FoundPod| pod.place = Place::Unreadable("why".into());
    let terminating = |pod: &mut FoundPod| pod.terminating = true;
    let both = |change: fn(&mut FoundPod)| [pod("a", as_is), pod("s", change)];
    let marked = || condemning(held("a"), "s");
    for (case, claim, pods, expected) in [
        ("elsewhere: not condemned", held("a"), both(elsewhere), &[""; 0][..]),
        ("unreadable: not condemned", held("a"), both(unreadable), &[]),
        ("elsewhere now: not deleted", marked(), both(elsewhere), &[]),
        ("unreadable now: not deleted", marked(), both(unreadable), &[]),
        ("being deleted: not deleted again", marked(), both(terminating), &[]),
        ("spared too: not deleted", sparing(marked(), "s"), both(as_is), &[]),
        (
            "holder too: not deleted, nor condemned anew",
            condemning(held("a"), "a"),
            [pod("a", orphaned), absent("s")],
            &[],
        ),
        (
            "pending too: neither confirmed nor deleted",
            condemning(pending("a"), "a"),
            [pod("a", as_is), absent("s")],
            &[],
        ),
        (
            "an owner that could not be read is fine",
            held("a"),
            [
                pod("a", |pod| pod.owner = OwnerState::Unread("why".into())),
                absent("s"),
            ],
            &[],
        ),
    ] {
        assert_eq!(words(&read(claim, pods), &terms()), expected, "{case}");
    }
    let newer = DeployerClaimSpec {
        protocol: PROTOCOL + 1,
        ..marked()
    };
    assert_eq!(words(&read(newer, both(as_is)), &terms()), [""; 0], "a newer protocol");
}

/// Nobody holds the key, and a condemned pod that does not go keeps it: what stands beside it must not be forgotten.
#[test]
fn beside_a_condemned_pod_that_something_holds_back() {
    let terminating = |pod: &mut FoundPod| pod.terminating = true;
    let marked = || condemning(free(), "d");
    let disarmed = Terms {
        armed: false,
        ..terms()
    };
    for (case, kept, stranger, terms, expected) in [
        (
            "unstarted",
            terminating as fn(&mut FoundPod),
            as_is as fn(&mut FoundPod),
            &terms(),
            &["condemn s"][..],
        ),
        ("started", terminating, started, &terms(), &["spare s"]),
        ("disarmed", as_is, as_is, &disarmed, &["spare s"]),
        ("it goes in a moment", as_is, as_is, &terms(), &["delete d"]),
    ] {
        let snapshot = read(marked(), [pod("d", kept), pod("s", stranger)]);
        assert_eq!(words(&snapshot, terms), expected, "{case}");
    }
}

/// It is deleted already, and another one's finalizer keeps it: a delete would succeed again and again.
#[test]
fn a_claim_that_is_being_deleted_is_not_removed_again() {
    let mut snapshot = read(free(), []);
    snapshot.memory.unchanged_since = Some(Duration::ZERO);
    let now = Now {
        monotonic: Duration::from_hours(100 * 365 * 24),
        ..NOW
    };
    let actions = |snapshot: &Snapshot| plan(snapshot, &terms(), now).actions;
    assert_eq!(actions(&snapshot), [Action::RemoveClaim]);
    snapshot.claim.as_mut().unwrap().terminating = true;
    assert_eq!(actions(&snapshot), []);
}

/// A name of the claim that was not read, which breaks the contract, settles nothing.
#[test]
fn a_name_that_was_not_read_settles_nothing() {
    let unread = |claim: DeployerClaimSpec, name: &str, pods: Vec<(String, Option<FoundPod>)>| {
        let mut snapshot = read(claim, pods);
        snapshot.pods.remove(name);
        words(&snapshot, &terms())
    };
    assert_eq!(unread(held("a"), "a", vec![]), [""; 0]);
    assert_eq!(
        unread(held("a"), "a", vec![pod("s", started)]),
        ["spare s"],
        "not adopted"
    );
    assert_eq!(unread(condemning(free(), "s"), "s", vec![pod("t", as_is)]), [""; 0]);
    assert_eq!(unread(sparing(free(), "s"), "s", vec![]), [""; 0]);
}

#[test]
fn what_is_remembered_makes_a_pod_gone_and_gives_its_outcome() {
    for (case, stored, end, claim, expected) in [
        (
            "holder",
            false,
            Some(Outcome::Failed),
            held("a"),
            &["free a Failed"][..],
        ),
        ("pending, never seen", false, None, pending("a"), &[]),
        ("pending, seen once", true, None, pending("a"), &["free a Unknown"]),
        (
            "pending, seen finished",
            true,
            Some(Outcome::Completed),
            pending("a"),
            &["free a Completed"],
        ),
    ] {
        let mut snapshot = read(claim, []);
        snapshot.memory.stored.extend(stored.then(|| "ua".to_owned()));
        snapshot.memory.ends.extend(end.map(|end| ("ua".to_owned(), end)));
        assert_eq!(words(&snapshot, &terms()), expected, "{case}");
    }
    let mut there = read(held("a"), [pod("a", as_is)]);
    there.memory.ends.insert("ua".into(), Outcome::Completed);
    assert_eq!(
        words(&there, &terms()),
        [""; 0],
        "a live read that finds it active is stronger"
    );
}

/// Ordinals of different uids of a config do not compare: then the oldest pod says of which uid the newest is.
#[test]
fn who_stays() {
    type Pod = (&'static str, i64, Option<i64>, Option<&'static str>);
    let stays = |pods: &[Pod]| {
        let pods = pods.iter().map(|(name, created, ordinal, uid)| {
            pod(name, |pod| {
                pod.created = Some(at(*created));
                pod.place = here(*ordinal, *uid);
            })
        });
        written(&read(None, pods), &terms()).holder.unwrap().name
    };
    assert_eq!(
        stays(&[("s", 1, Some(1), Some("c")), ("t", 2, Some(2), Some("c"))]),
        "t"
    );
    assert_eq!(stays(&[("s", 1, Some(1), None), ("t", 2, Some(2), None)]), "t");
    assert_eq!(
        stays(&[("s", 1, Some(1), Some("c")), ("t", 2, Some(9), Some("d"))]),
        "s"
    );
    assert_eq!(stays(&[("s", 1, None, Some("c")), ("t", 2, Some(9), Some("c"))]), "s");
    assert_eq!(
        stays(&[("s", 2, Some(1), Some("c")), ("t", 1, Some(1), Some("c"))]),
        "t"
    );
    let three = [
        ("s", 1, Some(1), Some("c")),
        ("t", 2, Some(9), Some("d")),
        ("v", 3, Some(2), Some("c")),
    ];
    assert_eq!(stays(&three), "v");
}

#[test]
fn an_adopted_pod_is_holder_with_all_that_is_known_and_what_ended_is_recorded() {
    let mut before = held("a");
    before.holder.as_mut().unwrap().generation = Some("g1".into());
    before.unknown.insert("newer".into(), 1.into());
    let next = written(
        &read(before, [pod("s", |pod| pod.place = here(Some(2), Some("c")))]),
        &terms(),
    );
    let holder = ClaimEntry {
        generation: Some("g2".into()),
        ordinal: Some(2),
        config_uid: Some("c".into()),
        ..entry("s")
    };
    assert_eq!(next.holder, Some(holder));
    assert_eq!(next.outcome(None, "g1"), Some(Outcome::Unknown));
    assert_eq!(next.newest(Some("c")).map(|newest| newest.ordinal), Some(2));
    assert_eq!(next.unknown["newer"], 1);
}

#[test]
fn a_claim_that_a_guard_makes_leaves_it_to_the_next_admission_to_list_the_pods() {
    let next = written(&read(None, [pod("s", as_is)]), &terms());
    assert_eq!((next.protocol, &*next.config), (PROTOCOL, "cfg"));
    assert_eq!((&*next.policy.uid, next.policy.generation), ("policy-uid", None));
}

#[test]
fn an_orphaned_holder_moves_to_the_condemned_in_one_write() {
    let next = written(&read(held("a"), [pod("a", orphaned)]), &terms());
    assert_eq!((next.holder, next.condemned), (None, vec![reference("a")]));
    assert_eq!(next.outcomes, [], "it never ran");
}

#[test]
fn a_spared_pod_that_finished_leaves_its_outcome() {
    let done = pod("s", |pod| {
        finished(pod);
        pod.place = here(Some(2), None);
    });
    let next = written(&read(sparing(held("a"), "s"), [pod("a", as_is), done]), &terms());
    assert_eq!(next.outcome(None, "g2"), Some(Outcome::Completed));
    assert_eq!((next.spared, next.holder), (vec![], Some(entry("a"))));
}

#[test]
fn a_holder_of_another_policy_of_this_name_was_there_before() {
    let mut claim = held("a");
    claim.policy.uid = "older".into();
    let mut first = terms();
    first.first_stock = true;
    assert_eq!(words(&read(claim, [pod("a", orphaned)]), &first), ["spare a"]);
}

#[test]
fn a_delete_is_fenced_by_the_version_that_was_read() {
    let snapshot = read(condemning(held("a"), "s"), [pod("a", as_is), pod("s", as_is)]);
    let expected = Action::DeletePod {
        pod: reference("s"),
        resource_version: "rv-s".into(),
    };
    assert_eq!(plan(&snapshot, &terms(), NOW).actions, [expected]);
}
