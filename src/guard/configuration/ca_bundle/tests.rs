//! What stays in the bundle, and for how long.

use super::leaving::{FOREIGN, MOST};
use super::*;
use crate::guard::certificates::held::GRACE;
use crate::tls::pair::now;

fn certificate() -> (String, String) {
    let issued = rcgen::generate_simple_self_signed(["ca".to_owned()]).unwrap();
    (issued.cert.pem(), issued.signing_key.serialize_pem())
}

fn authority() -> Vec<CertificateDer<'static>> {
    certificates(certificate().0.as_bytes()).unwrap()
}

fn published(bundle: &CaBundle) -> Vec<CertificateDer<'static>> {
    certificates(&bundle.current().unwrap()).unwrap()
}

#[test]
fn a_bundle_holds_all_certificates_of_the_file_and_no_key() {
    let ((one, key), (two, _)) = (certificate(), certificate());
    let found = certificates(format!("# the old one\n{one}{key}{two}").as_bytes()).unwrap();
    let bundle = String::from_utf8(pem(found.iter())).unwrap();
    assert_eq!(
        bundle.replace("\r\n", "\n"),
        format!("{one}{two}").replace("\r\n", "\n")
    );
    assert!(!bundle.contains("PRIVATE"));
}

#[test]
fn what_is_no_bundle_is_refused_with_what_is_wrong() {
    let (good, _) = certificate();
    for (content, why) in [
        (String::new(), "no CERTIFICATE section"),
        ("nonsense".to_owned(), "no CERTIFICATE section"),
        (
            format!("{good}-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"),
            "section 2 holds none",
        ),
        (good[..good.len() / 2].to_owned(), ""),
    ] {
        let error = certificates(content.as_bytes()).unwrap_err();
        assert!(error.contains(why), "{error}");
    }
}

