//! When a pair of a Secret is served, and what is said of one that cannot be.

use std::sync::Mutex;

use super::*;
use crate::guard::certificates::authority::{Life, authority, serving};
use crate::telemetry::health::Readiness;
use crate::tls::pem::leaks::{assert_quotes_nothing, broken_keys};
use crate::tls::trust::certificates;

/// A Secret and a stored configuration, in memory.
struct Shelf {
    content: Mutex<Option<Content>>,
    trusters: Mutex<Result<Vec<Truster>, Failure>>,
}

#[async_trait]
impl Upstream for Shelf {
    async fn content(&self) -> Result<Option<Content>, Failure> {
        Ok(self.content.lock().unwrap().clone())
    }

    async fn trusters(&self) -> Result<Vec<Truster>, Failure> {
        self.trusters.lock().unwrap().clone()
    }
}

fn shelf() -> Arc<Shelf> {
    Arc::new(Shelf {
        content: Mutex::default(),
        trusters: Mutex::new(Ok(Vec::new())),
    })
}

impl Shelf {
    /// Puts a new pair there that lives for so many seconds. Gives the entry that trusts it alone.
    fn put(&self, seconds: i64) -> Truster {
        let ca = authority(Life::from(now(), seconds)).unwrap();
        let parsed = certificates(ca.certificate.as_bytes()).unwrap().remove(0);
        let made = serving(&parsed, &ca.key, &["localhost".into()], Life::from(now(), seconds)).unwrap();
        *self.content.lock().unwrap() = Some(Content {
            certificate: Some(made.certificate.into_bytes()),
            key: Some(made.key.into_bytes()),
        });
        Truster {
            entry: "p".into(),
            server_name: "localhost".into(),
            bundle: Some(ca.certificate.into_bytes()),
        }
    }

    fn store(&self, entries: &[&Truster]) {
        *self.trusters.lock().unwrap() = Ok(entries.iter().copied().cloned().collect());
    }
}

#[tokio::test(start_paused = true)]
async fn the_first_pair_is_served_at_once_and_the_replica_is_ready_when_it_is_trusted_or_has_waited() {
    let other = shelf().put(1000);
    for (what, entries, unread, ready, in_the_end) in [
        ("no entries", vec![], false, true, true),
        ("nobody knows", vec![&other], true, true, true),
        ("an entry does not trust it", vec![&other], false, false, true),
    ] {
        let (shelf, readiness, metrics) = (shelf(), Readiness::new(), Metrics::new());
        let condition = readiness.condition("certificate", "none yet");
        let secret = TlsSecret::new("s", "n", Arc::<Shelf>::clone(&shelf));
        let mut memory = Memory::new(secret.trust_delay);
        let ours = shelf.put(1000);
        shelf.store(&entries);
        if unread {
            *shelf.trusters.lock().unwrap() = Err(Failure::TimedOut);
        }
        let mut look = async || {
            secret.look(&mut memory, &metrics, &condition).await;
            secret.confirm(&mut memory, &condition).await;
            (secret.served.current().is_some(), readiness.is_ready())
        };
        assert_eq!(look().await, (true, ready), "{what}");
        tokio::time::advance(PATIENCE.checked_sub(CONFIRM).unwrap()).await;
        assert_eq!(look().await, (true, ready), "{what}");
        if !ready {
            let failing = readiness.failing().join("");
            assert!(failing.contains("\"p\" of the stored webhook"), "{failing}");
        }
        tokio::time::advance(CONFIRM).await;
        assert_eq!(look().await, (true, in_the_end), "{what}");
        shelf.store(&[&other, &ours]);
        assert_eq!(look().await, (true, true), "{what}: once ready, it stays so");
    }
    let (shelf, readiness, metrics) = (shelf(), Readiness::new(), Metrics::new());
    let condition = readiness.condition("certificate", "none yet");
    let secret = TlsSecret::new("s", "n", Arc::<Shelf>::clone(&shelf));
    let mut memory = Memory::new(secret.trust_delay);
    let ours = shelf.put(1000);
    for (entries, ready) in [(&[&ours, &other][..], false), (&[&ours], true)] {
        shelf.store(entries);
        secret.look(&mut memory, &metrics, &condition).await;
        secret.confirm(&mut memory, &condition).await;
        assert_eq!(readiness.is_ready(), ready);
    }
}

#[tokio::test(start_paused = true)]
async fn the_secret_is_read_more_often_where_something_waits_for_it() {
    let (shelf, readiness, metrics) = (shelf(), Readiness::new(), Metrics::new());
    let condition = readiness.condition("certificate", "none yet");
    let secret = TlsSecret::new("s", "n", Arc::<Shelf>::clone(&shelf));
    let mut memory = Memory::new(secret.trust_delay);
    assert_eq!(secret.pause(&memory, now()), EAGER, "nothing is served");
    let old = shelf.put(1000);
    secret.look(&mut memory, &metrics, &condition).await;
    assert_eq!(secret.pause(&memory, now()), CONFIRM, "it is not known to be trusted");
    secret.confirm(&mut memory, &condition).await;
    assert_eq!(secret.pause(&memory, now()), secret.interval);
    shelf.store(&[&old]);
    shelf.put(1000);
    secret.look(&mut memory, &metrics, &condition).await;
    let not_after = secret.served.not_after().unwrap();
    for (left, pause) in [
        (100, secret.interval),
        (6, Duration::from_secs(2)),
        (5, Duration::from_secs(1)),
        (0, Duration::from_secs(1)),
        (-100, Duration::from_secs(1)),
    ] {
        assert_eq!(secret.pause(&memory, not_after - left), pause, "{left}");
    }
}

#[test]
fn a_problem_quotes_nothing_of_a_key() {
    let secret = TlsSecret::new("s", "n", shelf());
    let made = authority(Life::from(now(), 1000)).unwrap();
    for (what, key) in broken_keys() {
        for (certificate, key) in [
            (made.certificate.clone().into_bytes(), key.clone()),
            (key.clone(), key.clone()),
        ] {
            let content = Content {
                certificate: Some(certificate),
                key: Some(key.clone()),
            };
            let problem = secret.judge(Some(content)).unwrap_err();
            assert!(problem.text.contains("not PEM"), "{what}: {problem:?}");
            assert_quotes_nothing(what, &problem.text, &key);
        }
    }
}
