//! A serving certificate in a Secret, read through the API: no volume, and no wait for kubelet to refresh one.
//!
//! The Secret is read by name again and again. A watch could go deaf, and would need a right to more than this one Secret.

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::{Instant, sleep};

use super::hold_back::{HoldBack, LAST_MOMENTS, Look, Verdict, distrust};
use super::pair::{Fingerprint, Pair, fingerprint, now};
use super::served::Served;
use super::trust::Truster;
use crate::cluster::store::Failure;
use crate::telemetry::health::Condition;
use crate::telemetry::metrics::Metrics;

/// The shortest time between two reads.
const LEAST: Duration = Duration::from_millis(10);
/// How often the Secret is read while there is nothing to serve with: as soon as it is filled, entries are stored that send creates here.
const EAGER: Duration = Duration::from_millis(250);
/// How often it is looked whether the first pair is trusted.
const CONFIRM: Duration = Duration::from_secs(1);
/// For how long a replica whose first pair is not trusted by every entry is not ready. An entry that never trusts it, or a guard that
/// never runs, keeps no replica out for ever.
const PATIENCE: Duration = Duration::from_mins(2);

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
    /// Since when the first pair is served, as long as it is not known to be trusted.
    unconfirmed: Option<Instant>,
}

impl Memory {
    fn new(trust_delay: Duration) -> Self {
        Self {
            hold_back: HoldBack::new(trust_delay),
            problem: None,
            held: None,
            unconfirmed: None,
        }
    }
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
        let mut memory = Memory::new(self.trust_delay);
        loop {
            self.look(&mut memory, metrics, condition).await;
            self.confirm(&mut memory, condition).await;
            sleep(self.pause(&memory, now())).await;
        }
    }

    /// How long to wait for the next look.
    fn pause(&self, memory: &Memory, now: i64) -> Duration {
        let Some(current) = self.served.current() else {
            return self.interval.min(EAGER);
        };
        let interval = if memory.unconfirmed.is_some() {
            self.interval.min(CONFIRM)
        } else {
            self.interval
        };
        if memory.held.is_none() {
            return interval;
        }
        // The one that is held back is served as soon as the current one is of no use.
        let left = u64::try_from(current.not_after() + 1 - LAST_MOMENTS - now).unwrap_or_default();
        interval.min(Duration::from_secs(left.max(1)))
    }

    /// The first pair is served at once, and the replica is ready when every entry of ours trusts it: it may have been started in the
    /// middle of an exchange, and others serve what is trusted meanwhile.
    async fn confirm(&self, memory: &mut Memory, condition: &Condition) {
        let (Some(since), Some(current)) = (memory.unconfirmed, self.served.current()) else {
            return;
        };
        // What cannot be read says nothing against it.
        let entries = self.upstream.trusters().await.unwrap_or_default();
        match distrust(&current, &entries, now()) {
            Some(why) if since.elapsed() < PATIENCE => {
                condition.fail(format!("the certificate is served, but {why}"));
            }
            doubt => {
                if let Some(why) = doubt {
                    tracing::warn!(%why, secret = self.name, "ready all the same: the first certificate has waited for long enough");
                }
                memory.unconfirmed = None;
                condition.hold();
            }
        }
    }

    async fn look(&self, memory: &mut Memory, metrics: &Metrics, condition: &Condition) {
        let found = match self.upstream.content().await {
            Ok(content) => self.judge(content),
            Err(Failure::Forbidden(why)) => Err(Problem {
                content: None,
                is_unread: false,
                text: format!(
                    "may not be read: {why}; a rule of the ServiceAccount is missing. Apply deploy/rbac.yaml; installed by the chart: helm upgrade"
                ),
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
                    if self.served.current().is_none() {
                        memory.unconfirmed = Some(Instant::now());
                    }
                    self.served.serve(pair);
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
                "does not exist: the guard (--self-managed-tls) or cert-manager makes it; a Secret of yours you make yourself",
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
        let current = self.served.current();
        let Some(current) = current.filter(|current| HoldBack::is_needed(Some(current), now())) else {
            return true;
        };
        let begun = Instant::now();
        let entries = self.upstream.trusters().await;
        let look = Look {
            entries: &entries,
            begun,
            ended: Instant::now(),
            now: now(),
        };
        match memory.hold_back.judge(&current, pair, &look) {
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

#[cfg(test)]
mod tests;