fn store(bundle: &CaBundle, entries: &[&[CertificateDer<'static>]], leads: bool, at: Instant) {
    let entries: Vec<_> = entries.iter().map(|entry| pem(entry.iter())).collect();
    let named = ["a", "b"].into_iter().zip(entries.iter().map(Vec::as_slice));
    bundle.found_stored(named, leads, at);
}

const ALMOST: Duration = Duration::from_secs(299);

#[test]
fn an_authority_that_leaves_stays_for_five_minutes_and_one_that_comes_back_for_good() {
    let (metrics, at) = (GuardMetrics::default(), Instant::now());
    let bundle = CaBundle::load(BundleSource::Secret).unwrap();
    assert!(bundle.is_awaited() && bundle.current().is_none());
    let (old, new) = (authority(), authority());
    assert!(bundle.learn(old.clone(), true, at, &metrics));
    let before = bundle.current();
    assert!(bundle.learn(new.clone(), true, at, &metrics));
    assert_eq!(published(&bundle), [&new[..], &old].concat());
    assert!(bundle.knows(before.as_deref()), "the one before it is no drift");
    assert!(
        bundle.knows(Some(&pem(new.iter()))),
        "another guard lets go of it earlier"
    );
    assert!(!bundle.knows(Some(&pem([&new[..], &authority()].concat().iter()))));
    store(&bundle, &[&published(&bundle)], true, at);
    assert!(!bundle.learn(new.clone(), true, at + ALMOST, &metrics));
    assert!(bundle.learn(new.clone(), true, at + LINGER, &metrics));
    assert_eq!(published(&bundle), new);
    bundle.learn(old.clone(), true, at, &metrics);
    bundle.learn(new.clone(), true, at, &metrics);
    bundle.failed("broken", at + LINGER, &metrics);
    assert_eq!(published(&bundle), new, "a source that is broken keeps nothing longer");
}

#[test]
fn what_left_stays_until_every_entry_trusts_the_source_and_the_source_alone_vouches_for_the_pair() {
    let (metrics, at) = (GuardMetrics::default(), Instant::now());
    let (old, new) = (authority(), authority());
    let both = [&new[..], &old].concat();
    let begun = |vouches| {
        let bundle = CaBundle::load(BundleSource::Secret).unwrap();
        bundle.learn(old.clone(), true, at, &metrics);
        bundle.learn(new.clone(), vouches, at, &metrics);
        bundle
    };
    let day = 288 * LINGER;
    let bundle = begun(true);
    bundle.learn(new.clone(), true, at + day, &metrics);
    assert_eq!(published(&bundle), both, "nobody has looked at the entries");
    store(&bundle, &[&both, &old], true, at + day);
    assert_eq!(published(&bundle), both, "one entry does not trust the new one");
    store(&bundle, &[&both, &both], true, at + day + LINGER);
    assert_eq!(published(&bundle), new);

    let bundle = begun(false);
    store(&bundle, &[&both], true, at);
    bundle.learn(new.clone(), false, at + day, &metrics);
    assert_eq!(published(&bundle), both, "the pair is still of the old one");
    bundle.learn(new.clone(), true, at + day, &metrics);
    bundle.learn(new.clone(), true, at + day + ALMOST, &metrics);
    assert_eq!(published(&bundle), both, "replicas may not have it yet");
    bundle.learn(new.clone(), true, at + day + LINGER, &metrics);
    assert_eq!(published(&bundle), new);
}

#[test]
fn what_is_stored_at_the_first_look_stays_for_a_while_and_longer_where_there_is_nothing_else() {
    let (metrics, at) = (GuardMetrics::default(), Instant::now());
    let bundle = CaBundle::load(BundleSource::Secret).unwrap();
    let (stored, new) = (authority(), authority());
    store(&bundle, &[&stored], true, at);
    bundle.failed("it is not there", at + LINGER * 2, &metrics);
    assert_eq!(published(&bundle), stored);
    bundle.learn(new.clone(), true, at, &metrics);
    let both = [&new[..], &stored].concat();
    assert_eq!(published(&bundle), both);
    store(&bundle, &[&both], true, at);
    bundle.learn(new.clone(), true, at + FOREIGN - LINGER, &metrics);
    assert_eq!(published(&bundle), both, "others may go by it");
    bundle.learn(new.clone(), true, at + FOREIGN, &metrics);
    assert_eq!(published(&bundle), new);
}

#[test]
fn what_another_guard_stores_while_it_leads_stays_for_a_while_after_that() {
    let (metrics, at) = (GuardMetrics::default(), Instant::now());
    let bundle = CaBundle::load(BundleSource::Secret).unwrap();
    let (theirs, ours) = (authority(), authority());
    let both = [&ours[..], &theirs].concat();
    bundle.learn(ours.clone(), true, at, &metrics);
    store(&bundle, &[&theirs], false, at);
    store(&bundle, &[&theirs], false, at + LINGER * 3);
    let (almost, over) = (
        at + LINGER * 3 + FOREIGN - Duration::from_secs(1),
        at + LINGER * 3 + FOREIGN,
    );
    store(&bundle, &[&both], true, almost);
    assert_eq!(published(&bundle), both);
    store(&bundle, &[&both], true, over);
    assert_eq!(published(&bundle), ours);
}

#[test]
fn what_another_guard_asks_for_while_this_one_leads_stays_for_an_hour_and_as_long_again_if_it_asks_again() {
    let (metrics, at) = (GuardMetrics::default(), Instant::now());
    let bundle = CaBundle::load(BundleSource::Secret).unwrap();
    let (ours, theirs) = (authority(), (0..12).map(|_| authority()).collect::<Vec<_>>().concat());
    let both = [&ours[..], &theirs].concat();
    let hour = at + FOREIGN;
    let vouched = |at| bundle.learn(ours.clone(), true, at, &metrics);
    vouched(at);
    store(&bundle, &[&ours, &ours], true, at);
    store(&bundle, &[&both, &ours], true, at);
    assert_eq!(published(&bundle), both, "in every entry, however many they are");
    store(&bundle, &[&both, &both], true, at);
    vouched(hour - Duration::from_secs(1));
    assert_eq!(published(&bundle), both);
    vouched(hour);
    assert_eq!(published(&bundle), ours);
    store(&bundle, &[&both, &both], true, hour);
    assert_eq!(
        published(&bundle),
        ours,
        "what was not written yet is not asked for anew"
    );
    // One entry cannot be written.
    store(&bundle, &[&ours, &both], true, hour);
    store(&bundle, &[&both, &both], true, hour);
    assert_eq!(published(&bundle), both, "it asks again");
}

#[test]
fn as_many_stay_as_replicas_may_still_serve_by_and_no_others() {
    let (metrics, at) = (GuardMetrics::default(), Instant::now());
    let bundle = CaBundle::load(BundleSource::Secret).unwrap();
    let (ours, many) = (authority(), (0..20).map(|_| authority()).collect::<Vec<_>>().concat());
    store(&bundle, &[&many], true, at);
    bundle.learn(ours.clone(), true, at, &metrics);
    let all = [&ours[..], &many].concat();
    assert_eq!(published(&bundle), all, "a bundle of many was in force");
    let joined = [&ours[..], &many[..12], &authority()].concat();
    bundle.learn(joined, true, at, &metrics);
    bundle.learn(ours.clone(), true, at, &metrics);
    let stays = |ca| published(&bundle).contains(ca);
    assert!(many.iter().all(stays), "whatever the source held meanwhile");
    for at in [at, at + FOREIGN] {
        store(&bundle, &[&published(&bundle)], true, at);
    }
    assert_eq!(published(&bundle).len(), 1);
    for _ in 0..20 {
        bundle.learn(authority(), true, at + FOREIGN, &metrics);
    }
    assert_eq!(
        published(&bundle).len(),
        2 + MOST,
        "the last, one that entries hold, and some that none does"
    );
}

#[test]
fn what_ended_long_ago_is_needed_by_nobody_whoever_holds_it() {
    use crate::guard::certificates::authority::{Life, authority};
    let (metrics, at) = (GuardMetrics::default(), Instant::now());
    let bundle = CaBundle::load(BundleSource::Secret).unwrap();
    let ended = |_| {
        let life = Life::from(now() - GRACE - 1000, 500);
        certificates(authority(life).unwrap().certificate.as_bytes()).unwrap()
    };
    let old = (0..20).map(ended).collect::<Vec<_>>().concat();
    store(&bundle, &[&old], true, at);
    bundle.learn(self::authority(), false, at, &metrics);
    assert_eq!(published(&bundle).len(), 1 + MOST);
}

#[test]
fn the_first_bundle_gives_replicas_a_head_start_where_nothing_is_stored() {
    let (metrics, at) = (GuardMetrics::default(), Instant::now());
    for (stored, awaited) in [(&[][..], true), (&[authority()][..], false)] {
        let bundle = CaBundle::load(BundleSource::Secret).unwrap();
        let ours = authority();
        bundle.learn(ours.clone(), true, at, &metrics);
        let stored: Vec<_> = stored.iter().map(Vec::as_slice).collect();
        store(&bundle, &stored, true, at);
        assert_eq!(bundle.is_awaited(), awaited);
        bundle.learn(ours.clone(), true, at + HEAD_START / 2, &metrics);
        assert_eq!(bundle.is_awaited(), awaited);
        assert_eq!(
            bundle.learn(ours, true, at + HEAD_START, &metrics),
            awaited,
            "it is told"
        );
        assert!(!bundle.is_awaited());
    }
}
