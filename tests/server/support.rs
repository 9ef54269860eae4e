//! A server of its own for each test, and a client that speaks HTTP/1.1 by hand, to be as rude as a test needs.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use clap::Parser;
use deployer_guard::telemetry::health::Readiness;
use deployer_guard::telemetry::metrics::Metrics;
use deployer_guard::tls::{Tls, TlsFiles};
use deployer_guard::webhook::calls::{Call, Handler, Reply, Undecided};
use deployer_guard::webhook::options::ServerOptions;
use deployer_guard::webhook::server::{Ended, ServerError, WebhookServer};
use deployer_guard::webhook::signals::{Signals, Trigger};
use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// One certificate with its key, as PEM, and as the client trusts it.
#[derive(Clone)]
pub(crate) struct Pair {
    pub(crate) cert: String,
    pub(crate) key: String,
    pub(crate) der: CertificateDer<'static>,
}

impl Pair {
    /// A self-signed certificate for localhost that expires on 1 January of that year.
    pub(crate) fn until(year: i32) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.not_after = rcgen::date_time_ymd(year, 1, 1);
        let cert = params.self_signed(&key).unwrap();
        Self {
            cert: cert.pem(),
            key: key.serialize_pem(),
            der: cert.der().clone(),
        }
    }
}

/// A new empty directory under cargo's directory for tests.
pub(crate) fn directory(name: &str) -> PathBuf {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let unique = format!("{name}-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(unique);
    std::fs::create_dir_all(&path).unwrap();
    path
}

/// Answers by path: `/slow` waits to be released, `/panic` panics, `/panic-twice` also where it says so, the rest tells
/// the length of the body.
#[derive(Default)]
pub(crate) struct TestHandler {
    pub(crate) started: AtomicUsize,
    pub(crate) finished: AtomicUsize,
    pub(crate) release: Notify,
}

#[async_trait]
impl Handler for TestHandler {
    async fn handle(&self, call: Call) -> Reply {
        self.started.fetch_add(1, Ordering::SeqCst);
        assert!(!call.path.starts_with("/panic"), "asked to panic");
        if call.path == "/slow" {
            self.release.notified().await;
        }
        self.finished.fetch_add(1, Ordering::SeqCst);
        Reply::json(
            200,
            format!("{} {:?} {}", call.path, call.timeout, call.body.len()).into_bytes(),
        )
    }

    fn undecided(&self, call: &Call, why: Undecided) -> Reply {
        assert_ne!(call.path, "/panic-twice", "asked to panic again");
        Reply::json(200, format!("{why:?} {}", call.body.len()).into_bytes())
    }
}

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    server: ServerOptions,
}

/// Options from flags, listening on a free port unless the flags say where.
pub(crate) fn options(flags: &[&str]) -> ServerOptions {
    let mut all = vec!["test"];
    if !flags.contains(&"--listen") {
        all.extend(["--listen", "127.0.0.1:0"]);
    }
    all.extend(flags);
    Cli::parse_from(all).server
}

/// A running server.
pub(crate) struct Site {
    pub(crate) addresses: Vec<SocketAddr>,
    pub(crate) handler: Arc<TestHandler>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) readiness: Readiness,
    pub(crate) trigger: Trigger,
    pub(crate) running: JoinHandle<Result<Ended, ServerError>>,
    pub(crate) trusted: Vec<CertificateDer<'static>>,
}

impl Site {
    /// A server with those flags and a certificate of its own.
    pub(crate) fn start(flags: &[&str]) -> Self {
        let (tls, trusted) = Self::certificate();
        Self::start_with(flags, tls, trusted)
    }

    /// The same with a handler of the test's own.
    pub(crate) fn serving(flags: &[&str], served: Arc<dyn Handler>) -> Self {
        let (tls, trusted) = Self::certificate();
        Self::run(flags, tls, trusted, Arc::default(), served)
    }

    fn certificate() -> (TlsFiles, Vec<CertificateDer<'static>>) {
        let (pair, dir) = (Pair::until(2090), directory("site"));
        std::fs::write(dir.join("tls.crt"), &pair.cert).unwrap();
        std::fs::write(dir.join("tls.key"), &pair.key).unwrap();
        let tls = TlsFiles::load(dir.join("tls.crt"), dir.join("tls.key")).unwrap();
        (tls, vec![pair.der])
    }

    pub(crate) fn start_with(flags: &[&str], tls: TlsFiles, trusted: Vec<CertificateDer<'static>>) -> Self {
        let handler = Arc::new(TestHandler::default());
        let served = Arc::clone(&handler) as Arc<dyn Handler>;
        Self::run(flags, tls, trusted, handler, served)
    }

    /// The same with what it serves TLS with.
    pub(crate) fn over(tls: Tls, trusted: Vec<CertificateDer<'static>>) -> Self {
        Self::counting(tls, trusted, Arc::new(Metrics::new()))
    }

