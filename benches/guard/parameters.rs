//! How much there is to look after.

use std::time::Duration;

use anyhow::ensure;
use serde::Serialize;

use crate::common::desk::from_environment;

/// What can be chosen.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Parameters {
    /// Configs, each with a deployer and a claim: `BENCH_GUARD_CLAIMS`.
    pub(crate) claims: usize,
    /// Pods in all, the deployers among them: `BENCH_GUARD_PODS`.
    pub(crate) pods: usize,
    /// Namespaces that they are spread over: `BENCH_GUARD_NAMESPACES`.
    pub(crate) namespaces: usize,
    /// Deployers that still work when the guard is at rest; the others have finished: `BENCH_GUARD_ACTIVE`.
    pub(crate) active: usize,
    /// Holders that are ended one at a time, for each way to end: `BENCH_GUARD_SAMPLES`.
    pub(crate) samples: usize,
    /// Seconds over which calls at rest are counted: `BENCH_GUARD_REST`.
    pub(crate) rest_seconds: usize,
}

impl Parameters {
    pub(crate) fn from_environment() -> anyhow::Result<Self> {
        let parameters = Self {
            claims: from_environment("BENCH_GUARD_CLAIMS", 5000)?,
            pods: from_environment("BENCH_GUARD_PODS", 20_000)?,
            namespaces: from_environment("BENCH_GUARD_NAMESPACES", 500)?,
            active: from_environment("BENCH_GUARD_ACTIVE", 1000)?,
            samples: from_environment("BENCH_GUARD_SAMPLES", 150)?,
            rest_seconds: from_environment("BENCH_GUARD_REST", 300)?,
        };
        ensure!(
            (1..=parameters.pods).contains(&parameters.claims) && parameters.namespaces > 0,
            "BENCH_GUARD_CLAIMS and BENCH_GUARD_NAMESPACES: at least 1, and no more claims than BENCH_GUARD_PODS"
        );
        ensure!(
            parameters.samples * 2 <= parameters.active && parameters.active <= parameters.claims,
            "BENCH_GUARD_ACTIVE: at least twice BENCH_GUARD_SAMPLES, and no more than BENCH_GUARD_CLAIMS"
        );
        ensure!(parameters.rest_seconds >= 60, "BENCH_GUARD_REST: at least 60 seconds");
        Ok(parameters)
    }

    pub(crate) fn rest(&self) -> Duration {
        Duration::from_secs(u64::try_from(self.rest_seconds).unwrap_or(u64::MAX))
    }
}
