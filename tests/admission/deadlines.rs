//! Past the deadline nothing is written, and the answer says what took the time.

use std::time::Duration;

use deployer_guard::cluster::store::Failure;
use tokio::time::{Instant, sleep};

use crate::faulty::{Fault, Gate, Op};
use crate::world::{OPENSHIFT, Replica, deployer, runner};

const TIMEOUT: Duration = Duration::from_secs(1);
/// What is left of it for a decision.
const DEADLINE: Duration = Duration::from_millis(900);

#[tokio::test(start_paused = true)]
async fn a_read_that_ends_past_the_deadline_writes_nothing() {
    for op in [Op::Claim, Op::Pod, Op::Pods, Op::Owner] {
        let replica = Replica::new();
        replica.rollout(1, "New");
        let gate = Gate::shut();
        replica.store.plan(op, 1, Fault::Hold(gate.clone()));
        let asked = Instant::now();
        let answer = replica.ask_within(OPENSHIFT, &deployer(1, "u1"), TIMEOUT).await;
        answer.refused(503, "ReadFailed");
        assert!(answer.message().contains("timed out"), "{}", answer.message());
        assert!(
            asked.elapsed() >= DEADLINE && asked.elapsed() < TIMEOUT,
            "{:?}",
            asked.elapsed()
        );
        gate.open();
        sleep(Duration::from_secs(5)).await;
        assert_eq!(replica.store.writes(), 0, "{op:?}");
        assert!(replica.desks.is_idle());
        // The next one is decided.
        replica
            .ask_within(OPENSHIFT, &deployer(1, "u1"), TIMEOUT)
            .await
            .admitted();
    }
}

#[tokio::test(start_paused = true)]
async fn a_write_that_was_sent_and_is_done_after_the_deadline_is_followed() {
    let replica = Replica::new();
    let gate = Gate::shut();
    replica.store.plan(Op::Create, 1, Fault::Hold(gate.clone()));
    let asked = Instant::now();
    let review = runner("a", "u1", "shop");
    replica
        .ask_within("runners", &review, TIMEOUT)
        .await
        .refused(503, "DeadlineExceeded");
    assert!(asked.elapsed() >= DEADLINE && asked.elapsed() < TIMEOUT);
    gate.open();
    sleep(Duration::from_millis(100)).await;
    assert_eq!(replica.spec().pending.len(), 1);
    let late = replica
        .store
        .began()
        .into_iter()
        .filter(|began| began.op.is_write() && began.at > asked + DEADLINE);
    assert_eq!(late.map(|began| began.name).collect::<Vec<_>>(), [""; 0]);
    sleep(Duration::from_mins(1)).await;
    assert_eq!((replica.spec().pending.len(), replica.spec().holder), (0, None));
}

#[tokio::test(start_paused = true)]
async fn one_that_has_no_time_left_is_not_begun() {
    let replica = Replica::new();
    let gate = Gate::shut();
    replica.store.plan(Op::Claim, 1, Fault::Hold(gate.clone()));
    let first = runner("a", "u1", "shop");
    let second = runner("b", "u2", "shop");
    let opens = async {
        sleep(Duration::from_millis(1500)).await;
        gate.open();
    };
    // The first has the longer time; the second comes while its read is under way, and is gone when that ends.
    let (a, b, ()) = tokio::join!(
        replica.ask_within("runners", &first, Duration::from_secs(3)),
        async {
            replica.store.until(Op::Claim, 1).await;
            replica.ask_within("runners", &second, TIMEOUT).await
        },
        opens
    );
    a.admitted();
    b.refused(503, "DeadlineExceeded");
    assert_eq!(replica.spec().holder.unwrap().uid, "u1");
}

/// What went wrong each time is more use than that the time is up.
#[tokio::test(start_paused = true)]
async fn trouble_until_the_deadline_is_named() {
    for (op, cause, text) in [
        (Op::Claim, "ReadFailed", "Claim"),
        (Op::Pods, "ReadFailed", "Pods"),
        (Op::Create, "WriteFailed", "the connection broke"),
    ] {
        let replica = Replica::new();
        let broken = Failure::Unreachable("the connection broke".into());
        let fault = if op.is_write() {
            Fault::Lost { done: false }
        } else {
            Fault::Fail(broken)
        };
        replica.store.plan(op, usize::MAX, fault);
        let asked = Instant::now();
        let answer = replica.ask_within("runners", &runner("a", "u1", "shop"), TIMEOUT).await;
        answer.refused(503, cause);
        assert!(answer.message().contains(text), "{}", answer.message());
        assert!(
            asked.elapsed() >= DEADLINE && asked.elapsed() < TIMEOUT,
            "{:?}",
            asked.elapsed()
        );
        let tries = replica.store.count(op);
        // With ever longer pauses: whoever has trouble is not helped by more requests.
        assert!((3..12).contains(&tries), "{op:?} was tried {tries} times");
    }
}
