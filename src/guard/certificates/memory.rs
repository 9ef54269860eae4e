//! What the room remembers from round to round: what to put back, and when not to write.

use std::time::Duration;

use k8s_openapi::api::core::v1::Secret;
use tokio::time::Instant;

use super::INTERVAL;
use super::watch::TrustWatch;

/// A wall clock that ran otherwise than time by more than this, in seconds, was set, or this machine was suspended.
const JUMP: i64 = 60;
/// For how long nothing is written after that: a clock that was set wrong may be set right.
const JUMPED: Duration = Duration::from_mins(5);
/// The longest pause between writes that fail.
const LONGEST_PAUSE: Duration = Duration::from_mins(2);

/// How long the guard that leads has to put back what the Secret held, before another makes it anew.
const LEFT_BARE: Duration = Duration::from_secs(10);

/// What is remembered from round to round. All of it is economy but for the good content, which is put back if it is lost.
pub(super) struct Memory {
    pub(super) good: Option<Secret>,
    pub(super) trust: TrustWatch,
    pub(super) missing: u32,
    pub(super) told: String,
    /// Since when the Secret is known to hold no certificate.
    bare: Option<Instant>,
    clock: Option<(i64, Instant)>,
    /// When the clock was last seen to jump.
    jumped: Option<Instant>,
    /// The pause after the last write that failed, and when it ends.
    pause: Option<(Duration, Instant)>,
}

impl Memory {
    /// Nothing was seen yet.
    pub(super) fn new(delay: Duration) -> Self {
        Self {
            good: None,
            trust: TrustWatch::new(delay),
            missing: 0,
            told: String::new(),
            bare: None,
            clock: None,
            jumped: None,
            pause: None,
        }
    }

    /// Whether the Secret has been bare for so long that nobody else sees to it.
    pub(super) fn is_left_bare(&mut self, is_bare: bool, at: Instant) -> bool {
        if !is_bare {
            self.bare = None;
            return false;
        }
        let since = *self.bare.get_or_insert(at);
        at.saturating_duration_since(since) >= LEFT_BARE
    }

    /// Whether the wall clock has run like time since it was last asked, and for some minutes.
    pub(super) fn trusts_clock(&mut self, now: i64, at: Instant) -> bool {
        if let Some((before, then)) = self.clock.replace((now, at)) {
            let passed = i64::try_from(at.saturating_duration_since(then).as_secs()).unwrap_or(i64::MAX);
            if (now - before - passed).abs() > JUMP {
                self.jumped = Some(at);
            }
        }
        self.jumped.is_none_or(|jumped| jumped + JUMPED <= at)
    }

    /// A write succeeded.
    pub(super) fn wrote(&mut self) {
        self.told.clear();
        self.pause = None;
    }

    /// Nothing is written for a while, ever longer.
    pub(super) fn failed(&mut self, at: Instant) {
        let pause = self.pause.map_or(INTERVAL, |(pause, _)| (pause * 2).min(LONGEST_PAUSE));
        self.pause = Some((pause, at + pause));
    }

    /// Whether nothing is written just now, because writes failed.
    pub(super) fn pauses(&self, at: Instant) -> bool {
        self.pause.is_some_and(|(_, until)| at < until)
    }
}
