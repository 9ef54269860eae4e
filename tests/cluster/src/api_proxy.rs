//! A proxy before an API server that shows its client an old world, swallows what a watch says, and holds requests back.

use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Context;
use futures::{Stream, StreamExt, stream};
use http::header::{ACCEPT, CONTENT_LENGTH, HOST, HeaderMap, TRANSFER_ENCODING};
use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use kube::client::Body;
use kube::{Client, Config};
use serde_json::Value;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use crate::plane::ControlPlane;

type Answer = Response<UnsyncBoxBody<Bytes, kube::Error>>;
type OfEvents = dyn Fn(&Value) -> bool + Send + Sync;
type OfCalls = dyn Fn(&Call) -> bool + Send + Sync;

/// A proxy before one API server, on a loopback port, without TLS. Requests and answers pass unchanged unless it was told otherwise; who
/// asks is who they say they are, by their own token. Dropping it closes its port and its connections.
pub struct ApiProxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

/// A request that comes by.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Call {
    /// The method.
    pub method: Method,
    /// The path, such as `/api/v1/namespaces/shop/pods/a`.
    pub path: String,
    /// The query, without `?`; empty if there is none.
    pub query: String,
    accept: String,
}

/// What is held back of a call.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Request,
    Answer,
}

/// Requests, or their answers, that are held back. They pass on when it is released or dropped.
#[derive(Debug)]
pub struct Held {
    shared: Arc<Shared>,
    waiting: watch::Receiver<usize>,
    delivered: watch::Receiver<usize>,
    open: watch::Sender<bool>,
}

/// An answer to a list, as it once was, and how it was asked for.
#[derive(Clone)]
struct Recorded {
    request: HeaderMap,
    answer: (StatusCode, HeaderMap, Bytes),
}

#[derive(Clone)]
struct Gate {
    of: Arc<OfCalls>,
    held: Part,
    waiting: watch::Sender<usize>,
    delivered: watch::Sender<usize>,
    open: watch::Receiver<bool>,
}

#[derive(Default)]
struct Rules {
    /// Plurals of the kinds whose lists are answered as they were recorded.
    replayed: Vec<String>,
    swallowed: Option<Arc<OfEvents>>,
    gate: Option<Gate>,
}

#[derive(Default)]
struct Counts {
    replayed: AtomicUsize,
    swallowed: AtomicUsize,
    expired: AtomicUsize,
}

struct Shared {
    upstream: Client,
    rules: Mutex<Rules>,
    lists: Mutex<HashMap<Call, Recorded>>,
    counts: Counts,
}

impl Call {
    fn of(request: &Request<Incoming>) -> Self {
        let accept = request.headers().get(ACCEPT);
        Self {
            method: request.method().clone(),
            path: request.uri().path().to_owned(),
            query: request.uri().query().unwrap_or_default().to_owned(),
            accept: accept
                .and_then(|accept| accept.to_str().ok())
                .unwrap_or_default()
                .to_owned(),
        }
    }

    /// Whether it opens a watch.
    #[must_use]
    pub fn is_watch(&self) -> bool {
        self.query
            .split('&')
            .any(|pair| matches!(pair, "watch=true" | "watch=1"))
    }

    /// Whether it lists objects of all namespaces of the kind with this plural.
    #[must_use]
    pub fn is_list(&self, plural: &str) -> bool {
        self.method == Method::GET && !self.is_watch() && self.path.ends_with(&format!("/{plural}"))
    }

    /// Whether it deletes this object: its plural and name.
    #[must_use]
    pub fn is_delete(&self, plural: &str, name: &str) -> bool {
        self.method == Method::DELETE && self.path.ends_with(&format!("/{plural}/{name}"))
    }
}

