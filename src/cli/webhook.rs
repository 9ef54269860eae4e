//! `deployer-guard webhook`

use std::sync::Arc;

use anyhow::{Context, bail};
use futures::future::join;
use tokio_util::sync::CancellationToken;

use super::kubernetes::KubernetesArgs;
use super::serve_to_the_end;
use super::window::WindowArgs;
use crate::cluster::configurations::Configurations;
use crate::cluster::events::{Events, Publisher};
use crate::cluster::live::LiveStore;
use crate::cluster::secrets::{CertificateReads, Secrets};
use crate::observer::Observer;
use crate::statuses::Statuses;
use crate::telemetry::health::{HealthArgs, HealthServer, Readiness};
use crate::telemetry::logs::LogArgs;
use crate::telemetry::metrics::Metrics;
use crate::tls::clients::ClientArgs;
use crate::tls::options::TlsSource;
use crate::tls::{Tls, TlsArgs, TlsSecret};
use crate::webhook::desk::Desks;
use crate::webhook::handler::Admission;
use crate::webhook::judge::Judge;
use crate::webhook::options::ServerOptions;
use crate::webhook::policies::Policies;
use crate::webhook::records::Records;
use crate::webhook::server::{Ended, WebhookServer};
use crate::webhook::signals::Signals;

/// Options of the webhook.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct WebhookArgs {
    #[command(flatten)]
    server: ServerOptions,
    #[command(flatten)]
    tls: TlsArgs,
    #[command(flatten)]
    clients: ClientArgs,
    /// The namespace of deployer-guard, where the Secret of --tls-secret is
    #[arg(
        long,
        env = "DEPLOYER_GUARD_NAMESPACE",
        value_name = "NAMESPACE",
        default_value = "deployer-guard",
        value_parser = crate::flags::label
    )]
    namespace: String,
    /// The name of the ValidatingWebhookConfiguration, in which is looked up whether a new certificate of the Secret is trusted
    #[arg(
        long,
        env = "DEPLOYER_GUARD_CONFIGURATION",
        value_name = "NAME",
        default_value = "deployer-guard",
        value_parser = crate::flags::name
    )]
    configuration: String,
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

pub(super) fn run(args: WebhookArgs) -> anyhow::Result<()> {
    args.logs.init()?;
    serve_to_the_end(serve(args))
}

async fn serve(args: WebhookArgs) -> anyhow::Result<()> {
    let signals = Signals::install().context("signals cannot be caught")?;
    let window = args.window.window()?;
    args.server.check()?;
    let metrics = Arc::new(Metrics::new());
    let source = args.tls.load()?;
    let interval = args.tls.tls_reload_interval;
    let clients = args.clients.load(interval, metrics.client_refusals())?;
    let client = args.kubernetes.client().await?;
    let mut tls = match source {
        TlsSource::Files(files) => Tls::from(Arc::new(files)),
        TlsSource::Secret(name) => {
            let secrets = Secrets::new(client.clone(), &args.namespace, &name);
            let configurations = Configurations::new(client.clone(), &args.configuration);
            let reads = Arc::new(CertificateReads::new(secrets, configurations));
            let secret = TlsSecret::new(&name, &args.namespace, reads)
                .read_every(args.tls.tls_secret_interval)
                .trusted_for(args.tls.trust_delay);
            Tls::from(Arc::new(secret))
        }
    };
    if let Some(clients) = clients {
        tls = tls.checking(Arc::new(clients));
    }
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
    let served = CancellationToken::new();
    let publisher = Publisher::new(notices, client, instance, Arc::clone(&metrics));
    let publishing = tokio::spawn(publisher.run(served.clone()));
    let statuses = Arc::new(Statuses::new(Arc::<LiveStore>::clone(&store), Arc::clone(&metrics)));
    let writing = tokio::spawn(Arc::clone(&statuses).run(served.clone()));
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
            Ended::AtOnce => {
                tracing::warn!("ended at once");
                return Ok(());
            }
        },
        ended = health.run() => {
            ended?;
            bail!("the health port is no longer served");
        }
        ended = watching => bail!("the watch of policies ended: {ended:?}"),
    }
    // What was refused in the last second is still to be recorded.
    served.cancel();
    tokio::select! {
        _ = join(publishing, writing) => {}
        () = signals.second() => tracing::warn!("ended at once"),
    }
    Ok(())
}
