//! The world that the model check explores: one key, its claim and pods in a store, requests in any order, one observer.
//!
//! Every decision and transition is the project's own: [`decide`], [`Pursuit::looked`] and the transitions of the claim. What
//! is modelled is what lies around them: reads and writes as separate steps, lost answers, creates that fail or arrive late,
//! time that passes between any two steps, pods that finish and are deleted, a webhook that is restarted.

use std::collections::BTreeMap;
use std::time::Duration;

use deployer_guard::api::claim::{DeployerClaimSpec, PolicyReference};
use deployer_guard::api::policy::{OlderGenerations, Reruns};
use deployer_guard::domain::admission::{
    Candidate, Evidence, Rules, Ruling, Standpoint, Step, Stranger, Wanted, decide,
};
use deployer_guard::domain::pursuit::{Pursued, Pursuit, Window};
use deployer_guard::domain::sighting::{Activity, Sighting};
use jiff::Timestamp;
use stateright::{Model, Property};

/// One unit of the model's time.
const TICK: Duration = Duration::from_secs(1);
/// W is less than a tick and the second look comes at least a tick after the first, so what the design promises is that a
/// create which arrives up to one tick after its admission is never met by a freed claim.
pub(crate) const WINDOW: Window = Window {
    pending: Duration::from_millis(500),
    settle: TICK,
};
const ARRIVES_WITHIN: u8 = 1;

/// A rule of the protocol that is taken out, to show that the check finds the fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The protocol as it is.
    None,
    /// A pending pod that is not found is dropped at once.
    NoWindow,
    /// Claims are written without their version.
    NoPrecondition,
    /// Named pods are judged by a list that may lag, instead of a GET of each.
    PodsFromList,
    /// The observer takes its clock when the answer is there, instead of when it asked.
    AgeAfterRead,
}

/// What is explored.
pub(crate) struct System {
    pub(crate) fault: Fault,
    /// The pod name of each request; each request is a pod of its own uid.
    pub(crate) names: Vec<&'static str>,
    /// Ticks that may pass.
    pub(crate) ticks: u8,
    /// Times that the webhook is restarted.
    pub(crate) restarts: u8,
}

