//! A way to an API server on which single requests and answers can be held back.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use actix_web::web::{Bytes, Data};
use actix_web::{App, HttpRequest, HttpResponse, HttpServer, web};
use anyhow::Context;
use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;
use tokio::sync::watch;

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hold {
    /// It passes.
    No,
    /// It is not delivered before the release.
    Request,
    /// It is delivered, and its answer comes after the release.
    Answer,
}

/// A request that came by.
#[derive(Clone, Debug)]
pub(crate) struct Passed {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) body: String,
    pub(crate) hold: Hold,
    /// What the API server answered, if it has been asked.
    pub(crate) code: Option<u16>,
}

type Which = dyn Fn(&str, &str) -> Hold + Send + Sync;

struct Shared {
    client: Client,
    which: Mutex<Arc<Which>>,
    passed: Mutex<Vec<Passed>>,
    releases: watch::Sender<u64>,
}

/// A reverse proxy without TLS on a loopback port. What it took is delivered, whether the client still waits or not. Requests pass
/// with the rights of the client that it is made with.
pub(crate) struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    server: actix_web::dev::ServerHandle,
}

impl Proxy {
    pub(crate) fn start(client: Client) -> anyhow::Result<Self> {
        let shared = Arc::new(Shared {
            client,
            which: Mutex::new(Arc::new(|_, _| Hold::No)),
            passed: Mutex::default(),
            releases: watch::Sender::new(0),
        });
        let data = Data::from(Arc::clone(&shared));
        let server = HttpServer::new(move || {
            App::new()
                .app_data(data.clone())
                .app_data(web::PayloadConfig::new(8 << 20))
                .default_service(web::to(pass))
        })
        .workers(1)
        .disable_signals()
        .bind(("127.0.0.1", 0))
        .context("a port for the proxy")?;
        let address = *server.addrs().first().context("the proxy's address")?;
        let server = server.run();
        let handle = server.handle();
        tokio::spawn(server);
        Ok(Self {
            address,
            shared,
            server: handle,
        })
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// From now on this says, of method and path, what is held.
    pub(crate) fn hold(&self, which: impl Fn(&str, &str) -> Hold + Send + Sync + 'static) {
        *lock(&self.shared.which) = Arc::new(which);
    }

    /// Lets go what is held, and holds nothing any more.
    pub(crate) fn release(&self) {
        self.hold(|_, _| Hold::No);
        self.shared.releases.send_modify(|count| *count += 1);
    }

    /// Everything that came by so far, in the order in which it came.
    pub(crate) fn passed(&self) -> Vec<Passed> {
        lock(&self.shared.passed).clone()
    }

    /// What came by and is, or was, held.
    pub(crate) fn held(&self) -> Vec<Passed> {
        let all = self.passed();
        all.into_iter().filter(|passed| passed.hold != Hold::No).collect()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // Asked for at once: the future only waits until it is done.
        drop(self.server.stop(false));
    }
}

async fn pass(request: HttpRequest, body: Bytes, shared: Data<Shared>) -> HttpResponse {
    let (method, path) = (request.method().as_str().to_owned(), request.path().to_owned());
    let mut onward = http1::Request::builder()
        .method(method.as_str())
        .uri(request.uri().to_string());
    for name in ["accept", "content-type", "user-agent"] {
        if let Some(value) = request.headers().get(name) {
            onward = onward.header(name, value.as_bytes());
        }
    }
    let onward = match onward.body(Body::from(body.to_vec())) {
        Ok(onward) => onward,
        Err(error) => return HttpResponse::BadRequest().body(error.to_string()),
    };
    let delivering = tokio::spawn(deliver(
        shared.into_inner(),
        method,
        path,
        String::from_utf8_lossy(&body).into_owned(),
        onward,
    ));
    match delivering.await {
        Ok(Ok(answer)) => {
            let mut response = HttpResponse::build(status(answer.status().as_u16()));
            if let Some(kind) = answer.headers().get("content-type") {
                response.insert_header(("content-type", kind.as_bytes()));
            }
            response.streaming(answer.into_body().into_data_stream())
        }
        Ok(Err(error)) => HttpResponse::BadGateway().body(error.to_string()),
        Err(error) => HttpResponse::BadGateway().body(error.to_string()),
    }
}

async fn deliver(
    shared: Arc<Shared>,
    method: String,
    path: String,
    body: String,
    onward: http1::Request<Body>,
) -> kube::Result<http1::Response<Body>> {
    let mut releases = shared.releases.subscribe();
    releases.mark_unchanged();
    let which = Arc::clone(&lock(&shared.which));
    let hold = which(&method, &path);
    let number = {
        let mut passed = lock(&shared.passed);
        passed.push(Passed {
            method,
            path,
            body,
            hold,
            code: None,
        });
        passed.len() - 1
    };
    if hold == Hold::Request {
        let _released = releases.changed().await;
    }
    let answer = shared.client.send(onward).await;
    let code = answer.as_ref().map_or(0, |answer| answer.status().as_u16());
    lock(&shared.passed)[number].code = Some(code);
    if hold == Hold::Answer {
        let _released = releases.changed().await;
    }
    answer
}

fn status(code: u16) -> actix_web::http::StatusCode {
    actix_web::http::StatusCode::from_u16(code).unwrap_or(actix_web::http::StatusCode::BAD_GATEWAY)
}

fn lock<T: ?Sized>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
