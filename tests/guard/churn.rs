//! Two guards that both lead, while pods come, start, end and go, and calls fail: what must never happen does not.

use std::sync::Arc;
use std::time::Duration;

use deployer_guard::api::claim::Outcome;
use deployer_guard::cluster::store::{Failure, Store as _};
use jiff::Timestamp;
use serde_json::Value;
use tokio::time::sleep;

use crate::faulty::{Fault, FaultyStore, Op};
use crate::scene::{Guard, bound, claim, claim_name, entry, exists, phase, runner, spec, store};

const SEEDS: u64 = 60;
const STEPS: usize = 120;

/// The same numbers each time: a failure names its seed.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % bound
    }
}

fn is_active(pod: &Value) -> bool {
    !["Succeeded", "Failed"].contains(&pod["status"]["phase"].as_str().unwrap_or_default())
}

/// A pod is admitted, as the webhook would, if nobody stands in its way at this moment; it arrives in the store a little later.
async fn admit(store: &Arc<FaultyStore>, numbers: &mut Numbers, made: &mut usize) -> bool {
    let app = ["one", "two"][numbers.below(2)];
    let works = |pod: &Value| is_active(pod) && pod["metadata"]["labels"]["app"] == app;
    let Some(found) = claim(store, app) else {
        return false;
    };
    if !found.spec.pending.is_empty() || store.memory.objects("Pod").iter().any(works) {
        return false;
    }
    *made += 1;
    let pod = runner(&format!("pod-{made}"), app, 59);
    let ended: Vec<_> = found
        .spec
        .entries()
        .map(|entry| (entry.clone(), Outcome::Unknown))
        .collect();
    let next = found.spec.admitted(entry(&pod), &ended, Timestamp::now());
    store.memory.update_claim(&found, next).await.unwrap();
    let (memory, pause) = (Arc::clone(&store.memory), numbers.below(100));
    tokio::spawn(async move {
        sleep(Duration::from_millis(pause as u64)).await;
        memory.put(pod);
    });
    true
}

/// Something happens to a pod, or a new one comes in unasked; more of these where it is crowded.
fn step(store: &FaultyStore, numbers: &mut Numbers, made: &mut usize, crowded: bool) {
    let pods = store.memory.objects("Pod");
    let active: Vec<&Value> = pods.iter().filter(|pod| is_active(pod)).collect();
    let any = |numbers: &mut Numbers| (!active.is_empty()).then(|| active[numbers.below(active.len())].clone());
    match numbers.below(6) {
        what if what == 0 || (what == 1 && crowded) => {
            *made += 1;
            let app = ["one", "two"][numbers.below(2)];
            store
                .memory
                .put(runner(&format!("pod-{made}"), app, u32::try_from(*made % 60).unwrap()));
        }
        2 => any(numbers).into_iter().for_each(|pod| store.memory.put(bound(pod))),
        1 | 3 => any(numbers)
            .into_iter()
            .for_each(|pod| store.memory.put(phase(pod, "Succeeded"))),
        4 => any(numbers).into_iter().for_each(|pod| drop(store.memory.remove(&pod))),
        _ => {
            let ops = [Op::Update, Op::DeletePod, Op::Create, Op::Claim, Op::Pod];
            let op = ops[numbers.below(ops.len())];
            let refused = Fault::Fail(Failure::TimedOut);
            let fault = match numbers.below(4) {
                0 if op.is_write() => Fault::Conflict,
                1 if op.is_write() => Fault::Lost { done: true },
                2 if op.is_write() => Fault::Lost { done: false },
                _ => refused,
            };
            store.plan(op, 1, fault);
        }
    }
}

/// How many pods were admitted.
async fn run(seed: u64) -> usize {
    let (store, mut numbers, mut made, mut admitted) = (store(), Numbers(seed), 0, 0);
    for app in ["one", "two"] {
        store
            .memory
            .create_claim("shop", &claim_name(app), spec(app))
            .await
            .unwrap();
    }
    store.slow(seed);
    let _guards = [Guard::start(&store), Guard::start(&store)];
    for number in 0..STEPS {
        step(&store, &mut numbers, &mut made, seed.is_multiple_of(2));
        admitted += usize::from(admit(&store, &mut numbers, &mut made).await);
        if numbers.below(10) == 0 {
            store.deafen();
        }
        sleep(Duration::from_millis([0, 1, 3, 20, 400][numbers.below(5)])).await;
        assert_eq!(store.wrong(), Vec::<String>::new(), "seed {seed}, step {number}");
    }
    store.heal();
    // Claims are listed every eleven minutes at the least, and what was not heard of is given up a minute later.
    sleep(Duration::from_mins(15)).await;
    assert_eq!(store.wrong(), Vec::<String>::new(), "seed {seed}, at the end");
    at_the_end(&store, seed);
    admitted
}

/// When nothing happens any more, each key is held if anybody works for it, and no duplicate is left that had not started.
fn at_the_end(store: &Arc<FaultyStore>, seed: u64) {
    for app in ["one", "two"] {
        let pods = store.memory.objects("Pod");
        let active: Vec<&Value> = pods
            .iter()
            .filter(|pod| is_active(pod) && pod["metadata"]["labels"]["app"] == app)
            .collect();
        let unstarted = active.iter().filter(|pod| pod["spec"]["nodeName"].is_null()).count();
        let names: Vec<_> = active.iter().map(|pod| &pod["metadata"]["name"]).collect();
        let spec = claim(store, app).map(|claim| claim.spec);
        assert!(unstarted <= 1, "seed {seed}: {names:?} are left of {app}: {spec:?}");
        let Some(spec) = spec else {
            assert!(active.is_empty(), "seed {seed}: {names:?} of {app} have no claim");
            continue;
        };
        let kept = spec.holder.is_some() || !spec.spared.is_empty();
        // One that has ended stays condemned until it is gone: a delete that somebody planned may still be on its way.
        let condemned = spec.condemned.iter().filter(|pod| exists(store, &pod.name)).count();
        assert_eq!(condemned, spec.condemned.len(), "seed {seed}: {spec:?}");
        let right = if active.is_empty() {
            !kept
        } else {
            kept || condemned > 0
        };
        assert!(right, "seed {seed}: {names:?} of {app}: {spec:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_that_must_never_happen_does() {
    let mut admitted = 0;
    for seed in 0..SEEDS {
        admitted += run(seed).await;
    }
    assert!(admitted > 100, "only {admitted} were admitted, so little was tried");
}
