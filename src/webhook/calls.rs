//! What stands between the HTTP server and the decision: a call, its answer, and who gives it.

use std::time::{Duration, Instant};

use actix_web::web::Bytes;
use async_trait::async_trait;

/// One admission call as it came in. A clone shares the body.
#[derive(Clone, Debug)]
pub struct Call {
    /// The path of the URL as it was sent, without the query.
    pub path: String,
    /// How long the caller waits, from the URL (`?timeout=5s`); nothing if the URL does not say, or not readably.
    pub timeout: Option<Duration>,
    /// The body.
    pub body: Bytes,
    /// When the head of the request was there, before its body was read: what the deadline is counted from.
    pub received: Instant,
}

/// An HTTP answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The HTTP status; one that is none is sent as 500.
    pub status: u16,
    /// The content type of the body.
    pub content_type: &'static str,
    /// The body.
    pub body: Vec<u8>,
}

impl Reply {
    /// A JSON document.
    #[must_use]
    pub fn json(status: u16, body: Vec<u8>) -> Self {
        Self {
            status,
            content_type: "application/json",
            body,
        }
    }

    /// A text for people; a line break is added.
    #[must_use]
    pub fn text(status: u16, text: &str) -> Self {
        Self {
            status,
            content_type: "text/plain; charset=utf-8",
            body: format!("{text}\n").into_bytes(),
        }
    }
}

/// Why a call is not decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Undecided {
    /// As many calls as allowed are being decided.
    Overloaded {
        /// How many are allowed.
        limit: usize,
    },
    /// [`Handler::handle`] panicked.
    Panicked,
}

/// Answers calls.
#[async_trait]
pub trait Handler: Send + Sync + 'static {
    /// Answers a call. Runs on the runtime that the server was bound in, and to its end even if the client hangs up.
    async fn handle(&self, call: Call) -> Reply;

    /// Answers a call that is not decided, because of `why`. Must be quick: it runs on the server's own threads.
    fn undecided(&self, call: &Call, why: Undecided) -> Reply;
}
