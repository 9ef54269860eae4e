//! Waiting with a limit, and an error that says what was waited for.

use std::time::Duration;

use anyhow::{Context, anyhow};
use tokio::time::{Instant, sleep, timeout_at};

/// How often a condition is looked at.
const POLL: Duration = Duration::from_millis(50);

/// Calls `check` until it succeeds, every 50 ms, for `limit` at most.
///
/// # Errors
/// When `limit` has passed: names `what`, and the last error of `check` as the last state seen.
pub async fn until<T, F, Fut>(what: &str, limit: Duration, mut check: F) -> anyhow::Result<T>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = anyhow::Result<T>>,
{
    let deadline = Instant::now() + limit;
    let mut last = anyhow!("the first look at it did not come back");
    loop {
        match timeout_at(deadline, check()).await {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(state)) => last = state,
            Err(_elapsed) => {}
        }
        if Instant::now() + POLL >= deadline {
            return Err(last).with_context(|| format!("waited {limit:?} for {what}"));
        }
        sleep(POLL).await;
    }
}
