//! How long an admitted pod that nobody can find is believed to be on its way to the store.

use std::time::Duration;

use super::sighting::{Activity, Sighting};

/// Default pending window, W. It must exceed the longest time that an API server keeps a create: the lesser of 34 s
/// (`requestTimeoutUpperBound` in k8s.io/apiserver, 34.1 s measured) and its `--request-timeout`.
pub const DEFAULT_PENDING_WINDOW: Duration = Duration::from_secs(45);
/// Longest time that a create lives in an API server whose `--request-timeout` was not lowered.
pub const CREATE_BOUND: Duration = Duration::from_secs(34);
/// Least time between the two looks that end a pursuit: a read is a quorum read, so what a stalled store still had on its
/// way when the first look was answered has landed when the second one asks.
pub const SETTLE: Duration = Duration::from_secs(10);

/// The two durations that an entry must outlive, unseen, before one observer may drop it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Window {
    /// W: an unseen pod is believed to be on its way for longer than this after the observer first saw its entry.
    pub pending: Duration,
    /// The second look begins at least this long after the first.
    pub settle: Duration,
}

impl Default for Window {
    fn default() -> Self {
        Self {
            pending: DEFAULT_PENDING_WINDOW,
            settle: SETTLE,
        }
    }
}

/// One observer's pursuit of one pending entry, on that observer's own monotonic clock.
///
/// All times are durations since an origin of the observer's choice. No clock of another machine takes part.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pursuit {
    first_seen: Duration,
    first_miss: Option<Duration>,
}

/// What a look at the pod's name means for the pursuit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pursued {
    /// The pod arrived: confirm it.
    Arrived(Activity),
    /// Not there yet. A look that can count towards dropping must begin at this time or later.
    OnItsWay {
        /// Time on the observer's clock.
        look_again: Duration,
    },
    /// Two looks, each begun more than W after the entry was first seen and the second late enough after the first, did not
    /// find the pod: the entry may be dropped, by a write conditional on the claim's version read before the last look.
    Lost,
}

impl Pursuit {
    /// Starts when this observer first saw the entry: when the read or write that showed it was answered.
    #[must_use]
    pub fn new(first_seen: Duration) -> Self {
        Self {
            first_seen,
            first_miss: None,
        }
    }

    /// When the observer first saw the entry.
    #[must_use]
    pub fn first_seen(&self) -> Duration {
        self.first_seen
    }

    /// Takes in what a GET of the pod's name found.
    ///
    /// `begun` is the time at which that GET was *sent*. Taking it later would let an old "not found" meet a newer clock, and
    /// a pod that arrived in between would be dropped.
    pub fn looked(&mut self, window: Window, begun: Duration, uid: &str, found: &Sighting) -> Pursued {
        if let Some(activity) = found.of(uid) {
            return Pursued::Arrived(activity);
        }
        let past_window = self.first_seen + window.pending;
        if begun <= past_window {
            return Pursued::OnItsWay {
                look_again: past_window + Duration::from_millis(1),
            };
        }
        match self.first_miss {
            Some(first) if begun >= first + window.settle => Pursued::Lost,
            Some(first) => Pursued::OnItsWay {
                look_again: first + window.settle,
            },
            None => {
                self.first_miss = Some(begun);
                Pursued::OnItsWay {
                    look_again: begun + window.settle,
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const W: Window = Window {
        pending: Duration::from_secs(45),
        settle: Duration::from_secs(10),
    };

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn misses(pursuit: &mut Pursuit, times: &[u64]) -> Vec<Pursued> {
        times
            .iter()
            .map(|t| pursuit.looked(W, at(*t), "u", &Sighting::Absent))
            .collect()
    }

    #[test]
    fn an_entry_is_lost_only_after_two_late_looks_far_enough_apart() {
        let mut pursuit = Pursuit::new(at(100));
        let seen = misses(&mut pursuit, &[101, 145, 146, 150, 155, 156]);
        assert!(matches!(seen[0], Pursued::OnItsWay { .. }), "{seen:?}");
        assert!(
            matches!(seen[1], Pursued::OnItsWay { .. }),
            "exactly W is not more than W: {seen:?}"
        );
        assert_eq!(seen[2], Pursued::OnItsWay { look_again: at(156) });
        assert_eq!(seen[3], Pursued::OnItsWay { look_again: at(156) });
        assert_eq!(seen[4], Pursued::OnItsWay { look_again: at(156) });
        assert_eq!(seen[5], Pursued::Lost);
    }

    #[test]
    fn one_late_look_is_not_enough_however_late() {
        assert!(matches!(
            misses(&mut Pursuit::new(at(0)), &[100_000])[0],
            Pursued::OnItsWay { .. }
        ));
    }

    #[test]
    fn a_pod_that_is_there_has_arrived_at_any_time() {
        let mut pursuit = Pursuit::new(at(0));
        let there = Sighting::Present {
            uid: "u".into(),
            activity: Activity::Failed,
        };
        assert_eq!(
            pursuit.looked(W, at(1), "u", &there),
            Pursued::Arrived(Activity::Failed)
        );
        assert_eq!(
            pursuit.looked(W, at(90), "u", &there),
            Pursued::Arrived(Activity::Failed)
        );
    }

    #[test]
    fn another_pod_under_the_name_is_no_arrival() {
        let other = Sighting::Present {
            uid: "other".into(),
            activity: Activity::Active,
        };
        assert!(matches!(
            Pursuit::new(at(0)).looked(W, at(1), "u", &other),
            Pursued::OnItsWay { .. }
        ));
    }
}
