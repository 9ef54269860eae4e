//! Programs the webhook configuration from the policies, and knows which of them are in force.
//!
//! Every guard reads; the one that leads writes (room `writing`), and others at most add authorities to what stands there (`joining`). A
//! write is based on live reads: of the configuration, on whose version it is conditional, and of each policy whose entry it would change
//! (`judging`). All entries are written at once, so none is missing for a moment because another changes. What stands in the configuration
//! is looked at as it was read, before it is put right (`in_force`).

pub mod acceptance;
pub mod ca_bundle;
pub mod entries;
mod in_force;
mod joining;
mod judging;
pub mod known;
mod left_out;
mod telling;
mod writing;

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::admissionregistration::v1::{ValidatingWebhook, ValidatingWebhookConfiguration};
use kube::{Client, ResourceExt};
use tokio::sync::{Mutex, Notify, watch};
use tokio::time::{Instant, sleep};

use self::acceptance::Acceptance;
use self::ca_bundle::CaBundle;
use self::entries::differences;
use self::in_force::InForce;
use self::joining::Joining;
use self::judging::Judged;
use self::known::{Known, Unreadable, version_of};
use self::left_out::LeftOut;
use super::board::{Board, Leads, Notice};
use super::policy_standing::{Accepted, Enforced, Standings, StandingsSender};
use crate::cluster::complaint::Complaint;
use crate::cluster::configurations::{ConfigurationError, Configurations};
use crate::cluster::live::LiveStore;
use crate::cluster::store::Failure;
use crate::cluster::webhook_configuration::Backend;
use crate::telemetry::metrics::{GuardMetrics, Outcome};

/// How long changes are gathered before a round.
const GATHER: Duration = Duration::from_millis(50);
/// The first and the longest pause after a round that failed.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));
/// How soon a policy that waits for a right, and entries that lack an authority of ours, are looked at again.
const SOON: Duration = Duration::from_secs(5);
/// How soon a configuration that is not there is looked for, and a watch that ended is begun anew.
const AGAIN: Duration = Duration::from_secs(1);
/// How often a write that met a change is done anew within one round.
const CONFLICTS: usize = 5;

/// What the configuration is made with.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The name of the configuration.
    pub name: String,
    /// Where the webhook listens.
    pub backend: Backend,
    /// Our namespace, which is never matched.
    pub own_namespace: String,
    /// How often policies are listed and the configuration is read although nothing was heard of them.
    pub relist: Duration,
    /// Nothing is written; what would be is logged.
    pub dry_run: bool,
}

/// Why a round came to nothing.
#[derive(Debug, thiserror::Error)]
enum RoundError {
    #[error("{what} cannot be read: {why}")]
    Read { what: &'static str, why: Failure },
    #[error("the webhook configuration cannot be written: {0}")]
    Write(Failure),
    #[error("the webhook configuration changed under {CONFLICTS} writes")]
    Conflicts,
}

/// What the room shares with others.
#[derive(Clone)]
pub struct Shared {
    /// The policies as they were last heard of.
    pub known: Arc<Known>,
    /// The CA bundle of now.
    pub ca_bundle: Arc<CaBundle>,
    /// Whether this process leads.
    pub leads: Arc<dyn Leads>,
    /// Where it is left which policies are in force.
    pub board: Arc<Board>,
    /// What is counted.
    pub metrics: Arc<GuardMetrics>,
}

/// The room that programs the configuration.
pub struct Programmer {
    settings: Settings,
    configurations: Configurations,
    known: Arc<Known>,
    ca_bundle: Arc<CaBundle>,
    leads: Arc<dyn Leads>,
    board: Arc<Board>,
    standings: StandingsSender,
    metrics: Arc<GuardMetrics>,
    wake: Notify,
    state: Mutex<State>,
}

/// What is remembered from round to round.
struct State {
    acceptance: Acceptance,
    left_out: LeftOut,
    in_force: InForce,
    /// What was written last: what differs from it was changed by others.
    written: Option<Vec<String>>,
    missing_told: bool,
    /// Policies that cannot be read, by name; and why those of them cannot that were told of.
    unreadable: BTreeMap<String, Unreadable>,
    unreadable_told: BTreeMap<String, String>,
    joining: Joining,
}

impl Programmer {
    /// Nothing is done until [`Programmer::run`] runs.
    #[must_use]
    pub fn new(client: Client, store: LiveStore, settings: Settings, shared: Shared) -> Self {
        let Shared {
            known,
            ca_bundle,
            leads,
            board,
            metrics,
        } = shared;
        Self {
            configurations: Configurations::new(client.clone(), &settings.name),
            settings,
            known,
            ca_bundle,
            leads,
            board,
            standings: watch::Sender::default(),
            metrics,
            wake: Notify::new(),
            state: Mutex::new(State {
                acceptance: Acceptance::new(client, store),
                left_out: LeftOut::default(),
                in_force: InForce::default(),
                written: None,
                missing_told: false,
                unreadable: BTreeMap::new(),
                unreadable_told: BTreeMap::new(),
                joining: Joining::default(),
            }),
        }
    }

