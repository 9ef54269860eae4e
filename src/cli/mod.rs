//! The command line: what `main` parses and runs.
//!
//! Every flag has an environment twin, `DEPLOYER_GUARD_` and its name (but the `--namespace` of `check` and `probe`, which is that of pods:
//! `DEPLOYER_GUARD_POD_NAMESPACE`).

#![allow(
    clippy::doc_markdown,
    reason = "doc comments are what `--help` shows, where backticks are noise"
)]

mod backend;
mod certificates;
mod check;
mod crds;
mod guard;
mod kubernetes;
mod manifests;
mod probe;
mod supervise;
mod webhook;
mod webhook_config;
mod window;

use std::process::ExitCode;

use anyhow::Context;
use clap::{Parser, Subcommand};
use tokio::runtime::Builder;

/// Keeps two deployers from ever working on one application at once.
#[derive(Debug, Parser)]
#[command(name = "deployer-guard", version, about, propagate_version = true)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve the validating admission webhook
    Webhook(Box<webhook::WebhookArgs>),
    /// Put policies in force, see to leftovers, and report on both; of several, one leads
    Guard(Box<guard::GuardArgs>),
    /// Print the ValidatingWebhookConfiguration that policies call for
    WebhookConfig(webhook_config::WebhookConfigArgs),
    /// Say what would be decided on pods, and why, without a cluster
    Check(check::CheckArgs),
    /// Print the CustomResourceDefinitions, or bring those of a cluster up to date
    Crds(crds::CrdsArgs),
    /// Try whether a policy is in force, by dry runs that change nothing
    Probe(probe::ProbeArgs),
}

/// Runs a server to its end. What is still under way when its grace period is over does not hold the process.
fn serve_to_the_end(serving: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    serve_on(&mut Builder::new_multi_thread(), serving)
}

/// The same for one whose tasks mostly wait: they take turns on one thread. Each thread has a heap of its own, which grows in a burst of
/// work and is hardly given back; two of them cost half as much memory again.
fn serve_on_one_thread(serving: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    serve_on(Builder::new_multi_thread().worker_threads(1), serving)
}

fn serve_on(builder: &mut Builder, serving: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    let runtime = builder.enable_all().build().context("the runtime cannot be started")?;
    let ended = runtime.block_on(serving);
    runtime.shutdown_background();
    ended
}

impl Cli {
    /// Runs the command to its end. What cannot be carried out is said on standard error, with what to change.
    #[must_use]
    pub fn run(self) -> ExitCode {
        let (ended, failure) = match self.command {
            Command::Webhook(args) => (webhook::run(*args).map(done), ExitCode::FAILURE),
            Command::Guard(args) => (guard::run(*args), ExitCode::FAILURE),
            Command::WebhookConfig(args) => (webhook_config::run(&args).map(done), ExitCode::FAILURE),
            Command::Check(args) => (check::run(&args), ExitCode::from(check::BAD_INPUT)),
            Command::Crds(args) => (crds::run(&args).map(done), ExitCode::FAILURE),
            Command::Probe(args) => (probe::run(&args).map(done), ExitCode::FAILURE),
        };
        ended.unwrap_or_else(|error| {
            eprintln!("deployer-guard: {}", explain(&error));
            failure
        })
    }
}

fn done((): ()) -> ExitCode {
    ExitCode::SUCCESS
}

/// An error with its causes, each said once: many errors name their cause in their own text and give it as their source
/// too.
#[must_use]
pub fn explain(error: &anyhow::Error) -> String {
    let mut texts = error.chain().map(ToString::to_string);
    let mut explained = texts.next().unwrap_or_default();
    for text in texts {
        if !explained.contains(&text) {
            explained.push_str(": ");
            explained.push_str(&text);
        }
    }
    explained
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::logs::LogArgs;
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_cause_that_the_text_names_already_is_not_said_again() {
        let outer = anyhow::anyhow!("no such file").context("a.yaml cannot be read");
        assert_eq!(explain(&outer), "a.yaml cannot be read: no such file");
        let args = LogArgs {
            log_level: "=".into(),
            log_format: crate::telemetry::logs::LogFormat::Json,
        };
        let own = anyhow::Error::from(args.init().unwrap_err());
        assert_ne!(format!("{own:#}"), own.to_string(), "its cause is its source too");
        assert_eq!(explain(&own), own.to_string());
    }
}
