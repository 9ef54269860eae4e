//! A request on its way through a replica of the webhook, and on to the store.

use std::collections::BTreeMap;
use std::sync::Arc;

use deployer_guard::api::claim::{DeployerClaimSpec, PolicyReference};
use deployer_guard::api::policy::{OlderGenerations, Reruns};
use deployer_guard::domain::admission::{Candidate, Evidence, Rules, Ruling, Standpoint, Step, Stranger, decide};
use deployer_guard::domain::sighting::Sighting;
use jiff::Timestamp;

use crate::system::{Call, Event, Fault, Observers, System, uid};
use crate::world::{Action, Pod, Pods, World, sighting};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Request {
    /// Nothing was read yet (again, after a conflict or a lost answer). `again`: a namesake on its way was met before, and is
    /// taken over if it is still not there.
    Begin { again: bool },
    /// Has read some pods beside the claim, whose read is still on its way.
    Beside {
        again: bool,
        pods: BTreeMap<&'static str, Option<Pod>>,
    },
    /// Has read the claim, and reads what the decision wants after it.
    Reading {
        claim: Option<Arc<DeployerClaimSpec>>,
        pods: BTreeMap<&'static str, Option<Pod>>,
        /// Read before the claim was.
        beside: BTreeMap<&'static str, Option<Pod>>,
        list: Option<Pods>,
        again: bool,
        /// Of the claim.
        version: u8,
    },
    /// Allowed; the API server is about to store the pod.
    Allowed,
    /// Admitted, and never stored.
    Lost,
    /// Refused or stored, or not yet needed.
    Over,
}

impl Request {
    /// The pods that were read beside the claim so far.
    fn beside(&self) -> BTreeMap<&'static str, Option<Pod>> {
        match self {
            Self::Beside { pods, .. } => pods.clone(),
            _ => BTreeMap::new(),
        }
    }
}

impl System {
    pub(crate) fn request_actions(&self, world: &World, i: usize, actions: &mut Vec<Action>) {
        match &world.requests[i] {
            Request::Begin { .. } if self.another_may_begin_first(world, i) => {}
            Request::Begin { .. } | Request::Beside { .. } => {
                actions.push(Action::ReadClaim(i));
                let known = world.requests[i].beside();
                // In order of their names: which of two is read first makes no difference.
                let last = known.keys().next_back();
                let names = self
                    .names()
                    .filter(|name| self.reads_beside && last.is_none_or(|last| name > last));
                actions.extend(names.map(|name| Action::ReadBeside(i, name)));
            }
            Request::Reading { .. } => match self.step(world, i) {
                Step::Read(wanted) => {
                    let names = self.names().filter(|name| wanted.pods.contains(*name));
                    actions.extend(names.map(|name| Action::ReadPod(i, name)));
                    if wanted.strangers {
                        actions.push(Action::ReadList(i));
                    }
                }
                Step::Write(_) => {
                    actions.extend([Action::Write(i), Action::WriteAndLoseAnswer(i)]);
                    let waits = |other: &usize| matches!(world.requests[*other], Request::Begin { .. });
                    let others = (0..world.requests.len()).filter(waits);
                    let others = others.filter(|other| !self.another_may_begin_first(world, *other));
                    actions.extend(others.map(|other| Action::WriteAndServe(i, other)));
                }
                Step::LookAgain | Step::Answer(_) => {}
            },
            Request::Allowed => actions.push(Action::Arrive(i)),
            Request::Lost | Request::Over => {}
        }
    }

    /// Symmetry: of two creates of one name that left no trace so far, it does not matter which one begins.
    fn another_may_begin_first(&self, world: &World, i: usize) -> bool {
        let fresh = |i: usize| world.requests[i] == Request::Begin { again: false } && world.admitted[i].is_none();
        let plain = |i: usize| {
            matches!(self.calls[i], Call::Create(_))
                && !matches!(self.calls.get(i + 1), Some(Call::NextName(_) | Call::Repeated(_)))
        };
        let alike = |other: &usize| self.calls[*other] == self.calls[i] && plain(*other) && plain(i);
        fresh(i) && (0..i).filter(alike).any(fresh)
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &'static str> {
        let others = self.stranger.into_iter().chain(self.bypass);
        let mut names: Vec<_> = self.calls.iter().map(|call| call.name()).chain(others).collect();
        names.sort_unstable();
        names.dedup();
        names.into_iter()
    }

