//! The examination of one key: read live, planned, the first action carried out, and again until none is left.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use kube::ResourceExt;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::apply::{Hand, needs_leader};
use super::board::{Board, Leads, PolicyVersion};
use super::condition;
use super::lookout::Lookout;
use super::queue::Examined;
use super::reading::{Reader, Reading};
use super::records::{About, Done, Records, note_of_finding};
use super::spot::Spot;
use super::standing::Standing;
use super::stock::Stock;
use crate::api::DeployerPolicy;
use crate::api::claim::{Outcome, PolicyReference};
use crate::api::policy::{Leftovers, Wake};
use crate::cluster::request::{read_within, write_within};
use crate::cluster::store::{ReadError, WriteError};
use crate::cluster::upkeep::Upkeep;
use crate::domain::leftovers::{Action, Change, Finding, Now, Plan, Terms, plan as plan_for};
use crate::domain::policy::Policy;
use crate::telemetry::metrics::Metrics;

/// Actions after which an examination goes on later: other keys wait, too.
const MAX_ROUNDS: usize = 32;
/// Then, and after a write that somebody else was in the way of.
const SOON: Duration = Duration::from_millis(50);
/// Time that a watch gets to show the last state of a pod that is gone: its outcome.
const PATIENCE: Duration = Duration::from_secs(2);
/// For how long a policy that was read live tells that there is nothing to do. Whatever is done is planned on a read of its own.
const FRESH: Duration = Duration::from_secs(30);
/// Longest time until a claim that nothing happens to is looked at again.
const LONGEST_REST: Duration = Duration::from_hours(6);

/// Examines keys.
pub(super) struct Examiner<S> {
    pub(super) store: Arc<S>,
    pub(super) lookout: Arc<Lookout>,
    pub(super) board: Arc<Board>,
    pub(super) leads: Arc<dyn Leads>,
    pub(super) reader: Reader<S>,
    pub(super) hand: Hand<S>,
    pub(super) records: Records,
    pub(super) standing: Arc<Standing>,
    pub(super) stock: Arc<Stock>,
    pub(super) metrics: Arc<Metrics>,
    /// Says what would be done, and writes nothing.
    pub(super) dry_run: bool,
    /// How often an active deployer's owner is looked at.
    pub(super) recheck: Duration,
    /// No action is begun any more.
    pub(super) stop: CancellationToken,
    /// Policies as they were last read.
    pub(super) recent: Recent,
}

/// Policies by name, each with when the read of it began.
type Read = HashMap<Arc<str>, (Instant, Arc<Rules>)>;

/// Policies as they were last read.
#[derive(Default)]
pub(super) struct Recent(Mutex<Read>);

/// What a round came to.
enum Round {
    /// An action was carried out, or met a change: read again.
    Again,
    /// There is nothing more to do now.
    Ended(Examined),
}

/// The policy of a key, as it was read.
pub(super) struct Rules {
    /// `None`: there is no such policy any more.
    policy: Option<Arc<Policy>>,
    uid: String,
    version: Option<PolicyVersion>,
    terms: Terms,
}

impl<S: Upkeep> Examiner<S> {
    /// Examines a key to its end. Only a leader does: what another guard may do as well, the observer does.
    pub(super) async fn examine(&self, spot: &Spot) -> Examined {
        let begun = Instant::now();
        for _ in 0..MAX_ROUNDS {
            if !self.may_act() {
                return Examined::AtRest;
            }
            match self.round(spot, begun).await {
                Ok(Round::Again) => {}
                Ok(Round::Ended(examined)) => {
                    let failed = examined == Examined::Failed;
                    self.metrics
                        .reconciling()
                        .examined(if failed { "failed" } else { "done" });
                    return examined;
                }
                Err(error) => {
                    self.metrics.reconciling().examined("failed");
                    tracing::warn!(%spot, error = %error, "a key could not be examined; trying again");
                    return Examined::Failed;
                }
            }
        }
        Examined::Again(SOON)
    }

