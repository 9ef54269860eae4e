//! What is done from time to time: a change of leadership is noticed, counts are noted, unreadable deployers are told of, and the
//! lists that find what watches missed are made.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{MissedTickBehavior, interval, sleep};

use super::board::{Board, Leads};
use super::lookout::{Lookout, Watched};
use super::namespaces::{Namespaces, Outside};
use super::records::{About, Records, pod_reference};
use super::relist::Relist;
use super::spot::Spot;
use super::standing::Standing;
use super::stock::Stock;
use crate::api::policy::PolicyCounts;
use crate::cluster::upkeep::Upkeep;
use crate::domain::leftovers::Finding;
use crate::statuses::Statuses;
use crate::telemetry::metrics::Metrics;

/// How often it is asked whether this guard leads.
const LEADERSHIP: Duration = Duration::from_millis(500);
/// How often counts are noted.
const COUNTS: Duration = Duration::from_secs(5);
/// For how long a claim's phase may lag behind its spec until its status is written: who changed the one writes the other within a second.
const SETTLED: Duration = Duration::from_secs(5);
/// How many of these are written in one period.
const LAGGING: usize = 256;
/// Claims are listed in place of the pods this often: what a lost event of a claim hides is found by its pod, too.
const CLAIMS_EVERY: u64 = 10;

/// What is done from time to time.
pub(super) struct Duty<S> {
    pub(super) lookout: Arc<Lookout>,
    pub(super) board: Arc<Board>,
    pub(super) leads: Arc<dyn Leads>,
    pub(super) records: Records,
    pub(super) standing: Arc<Standing>,
    pub(super) stock: Arc<Stock>,
    pub(super) relist: Arc<Relist<S>>,
    pub(super) namespaces: Namespaces<S>,
    /// `None` in a dry run.
    pub(super) statuses: Option<Arc<Statuses>>,
    pub(super) metrics: Arc<Metrics>,
    /// How often a policy's pods are listed.
    pub(super) period: Duration,
    /// This guard leads from now on.
    pub(super) elected: Notify,
    /// Uids of unreadable deployers that were told of, by policy, as long as they are there.
    pub(super) told: Mutex<HashMap<Arc<str>, HashSet<Box<str>>>>,
}

impl<S: Upkeep> Duty<S> {
    /// Notices changes of leadership, for ever. A new leader examines everything; one that is no more forgets what it found.
    pub(super) async fn follow_leadership(&self) {
        let mut ticks = interval(LEADERSHIP);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut leading = false;
        loop {
            ticks.tick().await;
            let leads = self.leads.leads();
            if leads && !leading {
                tracing::info!("this guard leads, and examines everything");
                self.lookout.queue.spread(self.lookout.everything());
                self.elected.notify_one();
            } else if !leads && leading {
                tracing::info!("this guard leads no more");
                self.standing.clear();
                self.stock.clear();
                self.told().clear();
                for watched in self.lookout.watched() {
                    self.metrics.reconciling().violations(&watched.version.name, 0);
                }
            }
            leading = leads;
        }
    }

    /// Notes counts, and tells of deployers whose identity cannot be read, for ever.
    pub(super) async fn count(&self) {
        let mut ticks = interval(COUNTS);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let (sums, violations) = (self.lookout.sums(), self.standing.violations());
            let all = self.lookout.watched();
            self.told()
                .retain(|policy, _| all.iter().any(|watched| *watched.version.name == **policy));
            for watched in all {
                let name = watched.version.name.as_str();
                let sums = sums.get(name).copied().unwrap_or_default();
                let violations = violations.get(name).copied().unwrap_or_default();
                // A watch shows the pods of all namespaces.
                let outside = self.namespaces.outside(&watched).await;
                let active = watched.pods().active(|namespace| outside.counts(namespace));
                let counts = PolicyCounts {
                    claims: sums.claims,
                    active: i64::try_from(active).unwrap_or(i64::MAX),
                    pending: sums.pending,
                    rejections: sums.rejections,
                    violations,
                };
                if watched.is_complete() {
                    self.board.note(&watched.version, |notice| notice.counts = Some(counts));
                }
                if self.leads.leads() {
                    self.metrics.reconciling().violations(name, violations);
                    self.tell_of_unreadable(&watched, &outside);
                }
            }
        }
    }

    /// Such a deployer belongs to no key, so no examination meets it. Each is told of once, as long as it is there.
    fn tell_of_unreadable(&self, watched: &Watched, outside: &Outside) {
        let mut there: HashSet<Box<str>> = HashSet::new();
        let mut findings: Vec<(Box<str>, Arc<str>, Finding)> = Vec::new();
        for (uid, view, why) in watched.pods().unreadable() {
            there.insert(Box::from(uid));
            if outside.is_told_of(&view.namespace) {
                let finding = Finding::IdentityUnreadable {
                    pod: pod_reference(&view.name, uid),
                    why: why.to_owned(),
                };
                findings.push((Box::from(uid), Arc::clone(&view.namespace), finding));
            }
        }
        let mut all = self.told();
        let told = all.entry(watched.version.name.as_str().into()).or_default();
        told.retain(|uid| there.contains(uid));
        findings.retain(|(uid, ..)| told.insert(uid.clone()));
        drop(all);
        for (_, namespace, finding) in findings {
            let spot = Spot::new(&watched.version.name, &namespace, "");
            let about = About {
                spot: &spot,
                policy_uid: &watched.version.uid,
                subject: "",
                claim: None,
            };
            self.records.found(&about, &finding);
        }
    }

    fn told(&self) -> MutexGuard<'_, HashMap<Arc<str>, HashSet<Box<str>>>> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the lists, for ever: once a period, later by up to a tenth, so that guards do not go together, and never sooner; and when
    /// this guard begins to lead.
    pub(super) async fn list(&self) {
        for round in 1_u64.. {
            let claims = tokio::select! {
                () = sleep(jittered(self.period, round)) => round % CLAIMS_EVERY == 0,
                () = self.elected.notified() => false,
            };
            self.lookout.sweep();
            if !self.leads.leads() {
                continue;
            }
            if let Some(statuses) = &self.statuses {
                let now = self.lookout.now();
                for (namespace, claim) in self.lookout.claims().lagging(now, SETTLED).into_iter().take(LAGGING) {
                    statuses.lags(&namespace, &claim);
                }
            }
            if claims {
                if let Err(error) = self.relist.claims().await {
                    tracing::warn!(error = %error, "the claims cannot be listed; trying again");
                }
                continue;
            }
            for watched in self.lookout.watched().iter().filter(|watched| watched.is_complete()) {
                if let Err(error) = self.relist.pods(watched).await {
                    let policy = &watched.version.name;
                    tracing::warn!(policy, error = %error, "the pods of a policy cannot be listed; trying again");
                }
            }
        }
    }
}

/// The period, or up to a tenth more.
fn jittered(period: Duration, round: u64) -> Duration {
    let seed = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), round);
    let part = u32::try_from(seed % 101).unwrap_or_default();
    period * (1000 + part) / 1000
}
