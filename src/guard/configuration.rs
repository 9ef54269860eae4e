//! Programs the webhook configuration from the policies, and knows which of them are in force.
//!
//! Every guard reads; the one that leads writes. A write is based on live reads: of the configuration, on whose version it is
//! conditional, and of each policy whose entry it would change. All entries are written at once, so none is missing for a moment
//! because another changes.

pub mod acceptance;
pub mod ca_bundle;
pub mod entries;
pub mod known;
mod left_out;

use std::collections::{BTreeMap, HashMap};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::admissionregistration::v1::{ValidatingWebhook, ValidatingWebhookConfiguration};
use kube::{Client, ResourceExt};
use tokio::sync::{Mutex, Notify, watch};
use tokio::time::{Instant, sleep};

use self::acceptance::Acceptance;
use self::ca_bundle::CaBundle;
use self::entries::{differences, fingerprint, merged, policy_of, same_but_for_the_bundle};
use self::known::{Known, version_of};
use self::left_out::{LeftOut, Why};
use super::board::{Board, Leads, PolicyVersion};
use super::policy_standing::{Accepted, Enforced, Standing, Standings, StandingsSender};
use crate::api::DeployerPolicy;
use crate::cluster::configurations::{ConfigurationError, Configurations};
use crate::cluster::live::LiveStore;
use crate::cluster::store::Failure;
use crate::cluster::webhook_configuration::{Backend, generate, webhook_name};
use crate::telemetry::metrics::{GuardMetrics, Outcome};

/// How long changes are gathered before a round.
const GATHER: Duration = Duration::from_millis(50);
/// The first and the longest pause after a round that failed.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));
/// How soon a policy that waits for a right is looked at again.
const RIGHTS: Duration = Duration::from_secs(5);
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