type Versioned = (u8, DeployerClaimSpec);

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct World {
    now: u8,
    restarts: u8,
    /// The pods in etcd.
    store: BTreeMap<&'static str, (String, Activity)>,
    /// What a lagging list shows; kept only where a fault reads it.
    list: BTreeMap<&'static str, (String, Activity)>,
    claim: Option<Versioned>,
    writes: u8,
    requests: Vec<Request>,
    /// When each request came in: the API server gives it up so many ticks later, wherever it is.
    came: Vec<Option<u8>>,
    /// What the observer knows of each pending uid.
    chases: BTreeMap<String, Chase>,
    dropped: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
enum Request {
    /// Nothing was read yet (again, after a conflict or a lost answer).
    #[default]
    Begin,
    /// A namesake was met: read again, and take it over if it is still on its way.
    BeginAgain,
    /// Waits for reads.
    Reads { gathered: Gathered, wanted: Wanted },
    /// About to write.
    Writes {
        read: Option<u8>,
        next: Box<DeployerClaimSpec>,
    },
    /// Allowed; the API server is about to store the pod.
    Allowed,
    /// Refused, stored, or failed on its way.
    Over,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Gathered {
    claim: Option<Versioned>,
    pods: BTreeMap<String, Sighting>,
    strangers: Option<Vec<Stranger>>,
    patience_over: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Chase {
    pursuit: Pursuit,
    known: Option<Versioned>,
    stage: Stage,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Stage {
    Looks,
    /// The store has answered; the answer is on its way to the observer.
    Answered {
        begun: u8,
        found: Sighting,
    },
    Writes {
        next: Box<DeployerClaimSpec>,
        drops: bool,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Action {
    ReadClaim(usize),
    ReadPod(usize, String),
    ReadList(usize),
    Write(usize),
    WriteAndLoseAnswer(usize),
    Arrive(usize),
    FailOnTheWay(usize),
    Finish(&'static str),
    Delete(&'static str),
    Tick,
    RestartWebhook,
    RefreshList,
    Notice(String),
    Reread(String),
    Look(String),
    Hear(String),
    Settle(String),
}

impl System {
    fn candidate(&self, request: usize) -> Candidate {
        Candidate {
            name: self.names[request].to_owned(),
            uid: uid(request),
            generation: None,
            requested_by: None,
        }
    }

    /// Asks the project's own code what comes next for a request.
    fn decide(&self, request: usize, gathered: Gathered) -> Request {
        let rules = Rules {
            policy: PolicyReference::default(),
            config: String::new(),
            key_generation: None,
            reruns: Reruns::Always,
            older_generations: OlderGenerations::Allow,
        };
        let evidence = Evidence {
            claim: gathered.claim.as_ref().map(|(_, spec)| spec),
            pods: &gathered.pods,
            strangers: gathered.strangers.as_deref(),
            standpoint: Some(&Standpoint::Eligible {
                config_uid: None,
                ordinal: None,
            }),
            patience_over: gathered.patience_over,
            now: Timestamp::UNIX_EPOCH,
        };
        match decide(&self.candidate(request), &rules, &evidence) {
            Step::Read(wanted) => Request::Reads { gathered, wanted },
            Step::LookAgain => Request::BeginAgain,
            Step::Write(next) => Request::Writes {
                read: gathered.claim.map(|(version, _)| version),
                next,
            },
            Step::Answer(Ruling::Admitted) => Request::Allowed,
            Step::Answer(_) => Request::Over,
        }
    }

    /// A compare-and-swap of the claim.
    fn write(&self, world: &mut World, read: Option<u8>, next: &DeployerClaimSpec) -> bool {
        let version = world.claim.as_ref().map(|(version, _)| *version);
        if version != read && self.fault != Fault::NoPrecondition {
            return false;
        }
        world.writes += 1;
        world.claim = Some((world.writes, next.clone()));
        // Whoever admits a pod follows it from then on; to notice it later could only drop it later.
        for entry in &next.pending {
            if !world.chases.contains_key(&entry.uid) {
                world.notice(&entry.uid);
            }
        }
        if self.fault != Fault::NoPrecondition {
            world.forget_what_is_stale();
        }
        true
    }

    fn window(&self) -> Window {
        match self.fault {
            Fault::NoWindow => Window {
                pending: Duration::ZERO,
                settle: Duration::ZERO,
            },
            _ => WINDOW,
        }
    }

    fn request_actions(&self, world: &World, i: usize, actions: &mut Vec<Action>) {
        match &world.requests[i] {
            Request::Begin | Request::BeginAgain => actions.push(Action::ReadClaim(i)),
            Request::Reads { wanted, .. } => {
                actions.extend(wanted.pods.iter().map(|name| Action::ReadPod(i, name.clone())));
                if wanted.strangers {
                    actions.push(Action::ReadList(i));
                }
            }
            Request::Writes { .. } => actions.extend([Action::Write(i), Action::WriteAndLoseAnswer(i)]),
            Request::Allowed => actions.extend([Action::Arrive(i), Action::FailOnTheWay(i)]),
            Request::Over => {}
        }
    }

    fn observer_actions(world: &World, actions: &mut Vec<Action>) {
        let pending = world.claim.iter().flat_map(|(_, spec)| &spec.pending);
        let unknown = pending.filter(|entry| !world.chases.contains_key(&entry.uid));
        actions.extend(unknown.map(|entry| Action::Notice(entry.uid.clone())));
        for (uid, chase) in &world.chases {
            actions.push(match (&chase.known, &chase.stage) {
                (None, _) => Action::Reread(uid.clone()),
                (Some(_), Stage::Looks) => Action::Look(uid.clone()),
                (Some(_), Stage::Answered { .. }) => Action::Hear(uid.clone()),
                (Some(_), Stage::Writes { .. }) => Action::Settle(uid.clone()),
            });
        }
    }

    /// Time passes only as far as the assumption on the API server allows: a create arrives or fails within its bound.
    fn may_tick(&self, world: &World) -> bool {
        world.now < self.ticks
            && world
                .requests
                .iter()
                .zip(&world.came)
                .all(|(request, came)| match (request, came) {
                    (Request::Allowed, Some(came)) => world.now < came + ARRIVES_WITHIN,
                    _ => true,
                })
    }

    /// Requests whose deadline passed end undecided: past it nothing is written.
    fn tick(world: &mut World) {
        world.now += 1;
        for (request, came) in world.requests.iter_mut().zip(&world.came) {
            if came.is_some_and(|came| world.now > came + ARRIVES_WITHIN) {
                *request = Request::Over;
            }
        }
        for (request, came) in world.requests.iter().zip(&mut world.came) {
            came.take_if(|_| *request == Request::Over);
        }
    }

    fn act_on_request(&self, world: &mut World, i: usize, action: &Action) {
        let request = std::mem::take(&mut world.requests[i]);
        let next = match (action, request) {
            (Action::ReadClaim(_), request) => {
                let gathered = Gathered {
                    claim: world.claim.clone(),
                    patience_over: request == Request::BeginAgain,
                    ..Gathered::default()
                };
                self.decide(i, gathered)
            }
            (
                Action::ReadPod(_, name),
                Request::Reads {
                    mut gathered,
                    mut wanted,
                },
            ) => {
                let pods = if self.fault == Fault::PodsFromList {
                    &world.list
                } else {
                    &world.store
                };
                gathered.pods.insert(name.clone(), sighting(pods, name));
                wanted.pods.remove(name);
                self.after_read(i, gathered, wanted)
            }
            (
                Action::ReadList(_),
                Request::Reads {
                    mut gathered,
                    mut wanted,
                },
            ) => {
                gathered.strangers = Some(strangers(&world.store));
                wanted.strangers = false;
                self.after_read(i, gathered, wanted)
            }
            (Action::Write(_), Request::Writes { read, next }) => match self.write(world, read, &next) {
                true => Request::Allowed,
                false => Request::Begin,
            },
            (Action::WriteAndLoseAnswer(_), Request::Writes { read, next }) => {
                self.write(world, read, &next);
                Request::Begin
            }
            (Action::Arrive(_), Request::Allowed) => {
                world
                    .store
                    .entry(self.names[i])
                    .or_insert_with(|| (uid(i), Activity::Active));
                Request::Over
            }
            (_, _) => Request::Over,
        };
        world.came[i].get_or_insert(world.now);
        if next == Request::Over {
            world.came[i] = None;
        }
        world.requests[i] = next;
    }

    /// All reads of one kind are side by side: the decision goes on when the last one is there.
    fn after_read(&self, i: usize, gathered: Gathered, mut wanted: Wanted) -> Request {
        wanted.owner = false;
        if wanted == Wanted::default() {
            self.decide(i, gathered)
        } else {
            Request::Reads { gathered, wanted }
        }
    }

    fn act_on_chase(&self, world: &mut World, uid: &str, action: &Action) {
        let now = TICK * u32::from(world.now);
        let Some(mut chase) = world.chases.remove(uid) else {
            return;
        };
        match action {
            Action::Reread(_) => {
                chase.known = world.claim.clone().filter(|(_, spec)| spec.is_pending(uid));
                chase.stage = Stage::Looks;
                if chase.known.is_none() {
                    return;
                }
            }
            Action::Look(_) => {
                let name = self.name_of(uid);
                chase.stage = Stage::Answered {
                    begun: world.now,
                    found: sighting(&world.store, name),
                };
            }
            Action::Hear(_) => chase.hear(self, uid, now),
            Action::Settle(_) => {
                let Stage::Writes { next, drops } = chase.stage else {
                    return;
                };
                if self.write(world, chase.known.map(|(version, _)| version), &next) {
                    world.dropped |= drops;
                    return;
                }
                chase = Chase {
                    known: None,
                    stage: Stage::Looks,
                    ..chase
                };
            }
            _ => {}
        }
        world.chases.insert(uid.to_owned(), chase);
    }

    fn name_of(&self, wanted: &str) -> &'static str {
        let request = (0..self.names.len())
            .find(|request| uid(*request) == wanted)
            .unwrap_or_default();
        self.names[request]
    }
}

impl World {
    fn notice(&mut self, uid: &str) {
        let pursuit = Pursuit::new(TICK * u32::from(self.now));
        let chase = Chase {
            pursuit,
            known: self.claim.clone(),
            stage: Stage::Looks,
        };
        self.chases.insert(uid.to_owned(), chase);
    }

    /// Joins worlds that cannot behave differently, after a write. What was gathered for a version of the claim that is gone
    /// can only end in a refusal or a conflict, so the request is back at its beginning; a chase whose entry is settled can
    /// only conflict and find that out. Versions are current (1) or stale (0).
    fn forget_what_is_stale(&mut self) {
        let Some((current, spec)) = &mut self.claim else { return };
        for request in &mut self.requests {
            match request {
                Request::Reads { gathered, .. } if gathered.patience_over => *request = Request::BeginAgain,
                Request::Reads { .. } | Request::Writes { .. } => *request = Request::Begin,
                _ => {}
            }
        }
        self.chases.retain(|uid, _| spec.is_pending(uid));
        for chase in self.chases.values_mut() {
            match &mut chase.known {
                Some((version, _)) if version == current => *version = 1,
                Some(stale) => {
                    *stale = (
                        0,
                        DeployerClaimSpec {
                            pending: stale.1.pending.clone(),
                            ..Default::default()
                        },
                    )
                }
                None => {}
            }
        }
        *current = 1;
        self.writes = 1;
    }
}

impl Chase {
    fn hear(&mut self, system: &System, uid: &str, now: Duration) {
        let (Stage::Answered { begun, found }, Some((_, spec))) = (&self.stage, &self.known) else {
            return;
        };
        let begun = if system.fault == Fault::AgeAfterRead {
            now
        } else {
            TICK * u32::from(*begun)
        };
        let next = match self.pursuit.looked(system.window(), begun, uid, found) {
            Pursued::OnItsWay { .. } => None,
            Pursued::Arrived(activity) => spec
                .confirmed(uid, activity, Timestamp::UNIX_EPOCH)
                .map(|next| (next, false)),
            Pursued::Lost => spec.dropped(uid).map(|next| (next, true)),
        };
        self.stage = next.map_or(Stage::Looks, |(next, drops)| Stage::Writes {
            next: Box::new(next),
            drops,
        });
    }
}

impl Model for System {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        let requests = vec![Request::Begin; self.names.len()];
        vec![World {
            requests,
            came: vec![None; self.names.len()],
            ..World::default()
        }]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        for i in 0..world.requests.len() {
            self.request_actions(world, i, actions);
        }
        Self::observer_actions(world, actions);
        for (name, (_, activity)) in &world.store {
            if activity.is_active() {
                actions.push(Action::Finish(name));
            }
            actions.push(Action::Delete(name));
        }
        if self.may_tick(world) {
            actions.push(Action::Tick);
        }
        if world.restarts < self.restarts {
            actions.push(Action::RestartWebhook);
        }
        if self.fault == Fault::PodsFromList && world.list != world.store {
            actions.push(Action::RefreshList);
        }
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        let mut next = world.clone();
        match &action {
            Action::ReadClaim(i)
            | Action::ReadPod(i, _)
            | Action::ReadList(i)
            | Action::Write(i)
            | Action::WriteAndLoseAnswer(i)
            | Action::Arrive(i)
            | Action::FailOnTheWay(i) => self.act_on_request(&mut next, *i, &action),
            Action::Finish(name) => {
                next.store
                    .entry(name)
                    .and_modify(|(_, activity)| *activity = Activity::Succeeded);
            }
            Action::Delete(name) => {
                next.store.remove(name);
            }
            Action::Tick => Self::tick(&mut next),
            Action::RestartWebhook => {
                next.restarts += 1;
                next.chases.clear();
                for request in &mut next.requests {
                    if !matches!(request, Request::Allowed | Request::Begin) {
                        *request = Request::Over;
                    }
                }
            }
            Action::RefreshList => next.list.clone_from(&next.store),
            Action::Notice(uid) => next.notice(uid),
            Action::Reread(uid) | Action::Look(uid) | Action::Hear(uid) | Action::Settle(uid) => {
                self.act_on_chase(&mut next, uid, &action);
            }
        }
        (next != *world).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("never two active", |_, world: &World| {
                world
                    .store
                    .values()
                    .filter(|(_, activity)| activity.is_active())
                    .count()
                    <= 1
            }),
            Property::sometimes("a pod is stored", |_, world: &World| !world.store.is_empty()),
            Property::sometimes(
                "a lost pod is dropped, and another is stored after it",
                |_, world: &World| world.dropped && !world.store.is_empty(),
            ),
        ]
    }
}

fn uid(request: usize) -> String {
    format!("u{request}")
}

fn sighting(pods: &BTreeMap<&'static str, (String, Activity)>, name: &str) -> Sighting {
    pods.get(name)
        .map_or(Sighting::Absent, |(uid, activity)| Sighting::Present {
            uid: uid.clone(),
            activity: *activity,
        })
}

fn strangers(pods: &BTreeMap<&'static str, (String, Activity)>) -> Vec<Stranger> {
    let active = pods.iter().filter(|(_, (_, activity))| activity.is_active());
    active
        .map(|(name, (uid, _))| Stranger {
            name: (*name).to_owned(),
            uid: uid.clone(),
            generation: None,
        })
        .collect()
}
