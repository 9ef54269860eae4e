//! Health on a plain port: `/livez`, `/readyz` and `/metrics`.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::{fmt, io};

use actix_web::dev::Server;
use actix_web::{App, HttpResponse, HttpServer, web};

use crate::telemetry::metrics::{Metrics, OPEN_METRICS};

type Conditions = BTreeMap<&'static str, Result<(), String>>;

/// Whether this replica may get traffic: only while all named conditions hold. Clones are one and the same.
#[derive(Clone, Debug, Default)]
pub struct Readiness(Arc<Mutex<Conditions>>);

impl Readiness {
    /// Nothing to wait for yet. Ask for conditions before the health port is served, or `/readyz` is "ok" too early.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a condition that does not hold yet, because of `why`. A name that exists starts again.
    #[must_use]
    pub fn condition(&self, name: &'static str, why: impl Into<String>) -> Condition {
        self.lock().insert(name, Err(why.into()));
        Condition {
            name,
            readiness: self.clone(),
        }
    }

    /// Whether all conditions hold.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.lock().values().all(Result::is_ok)
    }

    /// The conditions that do not hold, as `name: why`, by name.
    #[must_use]
    pub fn failing(&self) -> Vec<String> {
        let conditions = self.lock();
        conditions
            .iter()
            .filter_map(|(name, state)| Some(format!("{name}: {}", state.as_ref().err()?)))
            .collect()
    }

    // A condition is one assignment: what a panicking thread left behind is whole.
    fn lock(&self) -> MutexGuard<'_, Conditions> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One named condition of a [`Readiness`], in the hands of who knows whether it holds.
#[derive(Clone)]
pub struct Condition {
    name: &'static str,
    readiness: Readiness,
}

impl Condition {
    /// The condition holds.
    pub fn hold(&self) {
        self.readiness.lock().insert(self.name, Ok(()));
    }

    /// The condition does not hold, because of `why`.
    pub fn fail(&self, why: impl Into<String>) {
        self.readiness.lock().insert(self.name, Err(why.into()));
    }
}

impl fmt::Debug for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Condition").field(&self.name).finish()
    }
}

/// Where health is served, on the command line.
#[derive(Clone, Debug, clap::Args)]
pub struct HealthArgs {
    /// Where /livez, /readyz and /metrics are served, without TLS
    #[arg(
        long,
        env = "DEPLOYER_GUARD_HEALTH_LISTEN",
        value_name = "ADDRESS",
        default_value = "0.0.0.0:8080",
        value_parser = crate::flags::address
    )]
    pub health_listen: SocketAddr,
}

/// Why health cannot be served.
#[derive(Debug, thiserror::Error)]
#[error("cannot serve health on {address}: {source}; choose another address with --health-listen")]
pub struct HealthError {
    address: SocketAddr,
    source: io::Error,
}

/// A health server that holds its address and is not serving yet.
#[derive(Debug)]
pub struct HealthServer {
    listener: TcpListener,
    address: SocketAddr,
    readiness: Readiness,
    metrics: Arc<Metrics>,
}

impl HealthServer {
    /// Takes the address.
    ///
    /// # Errors
    /// If the address cannot be taken.
    pub fn bind(args: &HealthArgs, readiness: Readiness, metrics: Arc<Metrics>) -> Result<Self, HealthError> {
        let failed = |source| HealthError {
            address: args.health_listen,
            source,
        };
        let listener = TcpListener::bind(args.health_listen).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Self {
            listener,
            address,
            readiness,
            metrics,
        })
    }

    /// The address that is served, with its real port.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until it is dropped: drop it last, so that probes see the end of everything else.
    ///
    /// # Errors
    /// If the server cannot start. It never ends by itself.
    pub async fn run(self) -> Result<(), HealthError> {
        let address = self.address;
        self.server()
            .map_err(|source| HealthError { address, source })?
            .await
            .map_err(|source| HealthError { address, source })
    }

    fn server(self) -> io::Result<Server> {
        let (readiness, metrics) = (web::Data::new(self.readiness), web::Data::from(self.metrics));
        let server = HttpServer::new(move || {
            App::new()
                .app_data(readiness.clone())
                .app_data(metrics.clone())
                .route("/livez", web::get().to(async || text(200, "ok\n".to_owned())))
                .route("/readyz", web::get().to(ready))
                .route("/metrics", web::get().to(scrape))
        });
        Ok(server
            .workers(1)
            .max_connections(256)
            .disable_signals()
            .listen(self.listener)?
            .run())
    }
}

async fn ready(readiness: web::Data<Readiness>) -> HttpResponse {
    let failing = readiness.failing();
    if failing.is_empty() {
        text(200, "ok\n".to_owned())
    } else {
        text(503, failing.join("\n") + "\n")
    }
}

async fn scrape(metrics: web::Data<Metrics>, readiness: web::Data<Readiness>) -> HttpResponse {
    metrics.ready(readiness.is_ready());
    HttpResponse::Ok().content_type(OPEN_METRICS).body(metrics.encode())
}

fn text(status: u16, body: String) -> HttpResponse {
    let mut response = if status == 200 {
        HttpResponse::Ok()
    } else {
        HttpResponse::ServiceUnavailable()
    };
    response.content_type("text/plain; charset=utf-8").body(body)
}
