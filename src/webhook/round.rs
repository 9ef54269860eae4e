//! One round of a desk: the claim is read once, the pods that it names once each, and every request that was waiting is
//! decided on that, one after another, up to the first conflict.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{Either, join, join_all, join3, select};
use futures::{StreamExt, stream};
use jiff::Timestamp;
use kube::Resource;
use tokio::time::{Instant, timeout, timeout_at};

use super::desk::passed;
use super::guess::Guess;
use super::reading::Unread;
use super::swap::CompareAndSwap;
use super::ticket::{Decided, Ticket};
use crate::api::claim::{DeployerClaim, DeployerClaimSpec};
use crate::aside::Aside;
use crate::cluster::store::{Failure, ReadError, Store, WriteError};
use crate::domain::admission::{Evidence, Ruling, Standpoint, Step, Stranger, Wanted, decide};
use crate::domain::key::Key;
use crate::domain::refusal::{Refusal, Undecided};
use crate::domain::sighting::Sighting;
use crate::observer::{Observer, Origin};
use crate::webhook::reading;

/// One round over one key.
pub(super) struct Round<'a, S> {
    store: &'a Arc<S>,
    observer: &'a Arc<Observer<S>>,
    aside: &'a Aside,
    key: &'a Key,
    claim: Option<DeployerClaim>,
    /// What GETs found that began after the claim was read.
    pods: BTreeMap<String, Sighting>,
    /// What GETs found that were sent side by side with that of the claim.
    beside: BTreeMap<String, Sighting>,
    guess: Guess,
    /// A deployer stands in the way of the next one.
    held: bool,
    strangers: Option<Vec<Stranger>>,
}

/// How long a refusal waits for the read of its owner that is under way, where the policy has owners woken.
const ORDINAL: Duration = Duration::from_millis(50);
/// Pods that one request reads at a time.
const PODS_AT_A_TIME: usize = 16;

type ClaimRead = Result<Option<DeployerClaim>, ReadError>;

/// Requests that need another round.
pub(super) struct Left {
    pub(super) tickets: Vec<Ticket>,
    /// What is to be waited for before it.
    pub(super) pause: Pause,
}

/// Why the next round should not begin at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pause {
    /// Nobody waits for it.
    None,
    /// A namesake on its way takes some milliseconds to arrive.
    BeforeAnotherLook,
    /// Somebody else wrote the claim: read it at once, but not for ever.
    AfterConflict,
    /// The API server may have got its breath back.
    AfterTrouble,
}

/// What became of one request in a round.
enum Fate {
    Answered(Box<Ruling>),
    /// Read again in a moment: a namesake is on its way.
    LookAgain,
    /// The claim changed: the round is over for everybody.
    Conflict,
    /// A read for this request failed, and may succeed when tried again.
    Unread(Undecided),
    /// The write failed, and may succeed when tried again: the round is over for everybody.
    Unwritten(Undecided),
}

impl<'a, S: Store> Round<'a, S> {
    pub(super) fn new(
        store: &'a Arc<S>,
        observer: &'a Arc<Observer<S>>,
        aside: &'a Aside,
        key: &'a Key,
        guess: Guess,
    ) -> Self {
        Self {
            guess,
            held: false,
            beside: BTreeMap::new(),
            store,
            observer,
            aside,
            key,
            claim: None,
            pods: BTreeMap::new(),
            strangers: None,
        }
    }

