//! Bounds that are never waited for: what does not fit is turned away at once, so that no queue can grow.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

/// How much may be held and done at a time.
#[derive(Debug)]
pub(crate) struct Limits {
    bodies: Arc<Semaphore>,
    calls: Arc<Semaphore>,
    /// The bound of calls being decided.
    pub(crate) max_calls: usize,
    /// The bound of one body, in bytes.
    pub(crate) max_body: u32,
    /// The bound of all bodies together, in bytes.
    pub(crate) max_bodies: u32,
}

impl Limits {
    pub(crate) fn new(max_body: u32, max_bodies: u32, max_calls: u16) -> Self {
        let (max_calls, permits) = (
            usize::from(max_calls),
            usize::try_from(max_bodies).unwrap_or(usize::MAX),
        );
        Self {
            bodies: Arc::new(Semaphore::new(permits.min(Semaphore::MAX_PERMITS))),
            calls: Arc::new(Semaphore::new(max_calls)),
            max_calls,
            max_body,
            max_bodies,
        }
    }

    /// Room for a body of that many bytes, or nothing if there is none now.
    pub(crate) fn body(&self, bytes: u32) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.bodies).try_acquire_many_owned(bytes).ok()
    }

    /// A place among the calls being decided, or nothing if all are taken.
    pub(crate) fn call(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.calls).try_acquire_owned().ok()
    }
}

/// How much is under way: requests whose answer is not written, and decisions whose client hung up.
#[derive(Clone, Debug)]
pub(crate) struct Underway(watch::Sender<usize>);

impl Underway {
    pub(crate) fn new() -> Self {
        Self(watch::Sender::new(0))
    }

    /// One more, until the mark is dropped.
    pub(crate) fn mark(&self) -> Mark {
        self.0.send_modify(|count| *count += 1);
        Mark(self.0.clone())
    }

    pub(crate) fn count(&self) -> usize {
        *self.0.borrow()
    }

    /// Waits until nothing has been under way for that long.
    pub(crate) async fn idle_for(&self, quiet: Duration) {
        let mut count = self.0.subscribe();
        loop {
            // The sender lives in self: waiting cannot fail.
            let _ = count.wait_for(|count| *count == 0).await;
            if tokio::time::timeout(quiet, count.wait_for(|count| *count > 0))
                .await
                .is_err()
            {
                return;
            }
        }
    }
}

/// Something under way.
#[derive(Debug)]
pub(crate) struct Mark(watch::Sender<usize>);

impl Drop for Mark {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_turned_away_and_fits_again_when_room_is_given_back() {
        let limits = Limits::new(8, 20, 1);
        let first = limits.body(8);
        let second = limits.body(8);
        assert!(first.is_some() && second.is_some());
        assert!(limits.body(8).is_none());
        assert!(limits.body(4).is_some());
        drop(first);
        assert!(limits.body(8).is_some());
        assert!(limits.body(0).is_some());
        let call = limits.call();
        assert!(call.is_some() && limits.call().is_none());
        drop(call);
        assert!(limits.call().is_some());
    }

    #[tokio::test]
    async fn idle_means_quiet_for_a_while() {
        let underway = Underway::new();
        let started = tokio::time::Instant::now();
        let (mark, again) = (underway.mark(), underway.clone());
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(50)).await;
            drop(mark);
            tokio::time::sleep(Duration::from_millis(50)).await;
            let _second = again.mark();
            tokio::time::sleep(Duration::from_millis(50)).await;
        });
        underway.idle_for(Duration::from_millis(500)).await;
        assert!(
            started.elapsed() >= Duration::from_millis(650),
            "the second one began the wait anew"
        );
        assert_eq!(underway.count(), 0);
    }
}
