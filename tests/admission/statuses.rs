//! The status of claims, written in the background.

use std::sync::Arc;
use std::time::Duration;

use deployer_guard::api::claim::{ClaimEntry, DeployerClaim, DeployerClaimSpec, Phase, Rejection};
use deployer_guard::cluster::store::{Failure, Store};
use deployer_guard::statuses::Statuses;
use deployer_guard::telemetry::metrics::Metrics;
use serde_json::json;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::faulty::{Fault, FaultyStore, Gate, Op};
use crate::world::{OPENSHIFT, Replica, deployer, openshift};

struct Scene {
    store: Arc<FaultyStore>,
    metrics: Arc<Metrics>,
    statuses: Arc<Statuses>,
}

impl Scene {
    fn begin() -> Self {
        let (store, metrics) = (Arc::new(FaultyStore::default()), Arc::new(Metrics::new()));
        let statuses = Arc::new(Statuses::new(Arc::<FaultyStore>::clone(&store), Arc::clone(&metrics)));
        tokio::spawn(Arc::clone(&statuses).run(CancellationToken::new()));
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

/// A scene whose statuses are written until it is asked to end, and then to their end.
async fn ended(scene: impl FnOnce(&Scene)) -> (Scene, Duration) {
    let (store, metrics) = (Arc::new(FaultyStore::default()), Arc::new(Metrics::new()));
    let made = store.create_claim("shop", "cfg", DeployerClaimSpec::default()).await;
    made.unwrap();
    let statuses = Arc::new(Statuses::new(Arc::<FaultyStore>::clone(&store), Arc::clone(&metrics)));
    let stop = CancellationToken::new();
    let running = tokio::spawn(Arc::clone(&statuses).run(stop.clone()));
    let all = Scene {
        store,
        metrics,
        statuses,
    };
    periods(1).await;
    scene(&all);
    let begun = Instant::now();
    stop.cancel();
    running.await.unwrap();
    (all, begun.elapsed())
}

#[tokio::test(start_paused = true)]
async fn what_came_in_before_the_end_is_written() {
    let (scene, took) = ended(|scene| scene.refuse(2)).await;
    assert_eq!(scene.claim().await.status.unwrap().rejections.unwrap().count, 2);
    assert!(
        took < Duration::from_secs(1),
        "it waits for no second to pass: {took:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn what_meets_another_write_at_the_end_is_written_after_it() {
    for fault in [Fault::Conflict, Fault::Lost { done: true }, Fault::Lost { done: false }] {
        let (scene, _) = ended(|scene| {
            scene.refuse(2);
            scene.store.plan(Op::Status, 2, fault.clone());
        })
        .await;
        let status = scene.claim().await.status.unwrap();
        assert_eq!(status.rejections.unwrap().count, 2, "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_end_waits_for_no_store_that_hangs_and_counts_what_is_lost() {
    for op in [Op::Claim, Op::Status] {
        let (scene, took) = ended(|scene| {
            scene.refuse(2);
            scene.store.plan(op, 100, Fault::Hold(Gate::shut()));
        })
        .await;
        assert!(took < Duration::from_secs(5), "{took:?}");
        let lost = scene.metrics.encode();
        assert!(
            lost.contains("deployer_guard_claim_rejections_dropped_total 2"),
            "{op:?}: {lost}"
        );
    }
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

impl Scene {
    /// What the claim counts, and what the metrics say that it does not.
    async fn counted(&self) -> (i64, String) {
        let rejections = self.claim().await.status.and_then(|status| status.rejections);
        let metrics = self.metrics.encode();
        let dropped = metrics
            .lines()
            .find_map(|line| line.strip_prefix("deployer_guard_claim_rejections_dropped_total "));
        (
            rejections.unwrap_or_default().count,
            dropped.unwrap_or_default().to_owned(),
        )
    }

    async fn with_claim() -> Self {
        let scene = Self::begin();
        let made = scene.store.create_claim("shop", "cfg", DeployerClaimSpec::default());
        made.await.unwrap();
        periods(1).await;
        scene
    }
}

/// Whatever becomes of writes whose answers are lost, each refusal is counted once: the next write asks the status for the number
/// of its batch. `Late` is done after the next period's write was sent, and loses against it.
#[tokio::test(start_paused = true)]
async fn a_status_write_whose_answer_was_lost_counts_once() {
    let late = |after| Fault::Late(Duration::from_millis(after));
    for faults in [
        vec![Fault::Lost { done: true }],
        vec![Fault::Lost { done: false }],
        vec![late(100)],
        vec![late(2500)],
        vec![Fault::Conflict, Fault::Lost { done: true }],
        vec![Fault::Lost { done: true }, Fault::Conflict],
        vec![Fault::Lost { done: false }, late(100), Fault::Conflict],
        vec![late(1500), Fault::Lost { done: false }, Fault::Lost { done: true }],
    ] {
        let scene = Scene::with_claim().await;
        for fault in &faults {
            scene.store.plan(Op::Status, 1, fault.clone());
        }
        for _ in 0..6 {
            scene.refuse(7);
            periods(1).await;
        }
        periods(4).await;
        assert_eq!(scene.counted().await, (42, "0".to_owned()), "{faults:?}");
        assert!(scene.store.count(Op::Status) <= 8 + faults.len(), "{faults:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_can_never_be_written_is_given_up_and_counted() {
    let scene = Scene::with_claim().await;
    let broken = Failure::Unreachable("the connection broke".into());
    scene.store.fail(Op::Claim, broken);
    scene.refuse(5);
    periods(40).await;
    scene.store.heal();
    assert_eq!(scene.counted().await, (0, "5".to_owned()));
    scene.refuse(2);
    periods(2).await;
    assert_eq!(scene.counted().await, (2, "5".to_owned()));
}

/// Names of the owners that wait, and their ordinals, as the claim's status says.
async fn waiting(replica: &Replica) -> Vec<(String, Option<i64>)> {
    periods(1).await;
    let status = replica.claim().and_then(|claim| claim.status).unwrap_or_default();
    let waiting = status.waiting.into_iter();
    waiting.map(|owner| (owner.name, owner.ordinal)).collect()
}

/// A replica under a policy with this `wake`, on which `cfg-2` is active and `cfg-3` is refused, twice, and `cfg-1` once.
async fn kept_out(wake: &str, mode: &str) -> Replica {
    let replica = Replica::new();
    let mut policy = openshift(json!({ "mode": mode }));
    policy["spec"]["owner"]["wake"] = wake.into();
    policy["metadata"]["generation"] = 2.into();
    replica.learn(policy);
    tokio::spawn(Arc::clone(&replica.statuses).run(CancellationToken::new()));
    (1..=3).for_each(|version| replica.rollout(version, "New"));
    replica.run(OPENSHIFT, &deployer(2, "u2")).await;
    for (version, uid) in [(3, "u3"), (1, "u1"), (3, "u4")] {
        replica.ask(OPENSHIFT, &deployer(version, uid)).await;
    }
    replica
}

#[tokio::test(start_paused = true)]
async fn owners_that_are_kept_out_wait_until_a_pod_of_theirs_is_admitted() {
    let replica = kept_out("OnRelease", "Enforce").await;
    let of = |names: &[(&str, i64)]| -> Vec<_> {
        let names = names.iter();
        names
            .map(|(name, ordinal)| ((*name).to_owned(), Some(*ordinal)))
            .collect()
    };
    assert_eq!(waiting(&replica).await, of(&[("cfg-3", 3), ("cfg-1", 1)]));
    let status = replica.claim().unwrap().status.unwrap();
    assert_eq!(
        (
            &*status.waiting[0].uid,
            &*status.waiting[0].kind,
            &*status.waiting[0].api_version
        ),
        ("rc-3", "ReplicationController", "v1")
    );
    replica.store_pod(&deployer(2, "u2"), "Succeeded");
    replica.run(OPENSHIFT, &deployer(3, "u5")).await;
    assert_eq!(waiting(&replica).await, of(&[("cfg-1", 1)]));
    // A free key does not cure that: whoever is refused for it does not begin to wait.
    replica.rollout(2, "Complete");
    replica.store_pod(&deployer(3, "u5"), "Succeeded");
    replica
        .ask(OPENSHIFT, &deployer(2, "u6"))
        .await
        .refused(409, "AlreadyExists");
    replica.remove_pod(&deployer(2, "u2"));
    let answer = replica.ask(OPENSHIFT, &deployer(2, "u7")).await;
    answer.refused(403, "OwnerNotEligible");
    assert_eq!(waiting(&replica).await, of(&[("cfg-1", 1)]));
}

#[tokio::test(start_paused = true)]
async fn nobody_waits_where_nobody_is_woken_or_kept_out() {
    for (wake, mode) in [("Never", "Enforce"), ("OnRelease", "Warn"), ("OnRelease", "Audit")] {
        let replica = kept_out(wake, mode).await;
        assert_eq!(waiting(&replica).await, [], "{wake} {mode}");
        let rejections = replica.claim().unwrap().status.unwrap().rejections.unwrap();
        assert_eq!(rejections.count, 3, "{wake} {mode}");
    }
}
