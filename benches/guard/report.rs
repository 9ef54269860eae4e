//! The table for people and the file for machines.

use serde::Serialize;

use crate::bench::Results;
use crate::common::desk;
use crate::common::target::{self, Target};
use crate::targets::targets;

#[derive(Serialize)]
struct Document<'a> {
    #[serde(flatten)]
    results: &'a Results,
    targets: &'a [Target],
}

/// Prints the table, and writes `target/bench-guard.json`.
pub(crate) fn report(results: &Results) -> anyhow::Result<()> {
    let targets = targets(results);
    let parameters = results.parameters;
    results.machine.print();
    println!(
        "{} claims, {} pods, {} namespaces; at rest {} deployers are active",
        parameters.claims,
        parameters.pods,
        parameters.namespaces,
        parameters.active - 2 * parameters.samples
    );
    beginning(results);
    ends(results);
    rest(results);
    target::print(&targets);
    let document = Document {
        results,
        targets: &targets,
    };
    desk::write_json("bench-guard.json", &document, results.seconds)
}

fn beginning(results: &Results) {
    let (after, restart) = (results.memory_after_stock, &results.restart);
    println!("\n== stock");
    println!(
        "  first start: every deployer adopted after {:.1} s, stock taken after {:.1} s; {:.1} MiB resident, peak {:.1}",
        results.adopted_s, results.stock_taken_s, after.resident_mib, after.peak_mib
    );
    println!(
        "  restart: leads after {:.1} s, every key examined after {:.1} s ({:.0} examinations); {:.1} MiB resident, peak {:.1}",
        restart.leads_s, restart.stock_s, restart.examinations, restart.memory.resident_mib, restart.memory.peak_mib
    );
}

fn ends(results: &Results) {
    println!("\n== from a holder's end to a free claim");
    println!(
        "  {:<20}{:>8}{:>8}{:>8}{:>8}{:>8}",
        "", "p50 ms", "p95 ms", "p99 ms", "max ms", "samples"
    );
    for freed in &results.freed {
        let summary = freed.summary;
        println!(
            "  {:<20}{:>8.1}{:>8.1}{:>8.1}{:>8.1}{:>8}",
            freed.end, summary.p50_ms, summary.p95_ms, summary.p99_ms, freed.most_ms, summary.samples
        );
    }
    println!(
        "  {} holders that ended at once: all free after {:.1} s",
        results.ended_at_once, results.freed_at_once_s
    );
}

fn rest(results: &Results) {
    let calls = &results.calls_at_rest;
    println!("\n== at rest, {} s", results.parameters.rest_seconds);
    let resident = &results.resident_at_rest_mib;
    println!(
        "  resident {:.1} to {:.1} MiB, peak of the process {:.1}",
        resident.iter().copied().fold(f64::INFINITY, f64::min),
        resident.iter().copied().fold(0.0, f64::max),
        results.memory_at_rest.peak_mib
    );
    println!("  calls a minute: {:.1}", calls.per_minute.values().sum::<f64>());
    for (call, count) in &calls.per_minute {
        println!("  {count:>10.1}  {call}");
    }
    println!(
        "  lists of pods and claims begun: {}, at most {} within a minute",
        calls.lists, calls.most_lists_in_a_minute
    );
}
