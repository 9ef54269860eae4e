//! Taking stock, and the counts.

use std::time::Duration;

use deployer_guard::cluster::store::Failure;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::faulty::{Fault, Op};
use crate::scene::{Guard, RUNNERS, bound, claim, exists, held, holder, runner, runners, settle, store, until};

/// The policy as it is stored before any guard has taken stock under it.
fn new_policy() -> Value {
    let mut policy = runners(json!({}));
    policy.as_object_mut().unwrap().remove("status");
    policy
}

/// A little less than the pending window, the settling time and the lag of API servers, 45 s, 10 s and 10 s.
const ALMOST: Duration = Duration::from_mins(1);

#[tokio::test(start_paused = true)]
async fn what_was_there_when_a_policy_came_into_force_is_adopted_or_reported_and_never_deleted() {
    let store = store();
    store.memory.put(new_policy());
    for (name, minute) in [("a", 1), ("b", 2), ("c", 3)] {
        store.memory.put(runner(name, "shop", minute));
    }
    let guard = Guard::start(&store);
    let version = guard.in_force(RUNNERS, 1);
    sleep(ALMOST).await;
    assert_eq!(
        guard.board.read(&version).stock_taken,
        None,
        "what was admitted before may still be on its way"
    );
    sleep(Duration::from_secs(15)).await;
    assert!(guard.board.read(&version).stock_taken.is_some());
    sleep(Duration::from_mins(10)).await;
    let claim = claim(&store, "shop").unwrap();
    assert!(claim.spec.holder.is_some() && claim.spec.condemned.is_empty());
    assert!(["a", "b", "c"].iter().all(|name| exists(&store, name)));
    assert!(store.calls(Op::DeletePod).is_empty());
    assert!(
        guard.has_told("DeployerSpared") && guard.has_told("DuplicateDeployer"),
        "{:?}",
        guard.told()
    );
    // One that comes in later is no old friend.
    let mut late = runner("late", "shop", 9);
    late["metadata"]["creationTimestamp"] = "2026-03-01T00:00:00Z".into();
    store.memory.put(late);
    until("the new duplicate is gone", || !exists(&store, "late")).await;
}

#[tokio::test(start_paused = true)]
async fn a_deployer_from_before_the_policy_is_spared_and_adopted_in_one_write() {
    let store = store();
    store.memory.put(new_policy());
    let guard = Guard::start(&store);
    settle().await;
    store.memory.put(bound(runner("a", "shop", 1)));
    settle().await;
    let spec = claim(&store, "shop").unwrap().spec;
    assert_eq!((spec.holder.unwrap().name.as_str(), spec.spared.len()), ("a", 1));
    for reason in ["DeployerSpared", "DeployerAdopted"] {
        assert_eq!(guard.times_told(reason), 1, "{reason}: {:?}", guard.told());
    }
    let writes = [store.calls(Op::Create).len(), store.calls(Op::Update).len()];
    assert_eq!(writes, [1, 0]);
}

#[tokio::test(start_paused = true)]
async fn stock_is_not_taken_while_one_key_cannot_be_examined() {
    let store = store();
    store.memory.put(new_policy());
    store.memory.put(runner("a", "shop", 1));
    let guard = Guard::start(&store);
    let version = guard.in_force(RUNNERS, 1);
    sleep(Duration::from_secs(30)).await;
    store.plan(Op::Claim, usize::MAX, Fault::Fail(Failure::TimedOut));
    sleep(Duration::from_mins(5)).await;
    assert_eq!(guard.board.read(&version).stock_taken, None);
    store.heal();
    sleep(Duration::from_mins(1)).await;
    assert!(guard.board.read(&version).stock_taken.is_some());
}

/// The lists that fail come at growing pauses, and the first that does not fail takes stock.
#[tokio::test(start_paused = true)]
async fn stock_that_cannot_be_taken_is_tried_ever_more_slowly_and_told_by_metrics() {
    let store = store();
    store.memory.put(new_policy());
    let guard = Guard::start(&store);
    guard.in_force(RUNNERS, 1);
    sleep(ALMOST).await;
    assert_eq!(guard.metric("policies_stock_not_taken ", ""), 1);
    store.plan(Op::ListPods, usize::MAX, Fault::Fail(Failure::TimedOut));
    sleep(Duration::from_mins(10)).await;
    let failures = guard.metric("guard_stock_failures_total", RUNNERS);
    // One each second would be 600.
    assert!((10..60).contains(&failures), "{failures}");
    assert_eq!(guard.metric("policies_stock_not_taken ", ""), 1);
    store.heal();
    sleep(Duration::from_mins(2)).await;
    assert_eq!(guard.metric("policies_stock_not_taken ", ""), 0);
}

#[tokio::test(start_paused = true)]
async fn an_entry_that_vanished_meanwhile_makes_it_wait_again() {
    let store = store();
    store.memory.put(new_policy());
    let guard = Guard::start(&store);
    let version = guard.in_force(RUNNERS, 1);
    sleep(Duration::from_secs(40)).await;
    guard.board.note(&version, |notice| notice.in_force_since = None);
    sleep(Duration::from_mins(1)).await;
    assert_eq!(guard.board.read(&version).stock_taken, None);
    guard.in_force(RUNNERS, 1);
    sleep(Duration::from_mins(1)).await;
    assert_eq!(guard.board.read(&version).stock_taken, None);
    sleep(Duration::from_secs(15)).await;
    assert!(guard.board.read(&version).stock_taken.is_some(), "of nothing, too");
}