/// A policy, and what its entry is to be.
struct Judged {
    policy: DeployerPolicy,
    accepted: Accepted,
    entry: Option<ValidatingWebhook>,
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
    /// Versions whose entry was found missing, and when stock had been taken under them by then: not again on that word.
    distrusted: HashMap<PolicyVersion, Option<Timestamp>>,
    /// What was written last: what differs from it was changed by others.
    written: Option<Vec<String>>,
    missing_told: bool,
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
                distrusted: HashMap::new(),
                written: None,
                missing_told: false,
            }),
        }
    }

    /// How the policies stand, after each round.
    #[must_use]
    pub fn standings(&self) -> watch::Receiver<Arc<Standings>> {
        self.standings.subscribe()
    }

    /// Asks for a round soon.
    #[must_use]
    pub fn wake(&self) -> &Notify {
        &self.wake
    }

    /// Keeps the configuration as the policies want it, until `stop`; a write that is under way is finished.
    /// `leading` tells when leadership changes.
    pub async fn run(&self, mut leading: watch::Receiver<bool>, mut stop: watch::Receiver<bool>) {
        let mut back_off = BACK_OFF.0;
        let mut listed: Option<Instant> = None;
        while !*stop.borrow() {
            let due = listed.is_none_or(|listed| listed.elapsed() >= self.settings.relist);
            let pause = match self.round(due).await {
                Ok(waits_for_rights) => {
                    back_off = BACK_OFF.0;
                    if due {
                        listed = Some(Instant::now());
                    }
                    if waits_for_rights { RIGHTS } else { self.settings.relist }
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
                () = self.known.changed.notified() => {}
                Ok(()) = leading.changed() => {}
                () = sleep(pause) => continue,
                _ = stop.wait_for(|stop| *stop) => return,
            }
            sleep(GATHER).await;
        }
    }

    /// Watches the configuration until `stop`: each change is a reason for a round, and where an entry is missing even for a
    /// moment the board says so.
    pub async fn watch(&self, mut stop: watch::Receiver<bool>) {
        let watching = async {
            loop {
                if let Err(why) = self.watch_once().await {
                    tracing::warn!(%why, configuration = self.settings.name, "the webhook configuration cannot be watched; trying again");
                }
                sleep(AGAIN).await;
            }
        };
        tokio::select! {
            () = watching => {}
            _ = stop.wait_for(|stop| *stop) => {}
        }
    }

    async fn watch_once(&self) -> Result<(), Failure> {
        let read = self.configurations.read().await?;
        let version = read.as_ref().and_then(ResourceExt::resource_version);
        let mut changes = pin!(self.configurations.watch(version.as_deref()).await?);
        self.wake.notify_one();
        while let Some(configuration) = changes.next().await {
            let mut state = self.state.lock().await;
            self.note_missing(&mut state, &entries_of(configuration.as_ref()));
            drop(state);
            self.wake.notify_one();
        }
        Ok(())
    }

    /// One look at everything, and a write if this guard leads and something differs. Gives whether a policy waits for a right.
    async fn round(&self, list: bool) -> Result<bool, RoundError> {
        let mut state = self.state.lock().await;
        let read = |what| move |why| RoundError::Read { what, why };
        if list {
            self.known.list().await.map_err(read("the policies"))?;
        }
        let mut judged = self.judge(&mut state).await?;
        let mut stored = match self.configurations.read().await {
            Ok(stored) => stored,
            Err(Failure::Forbidden(text)) => {
                self.tell(&mut state, &judged, None, Some(&Enforced::NotPermitted(text.clone())));
                return Err(read("the webhook configuration")(Failure::Forbidden(text)));
            }
            Err(why) => return Err(read("the webhook configuration")(why)),
        };
        for _ in 0..CONFLICTS {
            let Some(found) = &stored else { break };
            let differing = differences(&entries_of(Some(found)), &wanted(&self.generated(&judged)));
            if differing.is_empty() || !self.leads.leads() {
                break;
            }
            // What was heard of a policy may be old; nothing is written on the word of a list or a watch.
            for policy in differing.iter().filter_map(|name| policy_of(name)) {
                self.known.read(policy).await.map_err(read("a policy"))?;
            }
            judged = self.judge(&mut state).await?;
            let wanted = wanted(&self.generated(&judged));
            let target = state.left_out.without(&wanted, &entries_of(Some(found)));
            if differences(&entries_of(Some(found)), &target).is_empty() {
                break;
            }
            self.note_differing(&mut state, &judged, found);
            let written = self.write(&mut state, found, &wanted).await;
            stored = self
                .configurations
                .read()
                .await
                .map_err(read("the webhook configuration"))?;
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
        let settled = stored.is_none_or(|stored| {
            let stored = entries_of(Some(&stored));
            let wanted = wanted(&self.generated(&judged));
            !self.leads.leads() || differences(&stored, &state.left_out.without(&wanted, &stored)).is_empty()
        });
        if !settled && !self.settings.dry_run {
            return Err(RoundError::Conflicts);
        }
        Ok(judged.iter().any(|judged| {
            matches!(
                judged.accepted,
                Accepted::OwnerNotReadable(_) | Accepted::OwnerNotServed(_)
            )
        }))
    }

    async fn judge(&self, state: &mut State) -> Result<Vec<Judged>, RoundError> {
        let mut judged = Vec::new();
        for policy in self.known.all() {
            let accepted = state.acceptance.judge(&policy).await.map_err(|why| RoundError::Read {
                what: "the kind of a policy's owner",
                why,
            })?;
            judged.push(Judged {
                policy,
                accepted,
                entry: None,
            });
        }
        let accepted: Vec<_> = judged
            .iter()
            .filter(|judged| judged.accepted == Accepted::Accepted)
            .map(|judged| judged.policy.clone())
            .collect();
        let bundle = self.ca_bundle.current();
        let Settings {
            backend,
            own_namespace,
            name,
            ..
        } = &self.settings;
        let generated = generate(&accepted, backend, bundle.as_deref(), own_namespace, name);
        let mut entries: BTreeMap<String, ValidatingWebhook> = generated
            .webhooks
            .unwrap_or_default()
            .into_iter()
            .map(|entry| (entry.name.clone(), entry))
            .collect();
        for judged in &mut judged {
            judged.entry = entries.remove(&webhook_name(&judged.policy.name_any()));
        }
        Ok(judged)
    }

    /// The entries of these policies, and the one that judges policies first.
    fn generated(&self, judged: &[Judged]) -> (ValidatingWebhook, Vec<ValidatingWebhook>) {
        let bundle = self.ca_bundle.current();
        let Settings {
            backend,
            own_namespace,
            name,
            ..
        } = &self.settings;
        let alone = generate(&[], backend, bundle.as_deref(), own_namespace, name);
        let first = alone
            .webhooks
            .unwrap_or_default()
            .into_iter()
            .next()
            .unwrap_or_default();
        (first, judged.iter().filter_map(|judged| judged.entry.clone()).collect())
    }

    /// Writes what is wanted, less what is left out; learns what has to be left out.
    async fn write(
        &self,
        state: &mut State,
        found: &ValidatingWebhookConfiguration,
        wanted: &[ValidatingWebhook],
    ) -> Result<(), ConfigurationError> {
        let stored = entries_of(Some(found));
        self.tell_drift(state, &stored, wanted);
        let target = state.left_out.without(wanted, &stored);
        if self.settings.dry_run {
            tracing::info!(entries = ?differences(&stored, &target), "would write the webhook configuration");
            return Ok(());
        }
        match self.write_exactly(state, found, &target).await {
            Err(ConfigurationError::Refused(text)) => self.find_refused(state, found, &target, &text).await,
            Err(ConfigurationError::TooLarge(text)) => self.fit(state, found, &target, &text).await,
            result => result,
        }
    }

    /// Makes these all of our entries.
    async fn write_exactly(
        &self,
        state: &mut State,
        found: &ValidatingWebhookConfiguration,
        target: &[ValidatingWebhook],
    ) -> Result<(), ConfigurationError> {
        if !self.leads.leads() {
            return Err(ConfigurationError::Conflict);
        }
        let written = match self.configurations.apply(found, target, false).await {
            // Another manager owns what we would take away.
            Ok(written) if !differences(&entries_of(Some(&written)), target).is_empty() => {
                self.replace_all(&written, target).await?
            }
            // Or a part of it: without ours, the rest makes no sense.
            Err(ConfigurationError::Refused(_)) => self.replace_all(found, target).await?,
            result => result?,
        };
        let differing = differences(&entries_of(Some(&written)), target);
        if !differing.is_empty() {
            let text = format!("the API server stores {differing:?} in another way than they were written");
            return Err(ConfigurationError::Failed(Failure::Unreadable(text)));
        }
        self.metrics.configuration_written(Outcome::Done);
        tracing::info!(
            configuration = self.settings.name,
            entries = target.len(),
            changed = ?differences(&entries_of(Some(found)), target),
            "wrote the webhook configuration"
        );
        state.written = Some(fingerprints(target));
        Ok(())
    }

    /// Makes these all of our entries, whoever owns a part of them.
    async fn replace_all(
        &self,
        found: &ValidatingWebhookConfiguration,
        target: &[ValidatingWebhook],
    ) -> Result<ValidatingWebhookConfiguration, ConfigurationError> {
        if !self.leads.leads() {
            return Err(ConfigurationError::Conflict);
        }
        let all = merged(&entries_of(Some(found)), target);
        self.configurations.replace_all(found, &all, false).await
    }

    /// The API server refuses the whole: each changed entry is tried beside what is stored, in a dry run. What is refused is left
    /// out from now on.
    async fn find_refused(
        &self,
        state: &mut State,
        found: &ValidatingWebhookConfiguration,
        target: &[ValidatingWebhook],
        text: &str,
    ) -> Result<(), ConfigurationError> {
        let stored = entries_of(Some(found));
        let changed = differences(&stored, target);
        let changed: Vec<_> = target.iter().filter(|entry| changed.contains(&entry.name)).collect();
        let mut any = false;
        for &entry in &changed {
            let others: Vec<_> = changed
                .iter()
                .copied()
                .filter(|other| other.name != entry.name)
                .collect();
            let attempt = merged(&stored, &left_out::keeping_stored(target, &stored, &others));
            match self.configurations.replace_all(found, &attempt, true).await {
                Err(ConfigurationError::Refused(text)) => {
                    tracing::warn!(
                        entry = entry.name,
                        text,
                        "the API server refuses an entry; it is left out"
                    );
                    state.left_out.remember(entry, Why::Refused(text));
                    any = true;
                }
                Err(ConfigurationError::Conflict) => return Err(ConfigurationError::Conflict),
                Err(ConfigurationError::Failed(why)) => return Err(ConfigurationError::Failed(why)),
                Ok(_) | Err(ConfigurationError::TooLarge(_)) => {}
            }
        }
        if !any {
            // Each is good alone: it is their company.
            for entry in changed {
                state.left_out.remember(entry, Why::Refused(text.to_owned()));
            }
        }
        let target = state.left_out.without(target, &stored);
        self.write_exactly(state, found, &target).await
    }

    /// The whole does not fit: as many of the changed entries as do are written, by halves. A write that does not fit changes
    /// nothing.
    async fn fit(
        &self,
        state: &mut State,
        found: &ValidatingWebhookConfiguration,
        target: &[ValidatingWebhook],
        text: &str,
    ) -> Result<(), ConfigurationError> {
        let stored = entries_of(Some(found));
        let names = differences(&stored, target);
        let mut changed: Vec<_> = target.iter().filter(|entry| names.contains(&entry.name)).collect();
        // What is in force comes before what is new.
        changed.sort_by_key(|entry| stored.iter().all(|other| other.name != entry.name));
        let (mut fits, mut too_many) = (0, changed.len());
        while too_many - fits > 1 {
            let some = fits.midpoint(too_many);
            let attempt = left_out::keeping_stored(target, &stored, &changed[some..]);
            // Each success makes a new version.
            let Ok(Some(now)) = self.configurations.read().await else {
                return Err(ConfigurationError::Conflict);
            };
            match self.write_exactly(state, &now, &attempt).await {
                Ok(()) => fits = some,
                Err(ConfigurationError::TooLarge(_)) => too_many = some,
                Err(other) => return Err(other),
            }
        }
        for entry in &changed[fits..] {
            tracing::warn!(
                entry = entry.name,
                text,
                "an entry does not fit into the webhook configuration; it is left out"
            );
            state.left_out.remember(entry, Why::TooLarge(text.to_owned()));
        }
        Ok(())
    }

    fn tell_drift(&self, state: &State, stored: &[ValidatingWebhook], wanted: &[ValidatingWebhook]) {
        let ours: Vec<_> = stored
            .iter()
            .filter(|entry| entries::is_ours(&entry.name))
            .cloned()
            .collect();
        if state
            .written
            .as_ref()
            .is_some_and(|written| *written != fingerprints(&ours))
        {
            self.metrics.configuration_drifted();
            tracing::warn!(
                configuration = self.settings.name,
                entries = ?differences(stored, wanted),
                "somebody else changed our entries of the webhook configuration; putting them right"
            );
        }
    }

    /// Leaves on the board, and tells others, how the policies stand.
    fn tell(
        &self,
        state: &mut State,
        judged: &[Judged],
        stored: Option<&ValidatingWebhookConfiguration>,
        unreadable: Option<&Enforced>,
    ) {
        let entries = entries_of(stored);
        let mut standings = Standings::new();
        for judged in judged {
            let version = version_of(&judged.policy);
            let enforced = match (unreadable, stored, &judged.entry) {
                (Some(why), _, _) => why.clone(),
                (None, _, None) => Enforced::NotAccepted,
                (None, None, Some(_)) => Enforced::ConfigurationMissing,
                (None, Some(_), Some(entry)) if self.is_stored(&entries, entry) => Enforced::Stored,
                (None, Some(_), Some(entry)) => match state.left_out.why(entry) {
                    Some(Why::Refused(text)) => Enforced::Refused(text.clone()),
                    Some(Why::TooLarge(text)) => Enforced::TooLarge(text.clone()),
                    None => Enforced::Pending,
                },
            };
            if enforced == Enforced::Stored {
                self.note_stored(state, &version, &judged.policy);
            } else if unreadable.is_none() {
                self.note_broken(state, &version);
            }
            let standing = Standing {
                version,
                failure_policy: judged.policy.spec.effective_failure_policy(),
                accepted: judged.accepted.clone(),
                enforced,
            };
            standings.insert(judged.policy.name_any(), standing);
        }
        let versions: Vec<_> = standings.values().map(|standing| standing.version.clone()).collect();
        self.board.keep(&versions);
        state.distrusted.retain(|version, _| versions.contains(version));
        let not_enforced = standings
            .values()
            .filter(|standing| standing.enforced != Enforced::Stored);
        let missing = stored.is_none() && unreadable.is_none();
        self.metrics.enforced(missing, not_enforced.count());
        if missing && !state.missing_told {
            tracing::error!(
                configuration = self.settings.name,
                "the webhook configuration does not exist: no policy is in force. It is never made here: apply the manifest that it belongs to"
            );
        }
        state.missing_told = missing;
        self.standings.send_if_modified(|before| {
            let changed = **before != standings;
            *before = Arc::new(standings);
            changed
        });
    }

    /// Whether an entry is stored, with the bundle of now or the one before it.
    fn is_stored(&self, stored: &[ValidatingWebhook], entry: &ValidatingWebhook) -> bool {
        let found = stored.iter().find(|other| other.name == entry.name);
        found.is_some_and(|found| {
            let bundle = found.client_config.ca_bundle.as_ref().map(|bundle| bundle.0.as_slice());
            same_but_for_the_bundle(found, entry) && self.ca_bundle.knows(bundle)
        })
    }

    /// Found in the stored configuration, read live.
    fn note_stored(&self, state: &mut State, version: &PolicyVersion, policy: &DeployerPolicy) {
        let taken = policy
            .status
            .as_ref()
            .and_then(|status| status.stock_taking)
            .filter(|taking| taking.generation == version.generation)
            .map(|taking| taking.completed_at);
        let distrusted = state.distrusted.get(version).copied();
        self.board.note(version, |notice| {
            notice.in_force_since.get_or_insert_with(Instant::now);
            if notice.stock_taken.is_none() && distrusted.is_none_or(|distrusted| distrusted != taken) {
                notice.stock_taken = taken;
            }
        });
    }

    /// Not in the stored configuration: whoever came in meanwhile was not seen.
    fn note_broken(&self, state: &mut State, version: &PolicyVersion) {
        let (mut was_taken, mut was_in_force) = (None, false);
        self.board.note(version, |notice| {
            was_in_force = notice.in_force_since.take().is_some();
            was_taken = notice.stock_taken.take();
        });
        let stored = self.known.stock_taken(version);
        let before = was_taken.or(stored);
        if was_in_force || !state.distrusted.contains_key(version) {
            state.distrusted.insert(version.clone(), before);
        }
    }

    /// Before it is put right: that it was wrong must not be forgotten.
    fn note_differing(&self, state: &mut State, judged: &[Judged], found: &ValidatingWebhookConfiguration) {
        let stored = entries_of(Some(found));
        for judged in judged {
            let entry = judged.entry.as_ref();
            if entry.is_some_and(|entry| !self.is_stored(&stored, entry)) {
                self.note_broken(state, &version_of(&judged.policy));
            }
        }
    }

    /// What a watch says is missing was missing, if only for a moment.
    fn note_missing(&self, state: &mut State, stored: &[ValidatingWebhook]) {
        let standings = Arc::clone(&self.standings.borrow());
        for standing in standings
            .values()
            .filter(|standing| standing.enforced == Enforced::Stored)
        {
            if stored
                .iter()
                .all(|entry| entry.name != webhook_name(&standing.version.name))
            {
                self.note_broken(state, &standing.version);
            }
        }
    }
}

fn wanted((first, rest): &(ValidatingWebhook, Vec<ValidatingWebhook>)) -> Vec<ValidatingWebhook> {
    std::iter::once(first).chain(rest).cloned().collect()
}

fn entries_of(configuration: Option<&ValidatingWebhookConfiguration>) -> Vec<ValidatingWebhook> {
    configuration
        .and_then(|configuration| configuration.webhooks.clone())
        .unwrap_or_default()
}

fn fingerprints(entries: &[ValidatingWebhook]) -> Vec<String> {
    let mut all: Vec<_> = entries.iter().map(fingerprint).collect();
    all.sort();
    all
}
