//! The command line: what `main` parses and runs.
//!
//! Every flag has an environment twin, `DEPLOYER_GUARD_` and its name.

#![allow(
    clippy::doc_markdown,
    reason = "doc comments are what `--help` shows, where backticks are noise"
)]

mod crds;
mod kubernetes;
mod webhook;
mod webhook_config;

use clap::{Parser, Subcommand};

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
    /// Print the ValidatingWebhookConfiguration that policies call for
    WebhookConfig(webhook_config::WebhookConfigArgs),
    /// Print the CustomResourceDefinitions
    Crds,
}

impl Cli {
    /// Runs the command to its end.
    ///
    /// # Errors
    /// If the command cannot be carried out, with what to change.
    pub fn run(self) -> anyhow::Result<()> {
        match self.command {
            Command::Webhook(args) => webhook::run(*args),
            Command::WebhookConfig(args) => webhook_config::run(&args),
            Command::Crds => crds::run(),
        }
    }
}
