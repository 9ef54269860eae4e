//! One HTTP request on its way to the handler: what is turned away, what is read, and what becomes of its answer.

use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use actix_web::body::{BodySize, MessageBody};
use actix_web::http::{Method, StatusCode, header};
use actix_web::web::{Bytes, BytesMut, Data, Payload};
use actix_web::{HttpRequest, HttpResponse};
use futures::StreamExt as _;
use tokio::sync::OwnedSemaphorePermit;

use crate::telemetry::metrics::Metrics;
use crate::webhook::calls::{Call, Handler, Reply, Undecided};
use crate::webhook::limits::{Limits, Mark, Underway};
use crate::webhook::timeout::{DEFAULT_TIMEOUT, timeout_of_query};

/// The API server's longest timeout: no body may take more.
const LONGEST_TIMEOUT: Duration = Duration::from_secs(30);

/// What all requests share.
pub(crate) struct Front {
    pub(crate) handler: Arc<dyn Handler>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) limits: Limits,
    pub(crate) underway: Underway,
    /// Where handlers run: not on the server's threads, which end with it.
    pub(crate) runtime: tokio::runtime::Handle,
    /// Set when the end has begun: each answer then closes its connection, and the client's next one finds another replica.
    pub(crate) draining: AtomicBool,
}

/// The one service of the server: any method, any path.
pub(crate) async fn serve(request: HttpRequest, payload: Payload, front: Data<Front>) -> HttpResponse<Held> {
    let received = Instant::now();
    let mark = Arc::new(front.underway.mark());
    let reply = match front.read(&request, payload, received).await {
        Ok((call, room)) => front.decide(call, room, &mark).await,
        Err(turned_away) => turned_away,
    };
    if reply.status >= 400 {
        front.metrics.http_error(reply.status);
    }
    let status = StatusCode::from_u16(reply.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = HttpResponse::build(status);
    response.insert_header((header::CONTENT_TYPE, reply.content_type));
    if status == StatusCode::METHOD_NOT_ALLOWED {
        response.insert_header((header::ALLOW, "POST"));
    }
    if front.draining.load(Ordering::Relaxed) {
        response.force_close();
    }
    response
        .message_body(Held {
            bytes: Bytes::from(reply.body),
            _mark: mark,
        })
        .expect("the headers are all fixed texts")
}

impl Front {
    /// Reads a call, or says why it is turned away.
    async fn read(
        &self,
        request: &HttpRequest,
        payload: Payload,
        received: Instant,
    ) -> Result<(Call, OwnedSemaphorePermit), Reply> {
        if request.method() != Method::POST {
            return Err(Reply::text(
                405,
                "this is an admission webhook: send an AdmissionReview with POST",
            ));
        }
        if !is_json(request) {
            return Err(Reply::text(415, "the content type must be application/json"));
        }
        let declared = declared_length(request);
        let max = self.limits.max_body;
        if declared.is_some_and(|length| length > u64::from(max)) {
            return Err(too_large(max));
        }
        let expected = declared.and_then(|length| u32::try_from(length).ok());
        let Some(room) = self.limits.body(expected.unwrap_or(max)) else {
            self.metrics.overloaded();
            return Err(Reply::text(
                503,
                &format!(
                    "the bodies of calls under way take all of the {} bytes that they may (--max-bodies-bytes)",
                    self.limits.max_bodies
                ),
            ));
        };
        let timeout = timeout_of_query(request.query_string());
        let patience = timeout.unwrap_or(DEFAULT_TIMEOUT).min(LONGEST_TIMEOUT);
        let deadline = tokio::time::Instant::from_std(received + patience);
        let body = tokio::time::timeout_at(deadline, read_body(payload, expected, max))
            .await
            .map_err(|_| Reply::text(408, "the body did not arrive within the timeout of the call"))??;
        Ok((
            Call {
                path: request.path().to_owned(),
                timeout,
                body,
                received,
            },
            room,
        ))
    }

    /// Has a call decided on the main runtime, where it goes on if this future is dropped.
    async fn decide(&self, call: Call, room: OwnedSemaphorePermit, mark: &Arc<Mark>) -> Reply {
        let Some(place) = self.limits.call() else {
            self.metrics.overloaded();
            return self.undecided(
                &call,
                Undecided::Overloaded {
                    limit: self.limits.max_calls,
                },
            );
        };
        let held = (room, place, self.metrics.in_flight(), Arc::clone(mark));
        let (handler, work) = (Arc::clone(&self.handler), call.clone());
        let task = self.runtime.spawn(async move {
            let _held = held;
            handler.handle(work).await
        });
        match task.await {
            Ok(reply) => reply,
            Err(error) if error.is_panic() => {
                self.metrics.panicked();
                let panic = error.into_panic();
                tracing::error!(path = %call.path, panic = panic_text(panic.as_ref()), "the decision panicked");
                self.undecided(&call, Undecided::Panicked)
            }
            Err(_) => Reply::text(503, "this replica is ending"),
        }
    }

    fn undecided(&self, call: &Call, why: Undecided) -> Reply {
        catch_unwind(AssertUnwindSafe(|| self.handler.undecided(call, why))).unwrap_or_else(|panic| {
            self.metrics.panicked();
            tracing::error!(path = %call.path, panic = panic_text(panic.as_ref()), "the answer to an undecided call panicked");
            Reply::text(500, "no decision: the webhook failed; its log says why")
        })
    }
}

/// Reads a body of at most `max` bytes; `expected` is what its head said.
async fn read_body(mut payload: Payload, expected: Option<u32>, max: u32) -> Result<Bytes, Reply> {
    let max_bytes = usize::try_from(max).unwrap_or(usize::MAX);
    let mut body = BytesMut::with_capacity(expected.and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(0));
    while let Some(chunk) = payload.next().await {
        let chunk = chunk.map_err(|error| Reply::text(400, &format!("the body cannot be read: {error}")))?;
        if chunk.len() > max_bytes - body.len() {
            return Err(too_large(max));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body.freeze())
}

fn too_large(max: u32) -> Reply {
    Reply::text(
        413,
        &format!("the body is larger than the {max} bytes that are read (--max-body-bytes)"),
    )
}

fn is_json(request: &HttpRequest) -> bool {
    let value = request
        .headers()
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .unwrap_or("");
    value
        .split(';')
        .next()
        .unwrap_or("")
        .trim()
        .eq_ignore_ascii_case("application/json")
}

fn declared_length(request: &HttpRequest) -> Option<u64> {
    request
        .headers()
        .get(header::CONTENT_LENGTH)?
        .to_str()
        .ok()?
        .trim()
        .parse()
        .ok()
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<&'static str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("(no text)")
}

/// A body that counts as under way until the server has taken it.
#[derive(Debug)]
pub(crate) struct Held {
    bytes: Bytes,
    _mark: Arc<Mark>,
}

impl MessageBody for Held {
    type Error = Infallible;

    fn size(&self) -> BodySize {
        BodySize::Sized(self.bytes.len() as u64)
    }

    fn poll_next(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Bytes, Infallible>>> {
        let bytes = std::mem::take(&mut self.get_mut().bytes);
        Poll::Ready((!bytes.is_empty()).then_some(Ok(bytes)))
    }
}
