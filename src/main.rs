//! The `deployer-guard` program: parse, run, exit code.

use std::process::ExitCode;

use clap::Parser;
use deployer_guard::cli::Cli;

fn main() -> ExitCode {
    match Cli::parse().run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("deployer-guard: {error:#}");
            ExitCode::FAILURE
        }
    }
}