    /// The same with the metrics that it counts in.
    pub(crate) fn counting(tls: Tls, trusted: Vec<CertificateDer<'static>>, metrics: Arc<Metrics>) -> Self {
        let handler = Arc::new(TestHandler::default());
        let served = Arc::clone(&handler) as Arc<dyn Handler>;
        Self::bind(&[], tls, trusted, handler, served, metrics)
    }

    fn run(
        flags: &[&str],
        tls: TlsFiles,
        trusted: Vec<CertificateDer<'static>>,
        handler: Arc<TestHandler>,
        served: Arc<dyn Handler>,
    ) -> Self {
        let tls = Tls::from(Arc::new(tls));
        Self::bind(flags, tls, trusted, handler, served, Arc::new(Metrics::new()))
    }

    fn bind(
        flags: &[&str],
        tls: Tls,
        trusted: Vec<CertificateDer<'static>>,
        handler: Arc<TestHandler>,
        served: Arc<dyn Handler>,
        metrics: Arc<Metrics>,
    ) -> Self {
        let readiness = Readiness::new();
        let bound = WebhookServer::bind(&options(flags), tls, served, Arc::clone(&metrics), &readiness).unwrap();
        let (trigger, signals) = Signals::manual();
        let addresses = bound.addresses();
        let running = tokio::spawn(async move { bound.run_until_signalled(&signals).await });
        Self {
            addresses,
            handler,
            metrics,
            readiness,
            trigger,
            running,
            trusted,
        }
    }

    /// A TLS connection to the first address.
    pub(crate) async fn connect(&self) -> TlsStream<TcpStream> {
        self.connect_to(self.addresses[0]).await.unwrap()
    }

    pub(crate) async fn connect_to(&self, to: SocketAddr) -> std::io::Result<TlsStream<TcpStream>> {
        self.connect_offering(to, &["http/1.1"]).await
    }

    /// A TLS connection whose client speaks these protocols (ALPN), the first one best.
    pub(crate) async fn connect_offering(
        &self,
        to: SocketAddr,
        protocols: &[&str],
    ) -> std::io::Result<TlsStream<TcpStream>> {
        let mut roots = rustls::RootCertStore::empty();
        for trusted in &self.trusted {
            roots.add(trusted.clone()).unwrap();
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
        let stream = TcpStream::connect(to).await?;
        let name = ServerName::try_from("localhost").unwrap();
        TlsConnector::from(Arc::new(config)).connect(name, stream).await
    }

    /// One POST on a connection of its own.
    pub(crate) async fn post(&self, path: &str, body: &[u8]) -> Answer {
        self.post_as(path, "application/json", body).await
    }

    /// One POST with this content type, on a connection of its own. The answer may come before all of the body was sent.
    pub(crate) async fn post_as(&self, path: &str, content_type: &str, body: &[u8]) -> Answer {
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        let request = [head.as_bytes(), body].concat();
        let (mut read, mut write) = tokio::io::split(self.connect().await);
        let sender = tokio::spawn(async move {
            write.write_all(&request).await?;
            write.flush().await
        });
        let answer = Answer::read(&mut read).await.unwrap();
        // Of a body that is not read, the rest cannot be sent.
        let _ = sender.await.unwrap();
        answer
    }

    /// Waits until the handler has begun that many calls.
    pub(crate) async fn started(&self, count: usize) {
        eventually("the handler begins", || {
            self.handler.started.load(Ordering::SeqCst) >= count
        })
        .await;
    }

    /// Waits for the end.
    pub(crate) async fn end(self) -> Ended {
        tokio::time::timeout(Duration::from_secs(20), self.running)
            .await
            .expect("an end")
            .unwrap()
            .unwrap()
    }
}

/// Waits until something is so, for at most ten seconds.
pub(crate) async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..1000 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("never: {what}");
}

/// The head of a POST, without the empty line.
pub(crate) fn head(path: &str) -> String {
    format!("POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n")
}

/// A whole POST.
pub(crate) fn post(path: &str, body: &[u8]) -> Vec<u8> {
    let mut request = format!("{}Content-Length: {}\r\n\r\n", head(path), body.len()).into_bytes();
    request.extend_from_slice(body);
    request
}

/// An HTTP/1.1 answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) async fn read(stream: &mut (impl AsyncRead + Unpin)) -> std::io::Result<Self> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await?);
        }
        let head = String::from_utf8(head).unwrap().to_lowercase();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length: "))
            .map_or(0, |n| n.parse().unwrap());
        let mut body = vec![0; length];
        stream.read_exact(&mut body).await?;
        assert!(!head.contains("retry-after"), "{head}");
        Ok(Self {
            status,
            head,
            body: String::from_utf8(body).unwrap(),
        })
    }
}
