//! Who follows pending pods to their end: confirmed, or dropped.
//!
//! With [`Observers::Each`], every look of every observer is two steps: it asks, and later the store answers.
//!
//! With [`Observers::Any`] there are as many observers as can be: each entry is followed from the moment it is written, some
//! observer looks at every moment, and what it found is settled now, later or never. Whatever observers really do (several of
//! them, restarted, late to notice, slow to ask or to write) is among that, because
//! - an entry that is noticed later may only be dropped later;
//! - a look whose question waited on its way found what one that was asked later finds, and its age is the lower one;
//! - what an observer is about to write is worth something only until somebody else writes the claim.

use std::collections::BTreeSet;
use std::time::Duration;

use deployer_guard::domain::pursuit::{Pursued, Pursuit};
use deployer_guard::domain::sighting::{Activity, Sighting};
use jiff::Timestamp;

use crate::request::Request;
use crate::system::{Event, Fault, Observers, System, TICK, uid};
use crate::world::{Action, World, sighting};

/// Beyond this many ticks, how long ago an entry was first seen makes no difference: a look that was asked a tick ago is then
/// later than W in any case.
const OLD: u8 = 3;
/// Beyond this many ticks, how long ago the first look was makes no difference: a second one that was asked a tick ago is then
/// late enough in any case.
const SETTLED: u8 = 2;
/// A question that is not answered by then is given up, and asked again.
const ANSWERED_WITHIN: u8 = 1;

/// One observer's pursuit of one pending pod. Ages are in ticks.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Chase {
    observer: u8,
    pod: usize,
    first_seen: u8,
    first_miss: Option<u8>,
    asked: Option<u8>,
    /// An answer "not found" is on its way; kept only where a fault gives it a later age.
    missed: bool,
    /// What the observer may write, conditional on the claim as it is.
    ends: BTreeSet<End>,
}

/// What an observer writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum End {
    ConfirmActive,
    ConfirmFinished,
    Drop,
}

impl Chase {
    fn new(observer: u8, pod: usize) -> Self {
        Self {
            observer,
            pod,
            first_seen: 0,
            first_miss: None,
            asked: None,
            missed: false,
            ends: BTreeSet::new(),
        }
    }

    pub(crate) fn tick(&mut self) {
        self.first_seen = OLD.min(self.first_seen + 1);
        self.first_miss = self.first_miss.map(|age| SETTLED.min(age + 1));
        self.asked = self.asked.map(|age| age + 1).filter(|age| *age <= ANSWERED_WITHIN);
    }

    /// The project's own pursuit, as far as it has come. The present is at `OLD` ticks on its clock.
    fn pursuit(&self, system: &System) -> Pursuit {
        let mut pursuit = Pursuit::new(ago(self.first_seen));
        if let Some(miss) = self.first_miss {
            pursuit.looked(system.window(), ago(miss), uid(self.pod), &Sighting::Absent);
        }
        pursuit
    }

    /// One observer's look, asked some ticks ago and answered now.
    fn looked(&mut self, system: &System, asked: u8, found: &Sighting) {
        let mut pursuit = self.pursuit(system);
        let before = pursuit.clone();
        let pursued = pursuit.looked(system.window(), ago(asked), uid(self.pod), found);
        if pursuit != before {
            self.first_miss = Some(asked);
            // Later looks are past W too.
            self.first_seen = OLD;
        }
        self.ends = end(&pursued).into_iter().collect();
    }

    /// What the best placed of any number of observers makes of the pod as it is now: one that looked at every moment and
    /// did not find it before.
    fn looked_always(&mut self, system: &System, found: &Sighting) {
        let mut pursuit = Pursuit::new(ago(self.first_seen));
        for age in (0..=self.first_seen).rev() {
            pursuit.looked(system.window(), ago(age), uid(self.pod), &Sighting::Absent);
        }
        let mut look = |found: &Sighting| end(&pursuit.looked(system.window(), ago(0), uid(self.pod), found));
        self.ends.extend(look(found));
        if system.fault == Fault::AgeAfterRead {
            self.missed |= found.of(uid(self.pod)).is_none();
            self.ends.extend(self.missed.then(|| look(&Sighting::Absent)).flatten());
        }
    }
}

fn ago(ticks: u8) -> Duration {
    TICK * u32::from(OLD - ticks)
}

