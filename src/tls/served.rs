//! The pair that handshakes are answered with.

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use rustls::crypto::CryptoProvider;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use super::pair::Pair;

/// The current pair, or none: then handshakes fail.
#[derive(Debug)]
pub struct Served {
    provider: Arc<CryptoProvider>,
    current: ArcSwapOption<Pair>,
}

impl Default for Served {
    fn default() -> Self {
        Self {
            provider: Arc::new(rustls::crypto::ring::default_provider()),
            current: ArcSwapOption::empty(),
        }
    }
}

impl Served {
    /// Serves with this pair from now on.
    pub fn serve(&self, pair: Pair) {
        self.current.store(Some(Arc::new(pair)));
    }

    /// The pair of now.
    #[must_use]
    pub fn current(&self) -> Option<Arc<Pair>> {
        self.current.load_full()
    }

    /// When the certificate of now expires, in seconds since the Unix epoch.
    #[must_use]
    pub fn not_after(&self) -> Option<i64> {
        self.current.load().as_ref().map(|pair| pair.not_after())
    }

    /// The cryptography in use.
    #[must_use]
    pub fn provider(&self) -> &Arc<CryptoProvider> {
        &self.provider
    }
}

impl ResolvesServerCert for Served {
    fn resolve(&self, _client_hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.current.load().as_ref().map(|pair| Arc::clone(pair.certified()))
    }
}
