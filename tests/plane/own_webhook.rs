//! A webhook that a test brings along, beside the product or in its place.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::ensure;
use async_trait::async_trait;
use deployer_guard::telemetry::health::Readiness;
use deployer_guard::telemetry::metrics::Metrics;
use deployer_guard::tls::TlsFiles;
use deployer_guard::webhook::calls::{Call, Handler, Reply, Undecided};
use deployer_guard::webhook::options::ServerOptions;
use deployer_guard::webhook::server::WebhookServer;
use deployer_guard::webhook::signals::{Signals, Trigger};
use deployer_guard_testkit::objects::create_pod_with;
use deployer_guard_testkit::{ControlPlane, Pki, until};
use futures::future::BoxFuture;
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use kube::api::{Api, Patch, PatchParams};
use serde_json::{Value, json};

use crate::scene::merge;

/// Says whether the pod in a review's `request` may be created.
type Decide = dyn Fn(Value) -> BoxFuture<'static, anyhow::Result<bool>> + Send + Sync;

/// A running webhook.
pub(crate) struct OwnWebhook {
    pub(crate) address: SocketAddr,
    calls: Arc<AtomicUsize>,
    end: Trigger,
}

struct Answering {
    decide: Box<Decide>,
    calls: Arc<AtomicUsize>,
}

#[async_trait]
impl Handler for Answering {
    async fn handle(&self, call: Call) -> Reply {
        self.calls.fetch_add(1, Ordering::SeqCst);
        let review: Value = serde_json::from_slice(&call.body).unwrap_or_default();
        let uid = review["request"]["uid"].clone();
        let (allowed, why) = match (self.decide)(review["request"].clone()).await {
            Ok(allowed) => (allowed, "refused by the test's webhook".to_owned()),
            Err(error) => (false, format!("{error:#}")),
        };
        let response = json!({ "uid": uid, "allowed": allowed, "status": { "code": 403, "message": why } });
        let review = json!({ "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response });
        Reply::json(200, review.to_string().into_bytes())
    }

    fn undecided(&self, _: &Call, why: Undecided) -> Reply {
        Reply::text(500, &format!("{why:?}"))
    }
}

impl OwnWebhook {
    /// Starts one on a free port, with a certificate of this authority.
    pub(crate) fn start<F>(pki: &Pki, directory: &Path, decide: F) -> anyhow::Result<Self>
    where
        F: Fn(Value) -> BoxFuture<'static, anyhow::Result<bool>> + Send + Sync + 'static,
    {
        let (certificate, key) = pki.serving(&["127.0.0.1"])?.write(directory, "own-webhook")?;
        let options = ServerOptions {
            listen: vec![SocketAddr::from(([127, 0, 0, 1], 0))],
            workers: 1,
            max_body_bytes: 8 << 20,
            max_bodies_bytes: 64 << 20,
            max_calls: 256,
            drain_delay: Duration::ZERO,
            grace_period: Duration::from_secs(1),
        };
        let calls = Arc::new(AtomicUsize::new(0));
        let handler = Arc::new(Answering {
            decide: Box::new(decide),
            calls: Arc::clone(&calls),
        });
        let tls = Arc::new(TlsFiles::load(certificate, key)?);
        let bound = WebhookServer::bind(&options, tls, handler, Arc::new(Metrics::new()), &Readiness::new())?;
        let address = bound.addresses()[0];
        let (end, signals) = Signals::manual();
        tokio::spawn(async move { bound.run_until_signalled(&signals).await });
        Ok(Self { address, calls, end })
    }

    /// How often it was called.
    pub(crate) fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }
}

impl Drop for OwnWebhook {
    fn drop(&mut self) {
        self.end.fire();
    }
}

/// Makes the API servers call what listens at `address` for each create of a pod with this label, and waits until `probe`,
/// created in a dry run, gets there from each of them.
pub(crate) async fn call_for(
    plane: &ControlPlane,
    pki: &Pki,
    address: SocketAddr,
    label: &str,
    probe: &Value,
    calls: impl Fn() -> usize,
) -> anyhow::Result<()> {
    let entry = json!({
        "failurePolicy": "Fail",
        "objectSelector": { "matchExpressions": [{ "key": label, "operator": "Exists" }] },
        "rules": [{ "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"] }],
    });
    configure(plane, pki, address, &label.replace('/', "-"), &entry).await?;
    for client in plane.clients() {
        until(
            "the API server to call the test's webhook",
            Duration::from_secs(30),
            async || {
                let before = calls();
                create_pod_with(&client, "default", probe, "dryRun=All").await?;
                ensure!(calls() > before, "not called");
                Ok(())
            },
        )
        .await?;
    }
    Ok(())
}

/// Stores a configuration of this name with one entry for what listens at `address`. Does not wait until it is in force.
pub(crate) async fn configure(
    plane: &ControlPlane,
    pki: &Pki,
    address: SocketAddr,
    name: &str,
    entry: &Value,
) -> anyhow::Result<()> {
    let mut webhook = json!({
        "name": format!("{name}.deployer-guard.test"),
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "timeoutSeconds": 30,
        "clientConfig": { "url": format!("https://{address}/own"), "caBundle": ByteString(pki.ca().into_bytes()) },
    });
    merge(&mut webhook, entry);
    let configuration = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": { "name": name },
        "webhooks": [webhook],
    });
    Api::<ValidatingWebhookConfiguration>::all(plane.client(0))
        .patch(name, &PatchParams::apply("test"), &Patch::Apply(&configuration))
        .await?;
    Ok(())
}
