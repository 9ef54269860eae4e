//! One round of a desk: the claim is read once, the pods that it names once each, and every request that was waiting is
//! decided on that, one after another, up to the first conflict.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use futures::future::{join_all, join3};
use jiff::Timestamp;
use kube::Resource;
use tokio::time::timeout_at;

use super::desk::passed;
use super::ticket::{Decided, Ticket};
use crate::api::claim::{DeployerClaim, DeployerClaimSpec};
use crate::cluster::store::{Failure, ReadError, Store, WriteError};
use crate::domain::admission::{Evidence, Ruling, Standpoint, Step, Stranger, Wanted, decide};
use crate::domain::key::Key;
use crate::domain::refusal::Undecided;
use crate::domain::sighting::Sighting;
use crate::observer::{Observer, Origin};
use crate::webhook::reading;

/// One round over one key.
pub(super) struct Round<'a, S> {
    store: &'a Arc<S>,
    observer: &'a Arc<Observer<S>>,
    key: &'a Key,
    claim: Option<DeployerClaim>,
    /// What GETs found that began after the claim was read.
    pods: BTreeMap<String, Sighting>,
    strangers: Option<Vec<Stranger>>,
}

/// Requests that need another round.
pub(super) struct Left {
    pub(super) tickets: Vec<Ticket>,
    /// Nothing will have changed at once.
    pub(super) pause: bool,
}

/// What became of one request in a round.
enum Fate {
    Answered(Box<Ruling>),
    /// Read again in a moment: a namesake is on its way.
    LookAgain,
    /// The claim changed: the round is over for everybody.
    Conflict,
    /// Something failed that may succeed when tried again: the round is over for everybody.
    Trouble(Undecided),
}

impl<'a, S: Store> Round<'a, S> {
    pub(super) fn new(store: &'a Arc<S>, observer: &'a Arc<Observer<S>>, key: &'a Key) -> Self {
        Self {
            store,
            observer,
            key,
            claim: None,
            pods: BTreeMap::new(),
            strangers: None,
        }
    }

    /// Decides on as many requests as this round's reads allow.
    pub(super) async fn run(mut self, tickets: Vec<Ticket>) -> Left {
        let mut tickets = VecDeque::from(answer_late(tickets));
        let Some(horizon) = tickets.iter().map(|ticket| ticket.question.deadline).max() else {
            return Left {
                tickets: Vec::new(),
                pause: false,
            };
        };
        let read = timeout_at(horizon, self.store.claim(&self.key.namespace, &self.key.claim_name())).await;
        match read.unwrap_or_else(|_| Err(ReadError::timed_out("the claim"))) {
            Ok(claim) => self.learn(claim, Origin::Theirs),
            Err(error) => return trouble(tickets.into(), &error),
        }
        let mut left = Vec::new();
        while let Some(mut ticket) = tickets.pop_front() {
            ticket.begin_again();
            match self.fate(&mut ticket).await {
                Fate::Answered(ruling) => {
                    let claim = self.claim.as_ref().map(|claim| claim.object_ref(&()));
                    ticket.answer(Decided { ruling: *ruling, claim });
                }
                Fate::LookAgain => {
                    ticket.met_namesake();
                    left.push(ticket);
                }
                Fate::Conflict => {
                    left.push(ticket);
                    left.extend(tickets);
                    return Left {
                        tickets: left,
                        pause: false,
                    };
                }
                Fate::Trouble(why) => {
                    ticket.trouble = Some(why);
                    left.push(ticket);
                    left.extend(tickets);
                    return Left {
                        tickets: left,
                        pause: true,
                    };
                }
            }
        }
        Left {
            tickets: left,
            pause: true,
        }
    }

    fn learn(&mut self, claim: Option<DeployerClaim>, origin: Origin) {
        if let Some(claim) = &claim {
            self.observer.saw(claim, origin);
        }
        self.claim = claim;
    }

    async fn fate(&mut self, ticket: &mut Ticket) -> Fate {
        loop {
            let evidence = Evidence {
                claim: self.claim.as_ref().map(|claim| &claim.spec),
                pods: &self.pods,
                strangers: self.strangers.as_deref(),
                standpoint: ticket.standpoint.as_ref(),
                patience_over: ticket.patience_over(),
                now: Timestamp::now(),
            };
            match decide(&ticket.question.candidate, &ticket.question.rules, &evidence) {
                Step::Answer(ruling) => return Fate::Answered(Box::new(ruling)),
                Step::LookAgain => return Fate::LookAgain,
                Step::Read(wanted) => {
                    if let Err(error) = self.read(ticket, wanted).await {
                        return failed(&error);
                    }
                }
                Step::Write(_) if ticket.question.dry_run => return Fate::Answered(Box::new(Ruling::Admitted)),
                Step::Write(next) => return self.write(ticket, *next).await,
            }
        }
    }