    fn may_act(&self) -> bool {
        self.leads.leads() && !self.stop.is_cancelled()
    }

    async fn round(&self, spot: &Spot, begun: Instant) -> Result<Round, ReadError> {
        let now = Now {
            monotonic: self.lookout.now(),
            wall: Timestamp::now(),
        };
        let recent = self.recent(spot);
        let is_recent = recent.is_some();
        let Some(mut rules) = (match recent {
            Some(rules) => Some(rules),
            None => self.rules(spot).await?,
        }) else {
            // The policy says itself what is wrong with it.
            return Ok(Round::Ended(Examined::AtRest));
        };
        let reading = self.reader.read(spot, rules.policy.as_ref(), now.monotonic).await?;
        let mut plan = plan_for(&reading.snapshot, &rules.terms, now);
        if is_recent && !plan.actions.is_empty() {
            let Some(stored) = self.rules(spot).await? else {
                return Ok(Round::Ended(Examined::AtRest));
            };
            if stored.version != rules.version {
                // What was read was judged by another version; the one that is stored serves from now on.
                return Ok(Round::Again);
            }
            plan = plan_for(&reading.snapshot, &stored.terms, now);
            rules = stored;
        }
        let subject = subject(&reading);
        let about = About {
            spot,
            policy_uid: &rules.uid,
            subject: &subject,
            claim: reading.claim.as_ref(),
        };
        self.take_findings(&about, &rules, &plan.findings);
        if self.dry_run {
            self.would(&about, &plan.actions);
            return Ok(Round::Ended(self.rest(&rules, &reading, now)));
        }
        if plan.actions.is_empty() {
            return self.at_rest(&about, &rules, &reading, &plan, now, begun).await;
        }
        if self.is_hasty(spot, &plan.actions) {
            return Ok(Round::Ended(Examined::Again(SOON)));
        }
        match self.act(&about, &plan.actions).await {
            Some(round) => Ok(round),
            // What the API server does not let us do stays as it is found: reported, and looked at again in a while.
            None => self.at_rest(&about, &rules, &reading, &plan, now, begun).await,
        }
    }

    /// Whether the outcome of a pod that is gone would be called unknown while the watch may be about to show its last state.
    fn is_hasty(&self, spot: &Spot, actions: &[Action]) -> bool {
        let Some(Action::WriteClaim {
            change: Change::Freed(ended) | Change::Adopted { ended, .. },
            ..
        }) = actions.first()
        else {
            return false;
        };
        let now = self.lookout.now();
        ended.iter().any(|(entry, outcome)| {
            *outcome == Outcome::Unknown
                && self.lookout.shows_active(spot, &entry.uid)
                && now.saturating_sub(self.lookout.facts().missed_since(&entry.uid, now)) < PATIENCE
        })
    }

    /// The policy as it was read a moment ago, if the watch shows no other version.
    fn recent(&self, spot: &Spot) -> Option<Arc<Rules>> {
        let (read, rules) = self.recent.lock().get(&spot.policy).cloned()?;
        let watched = self.lookout.policies().get(&spot.policy).cloned()?;
        (read.elapsed() < FRESH && rules.version.as_ref() == Some(&watched.version)).then_some(rules)
    }

    /// The policy, live: it may be in another mode by now. `None`: it cannot be used.
    async fn rules(&self, spot: &Spot) -> Result<Option<Arc<Rules>>, ReadError> {
        let begun = Instant::now();
        let rules = self.read_rules(spot).await?.map(Arc::new);
        let mut recent = self.recent.lock();
        match &rules {
            Some(rules) if rules.version.is_some() => {
                recent.insert(Arc::clone(&spot.policy), (begun, Arc::clone(rules)));
            }
            _ => drop(recent.remove(&spot.policy)),
        }
        Ok(rules)
    }

