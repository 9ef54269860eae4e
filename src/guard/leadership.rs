//! Leadership by a Lease, with the crate kube-leader-election, made safe.
//!
//! The crate makes the Lease and renews it. It would also take it over, by a merge patch without a precondition, when the other
//! machine's `renewTime` is old on our clock: that is never left to it. A Lease is taken by a write that is conditional on the
//! version that was seen unchanged, and after every write the Lease is read live: [`clockwork`] says what follows from it.

pub mod clockwork;
pub mod lease;

use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use kube_leader_election::{LeaseLock, LeaseLockParams, LeaseLockResult};
use serde_json::json;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use self::clockwork::{Clockwork, Next, Times};
use self::lease::{Reading, released, taken};
use super::board::Leads;
use crate::cluster::store::Failure;
use crate::telemetry::metrics::{GuardMetrics, LeaseTry};

/// How often a release is tried where others write to the Lease at the same time.
const RELEASES: usize = 3;
/// How much of a Pod's name is kept in an identity: the crate uses it as a field manager, which may have 128 characters.
const NAME: usize = 100;

/// Which Lease is asked for.
#[derive(Clone, Debug)]
pub struct LeaseParams {
    /// The namespace of the Lease.
    pub namespace: String,
    /// The name of the Lease.
    pub name: String,
    /// How long a Lease that nobody renews keeps others out; see [`lease::LENGTHS`].
    pub length: Duration,
}

/// The leadership of this process.
pub struct Leadership {
    identity: String,
    times: Times,
    name: String,
    lock: LeaseLock,
    api: Api<Lease>,
    clockwork: Mutex<Clockwork>,
    seen: Mutex<Seen>,
    leading: watch::Sender<bool>,
    metrics: Arc<GuardMetrics>,
}

/// What is remembered of a Lease that is there no more.
#[derive(Debug, Default)]
struct Seen {
    /// Its labels and annotations: those of the release that it belongs to.
    marks: Option<(Marks, Marks)>,
    /// Since when it has been missing.
    missing: Option<Instant>,
}

type Marks = Option<BTreeMap<String, String>>;

impl Seen {
    /// Takes in a read. Gives whether a Lease may be made: there was none, or it has been missing for so long that it was no
    /// uninstall, which takes this process away as well.
    fn look(&mut self, read: Option<&Lease>, at: Instant, patience: Duration) -> bool {
        if let Some(Lease { metadata, .. }) = read {
            self.marks = Some((metadata.labels.clone(), metadata.annotations.clone()));
            self.missing = None;
            return false;
        }
        let since = *self.missing.get_or_insert(at);
        self.marks.is_none() || since + patience <= at
    }
}

impl Leads for Leadership {
    fn leads(&self) -> bool {
        self.clockwork().leads(Instant::now())
    }
}

/// An identity that no other process has, not even one in the same Pod: the Pod's name and something random.
#[must_use]
pub fn identity(pod: &str) -> String {
    let pod: String = pod.chars().filter(char::is_ascii_graphic).take(NAME).collect();
    format!("{pod}_{:016x}", RandomState::new().build_hasher().finish())
}

/// Why a try at the Lease came to nothing.
#[derive(Debug, thiserror::Error)]
enum TryError {
    #[error("the Lease cannot be read: {0}")]
    Read(Failure),
    #[error("the Lease cannot be taken: {0}")]
    Take(Failure),
    #[error(transparent)]
    Crate(#[from] kube_leader_election::Error),
    #[error("no answer within {0:?}")]
    TimedOut(Duration),
}

impl Leadership {
    /// Leads nobody yet: [`Leadership::run`] does the work.
    #[must_use]
    pub fn new(client: Client, params: &LeaseParams, identity: String, metrics: Arc<GuardMetrics>) -> Self {
        let lock = LeaseLock::new(
            client.clone(),
            &params.namespace,
            LeaseLockParams {
                lease_name: params.name.clone(),
                holder_id: identity.clone(),
                lease_ttl: params.length,
            },
        );
        let times = Times::of(params.length);
        Self {
            clockwork: Mutex::new(Clockwork::new(identity.clone(), times)),
            seen: Mutex::default(),
            identity,
            times,
            name: params.name.clone(),
            lock,
            api: Api::namespaced(client, &params.namespace),
            leading: watch::Sender::new(false),
            metrics,
        }
    }

