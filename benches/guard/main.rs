//! What a guard costs where there is much to look after, on a real control plane: `make bench`.
//!
//! One guard as a process of its own, with the rights of `deploy/rbac.yaml`, under the policy for `OpenShift` as it is shipped.
//! Its claims are made by its own adoption of deployers that were there before it. A table for people goes to standard output,
//! JSON to `target/bench-guard.json`.

#[path = "../common/mod.rs"]
mod common;

mod bench;
mod calls;
mod ends;
mod parameters;
mod report;
mod site;
mod targets;
mod witness;

use std::process::ExitCode;

use anyhow::Context;

fn main() -> ExitCode {
    match run() {
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
