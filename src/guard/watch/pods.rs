//! The watch of one policy's pods, narrowed by its objectSelector.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures::StreamExt;
use kube::runtime::watcher::Event;
use serde_json::Value;

use crate::cluster::complaint::Complaint;
use crate::cluster::upkeep::Upkeep;
use crate::guard::lookout::{Lookout, Watched};
use crate::guard::spot::Spot;

/// Watches the pods of a policy, for ever.
pub(super) async fn watch_pods<S: Upkeep>(store: Arc<S>, lookout: Arc<Lookout>, watched: Arc<Watched>) {
    let policy = &watched.version.name;
    let mut complaint = Complaint::new("pods");
    loop {
        let mut events = store.watch_pods(&watched.policy.label_selector());
        let mut shown = BTreeSet::new();
        loop {
            let event = tokio::select! {
                () = watched.anew.notified() => break,
                event = events.next() => event,
            };
            match event {
                Some(Ok(event)) => {
                    complaint.hears(policy, &event);
                    take(&lookout, &watched, event, &mut shown).await;
                }
                Some(Err(why)) => complaint.fails(policy, &why),
                None => break,
            }
        }
    }
}

async fn take(lookout: &Lookout, watched: &Watched, event: Event<Value>, shown: &mut BTreeSet<Spot>) {
    match event {
        Event::Init => {
            shown.clear();
            watched.pods().begin();
        }
        Event::InitApply(pod) => shown.extend(lookout.pod_shown(watched, &pod).await),
        Event::InitDone => {
            for (uid, spot) in watched.pods().begun() {
                lookout.facts().gone(&uid, lookout.now());
                shown.extend(spot);
            }
            watched.complete.store(true, Ordering::Release);
            lookout.queue.spread(std::mem::take(shown));
        }
        Event::Apply(pod) => now(lookout, lookout.pod_shown(watched, &pod).await),
        Event::Delete(pod) => now(lookout, lookout.pod_gone(watched, &pod).await),
    }
}

fn now(lookout: &Lookout, spots: Vec<Spot>) {
    for spot in spots {
        lookout.queue.now(spot);
    }
}
