//! Requests for one key: shared reads, conflicts, lost answers, namesakes, panics, callers that go.

use std::sync::Arc;
use std::time::Duration;

use deployer_guard::cluster::store::Failure;
use futures::future::join_all;
use tokio::time::{Instant, sleep, timeout};

use crate::faulty::{Fault, Gate, Op};
use crate::world::{Replica, runner};

async fn idle(replica: &Replica) {
    let closed = async {
        while !replica.desks.is_idle() {
            sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(Duration::from_secs(2), closed).await.expect("the desk closes");
}

#[tokio::test]
async fn requests_that_come_while_a_read_is_under_way_share_the_next_one() {
    let replica = Arc::new(Replica::new());
    replica.run("runners", &runner("holder", "u0", "shop")).await;
    let before = [Op::Claim, Op::Pod].map(|op| replica.store.count(op));
    let gate = Gate::shut();
    replica.store.plan(Op::Claim, 1, Fault::Hold(gate.clone()));
    let ask = |number: u32| {
        let replica = Arc::clone(&replica);
        let review = runner(&format!("r{number}"), &format!("v{number}"), "shop");
        tokio::spawn(async move { replica.ask("runners", &review).await })
    };
    let first = ask(0);
    replica.store.until(Op::Claim, before[0] + 1).await;
    let others: Vec<_> = (1..16).map(ask).collect();
    sleep(Duration::from_millis(20)).await;
    gate.open();
    for answer in join_all(std::iter::once(first).chain(others)).await {
        answer.unwrap().refused(403, "DeployerActive");
    }
    let after = [Op::Claim, Op::Pod].map(|op| replica.store.count(op));
    assert_eq!(
        after[0] - before[0],
        2,
        "one read of the claim for the first, one for all others"
    );
    // The holder and the first one's own name, in each of the two rounds.
    assert!(after[1] - before[1] <= 4, "{}", after[1] - before[1]);
    assert_eq!((replica.store.count(Op::Pods), replica.store.most_in_flight()), (1, 3));
    idle(&replica).await;
}

#[tokio::test]
async fn a_conflict_begins_again_and_one_is_admitted() {
    for conflicts in [1, 3] {
        let replica = Replica::new();
        replica.store.plan(Op::Create, conflicts, Fault::Conflict);
        let reviews: Vec<_> = (0..8)
            .map(|n| runner(&format!("r{n}"), &format!("u{n}"), "shop"))
            .collect();
        let answers = join_all(reviews.iter().map(|review| replica.ask("runners", review))).await;
        let admitted = answers.iter().filter(|answer| answer.is_allowed()).count();
        assert_eq!((admitted, replica.store.writes()), (1, conflicts + 1));
        for answer in answers.iter().filter(|answer| !answer.is_allowed()) {
            answer.refused(403, "DeployerPending");
        }
    }
}

#[tokio::test]
async fn the_same_uid_again_is_admitted_without_a_second_write() {
    let replica = Replica::new();
    let review = runner("a", "u1", "shop");
    replica.ask("runners", &review).await.admitted();
    let claim = replica.claim();
    replica.ask("runners", &review).await.admitted();
    assert_eq!((replica.store.writes(), replica.claim()), (1, claim));
}

#[tokio::test]
async fn a_lost_answer_admits_once_whether_or_not_the_write_was_done() {
    for done in [true, false] {
        for op in [Op::Create, Op::Update] {
            let replica = Replica::new();
            if op == Op::Update {
                let earlier = runner("earlier", "u0", "shop");
                replica.run("runners", &earlier).await;
                replica.store_pod(&earlier, "Succeeded");
            }
            let before = replica.store.writes();
            replica.store.plan(op, 1, Fault::Lost { done });
            let review = runner("a", "u1", "shop");
            replica.ask("runners", &review).await.admitted();
            let writes = replica.store.writes() - before;
            assert_eq!(writes, if done { 1 } else { 2 }, "{op:?}");
            replica.ask("runners", &review).await.admitted();
            assert_eq!(replica.store.writes() - before, writes, "{op:?} {done}");
            assert_eq!(replica.spec().pending.len(), 1, "{op:?} {done}");
            replica
                .ask("runners", &runner("b", "u2", "shop"))
                .await
                .refused(403, "DeployerPending");
        }
    }
}

/// The first write lands after the second was made on the same version: one of them wins, and both are for this uid.
#[tokio::test(start_paused = true)]
async fn a_write_that_lands_late_changes_nothing() {
    let replica = Replica::new();
    replica
        .store
        .plan(Op::Create, 1, Fault::Late(Duration::from_millis(10)));
    replica.ask("runners", &runner("a", "u1", "shop")).await.admitted();
    sleep(Duration::from_millis(100)).await;
    assert_eq!(replica.spec().pending.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_doubled_create_ends_in_409_once_the_first_has_arrived() {
    let replica = Replica::new();
    let first = runner("a", "u1", "shop");
    replica.ask("runners", &first).await.admitted();
    let second = runner("a", "u2", "shop");
    let arrives = async {
        sleep(Duration::from_millis(200)).await;
        replica.store_pod(&first, "Pending");
    };
    let (answer, ()) = tokio::join!(replica.ask("runners", &second), arrives);
    answer.refused(409, "AlreadyExists");
    replica.settled().await;
    assert_eq!(replica.spec().holder.unwrap().uid, "u1");
}

#[tokio::test(start_paused = true)]
async fn a_namesake_that_does_not_arrive_is_taken_over_and_stays_listed() {
    let replica = Replica::new();
    replica.ask("runners", &runner("a", "u1", "shop")).await.admitted();
    let asked = Instant::now();
    replica.ask("runners", &runner("a", "u2", "shop")).await.admitted();
    let took = asked.elapsed();
    assert!(
        took >= Duration::from_millis(300) && took < Duration::from_millis(400),
        "{took:?}"
    );
    let spec = replica.spec();
    assert_eq!(
        spec.pending.iter().map(|entry| entry.uid.as_str()).collect::<Vec<_>>(),
        ["u1", "u2"]
    );
    assert_eq!(spec.holder.unwrap().uid, "u2");
    // Whichever the store lets in is the holder.
    replica.store_pod(&runner("a", "u1", "shop"), "Running");
    sleep(Duration::from_secs(5)).await;
    assert_eq!(replica.spec().holder.unwrap().uid, "u1");
    replica
        .ask("runners", &runner("b", "u3", "shop"))
        .await
        .refused(403, "DeployerActive");
    // Little time is no reason to refuse.
    let short = Replica::new();
    short.ask("runners", &runner("a", "u1", "shop")).await.admitted();
    short
        .ask_within("runners", &runner("a", "u2", "shop"), Duration::from_millis(500))
        .await
        .admitted();
}

#[tokio::test(start_paused = true)]
async fn a_name_that_is_never_stored_cannot_be_admitted_for_ever() {
    let replica = Replica::new();
    for number in 0..32 {
        replica
            .ask("runners", &runner("a", &format!("u{number}"), "shop"))
            .await
            .admitted();
    }
    replica
        .ask("runners", &runner("a", "one-more", "shop"))
        .await
        .refused(403, "TooManyPending");
    sleep(Duration::from_mins(1)).await;
    replica
        .ask("runners", &runner("a", "one-more", "shop"))
        .await
        .admitted();
}

#[tokio::test]
async fn a_panic_is_undecided_for_those_who_wait_and_the_next_is_decided() {
    for op in [Op::Claim, Op::Pod, Op::Pods, Op::Create] {
        let replica = Replica::new();
        replica.store.plan(op, 1, Fault::Panic);
        let (a, b) = (runner("a", "u1", "shop"), runner("a", "u1", "shop"));
        let (a, b) = tokio::join!(replica.ask("runners", &a), replica.ask("runners", &b));
        a.refused(503, "Panicked");
        // A write is a task of its own: its panic does not reach the next in line.
        if op == Op::Create {
            b.admitted();
        } else {
            b.refused(503, "Panicked");
        }
        replica.ask("runners", &runner("a", "u1", "shop")).await.admitted();
        idle(&replica).await;
        assert!(replica.metric("panics_total", "") > 0.5, "{op:?}");
    }
}

#[tokio::test]
async fn a_caller_that_goes_leaves_nothing_half_done() {
    for op in [Op::Claim, Op::Pod, Op::Create] {
        let replica = Arc::new(Replica::new());
        let gate = Gate::shut();
        replica.store.plan(op, 1, Fault::Hold(gate.clone()));
        let review = runner("a", "u1", "shop");
        let caller = tokio::spawn({
            let (replica, review) = (Arc::clone(&replica), review.clone());
            async move { replica.ask("runners", &review).await }
        });
        replica.store.until(op, 1).await;
        caller.abort();
        assert!(caller.await.unwrap_err().is_cancelled());
        gate.open();
        idle(&replica).await;
        // What was written is followed, though nobody waits for it.
        assert_eq!(replica.claims().len(), replica.followed(), "{op:?}");
        replica.store_pod(&review, "Running");
        timeout(Duration::from_secs(2), replica.settled())
            .await
            .expect("the entry is confirmed");
        if op == Op::Create {
            assert_eq!(replica.spec().holder.unwrap().uid, "u1");
        }
    }
}

/// The desk that closes must not take the one with it that opened a moment later.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_desk_that_closes_takes_nobody_with_it() {
    let replica = Arc::new(Replica::new());
    replica.run("runners", &runner("holder", "u0", "shop")).await;
    let asking = (0..4).map(|task| {
        let replica = Arc::clone(&replica);
        tokio::spawn(async move {
            let review = runner(&format!("r{task}"), &format!("v{task}"), "shop");
            for _ in 0..3000 {
                replica.ask("runners", &review).await.refused(403, "DeployerActive");
            }
        })
    });
    for asked in join_all(asking).await {
        asked.unwrap();
    }
    idle(&replica).await;
}

#[tokio::test]
async fn trouble_with_one_key_is_no_trouble_for_another() {
    let replica = Replica::new();
    let gate = Gate::shut();
    replica.store.plan(Op::Claim, 1, Fault::Hold(gate.clone()));
    let (blue, red) = (runner("a", "u1", "blue"), runner("b", "u2", "red"));
    let held = replica.ask("runners", &blue);
    let other = async {
        replica.store.until(Op::Claim, 1).await;
        replica.ask("runners", &red).await.admitted();
        replica.store.fail(Op::Pods, Failure::TimedOut);
        gate.open();
    };
    let (held, ()) = tokio::join!(held, other);
    held.refused(503, "ReadFailed");
}
