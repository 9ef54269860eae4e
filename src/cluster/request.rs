//! A bound on every request: a connection that died without a word must not hold a loop for ever.

use std::time::Duration;

use tokio::time::timeout;

use super::store::{Failure, ReadError, WriteError};

/// How long the API server may take for one request of the guard.
pub const REQUEST: Duration = Duration::from_secs(10);

/// The answer to a request, if it comes in time.
///
/// # Errors
/// If it does not, or is an error.
pub async fn within<T, E>(request: impl Future<Output = Result<T, E>>) -> Result<T, Failure>
where
    Failure: From<E>,
{
    match timeout(REQUEST, request).await {
        Ok(result) => result.map_err(Failure::from),
        Err(_elapsed) => Err(Failure::TimedOut),
    }
}

/// The same for a read of a [`Store`](super::store::Store): one that takes too long has failed.
///
/// # Errors
/// As the read, which names `what` if it takes too long.
pub async fn read_within<T>(what: &str, read: impl Future<Output = Result<T, ReadError>>) -> Result<T, ReadError> {
    let read = timeout(REQUEST, read).await;
    read.unwrap_or_else(|_| Err(ReadError::timed_out(what)))
}

/// The same for a write: one that takes too long may have been done, and does no harm, since it stays conditional.
///
/// # Errors
/// As the write.
pub async fn write_within<T>(write: impl Future<Output = Result<T, WriteError>>) -> Result<T, WriteError> {
    let written = timeout(REQUEST, write).await;
    written.unwrap_or(Err(WriteError::Unknown(Failure::TimedOut)))
}
