//! The table for people and the file for machines.

use serde::Serialize;

use crate::bench::Results;
use crate::common::desk;
use crate::common::target::{self, Target};
use crate::own::Counts;
use crate::scenes::Row;
use crate::targets::targets;

#[derive(Serialize)]
struct Document<'a> {
    #[serde(flatten)]
    results: &'a Results,
    targets: &'a [Target],
}

/// Prints the table, and writes `target/bench.json`.
pub(crate) fn report(results: &Results) -> anyhow::Result<()> {
    let targets = targets(results);
    results.machine.print();
    let mut begun = ("", "");
    for row in &results.rows {
        if begun.0 != row.condition {
            println!("\n== {}", described(results, row.condition));
        }
        if begun != (row.condition, row.scene.as_str()) {
            heading(row);
        }
        begun = (row.condition, &row.scene);
        line(row);
    }
    others(results);
    target::print(&targets);
    let document = Document {
        results,
        targets: &targets,
    };
    desk::write_json("bench.json", &document, results.seconds)
}

fn described(results: &Results, condition: &str) -> String {
    let parameters = results.parameters;
    match condition {
        crate::bench::EMPTY => condition.to_owned(),
        crate::bench::FULL => format!(
            "{condition}: {} pods, {} of them active deployers",
            parameters.pods, parameters.deployers
        ),
        _ => format!("{condition}: {:.0} a second", results.writes_per_second),
    }
}

fn heading(row: &Row) {
    println!("\n{}", row.scene);
    println!(
        "  {:<20}{:>8}{:>8}{:>8}{:>10}{:>12}{:>12}{:>10}",
        "", "p50 ms", "p95 ms", "p99 ms", "a second", "p50 x first", "p50 x allow", "rate"
    );
}

fn line(row: &Row) {
    let summary = row.summary;
    let allow = row.p50_to_allow.map_or_else(String::new, |ratio| format!("{ratio:.2}"));
    println!(
        "  {:<20}{:>8.1}{:>8.1}{:>8.1}{:>10.0}{:>12.2}{allow:>12}{:>10.2}",
        row.side,
        summary.p50_ms,
        summary.p95_ms,
        summary.p99_ms,
        summary.per_second,
        row.p50_to_first,
        row.rate_to_first
    );
    if let (Some(decision), Some(requests)) = (row.decision_p50_ms, &row.requests) {
        println!(
            "    its decision {decision:.1} ms at p50; its requests for each create: {}",
            listed(requests)
        );
    }
}

fn listed(requests: &Counts) -> String {
    let requests: Vec<String> = requests
        .iter()
        .filter(|(_, count)| **count >= 0.005)
        .map(|(name, count)| format!("{count:.2} {name}"))
        .collect();
    if requests.is_empty() {
        "none".to_owned()
    } else {
        requests.join(", ")
    }
}

fn others(results: &Results) {
    println!("\n== 16 creates at once on one free key");
    for race in &results.races {
        println!(
            "  {:<20}more than one admitted in {} of {} rounds, up to {}; none in {}",
            race.side, race.rounds_with_more_than_one, race.rounds, race.most, race.rounds_with_none
        );
    }
    println!("\n== the process");
    let mut ready: Vec<f64> = results.starts.iter().map(|start| start.ready_ms).collect();
    ready.sort_by(f64::total_cmp);
    let ready: Vec<String> = ready.iter().map(|ms| format!("{ms:.0}")).collect();
    println!("  start to ready, ms: {}", ready.join(" "));
    let mut idle: Vec<f64> = results.starts.iter().map(|start| start.idle.resident_mib).collect();
    idle.sort_by(f64::total_cmp);
    let idle: Vec<String> = idle.iter().map(|mib| format!("{mib:.1}")).collect();
    println!("  resident when idle, MiB: {}", idle.join(" "));
    println!(
        "  resident after the run, MiB: {:.1}, peak {:.1} (the comparison webhooks: {:.1}, peak {:.1})",
        results.memory_after.resident_mib,
        results.memory_after.peak_mib,
        results.comparison_memory_after.resident_mib,
        results.comparison_memory_after.peak_mib
    );
}