    /// What the Lease calls this process.
    #[must_use]
    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// Tells when this process begins to lead and when it has noticed that it leads no more. Only a hint to look: what counts at a
    /// write is [`Leads::leads`].
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<bool> {
        self.leading.subscribe()
    }

    /// Tries to lead until `stop` turns true; then ends what is under way and leaves the Lease as it is: see
    /// [`Leadership::release`].
    pub async fn run(&self, mut stop: watch::Receiver<bool>) {
        while !*stop.borrow() {
            let pause = self.round().await;
            tokio::select! {
                () = sleep(pause) => {}
                _ = stop.wait_for(|stop| *stop) => {}
            }
        }
    }

    /// One try, and how long to wait until the next.
    async fn round(&self) -> Duration {
        let begun = Instant::now();
        let tried = timeout(self.times.attempt, self.attempt())
            .await
            .unwrap_or(Err(TryError::TimedOut(self.times.attempt)));
        let leads = self.tell();
        match tried {
            Ok(outcome) => {
                self.metrics.lease_tried(outcome);
                let period = if self.clockwork().term().is_some() {
                    self.times.renew
                } else {
                    self.times.look
                };
                // Whoever waits to lead wants to know in time.
                let period = if leads { period } else { period.min(self.times.look) };
                period.saturating_sub(begun.elapsed())
            }
            Err(error) => {
                self.metrics.lease_tried(LeaseTry::Failed);
                tracing::warn!(lease = self.name, %error, "a try at the Lease failed; trying again");
                // One that leads has three tries; one that does not is in no hurry.
                if leads { self.times.pause } else { self.times.look }
            }
        }
    }

    async fn attempt(&self) -> Result<LeaseTry, TryError> {
        let begun = Instant::now();
        let read = self.read().await?;
        let may_make = self.seen().look(read.as_ref(), Instant::now(), self.times.lease);
        if read.is_some() && self.clockwork().leads(begun) {
            // While we lead nobody can have taken it: the crate's own look is enough.
            return self.renew(Instant::now()).await;
        }
        let reading = read.as_ref().map(Reading::of);
        let next = self.clockwork().look(begun, Instant::now(), reading.as_ref());
        match (next, read) {
            (Next::Wait, _) => Ok(LeaseTry::Waited),
            (Next::Create, _) if !may_make => Ok(LeaseTry::Waited),
            (Next::Create, _) => {
                let made = self.renew(Instant::now()).await?;
                self.mark().await;
                Ok(made)
            }
            (Next::Take { term, alone }, Some(read)) => self.take(&read, term, alone).await,
            (Next::Renew | Next::Take { .. }, _) => self.renew(Instant::now()).await,
        }
    }

    /// Renews by the crate, or makes a Lease that is not there, and reads what came of it.
    async fn renew(&self, begun: Instant) -> Result<LeaseTry, TryError> {
        let told = self.lock.try_acquire_or_renew().await;
        // Whatever it says: what counts is what is stored.
        let reading = self.read().await?.as_ref().map(Reading::of);
        let ours = reading
            .as_ref()
            .is_some_and(|reading| reading.holder.as_deref() == Some(&self.identity));
        if told.is_ok() || !ours {
            self.clockwork().confirm(begun, Instant::now(), reading.as_ref());
        }
        Ok(match told? {
            LeaseLockResult::Acquired(_) => LeaseTry::Renewed,
            LeaseLockResult::NotAcquired(_) => LeaseTry::Waited,
        })
    }

    /// Gives a Lease that was made anew the marks of the one before: without them Helm would neither take it over nor delete it.
    async fn mark(&self) {
        let Some((labels, annotations)) = self.seen().marks.clone() else {
            return;
        };
        let patch = Patch::Merge(json!({ "metadata": { "labels": labels, "annotations": annotations } }));
        if let Err(error) = self
            .api
            .patch_metadata(&self.name, &PatchParams::default(), &patch)
            .await
        {
            tracing::warn!(lease = self.name, %error, "the Lease was made anew, without the labels of the one before");
        }
    }

