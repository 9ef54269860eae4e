//! The Secret with the certificates: where the CA bundle is read, and what the guard itself makes and renews if it is asked to.
//!
//! Every guard reads; the one that leads writes (any of them where it has held no certificate for a while), each time a whole content, on
//! condition of the object and version that was read.
//! So two that both believe they lead end with one consistent Secret.

pub mod authority;
pub mod held;
mod memory;
pub mod plan;
mod telling;
pub mod watch;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::Client;
use kube::api::ObjectMeta;
use tokio::sync::watch as signal;
use tokio::time::{Instant, sleep};

use self::held::{BUNDLE, CERTIFICATE, Data, Held, OURS, vouch};
use self::memory::Memory;
use self::plan::{Step, Terms, Trust, plan};
use self::telling::told;
use self::watch::TrustWatch;
use super::board::Leads;
use super::configuration::ca_bundle::CaBundle;
use crate::cluster::configurations::Configurations;
use crate::cluster::events::Events;
use crate::cluster::secrets::{Secrets, trusters};
use crate::cluster::store::{Failure, WriteError};
use crate::telemetry::metrics::{GuardMetrics, Outcome};
use crate::tls::pair::now;
use crate::tls::trust::certificates;

/// How often the Secret is read.
pub const INTERVAL: Duration = Duration::from_secs(1);
/// Steps of one round: a join and a promotion follow each other where nobody has to be waited for.
const STEPS: usize = 4;
/// How often in a row the Secret must be missing before it is made anew: who takes everything away takes our right away, too.
const MISSING: u32 = 3;

/// What the guard makes by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SelfManaged {
    /// The names in the serving certificate.
    pub names: Vec<String>,
    /// How long an authority and a serving certificate live.
    pub terms: Terms,
    /// How long all entries must have trusted a new authority before it issues.
    pub trust_delay: Duration,
}

/// Which Secret, and whether it is filled here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The namespace of the Secret.
    pub namespace: String,
    /// The name of the Secret.
    pub name: String,
    /// Without it the Secret is only read.
    pub self_managed: Option<SelfManaged>,
    /// The name by which API servers call the webhook.
    pub server_name: String,
    /// The name of the webhook configuration.
    pub configuration: String,
    /// Nothing is written; what would be is logged.
    pub dry_run: bool,
}

/// The room that looks after the Secret.
pub struct Certificates {
    secrets: Secrets,
    configurations: Configurations,
    settings: Settings,
    ca_bundle: Arc<CaBundle>,
    leads: Arc<dyn Leads>,
    events: Events,
    metrics: Arc<GuardMetrics>,
}

/// Why a round came to nothing.
#[derive(Debug, thiserror::Error)]
enum RoundError {
    #[error("{what} cannot be read: {why}")]
    Read { what: &'static str, why: Failure },
    #[error("the Secret cannot be written: {0}")]
    Write(WriteError),
    #[error(transparent)]
    Make(#[from] authority::MakeError),
    #[error(
        "the certificate that was made is of no use, and is not written ({0}): look at --url, --service and --namespace"
    )]
    Useless(String),
}

impl Certificates {
    /// Nothing is done until [`Certificates::run`] runs.
    #[must_use]
    pub fn new(
        client: Client,
        settings: Settings,
        ca_bundle: Arc<CaBundle>,
        leads: Arc<dyn Leads>,
        events: Events,
        metrics: Arc<GuardMetrics>,
    ) -> Self {
        Self {
            secrets: Secrets::new(client.clone(), &settings.namespace, &settings.name),
            configurations: Configurations::new(client, &settings.configuration),
            settings,
            ca_bundle,
            leads,
            events,
            metrics,
        }
    }

    /// Looks after the Secret until `stop`; a write that is under way is finished.
    pub async fn run(&self, mut stop: signal::Receiver<bool>) {
        let delay = self.settings.self_managed.as_ref().map(|managed| managed.trust_delay);
        let mut memory = Memory::new(delay.unwrap_or_default());
        while !*stop.borrow() {
            match self.round(&mut memory).await {
                Ok(()) => {}
                Err(error) => self.tell(&mut memory, &error.to_string()),
            }
            tokio::select! {
                () = sleep(INTERVAL) => {}
                _ = stop.wait_for(|stop| *stop) => return,
            }
        }
    }

