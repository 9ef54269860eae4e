//! A serving certificate in a Secret, read through the API: no volume, and no wait for kubelet to refresh one.
//!
//! The Secret is read by name again and again. A watch could go deaf, and would need a right to more than this one Secret.

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::{Instant, sleep};

use super::hold_back::{HoldBack, Look, Verdict};
use super::pair::{Fingerprint, Pair, fingerprint, now};
use super::served::Served;
use super::trust::Truster;
use crate::cluster::store::Failure;
use crate::telemetry::health::Condition;
use crate::telemetry::metrics::Metrics;

/// The shortest time between two reads.
const LEAST: Duration = Duration::from_millis(10);

/// The longest time between two reads while there is nothing to serve with.
const IMPATIENT: Duration = Duration::from_secs(1);

/// What a Secret holds for a server.
#[derive(Clone, Default)]
pub struct Content {
    /// Its `tls.crt`.
    pub certificate: Option<Vec<u8>>,
    /// Its `tls.key`.
    pub key: Option<Vec<u8>>,
}

/// Where the pair, and what the API servers trust, is read. Both are live reads.
#[async_trait]
pub trait Upstream: Send + Sync {
    /// The Secret. `None`: there is none.
    async fn content(&self) -> Result<Option<Content>, Failure>;

    /// Our entries of the stored webhook configuration.
    async fn trusters(&self) -> Result<Vec<Truster>, Failure>;
}

/// A pair in a Secret, served as long as there is no better one.
///
/// Guarantees: a content that is missing, half written, mismatched or expired never replaces a good pair; and a pair that the
/// stored webhook configuration does not trust yet replaces none that is valid.
pub struct TlsSecret {
    name: String,
    namespace: String,
    interval: Duration,
    trust_delay: Duration,
    upstream: Arc<dyn Upstream>,
    served: Arc<Served>,
}

/// What is remembered from look to look.
struct Memory {
    hold_back: HoldBack,
    /// What was reported last.
    problem: Option<Problem>,
    held: Option<String>,
}

/// Why the Secret is of no use as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Problem {
    /// What tells one broken content from another.
    content: Option<Fingerprint>,
    /// It is not known what the Secret holds: that is no fault of it.
    is_unread: bool,
    text: String,
}

impl TlsSecret {
    /// The pair in the Secret of this name and namespace; the namespace is for people.
    #[must_use]
    pub fn new(name: &str, namespace: &str, upstream: Arc<dyn Upstream>) -> Self {
        Self {
            name: name.to_owned(),
            namespace: namespace.to_owned(),
            interval: Duration::from_secs(5),
            trust_delay: Duration::from_secs(10),
            upstream,
            served: Arc::default(),
        }
    }

    /// Sets how often the Secret is read (default: each 5 s).
    #[must_use]
    pub fn read_every(mut self, interval: Duration) -> Self {
        self.interval = interval.max(LEAST);
        self
    }

    /// Sets how long the entries must have trusted a new pair (default: 10 s).
    #[must_use]
    pub fn trusted_for(mut self, delay: Duration) -> Self {
        self.trust_delay = delay;
        self
    }

    /// What handshakes are answered with.
    pub(super) fn served(&self) -> &Arc<Served> {
        &self.served
    }

    /// Reads again and again, and serves with a new pair as soon as it may. Ends only by being dropped.
    pub(super) async fn keep_fresh(&self, metrics: &Metrics, condition: &Condition) -> Infallible {
        let mut memory = Memory {
            hold_back: HoldBack::new(self.trust_delay),
            problem: None,
            held: None,
        };
        loop {
            self.look(&mut memory, metrics, condition).await;
            // Where nothing is served, somebody waits for it.
            let is_served = self.served.current().is_some();
            sleep(if is_served {
                self.interval
            } else {
                self.interval.min(IMPATIENT)
            })
            .await;
        }
    }

