//! The observer follows what was admitted to its end, on its own clock. Time is paused: it passes only in sleeps.

use std::time::Duration;

use deployer_guard::api::claim::{ClaimEntry, DeployerClaim, DeployerClaimSpec};
use deployer_guard::cluster::store::Failure;
use deployer_guard::observer::Origin;
use tokio::time::{Instant, sleep, sleep_until};

use crate::faulty::{Fault, Op};
use crate::world::{OPENSHIFT, Replica, deployer, runner};

fn seconds(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

/// A replica that has just admitted a runner, and when.
async fn admitted() -> (Replica, serde_json::Value, Instant) {
    let replica = Replica::new();
    let review = runner("a", "u1", "shop");
    replica.ask("runners", &review).await.admitted();
    (replica, review, Instant::now())
}

#[tokio::test(start_paused = true)]
async fn a_pod_in_the_store_is_confirmed() {
    let replica = Replica::new();
    replica.rollout(7, "New");
    let review = deployer(7, "u1");
    replica.ask(OPENSHIFT, &review).await.admitted();
    assert_eq!(replica.followed(), 1);
    replica.store_pod(&review, "Pending");
    sleep(seconds(0.1)).await;
    let spec = replica.spec();
    assert_eq!((spec.pending.len(), spec.holder.unwrap().uid.as_str()), (0, "u1"));
    assert_eq!(
        (spec.newest[0].ordinal, spec.newest[0].generation.as_deref()),
        (7, Some("cfg-7"))
    );
    assert_eq!(replica.followed(), 0);
    assert!((replica.metric("pending_confirmed_total", "") - 1.0).abs() < 0.1);
}

#[tokio::test(start_paused = true)]
async fn one_that_finished_before_it_was_seen_leaves_its_outcome() {
    let replica = Replica::new();
    replica.rollout(7, "New");
    let review = deployer(7, "u1");
    replica.ask(OPENSHIFT, &review).await.admitted();
    replica.store_pod(&review, "Succeeded");
    sleep(seconds(0.1)).await;
    let spec = replica.spec();
    assert_eq!((spec.pending.len(), spec.holder), (0, None));
    assert_eq!(format!("{:?}", spec.outcomes[0].outcome), "Completed");
}

#[tokio::test(start_paused = true)]
async fn one_that_never_arrives_is_dropped_after_the_window_and_a_second_look_and_not_before() {
    let (replica, _, since) = admitted().await;
    sleep_until(since + seconds(54.9)).await;
    assert_eq!(replica.spec().pending.len(), 1);
    sleep_until(since + seconds(56.0)).await;
    let spec = replica.spec();
    assert_eq!((spec.pending.len(), spec.holder, spec.outcomes.len()), (0, None, 0));
    assert_eq!(replica.followed(), 0);
    assert!((replica.metric("pending_dropped_total", "") - 1.0).abs() < 0.1);
    let looks: Vec<_> = replica
        .store
        .began()
        .into_iter()
        .filter(|began| began.op == Op::Pod && began.at > since + seconds(45.0))
        .collect();
    let (first, last) = (looks.first().unwrap().at, looks.last().unwrap().at);
    assert!(last >= first + seconds(10.0), "{looks:?}");
    replica.ask("runners", &runner("b", "u2", "shop")).await.admitted();
}

#[tokio::test(start_paused = true)]
async fn one_that_arrives_between_the_looks_is_confirmed() {
    let (replica, review, since) = admitted().await;
    sleep_until(since + seconds(50.0)).await;
    replica.store_pod(&review, "Running");
    sleep_until(since + seconds(70.0)).await;
    let spec = replica.spec();
    assert_eq!((spec.pending.len(), spec.holder.unwrap().uid.as_str()), (0, "u1"));
}

#[tokio::test(start_paused = true)]
async fn reads_that_fail_are_no_misses() {
    let (replica, _, since) = admitted().await;
    sleep_until(since + seconds(44.0)).await;
    replica.store.fail(Op::Pod, Failure::Unreachable("x".into()));
    sleep_until(since + seconds(100.0)).await;
    replica.store.heal();
    sleep_until(since + seconds(109.0)).await;
    assert_eq!(
        replica.spec().pending.len(),
        1,
        "the first look that counts began after 100 s"
    );
    sleep_until(since + seconds(120.0)).await;
    assert_eq!(replica.spec().pending.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_changed_meanwhile_is_read_again() {
    let (replica, review, _) = admitted().await;
    replica
        .store
        .memory
        .put(serde_json::to_value(replica.claim().unwrap()).unwrap());
    replica.store.plan(Op::Update, 2, Fault::Conflict);
    replica.store_pod(&review, "Running");
    sleep(seconds(3.0)).await;
    assert_eq!((replica.spec().pending.len(), replica.followed()), (0, 0));
    assert_eq!(replica.store.count(Op::Update), 3);
}

#[tokio::test(start_paused = true)]
async fn a_write_that_fails_is_tried_again() {
    let (replica, review, _) = admitted().await;
    replica
        .store
        .plan(Op::Update, 1, Fault::Fail(Failure::Forbidden("x".into())));
    replica.store.plan(Op::Update, 1, Fault::Lost { done: true });
    replica.store_pod(&review, "Running");
    sleep(seconds(5.0)).await;
    assert_eq!((replica.spec().pending.len(), replica.followed()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_was_deleted_ends_the_chase() {
    for arrives in [true, false] {
        let (replica, review, since) = admitted().await;
        replica
            .store
            .memory
            .remove(&serde_json::to_value(replica.claim().unwrap()).unwrap());
        if arrives {
            replica.store_pod(&review, "Running");
        }
        sleep_until(since + seconds(60.0)).await;
        assert_eq!((replica.followed(), replica.claim()), (0, None), "{arrives}");
    }
}

#[tokio::test(start_paused = true)]
async fn another_replicas_entry_is_followed_by_whoever_meets_it() {
    let (first, _, _) = admitted().await;
    let replica = Replica::new();
    replica
        .store
        .memory
        .put(serde_json::to_value(first.claim().unwrap()).unwrap());
    replica
        .ask("runners", &runner("b", "u2", "shop"))
        .await
        .refused(403, "DeployerPending");
    let met = Instant::now();
    sleep_until(met + seconds(54.0)).await;
    replica
        .ask("runners", &runner("b", "u2", "shop"))
        .await
        .refused(403, "DeployerPending");
    sleep_until(met + seconds(57.0)).await;
    replica.ask("runners", &runner("b", "u2", "shop")).await.admitted();
}

#[tokio::test(start_paused = true)]
async fn what_is_followed_is_bounded_and_ends() {
    let replica = Replica::new();
    let claim = |number: usize| {
        let entry = |place| ClaimEntry {
            name: "a".into(),
            uid: format!("u{number}-{place}"),
            ..ClaimEntry::default()
        };
        let spec = DeployerClaimSpec {
            pending: (0..32).map(entry).collect(),
            ..DeployerClaimSpec::default()
        };
        let mut claim = DeployerClaim::new(&format!("claim-{number}"), spec);
        claim.metadata.namespace = Some("shop".into());
        claim
    };
    for number in 0..400 {
        replica.observer.saw(&claim(number), Origin::Theirs);
        assert!(replica.followed() <= 10_000);
    }
    replica.observer.saw(&claim(0), Origin::Theirs);
    assert_eq!(replica.followed(), 10_000);
    sleep(seconds(70.0)).await;
    assert_eq!(replica.followed(), 0);
}

/// The answer to the claim's write was lost, and it lands when nobody asks any more.
#[tokio::test(start_paused = true)]
async fn a_write_that_lands_after_its_answer_was_lost_is_followed() {
    for op in [Op::Create, Op::Update] {
        for lands_after in [0.1, 1.0, 20.0] {
            let replica = Replica::new();
            if op == Op::Update {
                let earlier = runner("earlier", "u0", "shop");
                replica.run("runners", &earlier).await;
                replica.store_pod(&earlier, "Succeeded");
            }
            let (before, writes) = (replica.claim(), replica.store.count(op));
            let review = runner("a", "u1", "shop");
            replica.store.plan(op, 1, Fault::Late(seconds(lands_after)));
            // Then nobody finds out whether it was written.
            let asking = replica.ask("runners", &review);
            let breaks = async {
                replica.store.until(op, writes + 1).await;
                replica
                    .store
                    .plan(Op::Claim, 1, Fault::Fail(Failure::Forbidden("x".into())));
            };
            let (answer, ()) = tokio::join!(asking, breaks);
            answer.refused(503, "ReadFailed");
            sleep(seconds(lands_after + 3.0)).await;
            assert_ne!(replica.claim(), before, "{op:?} {lands_after}");
            assert_eq!(replica.followed(), 1, "{op:?} {lands_after}");
            sleep(seconds(60.0)).await;
            assert_eq!(
                (replica.spec().pending.len(), replica.followed()),
                (0, 0),
                "{op:?} {lands_after}"
            );
        }
    }
}
