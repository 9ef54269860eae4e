//! What is explored, and which rule of the protocol is taken out of it.

use std::sync::Mutex;
use std::time::Duration;

use deployer_guard::domain::pursuit::Window;

use crate::deeds::Plans;

/// One unit of the model's time.
pub(crate) const TICK: Duration = Duration::from_secs(1);
/// W and the settling time are one tick each, so that the design promises this much: a create that reaches the store within
/// two ticks of its admission is never met by a freed claim.
pub(crate) const WINDOW: Window = Window {
    pending: TICK,
    settle: TICK,
};
/// Ticks after its admission at which a create still arrives: the very bound that is promised, W + settle. (What an API
/// server's own bound promises is less than W; the rest is for a store that was stalled.)
pub(crate) const PROMISED: u8 = 2;

/// A rule of the protocol that is taken out, to show that the check finds the fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The protocol as it is.
    None,
    /// W is nothing: only the settling time is waited for.
    NoWindow,
    /// The second look need not be later than the first.
    NoSettling,
    /// Claims are written without their version.
    NoPrecondition,
    /// Named pods are judged by a list that may lag, instead of a GET of each.
    PodsFromList,
    /// An observer takes its clock when the answer is there, instead of when it asked.
    AgeAfterRead,
    /// A pending pod whose name is taken over is no longer listed.
    TakenOverIsForgotten,
    /// A pod that was not there when the claim's read was sent is taken for gone.
    GoneBesideIsGone,
    /// A guard deletes what it judged to be too many, without condemning it first.
    NoMark,
    /// A guard deletes by name, whichever pod has it.
    DeletesByName,
    /// A guard deletes by uid, whatever happened to the pod since it was read.
    DeletesStarted,
    /// A guard judges the claim by pods that were read before it.
    ClaimReadLast,
    /// A guard takes what it remembers when the answers are there, instead of before it asked.
    MemoryTakenLast,
    /// A guard writes the claim without its version.
    GuardNoPrecondition,
}

/// Who reconciles leftovers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Watchers {
    /// Nobody.
    None,
    /// So many guards that all lead, each with a snapshot of its own, read in steps of their own.
    Each(u8),
    /// Any number of guards that all lead. See [`super::guard`].
    Any,
}

/// Who follows pending pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Observers {
    /// So many replicas, each with its own memory and its own looks, asked and answered in steps of their own.
    Each(u8),
    /// Any number of replicas and guards, started and restarted at any time. See [`super::observer`].
    Any,
}

/// One create, or one more call about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    /// A create of a pod with this name. Each has a uid of its own.
    Create(&'static str),
    /// What the API server makes of a create with a generated name when that name, of the request before, is taken: a new
    /// name and a new uid.
    NextName(&'static str),
    /// The call of the request before, which the API server repeated while the first one goes on: the same pod. Nobody
    /// waits for its answer any more, but it may still write.
    Repeated(&'static str),
}

impl Call {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Create(name) | Self::NextName(name) | Self::Repeated(name) => name,
        }
    }
}

/// What is explored.
#[allow(clippy::struct_excessive_bools, reason = "each is a thing that happens or does not")]
pub(crate) struct System {
    pub(crate) fault: Fault,
    pub(crate) calls: Vec<Call>,
    pub(crate) observers: Observers,
    /// Times that all replicas are restarted at once.
    pub(crate) restarts: u8,
    pub(crate) guards: Watchers,
    pub(crate) plans: Plans,
    /// A guard has taken stock, so that admissions list no pods. A list only refuses more, so that this explores less and finds more; it
    /// is made where somebody is there whom no claim names.
    pub(crate) stock_taken: bool,
    /// A deployer that comes in by a bypass, at any time.
    pub(crate) bypass: Option<&'static str>,
    /// Owners go at any time.
    pub(crate) orphans: bool,
    /// Creates arrive at any time after their admission.
    pub(crate) arrives_late: bool,
    /// A deployer that was there before the policy.
    pub(crate) stranger: Option<&'static str>,
    /// Ticks after its admission at which a create still arrives.
    pub(crate) arrives_within: u8,
    /// Requests may read any pods before the claim, side by side with it.
    pub(crate) reads_beside: bool,
    /// Keeps what was gathered for a version of the claim that is gone, up to the conflict: the check of the reduction in
    /// [`super::world::World::written`].
    pub(crate) keeps_stale_reads: bool,
    /// What has happened in some run.
    pub(crate) met: Mutex<Vec<Event>>,
}

/// Something that must happen in some run, or the check shows nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Event {
    Refused,
    NameTaken,
    TakenOver,
    AnsweredAgain,
    Confirmed,
    DroppedThenStored,
    ReplacedFinished,
    SharedRead,
    Conflict,
    Late,
    GuardConfirmed,
    GuardFreed,
    GuardFreedMissing,
    Adopted,
    Spared,
    Condemned,
    CondemnedHolder,
    Forgot,
    Removed,
    DeletedByGuard,
    DeleteRefused,
}

impl System {
    pub(crate) fn of(calls: &[Call]) -> Self {
        Self {
            fault: Fault::None,
            calls: calls.to_vec(),
            observers: Observers::Any,
            restarts: 0,
            guards: Watchers::None,
            plans: Plans::default(),
            stock_taken: true,
            bypass: None,
            orphans: false,
            arrives_late: false,
            stranger: None,
            arrives_within: PROMISED,
            reads_beside: false,
            keeps_stale_reads: false,
            met: Mutex::default(),
        }
    }

    pub(crate) fn window(&self) -> Window {
        match self.fault {
            Fault::NoWindow => Window {
                pending: Duration::ZERO,
                ..WINDOW
            },
            Fault::NoSettling => Window {
                settle: Duration::ZERO,
                ..WINDOW
            },
            _ => WINDOW,
        }
    }

    /// The pod that a call is about, by the number of the call that named it.
    pub(crate) fn pod(&self, call: usize) -> usize {
        match self.calls[call] {
            Call::Repeated(_) => call - 1,
            _ => call,
        }
    }

    /// The number of the pod with this uid.
    pub(crate) fn pod_of(&self, wanted: &str) -> Option<usize> {
        (0..self.calls.len()).find(|pod| uid(*pod) == wanted)
    }

    pub(crate) fn has_namesakes(&self) -> bool {
        let again = |(i, call): (usize, &Call)| matches!(call, Call::Create(_)) && self.calls[..i].contains(call);
        self.calls.iter().enumerate().any(again)
    }

    pub(crate) fn meet(&self, event: Event) {
        let mut met = self.met.lock().expect("no check panics");
        if !met.contains(&event) {
            met.push(event);
        }
    }

    pub(crate) fn has_met(&self, event: Event) -> bool {
        self.met.lock().expect("no check panics").contains(&event)
    }
}

pub(crate) fn uid(pod: usize) -> &'static str {
    ["u0", "u1", "u2", "u3", "u4", "u5", "u6", "u7"][pod]
}
