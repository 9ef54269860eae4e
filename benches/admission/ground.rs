//! The ground to measure on: etcd with fsync, one API server, one replica of deployer-guard, the comparison webhooks, and
//! configurations that make the API server call each of them directly.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::ensure;
use deployer_guard::cluster::webhook_configuration::{stocked, unstocked};
use deployer_guard_testkit::objects::{apply_yaml, create_pod_with, make_namespace};
use deployer_guard_testkit::{ControlPlane, NAMESPACE, Stage, WebhookProcess, free_ports, until};
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use serde_json::{Value, json};

use crate::common::desk::program;
use crate::comparison::ARGUMENT;
use crate::side::{Place, Side, WEBHOOK};

const POLICY: &str = include_str!("../../policies/openshift-deploymentconfig.yaml");
/// How long the API server may take to follow a change of a configuration.
const LIMIT: Duration = Duration::from_secs(30);
/// Who applies objects.
const MANAGER: &str = "bench";
/// The configuration of deployer-guard.
const OURS: &str = "deployer-guard";

/// Dropping it ends everything.
pub(crate) struct Ground {
    pub(crate) stage: Stage,
    /// Serves the comparison webhooks.
    comparison: WebhookProcess,
    /// The configurations, in the order in which they are applied.
    configurations: Vec<String>,
}

impl Ground {
    /// Starts everything, with all configurations in force.
    pub(crate) async fn prepare() -> anyhow::Result<Self> {
        let plane = ControlPlane::builder().fsync(true);
        let stage = Stage::builder(program()).plane(plane).replicas(1).start().await?;
        let ports = free_ports(2)?;
        let [webhook, health] = [ports[0], ports[1]].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
        let (certificate, key) = stage
            .pki
            .serving(&["127.0.0.1"])?
            .write(stage.plane.directory(), "comparison")?;
        let kubeconfig = stage.plane.service_account_kubeconfig(0, NAMESPACE, NAMESPACE).await?;
        let options = [
            ("--tls-cert-file", certificate.display().to_string()),
            ("--tls-key-file", key.display().to_string()),
            ("--kubeconfig", kubeconfig.display().to_string()),
            ("--listen", webhook.to_string()),
            ("--health-listen", health.to_string()),
        ];
        let comparison = WebhookProcess::builder("comparison", std::env::current_exe()?)
            .arg(ARGUMENT)
            .args(options.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]))
            .under(&stage.plane)
            .start()?;
        comparison.wait_ready(&format!("http://{health}/readyz")).await?;
        apply_yaml(&stage.plane.client(0), POLICY, MANAGER).await?;
        // The API server calls the replica itself: no proxy takes part.
        let mut configurations = vec![stage.configuration(stage.replicas[0].address).await?];
        for side in [Side::Allow, Side::List, Side::Deny] {
            configurations.push(configuration(side, webhook, stage.pki.ca().as_bytes()).to_string());
        }
        let ground = Self {
            stage,
            comparison,
            configurations,
        };
        ground.enforce().await?;
        Ok(ground)
    }

    /// A new namespace.
    pub(crate) async fn place(&self, namespace: &str) -> anyhow::Result<Place> {
        let client = self.stage.plane.client(0);
        make_namespace(&client, namespace, &[], false).await?;
        Ok(Place {
            client,
            namespace: namespace.to_owned(),
        })
    }

    /// Makes the entries of policies say that stock was taken, as the guard does, or not.
    pub(crate) async fn note_stock(&self, taken: bool) -> anyhow::Result<()> {
        let api: Api<ValidatingWebhookConfiguration> = Api::all(self.stage.plane.client(0));
        let mut stored = api.get(OURS).await?;
        for entry in stored.webhooks.iter_mut().flatten() {
            let plain = unstocked(entry);
            let is_policys = plain
                .client_config
                .url
                .as_ref()
                .is_some_and(|url| url.contains("/admit/"));
            *entry = if taken && is_policys { stocked(&plain) } else { plain };
        }
        api.replace(OURS, &PostParams::default(), &stored).await?;
        // The API server follows configurations in the order of their versions: one that does what came after it knows of it.
        api.delete(&name(Side::Deny), &DeleteParams::default()).await?;
        self.wait_denied(false).await?;
        if let Some(deny) = self.configurations.last() {
            apply_yaml(&self.stage.plane.client(0), deny, MANAGER).await?;
        }
        self.wait_denied(true).await
    }

    /// Puts all configurations in force.
    pub(crate) async fn enforce(&self) -> anyhow::Result<()> {
        let client = self.stage.plane.client(0);
        for configuration in &self.configurations {
            apply_yaml(&client, configuration, MANAGER).await?;
        }
        // The API server follows configurations in the order of their versions: when it asks always-deny, which came last, it
        // asks all of them.
        self.wait_denied(true).await
    }

    /// Takes all configurations away.
    pub(crate) async fn lift(&self) -> anyhow::Result<()> {
        let api: Api<ValidatingWebhookConfiguration> = Api::all(self.stage.plane.client(0));
        for configuration in api.list(&kube::api::ListParams::default()).await? {
            let name = configuration.metadata.name.unwrap_or_default();
            // Always-deny is the last one, in the order of the alphabet too.
            if !name.ends_with("deny") {
                api.delete(&name, &DeleteParams::default()).await?;
            }
        }
        api.delete(&name(Side::Deny), &DeleteParams::default()).await?;
        self.wait_denied(false).await
    }

    async fn wait_denied(&self, wanted: bool) -> anyhow::Result<()> {
        let place = Place {
            client: self.stage.plane.client(0),
            namespace: "default".to_owned(),
        };
        let pod = place.pod(Side::Deny, "probe", 1).await?;
        until("the API server to follow the configurations", LIMIT, async || {
            let answer = create_pod_with(&place.client, &place.namespace, &pod, "dryRun=All").await?;
            ensure!(
                answer.is_created() != wanted,
                "it answered {}: {}",
                answer.code,
                answer.message()
            );
            Ok(())
        })
        .await
    }

    /// The comparison webhooks' process id and ours.
    pub(crate) fn pids(&self) -> anyhow::Result<[u32; 2]> {
        Ok([
            crate::process::pid(&self.comparison)?,
            crate::process::pid(&self.stage.replicas[0].webhook)?,
        ])
    }
}

fn name(side: Side) -> String {
    format!("bench-{}", side.label().unwrap_or_default())
}

fn configuration(side: Side, webhook: SocketAddr, ca: &[u8]) -> Value {
    let label = side.label().unwrap_or_default();
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": { "name": name(side) },
        "webhooks": [{
            "name": format!("{label}.bench.deployer-guard.io"),
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "failurePolicy": "Fail",
            "timeoutSeconds": 5,
            "clientConfig": {
                "url": format!("https://{webhook}/{label}"),
                "caBundle": k8s_openapi::ByteString(ca.to_vec()),
            },
            "objectSelector": { "matchLabels": { WEBHOOK: label } },
            "rules": [{ "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"] }],
        }],
    })
}
