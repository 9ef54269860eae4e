//! Follows pods that were admitted and are not in the store yet, each to its end: confirmed, or dropped.
//!
//! Needs no leader: it ends in a write that is conditional on a version of the claim read before the pod was. Every age is
//! of this process's own monotonic clock, and taken before the read that it justifies (DESIGN section 4).

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use kube::ResourceExt;
use tokio::time::{Instant, sleep, timeout};

use crate::api::claim::{ClaimEntry, DeployerClaim, DeployerClaimSpec};
use crate::cluster::store::{ReadError, Store, WriteError};
use crate::domain::pursuit::{Pursued, Pursuit, Window};
use crate::statuses::Statuses;
use crate::telemetry::metrics::Metrics;

/// First pause before a pod that this process admitted is looked for: a store takes a few milliseconds.
const FIRST_LOOK: Duration = Duration::from_millis(15);
/// First pause where another process admitted the pod, and follows it too.
const FIRST_LOOK_AT_OTHERS: Duration = Duration::from_millis(200);
/// Longest pause between two looks, and after a failed read.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// Longest time that one read or write may take before it is given up and tried again.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Times that a claim is read again after a write whose answer was lost: for about a minute. Beyond it, whoever meets the
/// claim next follows it.
const MAX_REREADS: usize = 32;
/// Entries that one process follows at once; what is beyond that is met again at the next try.
const MAX_FOLLOWED: usize = 10_000;

/// Follows pending entries of claims. One for each process.
pub struct Observer<S> {
    store: Arc<S>,
    window: Window,
    origin: Instant,
    followed: Mutex<HashSet<String>>,
    metrics: Arc<Metrics>,
    statuses: Option<Arc<Statuses>>,
    only_watches: bool,
}

/// Who wrote the entry that is to be followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// This process, just now.
    Ours,
    /// Another one, or this one before it was restarted.
    Theirs,
}

impl<S: Store> Observer<S> {
    /// An observer that believes an unseen pod to be on its way for as long as `window` says.
    #[must_use]
    pub fn new(store: Arc<S>, window: Window, metrics: Arc<Metrics>) -> Self {
        Self {
            store,
            window,
            origin: Instant::now(),
            followed: Mutex::default(),
            metrics,
            statuses: None,
            only_watches: false,
        }
    }

    /// Follows nothing, and writes nothing: for a dry run.
    #[must_use]
    pub fn only_watching(self) -> Self {
        Self {
            only_watches: true,
            ..self
        }
    }

    /// Tells these of every entry that is settled, so that the claim's phase follows.
    #[must_use]
    pub fn telling(self, statuses: Arc<Statuses>) -> Self {
        Self {
            statuses: Some(statuses),
            ..self
        }
    }

    /// Follows the pending entries of a claim as it was just read or written. Those that are followed already go on as they are.
    pub fn saw(self: &Arc<Self>, claim: &DeployerClaim, origin: Origin) {
        let first_seen = self.now();
        for entry in &claim.spec.pending {
            if self.begin(&entry.uid) {
                let pursuit = Chase {
                    observer: Arc::clone(self),
                    entry: entry.clone(),
                    namespace: claim.namespace().unwrap_or_default(),
                    claim_name: claim.name_any(),
                    pursuit: Pursuit::new(first_seen),
                };
                let known = claim.clone();
                tokio::spawn(pursuit.run(known, origin));
            }
        }
    }

    /// Follows what a claim holds after a write of it whose answer was lost: it may have been written, or be written yet.
    ///
    /// `read` is the version that the write was conditional on (`None`: on absence). As long as that is what is stored, the
    /// write may still be on its way; once it is not, it is done or can never be done.
    pub fn suspect(self: &Arc<Self>, namespace: String, claim_name: String, read: Option<&DeployerClaim>) {
        let observer = Arc::clone(self);
        let before = read.and_then(ResourceExt::resource_version);
        let suspicion = format!("{namespace}/{claim_name}@{}", before.as_deref().unwrap_or_default());
        if !self.begin(&suspicion) {
            return;
        }
        tokio::spawn(async move {
            let _ended = Suspicion {
                observer: Arc::clone(&observer),
                of: suspicion,
            };
            let mut pause = FIRST_LOOK_AT_OTHERS;
            for _ in 0..MAX_REREADS {
                sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
                let Some(Ok(found)) = within(observer.store.claim(&namespace, &claim_name)).await else {
                    continue;
                };
                if found.as_ref().and_then(ResourceExt::resource_version) != before {
                    if let Some(claim) = &found {
                        observer.saw(claim, Origin::Theirs);
                    }
                    return;
                }
            }
        });
    }

    /// How many entries are being followed.
    #[must_use]
    pub fn followed(&self) -> usize {
        self.followed.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    fn now(&self) -> Duration {
        self.origin.elapsed()
    }
}

impl<S> Observer<S> {
    fn begin(&self, uid: &str) -> bool {
        let mut followed = self.followed.lock().unwrap_or_else(PoisonError::into_inner);
        let begins = !self.only_watches && followed.len() < MAX_FOLLOWED && followed.insert(uid.to_owned());
        self.metrics.pending_followed(followed.len());
        begins
    }

