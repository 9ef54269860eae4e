//! `deployer-guard guard`

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail, ensure};

use super::backend::BackendArgs;
use super::certificates::CertificateArgs;
use super::kubernetes::KubernetesArgs;
use super::serve_on_one_thread;
use super::supervise;
use super::window::WindowArgs;
use crate::flags::{self, written};
use crate::guard::configuration::Settings;
use crate::guard::configuration::ca_bundle::BundleSource;
use crate::guard::leadership::lease::LENGTHS;
use crate::guard::leadership::{LeaseParams, identity};
use crate::guard::run::{Ended, Options, run as run_guard};
use crate::telemetry::health::{HealthArgs, HealthServer, Readiness};
use crate::telemetry::logs::LogArgs;
use crate::telemetry::metrics::{GuardMetrics, Metrics};
use crate::webhook::signals::Signals;
use crate::webhook::timeout::parse_go_duration;

/// Options of the guard.
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "Run two or more: one leads at a time, and another follows within the lease. The \
    ValidatingWebhookConfiguration must exist (deploy/webhook-configuration.yaml): the guard fills it and never makes it, so \
    that nothing comes back after an uninstall. There is no readiness: the guard serves nobody. It ends on SIGTERM alone."
)]
pub(super) struct GuardArgs {
    /// Stay as a small parent of the guard's process, and begin it again when it ends: for a container beside the webhook's, whose
    /// Pod is ready only while both run
    #[arg(long, env = supervise::ENV)]
    supervise: bool,
    #[command(flatten)]
    backend: BackendArgs,
    /// The name of the ValidatingWebhookConfiguration that is filled
    #[arg(
        long,
        env = "DEPLOYER_GUARD_CONFIGURATION",
        value_name = "NAME",
        default_value = "deployer-guard",
        value_parser = flags::name
    )]
    configuration: String,
    /// The CA bundle (PEM, one or more certificates) by which the API server checks the webhook's certificate; read again
    /// when its content changes. Without it, the API server's system's roots
    #[arg(long, env = "DEPLOYER_GUARD_CA_BUNDLE_FILE", value_name = "FILE")]
    ca_bundle_file: Option<PathBuf>,
    #[command(flatten)]
    certificates: CertificateArgs,
    /// The name of the Lease, in our namespace, whose holder leads
    #[arg(
        long,
        env = "DEPLOYER_GUARD_LEASE",
        value_name = "NAME",
        default_value = "deployer-guard",
        value_parser = flags::name
    )]
    lease: String,
    /// How long a Lease that is not renewed keeps others out, in whole seconds from 3s to 60s; the same for all guards
    #[arg(long, env = "DEPLOYER_GUARD_LEASE_DURATION", value_name = "DURATION", default_value = "15s",
          value_parser = parse_go_duration)]
    lease_duration: Duration,
    /// How often everything is listed, to find what a watch missed; each key with an active deployer is read live every five
    /// periods
    #[arg(long, env = "DEPLOYER_GUARD_RELIST_PERIOD", value_name = "DURATION", default_value = "1m",
          value_parser = parse_go_duration)]
    relist_period: Duration,
    /// Write nothing but Events; log what would be done. Takes no part in the election, so it may run beside others
    #[arg(long, env = "DEPLOYER_GUARD_DRY_RUN")]
    dry_run: bool,
    /// How long writes that are under way may take at the end; keep it, the lease duration and 5s for the last Events together below
    /// terminationGracePeriodSeconds
    #[arg(long, env = "DEPLOYER_GUARD_GRACE_PERIOD", value_name = "DURATION", default_value = "15s",
          value_parser = parse_go_duration)]
    grace_period: Duration,
    /// Where /livez and /metrics are served, without TLS; another port than the webhook's, which may be in the same Pod
    #[arg(
        long,
        env = "DEPLOYER_GUARD_HEALTH_LISTEN",
        value_name = "ADDRESS",
        default_value = "0.0.0.0:8081",
        value_parser = flags::address
    )]
    health_listen: SocketAddr,
    #[command(flatten)]
    logs: LogArgs,
    #[command(flatten)]
    kubernetes: KubernetesArgs,
    #[command(flatten)]
    window: WindowArgs,
    /// The name of this guard, for the Lease and for Events; the Pod's name
    #[arg(long, env = "DEPLOYER_GUARD_INSTANCE", value_name = "NAME")]
    instance: Option<String>,
}

impl GuardArgs {
    fn options(&self) -> anyhow::Result<Options> {
        let length = self.lease_duration;
        ensure!(
            (LENGTHS.0..=LENGTHS.1).contains(&length) && length.subsec_nanos() == 0,
            "--lease-duration {}: give whole seconds from {} to {}",
            written(length),
            written(LENGTHS.0),
            written(LENGTHS.1)
        );
        ensure!(
            self.relist_period >= Duration::from_secs(1),
            "--relist-period {}: give 1s or more; each one lists and reads everything",
            written(self.relist_period)
        );
        let window = self.window.window()?;
        let instance = self.instance.clone().or_else(|| std::env::var("HOSTNAME").ok());
        let namespace = self.backend.namespace.clone();
        let certificates = self
            .certificates
            .settings(&self.backend, &self.configuration, self.dry_run)?;
        let ca_bundle = match (&self.ca_bundle_file, &certificates) {
            (Some(file), _) => BundleSource::File(file.clone()),
            (None, Some(_)) => BundleSource::Secret,
            (None, None) => BundleSource::System,
        };
        let instance = instance.unwrap_or_else(|| "unnamed".into());
        Ok(Options {
            identity: identity(&instance),
            instance,
            window,
            lease: LeaseParams {
                namespace: namespace.clone(),
                name: self.lease.clone(),
                length,
            },
            settings: Settings {
                name: self.configuration.clone(),
                backend: self.backend.backend()?,
                own_namespace: namespace,
                relist: self.relist_period,
                dry_run: self.dry_run,
            },
            ca_bundle,
            certificates,
            grace_period: self.grace_period,
        })
    }
}