    /// Reads what a decision wants, side by side.
    async fn read(&mut self, ticket: &mut Ticket, wanted: Wanted) -> Result<(), ReadError> {
        let question = &ticket.question;
        let (store, namespace) = (&**self.store, &*self.key.namespace);
        let pods = join_all(wanted.pods.into_iter().map(async |name| {
            let found = store.pod(namespace, &name).await?;
            Ok((name, found))
        }));
        let strangers = async {
            if wanted.strangers {
                reading::strangers(store, question).await.map(Some)
            } else {
                Ok(None)
            }
        };
        let standpoint = async {
            if wanted.owner {
                reading::standpoint(store, question).await.map(Some)
            } else {
                Ok(None)
            }
        };
        let read = timeout_at(question.deadline, join3(pods, strangers, standpoint)).await;
        let Ok((pods, strangers, standpoint)) = read else {
            return Err(ReadError::timed_out("what the decision needs"));
        };
        self.pods.extend(pods.into_iter().collect::<Result<Vec<_>, _>>()?);
        if let Some(strangers) = strangers? {
            self.strangers = Some(strangers);
        }
        let standpoint: Option<Standpoint> = standpoint?;
        if standpoint.is_some() {
            ticket.standpoint = standpoint;
        }
        Ok(())
    }

    /// The compare-and-swap. It is not begun past the deadline.
    async fn write(&mut self, ticket: &Ticket, next: DeployerClaimSpec) -> Fate {
        let deadline = ticket.question.deadline;
        if passed(deadline) {
            return Fate::Answered(Box::new(Ruling::Undecided(Undecided::Deadline)));
        }
        // A task of its own: a write that was begun is finished whoever stops waiting, and what it wrote is followed.
        let writing = CompareAndSwap {
            store: Arc::clone(self.store),
            observer: Arc::clone(self.observer),
            key: self.key.clone(),
            read: self.claim.clone(),
        };
        let written = timeout_at(deadline, tokio::spawn(writing.run(next)));
        let undecided = |why: Undecided| Fate::Answered(Box::new(why.into()));
        let failed = |why: Failure| Undecided::WriteFailed { why: why.to_string() };
        match written.await {
            Ok(Ok(Ok(claim))) => {
                self.claim = Some(claim);
                Fate::Answered(Box::new(Ruling::Admitted))
            }
            Ok(Ok(Err(WriteError::Conflict))) => Fate::Conflict,
            Ok(Ok(Err(WriteError::Refused(why)))) => undecided(failed(why)),
            // The next round reads whether it was written: the claim names this uid then.
            Ok(Ok(Err(WriteError::Unknown(why)))) => Fate::Trouble(failed(why)),
            Ok(Err(_panicked)) => undecided(Undecided::Panicked),
            Err(_elapsed) => undecided(Undecided::Deadline),
        }
    }
}

/// The one write of an admission, which is finished once it was begun.
struct CompareAndSwap<S> {
    store: Arc<S>,
    observer: Arc<Observer<S>>,
    key: Key,
    /// The version that the decision was made on.
    read: Option<DeployerClaim>,
}

impl<S: Store> CompareAndSwap<S> {
    async fn run(self, next: DeployerClaimSpec) -> Result<DeployerClaim, WriteError> {
        let (namespace, name) = (&self.key.namespace, self.key.claim_name());
        let written = match &self.read {
            Some(claim) => self.store.update_claim(claim, next).await,
            None => self.store.create_claim(namespace, &name, next).await,
        };
        match &written {
            Ok(claim) => self.observer.saw(claim, Origin::Ours),
            Err(WriteError::Unknown(_)) => self.observer.suspect(namespace.clone(), name),
            Err(WriteError::Conflict | WriteError::Refused(_)) => {}
        }
        written
    }
}

/// Answers those whose time is up, with the last trouble that they met.
fn answer_late(tickets: Vec<Ticket>) -> Vec<Ticket> {
    let (late, timely): (Vec<_>, Vec<_>) = tickets.into_iter().partition(|ticket| passed(ticket.question.deadline));
    for mut ticket in late {
        let why = ticket.trouble.take().unwrap_or(Undecided::Deadline);
        ticket.answer(why.into());
    }
    timely
}

fn failed(error: &ReadError) -> Fate {
    let why = Undecided::from(error.clone());
    if error.why.is_transient() {
        Fate::Trouble(why)
    } else {
        Fate::Answered(Box::new(Ruling::Undecided(why)))
    }
}

/// The claim itself could not be read: the same for every request.
fn trouble(tickets: Vec<Ticket>, error: &ReadError) -> Left {
    let mut left = Vec::new();
    for mut ticket in tickets {
        match failed(error) {
            Fate::Trouble(why) => {
                ticket.trouble = Some(why);
                left.push(ticket);
            }
            Fate::Answered(ruling) => ticket.answer(Decided {
                ruling: *ruling,
                claim: None,
            }),
            Fate::LookAgain | Fate::Conflict => left.push(ticket),
        }
    }
    Left {
        tickets: left,
        pause: true,
    }
}
