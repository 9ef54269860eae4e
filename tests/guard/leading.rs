//! One leads, none, or both.

use deployer_guard::cluster::store::Store as _;
use std::time::Duration;

use tokio::time::sleep;

use crate::faulty::Op;
use crate::scene::{Guard, bound, claim, entry, exists, held, holder, phase, runner, settle, spec, store, until};

/// Confirming needs no leader.
#[tokio::test(start_paused = true)]
async fn one_that_does_not_lead_confirms_and_does_nothing_else() {
    let store = store();
    held(&store, "free", &runner("gone", "free", 1)).await;
    let pod = bound(runner("a", "shop", 1));
    store.memory.put(pod.clone());
    let mut admitted = spec("shop");
    admitted.holder = Some(entry(&pod));
    admitted.pending = vec![entry(&pod)];
    store
        .memory
        .create_claim("shop", &crate::scene::claim_name("shop"), admitted)
        .await
        .unwrap();
    let guard = Guard::start(&store);
    guard.leading.set(false);
    store.memory.put(runner("b", "shop", 2));
    until("confirmed", || claim(&store, "shop").unwrap().spec.pending.is_empty()).await;
    sleep(Duration::from_mins(10)).await;
    assert_eq!(holder(&store, "free").as_deref(), Some("gone"));
    assert!(exists(&store, "b"));
    assert_eq!(store.calls(Op::Update).len(), 1, "the confirmation");
    assert_eq!(guard.told(), []);
}

#[tokio::test(start_paused = true)]
async fn one_that_begins_to_lead_examines_everything() {
    let store = store();
    held(&store, "shop", &runner("gone", "shop", 1)).await;
    let guard = Guard::start(&store);
    guard.leading.set(false);
    sleep(Duration::from_mins(10)).await;
    assert_eq!(holder(&store, "shop").as_deref(), Some("gone"));
    guard.leading.set(true);
    until("freed", || holder(&store, "shop").is_none()).await;
}

/// What was true when the examination began is not enough.
#[tokio::test(start_paused = true)]
async fn leadership_that_is_lost_between_the_read_and_the_write_keeps_it_from_writing() {
    let store = store();
    let first = bound(runner("a", "shop", 1));
    store.memory.put(first.clone());
    held(&store, "shop", &first).await;
    let guard = Guard::start(&store);
    settle().await;
    let leading = std::sync::Arc::clone(&guard.leading);
    let seen = store.calls(Op::Pod).len();
    store.before(Op::Pod, move |_| leading.set(false));
    store.memory.put(runner("b", "shop", 2));
    settle().await;
    assert!(store.calls(Op::Pod).len() > seen, "it was read");
    assert!(exists(&store, "b"));
    assert_eq!(store.writes(), [], "{:?}", store.writes());
}

#[tokio::test(start_paused = true)]
async fn two_that_both_lead_do_the_work_of_one() {
    let store = store();
    let first = bound(runner("a", "shop", 1));
    store.memory.put(first.clone());
    held(&store, "shop", &first).await;
    let guards = [Guard::start(&store), Guard::start(&store)];
    for round in 0..20_u32 {
        let name = format!("b{round}");
        store.memory.put(runner(&name, "shop", 2));
        until("the duplicate is gone", || !exists(&store, &name)).await;
        assert_eq!(holder(&store, "shop").as_deref(), Some("a"));
    }
    store.memory.put(phase(first, "Failed"));
    until("freed", || holder(&store, "shop").is_none()).await;
    store.memory.put(runner("c", "shop", 3));
    until("adopted", || holder(&store, "shop").as_deref() == Some("c")).await;
    settle().await;
    assert!(exists(&store, "c"), "the holder is never deleted");
    for guard in guards {
        assert_eq!(guard.metric("guard_loop_restarts_total", ""), 0);
        guard.end().await;
    }
}