    async fn read_rules(&self, spot: &Spot) -> Result<Option<Rules>, ReadError> {
        let stored = match read_within("the policy", self.store.policy(&spot.policy)).await {
            Ok(Some(stored)) => stored,
            Ok(None) => return Ok(Some(Rules::without_policy(spot))),
            // The watch says so, and has its keys examined when it can be read.
            Err(why) if why.is_unreadable() => return Ok(None),
            Err(why) => return Err(why),
        };
        let Some(policy) = self.compiled(spot, &stored) else {
            return Ok(None);
        };
        let version = PolicyVersion {
            name: policy.name.clone(),
            uid: policy.uid.clone(),
            generation: policy.generation,
        };
        let never_taken = stored
            .status
            .as_ref()
            .is_none_or(|status| status.stock_taking.is_none() && status.first_stock_taken_at.is_none());
        let first_stock = never_taken && !self.stock.was_taken(&policy.uid);
        Ok(Some(Rules {
            uid: policy.uid.clone(),
            terms: Terms::of(
                &policy,
                stored.creation_timestamp().map(|time| time.0),
                true,
                first_stock,
            ),
            version: Some(version),
            policy: Some(policy),
        }))
    }

    /// Compiled anew only if it is not the version that is watched.
    fn compiled(&self, spot: &Spot, stored: &DeployerPolicy) -> Option<Arc<Policy>> {
        let watched = self.lookout.policies().get(&spot.policy).cloned();
        let same = watched.filter(|watched| {
            stored.uid().as_deref() == Some(&watched.version.uid)
                && stored.metadata.generation == Some(watched.version.generation)
        });
        match same {
            Some(watched) => Some(Arc::clone(&watched.policy)),
            None => Policy::compile(stored).ok().map(Arc::new),
        }
    }

    fn take_findings(&self, about: &About<'_>, rules: &Rules, findings: &[Finding]) {
        // Without a policy, that a pod is not matched by it is no news.
        let findings = if rules.policy.is_some() { findings } else { &[] };
        let changed = self.standing.found(about.spot, findings);
        for finding in &changed.new {
            self.records.found(about, finding);
        }
        for finding in &changed.over {
            Records::over(about, finding);
        }
        if changed.new.iter().chain(&changed.over).any(Finding::is_violation) {
            let violations = self.standing.violations();
            let count = violations.get(&about.spot.policy).copied().unwrap_or_default();
            self.metrics.reconciling().violations(&about.spot.policy, count);
        }
    }

    /// Nothing is left that can be done: what is said of it on the claim is put right, and stock is taken of the key, unless the claim
    /// itself could not be written.
    async fn at_rest(
        &self,
        about: &About<'_>,
        rules: &Rules,
        reading: &Reading,
        plan: &Plan,
        now: Now,
        begun: Instant,
    ) -> Result<Round, ReadError> {
        if let Some(claim) = &reading.claim
            && !plan
                .findings
                .iter()
                .any(|finding| matches!(finding, Finding::NewerProtocol { .. }))
        {
            let mut violations: Vec<(&Finding, String)> = plan
                .findings
                .iter()
                .filter(|finding| finding.is_violation())
                .map(|finding| (finding, note_of_finding(about, finding)))
                .collect();
            violations.sort_by(|one, other| one.1.cmp(&other.1));
            if let Some(status) = condition::put_right(claim.status.as_ref(), &violations, now.wall) {
                if !self.may_act() {
                    return Ok(Round::Ended(Examined::AtRest));
                }
                return Ok(
                    match write_within(self.store.update_claim_status(claim, status)).await {
                        Ok(()) | Err(WriteError::Conflict) => Round::Again,
                        Err(_) => Round::Ended(Examined::Failed),
                    },
                );
            }
        }
        let crowded = plan
            .findings
            .iter()
            .any(|finding| matches!(finding, Finding::Crowded(_)));
        let unwritten = plan
            .actions
            .iter()
            .any(|action| matches!(action, Action::WriteClaim { .. }));
        if let (Some(version), false) = (&rules.version, crowded || unwritten)
            && self.stock.clean(version, about.spot, begun)
        {
            self.stock.taken(&self.board, version);
        }
        Ok(Round::Ended(if plan.actions.is_empty() {
            self.rest(rules, reading, now)
        } else {
            Examined::Again(self.recheck)
        }))
    }

