//! `deployer-guard webhook`

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use tokio::runtime::{Builder, Runtime};

use super::kubernetes::KubernetesArgs;
use crate::cluster::events::{Events, Publisher};
use crate::cluster::live::LiveStore;
use crate::domain::pursuit::{CREATE_BOUND, DEFAULT_PENDING_WINDOW, SETTLE, Window};
use crate::observer::Observer;
use crate::statuses::Statuses;
use crate::telemetry::health::{HealthArgs, HealthServer, Readiness};
use crate::telemetry::logs::LogArgs;
use crate::telemetry::metrics::Metrics;
use crate::tls::TlsArgs;
use crate::webhook::desk::Desks;
use crate::webhook::handler::Admission;
use crate::webhook::judge::Judge;
use crate::webhook::options::ServerOptions;
use crate::webhook::policies::Policies;
use crate::webhook::records::Records;
use crate::webhook::server::{Ended, WebhookServer};
use crate::webhook::signals::Signals;
use crate::webhook::timeout::parse_go_duration;

/// Options of the webhook.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct WebhookArgs {
    #[command(flatten)]
    server: ServerOptions,
    #[command(flatten)]
    tls: TlsArgs,
    #[command(flatten)]
    health: HealthArgs,
    #[command(flatten)]
    logs: LogArgs,
    #[command(flatten)]
    kubernetes: KubernetesArgs,
    #[command(flatten)]
    window: WindowArgs,
    /// The name of this replica, for Events; the Pod's name
    #[arg(long, env = "DEPLOYER_GUARD_INSTANCE", value_name = "NAME")]
    instance: Option<String>,
}

/// How long an admitted pod that nobody can find is believed to be on its way.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct WindowArgs {
    /// How long an admitted pod that is not in the store is believed to be on its way to it; must exceed the time that
    /// an API server keeps a create
    #[arg(long, env = "DEPLOYER_GUARD_PENDING_WINDOW", value_name = "DURATION", default_value = "45s",
          value_parser = parse_go_duration)]
    pending_window: Duration,
    /// The --request-timeout of the API servers, if all of them have a lower one than 34s; allows a shorter
    /// --pending-window
    #[arg(long, env = "DEPLOYER_GUARD_API_SERVER_REQUEST_TIMEOUT", value_name = "DURATION",
          value_parser = parse_go_duration)]
    api_server_request_timeout: Option<Duration>,
}

impl WindowArgs {
    fn window(&self) -> anyhow::Result<Window> {
        let bound = self
            .api_server_request_timeout
            .map_or(CREATE_BOUND, |timeout| timeout.min(CREATE_BOUND));
        ensure!(
            self.pending_window > bound,
            "--pending-window {:?} is too short: an API server may keep a create for {bound:?}, and a pod that arrives after the \
             window is a second deployer. Give more than that (default {DEFAULT_PENDING_WINDOW:?}), or --api-server-request-timeout if that of \
             all API servers is lower",
            self.pending_window
        );
        Ok(Window {
            pending: self.pending_window,
            settle: SETTLE,
        })
    }
}

pub(super) fn run(args: WebhookArgs) -> anyhow::Result<()> {
    args.logs.init()?;
    let runtime = Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("the runtime cannot be started")?;
    let ended = runtime.block_on(serve(args));
    // Decisions that are still under way when the grace period is over do not hold the process.
    Runtime::shutdown_background(runtime);
    ended
}

async fn serve(args: WebhookArgs) -> anyhow::Result<()> {
    let signals = Signals::install().context("signals cannot be caught")?;
    let window = args.window.window()?;
    let tls = Arc::new(args.tls.load()?);
    let client = args.kubernetes.client().await?;
    let metrics = Arc::new(Metrics::new());
    let readiness = Readiness::new();
    let complete = readiness.condition("policies", "not listed yet");

    let store = Arc::new(LiveStore::new(client.clone(), Arc::clone(&metrics)));
    let policies = Arc::new(Policies::new(Arc::clone(&store)));
    let watching = tokio::spawn(Arc::clone(&policies).watch(client.clone(), complete));
    let instance = args
        .instance
        .or_else(|| std::env::var("HOSTNAME").ok())
        .unwrap_or_else(|| "unnamed".into());
    let (events, notices) = Events::new(Arc::clone(&metrics));
    tokio::spawn(Publisher::new(notices, client, instance, Arc::clone(&metrics)).run());
    let statuses = Arc::new(Statuses::new(Arc::<LiveStore>::clone(&store), Arc::clone(&metrics)));
    tokio::spawn(Arc::clone(&statuses).run());
    let observer = Observer::new(Arc::clone(&store), window, Arc::clone(&metrics)).telling(Arc::clone(&statuses));
    let observer = Arc::new(observer);
    let desks = Arc::new(Desks::new(Arc::clone(&store), observer));
    let records = Records::new(Arc::clone(&metrics), events).telling(statuses);
    let handler = Arc::new(Admission::new(policies, Judge::new(store, desks), records));

    let bound = WebhookServer::bind(&args.server, tls, handler, Arc::clone(&metrics), &readiness)?;
    let health = HealthServer::bind(&args.health, readiness, metrics)?;
    tracing::info!(addresses = ?bound.addresses(), health = %health.address(), "serving");
    tokio::select! {
        ended = bound.run_until_signalled(&signals) => match ended? {
            Ended::Finished => tracing::info!("ended"),
            Ended::GracePeriodOver { underway } => tracing::warn!(underway, "ended with calls under way: the grace period is over"),
            Ended::AtOnce => tracing::warn!("ended at once"),
        },
        ended = health.run() => {
            ended?;
            bail!("the health port is no longer served");
        }
        ended = watching => bail!("the watch of policies ended: {ended:?}"),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(pending: u64, request_timeout: Option<u64>) -> anyhow::Result<Window> {
        let args = WindowArgs {
            pending_window: Duration::from_secs(pending),
            api_server_request_timeout: request_timeout.map(Duration::from_secs),
        };
        args.window()
    }

    #[test]
    fn the_window_must_exceed_the_time_that_an_api_server_keeps_a_create() {
        for (pending, request_timeout, accepted) in [
            (45, None, true),
            (35, None, true),
            (34, None, false),
            (8, None, false),
            (8, Some(5), true),
            (5, Some(5), false),
            (40, Some(60), true),
            (34, Some(60), false),
        ] {
            assert_eq!(
                window(pending, request_timeout).is_ok(),
                accepted,
                "{pending} {request_timeout:?}"
            );
        }
        assert!(
            window(8, None)
                .unwrap_err()
                .to_string()
                .contains("--api-server-request-timeout")
        );
    }
}
