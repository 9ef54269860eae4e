//! The HTTPS server of the webhook, from its sockets to its end.

use std::convert::Infallible;
use std::future::{Future, pending};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use actix_web::dev::Server;
use actix_web::{App, HttpServer, web};
use tokio::time::{Instant, sleep_until};

use crate::telemetry::health::{Condition, Readiness};
use crate::telemetry::metrics::Metrics;
use crate::tls::Tls;
use crate::webhook::calls::Handler;
use crate::webhook::front::{Front, serve};
use crate::webhook::limits::{Limits, Underway};
use crate::webhook::options::{OptionsError, ServerOptions};
use crate::webhook::signals::Signals;

/// How long an idle connection is kept, used or not yet used. Longer than the 90 s after which the API server's client
/// gives one up: if we were first, a call could be written into the closing connection, and it would be lost (a POST is not
/// sent again). For the same reason a connection that was opened ahead and not used yet is given as long.
const IDLE: Duration = Duration::from_mins(2);
/// How long a TLS handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// Connections for each thread. Slow or idle ones hold one of these, never a place among the calls.
const CONNECTIONS: usize = 1024;
/// How long nothing must have been under way at the end before what is left is closed: time to flush the last answers.
const SETTLE: Duration = Duration::from_millis(200);

/// Why the webhook cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The options contradict each other.
    #[error(transparent)]
    Options(#[from] OptionsError),
    /// An address cannot be taken.
    #[error("cannot listen on {address}: {source}; choose another address with --listen")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// The server could not start.
    #[error("the HTTPS server could not start: {0}")]
    Start(#[source] io::Error),
    /// The server ended, and nobody had asked for it.
    #[error("the HTTPS server ended by itself")]
    Ended,
}

/// How a server came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Everything under way was finished.
    Finished,
    /// The grace period was over first.
    GracePeriodOver {
        /// How many calls were still under way.
        underway: usize,
    },
    /// A second signal asked for an end at once.
    AtOnce,
}

/// The HTTPS server of the webhook: [`WebhookServer::bind`], then [`Bound::run`].
#[derive(Debug)]
pub struct WebhookServer;

impl WebhookServer {
    /// Takes the addresses. Adds the conditions `certificate` (holds while there is one to serve with) and `serving` (holds while [`Bound::run`] runs and
    /// was not asked to end) to the readiness.
    ///
    /// Handlers will run on the runtime that this is called in.
    ///
    /// # Errors
    /// If the options contradict each other or an address cannot be taken.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn bind(
        options: &ServerOptions,
        tls: impl Into<Tls>,
        handler: Arc<dyn Handler>,
        metrics: Arc<Metrics>,
        readiness: &Readiness,
    ) -> Result<Bound, ServerError> {
        options.check()?;
        let mut listeners = Vec::new();
        for &address in &options.listen {
            let failed = |source| ServerError::Listen { address, source };
            let listener = TcpListener::bind(address).map_err(failed)?;
            listeners.push((listener.local_addr().map_err(failed)?, listener));
        }
        let tls = tls.into();
        let certificate = readiness.condition("certificate", "not loaded");
        tls.tell(&metrics, &certificate);
        let front = Front {
            handler,
            metrics,
            limits: Limits::new(options.max_body_bytes, options.max_bodies_bytes, options.max_calls),
            underway: Underway::new(),
            runtime: tokio::runtime::Handle::current(),
            draining: AtomicBool::new(false),
        };
        Ok(Bound {
            listeners,
            tls,
            certificate,
            front: Arc::new(front),
            serving: readiness.condition("serving", "not serving yet"),
            workers: usize::from(options.workers),
            drain_delay: options.drain_delay,
            grace_period: options.grace_period,
        })
    }
}

/// A server that holds its addresses and does not answer yet.
#[must_use]
pub struct Bound {
    listeners: Vec<(SocketAddr, TcpListener)>,
    tls: Tls,
    certificate: Condition,
    front: Arc<Front>,
    serving: Condition,
    workers: usize,
    drain_delay: Duration,
    grace_period: Duration,
}