    async fn round(&self, memory: &mut Memory) -> Result<(), RoundError> {
        for _ in 0..STEPS {
            let read = self.secrets.read().await;
            let secret = read.map_err(|why| {
                if matches!(why, Failure::Forbidden(_)) {
                    self.fault(&format!("cannot be read: {why}"));
                }
                let what = "the Secret with the certificates";
                RoundError::Read { what, why }
            })?;
            self.learn(secret.as_ref());
            memory.missing = if secret.is_some() { 0 } else { memory.missing + 1 };
            let Some(managed) = &self.settings.self_managed else {
                return Ok(());
            };
            if !self.step(memory, managed, secret).await? {
                break;
            }
        }
        Ok(())
    }

    /// Takes in the CA bundle.
    fn learn(&self, secret: Option<&Secret>) {
        let Some(secret) = secret else {
            return self.fault(if self.settings.self_managed.is_some() {
                "does not exist: the guard that leads makes it, as long as the webhook configuration exists"
            } else {
                "does not exist: apply the manifest that it belongs to, or have cert-manager make it"
            });
        };
        let data = data_of(Some(secret));
        match data.get(BUNDLE).filter(|bundle| !bundle.is_empty()) {
            None => self.fault(if self.settings.self_managed.is_some() {
                "has no ca.crt: the guard that leads fills it"
            } else {
                "has no ca.crt: it is filled by the guard (--self-managed-tls), by cert-manager or by you"
            }),
            Some(bundle) => match certificates(bundle) {
                Ok(found) => {
                    let vouches = vouch(&found, &data, &self.settings.server_name, now());
                    if self.ca_bundle.learn(found, vouches, Instant::now(), &self.metrics) {
                        tracing::info!(secret = self.settings.name, "the CA bundle changed");
                    }
                }
                Err(why) => self.fault(&format!("holds a ca.crt that is no CA bundle: {why}")),
            },
        }
    }

    fn fault(&self, what: &str) {
        let Settings { namespace, name, .. } = &self.settings;
        let fault = format!("Secret {namespace}/{name} {what}");
        self.ca_bundle.failed(&fault, Instant::now(), &self.metrics);
    }

    /// One step, if there is one to take. Gives whether there may be another.
    async fn step(
        &self,
        memory: &mut Memory,
        managed: &SelfManaged,
        secret: Option<Secret>,
    ) -> Result<bool, RoundError> {
        let now = now();
        let is_clock_right = memory.trusts_clock(now, Instant::now());
        let held = Held::read(&data_of(secret.as_ref()), &managed.names, now);
        if held.is_good(now) {
            memory.good.clone_from(&secret);
        }
        let remembered = data_of(memory.good.as_ref());
        let is_remembered = Held::read(&remembered, &managed.names, now).is_good(now);
        let untrusted = held.facts(|_| Trust::Missing, is_remembered);
        if !self.is_in_charge(memory, secret.as_ref()) || plan(&untrusted, managed.terms, now) == Step::Rest {
            // Nothing is under way here, and what the entries trust is not looked at: it is no longer known since when they do.
            memory.trust = TrustWatch::new(managed.trust_delay);
            memory.told.clear();
            return Ok(false);
        }
        let begun = Instant::now();
        let configuration = self.configurations.read().await.map_err(|why| {
            let what = "the webhook configuration";
            RoundError::Read { what, why }
        })?;
        let (entries, stored): (Vec<_>, Vec<_>) = trusters(configuration.as_ref())
            .into_iter()
            .map(|entry| {
                (
                    entry.entry,
                    certificates(&entry.bundle.unwrap_or_default()).unwrap_or_default(),
                )
            })
            .unzip();
        memory.trust.look(&stored, begun, Instant::now());
        let facts = held.facts(|ca| memory.trust.of(ca), is_remembered);
        let step = plan(&facts, managed.terms, now);
        let made = match &step {
            Step::Rest => {
                memory.told.clear();
                return Ok(false);
            }
            Step::Wait => {
                self.tell_wait(memory, &held, &entries, &stored, now);
                return Ok(false);
            }
            Step::Doubt => {
                self.tell(
                    memory,
                    "an authority in the Secret is not valid yet: is this machine's clock right? Nothing is made. If it is right, take ca.key and ca-next.key out of the Secret",
                );
                return Ok(false);
            }
            Step::Restore => restored(data_of(secret.as_ref()), &remembered),
            step => held.after(step, &managed.names, &stored, managed.terms, now)?,
        };
        if matches!(step, Step::Promote(_) | Step::Issue(_))
            && let Some(why) = Held::read(&made, &managed.names, now).fault()
        {
            return Err(RoundError::Useless(why.to_owned()));
        }
        if secret.is_none() && (configuration.is_none() || memory.missing < MISSING) {
            if configuration.is_none() {
                self.tell(
                    memory,
                    "neither the Secret with the certificates nor the webhook configuration exists: nothing is made",
                );
            }
            return Ok(false);
        }
        let (reason, text) = told(&step);
        if self.settings.dry_run {
            self.note(memory, &format!("dry run, nothing was done: {text}"));
            return Ok(false);
        }
        if !is_clock_right {
            self.tell(
                memory,
                "this machine's clock was set, or stood still: nothing is written for five minutes",
            );
            return Ok(false);
        }
        if !self.may_write(memory, secret.as_ref()) {
            return Ok(false);
        }
        let written = self.write(secret, made).await;
        match written {
            Ok(written) => {
                self.metrics.certificates_written(Outcome::Done);
                tracing::info!(reason, secret = self.settings.name, "{text}");
                self.publish(&written, reason, text);
                memory.wrote();
                Ok(true)
            }
            Err(WriteError::Conflict) => {
                self.metrics.certificates_written(Outcome::Conflict);
                Ok(true)
            }
            Err(error) => {
                self.metrics.certificates_written(Outcome::Failed);
                memory.failed(Instant::now());
                Err(RoundError::Write(error))
            }
        }
    }