    async fn look(&self, memory: &mut Memory, metrics: &Metrics, condition: &Condition) {
        let found = match self.upstream.content().await {
            Ok(content) => self.judge(content),
            Err(Failure::Forbidden(why)) => Err(Problem {
                content: None,
                is_unread: false,
                text: format!("may not be read: {why}; the ServiceAccount needs the rule of deploy/rbac.yaml for it"),
            }),
            Err(why) => Err(Problem {
                content: None,
                is_unread: true,
                text: format!("cannot be read: {why}"),
            }),
        };
        if !matches!(&found, Err(problem) if problem.is_unread) {
            metrics.certificate_source_broken(found.is_err());
        }
        match found {
            Ok(None) => {
                memory.problem = None;
                self.release(memory, metrics);
            }
            Ok(Some(pair)) => {
                memory.problem = None;
                if self.may_serve(memory, &pair, metrics).await {
                    self.release(memory, metrics);
                    tracing::info!(
                        not_after = pair.not_after(),
                        secret = self.name,
                        "serving with a new certificate"
                    );
                    metrics.certificate_not_after(pair.not_after());
                    self.served.serve(pair);
                    condition.hold();
                }
            }
            Err(problem) => {
                if !problem.is_unread {
                    self.release(memory, metrics);
                }
                let text = format!("Secret {}/{} {}", self.namespace, self.name, problem.text);
                if self.served.current().is_none() {
                    condition.fail(text.clone());
                }
                if memory.problem.as_ref() != Some(&problem) {
                    let stays = self.served.current().map(|_| "the last good pair stays");
                    tracing::warn!(problem = text, stays, "the certificate cannot be served with");
                    if !problem.is_unread {
                        metrics.certificate_reload_failed();
                    }
                    memory.problem = Some(problem);
                }
            }
        }
    }

    /// The pair in a content, if it is another than the one that is served.
    fn judge(&self, content: Option<Content>) -> Result<Option<Pair>, Problem> {
        let problem = |content, text: &str| Problem {
            content,
            is_unread: false,
            text: text.to_owned(),
        };
        let content = content.ok_or_else(|| {
            problem(
                None,
                "does not exist: apply the manifest that it belongs to, or wait until the guard (--self-managed-tls) or cert-manager makes it",
            )
        })?;
        let part = |part: Option<Vec<u8>>| part.filter(|part| !part.is_empty());
        let (certificate, key) = match (part(content.certificate), part(content.key)) {
            (Some(certificate), Some(key)) => (certificate, key),
            (None, None) => {
                return Err(problem(
                    None,
                    "is empty: it gets tls.crt and tls.key from the guard (--self-managed-tls), from cert-manager or from you",
                ));
            }
            (None, Some(_)) => return Err(problem(None, "has no tls.crt: put the certificate beside its key")),
            (Some(_), None) => return Err(problem(None, "has no tls.key: put the key beside its certificate")),
        };
        let print = fingerprint(&certificate, &key);
        if self
            .served
            .current()
            .is_some_and(|current| current.fingerprint() == print)
        {
            return Ok(None);
        }
        let pair = Pair::parse(&certificate, &key, self.served.provider())
            .and_then(|pair| pair.valid_at(now()).map(|()| pair))
            .map_err(|error| {
                problem(
                    Some(print),
                    &format!("has no pair to serve with: {error}; mend tls.crt and tls.key together"),
                )
            })?;
        Ok(Some(pair))
    }

    /// Whether a new pair may be served: not while it is held back.
    async fn may_serve(&self, memory: &mut Memory, pair: &Pair, metrics: &Metrics) -> bool {
        let Some(old) = self.served.current() else { return true };
        if !HoldBack::is_needed(&old, now()) {
            return true;
        }
        let begun = Instant::now();
        let entries = self.upstream.trusters().await;
        let look = Look {
            entries: &entries,
            begun,
            ended: Instant::now(),
            now: now(),
        };
        match memory.hold_back.judge(pair, &old, &look) {
            Verdict::Serve => true,
            Verdict::Hold(why) => {
                let why = why.to_string();
                if memory.held.as_ref() != Some(&why) {
                    tracing::info!(
                        why,
                        secret = self.name,
                        "a new certificate is held back; the old one is still valid"
                    );
                    memory.held = Some(why);
                }
                metrics.certificate_held_back(true);
                false
            }
        }
    }

    /// Nothing is held back any more.
    fn release(&self, memory: &mut Memory, metrics: &Metrics) {
        memory.hold_back = HoldBack::new(self.trust_delay);
        memory.held = None;
        metrics.certificate_held_back(false);
    }
}

impl fmt::Debug for TlsSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsSecret")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}