    async fn take(&self, read: &Lease, term: i32, alone: bool) -> Result<LeaseTry, TryError> {
        let begun = Instant::now();
        let spec = read.spec.clone().unwrap_or_default();
        tracing::info!(
            lease = self.name, term, before = spec.holder_identity, renew_time = ?spec.renew_time.map(|time| time.0),
            "taking the Lease: it was released, or not renewed for its whole duration on this process's own clock"
        );
        if alone {
            self.clockwork()
                .trying(read.metadata.uid.as_deref().unwrap_or_default(), term);
        }
        let wanted = taken(read, &self.identity, self.times.lease, term, Timestamp::now());
        match self.api.replace(&self.name, &PostParams::default(), &wanted).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {
                self.clockwork().lost();
                return Ok(LeaseTry::Lost);
            }
            Err(error) => return Err(TryError::Take(error.into())),
        }
        let reading = self.read().await?.as_ref().map(Reading::of);
        self.clockwork().confirm(begun, Instant::now(), reading.as_ref());
        Ok(LeaseTry::Taken)
    }

    /// A GET without resourceVersion goes to etcd.
    async fn read(&self) -> Result<Option<Lease>, TryError> {
        let read = self.api.get_opt(&self.name).await;
        read.map_err(|error| TryError::Read(error.into()))
    }

    /// Gives the Lease up, if it still names this process, so that another may lead at once. From the first moment on this
    /// process leads no more: end all work before. Tries for a lease's safe time at most.
    pub async fn release(&self) {
        self.clockwork().resign();
        self.tell();
        match timeout(self.times.safe, self.give_up()).await {
            Ok(Ok(true)) => tracing::info!(lease = self.name, "released the Lease"),
            Ok(Ok(false)) => {}
            Ok(Err(error)) => {
                tracing::warn!(lease = self.name, %error, "the Lease was not released; it runs out by itself");
            }
            Err(_elapsed) => tracing::warn!(
                lease = self.name,
                "the Lease was not released in time; it runs out by itself"
            ),
        }
    }

    async fn give_up(&self) -> Result<bool, TryError> {
        for _ in 0..RELEASES {
            let Some(read) = self.read().await? else {
                return Ok(false);
            };
            if Reading::of(&read).holder.as_deref() != Some(&self.identity) {
                return Ok(false);
            }
            let wanted = released(&read, Timestamp::now());
            match self.api.replace(&self.name, &PostParams::default(), &wanted).await {
                Ok(_) => return Ok(true),
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                Err(error) => return Err(TryError::Take(error.into())),
            }
        }
        Ok(false)
    }

    /// Tells others, and the log, if leadership began or ended. Gives whether this process leads.
    fn tell(&self) -> bool {
        let (leads, term) = {
            let clockwork = self.clockwork();
            (clockwork.leads(Instant::now()), clockwork.term())
        };
        if let Some(term) = term {
            self.metrics.term(term);
        }
        let changed = self
            .leading
            .send_if_modified(|before| std::mem::replace(before, leads) != leads);
        if changed && leads {
            tracing::info!(lease = self.name, identity = self.identity, term, "leading");
        } else if changed {
            tracing::info!(lease = self.name, identity = self.identity, "leading no more");
        }
        leads
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn clockwork(&self) -> MutexGuard<'_, Clockwork> {
        self.clockwork.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Leadership {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Leadership")
            .field("identity", &self.identity)
            .field("clockwork", &self.clockwork)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_that_is_taken_away_is_made_anew_when_that_was_no_uninstall() {
        let (at, patience) = (Instant::now(), Duration::from_secs(15));
        let mut seen = Seen::default();
        assert!(seen.look(None, at, patience), "there never was one");
        let lease = Lease::default();
        for _ in 0..2 {
            assert!(!seen.look(Some(&lease), at, patience));
            assert!(!seen.look(None, at, patience));
            assert!(!seen.look(None, at + patience / 2, patience));
            assert!(seen.look(None, at + patience, patience));
        }
    }

    /// The crate takes it for the name of a field manager, too.
    #[test]
    fn identities_differ_and_are_short_enough_for_a_field_manager() {
        let long = "p".repeat(253);
        let (one, other) = (identity(&long), identity(&long));
        assert_ne!(one, other);
        assert!(one.len() <= 128, "{one}");
        assert!(identity("guard-0").starts_with("guard-0_"));
    }
}