impl ApiProxy {
    /// Starts one before API server `i`, on a free port.
    ///
    /// # Errors
    /// If no port can be had.
    pub async fn start(plane: &ControlPlane, i: usize) -> anyhow::Result<Self> {
        let mut config = Config::new(plane.url(i).parse().context("the API server's address")?);
        config.root_cert_file = Some(plane.ca_file());
        config.default_retry = false;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .await
            .context("a port for the proxy")?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            upstream: Client::try_from(config)?,
            rules: Mutex::default(),
            lists: Mutex::default(),
            counts: Counts::default(),
        });
        let task = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Ok(Self { address, shared, task })
    }

    /// Where it listens, as a kubeconfig wants it.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Asks anew for every list that came by so far, and keeps the answers.
    ///
    /// # Errors
    /// If the API server does not answer.
    pub async fn record(&self) -> anyhow::Result<()> {
        let known: Vec<_> = lock(&self.shared.lists).clone().into_iter().collect();
        for (call, recorded) in known {
            let request = request(&call, &recorded.request, Bytes::new())?;
            let answer = whole(self.shared.upstream.send(request).await?).await?;
            let request = recorded.request;
            lock(&self.shared.lists).insert(call, Recorded { request, answer });
        }
        Ok(())
    }

    /// From now on lists of the kinds with these plurals are answered as they were when they were last recorded or, if nobody had asked
    /// for one by then, as the first answer to it; until it is told other plurals, or none.
    pub fn replay(&self, plurals: &[&str]) {
        lock(&self.shared.rules).replayed = plurals.iter().map(ToString::to_string).collect();
    }

    /// From now on events for which this is true do not pass, on watches that are open, too, which look well. An event is as the API
    /// server writes it: `{"type": ..., "object": ...}`.
    pub fn swallow(&self, of: impl Fn(&Value) -> bool + Send + Sync + 'static) {
        lock(&self.shared.rules).swallowed = Some(Arc::new(of));
    }

    /// Ends what [`ApiProxy::swallow`] began. What was swallowed does not come again.
    pub fn swallow_nothing(&self) {
        lock(&self.shared.rules).swallowed = None;
    }

    /// From now on calls for which this is true wait. Each is delivered in the end, whether its client still waits or not.
    #[must_use]
    pub fn hold(&self, of: impl Fn(&Call) -> bool + Send + Sync + 'static) -> Held {
        self.hold_back(Part::Request, of)
    }

    /// From now on calls for which this is true are delivered, and the answers wait.
    #[must_use]
    pub fn hold_answers(&self, of: impl Fn(&Call) -> bool + Send + Sync + 'static) -> Held {
        self.hold_back(Part::Answer, of)
    }

    fn hold_back(&self, held: Part, of: impl Fn(&Call) -> bool + Send + Sync + 'static) -> Held {
        let ((waiting, waits), (delivered, deliveries)) = (watch::channel(0), watch::channel(0));
        let (open, opened) = watch::channel(false);
        lock(&self.shared.rules).gate = Some(Gate {
            of: Arc::new(of),
            held,
            waiting,
            delivered,
            open: opened,
        });
        Held {
            shared: Arc::clone(&self.shared),
            waiting: waits,
            delivered: deliveries,
            open,
        }
    }

    /// How many lists were answered as they had been recorded.
    #[must_use]
    pub fn replayed(&self) -> usize {
        self.shared.counts.replayed.load(Ordering::Relaxed)
    }

    /// How many events did not pass.
    #[must_use]
    pub fn swallowed(&self) -> usize {
        self.shared.counts.swallowed.load(Ordering::Relaxed)
    }

    /// How many watches were told that what they ask for is no longer there (410).
    #[must_use]
    pub fn expired(&self) -> usize {
        self.shared.counts.expired.load(Ordering::Relaxed)
    }
}

impl Gate {
    async fn pass(&self) {
        self.waiting.send_modify(|waiting| *waiting += 1);
        let mut open = self.open.clone();
        // An error: who closed it is gone.
        let _opened = open.wait_for(|open| *open).await;
    }
}

impl Held {
    /// Waits until so many are held back.
    ///
    /// # Errors
    /// If the proxy is gone, or holds others back by now.
    pub async fn wait(&mut self, count: usize) -> anyhow::Result<()> {
        let arrived = self.waiting.wait_for(|waiting| *waiting >= count).await;
        arrived.map(drop).context("nothing is held back any more")
    }

    /// Lets them pass on, and waits until the API server has answered each.
    pub async fn release(mut self) {
        let mut delivered = self.delivered.clone();
        self.open();
        let count = *self.waiting.borrow_and_update();
        // An error: there are none left.
        let _delivered = delivered.wait_for(|delivered| *delivered >= count).await;
    }

    fn open(&self) {
        lock(&self.shared.rules).gate = None;
        self.open.send_replace(true);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.open();
    }
}

impl Drop for ApiProxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl fmt::Debug for ApiProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApiProxy")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

impl Shared {
    fn is_replayed(&self, call: &Call) -> bool {
        let rules = lock(&self.rules);
        rules.replayed.iter().any(|plural| call.is_list(plural))
    }

    fn gate(&self, call: &Call) -> Option<Gate> {
        lock(&self.rules).gate.clone().filter(|gate| (gate.of)(call))
    }

    /// Whether an event passes; counts it if not.
    fn passes(&self, line: &[u8]) -> bool {
        let event: Value = serde_json::from_slice(line).unwrap_or_default();
        if event["type"] == "ERROR" && event["object"]["code"] == 410 {
            self.counts.expired.fetch_add(1, Ordering::Relaxed);
        }
        let swallowed = lock(&self.rules).swallowed.clone().is_some_and(|of| of(&event));
        self.counts
            .swallowed
            .fetch_add(usize::from(swallowed), Ordering::Relaxed);
        !swallowed
    }
}

/// The request as it came, with this body, for another server.
fn request(call: &Call, headers: &HeaderMap, body: Bytes) -> anyhow::Result<Request<Body>> {
    let uri = match &*call.query {
        "" => call.path.clone(),
        query => format!("{}?{query}", call.path),
    };
    let mut request = Request::builder().method(call.method.clone()).uri(uri);
    if let Some(all) = request.headers_mut() {
        all.clone_from(headers);
        for header in [HOST, TRANSFER_ENCODING, CONTENT_LENGTH] {
            all.remove(header);
        }
    }
    Ok(request.body(Body::from(body))?)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    // Dropped with this task, and with it all connections.
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => if let Ok((stream, _)) = accepted {
                connections.spawn(serve(stream, Arc::clone(&shared)));
            },
            Some(_ended) = connections.join_next() => {}
        }
    }
}

