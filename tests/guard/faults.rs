//! What goes wrong with a call, and what happens between two of them.

use std::time::Duration;

use deployer_guard::cluster::store::Failure;
use kube::ResourceExt;
use serde_json::json;
use tokio::time::sleep;

use crate::faulty::{Fault, Gate, Op};
use crate::scene::{Guard, bound, claim, exists, held, holder, phase, runner, settle, spec, store, until};

#[tokio::test(start_paused = true)]
async fn a_conflict_a_refusal_and_a_lost_answer_are_got_over() {
    let lost = |done| Fault::Lost { done };
    let refused = Fault::Fail(Failure::Forbidden("a rule is missing".into()));
    for fault in [Fault::Conflict, lost(true), lost(false), refused] {
        for op in [Op::Update, Op::DeletePod] {
            let store = store();
            let first = bound(runner("a", "shop", 1));
            store.memory.put(first.clone());
            held(&store, "shop", &first).await;
            store.plan(op, 2, fault.clone());
            let guard = Guard::start(&store);
            store.memory.put(runner("b", "shop", 2));
            until("the duplicate is gone", || !exists(&store, "b")).await;
            store.memory.put(phase(first, "Succeeded"));
            until("freed", || holder(&store, "shop").is_none()).await;
            settle().await;
            assert!(
                claim(&store, "shop").unwrap().spec.condemned.is_empty(),
                "{op:?} {fault:?}"
            );
            assert_eq!(guard.metric("guard_loop_restarts_total", ""), 0);
        }
    }
}

/// Without the right to delete pods, say: leftovers are reported alone, and the key comes to rest.
#[tokio::test(start_paused = true)]
async fn what_is_refused_for_good_is_reported_and_tried_again_in_a_while() {
    let store = store();
    let first = bound(runner("a", "shop", 1));
    store.memory.put(first.clone());
    held(&store, "shop", &first).await;
    let refused = Fault::Fail(Failure::Forbidden("a rule is missing".into()));
    store.plan(Op::DeletePod, usize::MAX, refused);
    let guard = Guard::start(&store);
    store.memory.put(runner("b", "shop", 2));
    sleep(Duration::from_mins(12)).await;
    assert!(exists(&store, "b"));
    let tries = store.calls(Op::DeletePod).len();
    assert!((2..10).contains(&tries), "{tries} tries in 12 minutes");
    let status = claim(&store, "shop").unwrap().status.unwrap_or_default();
    assert!(
        status
            .conditions
            .iter()
            .any(|condition| condition.type_ == "Violated" && condition.status == "True"),
        "{status:?}"
    );
    assert_eq!(guard.metric("violations", ""), 1);
    store.heal();
    sleep(Duration::from_mins(6)).await;
    assert!(!exists(&store, "b"));
    assert_eq!(guard.metric("violations", ""), 0);
}

#[tokio::test(start_paused = true)]
async fn a_read_that_fails_is_tried_again_with_pauses_and_nothing_is_written_meanwhile() {
    let store = store();
    held(&store, "shop", &runner("a", "shop", 1)).await;
    store.plan(Op::Pod, usize::MAX, Fault::Fail(Failure::TimedOut));
    let guard = Guard::start(&store);
    sleep(Duration::from_mins(1)).await;
    assert_eq!(store.writes(), [], "not found and not read are two different answers");
    let tries = store.calls(Op::Pod).len();
    assert!((3..30).contains(&tries), "{tries} tries in a minute");
    assert!(guard.metric("guard_examinations_total", "failed") > 1);
    store.heal();
    sleep(Duration::from_mins(1)).await;
    assert_eq!(holder(&store, "shop"), None);
}

#[tokio::test(start_paused = true)]
async fn an_examination_that_panics_is_counted_and_done_again() {
    let store = store();
    held(&store, "shop", &runner("a", "shop", 1)).await;
    store.plan(Op::Claim, 1, Fault::Panic);
    let guard = Guard::start(&store);
    until("freed", || holder(&store, "shop").is_none()).await;
    assert_eq!(guard.metric("guard_loop_restarts_total", "examination"), 1);
}

/// Between the read and the delete it was bound to a node: the delete's resourceVersion fences it.
#[tokio::test(start_paused = true)]
async fn a_duplicate_that_starts_just_before_its_delete_is_not_deleted() {
    let store = store();
    let first = bound(runner("a", "shop", 1));
    store.memory.put(first.clone());
    held(&store, "shop", &first).await;
    store.before(Op::DeletePod, |memory| memory.put(bound(runner("b", "shop", 2))));
    let guard = Guard::start(&store);
    store.memory.put(runner("b", "shop", 2));
    settle().await;
    assert!(exists(&store, "b"));
    assert_eq!(holder(&store, "shop").as_deref(), Some("a"));
    assert!(guard.has_told("CondemnedStays"), "{:?}", guard.told());
    let condemned = claim(&store, "shop").unwrap().spec.condemned;
    assert_eq!(condemned.len(), 1, "until it is gone");
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_was_made_anew_under_the_name_just_before_the_delete_is_not_deleted_for_the_old_one() {
    let store = store();
    let first = bound(runner("a", "shop", 1));
    store.memory.put(first.clone());
    held(&store, "shop", &first).await;
    store.before(Op::DeletePod, |memory| {
        memory.remove(&runner("b", "shop", 2));
        let mut other = bound(runner("b", "elsewhere", 3));
        other["metadata"]["uid"] = json!("another");
        memory.put(other);
    });
    let _guard = Guard::start(&store);
    store.memory.put(runner("b", "shop", 2));
    settle().await;
    assert!(exists(&store, "b"));
    assert_eq!(holder(&store, "elsewhere").as_deref(), Some("b"));
}

/// A claim that was made anew between the read and the write has another version: what was planned on the old one is not written.
#[tokio::test(start_paused = true)]
async fn a_claim_that_was_made_anew_for_another_pod_just_before_a_write_is_left_to_it() {
    let store = store();
    let gone = held(&store, "shop", &runner("a", "shop", 1)).await;
    let second = bound(runner("b", "shop", 2));
    let next = second.clone();
    store.before(Op::Update, move |memory| {
        let mut anew = serde_json::to_value(&gone).unwrap();
        memory.remove(&anew);
        anew["metadata"] = json!({"namespace": "shop", "name": gone.name_any()});
        let mut spec = spec("shop");
        spec.holder = Some(crate::scene::entry(&next));
        anew["spec"] = serde_json::to_value(spec).unwrap();
        memory.put(anew);
        memory.put(next);
    });
    let _guard = Guard::start(&store);
    settle().await;
    assert_eq!(holder(&store, "shop").as_deref(), Some("b"));
    assert!(exists(&store, "b"));
}

#[tokio::test(start_paused = true)]
async fn a_write_that_is_under_way_is_ended_when_the_guard_is_asked_to_end_and_none_is_begun() {
    let store = store();
    let gate = Gate::shut();
    held(&store, "shop", &runner("a", "shop", 1)).await;
    store.plan(Op::Update, 1, Fault::Hold(gate.clone()));
    let guard = Guard::start(&store);
    until("the write is under way", || store.calls(Op::Update).len() == 1).await;
    held(&store, "other", &runner("b", "other", 1)).await;
    let opened = tokio::spawn(async move {
        sleep(Duration::from_secs(3)).await;
        gate.open();
    });
    guard.end().await;
    assert_eq!(holder(&store, "shop"), None, "it was waited for");
    opened.await.unwrap();
    let before = store.writes();
    settle().await;
    assert_eq!(store.writes(), before);
}
