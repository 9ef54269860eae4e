//! What stays in the Secret, and what is said of it.

use super::*;
use crate::guard::certificates::plan::{Why, plan};
use crate::tls::pem::leaks::{assert_quotes_nothing, broken_keys};

#[test]
fn no_text_about_what_is_held_quotes_a_key() {
    let made = authority(Life::from(NOW, 1000)).unwrap();
    for (what, key) in broken_keys() {
        for name in [CERTIFICATE, KEY, BUNDLE, CA_KEY, NEXT_CA_KEY] {
            let all = [CERTIFICATE, BUNDLE].map(|name| (name.to_owned(), made.certificate.clone().into_bytes()));
            let mut data = Data::from(all);
            data.insert(KEY.into(), made.key.clone().into_bytes());
            data.insert(name.into(), key.clone());
            let held = Held::read(&data, &[], NOW);
            let text = format!("{held:?} {:?}", held.facts(|_| Trust::Missing, false));
            assert_quotes_nothing(&format!("{name}, {what}"), &text, &key);
            assert!(!text.contains("PRIVATE"), "{text}");
        }
        let Err(error) = serving(
            &ca_of(&made.certificate),
            &String::from_utf8_lossy(&key),
            &["x".into()],
            Life::from(NOW, 10),
        ) else {
            // Its parser minds less than ours.
            continue;
        };
        assert_quotes_nothing(what, &format!("{error} {error:?}"), &key);
    }
}

const NOW: i64 = 1_800_000_000;
const YEAR: i64 = 365 * 24 * 3600;
const TERMS: Terms = Terms {
    authority: YEAR,
    certificate: YEAR / 4,
};

fn names() -> Vec<String> {
    vec!["webhook.example".into()]
}

/// What a first join and promotion make at a time.
fn made(now: i64) -> Data {
    let step = |data: &Data, step| Held::read(data, &names(), now).after(&step, &names(), &[], TERMS, now);
    let joined = step(&Data::new(), Step::Join(Why::None)).unwrap();
    step(&joined, Step::Promote(Why::Trusted)).unwrap()
}

#[test]
fn a_clock_ahead_of_its_time_takes_no_authority_and_no_key_away() {
    let data = made(NOW);
    for ahead in [2 * YEAR, 20 * YEAR] {
        let late = Held::read(&data, &names(), NOW + ahead);
        assert!(!late.is_good(NOW + ahead));
        let step = plan(&late.facts(|_| Trust::Settled, false), TERMS, NOW + ahead);
        assert!(matches!(step, Step::Join(_)), "{step:?}");
        let joined = late.after(&step, &names(), &[], TERMS, NOW + ahead).unwrap();
        assert_eq!(joined[CA_KEY], data[CA_KEY]);
        let back = Held::read(&joined, &names(), NOW + 60);
        assert!(back.is_good(NOW + 60), "{back:?}");
        let promoted = Held::read(&joined, &names(), NOW + ahead)
            .after(&Step::Promote(Why::Trusted), &names(), &[], TERMS, NOW + ahead)
            .unwrap();
        let old = &late.bundle()[0];
        let back = Held::read(&promoted, &names(), NOW + 60);
        assert!(back.bundle().contains(old), "replicas still serve by it");
        assert_eq!(
            plan(&back.facts(|_| Trust::Settled, false), TERMS, NOW + 60),
            Step::Doubt
        );
    }
}

#[test]
fn authorities_that_ended_long_ago_go_and_never_those_in_use() {
    let data = made(NOW - 10 * YEAR);
    let first = ca_of(&String::from_utf8(data[BUNDLE].clone()).unwrap());
    let others = |ages: &[i64]| -> Vec<_> {
        let others = ages.iter().map(|age| authority(Life::from(NOW - age, 1000)).unwrap());
        others.map(|made| ca_of(&made.certificate)).collect()
    };
    let with = |others: &[CertificateDer<'static>]| {
        let mut data = data.clone();
        data.insert(BUNDLE.into(), pem([&[first.clone()][..], others].concat().iter()));
        let held = Held::read(&data, &names(), NOW);
        (held.bundle().len(), held.bundle()[0].certificate == first, held.clutter)
    };
    let (few, old) = (others(&[1, 2, 3]), others(&[1, 2, 3, 100, GRACE + 2000]));
    assert_eq!(with(&few), (4, true, None));
    let (left, in_use, clutter) = with(&old);
    assert!(in_use && clutter.is_some());
    assert_eq!(left, 5, "all but the one that ended long ago");
    let many: Vec<_> = (1..=12).collect();
    let (left, in_use, _) = with(&others(&many));
    assert!(in_use && left == MOST + 1, "{left}");
}

#[test]
fn an_authority_that_may_not_vouch_for_our_names_makes_room_for_one_that_may() {
    use rcgen::{BasicConstraints, CertificateParams, GeneralSubtree, IsCa, KeyUsagePurpose, NameConstraints};
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params.name_constraints = Some(NameConstraints {
        permitted_subtrees: vec![GeneralSubtree::DnsName("elsewhere.example".into())],
        excluded_subtrees: vec![],
    });
    (params.not_before, params.not_after) = {
        let at = |seconds| time::OffsetDateTime::from_unix_timestamp(seconds).unwrap();
        (at(NOW - 10), at(NOW + YEAR))
    };
    let constrained = params.self_signed(&key).unwrap();
    let mut data = made(NOW);
    data.insert(BUNDLE.into(), constrained.pem().into_bytes());
    data.insert(CA_KEY.into(), key.serialize_pem().into_bytes());
    let ended = serving(
        constrained.der(),
        &key.serialize_pem(),
        &names(),
        Life::from(NOW - 100, 50),
    )
    .unwrap();
    data.insert(CERTIFICATE.into(), ended.certificate.into_bytes());
    data.insert(KEY.into(), ended.key.into_bytes());
    let stored = [certificates(&made(NOW)[BUNDLE]).unwrap()];
    let mut taken = Vec::new();
    for _ in 0..4 {
        let held = Held::read(&data, &names(), NOW);
        let step = plan(&held.facts(|_| Trust::Settled, false), TERMS, NOW);
        data = held.after(&step, &names(), &stored, TERMS, NOW).unwrap();
        taken.push(step);
    }
    assert!(
        matches!(&taken[..], [Step::Join(Why::Bad(why)), Step::Promote(_), Step::Rest, Step::Rest] if why.contains("not good for webhook.example")),
        "{taken:?}"
    );
    let held = Held::read(&data, &names(), NOW);
    assert!(held.is_good(NOW) && held.fault().is_none(), "{held:?}");
    assert!(
        held.bundle().iter().any(|ca| ca.certificate == stored[0][0]),
        "replicas may serve by what is stored"
    );
}

#[test]
fn names_that_no_certificate_can_hold_show_in_what_is_made() {
    let names = ["[::1".to_owned()];
    let joined = Held::read(&Data::new(), &names, NOW)
        .after(&Step::Join(Why::None), &names, &[], TERMS, NOW)
        .unwrap();
    let promoted = Held::read(&joined, &names, NOW).after(&Step::Promote(Why::Trusted), &names, &[], TERMS, NOW);
    let fault = promoted.map(|data| Held::read(&data, &names, NOW).fault().map(str::to_owned));
    assert!(!matches!(fault, Ok(None)), "{fault:?}");
}

fn ca_of(certificate: &str) -> CertificateDer<'static> {
    authorities(certificate.as_bytes()).0.remove(0).certificate
}