    /// How the policies stand, after each round.
    #[must_use]
    pub fn standings(&self) -> watch::Receiver<Arc<Standings>> {
        self.standings.subscribe()
    }

    /// Keeps the configuration as the policies want it, until `stop`; a write that is under way is finished.
    /// `leading` tells when leadership changes.
    pub async fn run(&self, mut leading: watch::Receiver<bool>, mut stop: watch::Receiver<bool>) {
        let mut back_off = BACK_OFF.0;
        let mut listed: Option<Instant> = None;
        while !*stop.borrow() {
            let due = listed.is_none_or(|listed| listed.elapsed() >= self.settings.relist);
            let pause = match self.round(due).await {
                Ok(again_soon) => {
                    back_off = BACK_OFF.0;
                    if due {
                        listed = Some(Instant::now());
                    }
                    if again_soon { SOON } else { self.settings.relist }
                }
                Err(error) => {
                    tracing::warn!(%error, again_in = ?back_off, "the webhook configuration could not be looked after");
                    let pause = back_off;
                    back_off = (back_off * 2).min(BACK_OFF.1);
                    pause
                }
            };
            tokio::select! {
                () = self.wake.notified() => {}
                () = self.board.stock_taken().notified() => {}
                () = self.ca_bundle.changed.notified() => {}
                () = self.known.changed.notified() => {}
                Ok(()) = leading.changed() => {}
                () = sleep(pause) => continue,
                _ = stop.wait_for(|stop| *stop) => return,
            }
            sleep(GATHER).await;
        }
    }

    /// Watches the configuration until `stop`: each change is a reason for a round, and where an entry is not as it is to be even for
    /// a moment the board says so.
    pub async fn watch(&self, mut stop: watch::Receiver<bool>) {
        let mut complaint = Complaint::new("the webhook configuration");
        let watching = async {
            loop {
                if let Err(why) = self.watch_once(&mut complaint).await {
                    complaint.fails("", &why);
                }
                sleep(AGAIN).await;
            }
        };
        tokio::select! {
            () = watching => {}
            _ = stop.wait_for(|stop| *stop) => {}
        }
    }

    async fn watch_once(&self, complaint: &mut Complaint) -> Result<(), Failure> {
        let read = self.configurations.read().await?;
        let version = read.as_ref().and_then(ResourceExt::resource_version);
        let mut changes = pin!(self.configurations.watch(version.as_deref()).await?);
        complaint.works("");
        self.wake.notify_one();
        while let Some(configuration) = changes.next().await {
            let mut state = self.state.lock().await;
            state.in_force.heard(&self.board, configuration.as_ref());
            drop(state);
            self.wake.notify_one();
        }
        Ok(())
    }

