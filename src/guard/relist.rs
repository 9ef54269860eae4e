//! Lists that find what watches missed: a watch that is silently dead, an event that was lost.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use super::lookout::{Lookout, Watched};
use super::pods::activity_of;
use crate::cluster::request::read_within;
use crate::cluster::store::ReadError;
use crate::cluster::upkeep::{Listed, Upkeep};
use crate::observer::{Observer, Origin};
use crate::telemetry::metrics::Metrics;

/// Time that a watch gets to show what a list shows: it is a little behind at any time.
const GRACE: Duration = Duration::from_secs(2);

/// Compares lists with what watches showed.
pub(super) struct Relist<S> {
    pub(super) store: Arc<S>,
    pub(super) lookout: Arc<Lookout>,
    pub(super) observer: Arc<Observer<S>>,
    pub(super) metrics: Arc<Metrics>,
}

impl<S: Upkeep> Relist<S> {
    /// Lists a policy's active pods. What the watch has not shown, and does not show soon, is read by name, and taken in; the watch
    /// begins anew.
    ///
    /// # Errors
    /// If a read fails.
    pub(super) async fn pods(&self, watched: &Watched) -> Result<(), ReadError> {
        let selector = watched.policy.label_selector();
        let listed = self.store.list_active_pods(&selector).await?;
        let (missed, stale) = watched.pods().differences(&listed);
        if missed.is_empty() && stale.is_empty() {
            return Ok(());
        }
        let before: Vec<Option<Box<str>>> = missed.iter().map(|pod| version_of(watched, &pod.uid)).collect();
        let stale: Vec<Suspect> = stale.iter().filter_map(|uid| Suspect::of(watched, uid)).collect();
        sleep(GRACE).await;
        let mut found = 0;
        for (pod, before) in missed.iter().zip(before) {
            if version_of(watched, &pod.uid) == before {
                found += usize::from(self.missed(watched, pod).await?);
            }
        }
        for pod in &stale {
            if version_of(watched, &pod.uid).as_ref() == Some(&pod.version) {
                found += usize::from(self.stale(watched, pod).await?);
            }
        }
        if found > 0 {
            tracing::warn!(
                policy = watched.version.name,
                found,
                "a watch of pods has missed changes, and begins anew"
            );
            self.metrics.reconciling().missed(&watched.version.name, found);
            watched.anew.notify_one();
        }
        Ok(())
    }

    /// Whether a pod that the watch has not shown is there. A list alone proves nothing; and where the watch spoke while it was read, the
    /// watch may know more than the answer.
    async fn missed(&self, watched: &Watched, pod: &Listed) -> Result<bool, ReadError> {
        let before = version_of(watched, &pod.uid);
        let read = self.store.whole_pod(&pod.namespace, &pod.name);
        let Some(found) = read_within("a pod", read).await? else {
            return Ok(false);
        };
        let uid = found["metadata"]["uid"].as_str().unwrap_or_default();
        if version_of(watched, uid) != before.filter(|_| uid == pod.uid) {
            return Ok(false);
        }
        let news = if activity_of(&found).is_active() {
            version_of(watched, uid).as_deref() != found["metadata"]["resourceVersion"].as_str()
        } else {
            !self.lookout.facts().knows_end(uid)
        };
        for spot in self.lookout.pod_shown(watched, &found).await {
            self.lookout.queue.now(spot);
        }
        Ok(news)
    }

    /// Whether a pod that the watch shows as active is not.
    async fn stale(&self, watched: &Watched, pod: &Suspect) -> Result<bool, ReadError> {
        let read = self.store.whole_pod(&pod.namespace, &pod.name);
        let found = read_within("a pod", read).await?;
        if version_of(watched, &pod.uid).as_ref() != Some(&pod.version) {
            return Ok(false);
        }
        let spots = match found.filter(|found| found["metadata"]["uid"].as_str() == Some(&*pod.uid)) {
            Some(found) => {
                let news = found["metadata"]["resourceVersion"].as_str() != Some(&*pod.version);
                let spots = self.lookout.pod_shown(watched, &found).await;
                if !news {
                    return Ok(false);
                }
                spots
            }
            None => self.lookout.pod_lost(watched, &pod.uid).into_iter().collect(),
        };
        for spot in spots {
            self.lookout.queue.now(spot);
        }
        Ok(true)
    }

    /// Lists the claims, as [`Self::pods`] does the pods.
    ///
    /// # Errors
    /// If a read fails.
    pub(super) async fn claims(&self) -> Result<(), ReadError> {
        let listed = self.store.list_claims().await?;
        let (missed, stale) = self.lookout.claims().differences(&listed);
        if missed.is_empty() && stale.is_empty() {
            return Ok(());
        }
        sleep(GRACE).await;
        // What is listed in another version is the watch's to show until now; what differs still is read.
        let (missed_still, stale_still) = self.lookout.claims().differences(&listed);
        let mut found = 0;
        for claim in missed.iter().filter(|claim| missed_still.contains(claim)) {
            let before = self.lookout.claims().version(&claim.namespace, &claim.name);
            let read = self.store.claim(&claim.namespace, &claim.name);
            let read = match read_within("a claim", read).await {
                Ok(Some(read)) => read,
                Ok(None) => continue,
                // The watch passes it over, too, and has said so.
                Err(why) if why.is_unreadable() => continue,
                Err(why) => return Err(why),
            };
            let spoken = self.lookout.claims().version(&claim.namespace, &claim.name) != before;
            if !spoken && !self.lookout.claims().is_shown(&read) {
                found += 1;
                self.observer.saw(&read, Origin::Theirs);
                if let Some(spot) = self.lookout.claim_shown(&read) {
                    self.lookout.queue.now(spot);
                }
            }
        }
        for spot in stale.into_iter().filter(|spot| stale_still.contains(spot)) {
            let version = || self.lookout.claims().version(&spot.namespace, &spot.claim);
            // While others were read, the watch may have shown that it is gone.
            let Some(before) = version() else { continue };
            let read = read_within("a claim", self.store.claim(&spot.namespace, &spot.claim)).await?;
            if read.is_none() && version() == Some(before) {
                found += 1;
                self.lookout.claims().lost(&spot);
                self.lookout.queue.now(spot);
            }
        }
        if found > 0 {
            tracing::warn!(found, "the watch of claims has missed changes, and begins anew");
            self.metrics.reconciling().missed("", found);
            self.lookout.claims_anew.notify_one();
        }
        Ok(())
    }
}

/// A pod that the watch shows as active and a list does not.
struct Suspect {
    namespace: Arc<str>,
    name: Box<str>,
    uid: Box<str>,
    version: Box<str>,
}

impl Suspect {
    fn of(watched: &Watched, uid: &str) -> Option<Self> {
        let pods = watched.pods();
        let view = pods.get(uid)?;
        Some(Self {
            namespace: Arc::clone(&view.namespace),
            name: view.name.clone(),
            uid: uid.into(),
            version: view.version.clone(),
        })
    }
}

fn version_of(watched: &Watched, uid: &str) -> Option<Box<str>> {
    watched.pods().get(uid).map(|view| view.version.clone())
}
