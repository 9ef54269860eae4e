//! The guard, wired together: what runs in it, and how it ends.

use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use tokio_util::sync::CancellationToken;

use super::board::{Board, Leads};
use super::certificates::{self, Certificates};
use super::configuration::ca_bundle::{BundleSource, CaBundle, CaBundleError};
use super::configuration::known::Known;
use super::configuration::{Programmer, Settings, Shared};
use super::leadership::{Leadership, LeaseParams};
use super::policy_status::StatusWriter;
use super::reconciler::{self, Reconciler};
use super::tasks::Tasks;
use crate::cluster::events::{Events, Publisher};
use crate::cluster::live::LiveStore;
use crate::cluster::policy_statuses::PolicyStatuses;
use crate::domain::pursuit::Window;
use crate::telemetry::metrics::{GuardMetrics, Metrics};
use crate::webhook::signals::Signals;

/// Who reports the guard's Events.
const CONTROLLER: &str = "deployer-guard.io/guard";

/// Relist periods after which a key with an active deployer is read again, although nothing was heard of it.
const RECHECK: u32 = 5;

/// What a guard is made with.
#[derive(Clone, Debug)]
pub struct Options {
    /// What the Lease calls this process; see [`identity`](super::leadership::identity).
    pub identity: String,
    /// Which Lease is asked for.
    pub lease: LeaseParams,
    /// How the webhook configuration is made.
    pub settings: Settings,
    /// Where the CA bundle comes from.
    pub ca_bundle: BundleSource,
    /// The Secret with the certificates, if the CA bundle comes from there.
    pub certificates: Option<certificates::Settings>,
    /// How long an admitted pod that nobody can find is believed to be on its way.
    pub window: Window,
    /// The name of this guard, for Events.
    pub instance: String,
    /// How long writes that are under way may take at the end.
    pub grace_period: Duration,
}

/// Leads always: who writes nothing is in nobody's way.
struct Everybody;

impl Leads for Everybody {
    fn leads(&self) -> bool {
        true
    }
}

/// How a guard came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// What was under way was finished, and the Lease was released.
    Finished,
    /// The grace period was over first. The Lease was left to run out.
    GracePeriodOver,
    /// A second signal asked for an end at once.
    AtOnce,
}

/// Runs a guard until it is asked to end. Loops that end or panic are begun again.
///
/// At the end all work stops first, the write that is under way included; only then is the Lease released, so that the next one
/// leads within moments and nothing of this one is still to come.
///
/// # Errors
/// If the CA bundle cannot be read at the beginning.
pub async fn run(
    client: Client,
    options: Options,
    metrics: Arc<Metrics>,
    guard: Arc<GuardMetrics>,
    signals: &Signals,
) -> Result<Ended, CaBundleError> {
    let ca_bundle = Arc::new(CaBundle::load(options.ca_bundle)?);
    let leadership = Leadership::new(client.clone(), &options.lease, options.identity, Arc::clone(&guard));
    let leadership = Arc::new(leadership);
    // A dry run writes nothing, so that it needs no Lease, and must not keep one from a guard that works.
    let dry_run = options.settings.dry_run;
    let leads: Arc<dyn Leads> = if dry_run {
        Arc::new(Everybody)
    } else {
        Arc::<Leadership>::clone(&leadership)
    };
    // Nor does it count as a leader: the sum over all guards tells whether one is there that works.
    let asked = Arc::clone(&leads);
    guard.leads_if(move || !dry_run && asked.leads());

    let mut election = Tasks::new(Arc::clone(&metrics));
    let (candidate, stop) = (Arc::clone(&leadership), election.stop());
    if !dry_run {
        election.tend("leadership", move || {
            let (candidate, stop) = (Arc::clone(&candidate), stop.clone());
            async move { candidate.run(stop).await }
        });
    }

    let mut work = Tasks::new(Arc::clone(&metrics));
    let shared = Shared {
        known: Arc::new(Known::new(client.clone())),
        ca_bundle,
        leads,
        board: Arc::new(Board::default()),
        metrics: guard,
    };
    let reconciliation = reconciler::Options {
        window: options.window,
        relist: options.settings.relist,
        // That a namespace is in or out of a policy's selector by now is found by this alone, as is an owner that is finished.
        recheck: options.settings.relist * RECHECK,
        own_namespace: options.settings.own_namespace.clone(),
        dry_run: options.settings.dry_run,
        ..reconciler::Options::default()
    };
    let (events, notices) = Events::new(Arc::clone(&metrics));
    let publisher = Publisher::new(notices, client.clone(), options.instance, Arc::clone(&metrics));
    let done = CancellationToken::new();
    let publisher = publisher.reporting_as(CONTROLLER);
    let publishing = tokio::spawn(publisher.run(done.clone()));
    if let Some(settings) = options.certificates {
        tend_certificates(&mut work, &client, settings, &shared, &events);
    }
    tend_keys(&mut work, &client, reconciliation, &shared, &events, &metrics);
    tend_configuration(&mut work, &client, options.settings, &shared, &leadership, metrics);

    let ending = async {
        let ended = end(signals, &mut work, options.grace_period).await;
        if ended == Ended::Finished && !dry_run {
            election.end(options.lease.length).await;
            leadership.release().await;
        }
        done.cancel();
        let _published = publishing.await;
        ended
    };
    Ok(tokio::select! {
        ended = ending => ended,
        () = signals.second() => Ended::AtOnce,
    })
}

