//! One request on its way through a desk.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use serde_json::Value;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::domain::admission::{Candidate, Rules, Ruling, Standpoint};
use crate::domain::key::Key;
use crate::domain::policy::{OwnerReference, Policy};
use crate::domain::refusal::Undecided;

/// How long a pending pod of the same name is looked for before it is taken over, so that a doubled create ends in 409
/// and leaves no entry.
const PATIENCE: Duration = Duration::from_millis(300);

/// What a desk is asked.
#[derive(Clone, Debug)]
pub struct Question {
    /// What at most one deployer may be active for.
    pub key: Key,
    /// The pod that asks to be created.
    pub candidate: Candidate,
    /// The whole pod, for expressions that read it beside its owner.
    pub pod: Arc<Value>,
    /// Its owner, where the policy asks for one.
    pub owner: Option<OwnerReference>,
    /// The policy, compiled.
    pub policy: Arc<Policy>,
    /// What the policy asks of the decision.
    pub rules: Rules,
    /// Known at once where the policy asks for no owner.
    pub standpoint: Option<Standpoint>,
    /// Past it nothing is written for this request.
    pub deadline: Instant,
    /// The same verdict, and nothing is written.
    pub dry_run: bool,
}

/// What a desk answers.
#[derive(Clone, Debug)]
pub struct Decided {
    /// The ruling.
    pub ruling: Ruling,
    /// The claim, where there is one.
    pub claim: Option<ObjectReference>,
    /// The ordinal of the candidate's generation, where it was read: not every refusal needs it.
    pub ordinal: Option<i64>,
}

/// A question, what was learnt for it alone, and whom to answer.
pub(super) struct Ticket {
    pub(super) question: Question,
    pub(super) standpoint: Option<Standpoint>,
    /// Why the last try came to nothing, for the answer at the deadline.
    pub(super) trouble: Option<Undecided>,
    namesake_met: Option<Instant>,
    answer: oneshot::Sender<Decided>,
}

impl Ticket {
    pub(super) fn new(question: Question, answer: oneshot::Sender<Decided>) -> Self {
        Self {
            standpoint: question.standpoint.clone(),
            question,
            trouble: None,
            namesake_met: None,
            answer,
        }
    }

    /// Nobody waits for the answer any more.
    pub(super) fn is_abandoned(&self) -> bool {
        self.answer.is_closed()
    }

    /// A namesake on its way was looked for long enough, or there is no time to look again.
    pub(super) fn patience_over(&self) -> bool {
        let now = Instant::now();
        self.namesake_met
            .is_some_and(|met| now >= (met + PATIENCE).min(self.question.deadline - PATIENCE))
    }

    /// A namesake is on its way.
    pub(super) fn met_namesake(&mut self) {
        self.namesake_met.get_or_insert_with(Instant::now);
    }

    /// What the owner said belongs to one round: a new one asks it again.
    pub(super) fn begin_again(&mut self) {
        self.standpoint.clone_from(&self.question.standpoint);
    }

    /// The ordinal of the candidate's generation, where it was read.
    pub(super) fn ordinal(&self) -> Option<i64> {
        match self.standpoint {
            Some(Standpoint::Eligible { ordinal, .. }) => ordinal,
            Some(Standpoint::Refused(_)) | None => None,
        }
    }

    pub(super) fn answer(self, decided: Decided) {
        // Whoever asked may have gone at its deadline. What was written stays, and is followed.
        let _ = self.answer.send(decided);
    }
}
