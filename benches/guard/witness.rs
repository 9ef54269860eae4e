//! A watch of all claims: when each was held, and when it was free.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::Context;
use deployer_guard::api::DeployerClaim;
use futures::StreamExt;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

/// Claims by config, each with when it was first seen free after it was held; `None`: it is held.
pub(crate) type Claims = HashMap<String, Option<Instant>>;

/// Watches until it is dropped.
pub(crate) struct Witness {
    claims: watch::Receiver<Claims>,
    watching: JoinHandle<()>,
}

impl Witness {
    pub(crate) fn start(client: Client) -> Self {
        let (seen, claims) = watch::channel(Claims::new());
        let watching = tokio::spawn(async move {
            let api: Api<DeployerClaim> = Api::all(client);
            let events = watcher(api, watcher::Config::default()).default_backoff();
            events
                .for_each(|event| {
                    if let Ok(Event::Apply(claim) | Event::InitApply(claim)) = event {
                        let held = claim.spec.holder.is_some();
                        seen.send_if_modified(|claims| note(claims, claim.spec.config, held, Instant::now()));
                    }
                    std::future::ready(())
                })
                .await;
        });
        Self { claims, watching }
    }

    /// When the claim of a config was seen free.
    ///
    /// # Errors
    /// If it is not within `limit`.
    pub(crate) async fn freed(&self, config: &str, limit: Duration) -> anyhow::Result<Instant> {
        let mut claims = self.claims.clone();
        let free = claims.wait_for(|claims| claims.get(config).is_some_and(Option::is_some));
        let claims = timeout(limit, free)
            .await
            .with_context(|| format!("the claim of {config} is not free after {limit:?}"))??;
        claims.get(config).copied().flatten().context("a claim")
    }

    /// Waits until so many claims are held.
    ///
    /// # Errors
    /// If they are not within `limit`.
    pub(crate) async fn held(&self, count: usize, limit: Duration) -> anyhow::Result<()> {
        let mut claims = self.claims.clone();
        let held = claims.wait_for(|claims| claims.values().filter(|freed| freed.is_none()).count() == count);
        match timeout(limit, held).await {
            Ok(held) => held.map(drop).context("the watch of claims ended"),
            Err(_elapsed) => {
                let held = self.claims.borrow().values().filter(|freed| freed.is_none()).count();
                anyhow::bail!("after {limit:?} {held} claims are held, and not {count}")
            }
        }
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        self.watching.abort();
    }
}

/// Whether it was news.
fn note(claims: &mut Claims, config: String, held: bool, now: Instant) -> bool {
    if held {
        return claims.insert(config, None) != Some(None);
    }
    match claims.get_mut(&config) {
        Some(freed @ None) => {
            *freed = Some(now);
            true
        }
        _ => false,
    }
}
