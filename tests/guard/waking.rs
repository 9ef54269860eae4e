//! Owners that wait for a key are touched once when it becomes free.

use std::time::Duration;

use deployer_guard::api::claim::WaitingOwner;
use deployer_guard::cluster::store::Failure;
use serde_json::json;
use tokio::time::sleep;

use crate::faulty::{Fault, FaultyStore, Op};
use crate::scene::{Guard, bound, claim, held, phase, runner, runners, settle, store, until, waits};

fn owner(name: &str, ordinal: i64) -> WaitingOwner {
    WaitingOwner {
        name: name.into(),
        uid: format!("uid-{name}"),
        kind: "Job".into(),
        api_version: "batch/v1".into(),
        ordinal: Some(ordinal),
        ..WaitingOwner::default()
    }
}

fn put_owner(store: &FaultyStore, name: &str) {
    store.memory.put(json!({
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"namespace": "shop", "name": name, "uid": format!("uid-{name}")},
    }));
}

fn waking(wake: &str) -> serde_json::Value {
    runners(json!({"owner": {"apiVersion": "batch/v1", "kind": "Job", "wake": wake}}))
}

fn waiting(store: &FaultyStore) -> usize {
    claim(store, "shop").unwrap().status.unwrap_or_default().waiting.len()
}

#[tokio::test(start_paused = true)]
async fn each_is_touched_once_newest_first_and_waits_no_longer() {
    let store = store();
    store.memory.put(waking("OnRelease"));
    let pod = bound(runner("a", "shop", 1));
    store.memory.put(pod.clone());
    held(&store, "shop", &pod).await;
    for name in ["one", "two", "three"] {
        put_owner(&store, name);
    }
    waits(
        &store,
        "shop",
        vec![owner("three", 3), owner("two", 2), owner("one", 1)],
    )
    .await;
    let guard = Guard::start(&store);
    settle().await;
    assert!(store.calls(Op::Annotate).is_empty(), "the key is taken");
    store.memory.put(phase(pod, "Succeeded"));
    until("nobody waits", || waiting(&store) == 0).await;
    sleep(Duration::from_mins(10)).await;
    assert_eq!(store.calls(Op::Annotate), ["three", "two", "one"]);
    assert_eq!(guard.times_told("OwnerWoken"), 3);
    let woken = store.memory.objects("Job");
    assert!(
        woken
            .iter()
            .all(|job| job["metadata"]["annotations"]["deployer-guard.io/woken-at"].is_string())
    );
}

/// The list is written in the background: the key may be free by then.
#[tokio::test(start_paused = true)]
async fn one_that_is_listed_when_the_key_is_free_already_is_woken_too() {
    let store = store();
    store.memory.put(waking("OnRelease"));
    held(&store, "shop", &runner("gone", "shop", 1)).await;
    put_owner(&store, "one");
    let _guard = Guard::start(&store);
    settle().await;
    waits(&store, "shop", vec![owner("one", 1)]).await;
    until("woken", || store.calls(Op::Annotate) == ["one"]).await;
}

#[tokio::test(start_paused = true)]
async fn one_that_is_gone_or_may_not_be_touched_keeps_no_other_from_being_woken() {
    let store = store();
    store.memory.put(waking("OnRelease"));
    held(&store, "shop", &runner("gone", "shop", 1)).await;
    put_owner(&store, "two");
    waits(&store, "shop", vec![owner("gone", 3), owner("two", 2)]).await;
    let _guard = Guard::start(&store);
    until("nobody waits", || waiting(&store) == 0).await;
    settle().await;
    assert_eq!(store.calls(Op::Annotate), ["gone", "two"]);
}

#[tokio::test(start_paused = true)]
async fn a_wake_whose_answer_is_lost_is_done_again() {
    let store = store();
    store.memory.put(waking("OnRelease"));
    held(&store, "shop", &runner("gone", "shop", 1)).await;
    put_owner(&store, "one");
    waits(&store, "shop", vec![owner("one", 1)]).await;
    store.plan(Op::Annotate, 1, Fault::Lost { done: false });
    store.plan(
        Op::Annotate,
        1,
        Fault::Fail(Failure::Forbidden("a rule is missing".into())),
    );
    let guard = Guard::start(&store);
    // What is refused for good is tried again at the next look.
    sleep(Duration::from_mins(6)).await;
    until("woken", || guard.has_told("OwnerWoken")).await;
    assert_eq!(store.calls(Op::Annotate).len(), 3);
}

#[tokio::test(start_paused = true)]
async fn nobody_is_woken_where_the_policy_says_never() {
    let store = store();
    store.memory.put(waking("Never"));
    held(&store, "shop", &runner("gone", "shop", 1)).await;
    put_owner(&store, "one");
    waits(&store, "shop", vec![owner("one", 1)]).await;
    let _guard = Guard::start(&store);
    sleep(Duration::from_mins(10)).await;
    assert!(store.calls(Op::Annotate).is_empty());
}
