//! Writes the status of policies: whether each is accepted and in force, what was counted, and whether stock was taken.
//!
//! Only the guard that leads writes, each policy at most once a second, and only what differs; a write is conditional on the
//! version that was read live.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::board::{Board, Leads, Notice, PolicyVersion};
use super::configuration::known::{Known, version_of};
use super::policy_standing::{Enforced, Standing, Standings};
use crate::api::policy::{DeployerPolicyStatus, StockTaking};
use crate::cluster::policy_statuses::PolicyStatuses;
use crate::cluster::store::WriteError;
use crate::telemetry::metrics::{GuardMetrics, Outcome};

/// The least time between two writes of one policy's status.
const APART: Duration = Duration::from_secs(1);
/// How often everything is compared although nothing was heard: somebody else may have written a status.
const PERIOD: Duration = Duration::from_secs(30);
/// How long an answer of the webhook is evidence, and how soon it is asked again where there was none.
const EVIDENCE: (Duration, Duration) = (Duration::from_mins(5), Duration::from_secs(5));
/// For how long, and how often, the webhook is asked about an entry that was just stored: API servers take it up in a moment.
const TRIES: (Duration, Duration) = (Duration::from_secs(2), Duration::from_millis(200));

/// The status that a policy is to have.
#[must_use]
pub fn wanted(
    before: &DeployerPolicyStatus,
    standing: &Standing,
    notice: &Notice,
    probe: Option<&Result<(), String>>,
    configuration: &str,
    now: Timestamp,
) -> DeployerPolicyStatus {
    let generation = standing.version.generation;
    let mut status = before.clone();
    let accepted = standing.accepted.condition();
    let enforced = standing
        .enforced
        .condition(configuration, standing.failure_policy, probe);
    for (kind, (holds, reason, message)) in [("Accepted", accepted), ("Enforced", enforced)] {
        set(&mut status.conditions, kind, holds, reason, message, generation, now);
    }
    status.observed_generation = Some(generation);
    status.counts = notice.counts.or(status.counts);
    let known = !matches!(
        standing.enforced,
        Enforced::NotPermitted(_) | Enforced::CaBundleMissing(_)
    );
    if known {
        status.stock_taking = stock_taking(before.stock_taking, generation, notice, now);
    }
    let taken = [before.stock_taking, status.stock_taking].map(|taking| taking.map(|taking| taking.completed_at));
    let found = notice.stock_taken.map(|taken| taken.at);
    status.first_stock_taken_at = before.first_stock_taken_at.or(taken[0]).or(found).or(taken[1]);
    status
}

/// What is on record while the stored entry says that stock was taken, and no longer.
fn stock_taking(before: Option<StockTaking>, generation: i64, notice: &Notice, now: Timestamp) -> Option<StockTaking> {
    let same = before.filter(|before| before.generation == generation);
    // Another guard took it, perhaps, and ended before it was on record.
    let completed_at = || notice.stock_taken.map_or(now, |taken| taken.at);
    notice.stocked.then(|| {
        same.unwrap_or_else(|| StockTaking {
            generation,
            completed_at: completed_at(),
        })
    })
}

/// The API server takes no longer message.
const MESSAGE: usize = 32_768;

fn set(
    conditions: &mut Vec<Condition>,
    kind: &str,
    holds: bool,
    reason: &str,
    mut message: String,
    generation: i64,
    now: Timestamp,
) {
    let status = if holds { "True" } else { "False" };
    message.truncate(message.floor_char_boundary(MESSAGE));
    let before = conditions.iter().position(|condition| condition.type_ == kind);
    let since = before
        .map(|i| &conditions[i])
        .filter(|condition| condition.status == status)
        .map_or(Time(now), |condition| condition.last_transition_time.clone());
    let condition = Condition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message,
        observed_generation: Some(generation),
        last_transition_time: since,
    };
    match before {
        Some(i) => conditions[i] = condition,
        None => conditions.push(condition),
    }
}

/// What an API server said when the webhook was to be asked through it.
#[derive(Clone)]
struct Evidence {
    probe: Result<(), String>,
    at: Instant,
}

/// The room that writes the status of policies.
pub struct StatusWriter {
    statuses: PolicyStatuses,
    known: Arc<Known>,
    leads: Arc<dyn Leads>,
    board: Arc<Board>,
    metrics: Arc<GuardMetrics>,
    configuration: String,
    dry_run: bool,
}

/// What is remembered while the room is open.
#[derive(Default)]
struct Memory {
    evidence: HashMap<PolicyVersion, Evidence>,
    written: HashMap<String, Instant>,
}

impl StatusWriter {
    /// Nothing is written until [`StatusWriter::run`] runs, and nothing at all in a dry run.
    #[must_use]
    pub fn new(
        statuses: PolicyStatuses,
        known: Arc<Known>,
        leads: Arc<dyn Leads>,
        board: Arc<Board>,
        metrics: Arc<GuardMetrics>,
        configuration: &str,
        dry_run: bool,
    ) -> Self {
        Self {
            statuses,
            known,
            leads,
            board,
            metrics,
            configuration: configuration.to_owned(),
            dry_run,
        }
    }

