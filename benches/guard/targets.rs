//! The targets of the guard.

use crate::bench::Results;
use crate::common::target::{Target, at_most};

/// All targets.
pub(crate) fn targets(results: &Results) -> Vec<Target> {
    let rest = results.resident_at_rest_mib.iter().copied().fold(0.0, f64::max);
    let lists = u32::try_from(results.calls_at_rest.most_lists_in_a_minute).unwrap_or(u32::MAX);
    let mut targets = vec![
        at_most(
            "MiB resident after stock was taken",
            results.memory_after_stock.resident_mib,
            60.0,
        ),
        at_most("MiB resident at rest, the most", rest, 60.0),
        at_most(
            "MiB resident after a restart",
            results.restart.memory.resident_mib,
            60.0,
        ),
        at_most("lists begun within a minute at rest, one policy", lists.into(), 1.0),
    ];
    for freed in &results.freed {
        let what = format!("ms from a holder's end to a free claim at p50: {}", freed.end);
        targets.push(at_most(what, freed.summary.p50_ms, 100.0));
    }
    targets
}