    /// Decides on as many requests as this round's reads allow.
    pub(super) async fn run(&mut self, tickets: Vec<Ticket>) -> Left {
        let mut tickets = VecDeque::from(answer_late(tickets));
        let Some(horizon) = tickets.iter().map(|ticket| ticket.question.deadline).max() else {
            return Left {
                tickets: Vec::new(),
                pause: Pause::None,
            };
        };
        tickets.iter_mut().for_each(Ticket::begin_again);
        if let Err(error) = self.begin(&mut tickets, horizon).await {
            return trouble(self.key, tickets.into(), &error);
        }
        let (mut left, mut pause) = (Vec::new(), Pause::BeforeAnotherLook);
        while let Some(mut ticket) = tickets.pop_front() {
            match self.fate(&mut ticket).await {
                Fate::Answered(ruling) => {
                    let claim = self.claim.as_ref().map(|claim| claim.object_ref(&()));
                    let ordinal = ticket.ordinal();
                    ticket.answer(Decided {
                        ruling: *ruling,
                        claim,
                        ordinal,
                    });
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
                        pause: Pause::AfterConflict,
                    };
                }
                // What one request alone has to read keeps nobody else waiting.
                Fate::Unread(why) => {
                    ticket.trouble = Some(why);
                    pause = Pause::AfterTrouble;
                    left.push(ticket);
                }
                Fate::Unwritten(why) => {
                    ticket.trouble = Some(why);
                    left.push(ticket);
                    left.extend(tickets);
                    return Left {
                        tickets: left,
                        pause: Pause::AfterTrouble,
                    };
                }
            }
        }
        Left { tickets: left, pause }
    }

    /// Reads the claim, and side by side what the decision will probably want: the pods that the claim named when it was last
    /// read here, and for the first request its own name and its owner.
    async fn begin(&mut self, tickets: &mut VecDeque<Ticket>, horizon: Instant) -> Result<(), ReadError> {
        let (store, aside, key) = (self.store, self.aside, self.key);
        let first = tickets
            .front()
            .filter(|_| self.guess.is_worth_more_than_names(tickets.len()));
        let own_name = first.map(|ticket| &ticket.question.candidate.name);
        let names: BTreeSet<String> = self.guess.names.iter().chain(own_name).cloned().collect();
        let question = first
            .filter(|ticket| ticket.standpoint.is_none())
            .map(|ticket| ticket.question.clone());
        let claim_name = key.claim_name();
        let claim_and_pods = join(
            store.claim(&key.namespace, &claim_name),
            join_all(names.into_iter().map(async |name| {
                let found = store.pod(&key.namespace, &name).await.ok()?;
                Some((name, found))
            })),
        );
        let standpoint = async move {
            {
                let question = question.as_ref()?;
                reading::standpoint(&**store, aside, question).await.ok()
            }
        };
        let (claim_and_pods, standpoint) = (pin!(claim_and_pods), pin!(standpoint));
        let reads = select(claim_and_pods, standpoint);
        let timed_out = |_| ReadError::timed_out("the claim");
        let standpoint = match timeout_at(horizon, reads).await.map_err(timed_out)? {
            Either::Left((read, standpoint)) => {
                self.take_in(read)?;
                // Where the claim and the holder settle it, a slow owner keeps nobody waiting. One that will be listed as waiting is
                // given a moment: its ordinal is its place in that list.
                if let Some(ticket) = tickets.front().filter(|ticket| self.is_settled(ticket)) {
                    let moment = if ticket.question.policy.wakes_owners() {
                        ORDINAL
                    } else {
                        Duration::ZERO
                    };
                    timeout(moment, standpoint).await.ok().flatten()
                } else {
                    timeout_at(horizon, standpoint).await.ok().flatten()
                }
            }
            Either::Right((standpoint, reads)) => {
                self.take_in(timeout_at(horizon, reads).await.map_err(timed_out)?)?;
                standpoint
            }
        };
        if let (Some(ticket), Some(_)) = (tickets.front_mut(), &standpoint) {
            ticket.standpoint = standpoint;
        }
        Ok(())
    }

    /// What could not be read beside the claim is wanted again, and its failure told then.
    fn take_in(&mut self, (claim, pods): (ClaimRead, Vec<Option<(String, Sighting)>>)) -> Result<(), ReadError> {
        self.beside = pods.into_iter().flatten().collect();
        self.learn(claim?, Origin::Theirs);
        Ok(())
    }

    fn is_settled(&self, ticket: &Ticket) -> bool {
        matches!(self.step(ticket), Step::Answer(_))
    }

    fn step(&self, ticket: &Ticket) -> Step {
        let evidence = Evidence {
            claim: self.claim.as_ref().map(|claim| &claim.spec),
            pods: &self.pods,
            beside: &self.beside,
            strangers: self.strangers.as_deref(),
            standpoint: ticket.standpoint.as_ref(),
            patience_over: ticket.patience_over(),
            now: Timestamp::now(),
        };
        decide(&ticket.question.candidate, &ticket.question.rules, &evidence)
    }

    /// What the next round on this key should read beside the claim.
    pub(super) fn guess(&self) -> Guess {
        Guess::after(self.claim.as_ref().map(|claim| &claim.spec), self.held)
    }

    fn learn(&mut self, claim: Option<DeployerClaim>, origin: Origin) {
        if let Some(claim) = &claim {
            self.observer.saw(claim, origin);
        }
        self.claim = claim;
    }

    async fn fate(&mut self, ticket: &mut Ticket) -> Fate {
        loop {
            match self.step(ticket) {
                Step::Answer(ruling) => {
                    self.held |= matches!(
                        ruling,
                        Ruling::Refused(Refusal::DeployerActive(_) | Refusal::DeployerPending(_))
                    );
                    return Fate::Answered(Box::new(ruling));
                }
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
    async fn read(&mut self, ticket: &mut Ticket, wanted: Wanted) -> Result<(), Unread> {
        let question = &ticket.question;
        let (store, aside, namespace) = (&**self.store, self.aside, &*self.key.namespace);
        let reads = wanted.pods.into_iter().map(async |name| {
            let found = store.pod(namespace, &name).await?;
            Ok::<_, ReadError>((name, found))
        });
        let pods = stream::iter(reads).buffer_unordered(PODS_AT_A_TIME).collect::<Vec<_>>();
        let strangers = async {
            if wanted.strangers {
                reading::strangers(store, aside, question).await.map(Some)
            } else {
                Ok(None)
            }
        };
        let standpoint = async {
            if wanted.owner {
                reading::standpoint(store, aside, question).await.map(Some)
            } else {
                Ok(None)
            }
        };
        let read = timeout_at(question.deadline, join3(pods, strangers, standpoint)).await;
        let Ok((pods, strangers, standpoint)) = read else {
            return Err(ReadError::timed_out("what the decision needs").into());
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
        let written = timeout_at(deadline, tokio::spawn(writing.run(next, deadline)));
        let undecided = |why: Undecided| Fate::Answered(Box::new(why.into()));
        let failed = |why: Failure| Undecided::WriteFailed { why: why.to_string() };
        match written.await {
            Ok(Ok(Ok(claim))) => {
                self.claim = Some(claim);
                self.held = true;
                Fate::Answered(Box::new(Ruling::Admitted))
            }
            Ok(Ok(Err(WriteError::Conflict))) => Fate::Conflict,
            Ok(Ok(Err(WriteError::Refused(why)))) => undecided(failed(why)),
            // The next round reads whether it was written: the claim names this uid then.
            Ok(Ok(Err(WriteError::Shed(why) | WriteError::Unknown(why)))) => Fate::Unwritten(failed(why)),
            Ok(Err(_panicked)) => undecided(Undecided::Panicked),
            Err(_elapsed) => undecided(Undecided::Deadline),
        }
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

fn failed(unread: &Unread) -> Fate {
    let Unread::Failed(error) = unread else {
        return Fate::Answered(Box::new(Undecided::TooCostly.into()));
    };
    let why = Undecided::from(error.clone());
    if error.why.is_transient() {
        Fate::Unread(why)
    } else {
        Fate::Answered(Box::new(Ruling::Undecided(why)))
    }
}

/// The claim itself could not be read: the same for every request.
fn trouble(key: &Key, tickets: Vec<Ticket>, error: &ReadError) -> Left {
    let why = match &error.why {
        Failure::Unreadable(why) => Undecided::ClaimUnreadable {
            namespace: key.namespace.clone(),
            claim: key.claim_name(),
            // Where in the answer is another place each time, and the text is to stay the same.
            why: why.split(" at line ").next().unwrap_or_default().to_owned(),
        },
        _ => Undecided::from(error.clone()),
    };
    let mut left = Vec::new();
    for mut ticket in tickets {
        if error.why.is_transient() {
            ticket.trouble = Some(why.clone());
            left.push(ticket);
        } else {
            ticket.answer(why.clone().into());
        }
    }
    Left {
        tickets: left,
        pause: Pause::AfterTrouble,
    }
}