    fn end(&self, uid: &str) {
        let mut followed = self.followed.lock().unwrap_or_else(PoisonError::into_inner);
        followed.remove(uid);
        self.metrics.pending_followed(followed.len());
    }
}

/// A claim that is suspected to have been written. One for each version of it.
struct Suspicion<S> {
    observer: Arc<Observer<S>>,
    of: String,
}

impl<S> Drop for Suspicion<S> {
    fn drop(&mut self) {
        self.observer.end(&self.of);
    }
}

/// One entry's way to its end.
struct Chase<S: Store> {
    observer: Arc<Observer<S>>,
    entry: ClaimEntry,
    namespace: String,
    claim_name: String,
    pursuit: Pursuit,
}

impl<S: Store> Drop for Chase<S> {
    fn drop(&mut self) {
        self.observer.end(&self.entry.uid);
    }
}

/// What one look came to.
enum Look {
    /// The entry is settled, by us or by somebody else.
    Settled,
    /// Look again, at this time on the observer's clock at the latest.
    Again(Duration),
    /// The claim changed since it was read: somebody else settles entries too.
    Stale,
    /// A read or write failed.
    Failed,
}

impl<S: Store> Chase<S> {
    /// `known` is a version of the claim in which the entry is pending: every look begins after it was read, so a write
    /// conditional on it is sound.
    async fn run(mut self, known: DeployerClaim, origin: Origin) {
        let first = if origin == Origin::Ours {
            FIRST_LOOK
        } else {
            FIRST_LOOK_AT_OTHERS
        };
        let mut pause = first;
        let mut known = Some(known);
        loop {
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
            let Some(claim) = known.take() else {
                match self.reread().await {
                    Ok(None) => return,
                    Ok(claim) => known = claim,
                    Err(error) => self.complain(&error),
                }
                continue;
            };
            match self.look(&claim).await {
                Look::Settled => return,
                Look::Stale => pause = first,
                Look::Failed => {}
                Look::Again(at) => {
                    known = Some(claim);
                    pause = pause
                        .min(at.saturating_sub(self.observer.now()))
                        .max(Duration::from_millis(1));
                }
            }
        }
    }

    /// The claim, if the entry is still pending in it.
    async fn reread(&self) -> Result<Option<DeployerClaim>, ReadError> {
        let read = self.observer.store.claim(&self.namespace, &self.claim_name);
        let claim = within(read)
            .await
            .unwrap_or_else(|| Err(ReadError::timed_out("the claim")))?;
        Ok(claim.filter(|claim| claim.spec.is_pending(&self.entry.uid)))
    }

    async fn look(&mut self, claim: &DeployerClaim) -> Look {
        let observer = Arc::clone(&self.observer);
        let begun = observer.now();
        let read = observer.store.pod(&self.namespace, &self.entry.name);
        let found = match within(read)
            .await
            .unwrap_or_else(|| Err(ReadError::timed_out("the pod")))
        {
            Ok(found) => found,
            Err(error) => {
                self.complain(&error);
                return Look::Failed;
            }
        };
        let uid = &self.entry.uid;
        match self.pursuit.looked(observer.window, begun, uid, &found) {
            Pursued::OnItsWay { look_again } => Look::Again(look_again),
            Pursued::Arrived(activity) => {
                let next = claim.spec.confirmed(uid, activity, Timestamp::now());
                self.settle(claim, next, End::Confirmed).await
            }
            Pursued::Lost => self.settle(claim, claim.spec.dropped(uid), End::Dropped).await,
        }
    }

    async fn settle(&self, claim: &DeployerClaim, next: Option<DeployerClaimSpec>, end: End) -> Look {
        let Some(next) = next else { return Look::Failed };
        match within(self.observer.store.update_claim(claim, next)).await {
            Some(Ok(written)) => {
                self.report(end);
                if let Some(statuses) = &self.observer.statuses {
                    statuses.changed(&written);
                }
                Look::Settled
            }
            Some(Err(WriteError::Conflict)) => Look::Stale,
            Some(Err(error)) => {
                self.complain(&error);
                Look::Failed
            }
            None => Look::Failed,
        }
    }

    fn report(&self, end: End) {
        let waited = self.observer.now().saturating_sub(self.pursuit.first_seen());
        let (namespace, claim, pod, uid) = (&self.namespace, &self.claim_name, &self.entry.name, &self.entry.uid);
        match end {
            End::Confirmed => {
                self.observer.metrics.pending_confirmed();
                tracing::debug!(
                    namespace,
                    claim,
                    pod,
                    uid,
                    ?waited,
                    "an admitted deployer is in the store"
                );
            }
            End::Dropped => {
                self.observer.metrics.pending_dropped();
                tracing::warn!(
                    namespace,
                    claim,
                    pod,
                    uid,
                    ?waited,
                    "an admitted deployer was never stored, and is given up"
                );
            }
        }
    }

    fn complain(&self, error: &(dyn std::error::Error + 'static)) {
        let (namespace, claim, pod) = (&self.namespace, &self.claim_name, &self.entry.name);
        tracing::warn!(
            namespace,
            claim,
            pod,
            error,
            "an admitted deployer could not be followed; trying again"
        );
    }
}

/// How a pursuit ended.
#[derive(Clone, Copy)]
enum End {
    Confirmed,
    Dropped,
}

/// `None` if the call takes too long. What is abandoned does no harm: a write stays conditional.
async fn within<T>(call: impl Future<Output = T>) -> Option<T> {
    timeout(CALL_TIMEOUT, call).await.ok()
}