    /// Keeps the statuses as they are to be while this process leads, until `stop`.
    pub async fn run(
        &self,
        mut standings: watch::Receiver<Arc<Standings>>,
        mut leading: watch::Receiver<bool>,
        mut stop: watch::Receiver<bool>,
    ) {
        let mut memory = Memory::default();
        let ending = stop.clone();
        let mut board = self.board.subscribe();
        while !*stop.borrow() {
            board.mark_unchanged();
            let now = Arc::clone(&standings.borrow_and_update());
            if self.leads.leads() && !self.dry_run {
                self.round(&mut memory, &now, &ending).await;
            } else {
                memory = Memory::default();
            }
            let unproven = memory
                .evidence
                .values()
                .filter(|evidence| evidence.probe.is_err())
                .count();
            self.metrics.unanswered(unproven);
            let period = if unproven > 0 { EVIDENCE.1 } else { PERIOD };
            tokio::select! {
                Ok(()) = standings.changed() => {}
                Ok(()) = board.changed() => {}
                Ok(()) = leading.changed() => {}
                () = sleep(period) => {}
                _ = stop.wait_for(|stop| *stop) => return,
            }
        }
    }

    async fn round(&self, memory: &mut Memory, standings: &Standings, stop: &watch::Receiver<bool>) {
        memory.evidence.retain(|version, _| {
            let standing = standings.get(&version.name);
            standing.is_some_and(|standing| standing.version == *version && standing.enforced == Enforced::Stored)
        });
        memory.written.retain(|name, _| standings.contains_key(name));
        for standing in standings.values() {
            if *stop.borrow() {
                return;
            }
            if standing.enforced == Enforced::Stored {
                // A dry run may be given up at any moment.
                let mut ending = stop.clone();
                tokio::select! {
                    () = self.look_for_evidence(memory, &standing.version) => {}
                    _ = ending.wait_for(|stop| *stop) => return,
                }
            }
            if let Err(error) = self.keep(memory, standing).await {
                self.metrics.status_written(match error {
                    WriteError::Conflict => Outcome::Conflict,
                    _ => Outcome::Failed,
                });
                if error != WriteError::Conflict {
                    tracing::warn!(policy = standing.version.name, %error, "the status of a policy cannot be written; trying again");
                }
            }
        }
    }

    /// Asks the webhook through an API server, where that was not done lately. All entries lead to one address: where one policy got
    /// no answer a moment ago, the next one is not asked about.
    async fn look_for_evidence(&self, memory: &mut Memory, version: &PolicyVersion) {
        let is_fresh =
            |evidence: &Evidence| evidence.at.elapsed() < if evidence.probe.is_ok() { EVIDENCE.0 } else { EVIDENCE.1 };
        let before = memory.evidence.get(version);
        if before.is_some_and(is_fresh) {
            return;
        }
        let failed = |evidence: &&Evidence| evidence.probe.is_err() && is_fresh(evidence);
        if let Some(failed) = memory.evidence.values().find(failed).cloned() {
            memory.evidence.insert(version.clone(), failed);
            return;
        }
        let until = Instant::now() + if before.is_some() { Duration::ZERO } else { TRIES.0 };
        let mut probe = self.statuses.probe(&version.name).await;
        while probe.is_err() && Instant::now() < until {
            sleep(TRIES.1).await;
            probe = self.statuses.probe(&version.name).await;
        }
        if let Err(why) = &probe {
            tracing::warn!(
                policy = version.name,
                why,
                "the entry is stored, but an API server does not reach the webhook"
            );
        }
        let at = Instant::now();
        memory.evidence.insert(version.clone(), Evidence { probe, at });
    }

