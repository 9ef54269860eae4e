//! A bound on every request: a connection that died without a word must not hold a loop for ever.

use std::time::Duration;

use tokio::time::timeout;

use super::store::Failure;

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
