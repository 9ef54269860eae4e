//! The watch of policies: each that can be used has a watch of its pods, which ends with the version of the policy.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures::StreamExt;
use kube::ResourceExt;
use kube::runtime::watcher::Event;
use tokio_util::sync::CancellationToken;

use super::pods::watch_pods;
use crate::api::DeployerPolicy;
use crate::cluster::complaint::Complaint;
use crate::cluster::upkeep::Upkeep;
use crate::domain::policy::Policy;
use crate::guard::lookout::{Lookout, Watched};
use crate::guard::tend::{Ending, tend};
use crate::telemetry::metrics::Metrics;

/// Watches policies, for ever.
pub(in crate::guard) async fn watch_policies<S: Upkeep>(
    store: Arc<S>,
    lookout: Arc<Lookout>,
    metrics: Arc<Metrics>,
    stop: CancellationToken,
) {
    let policies = Policies {
        store,
        lookout,
        metrics,
        stop,
    };
    let mut complaint = Complaint::new("policies");
    let mut events = policies.store.watch_policies();
    let mut listed = BTreeSet::new();
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => {
                complaint.hears("", &event);
                policies.take(event, &mut listed);
            }
            Err(why) => complaint.fails("", &why),
        }
    }
}

struct Policies<S> {
    store: Arc<S>,
    lookout: Arc<Lookout>,
    metrics: Arc<Metrics>,
    stop: CancellationToken,
}

impl<S: Upkeep> Policies<S> {
    fn take(&self, event: Event<DeployerPolicy>, listed: &mut BTreeSet<String>) {
        match event {
            Event::Init => listed.clear(),
            Event::InitApply(policy) => {
                listed.insert(policy.name_any());
                self.shown(&policy);
            }
            Event::InitDone => {
                let known: Vec<_> = self.lookout.policies().keys().cloned().collect();
                for name in known.iter().filter(|name| !listed.contains(&***name)) {
                    self.gone(name);
                }
            }
            Event::Apply(policy) => self.shown(&policy),
            Event::Delete(policy) => self.gone(&policy.name_any()),
        }
    }

    fn shown(&self, policy: &DeployerPolicy) {
        let name = policy.name_any();
        let known = self.lookout.policies().get(&*name).cloned();
        let same = |known: &Arc<Watched>| {
            policy.uid().as_deref() == Some(&known.version.uid)
                && policy.metadata.generation == Some(known.version.generation)
        };
        if known.is_some_and(|known| same(&known)) {
            return;
        }
        match Policy::compile(policy) {
            Ok(compiled) => self.begin(compiled),
            // What is wrong with it is said on the policy itself.
            Err(_) => self.gone(&name),
        }
    }

    fn begin(&self, policy: Policy) {
        let name: Arc<str> = policy.name.as_str().into();
        let watched = Arc::new(Watched::new(Arc::new(policy), self.stop.child_token()));
        let before = self.lookout.policies().insert(name, Arc::clone(&watched));
        if let Some(before) = before {
            before.stop.cancel();
        }
        let (store, lookout, watching) = (Arc::clone(&self.store), Arc::clone(&self.lookout), Arc::clone(&watched));
        let begin = move || watch_pods(Arc::clone(&store), Arc::clone(&lookout), Arc::clone(&watching));
        let metrics = Arc::clone(&self.metrics);
        tokio::spawn(tend("pods", metrics, watched.stop.clone(), Ending::Abort, begin));
        self.lookout.queue.spread(self.lookout.spots_of(&watched.version.name));
    }

    fn gone(&self, name: &str) {
        let before = self.lookout.policies().remove(name);
        if let Some(before) = before {
            before.stop.cancel();
            self.metrics.reconciling().forget(name);
            self.lookout.queue.spread(self.lookout.spots_of(name));
        }
    }
}
