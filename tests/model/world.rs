//! One state of the world: the store with the pods and the claim, the requests, and who follows pending pods.
//!
//! Every decision and transition is the project's own. What is modelled is what lies around them: reads and writes as
//! separate steps, lost answers, creates that fail or arrive late, time that passes between any two steps, pods that finish
//! and are deleted, replicas that are restarted.
//!
//! Time is not counted from a beginning. What matters is how long ago something happened, up to where more makes no
//! difference; so any number of ticks is explored.

use std::collections::BTreeMap;
use std::sync::Arc;

use deployer_guard::api::claim::DeployerClaimSpec;
use deployer_guard::domain::sighting::{Activity, Sighting};
use stateright::{Model, Property};

use crate::guard::{Guards, Move};
use crate::observer::{Chase, End};
use crate::request::Request;
use crate::system::{Call, Event, Fault, Observers, PROMISED, System, Watchers, uid};

/// A pod in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Pod {
    pub(crate) uid: &'static str,
    pub(crate) activity: Activity,
    /// Bound to a node. As all that follows, only where guards are explored.
    pub(crate) started: bool,
    /// Its owner is gone.
    pub(crate) orphan: bool,
    /// It came in by a bypass, or was stored later than is promised.
    pub(crate) irregular: bool,
}

impl Pod {
    pub(crate) fn new(uid: &'static str) -> Self {
        Self {
            uid,
            activity: Activity::Active,
            started: false,
            orphan: false,
            irregular: false,
        }
    }
}