    async fn keep(&self, memory: &mut Memory, standing: &Standing) -> Result<(), WriteError> {
        let name = &standing.version.name;
        let probe = memory.evidence.get(&standing.version).map(|evidence| &evidence.probe);
        let differs = |before: DeployerPolicyStatus| {
            let notice = self.board.read(&standing.version);
            let wanted = wanted(&before, standing, &notice, probe, &self.configuration, Timestamp::now());
            (wanted != before).then_some(wanted)
        };
        if self.known.status(name).and_then(differs).is_none() {
            return Ok(());
        }
        if let Some(written) = memory.written.get(name) {
            sleep((APART).saturating_sub(written.elapsed())).await;
        }
        let read = self.statuses.read(name).await.map_err(WriteError::Unknown)?;
        // Of another version there is nothing to say yet.
        let Some(read) = read.filter(|read| version_of(read) == standing.version) else {
            return Ok(());
        };
        let Some(wanted) = differs(read.status.clone().unwrap_or_default()) else {
            return Ok(());
        };
        if !self.leads.leads() {
            return Ok(());
        }
        memory.written.insert(name.clone(), Instant::now());
        self.statuses.write(&read, &wanted).await?;
        self.metrics.status_written(Outcome::Done);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::board::StockTaken;
    use super::super::policy_standing::Accepted;
    use super::*;
    use crate::api::policy::{FailurePolicy, PolicyCounts};

    fn standing(enforced: Enforced) -> Standing {
        Standing {
            version: PolicyVersion {
                name: "p".into(),
                uid: "u".into(),
                generation: 3,
            },
            failure_policy: FailurePolicy::Fail,
            accepted: Accepted::Accepted,
            enforced,
        }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn status(before: &DeployerPolicyStatus, enforced: Enforced, notice: &Notice, now: i64) -> DeployerPolicyStatus {
        wanted(before, &standing(enforced), notice, None, "c", at(now))
    }

    #[test]
    fn a_condition_changes_its_time_with_its_status_alone() {
        let notice = Notice::default();
        let pending = status(&DeployerPolicyStatus::default(), Enforced::Pending, &notice, 1);
        let missing = status(&pending, Enforced::ConfigurationMissing, &notice, 2);
        let stored = status(&missing, Enforced::Stored, &notice, 3);
        assert_eq!(status(&stored, Enforced::Stored, &notice, 4), stored, "nothing changed");
        let times: Vec<_> = [&pending, &missing, &stored]
            .iter()
            .map(|status| status.conditions[1].last_transition_time.0.as_second())
            .collect();
        assert_eq!(times, [1, 1, 3]);
        let reasons: Vec<_> = [&pending, &missing, &stored]
            .iter()
            .map(|status| status.conditions[1].reason.as_str())
            .collect();
        assert_eq!(reasons, ["Pending", "ConfigurationMissing", "InForce"]);
        assert_eq!((stored.observed_generation, stored.conditions.len()), (Some(3), 2));
        assert!(
            stored
                .conditions
                .iter()
                .all(|condition| condition.observed_generation == Some(3))
        );
    }

    #[test]
    fn conditions_of_others_and_counts_stay() {
        let counts = Some(PolicyCounts {
            claims: 2,
            ..PolicyCounts::default()
        });
        let mut before = DeployerPolicyStatus {
            counts,
            ..DeployerPolicyStatus::default()
        };
        set(
            &mut before.conditions,
            "Theirs",
            true,
            "Reason",
            "text".into(),
            1,
            at(1),
        );
        let after = status(&before, Enforced::Stored, &Notice::default(), 2);
        assert_eq!(after.conditions[0], before.conditions[0]);
        assert_eq!(after.counts, counts);
    }

    #[tokio::test]
    async fn a_stock_taking_is_on_record_while_the_stored_entry_says_so_and_the_first_one_for_ever() {
        let record = |generation, second| StockTaking {
            generation,
            completed_at: at(second),
        };
        let in_force_since = Instant::now();
        let taken = Some(StockTaken {
            in_force_since,
            at: at(5),
        });
        let (stored, pending) = (Enforced::Stored, Enforced::Pending);
        let unknown = Enforced::NotPermitted("no".into());
        for (what, before, enforced, stocked, taken, after, first) in [
            ("never", None, &stored, false, None, None, None),
            ("over, and not yet stored", None, &stored, false, taken, None, Some(5)),
            ("stored", None, &stored, true, taken, Some((3, 5)), Some(5)),
            (
                "stored by another guard",
                None,
                &stored,
                true,
                None,
                Some((3, 9)),
                Some(9),
            ),
            ("known", Some((3, 2)), &stored, true, taken, Some((3, 2)), Some(2)),
            (
                "of another version",
                Some((2, 2)),
                &stored,
                true,
                taken,
                Some((3, 5)),
                Some(2),
            ),
            (
                "the policy was edited",
                Some((2, 2)),
                &stored,
                false,
                None,
                None,
                Some(2),
            ),
            ("a break", Some((3, 2)), &pending, false, None, None, Some(2)),
            (
                "nobody could look",
                Some((3, 2)),
                &unknown,
                false,
                None,
                Some((3, 2)),
                Some(2),
            ),
        ] {
            let before = DeployerPolicyStatus {
                stock_taking: before.map(|(generation, second)| record(generation, second)),
                ..DeployerPolicyStatus::default()
            };
            let notice = Notice {
                stocked,
                stock_taken: taken,
                ..Notice::default()
            };
            let found = status(&before, enforced.clone(), &notice, 9);
            let after = after.map(|(generation, second)| record(generation, second));
            assert_eq!(found.stock_taking, after, "{what}");
            assert_eq!(found.first_stock_taken_at, first.map(at), "{what}");
            let gone = status(&found, pending.clone(), &Notice::default(), 10);
            assert_eq!(gone.first_stock_taken_at, first.map(at), "{what}: it stays");
        }
    }
}
