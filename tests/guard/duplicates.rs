//! Deployers that came in beside the holder, or without one.

use std::time::Duration;

use serde_json::json;
use tokio::time::sleep;

use crate::faulty::Op;
use crate::scene::{Guard, RUNNERS, bound, claim, exists, held, holder, phase, runner, runners, settle, store, until};

#[tokio::test(start_paused = true)]
async fn a_duplicate_that_has_not_started_is_deleted_and_the_holder_is_not_touched() {
    let store = store();
    let first = bound(runner("a", "shop", 1));
    store.memory.put(first.clone());
    held(&store, "shop", &first).await;
    let guard = Guard::start(&store);
    settle().await;
    store.memory.put(runner("b", "shop", 2));
    until("the duplicate is gone", || !exists(&store, "b")).await;
    settle().await;
    assert_eq!(holder(&store, "shop").as_deref(), Some("a"));
    assert_eq!(store.calls(Op::DeletePod), ["b"]);
    let claim = claim(&store, "shop").unwrap();
    assert!(claim.spec.condemned.is_empty(), "forgotten when it is gone: {claim:?}");
    for reason in ["DuplicateDeployer", "DuplicateCondemned", "DeployerDeleted"] {
        assert!(guard.has_told(reason), "{reason}: {:?}", guard.told());
    }
    let told = guard.told();
    let (_, about) = told.iter().find(|(reason, _)| reason == "DuplicateDeployer").unwrap();
    for object in ["Pod/a", "Pod/b", "DeployerPolicy/runners"] {
        assert!(about.iter().any(|told| told == object), "{object} in {about:?}");
    }
    assert_eq!(guard.metric("violations", RUNNERS), 0, "it is over");
}

#[tokio::test(start_paused = true)]
async fn one_that_has_started_is_reported_for_as_long_as_it_is_there() {
    let store = store();
    let (first, second) = (bound(runner("a", "shop", 1)), bound(runner("b", "shop", 2)));
    store.memory.put(first.clone());
    held(&store, "shop", &first).await;
    let guard = Guard::start(&store);
    settle().await;
    store.memory.put(second.clone());
    settle().await;
    assert!(exists(&store, "b") && store.calls(Op::DeletePod).is_empty());
    assert_eq!(guard.metric("violations", RUNNERS), 1);
    let condition = |store| {
        let claim = claim(store, "shop").unwrap();
        let conditions = claim.status.unwrap().conditions;
        conditions
            .iter()
            .find(|condition| condition.type_ == "Violated")
            .unwrap()
            .status
            .clone()
    };
    assert_eq!(condition(&store), "True");
    sleep(Duration::from_hours(1)).await;
    assert_eq!(guard.times_told("DuplicateDeployer"), 1, "once, and not at each look");
    store.memory.put(phase(second, "Failed"));
    settle().await;
    assert_eq!(guard.metric("violations", RUNNERS), 0);
    assert_eq!(condition(&store), "False");
    assert_eq!(holder(&store, "shop").as_deref(), Some("a"));
}

#[tokio::test(start_paused = true)]
async fn of_several_without_a_claim_the_oldest_is_adopted() {
    let store = store();
    let guard = Guard::start(&store);
    settle().await;
    for (name, minute) in [("late", 9), ("early", 1), ("middle", 5)] {
        store.memory.put(runner(name, "shop", minute));
    }
    // The first that is seen may be adopted before the others are there; then it stays.
    until("one is left", || {
        ["late", "early", "middle"]
            .iter()
            .filter(|name| exists(&store, name))
            .count()
            == 1
    })
    .await;
    settle().await;
    let left = holder(&store, "shop").unwrap();
    assert!(exists(&store, &left));
    assert!(guard.has_told("DeployerAdopted"));
}

#[tokio::test(start_paused = true)]
async fn in_audit_and_warn_it_is_reported_and_nothing_is_deleted() {
    for mode in ["Audit", "Warn"] {
        let store = store();
        store.memory.put(runners(json!({"mode": mode})));
        let first = bound(runner("a", "shop", 1));
        store.memory.put(first.clone());
        held(&store, "shop", &first).await;
        let guard = Guard::start(&store);
        store.memory.put(runner("b", "shop", 2));
        settle().await;
        assert!(exists(&store, "b") && store.calls(Op::DeletePod).is_empty(), "{mode}");
        assert!(guard.has_told("DuplicateDeployer"), "{mode}");
    }
}

