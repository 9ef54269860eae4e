//! Watches that are silently dead, events that are lost, lists that are old.

use std::time::Duration;

use deployer_guard::api::claim::Phase;
use kube::ResourceExt;
use serde_json::json;
use tokio::time::sleep;

use crate::faulty::{Fault, FaultyStore, Gate, Op};
use crate::scene::{Guard, RUNNERS, bound, claim, exists, held, holder, phase, runner, settle, store, until};

#[tokio::test(start_paused = true)]
async fn what_a_dead_watch_hides_is_found_by_a_list_within_two_minutes_and_the_watch_begins_anew() {
    let store = store();
    let first = bound(runner("a", "shop", 1));
    store.memory.put(first.clone());
    held(&store, "shop", &first).await;
    let guard = Guard::start(&store);
    settle().await;
    store.deafen();
    store.memory.put(runner("b", "shop", 2));
    sleep(Duration::from_secs(130)).await;
    assert!(!exists(&store, "b"), "the duplicate is deleted");
    assert!(guard.metric("guard_missed_changes_total", RUNNERS) >= 1);
    // From the new watch, and not from the next list.
    store.memory.put(phase(first, "Succeeded"));
    let begun = tokio::time::Instant::now();
    until("freed", || holder(&store, "shop").is_none()).await;
    assert!(begun.elapsed() < Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn a_lost_event_of_a_pod_that_went_is_found_by_a_list() {
    let store = store();
    let first = bound(runner("a", "shop", 1));
    store.memory.put(first.clone());
    held(&store, "shop", &first).await;
    let _guard = Guard::start(&store);
    settle().await;
    store.deafen();
    store.memory.remove(&first);
    settle().await;
    store.undeafen();
    assert_eq!(holder(&store, "shop").as_deref(), Some("a"), "nobody knows yet");
    sleep(Duration::from_secs(130)).await;
    assert_eq!(holder(&store, "shop"), None);
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_the_watch_did_not_show_is_found_by_a_list() {
    let store = store();
    let _guard = Guard::start(&store);
    settle().await;
    store.deafen();
    held(&store, "shop", &runner("gone", "shop", 1)).await;
    sleep(Duration::from_secs(700)).await;
    assert_eq!(claim(&store, "shop").unwrap().spec.holder, None);
}

/// Who changes a claim writes its phase a second later, or ends before that.
#[tokio::test(start_paused = true)]
async fn a_phase_that_nobody_wrote_is_put_right() {
    let store = store();
    let first = bound(runner("a", "shop", 1));
    store.memory.put(first.clone());
    held(&store, "shop", &first).await;
    let _guard = Guard::start(&store);
    sleep(Duration::from_secs(130)).await;
    let status = claim(&store, "shop").unwrap().status;
    assert_eq!(status.and_then(|status| status.phase), Some(Phase::Held));
}

/// A list may be from five minutes ago: it only tells where to look.
#[tokio::test(start_paused = true)]
async fn a_list_that_shows_none_of_what_is_there_frees_and_deletes_nothing() {
    let store = store();
    for name in ["a", "b", "c"] {
        let pod = bound(runner(name, name, 1));
        store.memory.put(pod.clone());
        held(&store, name, &pod).await;
    }
    let guard = Guard::start(&store);
    settle().await;
    store.plan(Op::ListPods, usize::MAX, Fault::Stale);
    store.plan(Op::ListClaims, usize::MAX, Fault::Stale);
    sleep(Duration::from_mins(30)).await;
    for name in ["a", "b", "c"] {
        assert_eq!(holder(&store, name).as_deref(), Some(name));
        assert!(exists(&store, name));
    }
    assert_eq!(
        guard.metric("guard_missed_changes_total", ""),
        0,
        "and the watches have missed nothing"
    );
    assert!(store.calls(Op::ListPods).len() > 20);
}

/// Waits for one more call of this kind.
async fn one_more(store: &FaultyStore, op: Op) {
    let before = store.calls(op).len();
    for _ in 0..7000 {
        if store.calls(op).len() > before {
            return;
        }
        sleep(Duration::from_millis(100)).await;
    }
    panic!("no {op:?}");
}

/// The answer may be older than what the watch has said by then.
#[tokio::test(start_paused = true)]
async fn what_the_watch_says_while_a_pod_or_a_claim_is_read_is_not_undone_by_the_answer() {
    for read in [Op::Pod, Op::Claim] {
        let store = store();
        let first = bound(runner("a", "shop", 1));
        store.memory.put(first.clone());
        held(&store, "shop", &first).await;
        let guard = Guard::start(&store);
        sleep(Duration::from_mins(3)).await;
        store.deafen();
        let unheard = if read == Op::Pod {
            first.clone()
        } else {
            serde_json::to_value(claim(&store, "shop")).unwrap()
        };
        let mut changed = unheard.clone();
        changed["metadata"]["annotations"] = json!({ "example.com/unheard": "" });
        store.memory.put(changed);
        // The list shows that something is amiss, and the read after it what.
        let list = if read == Op::Pod { Op::ListPods } else { Op::ListClaims };
        one_more(&store, list).await;
        let gate = Gate::shut();
        store.plan(read, 1, Fault::Late(gate.clone()));
        one_more(&store, read).await;
        store.undeafen();
        store.memory.put(unheard);
        settle().await;
        gate.open();
        settle().await;
        assert_eq!(guard.metric("guard_missed_changes_total", ""), 0, "{read:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn at_rest_there_is_one_list_a_minute_and_few_reads() {
    let store = store();
    for name in ["a", "b", "c"] {
        let pod = bound(runner(name, name, 1));
        store.memory.put(pod.clone());
        held(&store, name, &pod).await;
    }
    let guard = Guard::start(&store);
    // In the first minutes the phases are written, which these claims lack.
    sleep(Duration::from_mins(3)).await;
    let count = || {
        let lists = store.calls(Op::ListPods).len() + store.calls(Op::ListClaims).len();
        (lists, store.calls(Op::Claim).len(), store.writes().len())
    };
    let before = count();
    sleep(Duration::from_hours(1)).await;
    let (lists, claims, writes) = count();
    assert!(
        (50..=67).contains(&(lists - before.0)),
        "{} lists in an hour",
        lists - before.0
    );
    assert!(
        claims - before.1 <= 3 * 13,
        "{} examinations of three keys",
        claims - before.1
    );
    assert_eq!(writes, before.2);
    assert_eq!(guard.metric("guard_missed_changes_total", ""), 0);
}

/// 410, a CRD that is not there, a connection that broke: the watch begins anew, and what is gone by then is noticed.
#[tokio::test(start_paused = true)]
async fn what_went_while_a_watch_was_down_is_noticed_when_it_begins_anew() {
    let store = store();
    let pods: Vec<_> = ["a", "b"].map(|name| bound(runner(name, name, 1))).into();
    for pod in &pods {
        store.memory.put(pod.clone());
        held(&store, pod["metadata"]["name"].as_str().unwrap(), pod).await;
    }
    let _guard = Guard::start(&store);
    settle().await;
    store.deafen();
    store.memory.remove(&pods[0]);
    let gone = claim(&store, "b").unwrap();
    store.memory.remove(&serde_json::to_value(&gone).unwrap());
    sleep(Duration::from_secs(130)).await;
    assert_eq!(holder(&store, "a"), None);
    // b's claim was deleted by somebody: its pod is active, and is adopted when it is next looked at.
    sleep(Duration::from_secs(700)).await;
    let anew = claim(&store, "b").expect("a new claim");
    assert_ne!(anew.uid(), gone.uid());
    assert_eq!(holder(&store, "b").as_deref(), Some("b"));
}