    /// Asks the project's own code what comes next for a request that has read the claim.
    fn step(&self, world: &World, i: usize) -> Step {
        let Request::Reading {
            claim,
            pods,
            beside,
            list,
            again,
            ..
        } = &world.requests[i]
        else {
            unreachable!("only asked where a claim was read")
        };
        let candidate = Candidate {
            name: self.calls[i].name().to_owned(),
            uid: uid(self.pod(i)).to_owned(),
            generation: None,
            requested_by: None,
        };
        let rules = Rules {
            policy: PolicyReference::default(),
            config: String::new(),
            key_generation: None,
            reruns: Reruns::Always,
            older_generations: OlderGenerations::Allow,
            stock_taken: self.stock_taken,
        };
        let sightings = |pods: &BTreeMap<&'static str, Option<Pod>>| -> BTreeMap<String, Sighting> {
            let found = pods.iter();
            found
                .map(|(name, found)| ((*name).to_owned(), sighting(found.as_ref())))
                .collect()
        };
        let (mut pods, beside) = (sightings(pods), sightings(beside));
        if self.fault == Fault::GoneBesideIsGone {
            for (name, found) in &beside {
                pods.entry(name.clone()).or_insert_with(|| found.clone());
            }
        }
        let strangers: Option<Vec<_>> = list.as_ref().map(strangers);
        let evidence = Evidence {
            claim: claim.as_deref(),
            pods: &pods,
            beside: &beside,
            strangers: strangers.as_deref(),
            standpoint: Some(&Standpoint::Eligible {
                config_uid: None,
                ordinal: None,
            }),
            patience_over: *again,
            now: Timestamp::UNIX_EPOCH,
        };
        decide(&candidate, &rules, &evidence)
    }

    /// Where explicit observers are explored, a namesake is looked for again as the webhook does. Elsewhere patience is over at
    /// once: looking again is the same as having begun later, so this only leaves out steps that change nothing.
    fn patience_over(&self, again: bool) -> bool {
        again || self.observers == Observers::Any
    }

    pub(crate) fn read_claim(&self, world: &mut World, i: usize) {
        let (Request::Begin { again } | Request::Beside { again, .. }) = world.requests[i] else {
            return;
        };
        world.requests[i] = Request::Reading {
            claim: world.claim.clone(),
            pods: BTreeMap::new(),
            beside: world.requests[i].beside(),
            list: None,
            again: self.patience_over(again),
            version: world.version,
        };
        self.go_on(world, i);
    }

    pub(crate) fn read_beside(world: &mut World, i: usize, name: &'static str) {
        let (Request::Begin { again } | Request::Beside { again, .. }) = world.requests[i] else {
            return;
        };
        let mut pods = world.requests[i].beside();
        pods.insert(name, world.store.get(name).copied());
        world.requests[i] = Request::Beside { again, pods };
    }

    pub(crate) fn read_pod(&self, world: &mut World, i: usize, name: &'static str) {
        let source = match self.fault {
            Fault::PodsFromList => &world.list,
            _ => &world.store,
        };
        let found = source.get(name).copied();
        if let Request::Reading { pods, .. } = &mut world.requests[i] {
            pods.insert(name, found);
        }
        self.go_on(world, i);
    }

    pub(crate) fn read_list(&self, world: &mut World, i: usize) {
        let found = world.store.clone();
        if let Request::Reading { list, .. } = &mut world.requests[i] {
            *list = Some(found);
        }
        self.go_on(world, i);
    }

    /// Decides after each read. Where several were to be made side by side, an answer that one of them settles is given early:
    /// it writes nothing.
    fn go_on(&self, world: &mut World, i: usize) {
        match self.step(world, i) {
            Step::Read(_) | Step::Write(_) => {}
            Step::LookAgain => world.requests[i] = Request::Begin { again: true },
            Step::Answer(ruling) => self.answer(world, i, &ruling),
        }
    }

    fn answer(&self, world: &mut World, i: usize, ruling: &Ruling) {
        world.requests[i] = Request::Over;
        match ruling {
            Ruling::Admitted => {
                self.meet(Event::AnsweredAgain);
                world.requests[i] = self.allowed(i);
            }
            Ruling::NameExists => world.try_next_name(self, i),
            Ruling::Refused(_) | Ruling::Undecided(_) => self.meet(Event::Refused),
        }
    }

    /// Nobody listens to the answer of a repeated call.
    fn allowed(&self, i: usize) -> Request {
        match self.calls[i] {
            Call::Repeated(_) => Request::Over,
            _ => Request::Allowed,
        }
    }

    /// The compare-and-swap. It conflicts only where stale reads are kept: see [`World::written`].
    pub(crate) fn write(&self, world: &mut World, i: usize, answered: Request) {
        let Step::Write(mut next) = self.step(world, i) else {
            return;
        };
        if let Request::Reading { version, again, .. } = world.requests[i]
            && version != world.version
        {
            self.meet(Event::Conflict);
            world.requests[i] = Request::Begin { again };
            return;
        }
        if next.pending.len() > 1 {
            self.meet(Event::TakenOver);
        }
        if world
            .claim
            .as_ref()
            .is_some_and(|claim| claim.holder.is_some() && claim.pending.is_empty())
        {
            self.meet(Event::ReplacedFinished);
        }
        if self.fault == Fault::TakenOverIsForgotten {
            let pod = uid(self.pod(i));
            next.pending.retain(|entry| entry.uid == pod);
        }
        world.requests[i] = match answered {
            Request::Allowed => self.allowed(i),
            other => other,
        };
        world.admitted[self.pod(i)].get_or_insert(0);
        world.check_admission(self.calls[i].name());
        world.written(self, *next);
    }

    /// The next request of the same desk is decided on the claim as this write left it, and on pods that were read *before* the
    /// write (src/webhook/round.rs).
    pub(crate) fn write_and_serve(&self, world: &mut World, i: usize, other: usize) {
        let Request::Reading { pods, beside, list, .. } = world.requests[i].clone() else {
            return;
        };
        let Request::Begin { again } = world.requests[other] else {
            return;
        };
        self.write(world, i, Request::Allowed);
        if matches!(world.requests[i], Request::Begin { .. }) {
            // A conflict ends the round for everybody.
            return;
        }
        self.meet(Event::SharedRead);
        world.requests[other] = Request::Reading {
            claim: world.claim.clone(),
            pods,
            beside,
            list,
            again: self.patience_over(again),
            version: world.version,
        };
        self.go_on(world, other);
    }
}

fn strangers(pods: &Pods) -> Vec<Stranger> {
    let active = pods.iter().filter(|(_, pod)| pod.activity.is_active());
    active
        .map(|(name, pod)| Stranger {
            name: (*name).to_owned(),
            uid: pod.uid.to_owned(),
            generation: None,
        })
        .collect()
}