/// `pods/status` takes it, so it cannot be prevented.
#[tokio::test(start_paused = true)]
async fn a_pod_that_is_active_again_after_it_ended_is_a_violation_until_it_ends() {
    let store = store();
    store.memory.put(runners(json!({"generation": {"label": "run"}})));
    let mut pod = bound(runner("a", "shop", 1));
    pod["metadata"]["labels"]["run"] = "7".into();
    store.memory.put(pod.clone());
    let guard = Guard::start(&store);
    until("adopted", || holder(&store, "shop").is_some()).await;
    store.memory.put(phase(pod.clone(), "Succeeded"));
    until("freed", || holder(&store, "shop").is_none()).await;
    store.memory.put(pod.clone());
    settle().await;
    assert!(guard.has_told("DeployerRevived"), "{:?}", guard.told());
    assert_eq!(guard.metric("violations", RUNNERS), 1);
    assert!(exists(&store, "a"));
    store.memory.put(phase(pod, "Succeeded"));
    settle().await;
    assert_eq!(guard.metric("violations", RUNNERS), 0);
}

/// The watch of policies may lag: what counts for a write is the policy as it is stored.
#[tokio::test(start_paused = true)]
async fn a_policy_that_was_disarmed_a_moment_ago_deletes_nothing_though_the_watch_does_not_say_so() {
    let store = store();
    let first = bound(runner("a", "shop", 1));
    store.memory.put(first.clone());
    held(&store, "shop", &first).await;
    let _guard = Guard::start(&store);
    settle().await;
    store.deafen();
    let mut disarmed = runners(json!({"mode": "Audit"}));
    disarmed["metadata"]["generation"] = 2.into();
    store.memory.put(disarmed);
    settle().await;
    store.undeafen();
    store.memory.put(runner("b", "shop", 2));
    settle().await;
    assert!(exists(&store, "b"));
}

#[tokio::test(start_paused = true)]
async fn a_namespace_that_is_labelled_out_has_no_deployers_and_in_again_it_has() {
    let store = store();
    store.memory.put(runners(json!({"match": {
        "objectSelector": {"matchLabels": {"role": "runner"}},
        "namespaceSelector": {"matchLabels": {"guarded": "yes"}},
    }})));
    let namespace = |guarded: &str| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop", "labels": {"guarded": guarded}}});
    store.memory.put(namespace("no"));
    let _guard = Guard::start(&store);
    store.memory.put(bound(runner("a", "shop", 1)));
    settle().await;
    assert!(claim(&store, "shop").is_none());
    store.memory.put(namespace("yes"));
    sleep(Duration::from_secs(400)).await;
    assert_eq!(holder(&store, "shop").as_deref(), Some("a"));
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_says_once_what_it_would_do_and_writes_nothing() {
    let store = store();
    let first = bound(runner("a", "shop", 1));
    store.memory.put(first.clone());
    held(&store, "shop", &first).await;
    held(&store, "other", &runner("gone", "other", 1)).await;
    let options = deployer_guard::guard::reconciler::Options {
        dry_run: true,
        ..Default::default()
    };
    let guard = Guard::start_with(&store, options);
    guard.leading.set(true);
    store.memory.put(runner("b", "shop", 2));
    sleep(Duration::from_mins(20)).await;
    assert_eq!(store.writes(), []);
    for reason in ["DuplicateCondemned", "ClaimFreed"] {
        assert_eq!(guard.times_told(reason), 1, "{reason}: {:?}", guard.told());
    }
    assert!(guard.metric("guard_actions_total", "result=\"dry_run\"") >= 2);
    assert_eq!(guard.metric("guard_actions_total", "result=\"done\""), 0);
}

#[tokio::test(start_paused = true)]
async fn one_whose_identity_cannot_be_read_is_reported_and_blocks_nobody() {
    let store = store();
    let mut pod = runner("a", "", 1);
    pod["metadata"]["labels"] = json!({"role": "runner"});
    store.memory.put(pod);
    let guard = Guard::start(&store);
    sleep(Duration::from_mins(1)).await;
    assert_eq!(guard.times_told("IdentityUnreadable"), 1);
    assert!(store.memory.objects("DeployerClaim").is_empty() && exists(&store, "a"));
}