async fn serve(stream: TcpStream, shared: Arc<Shared>) {
    let service = service_fn(move |request| {
        let shared = Arc::clone(&shared);
        async move { Ok::<_, Infallible>(answer(shared, request).await) }
    });
    // An error: the client went away.
    let _served = http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

async fn answer(shared: Arc<Shared>, request: Request<Incoming>) -> Answer {
    let call = Call::of(&request);
    // Not in the connection's own task: that one ends with its client.
    let passed = tokio::spawn(async move { pass(shared, call, request).await });
    let passed = passed.await.map_err(anyhow::Error::from).and_then(|passed| passed);
    passed.unwrap_or_else(|error| {
        let body = Full::new(Bytes::from(format!("{error:#}")));
        let mut answer = Response::new(body.map_err(|never| match never {}).boxed_unsync());
        *answer.status_mut() = StatusCode::BAD_GATEWAY;
        answer
    })
}

async fn pass(shared: Arc<Shared>, call: Call, incoming: Request<Incoming>) -> anyhow::Result<Answer> {
    let (parts, body) = incoming.into_parts();
    let body = body.collect().await?.to_bytes();
    let replayed = shared.is_replayed(&call);
    let recorded = lock(&shared.lists).get(&call).filter(|_| replayed).cloned();
    if let Some(recorded) = recorded {
        shared.counts.replayed.fetch_add(1, Ordering::Relaxed);
        return Ok(answer_of(recorded.answer));
    }
    let gate = shared.gate(&call);
    let gate = gate.as_ref();
    if let Some(gate) = gate.filter(|gate| gate.held == Part::Request) {
        gate.pass().await;
    }
    let answer = shared.upstream.send(request(&call, &parts.headers, body)?).await;
    if let Some(gate) = gate {
        gate.delivered.send_modify(|delivered| *delivered += 1);
    }
    let answer = answer?;
    if call.is_watch() {
        if answer.status() == StatusCode::GONE {
            shared.counts.expired.fetch_add(1, Ordering::Relaxed);
        }
        return Ok(watched(shared, answer));
    }
    let answer = whole(answer).await?;
    if let Some(gate) = gate.filter(|gate| gate.held == Part::Answer) {
        gate.pass().await;
    }
    if call.method == Method::GET && answer.0.is_success() && is_collection(&answer.2) {
        let answer = answer.clone();
        let request = parts.headers;
        lock(&shared.lists).entry(call).or_insert(Recorded { request, answer });
    }
    Ok(answer_of(answer))
}

fn is_collection(body: &[u8]) -> bool {
    serde_json::from_slice::<Value>(body).is_ok_and(|body| body["items"].is_array())
}

async fn whole(answer: Response<Body>) -> anyhow::Result<(StatusCode, HeaderMap, Bytes)> {
    let (parts, body) = answer.into_parts();
    Ok((parts.status, parts.headers, body.collect().await?.to_bytes()))
}

fn answer_of((status, headers, body): (StatusCode, HeaderMap, Bytes)) -> Answer {
    let body = Full::new(body).map_err(|never| match never {}).boxed_unsync();
    of_parts(status, headers, body)
}

fn of_parts(status: StatusCode, headers: HeaderMap, body: UnsyncBoxBody<Bytes, kube::Error>) -> Answer {
    let mut answer = Response::new(body);
    *answer.status_mut() = status;
    *answer.headers_mut() = headers;
    // The server that writes it knows better.
    for header in [CONTENT_LENGTH, TRANSFER_ENCODING] {
        answer.headers_mut().remove(header);
    }
    answer
}

fn watched(shared: Arc<Shared>, answer: Response<Body>) -> Answer {
    let (parts, body) = answer.into_parts();
    let lines = lines(body).filter_map(move |line| {
        let passes = line.as_ref().map_or(true, |line| shared.passes(line));
        std::future::ready(passes.then_some(line))
    });
    let body = StreamBody::new(lines.map(|line| line.map(Frame::data))).boxed_unsync();
    of_parts(parts.status, parts.headers, body)
}

/// What comes, cut after each line: an event each.
fn lines(body: Body) -> impl Stream<Item = Result<Bytes, kube::Error>> + Send {
    let frames = body.into_data_stream();
    stream::unfold((frames, Vec::new()), |(mut frames, mut begun)| async move {
        loop {
            if let Some(end) = begun.iter().position(|byte| *byte == b'\n') {
                let rest = begun.split_off(end + 1);
                return Some((Ok(Bytes::from(begun)), (frames, rest)));
            }
            match frames.next().await {
                Some(Ok(bytes)) => begun.extend_from_slice(&bytes),
                Some(Err(error)) => return Some((Err(error), (frames, Vec::new()))),
                None if begun.is_empty() => return None,
                None => return Some((Ok(Bytes::from(std::mem::take(&mut begun))), (frames, begun))),
            }
        }
    })
}
