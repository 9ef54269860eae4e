//! SIGTERM and SIGINT: the first asks for a graceful end, the second for an end at once.

use std::future::pending;
use std::io;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// The signals that ask this process to end. Clones see the same signals.
#[derive(Clone, Debug)]
pub struct Signals(watch::Receiver<u32>);

/// Signals by hand, for tests and for what ends for another reason.
#[derive(Clone, Debug)]
pub struct Trigger(watch::Sender<u32>);

impl Signals {
    /// Listens for SIGTERM and SIGINT from now on; they do not end the process any more by themselves. Needs a tokio
    /// runtime.
    ///
    /// # Errors
    /// If the system refuses a handler.
    pub fn install() -> io::Result<Self> {
        let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let (trigger, signals) = Self::manual();
        tokio::spawn(async move {
            loop {
                let name = tokio::select! {
                    Some(()) = terminate.recv() => "SIGTERM",
                    Some(()) = interrupt.recv() => "SIGINT",
                    else => return,
                };
                tracing::info!(signal = name, "asked to end");
                trigger.fire();
            }
        });
        Ok(signals)
    }

    /// Signals that come from the trigger instead.
    #[must_use]
    pub fn manual() -> (Trigger, Self) {
        let (sender, receiver) = watch::channel(0);
        (Trigger(sender), Self(receiver))
    }

    /// Completes when the end has been asked for.
    pub async fn first(&self) {
        self.at_least(1).await;
    }

    /// Completes when the end has been asked for twice.
    pub async fn second(&self) {
        self.at_least(2).await;
    }

    async fn at_least(&self, wanted: u32) {
        if self.0.clone().wait_for(|count| *count >= wanted).await.is_err() {
            // Nobody is left to ask.
            pending::<()>().await;
        }
    }
}

impl Trigger {
    /// Asks for the end, once more.
    pub fn fire(&self) {
        self.0.send_modify(|count| *count = count.saturating_add(1));
    }
}
