//! A certificate in a Secret: served when it is there, kept when the Secret is harmed, and held back until it is trusted.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use deployer_guard::cluster::store::Failure;
use deployer_guard::tls::TlsSecret;
use deployer_guard::tls::secret::{Content, Upstream};
use deployer_guard::tls::trust::Truster;
use rustls::pki_types::CertificateDer;

use crate::support::{Pair, Site, eventually};

const LOOK: Duration = Duration::from_millis(20);
const DELAY: Duration = Duration::from_millis(200);

/// A Secret and a stored configuration, in memory.
struct Shelf {
    content: Mutex<Result<Option<Content>, Failure>>,
    trusters: Mutex<Result<Vec<Truster>, Failure>>,
    looks: Mutex<usize>,
}

#[async_trait]
impl Upstream for Shelf {
    async fn content(&self) -> Result<Option<Content>, Failure> {
        *self.looks.lock().unwrap() += 1;
        self.content.lock().unwrap().clone()
    }

    async fn trusters(&self) -> Result<Vec<Truster>, Failure> {
        self.trusters.lock().unwrap().clone()
    }
}

impl Shelf {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            content: Mutex::new(Ok(None)),
            trusters: Mutex::new(Ok(Vec::new())),
            looks: Mutex::new(0),
        })
    }

    fn put(&self, certificate: &str, key: &str) {
        let part = |part: &str| Some(part.as_bytes().to_vec());
        *self.content.lock().unwrap() = Ok(Some(Content {
            certificate: part(certificate),
            key: part(key),
        }));
    }

    fn put_pair(&self, pair: &Pair) {
        self.put(&pair.cert, &pair.key);
    }

    fn trust(&self, bundles: &[String]) {
        let entries = bundles.iter().enumerate().map(|(i, bundle)| Truster {
            entry: format!("p{i}"),
            server_name: "localhost".into(),
            bundle: Some(bundle.clone().into_bytes()),
        });
        *self.trusters.lock().unwrap() = Ok(entries.collect());
    }

    /// Waits until what was put there was looked at several times.
    async fn looked_at(&self) {
        let before = *self.looks.lock().unwrap();
        eventually("several looks", || *self.looks.lock().unwrap() > before + 3).await;
    }
}

fn serve(shelf: &Arc<Shelf>, pairs: &[&Pair]) -> Site {
    let secret = TlsSecret::new("tls", "deployer-guard", Arc::<Shelf>::clone(shelf))
        .read_every(LOOK)
        .trusted_for(DELAY);
    let trusted = pairs.iter().map(|pair| pair.der.clone()).collect();
    Site::over(Arc::new(secret).into(), trusted)
}

async fn served(site: &Site) -> Option<CertificateDer<'static>> {
    let stream = site.connect_to(site.addresses[0]).await.ok()?;
    Some(stream.get_ref().1.peer_certificates().unwrap()[0].clone().into_owned())
}

async fn becomes(site: &Site, pair: &Pair) {
    for _ in 0..500 {
        if served(site).await.as_ref() == Some(&pair.der) {
            return;
        }
        tokio::time::sleep(LOOK).await;
    }
    panic!("the certificate is never served: {:?}", site.readiness.failing());
}

