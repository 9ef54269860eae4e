//! Latencies and what is said of them.

use std::time::Duration;

use serde::Serialize;

/// Latencies of one side in one scene, and the time in which they were taken.
#[derive(Clone, Debug, Default)]
pub(crate) struct Samples {
    took: Vec<Duration>,
    spent: Duration,
}

/// Percentiles in milliseconds, and answers a second.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Summary {
    pub(crate) samples: usize,
    pub(crate) p50_ms: f64,
    pub(crate) p95_ms: f64,
    pub(crate) p99_ms: f64,
    pub(crate) per_second: f64,
}

impl Samples {
    pub(crate) fn push(&mut self, took: Duration) {
        self.took.push(took);
    }

    /// Wall time in which samples were taken.
    pub(crate) fn spend(&mut self, time: Duration) {
        self.spent += time;
    }

    pub(crate) fn extend(&mut self, more: Vec<Duration>) {
        self.took.extend(more);
    }

    pub(crate) fn summary(&self) -> Summary {
        let mut sorted = self.took.clone();
        sorted.sort_unstable();
        let percentile = |percent: usize| {
            let rank = (sorted.len() * percent).div_ceil(100).max(1);
            sorted.get(rank - 1).map_or(0.0, |took| took.as_secs_f64() * 1e3)
        };
        Summary {
            samples: sorted.len(),
            p50_ms: percentile(50),
            p95_ms: percentile(95),
            p99_ms: percentile(99),
            per_second: number(sorted.len()) / self.spent.as_secs_f64().max(f64::EPSILON),
        }
    }
}

/// A count as a number to divide.
pub(crate) fn number(count: usize) -> f64 {
    u32::try_from(count).map_or(f64::INFINITY, f64::from)
}
