//! Webhooks to compare with, in a process of their own: this program, started again. They are served by the project's own
//! server, so that only the decision differs.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use async_trait::async_trait;
use clap::Parser;
use deployer_guard::domain::answer::{Answer, Denial};
use deployer_guard::telemetry::health::{HealthArgs, HealthServer, Readiness};
use deployer_guard::telemetry::metrics::Metrics;
use deployer_guard::tls::TlsArgs;
use deployer_guard::tls::options::TlsSource;
use deployer_guard::webhook::calls::{Call, Handler, Reply, Undecided};
use deployer_guard::webhook::options::ServerOptions;
use deployer_guard::webhook::review::{Request, write};
use deployer_guard::webhook::server::WebhookServer;
use deployer_guard::webhook::signals::Signals;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use serde_json::Value;

use crate::side::CONFIG;

/// The argument that makes this program serve instead of measure.
pub(crate) const ARGUMENT: &str = "comparison-webhooks";

#[derive(Debug, Parser)]
struct Args {
    #[command(flatten)]
    server: ServerOptions,
    #[command(flatten)]
    tls: TlsArgs,
    #[command(flatten)]
    health: HealthArgs,
    #[arg(long)]
    kubeconfig: PathBuf,
}

/// Serves `/allow`, `/deny` and `/list` until it is asked to end.
#[tokio::main]
pub(crate) async fn serve(arguments: &[String]) -> anyhow::Result<()> {
    let args = Args::parse_from(arguments);
    let signals = Signals::install()?;
    let kubeconfig = Kubeconfig::read_from(&args.kubeconfig)?;
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    config.default_retry = false;
    let handler = Arc::new(Comparison {
        client: Client::try_from(config)?,
    });
    let (metrics, readiness) = (Arc::new(Metrics::new()), Readiness::new());
    let TlsSource::Files(tls) = args.tls.load()? else {
        anyhow::bail!("give --tls-cert-file and --tls-key-file");
    };
    let tls = Arc::new(tls);
    let bound = WebhookServer::bind(&args.server, tls, handler, Arc::clone(&metrics), &readiness)?;
    let health = HealthServer::bind(&args.health, readiness, metrics)?;
    tokio::select! {
        ended = bound.run_until_signalled(&signals) => drop(ended?),
        ended = health.run() => ended?,
    }
    Ok(())
}

struct Comparison {
    client: Client,
}

impl Comparison {
    /// What a webhook is usually written to do: list the pods of the config, refuse if one is active.
    async fn nobody_is_active(&self, request: &Request) -> anyhow::Result<bool> {
        let namespace = request.namespace.as_deref().context("no namespace")?;
        let labels = request.object()?.pointer("/metadata/labels");
        let config = labels.and_then(|labels| labels.get(CONFIG)).and_then(Value::as_str);
        let selector = format!("{CONFIG}={}", config.context("no config")?);
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        let found = pods.list(&ListParams::default().labels(&selector)).await?;
        let mut phases = found.items.iter().map(|pod| pod.status.as_ref()?.phase.as_deref());
        Ok(phases.all(|phase| matches!(phase, Some("Succeeded" | "Failed"))))
    }
}

#[async_trait]
impl Handler for Comparison {
    async fn handle(&self, call: Call) -> Reply {
        let request = match Request::read(&call.body) {
            Ok(request) => request,
            Err(error) => return Reply::text(400, &error.to_string()),
        };
        let allowed = match call.path.as_str() {
            "/allow" => true,
            "/list" => match self.nobody_is_active(&request).await {
                Ok(allowed) => allowed,
                Err(error) => return Reply::text(500, &error.to_string()),
            },
            _ => false,
        };
        let answer = Answer {
            denial: (!allowed).then(denial),
            ..Answer::default()
        };
        Reply::json(200, write(&request.uid, &answer))
    }

    fn undecided(&self, _call: &Call, why: Undecided) -> Reply {
        Reply::text(503, &format!("{why:?}"))
    }
}

fn denial() -> Denial {
    Denial {
        code: 403,
        reason: "Forbidden",
        message: "another pod is active".to_owned(),
        cause: "Active",
        field: String::new(),
    }
}