fn end(pursued: &Pursued) -> Option<End> {
    match pursued {
        Pursued::OnItsWay { .. } => None,
        Pursued::Arrived(Activity::Active) => Some(End::ConfirmActive),
        Pursued::Arrived(Activity::Succeeded | Activity::Failed) => Some(End::ConfirmFinished),
        Pursued::Lost => Some(End::Drop),
    }
}

impl System {
    pub(crate) fn observer_actions(&self, world: &World, actions: &mut Vec<Action>) {
        if let Observers::Each(observers) = self.observers {
            let pending = (0..self.calls.len()).filter(|pod| world.is_pending(*pod));
            for (pod, observer) in pending.flat_map(|pod| (0..observers).map(move |observer| (pod, observer))) {
                match world.chase(observer, pod) {
                    None => actions.push(Action::Notice(observer, pod)),
                    Some(chase) if chase.asked.is_some() => actions.push(Action::Hear(observer, pod)),
                    Some(chase) if chase.ends.is_empty() => actions.push(Action::Ask(observer, pod)),
                    // About to write.
                    Some(_) => {}
                }
            }
        }
        for chase in &world.chases {
            let ends = chase.ends.iter();
            actions.extend(ends.map(|end| Action::Settle(chase.observer, chase.pod, *end)));
        }
    }
}

impl World {
    fn chase(&self, observer: u8, pod: usize) -> Option<&Chase> {
        self.chases
            .iter()
            .find(|chase| (chase.observer, chase.pod) == (observer, pod))
    }

    fn chase_mut(&mut self, observer: u8, pod: usize) -> Option<&mut Chase> {
        self.chases
            .iter_mut()
            .find(|chase| (chase.observer, chase.pod) == (observer, pod))
    }

    /// The claim was written: entries that were settled are no longer followed; the others go on, and what was to be written about
    /// them would meet a conflict.
    pub(crate) fn follow(&mut self, system: &System) {
        let mut chases = std::mem::take(&mut self.chases);
        chases.retain(|chase| self.is_pending(chase.pod));
        for chase in &mut chases {
            chase.ends.clear();
            chase.missed = false;
        }
        self.chases = chases;
        if system.observers == Observers::Any {
            for pod in 0..system.calls.len() {
                if self.is_pending(pod) && self.chase(0, pod).is_none() {
                    self.notice(0, pod);
                    self.remember_an_older_entry(pod);
                }
            }
        }
    }

    pub(crate) fn notice(&mut self, observer: u8, pod: usize) {
        if self.chase(observer, pod).is_none() {
            self.chases.push(Chase::new(observer, pod));
            self.chases.sort_unstable_by_key(|chase| (chase.observer, chase.pod));
        }
    }

    /// A repeated call may write an entry anew that was settled before; some observer still has the age of the first one.
    fn remember_an_older_entry(&mut self, pod: usize) {
        if matches!(self.requests[pod], Request::Lost | Request::Over)
            && let Some(chase) = self.chase_mut(0, pod)
        {
            chase.first_seen = OLD;
        }
    }

    pub(crate) fn ask(&mut self, observer: u8, pod: usize) {
        if let Some(chase) = self.chase_mut(observer, pod) {
            chase.asked = Some(0);
        }
    }

    pub(crate) fn hear(&mut self, system: &System, observer: u8, pod: usize) {
        let found = sighting(self.store.get(system.calls[pod].name()));
        if let Some(chase) = self.chase_mut(observer, pod)
            && let Some(asked) = chase.asked.take()
        {
            chase.looked(system, asked, &found);
        }
    }

    pub(crate) fn look_everywhere(&mut self, system: &System) {
        let mut chases = std::mem::take(&mut self.chases);
        for chase in &mut chases {
            chase.looked_always(system, &sighting(self.store.get(system.calls[chase.pod].name())));
        }
        self.chases = chases;
    }

    pub(crate) fn settle(&mut self, system: &System, observer: u8, pod: usize, end: End) {
        let Some(claim) = self.claim.clone() else { return };
        let (uid, now) = (uid(pod), Timestamp::UNIX_EPOCH);
        let next = match end {
            End::ConfirmActive => claim.confirmed(uid, Activity::Active, now),
            End::ConfirmFinished => claim.confirmed(uid, Activity::Succeeded, now),
            End::Drop => claim.dropped(uid),
        };
        match next {
            Some(next) => {
                if end != End::Drop {
                    system.meet(Event::Confirmed);
                }
                self.written(system, next);
            }
            // Nothing to write: looked for again.
            None => {
                if let Some(chase) = self.chase_mut(observer, pod) {
                    chase.ends.remove(&end);
                }
            }
        }
    }
}