pub(crate) type Pods = BTreeMap<&'static str, Pod>;

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct World {
    /// The pods in etcd.
    pub(crate) store: Pods,
    /// What a lagging list shows; kept only where a fault reads it.
    pub(crate) list: Pods,
    pub(crate) claim: Option<Arc<DeployerClaimSpec>>,
    /// The version of the claim; counted only where stale reads are kept.
    pub(crate) version: u8,
    pub(crate) requests: Vec<Request>,
    /// Ticks since each pod was first admitted, while that matters.
    pub(crate) admitted: Vec<Option<u8>>,
    pub(crate) chases: Vec<Chase>,
    pub(crate) restarts: u8,
    /// What guards know, are about to do, and have done wrong.
    pub(crate) guards: Guards,
    /// The pod that comes in by a bypass has.
    pub(crate) bypassed: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Action {
    ReadClaim(usize),
    /// Before the claim is read.
    ReadBeside(usize, &'static str),
    ReadPod(usize, &'static str),
    ReadList(usize),
    Write(usize),
    WriteAndLoseAnswer(usize),
    /// The second request waits at the same desk: its turn comes on what the first one read and wrote.
    WriteAndServe(usize, usize),
    Arrive(usize),
    Finish(&'static str),
    Delete(&'static str),
    Tick,
    Restart,
    RefreshList,
    Notice(u8, usize),
    Ask(u8, usize),
    Hear(u8, usize),
    Settle(u8, usize, End),
    Bypass(&'static str),
    /// The pod is bound to a node.
    Start(&'static str),
    /// The pod's owner goes.
    Orphan(&'static str),
    Guard(Move),
}

impl World {
    /// A write of the claim took effect.
    ///
    /// What anybody gathered for the version before is stale from now on. It can only end in a refusal, which changes nothing and
    /// is the same as never going on, or in a conflict, which begins again with the claim. So whoever read begins again now, and
    /// a version is never kept beside the claim itself.
    pub(crate) fn written(&mut self, system: &System, next: DeployerClaimSpec) {
        self.changed(system, Some(Arc::new(next)));
    }

    /// The claim was written, or removed.
    pub(crate) fn changed(&mut self, system: &System, claim: Option<Arc<DeployerClaimSpec>>) {
        self.claim = claim;
        self.version += u8::from(system.keeps_stale_reads);
        if system.fault != Fault::NoPrecondition && !system.keeps_stale_reads {
            for request in &mut self.requests {
                if let Request::Reading { again, .. } = request {
                    *request = Request::Begin { again: *again };
                }
            }
        }
        self.guards.begin_again(system);
        self.follow(system);
    }

    pub(crate) fn is_pending(&self, pod: usize) -> bool {
        self.claim.as_ref().is_some_and(|claim| claim.is_pending(uid(pod)))
    }

    fn arrive(&mut self, system: &System, i: usize) {
        self.requests[i] = Request::Over;
        let name = system.calls[i].name();
        if self.store.contains_key(name) {
            self.try_next_name(system, i);
            return;
        }
        let late = system.arrives_late && self.admitted[i].is_some_and(|age| age > PROMISED);
        let mut pod = Pod::new(uid(i));
        // From then on an entry may be dropped by looks that were made before it arrived.
        pod.irregular = late;
        if late && !self.is_pending(i) {
            system.meet(Event::Late);
        }
        self.store.insert(name, pod);
        self.guards.stored(system, i);
        let given_up = |(pod, request): (usize, &Request)| *request == Request::Lost && !self.is_pending(pod);
        if self.requests.iter().enumerate().any(given_up) {
            system.meet(Event::DroppedThenStored);
        }
    }

    /// The name is taken, as the webhook or the store says: an API server that generated it generates another one.
    pub(crate) fn try_next_name(&mut self, system: &System, i: usize) {
        system.meet(Event::NameTaken);
        if let Some(Call::NextName(_)) = system.calls.get(i + 1) {
            self.requests[i + 1] = Request::Begin { again: false };
        }
    }

    /// Creates that were not stored within the bound never are. One that fails earlier differs from those only in that it
    /// does not arrive in between, so failing needs no step of its own.
    fn tick(&mut self, system: &System) {
        for (pod, age) in self.admitted.iter_mut().enumerate() {
            let Some(age) = age else { continue };
            *age = (*age + 1).min(system.arrives_within.max(PROMISED) + 1);
            let request = &mut self.requests[pod];
            if *age > system.arrives_within && !system.arrives_late && *request != Request::Over {
                *request = Request::Lost;
            }
        }
        for chase in &mut self.chases {
            chase.tick();
        }
    }

    /// Forgets what makes no difference any more.
    fn forget(&mut self) {
        for (age, request) in self.admitted.iter_mut().zip(&self.requests) {
            age.take_if(|_| matches!(request, Request::Over | Request::Lost));
        }
    }

    /// All replicas stop and start again: what they were about to do is not done, and what they remember is lost.
    fn restart(&mut self) {
        self.restarts += 1;
        self.chases.clear();
        for (request, admitted) in self.requests.iter_mut().zip(&self.admitted) {
            match request {
                Request::Reading { .. } | Request::Beside { .. } | Request::Begin { again: true } => {
                    *request = Request::Over;
                }
                // Its write took effect, and the answer was lost.
                Request::Begin { .. } if admitted.is_some() => *request = Request::Over,
                _ => {}
            }
        }
    }

    pub(crate) fn active(&self) -> impl Iterator<Item = &Pod> {
        self.store.values().filter(|pod| pod.activity.is_active())
    }
}

/// What a read of a name in the store finds.
pub(crate) fn sighting(found: Option<&Pod>) -> Sighting {
    found.map_or(Sighting::Absent, |pod| Sighting::Present {
        uid: pod.uid.to_owned(),
        activity: pod.activity,
    })
}

impl Model for System {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        let first = |call: &Call| match call {
            Call::NextName(_) => Request::Over,
            Call::Create(_) | Call::Repeated(_) => Request::Begin { again: false },
        };
        let stranger = |name| (name, Pod::new("stranger"));
        let store: Pods = self.stranger.map(stranger).into_iter().collect();
        let mut first = World {
            list: store.clone(),
            store,
            requests: self.calls.iter().map(first).collect(),
            admitted: vec![None; self.calls.len()],
            ..World::default()
        };
        first.look_around(self);
        vec![first]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        for i in 0..world.requests.len() {
            self.request_actions(world, i, actions);
        }
        self.observer_actions(world, actions);
        for (name, pod) in &world.store {
            if pod.activity.is_active() {
                actions.push(Action::Finish(name));
            }
            actions.push(Action::Delete(name));
        }
        self.guard_actions(world, actions);
        actions.push(Action::Tick);
        if world.restarts < self.restarts {
            actions.push(Action::Restart);
        }
        if self.fault == Fault::PodsFromList {
            actions.push(Action::RefreshList);
        }
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        let mut next = world.clone();
        match action {
            Action::ReadClaim(i) => self.read_claim(&mut next, i),
            Action::ReadBeside(i, name) => System::read_beside(&mut next, i, name),
            Action::ReadPod(i, name) => self.read_pod(&mut next, i, name),
            Action::ReadList(i) => self.read_list(&mut next, i),
            Action::Write(i) => self.write(&mut next, i, Request::Allowed),
            Action::WriteAndLoseAnswer(i) => self.write(&mut next, i, Request::Begin { again: false }),
            Action::WriteAndServe(i, other) => self.write_and_serve(&mut next, i, other),
            Action::Arrive(i) => next.arrive(self, i),
            Action::Finish(name) => {
                let finish = |pod: &mut Pod| pod.activity = Activity::Succeeded;
                next.store.entry(name).and_modify(finish);
            }
            Action::Delete(name) => {
                next.store.remove(name);
            }
            Action::Tick => next.tick(self),
            Action::Restart => next.restart(),
            Action::RefreshList => next.list.clone_from(&next.store),
            Action::Notice(observer, pod) => next.notice(observer, pod),
            Action::Ask(observer, pod) => next.ask(observer, pod),
            Action::Hear(observer, pod) => next.hear(self, observer, pod),
            Action::Settle(observer, pod, end) => next.settle(self, observer, pod, end),
            Action::Bypass(name) => next.bypass(name),
            Action::Start(name) => {
                next.store.entry(name).and_modify(|pod| pod.started = true);
            }
            Action::Orphan(name) => {
                next.store.entry(name).and_modify(|pod| pod.orphan = true);
            }
            Action::Guard(step) => next.guard(self, step),
        }
        if self.observers == Observers::Any {
            next.look_everywhere(self);
        }
        if self.fault != Fault::PodsFromList {
            next.list.clear();
        }
        next.look_around(self);
        next.forget();
        (next != *world).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always("never two active", |_, world: &World| {
                world.active().filter(|pod| !pod.irregular).count() <= 1
            }),
            Property::sometimes("a pod is stored", |system: &System, world: &World| {
                world.active().any(|pod| system.pod_of(pod.uid).is_some())
            }),
        ];
        properties.extend(crate::guards::harmless());
        if self.fault == Fault::None && self.arrives_within == crate::system::PROMISED {
            properties.extend([
                Property::always("an active pod is in the claim", |system: &System, world: &World| {
                    let known = |pod: &Pod| {
                        world.claim.iter().any(|claim| {
                            claim.is_entry(pod.uid) || claim.is_condemned(pod.uid) || claim.is_spared(pod.uid)
                        })
                    };
                    world
                        .active()
                        .all(|pod| known(pod) || pod.irregular || system.pod_of(pod.uid).is_none())
                }),
                Property::always("pending pods have the holder's name", |_, world: &World| {
                    let names = world
                        .claim
                        .iter()
                        .flat_map(|claim| claim.holder.iter().chain(&claim.pending));
                    let mut names = names.map(|entry| &entry.name);
                    names.next().is_none_or(|first| names.all(|name| name == first))
                }),
            ]);
            if self.guards == Watchers::None {
                properties.extend(sometimes());
            }
            properties.extend(crate::guards::sometimes(self));
            if self.has_namesakes() {
                properties.extend(a_namesake());
            }
            if self.keeps_stale_reads {
                properties.push(Property::sometimes("a write conflicts", |system: &System, _| {
                    system.has_met(Event::Conflict)
                }));
            }
        }
        properties
    }
}

/// What must happen, or the check shows nothing.
fn sometimes() -> [Property<System>; 6] {
    [
        Property::sometimes("one is refused", |system: &System, _| system.has_met(Event::Refused)),
        Property::sometimes("one is answered again after a lost answer", |system: &System, _| {
            system.has_met(Event::AnsweredAgain)
        }),
        Property::sometimes("an arrival is confirmed", |system: &System, _| {
            system.has_met(Event::Confirmed)
        }),
        Property::sometimes(
            "one is given up, and another is stored after it",
            |system: &System, _| system.has_met(Event::DroppedThenStored),
        ),
        Property::sometimes("a finished holder is replaced", |system: &System, _| {
            system.has_met(Event::ReplacedFinished)
        }),
        Property::sometimes("one is decided on what was read for another", |system: &System, _| {
            system.has_met(Event::SharedRead)
        }),
    ]
}

/// What must happen besides where two creates have one name.
fn a_namesake() -> [Property<System>; 2] {
    [
        Property::sometimes("a namesake is taken over", |system: &System, _| {
            system.has_met(Event::TakenOver)
        }),
        Property::sometimes("a name is taken", |system: &System, _| system.has_met(Event::NameTaken)),
    ]
}