#[tokio::test(start_paused = true)]
async fn one_that_does_not_lead_takes_no_stock() {
    let store = store();
    store.memory.put(new_policy());
    let guard = Guard::start(&store);
    guard.leading.set(false);
    let version = guard.in_force(RUNNERS, 1);
    sleep(Duration::from_mins(5)).await;
    assert_eq!(guard.board.read(&version).stock_taken, None);
}

/// The stored entry says so: it stood without a break.
#[tokio::test(start_paused = true)]
async fn stock_that_the_stored_entry_tells_of_is_not_taken_again_after_a_restart() {
    let store = store();
    let guard = Guard::start(&store);
    let version = guard.in_force(RUNNERS, 1);
    guard.board.note(&version, |notice| notice.stocked = true);
    sleep(Duration::from_mins(5)).await;
    assert_eq!(guard.board.read(&version).stock_taken, None);
}

/// The policy's status still tells of the stock of before: it is no reason to believe anything.
#[tokio::test(start_paused = true)]
async fn after_an_uninstall_and_a_reinstall_stock_is_taken_anew() {
    let store = store();
    store.memory.put(runner("a", "shop", 1));
    let guard = Guard::start(&store);
    let version = guard.in_force(RUNNERS, 1);
    guard.board.note(&version, |notice| notice.stocked = true);
    sleep(ALMOST).await;
    // As the configuration's guardian notes it when the entry is not there.
    guard.board.note(&version, |notice| {
        (notice.in_force_since, notice.stocked, notice.stock_taken) = (None, false, None);
    });
    store.memory.put(runner("b", "blog", 2));
    sleep(Duration::from_mins(2)).await;
    assert!(!guard.board.read(&version).is_stock_taken(), "it is not in force");
    guard.in_force(RUNNERS, 1);
    sleep(ALMOST).await;
    assert!(
        !guard.board.read(&version).is_stock_taken(),
        "an old record is no stock"
    );
    sleep(Duration::from_secs(15)).await;
    let notice = guard.board.read(&version);
    assert!(notice.is_stock_taken() && !notice.stocked, "{notice:?}");
    assert!(claim(&store, "blog").is_some(), "who came in meanwhile has a claim");
}

/// While the entry is missing, and until stock is taken again, the status says nothing of it; another guard cannot know more.
#[tokio::test(start_paused = true)]
async fn what_came_in_during_a_bypass_is_no_old_friend_to_a_guard_that_was_started_later() {
    let store = store();
    let mut policy = runners(json!({}));
    policy["status"] = json!({ "firstStockTakenAt": "2026-01-01T01:00:00Z" });
    store.memory.put(policy);
    store.memory.put(bound(runner("holder", "shop", 1)));
    held(&store, "shop", &bound(runner("holder", "shop", 1))).await;
    store.memory.put(runner("duplicate", "shop", 2));
    let _guard = Guard::start(&store);
    until("the duplicate is gone", || !exists(&store, "duplicate")).await;
    assert!(exists(&store, "holder"));
    assert!(claim(&store, "shop").unwrap().spec.spared.is_empty());
}

#[tokio::test(start_paused = true)]
async fn counts_are_noted() {
    let store = store();
    for (name, app) in [("a", "shop"), ("b", "shop"), ("c", "blog")] {
        store.memory.put(bound(runner(name, app, 1)));
    }
    held(&store, "shop", &bound(runner("a", "shop", 1))).await;
    let guard = Guard::start(&store);
    let version = guard.in_force(RUNNERS, 1);
    sleep(Duration::from_secs(15)).await;
    let counts = guard.board.read(&version).counts.unwrap();
    assert_eq!(
        (counts.claims, counts.active, counts.violations, counts.pending),
        (2, 3, 1, 0)
    );
    assert_eq!(holder(&store, "blog").as_deref(), Some("c"));
}

/// The watch shows the pods of all namespaces that the label matches.
#[tokio::test(start_paused = true)]
async fn deployers_in_namespaces_that_the_policy_does_not_speak_of_are_neither_counted_nor_told_of() {
    let store = store();
    store.memory.put(runners(json!({"match": {
        "objectSelector": {"matchLabels": {"role": "runner"}},
        "namespaceSelector": {"matchLabels": {"team": "a"}},
    }})));
    for (namespace, team) in [("shop", "a"), ("other", "b")] {
        store.memory.put(json!({
            "apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": namespace, "uid": format!("ns-{namespace}"), "labels": {"team": team}},
        }));
    }
    for namespace in ["shop", "other", "kube-system", "deployer-guard"] {
        for (name, app) in [("fine", Some("app")), ("unreadable", None)] {
            let mut pod = bound(runner(&format!("{namespace}-{name}"), "app", 1));
            pod["metadata"]["namespace"] = namespace.into();
            pod["metadata"]["labels"]["app"] = json!(app.unwrap_or_default());
            store.memory.put(pod);
        }
    }
    let guard = Guard::start(&store);
    let version = guard.in_force(RUNNERS, 1);
    sleep(Duration::from_secs(15)).await;
    assert_eq!(guard.board.read(&version).counts.unwrap().active, 2);
    let told: Vec<_> = guard
        .told()
        .into_iter()
        .filter(|(reason, _)| reason == "IdentityUnreadable")
        .collect();
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].1.contains(&"Pod/shop-unreadable".to_owned()), "{told:?}");
}
