//! What the project promised itself, beside what was measured.

use crate::bench::{EMPTY, Results};
use crate::common::samples::Samples;
use crate::common::target::{Target, at_most};
use crate::scenes::Row;
use crate::side::Side;

/// All targets.
pub(crate) fn targets(results: &Results) -> Vec<Target> {
    let ours = |row: &&Row| row.side == Side::Ours.name();
    let mut targets = Vec::new();
    let lasting = |row: &&Row| ours(row) && !row.scene.contains("stock not taken");
    for row in results.rows.iter().filter(lasting) {
        let what = format!("{}: {}", row.condition, row.scene);
        if let Some(ratio) = row.p50_to_allow {
            targets.push(at_most(format!("{what}: p50 to always-allow"), ratio, 2.0));
        } else {
            targets.push(Target {
                what: format!("{what}: refusals a second to always-deny"),
                wanted: "at least 0.8".to_owned(),
                measured: row.rate_to_first,
                met: row.rate_to_first >= 0.8,
            });
        }
    }
    for row in results.rows.iter().filter(lasting).filter(|row| row.condition != EMPTY) {
        let empty = results.rows.iter().filter(ours);
        if let Some(empty) = empty
            .into_iter()
            .find(|empty| empty.condition == EMPTY && empty.scene == row.scene)
        {
            let what = format!("{}: {}: p50 to that in an empty namespace", row.condition, row.scene);
            targets.push(at_most(what, row.summary.p50_ms / empty.summary.p50_ms, 1.25));
        }
    }
    for row in results.rows.iter().filter(|row| row.side.starts_with("unmatched")) {
        let what = format!("{}: {}: p50 to no configuration", row.scene, row.side);
        targets.push(at_most(what, row.p50_to_first, 1.05));
    }
    for race in results.races.iter().filter(|race| race.side == Side::Ours.name()) {
        let what = format!("rounds of {} with more than one admitted", race.rounds);
        targets.push(at_most(what, race.rounds_with_more_than_one.into(), 0.0));
    }
    let idle = results.starts.iter().map(|start| start.idle.resident_mib);
    targets.push(at_most(
        "MiB resident when idle, the most of all starts",
        idle.fold(0.0, f64::max),
        20.0,
    ));
    targets.push(at_most("ms from start to ready, at the median", start(results), 500.0));
    targets
}

/// Milliseconds from start to ready, at the median.
pub(crate) fn start(results: &Results) -> f64 {
    let mut took = Samples::default();
    for start in &results.starts {
        took.push(std::time::Duration::from_secs_f64(start.ready_ms / 1e3));
    }
    took.summary().p50_ms
}