    /// One look at everything, and a write if this guard leads and something differs. Gives whether it is worth another look soon.
    async fn round(&self, list: bool) -> Result<bool, RoundError> {
        let mut state = self.state.lock().await;
        let read = |what| move |why| RoundError::Read { what, why };
        if list {
            self.known.list().await.map_err(read("the policies"))?;
        }
        let found = self.configurations.read().await;
        if let Ok(found) = &found {
            self.look_at_bundles(&mut state, found.as_ref());
        }
        let mut judged = self.judge(&mut state, self.known.snapshot()).await?;
        let mut stored = match found {
            Ok(stored) => stored,
            Err(Failure::Forbidden(text)) => {
                self.tell(&mut state, &judged, None, Some(&Enforced::NotPermitted(text.clone())));
                return Err(read("the webhook configuration")(Failure::Forbidden(text)));
            }
            Err(why) => return Err(read("the webhook configuration")(why)),
        };
        self.look(&mut state, &judged, stored.as_ref());
        if self.ca_bundle.is_awaited() {
            let fault = Some(self.ca_bundle.fault()).filter(|fault| !fault.is_empty());
            let why = fault.unwrap_or_else(|| {
                let what = if self.ca_bundle.current().is_some() {
                    "the Secret with the certificates was filled just now, and replicas are given a moment to serve with it"
                } else {
                    "the Secret with the certificates was not read yet"
                };
                what.into()
            });
            let why = Enforced::CaBundleMissing(why);
            self.tell(&mut state, &judged, stored.as_ref(), Some(&why));
            return Ok(false);
        }
        for _ in 0..CONFLICTS {
            let Some(found) = &stored else { break };
            let entries = entries_of(Some(found));
            let differing = differences(&entries, &self.wanted(&state, &entries));
            if differing.is_empty() || !self.leads.leads() {
                break;
            }
            judged = self.judge_live(&mut state, found, differing).await?;
            let wanted = self.wanted(&state, &entries);
            let target = state.left_out.without(&wanted, &entries);
            if differences(&entries, &target).is_empty() {
                break;
            }
            let written = self.write(&mut state, found, &wanted).await;
            stored = self
                .configurations
                .read()
                .await
                .map_err(read("the webhook configuration"))?;
            self.look_at_bundles(&mut state, stored.as_ref());
            self.look(&mut state, &judged, stored.as_ref());
            match written {
                Ok(()) if self.settings.dry_run => break,
                Ok(()) => {}
                Err(ConfigurationError::Conflict) => self.metrics.configuration_written(Outcome::Conflict),
                Err(ConfigurationError::Failed(Failure::Forbidden(text))) => {
                    self.metrics.configuration_written(Outcome::Failed);
                    let why = Enforced::NotPermitted(text.clone());
                    self.tell(&mut state, &judged, stored.as_ref(), Some(&why));
                    return Err(RoundError::Write(Failure::Forbidden(text)));
                }
                Err(error) => {
                    self.metrics.configuration_written(Outcome::Failed);
                    self.tell(&mut state, &judged, stored.as_ref(), None);
                    let why = match error {
                        ConfigurationError::Failed(why) => why,
                        other => Failure::Unreadable(other.to_string()),
                    };
                    return Err(RoundError::Write(why));
                }
            }
        }
        self.tell(&mut state, &judged, stored.as_ref(), None);
        let lacks = self.join(&mut state.joining, stored.as_ref()).await;
        let settled = stored.is_none_or(|stored| {
            let stored = entries_of(Some(&stored));
            let wanted = self.wanted(&state, &stored);
            !self.leads.leads() || differences(&stored, &state.left_out.without(&wanted, &stored)).is_empty()
        });
        if !settled && !self.settings.dry_run {
            return Err(RoundError::Conflicts);
        }
        Ok(lacks
            || judged.iter().any(|judged| {
                matches!(
                    judged.accepted,
                    Accepted::OwnerNotReadable(_) | Accepted::OwnerNotServed(_)
                )
            }))
    }

    /// What the API servers trust by now stays a part of the bundle for a while. To be called with all that was read or written.
    fn look_at_bundles(&self, state: &mut State, stored: Option<&ValidatingWebhookConfiguration>) {
        let entries = entries_of(stored);
        let ours = entries.iter().filter(|entry| entries::is_ours(&entry.name));
        let bundles = ours.map(|entry| {
            let bundle = entry.client_config.ca_bundle.as_ref();
            (
                entry.name.as_str(),
                bundle.map(|bundle| bundle.0.as_slice()).unwrap_or_default(),
            )
        });
        if self.ca_bundle.found_stored(bundles, self.leads.leads(), Instant::now()) {
            // That was no drift.
            state.written = None;
        }
    }

    /// Looks at the configuration as it was just read, and compares it with what these policies want.
    fn look(&self, state: &mut State, judged: &[Judged], stored: Option<&ValidatingWebhookConfiguration>) {
        for judged in judged.iter().filter(|judged| judged.entry.is_none()) {
            self.board.note(&version_of(&judged.policy), Notice::broken);
        }
        let wanted = judged.iter().filter_map(|judged| judged.entry.clone()).collect();
        state.in_force.want(wanted);
        state.in_force.look(&self.board, stored, self.leads.leads());
    }
}

fn entries_of(configuration: Option<&ValidatingWebhookConfiguration>) -> Vec<ValidatingWebhook> {
    configuration
        .and_then(|configuration| configuration.webhooks.clone())
        .unwrap_or_default()
}
