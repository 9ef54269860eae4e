//! What is measured. Each scene gives rows: one for each side, over blocks that took turns.

mod admitted;
mod race;
mod refused;
mod round_trips;
mod unmatched;

use serde::Serialize;

pub(crate) use admitted::{Keys, admitted};
pub(crate) use race::{Race, race};
pub(crate) use refused::refused;
pub(crate) use round_trips::round_trips;
pub(crate) use unmatched::unmatched;

use crate::common::samples::{Samples, Summary};
use crate::side::Side;

/// One side in one scene.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) condition: &'static str,
    pub(crate) scene: String,
    pub(crate) side: &'static str,
    #[serde(flatten)]
    pub(crate) summary: Summary,
    /// The p50 as a multiple of that of the scene's first side.
    pub(crate) p50_to_first: f64,
    /// The same, of that of a webhook that always allows, where it takes part.
    pub(crate) p50_to_allow: Option<f64>,
    /// Answers a second as a multiple of those of the scene's first side.
    pub(crate) rate_to_first: f64,
    /// Of deployer-guard: how long a decision took by its own log, at the median, in milliseconds.
    pub(crate) decision_p50_ms: Option<f64>,
    /// Of deployer-guard: the requests that it sent for each create, those after the answer among them.
    pub(crate) requests: Option<crate::own::Counts>,
}

/// A scene's rows.
fn rows(condition: &'static str, scene: &str, sides: &[(&'static str, Samples)]) -> Vec<Row> {
    let summaries: Vec<_> = sides.iter().map(|(side, samples)| (*side, samples.summary())).collect();
    let Some((_, first)) = summaries.first().copied() else {
        return Vec::new();
    };
    let allow = summaries.iter().find(|(side, _)| *side == Side::Allow.name());
    let allow = allow.map(|(_, summary)| summary.p50_ms);
    let row = |&(side, summary): &(&'static str, Summary)| Row {
        condition,
        scene: scene.to_owned(),
        side,
        summary,
        p50_to_first: summary.p50_ms / first.p50_ms,
        p50_to_allow: allow.map(|allow| summary.p50_ms / allow),
        rate_to_first: summary.per_second / first.per_second,
        decision_p50_ms: None,
        requests: None,
    };
    summaries.iter().map(row).collect()
}