    /// Whether there is any use in a write just now.
    fn may_write(&self, memory: &mut Memory, secret: Option<&Secret>) -> bool {
        if secret.is_some_and(|secret| secret.immutable == Some(true)) {
            self.tell(
                memory,
                "the Secret with the certificates is immutable: delete it, and it is made anew",
            );
            return false;
        }
        self.is_in_charge(memory, secret) && !memory.pauses(Instant::now())
    }

    /// Whether writing is this guard's: the one that leads, and each of them where the Secret is there and has held no certificate for a
    /// while. When an upgrade changes who makes it, the guard that leads is one that makes none, and stays until a replica is ready that
    /// waits for it.
    fn is_in_charge(&self, memory: &mut Memory, secret: Option<&Secret>) -> bool {
        let is_bare = secret.is_some_and(|secret| data_of(Some(secret)).get(CERTIFICATE).is_none_or(Vec::is_empty));
        let is_left = memory.is_left_bare(is_bare, Instant::now());
        self.leads.leads() || is_left
    }

    /// Writes the data into the Secret that was read, or makes one. It gets no labels and annotations of the one before: whoever applies
    /// the manifest would meet us as the owner of these fields.
    async fn write(&self, read: Option<Secret>, data: Data) -> Result<Secret, WriteError> {
        let data = data.into_iter().map(|(key, value)| (key, ByteString(value))).collect();
        if let Some(read) = read {
            let secret = Secret {
                data: Some(data),
                ..read
            };
            return self.secrets.replace(&secret).await;
        }
        let secret = Secret {
            metadata: ObjectMeta {
                name: Some(self.settings.name.clone()),
                namespace: Some(self.settings.namespace.clone()),
                ..ObjectMeta::default()
            },
            // As in the manifest: the type of kubernetes.io/tls cannot be applied without data.
            type_: Some("Opaque".into()),
            data: Some(data),
            ..Secret::default()
        };
        self.secrets.create(&secret).await
    }
}

/// The data with our keys as they were, and those of others as they are.
fn restored(mut data: Data, remembered: &Data) -> Data {
    for key in OURS {
        match remembered.get(key) {
            Some(value) => data.insert(key.into(), value.clone()),
            None => data.remove(key),
        };
    }
    data
}

fn data_of(secret: Option<&Secret>) -> Data {
    let data = secret.and_then(|secret| secret.data.clone()).unwrap_or_default();
    data.into_iter().map(|(key, value)| (key, value.0)).collect()
}