impl Bound {
    /// The addresses taken, in the order of the options, with their real ports.
    #[must_use]
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.listeners.iter().map(|(address, _)| *address).collect()
    }

    /// Serves until `shutdown` completes, then ends gracefully: unready at once; accepting for the drain delay, with each
    /// answer closing its connection; then no new connections, and out as soon as what is under way is finished or the
    /// grace period is over. Keeps the certificate fresh meanwhile.
    ///
    /// Dropping the future ends the server at once. Decisions under way go on in their runtime either way.
    ///
    /// # Errors
    /// If the server cannot start, or ends without being asked.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Result<Ended, ServerError> {
        let (tls, certificate) = (self.tls.clone(), self.certificate.clone());
        let metrics = Arc::clone(&self.front.metrics);
        let fresh = tls.keep_fresh(&metrics, &certificate);
        tokio::select! {
            never = fresh => match never {},
            ended = self.serve(shutdown) => ended,
        }
    }

    /// As [`Bound::run`], from the first signal on; the second ends it at once.
    ///
    /// # Errors
    /// As [`Bound::run`].
    pub async fn run_until_signalled(self, signals: &Signals) -> Result<Ended, ServerError> {
        tokio::select! {
            ended = self.run(signals.first()) => ended,
            () = signals.second() => Ok(Ended::AtOnce),
        }
    }

    async fn serve(self, shutdown: impl Future<Output = ()>) -> Result<Ended, ServerError> {
        let Self {
            listeners,
            tls,
            certificate: _,
            front,
            serving,
            workers,
            drain_delay,
            grace_period,
        } = self;
        let server = start(listeners, &tls, &front, workers, grace_period).map_err(ServerError::Start)?;
        let handle = server.handle();
        let mut server = pin!(server);
        serving.hold();
        tokio::select! {
            result = &mut server => return Err(result.map_or_else(ServerError::Start, |()| ServerError::Ended)),
            () = shutdown => {}
        }

        serving.fail("ending");
        front.draining.store(true, Ordering::Relaxed);
        let asked = Instant::now();
        tracing::info!(
            ?drain_delay,
            ?grace_period,
            underway = front.underway.count(),
            "ending: no longer ready"
        );
        tokio::select! {
            result = &mut server => return Err(result.map_or_else(ServerError::Start, |()| ServerError::Ended)),
            () = sleep_until(asked + drain_delay) => {}
        }

        // Closes idle connections, and the others after their answer. The server looks for its end only each second: so the end is ours
        // to see.
        drop(handle.stop(true));
        let stopped = async {
            let _ = server.await;
            pending::<Infallible>().await
        };
        let ended = tokio::select! {
            () = front.underway.idle_for(SETTLE) => Ended::Finished,
            () = sleep_until(asked + grace_period) => Ended::GracePeriodOver { underway: front.underway.count() },
            never = stopped => match never {},
        };
        tracing::info!(?ended, took = ?asked.elapsed(), "ended");
        Ok(ended)
    }
}

fn start(
    listeners: Vec<(SocketAddr, TcpListener)>,
    tls: &Tls,
    front: &Arc<Front>,
    workers: usize,
    grace_period: Duration,
) -> io::Result<Server> {
    let front = web::Data::from(Arc::clone(front));
    let mut server = HttpServer::new(move || App::new().app_data(front.clone()).default_service(web::to(serve)))
        .workers(workers)
        .max_connections(CONNECTIONS)
        .keep_alive(IDLE)
        .client_request_timeout(IDLE)
        .client_disconnect_timeout(Duration::from_secs(1))
        .tls_handshake_timeout(HANDSHAKE)
        .tcp_nodelay(true)
        .shutdown_timeout(grace_period.as_secs().saturating_add(1))
        .disable_signals();
    for (address, listener) in listeners {
        tracing::info!(%address, "serving admission calls");
        server = server.listen_rustls_0_23(listener, tls.server_config())?;
    }
    Ok(server.run())
}
