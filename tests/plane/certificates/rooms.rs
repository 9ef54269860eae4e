//! The room of a guard that looks after the Secret, alone: in a dry run, and beside another one that leads, too.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::ensure;
use deployer_guard::cluster::events::Events;
use deployer_guard::guard::board::Leads;
use deployer_guard::guard::certificates::held::{BUNDLE, CA_KEY, Data, Held};
use deployer_guard::guard::certificates::plan::Terms;
use deployer_guard::guard::certificates::{Certificates, SelfManaged, Settings};
use deployer_guard::guard::configuration::ca_bundle::{BundleSource, CaBundle};
use deployer_guard::telemetry::metrics::{GuardMetrics, Metrics};
use deployer_guard::tls::pair::now;
use deployer_guard_testkit::objects::apply_file;
use deployer_guard_testkit::{Balancer, ControlPlane, NAMESPACE, SECRET, until};
use futures::StreamExt;
use kube::api::{PostParams, WatchEvent, WatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::json;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::{SOON, data, data_of, good, harm, secrets};
use crate::common::run;

/// Leads, or does not, whatever another one believes.
struct Believes(bool);

impl Leads for Believes {
    fn leads(&self) -> bool {
        self.0
    }
}

/// The room of a guard that looks after the Secret, alone.
fn room(
    client: Client,
    stop: &watch::Sender<bool>,
    dry_run: bool,
    leads: bool,
) -> anyhow::Result<(JoinHandle<()>, Arc<GuardMetrics>, Arc<CaBundle>)> {
    let settings = Settings {
        namespace: NAMESPACE.into(),
        name: SECRET.into(),
        self_managed: Some(SelfManaged {
            names: vec!["127.0.0.1".into()],
            terms: Terms {
                authority: 9000,
                certificate: 3600,
            },
            trust_delay: Duration::ZERO,
        }),
        server_name: "127.0.0.1".into(),
        configuration: "deployer-guard".into(),
        dry_run,
    };
    let counted = Arc::new(GuardMetrics::default());
    let (events, _notices) = Events::new(Arc::new(Metrics::new()));
    let bundle = Arc::new(CaBundle::load(BundleSource::Secret)?);
    let (leads, known) = (Arc::new(Believes(leads)), Arc::clone(&bundle));
    let room = Certificates::new(client, settings, bundle, leads, events, Arc::clone(&counted));
    let stop = stop.subscribe();
    Ok((tokio::spawn(async move { room.run(stop).await }), counted, known))
}

#[test]
fn two_guards_that_both_believe_they_lead_end_with_one_consistent_secret() {
    run(async {
        let plane = ControlPlane::builder().start().await?;
        let client = plane.client(0);
        apply_file(&client, Path::new("deploy/rbac.yaml"), "test").await?;
        let metadata = json!({ "name": SECRET, "namespace": NAMESPACE });
        let secret = serde_json::from_value(json!({ "metadata": metadata, "type": "Opaque" }))?;
        secrets(&client).create(&PostParams::default(), &secret).await?;
        let history = History::start(&client).await?;
        let balancer = Balancer::start([plane.url(0).trim_start_matches("https://").parse()?]).await?;
        let url = format!("https://{}", balancer.address());
        let file = plane.service_account_kubeconfig_at(&url, NAMESPACE, NAMESPACE).await?;
        let kubeconfig = Kubeconfig::read_from(file)?;
        let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;

        let stop = watch::Sender::new(false);
        let (dry, _, bundle) = room(client.clone(), &stop, true, true)?;
        until("a dry run to have looked", SOON, async || {
            ensure!(bundle.fault().contains("no ca.crt"), "{}", bundle.fault());
            Ok(())
        })
        .await?;
        stop.send_replace(true);
        dry.await?;
        ensure!(data(&client).await?.is_empty(), "a dry run wrote");

        let stop = watch::Sender::new(false);
        let (one, ..) = room(client.clone(), &stop, false, true)?;
        let (other, counted, _) = room(Client::try_from(config)?, &stop, false, true)?;
        until("a good Secret", SOON, async || good(&client).await).await?;
        until("one to write on the word of an old read", SOON, async || {
            // What the other one reads from now on it hears of when the first has acted on it.
            balancer.hold_answers();
            harm(&client, &[(CA_KEY, None)]).await?;
            until("the first to put it right", SOON, async || good(&client).await).await?;
            balancer.release();
            let text = Metrics::with_guard(&counted).encode();
            ensure!(text.contains("certificate_writes_total{result=\"conflict\"}"), "{text}");
            Ok(())
        })
        .await?;
        until("a good Secret in the end", SOON, async || good(&client).await).await?;
        stop.send_replace(true);
        one.await?;
        other.await?;
        good(&client).await?;
        history.is_without_a_loss()
    });
}

#[test]
fn a_guard_that_does_not_lead_fills_a_secret_without_a_certificate_and_changes_no_other() {
    run(async {
        let plane = ControlPlane::builder().start().await?;
        let client = plane.client(0);
        apply_file(&client, Path::new("deploy/rbac.yaml"), "test").await?;
        let metadata = json!({ "name": SECRET, "namespace": NAMESPACE });
        let secret = serde_json::from_value(json!({ "metadata": metadata, "type": "Opaque" }))?;
        secrets(&client).create(&PostParams::default(), &secret).await?;
        let stop = watch::Sender::new(false);
        let (follower, _, bundle) = room(client.clone(), &stop, false, false)?;
        until("a good Secret", SOON, async || good(&client).await).await?;
        harm(&client, &[(BUNDLE, None)]).await?;
        let harmed = data(&client).await?;
        until("who does not lead to have seen the harm", SOON, async || {
            ensure!(bundle.fault().contains("no ca.crt"), "{}", bundle.fault());
            Ok(())
        })
        .await?;
        stop.send_replace(true);
        follower.await?;
        ensure!(data(&client).await? == harmed, "it wrote, and does not lead");
        let leader = watch::Sender::new(false);
        let (leading, ..) = room(client.clone(), &leader, false, true)?;
        until("who leads to put it right", SOON, async || good(&client).await).await?;
        leader.send_replace(true);
        leading.await?;
        Ok(())
    });
}

/// Every version of the Secret.
struct History {
    versions: Arc<Mutex<Vec<(i64, Data)>>>,
    watching: JoinHandle<()>,
}

impl History {
    async fn start(client: &Client) -> anyhow::Result<Self> {
        let params = WatchParams::default().fields(&format!("metadata.name={SECRET}"));
        let mut events = secrets(client).watch(&params, "0").await?.boxed();
        let versions = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&versions);
        let watching = tokio::spawn(async move {
            while let Some(Ok(event)) = events.next().await {
                if let WatchEvent::Added(secret) | WatchEvent::Modified(secret) = event {
                    seen.lock().unwrap().push((now(), data_of(secret)));
                }
            }
        });
        Ok(Self { versions, watching })
    }

    /// An authority that was there is there in each next version: nobody wrote over what another had written.
    fn is_without_a_loss(&self) -> anyhow::Result<()> {
        self.watching.abort();
        let versions = self.versions.lock().unwrap();
        for (i, pair) in versions.windows(2).enumerate() {
            let [(_, before), (at, after)] = pair else { continue };
            let (before, after) = (Held::read(before, &[], *at), Held::read(after, &[], *at));
            let lost = before.bundle().iter().filter(|ca| !after.bundle().contains(ca));
            ensure!(lost.count() == 0, "version {i} lost an authority that lives");
        }
        ensure!(versions.len() > 4, "{} versions", versions.len());
        Ok(())
    }
}
