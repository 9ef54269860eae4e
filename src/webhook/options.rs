//! The options of the webhook's server.

use std::net::SocketAddr;
use std::time::Duration;

use crate::flags::{address, bytes, written};
use crate::webhook::timeout::parse_go_duration;

/// Where and within which bounds the webhook serves, on the command line.
#[derive(Clone, Debug, clap::Args)]
pub struct ServerOptions {
    /// An address to serve admission calls on, with TLS; may be repeated
    #[arg(
        long = "listen",
        env = "DEPLOYER_GUARD_LISTEN",
        value_name = "ADDRESS",
        value_delimiter = ',',
        default_value = "0.0.0.0:8443",
        value_parser = address
    )]
    pub listen: Vec<SocketAddr>,
    /// Threads that read requests and write answers
    #[arg(long, env = "DEPLOYER_GUARD_WORKERS", value_name = "COUNT", default_value = "2",
          value_parser = clap::value_parser!(u16).range(1..=512))]
    pub workers: u16,
    /// The largest body that is read; a larger one is answered with 413
    #[arg(long, env = "DEPLOYER_GUARD_MAX_BODY_BYTES", value_name = "BYTES", default_value = "8388608",
          value_parser = bytes)]
    pub max_body_bytes: u32,
    /// How much memory all bodies together may take; beyond it calls are answered with 503 at once
    #[arg(long, env = "DEPLOYER_GUARD_MAX_BODIES_BYTES", value_name = "BYTES", default_value = "67108864",
          value_parser = bytes)]
    pub max_bodies_bytes: u32,
    /// How many calls are decided at a time; beyond it calls are answered as undecided at once
    #[arg(long, env = "DEPLOYER_GUARD_MAX_CALLS", value_name = "COUNT", default_value = "256",
          value_parser = clap::value_parser!(u16).range(1..))]
    pub max_calls: u16,
    /// How long calls are still accepted after SIGTERM, until the Service's endpoints leave this replica out
    #[arg(long, env = "DEPLOYER_GUARD_DRAIN_DELAY", value_name = "DURATION", default_value = "5s",
          value_parser = parse_go_duration)]
    pub drain_delay: Duration,
    /// How long the end may take in all, drain delay included, but for 5s at most in which the last refusals are recorded; keep both
    /// below terminationGracePeriodSeconds
    #[arg(long, env = "DEPLOYER_GUARD_GRACE_PERIOD", value_name = "DURATION", default_value = "20s",
          value_parser = parse_go_duration)]
    pub grace_period: Duration,
}

/// Options that contradict each other.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionsError {
    /// Nowhere to listen.
    #[error("no address to listen on; give at least one --listen")]
    NoAddress,
    /// Not even one body of full size would fit.
    #[error(
        "--max-bodies-bytes {all} is less than --max-body-bytes {one}: no body without Content-Length could ever be read; raise the first or lower the second"
    )]
    Bodies {
        /// The bound of one body.
        one: u32,
        /// The bound of all.
        all: u32,
    },
    /// No time would be left to finish what is under way.
    #[error(
        "--grace-period {} leaves no time after --drain-delay {}; make it longer by what a call may take", written(*grace), written(*drain)
    )]
    Grace {
        /// The drain delay.
        drain: Duration,
        /// The grace period.
        grace: Duration,
    },
}

impl ServerOptions {
    /// Checks that the options fit together.
    ///
    /// # Errors
    /// If they do not, with the flags to change.
    pub fn check(&self) -> Result<(), OptionsError> {
        if self.listen.is_empty() {
            return Err(OptionsError::NoAddress);
        }
        if self.max_bodies_bytes < self.max_body_bytes {
            return Err(OptionsError::Bodies {
                one: self.max_body_bytes,
                all: self.max_bodies_bytes,
            });
        }
        if self.grace_period <= self.drain_delay {
            return Err(OptionsError::Grace {
                drain: self.drain_delay,
                grace: self.grace_period,
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory as _, Parser};

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        server: ServerOptions,
        #[command(flatten)]
        tls: crate::tls::TlsArgs,
        #[command(flatten)]
        clients: crate::tls::clients::ClientArgs,
        #[command(flatten)]
        health: crate::telemetry::health::HealthArgs,
        #[command(flatten)]
        logs: crate::telemetry::logs::LogArgs,
    }

    #[test]
    fn the_flags_stand_side_by_side_and_each_has_its_environment_twin() {
        Cli::command().debug_assert();
        for flag in Cli::command().get_arguments() {
            let twin = format!(
                "DEPLOYER_GUARD_{}",
                flag.get_long().unwrap().replace('-', "_").to_uppercase()
            );
            assert_eq!(flag.get_env().and_then(|name| name.to_str()), Some(twin.as_str()));
        }
        let cli = Cli::parse_from(["test", "--tls-cert-file", "a", "--tls-key-file", "b"]);
        assert_eq!(cli.server.check(), Ok(()));
        assert_eq!(cli.tls.tls_reload_interval, Duration::from_secs(1));
        assert_eq!(cli.health.health_listen.port(), 8080);
        assert!(cli.clients.client_ca_file.is_none());
        assert_eq!(cli.logs.log_format, crate::telemetry::logs::LogFormat::Json);
    }

    #[test]
    fn the_refusal_of_an_overload_names_a_flag_that_there_is() {
        let text = crate::domain::refusal::Undecided::Overloaded.to_string();
        let flag = text
            .split(|c: char| c != '-' && !c.is_ascii_lowercase())
            .find_map(|word| word.strip_prefix("--"));
        let command = Cli::command();
        let known: Vec<_> = command.get_arguments().filter_map(clap::Arg::get_long).collect();
        assert!(flag.is_some_and(|flag| known.contains(&flag)), "{text}");
    }

    #[test]
    fn options_that_contradict_each_other_are_refused_with_the_flags_to_change() {
        for (flags, named) in [
            (
                ["--max-body-bytes", "2", "--max-bodies-bytes", "1"],
                "--max-bodies-bytes 1",
            ),
            (["--drain-delay", "5s", "--grace-period", "5s"], "--grace-period 5s"),
        ] {
            let all = ["test", "--tls-cert-file", "a", "--tls-key-file", "b"]
                .into_iter()
                .chain(flags);
            let refusal = Cli::parse_from(all).server.check().unwrap_err().to_string();
            assert!(refusal.contains(named), "{refusal}");
        }
    }
}
