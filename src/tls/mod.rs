//! What the webhook serves TLS with: its certificate, and the check of its callers.
//!
//! - [`pem`]: what a file or Secret holds; [`pair`]: a certificate and its key; [`served`]: the one that handshakes are answered with
//! - [`files`], [`secret`]: where pairs come from, looked at again and again
//! - [`trust`], [`hold_back`]: whether the API servers trust a new pair yet
//! - [`clients`]: who may call

pub mod clients;
pub mod files;
pub mod hold_back;
pub mod options;
pub mod pair;
pub mod pem;
pub mod secret;
pub mod served;
pub mod trust;

use std::convert::Infallible;
use std::fmt;
use std::future::pending;
use std::sync::Arc;

use rustls::server::NoServerSessionStorage;

pub use self::clients::Clients;
pub use self::files::{TlsError, TlsFiles};
pub use self::options::TlsArgs;
pub use self::secret::TlsSecret;
use self::served::Served;
use crate::telemetry::health::Condition;
use crate::telemetry::metrics::Metrics;

/// Where the serving certificate comes from, and who may call.
#[derive(Clone)]
pub struct Tls {
    source: Source,
    clients: Option<Arc<Clients>>,
}

#[derive(Clone)]
enum Source {
    Files(Arc<TlsFiles>),
    Secret(Arc<TlsSecret>),
}

impl From<Arc<TlsFiles>> for Tls {
    fn from(files: Arc<TlsFiles>) -> Self {
        Self {
            source: Source::Files(files),
            clients: None,
        }
    }
}

impl From<Arc<TlsSecret>> for Tls {
    fn from(secret: Arc<TlsSecret>) -> Self {
        Self {
            source: Source::Secret(secret),
            clients: None,
        }
    }
}

impl Tls {
    /// Serves only callers with a certificate that passes this check.
    #[must_use]
    pub fn checking(self, clients: Arc<Clients>) -> Self {
        Self {
            clients: Some(clients),
            ..self
        }
    }

    /// A server configuration that resolves to the pair that is current at each handshake; TLS 1.2 and 1.3. While there is no pair,
    /// handshakes fail.
    ///
    /// HTTP/1.1 alone (ALPN): an API server speaks nothing else to a webhook that is not on its own machine, so that its calls are spread over
    /// replicas (kubernetes/kubernetes#75791). What is never spoken in production is not offered.
    ///
    /// # Panics
    /// Never: the protocol versions are the provider's own.
    #[must_use]
    pub fn server_config(&self) -> rustls::ServerConfig {
        let served = self.served();
        let builder = rustls::ServerConfig::builder_with_provider(Arc::clone(served.provider()))
            .with_safe_default_protocol_versions()
            .expect("ring provides TLS 1.2 and 1.3");
        let mut config = match &self.clients {
            None => builder.with_no_client_auth(),
            Some(clients) => builder.with_client_cert_verifier(Arc::clone(clients) as _),
        }
        .with_cert_resolver(Arc::clone(served) as _);
        if self.clients.is_some() {
            // A resumed session is not checked again, and its caller's authority may be out of the file by then.
            config.session_storage = Arc::new(NoServerSessionStorage {});
            config.send_tls13_tickets = 0;
        }
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        config
    }

    /// Looks at where certificates come from again and again, and serves with a new pair as soon as it may. `condition` holds
    /// while there is a pair to serve with. Ends only by being dropped.
    pub async fn keep_fresh(&self, metrics: &Arc<Metrics>, condition: &Condition) -> Infallible {
        let clients = async {
            match &self.clients {
                Some(clients) => Arc::clone(clients).keep_fresh().await,
                None => pending().await,
            }
        };
        let pairs = async {
            match &self.source {
                Source::Files(files) => Arc::clone(files).keep_fresh(Arc::clone(metrics)).await,
                Source::Secret(secret) => secret.keep_fresh(metrics, condition).await,
            }
        };
        tokio::select! {
            never = clients => never,
            never = pairs => never,
        }
    }

    /// Says whether there is a pair, before anything is looked at again.
    pub(crate) fn tell(&self, metrics: &Metrics, condition: &Condition) {
        match self.served().not_after() {
            Some(not_after) => {
                metrics.certificate_not_after(not_after);
                condition.hold();
            }
            None => condition.fail("no certificate yet"),
        }
    }

    fn served(&self) -> &Arc<Served> {
        match &self.source {
            Source::Files(files) => files.served(),
            Source::Secret(secret) => secret.served(),
        }
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").finish_non_exhaustive()
    }
}
