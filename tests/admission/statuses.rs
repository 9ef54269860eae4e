//! The status of claims, written in the background.

use std::sync::Arc;
use std::time::Duration;

use deployer_guard::api::claim::{ClaimEntry, DeployerClaim, DeployerClaimSpec, Phase, Rejection};
use deployer_guard::cluster::memory::MemoryStore;
use deployer_guard::cluster::store::Store;
use deployer_guard::statuses::Statuses;
use deployer_guard::telemetry::metrics::Metrics;
use tokio::time::sleep;

struct Scene {
    store: Arc<MemoryStore>,
    metrics: Arc<Metrics>,
    statuses: Arc<Statuses>,
}

impl Scene {
    fn begin() -> Self {
        let (store, metrics) = (Arc::new(MemoryStore::new()), Arc::new(Metrics::new()));
        let statuses = Arc::new(Statuses::new(Arc::<MemoryStore>::clone(&store), Arc::clone(&metrics)));
        tokio::spawn(Arc::clone(&statuses).run());
        Self {
            store,
            metrics,
            statuses,
        }
    }

    async fn claim(&self) -> DeployerClaim {
        self.store.claim("shop", "cfg").await.unwrap().unwrap()
    }

    fn refuse(&self, times: usize) {
        for pod in 0..times {
            self.statuses.refused(
                "shop",
                "cfg",
                Rejection {
                    pod: format!("pod-{pod}"),
                    ..Rejection::default()
                },
            );
        }
    }
}

async fn periods(count: u32) {
    sleep(Duration::from_millis(1100) * count).await;
}

#[tokio::test(start_paused = true)]
async fn refusals_of_one_second_are_written_together_and_counted_each() {
    let scene = Scene::begin();
    let holder = Some(ClaimEntry {
        uid: "u".into(),
        ..ClaimEntry::default()
    });
    let made = scene
        .store
        .create_claim(
            "shop",
            "cfg",
            DeployerClaimSpec {
                holder,
                ..DeployerClaimSpec::default()
            },
        )
        .await;
    let first: u64 = made.unwrap().metadata.resource_version.unwrap().parse().unwrap();
    periods(1).await;
    scene.refuse(100);
    periods(1).await;
    let claim = scene.claim().await;
    let status = claim.status.unwrap();
    assert_eq!(status.phase, Some(Phase::Held));
    let rejections = status.rejections.unwrap();
    assert_eq!((rejections.count, rejections.recent.len()), (100, 10));
    let last: u64 = claim.metadata.resource_version.unwrap().parse().unwrap();
    assert_eq!(last, first + 1, "one write");
    scene.refuse(1);
    periods(1).await;
    assert_eq!(scene.claim().await.status.unwrap().rejections.unwrap().count, 101);
}

#[tokio::test(start_paused = true)]
async fn refusals_of_a_claim_that_is_gone_are_counted_as_dropped() {
    let scene = Scene::begin();
    periods(1).await;
    scene.refuse(7);
    periods(1).await;
    let metrics = scene.metrics.encode();
    assert!(
        metrics.contains("deployer_guard_claim_rejections_dropped_total 7"),
        "{metrics}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_phase_that_did_not_change_is_not_written() {
    let scene = Scene::begin();
    scene
        .store
        .create_claim("shop", "cfg", DeployerClaimSpec::default())
        .await
        .unwrap();
    scene.statuses.changed(&scene.claim().await);
    periods(1).await;
    let written = scene.claim().await;
    assert_eq!(
        written.status.as_ref().and_then(|status| status.phase),
        Some(Phase::Free)
    );
    scene.statuses.changed(&written);
    periods(2).await;
    assert_eq!(scene.claim().await, written);
}