    /// How long until time alone may have changed something.
    fn rest(&self, rules: &Rules, reading: &Reading, now: Now) -> Examined {
        let leftovers = &rules.terms.leftovers;
        let seconds = |seconds: i64| Duration::from_secs(u64::try_from(seconds).unwrap_or_default());
        if reading.busy {
            let stuck = reading
                .snapshot
                .memory
                .active_since
                .values()
                .map(|since| *since + seconds(leftovers.stuck_after_seconds));
            let next_stuck = stuck
                .filter(|at| *at > now.monotonic)
                .map(|at| at.saturating_sub(now.monotonic))
                .min();
            let pause = next_stuck.map_or(self.recheck, |stuck| stuck.min(self.recheck));
            return Examined::Again(pause + SOON);
        }
        let Some(claim) = &reading.claim else {
            return Examined::AtRest;
        };
        if claim.spec.names().next().is_some() {
            // No list shows a pod that has ended, so that it is gone may have been missed.
            return Examined::Again(self.recheck);
        }
        let keep = seconds(leftovers.keep_claims_seconds);
        let since = reading.snapshot.memory.unchanged_since.unwrap_or(now.monotonic);
        let left = (since + keep).saturating_sub(now.monotonic);
        Examined::Again(left.clamp(Duration::from_secs(1), LONGEST_REST) + SOON)
    }

    fn would(&self, about: &About<'_>, actions: &[Action]) {
        for action in self.standing.would(about.spot, actions) {
            self.records.acted(about, action, Done::Would);
        }
    }

    /// Carries out the first action; where the API server refuses it for good, the next. `None`: it refuses all of them.
    async fn act(&self, about: &About<'_>, actions: &[Action]) -> Option<Round> {
        for action in actions {
            // Right before the write: what was true when the examination began is not enough.
            if self.stop.is_cancelled() || (needs_leader(action) && !self.leads.leads()) {
                return Some(Round::Ended(Examined::AtRest));
            }
            match self.hand.carry_out(about.spot, about.claim, action).await {
                Ok(()) => {
                    self.records.acted(about, action, Done::Yes);
                    return Some(Round::Again);
                }
                Err(WriteError::Conflict) => {
                    self.records.acted(about, action, Done::Conflict);
                    return Some(Round::Again);
                }
                Err(WriteError::Refused(why)) => self.records.failed(about, action, &why),
                Err(error @ (WriteError::Shed(_) | WriteError::Unknown(_))) => {
                    self.records.failed(about, action, &error);
                    return Some(Round::Ended(Examined::Failed));
                }
            }
        }
        None
    }
}

impl Recent {
    fn lock(&self) -> MutexGuard<'_, Read> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Rules {
    /// There is no policy under which anybody could be admitted: what ended is freed, and the claim goes in its time.
    fn without_policy(spot: &Spot) -> Self {
        Self {
            policy: None,
            uid: String::new(),
            version: None,
            terms: Terms {
                policy: PolicyReference {
                    name: spot.policy.to_string(),
                    ..PolicyReference::default()
                },
                armed: false,
                leads: true,
                first_stock: false,
                policy_created: None,
                leftovers: Leftovers::default(),
                wake: Wake::Never,
            },
        }
    }
}

/// What the key is about, for people.
fn subject(reading: &Reading) -> String {
    let snapshot = &reading.snapshot;
    let config = &snapshot.config;
    match &snapshot.key_generation {
        Some(generation) => generation.clone(),
        None => config.clone(),
    }
}