async fn end(signals: &Signals, work: &mut Tasks, grace_period: Duration) -> Ended {
    signals.first().await;
    tracing::info!("ending: work first, then the Lease");
    if work.end(grace_period).await {
        Ended::Finished
    } else {
        Ended::GracePeriodOver
    }
}

/// The room that reconciles keys.
fn tend_keys(
    work: &mut Tasks,
    client: &Client,
    options: reconciler::Options,
    shared: &Shared,
    events: &Events,
    metrics: &Arc<Metrics>,
) {
    let store = Arc::new(LiveStore::new(client.clone(), Arc::clone(metrics)));
    let (board, leads) = (Arc::clone(&shared.board), Arc::clone(&shared.leads));
    let (events, metrics, stop) = (events.clone(), Arc::clone(metrics), work.stop());
    work.tend("reconciliation", move || {
        let reconciler = Reconciler::new(
            Arc::clone(&store),
            Arc::clone(&board),
            Arc::clone(&leads),
            events.clone(),
            Arc::clone(&metrics),
            options.clone(),
        );
        let mut stop = stop.clone();
        reconciler.run(async move {
            // An error: who would ask to end is gone.
            let _ = stop.wait_for(|stop| *stop).await;
        })
    });
}

/// The room that looks after the Secret with the certificates.
fn tend_certificates(
    work: &mut Tasks,
    client: &Client,
    settings: certificates::Settings,
    shared: &Shared,
    events: &Events,
) {
    let certificates = Arc::new(Certificates::new(
        client.clone(),
        settings,
        Arc::clone(&shared.ca_bundle),
        Arc::clone(&shared.leads),
        events.clone(),
        Arc::clone(&shared.metrics),
    ));
    let stop = work.stop();
    work.tend("certificates", move || {
        let (certificates, stop) = (Arc::clone(&certificates), stop.clone());
        async move { certificates.run(stop).await }
    });
}

/// The rooms that program the webhook configuration and write the status of policies.
fn tend_configuration(
    work: &mut Tasks,
    client: &Client,
    settings: Settings,
    shared: &Shared,
    leadership: &Arc<Leadership>,
    metrics: Arc<Metrics>,
) {
    let writer = Arc::new(StatusWriter::new(
        PolicyStatuses::new(client.clone()),
        Arc::clone(&shared.known),
        Arc::clone(&shared.leads),
        Arc::clone(&shared.board),
        Arc::clone(&shared.metrics),
        &settings.name,
        settings.dry_run,
    ));
    let store = LiveStore::new(client.clone(), metrics);
    let programmer = Arc::new(Programmer::new(client.clone(), store, settings, shared.clone()));
    let stop = work.stop();

    let (known, ending) = (Arc::clone(&shared.known), stop.clone());
    work.tend("policies", move || {
        let (known, ending) = (Arc::clone(&known), ending.clone());
        async move { known.follow(ending).await }
    });
    let (watching, ending) = (Arc::clone(&programmer), stop.clone());
    work.tend("watch of the configuration", move || {
        let (watching, ending) = (Arc::clone(&watching), ending.clone());
        async move { watching.watch(ending).await }
    });
    let (programming, leading, ending) = (Arc::clone(&programmer), leadership.subscribe(), stop.clone());
    work.tend("configuration", move || {
        let (programming, leading, ending) = (Arc::clone(&programming), leading.clone(), ending.clone());
        async move { programming.run(leading, ending).await }
    });
    let (ca_bundle, counted, ending) = (Arc::clone(&shared.ca_bundle), Arc::clone(&shared.metrics), stop.clone());
    work.tend("CA bundle", move || {
        let (ca_bundle, counted, ending) = (Arc::clone(&ca_bundle), Arc::clone(&counted), ending.clone());
        async move { ca_bundle.keep_fresh(&counted, ending).await }
    });
    let (standings, leading) = (programmer.standings(), leadership.subscribe());
    work.tend("status of policies", move || {
        let (writer, standings) = (Arc::clone(&writer), standings.clone());
        let (leading, ending) = (leading.clone(), stop.clone());
        async move { writer.run(standings, leading, ending).await }
    });
}
