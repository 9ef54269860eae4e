//! Claims are freed when their holder ends, and removed when they are of no more use.

use deployer_guard::cluster::store::Store as _;
use std::time::Duration;

use deployer_guard::api::claim::{Outcome, WaitingOwner};
use kube::ResourceExt;
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::faulty::Op;
use crate::scene::{
    Guard, bound, claim, claim_name, entry, exists, held, holder, phase, runner, runners, settle, spec, store, until,
    waits,
};

#[tokio::test(start_paused = true)]
async fn a_holder_that_ends_leaves_a_free_claim_at_once() {
    let store = store();
    let pod = bound(runner("a", "shop", 1));
    store.memory.put(pod.clone());
    held(&store, "shop", &pod).await;
    let guard = Guard::start(&store);
    settle().await;
    assert_eq!(holder(&store, "shop").as_deref(), Some("a"));
    let begun = Instant::now();
    store.memory.put(phase(pod, "Succeeded"));
    until("freed", || holder(&store, "shop").is_none()).await;
    // Of paused time, in which nothing but pauses of ours counts.
    assert!(begun.elapsed() <= Duration::from_millis(100), "{:?}", begun.elapsed());
    settle().await;
    assert!(guard.has_told("ClaimFreed"));
    assert!(guard.metric("guard_actions_total", "ClaimFreed") > 0);
    guard.end().await;
}

/// The pod is gone before anybody can read it: its last state counts, be it shown by an event of its own or by the last one alone.
#[tokio::test(start_paused = true)]
async fn a_pod_that_finished_and_was_removed_at_once_leaves_its_outcome() {
    for by_the_last_event_alone in [false, true] {
        let store = store();
        store.memory.put(runners(json!({"generation": {"label": "run"}})));
        let mut pod = bound(runner("a", "shop", 1));
        pod["metadata"]["labels"]["run"] = "7".into();
        store.memory.put(pod.clone());
        let mut held = spec("shop");
        held.holder = Some(entry(&pod));
        held.holder.as_mut().unwrap().generation = Some("7".into());
        store
            .memory
            .create_claim("shop", &claim_name("shop"), held)
            .await
            .unwrap();
        let _guard = Guard::start(&store);
        settle().await;
        if by_the_last_event_alone {
            store.deafen();
        }
        store.memory.put(phase(pod.clone(), "Succeeded"));
        if by_the_last_event_alone {
            settle().await;
            store.undeafen();
        }
        store.memory.remove(&pod);
        until("freed", || holder(&store, "shop").is_none()).await;
        let outcomes = claim(&store, "shop").unwrap().spec.outcomes;
        let known: Vec<_> = outcomes
            .iter()
            .map(|record| (record.generation.as_str(), record.outcome))
            .collect();
        assert_eq!(known, [("7", Outcome::Completed)], "{by_the_last_event_alone}");
    }
}

/// An examination that is under way when the pod goes reads nothing of it. The watch is about to show how it ended.
#[tokio::test(start_paused = true)]
async fn an_outcome_is_not_called_unknown_a_moment_before_the_watch_shows_it() {
    let store = store();
    store.memory.put(runners(json!({"generation": {"label": "run"}})));
    let mut pod = bound(runner("a", "shop", 1));
    pod["metadata"]["labels"]["run"] = "7".into();
    store.memory.put(pod.clone());
    let mut held = spec("shop");
    held.holder = Some(entry(&pod));
    held.holder.as_mut().unwrap().generation = Some("7".into());
    store
        .memory
        .create_claim("shop", &claim_name("shop"), held)
        .await
        .unwrap();
    let _guard = Guard::start(&store);
    settle().await;
    // The watch is a second late, and something else has the key examined meanwhile.
    store.deafen_to_pods();
    store.memory.remove(&pod);
    let seen = store.calls(Op::Pod).len();
    waits(&store, "shop", vec![WaitingOwner::default()]).await;
    sleep(Duration::from_secs(1)).await;
    store.undeafen();
    assert!(store.calls(Op::Pod).len() > seen, "it was read");
    assert_eq!(holder(&store, "shop").as_deref(), Some("a"), "it is too early");
    let finished = phase(pod, "Succeeded");
    store.memory.put(finished.clone());
    store.memory.remove(&finished);
    until("freed", || holder(&store, "shop").is_none()).await;
    assert_eq!(
        claim(&store, "shop").unwrap().spec.outcomes[0].outcome,
        Outcome::Completed
    );
}

#[tokio::test(start_paused = true)]
async fn a_holder_that_ended_while_no_guard_ran_is_found() {
    let store = store();
    held(&store, "shop", &runner("a", "shop", 1)).await;
    let _guard = Guard::start(&store);
    until("freed", || holder(&store, "shop").is_none()).await;
}

#[tokio::test(start_paused = true)]
async fn a_claim_of_no_more_use_is_removed_and_one_in_use_is_not() {
    let store = store();
    store
        .memory
        .put(runners(json!({"leftovers": {"keepClaimsSeconds": 3600}})));
    let pod = bound(runner("b", "used", 1));
    store.memory.put(pod.clone());
    held(&store, "used", &pod).await;
    held(&store, "shop", &runner("a", "shop", 1)).await;
    let guard = Guard::start(&store);
    until("freed", || holder(&store, "shop").is_none()).await;
    sleep(Duration::from_secs(3500)).await;
    assert!(claim(&store, "shop").is_some());
    sleep(Duration::from_mins(5)).await;
    assert!(claim(&store, "shop").is_none(), "it was of no more use");
    assert!(claim(&store, "used").is_some() && exists(&store, "b"));
    assert!(guard.has_told("ClaimRemoved"));
}

/// Without a policy nobody is admitted under it; what it left is cleaned up, and no pod is touched.
#[tokio::test(start_paused = true)]
async fn claims_of_a_policy_that_is_gone_are_freed_and_removed() {
    let store = store();
    let pod = bound(runner("a", "shop", 1));
    store.memory.put(pod.clone());
    held(&store, "shop", &pod).await;
    let _guard = Guard::start(&store);
    settle().await;
    store.memory.remove(&runners(json!({})));
    settle().await;
    assert_eq!(holder(&store, "shop").as_deref(), Some("a"));
    store.memory.remove(&pod);
    sleep(Duration::from_secs(400)).await;
    assert_eq!(holder(&store, "shop"), None);
    sleep(Duration::from_secs(700_000)).await;
    assert!(claim(&store, "shop").is_none());
}

/// A namespace that dies takes its pods and claims with it.
#[tokio::test(start_paused = true)]
async fn a_namespace_that_dies_is_ordinary() {
    let store = store();
    let pod = bound(runner("a", "shop", 1));
    store.memory.put(pod.clone());
    let claim = held(&store, "shop", &pod).await;
    let guard = Guard::start(&store);
    settle().await;
    store.memory.remove(&serde_json::to_value(&claim).unwrap());
    store.memory.remove(&pod);
    sleep(Duration::from_mins(10)).await;
    assert!(self::claim(&store, "shop").is_none(), "{} came back", claim.name_any());
    assert_eq!(guard.metric("guard_examinations_total", "failed"), 0);
    assert_eq!(guard.metric("guard_loop_restarts_total", ""), 0);
}
