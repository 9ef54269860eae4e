//! The `deployer-guard` program: parse, run, exit code.

use std::process::ExitCode;

use clap::Parser;
use deployer_guard::cli::Cli;

fn main() -> ExitCode {
    Cli::parse().run()
}
