//! What an admission costs, on a real control plane: `make bench`.
//!
//! Everything is measured in one run against one API server, in short blocks that take turns, so that what drifts hits
//! all alike. A table for people goes to standard output, JSON to `target/bench.json`.

#[path = "../common/mod.rs"]
mod common;

mod bench;
mod comparison;
mod crowd;
mod ground;
mod own;
mod process;
mod report;
mod scenes;
mod side;
mod targets;

use std::process::ExitCode;

use anyhow::Context;

fn main() -> ExitCode {
    // cargo passes --bench.
    let arguments: Vec<String> = std::env::args().filter(|argument| argument != "--bench").collect();
    let ended = if arguments.get(1).is_some_and(|first| first == comparison::ARGUMENT) {
        comparison::serve(&arguments[1..])
    } else {
        run()
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {}", deployer_guard::cli::explain(&error));
            ExitCode::FAILURE
        }
    }
}

#[tokio::main]
async fn run() -> anyhow::Result<()> {
    tokio::select! {
        measured = bench::run() => measured,
        interrupted = tokio::signal::ctrl_c() => interrupted.context("interrupted"),
    }
}