pub(super) fn run(args: GuardArgs) -> anyhow::Result<ExitCode> {
    args.logs.init()?;
    if args.supervise {
        return supervise::run();
    }
    supervise::follow_parent()?;
    serve_on_one_thread(serve(args))?;
    Ok(ExitCode::SUCCESS)
}

async fn serve(args: GuardArgs) -> anyhow::Result<()> {
    let signals = Signals::install().context("signals cannot be caught")?;
    let options = args.options()?;
    let client = args.kubernetes.client().await?;
    let guard = Arc::new(GuardMetrics::default());
    let metrics = Arc::new(Metrics::with_guard(&guard));
    let health = HealthArgs {
        health_listen: args.health_listen,
    };
    let health = HealthServer::bind(&health, Readiness::new(), Arc::clone(&metrics))?;
    tracing::info!(
        health = %health.address(), identity = options.identity, lease = options.lease.name,
        configuration = options.settings.name, dry_run = args.dry_run, "guarding"
    );
    tokio::select! {
        ended = run_guard(client, options, metrics, guard, &signals) => match ended? {
            Ended::Finished => tracing::info!("ended"),
            Ended::GracePeriodOver => tracing::warn!("ended with a write under way: the grace period is over. The Lease runs out by itself"),
            Ended::AtOnce => tracing::warn!("ended at once"),
        },
        ended = health.run() => {
            ended?;
            bail!("the health port is no longer served");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory as _, Parser};

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        guard: GuardArgs,
    }

    fn options(flags: &[&str]) -> anyhow::Result<Options> {
        let all = ["guard", "--instance", "guard-0"].iter().chain(flags);
        Cli::try_parse_from(all)?.guard.options()
    }

    #[test]
    fn the_flags_stand_side_by_side_and_each_has_an_environment_twin() {
        Cli::command().debug_assert();
        for flag in Cli::command().get_arguments() {
            let twin = format!(
                "DEPLOYER_GUARD_{}",
                flag.get_long().unwrap().replace('-', "_").to_uppercase()
            );
            assert_eq!(flag.get_env().and_then(|name| name.to_str()), Some(twin.as_str()));
        }
    }

    #[test]
    fn options_that_make_no_sense_are_refused_with_the_flag_to_change() {
        assert!(options(&[]).is_ok());
        for (flags, named) in [
            (["--lease-duration", "2s"], "--lease-duration"),
            (["--lease-duration", "61s"], "--lease-duration"),
            (["--lease-duration", "3500ms"], "--lease-duration"),
            (["--relist-period", "0"], "--relist-period"),
            (["--pending-window", "8s"], "--pending-window"),
            (["--url", "http://x"], "--url"),
            (["--tls-secret", ""], "--tls-secret"),
        ] {
            let refusal = options(&flags).unwrap_err().to_string();
            assert!(refusal.contains(named), "{refusal}");
        }
    }

    #[test]
    fn lives_that_make_no_sense_are_refused_with_the_flag_to_change() {
        let managed = ["--tls-secret", "s", "--self-managed-tls"];
        let with = |flags: &[&'static str]| [&managed[..], flags].concat();
        let names = options(&managed)
            .unwrap()
            .certificates
            .unwrap()
            .self_managed
            .unwrap()
            .names;
        assert_eq!(
            names,
            [
                "deployer-guard.deployer-guard.svc",
                "deployer-guard.deployer-guard.svc.cluster.local"
            ]
        );
        for (flags, named) in [
            (&["--certificate-lifetime", "5s"][..], "--certificate-lifetime"),
            (&["--certificate-lifetime", "9000h"], "--ca-lifetime"),
            (
                &["--ca-lifetime", "60s", "--certificate-lifetime", "60s"],
                "--ca-lifetime 1m is too short for --trust-delay 10s: give 1m9s",
            ),
            (&["--certificate-lifetime", "35s"], "give 36s"),
        ] {
            let refusal = options(&with(flags)).unwrap_err().to_string();
            assert!(refusal.contains(named), "{refusal}");
        }
        for flags in [
            &["--self-managed-tls"][..],
            &["--tls-secret", "s", "--ca-bundle-file", "ca.crt"],
        ] {
            assert!(options(flags).is_err(), "{flags:?}");
        }
    }

    #[test]
    fn two_guards_in_one_pod_are_two() {
        let (one, other) = (options(&[]).unwrap(), options(&[]).unwrap());
        assert!(one.identity.starts_with("guard-0_"));
        assert_ne!(one.identity, other.identity);
    }
}