fn metric(site: &Site, line: &str) -> bool {
    site.metrics
        .encode()
        .lines()
        .any(|one| one == format!("deployer_guard_{line}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_pair_it_listens_and_says_what_is_missing_and_serves_when_there_is_one() {
    let (shelf, pair) = (Shelf::new(), Pair::until(2090));
    let site = serve(&shelf, &[&pair]);
    shelf.looked_at().await;
    let failing = site.readiness.failing().join("\n");
    assert!(
        failing.contains("Secret deployer-guard/tls does not exist"),
        "{failing}"
    );
    assert!(
        metric(&site, "certificate_source_broken 1"),
        "{}",
        site.metrics.encode()
    );
    assert_eq!(served(&site).await, None, "a handshake fails, and the port is there");
    for (content, why) in [
        (Ok(Some(Content::default())), "is empty"),
        (Err(Failure::TimedOut), "cannot be read: timed out"),
        (Err(Failure::Forbidden("no rule".into())), "may not be read: no rule"),
    ] {
        *shelf.content.lock().unwrap() = content;
        shelf.looked_at().await;
        let failing = site.readiness.failing().join("\n");
        assert!(failing.contains(why), "{failing}");
    }
    assert!(
        metric(&site, "certificate_reload_failures_total 3"),
        "{}",
        site.metrics.encode()
    );
    shelf.put_pair(&pair);
    becomes(&site, &pair).await;
    eventually("all is well", || site.readiness.is_ready()).await;
    assert!(metric(&site, "certificate_source_broken 0"));
    assert!(metric(&site, "certificate_not_after_seconds 3786912000"));
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_becomes_of_the_secret_the_last_good_pair_stays_and_each_fault_is_told_once() {
    let (one, two, expired) = (Pair::until(2090), Pair::until(2091), Pair::until(2001));
    let shelf = Shelf::new();
    shelf.put_pair(&one);
    let site = serve(&shelf, &[&one, &two]);
    becomes(&site, &one).await;
    let half = |text: &str| text[..text.len() / 2].to_owned();
    let mut failures = 0;
    for (what, certificate, key) in [
        ("half a certificate", half(&two.cert), two.key.clone()),
        ("another certificate's key", two.cert.clone(), one.key.clone()),
        ("half a key", two.cert.clone(), half(&two.key)),
        ("no certificate", String::new(), two.key.clone()),
        ("no key", two.cert.clone(), String::new()),
        ("an expired one", expired.cert.clone(), expired.key.clone()),
        ("nothing", String::new(), String::new()),
    ] {
        shelf.put(&certificate, &key);
        shelf.looked_at().await;
        assert_eq!(served(&site).await.as_ref(), Some(&one.der), "{what}");
        failures += 1;
        let counted = metric(&site, &format!("certificate_reload_failures_total {failures}"));
        assert!(
            counted && metric(&site, "certificate_source_broken 1"),
            "{what}: {}",
            site.metrics.encode()
        );
        assert!(site.readiness.is_ready(), "{what}");
    }
    *shelf.content.lock().unwrap() = Ok(None);
    shelf.looked_at().await;
    assert_eq!(served(&site).await.as_ref(), Some(&one.der), "no Secret");
    shelf.put_pair(&two);
    becomes(&site, &two).await;
    assert!(metric(&site, "certificate_source_broken 0"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_pair_is_held_back_until_every_entry_has_trusted_it_for_a_while() {
    let (one, two) = (Pair::until(2090), Pair::until(2091));
    let shelf = Shelf::new();
    shelf.put_pair(&one);
    shelf.trust(std::slice::from_ref(&one.cert));
    let site = serve(&shelf, &[&one, &two]);
    becomes(&site, &one).await;
    let both = format!("{}{}", one.cert, two.cert);
    for (what, bundles) in [
        ("no entry trusts it", vec![one.cert.clone()]),
        ("one entry does not trust it", vec![both.clone(), one.cert.clone()]),
    ] {
        shelf.trust(&bundles);
        shelf.put_pair(&two);
        eventually(what, || metric(&site, "certificate_held_back 1")).await;
        tokio::time::sleep(DELAY * 2).await;
        assert_eq!(served(&site).await.as_ref(), Some(&one.der), "{what}");
    }
    *shelf.trusters.lock().unwrap() = Err(Failure::TimedOut);
    tokio::time::sleep(DELAY * 2).await;
    assert_eq!(
        served(&site).await.as_ref(),
        Some(&one.der),
        "nobody knows what is trusted"
    );
    shelf.trust(&[both.clone(), both]);
    becomes(&site, &two).await;
    assert!(metric(&site, "certificate_held_back 0"));
}
