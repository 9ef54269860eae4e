//! The one watch of claims: pending entries go to the observer, in every guard.

use std::sync::Arc;

use futures::StreamExt;
use kube::runtime::watcher::Event;

use crate::api::DeployerClaim;
use crate::cluster::complaint::Complaint;
use crate::cluster::upkeep::Upkeep;
use crate::guard::lookout::Lookout;
use crate::guard::spot::Spot;
use crate::observer::{Observer, Origin};

/// Watches claims, for ever.
pub(in crate::guard) async fn watch_claims<S: Upkeep>(
    store: Arc<S>,
    lookout: Arc<Lookout>,
    observer: Arc<Observer<S>>,
) {
    let mut complaint = Complaint::new("claims");
    loop {
        let mut events = store.watch_claims();
        let mut shown = Vec::new();
        loop {
            let event = tokio::select! {
                () = lookout.claims_anew.notified() => break,
                event = events.next() => event,
            };
            match event {
                Some(Ok(event)) => {
                    complaint.hears("", &event);
                    take(&lookout, &observer, event, &mut shown);
                }
                Some(Err(why)) => complaint.fails("", &why),
                None => break,
            }
        }
    }
}

fn take<S: Upkeep>(lookout: &Lookout, observer: &Arc<Observer<S>>, event: Event<DeployerClaim>, shown: &mut Vec<Spot>) {
    match event {
        Event::Init => {
            shown.clear();
            lookout.claims().begin();
        }
        Event::InitApply(claim) => {
            observer.saw(&claim, Origin::Theirs);
            shown.extend(lookout.claim_shown(&claim));
        }
        Event::InitDone => {
            lookout.queue.spread(std::mem::take(shown));
            let gone = lookout.claims().begun();
            lookout.queue.spread(gone);
        }
        Event::Apply(claim) => {
            observer.saw(&claim, Origin::Theirs);
            if let Some(spot) = lookout.claim_shown(&claim) {
                lookout.queue.now(spot);
            }
        }
        Event::Delete(claim) => {
            if let Some(spot) = lookout.claims().gone(&claim) {
                lookout.queue.now(spot);
            }
        }
    }
}
