//! One stage for all tests that do it no harm, and the objects of OpenShift's controllers.

use std::future::Future;
use std::sync::LazyLock;

use anyhow::Context;
use deployer_guard_testkit::objects::make_namespace;
use deployer_guard_testkit::{ControlPlane, Stage, StageBuilder};
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, PostParams};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::sync::OnceCell;

/// The program under test.
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_deployer-guard");
/// The policy for OpenShift DeploymentConfigs, as users get it.
pub(crate) const OPENSHIFT: &str = include_str!("../../policies/openshift-deploymentconfig.yaml");
/// The name of that policy.
pub(crate) const OPENSHIFT_NAME: &str = "openshift-deploymentconfig";

/// Tests run on threads of their own; what they share lives on this runtime.
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().expect("a runtime"));
static STAGE: OnceCell<Stage> = OnceCell::const_new();

/// Runs a test to its end on the shared runtime.
pub(crate) fn run(test: impl Future<Output = anyhow::Result<()>>) {
    if let Err(error) = RUNTIME.block_on(test) {
        panic!("{error:?}");
    }
}

/// A stage with two API servers on one etcd and two replicas of the webhook.
pub(crate) fn two_by_two() -> StageBuilder {
    Stage::builder(PROGRAM).plane(ControlPlane::builder().api_servers(2).audit_log(true))
}

/// The stage that tests share, each in namespaces of its own. `OpenShift`'s policy is in force. It ends with this process.
pub(crate) async fn shared() -> anyhow::Result<&'static Stage> {
    STAGE
        .get_or_try_init(|| async {
            let stage = two_by_two().start().await?;
            stage.enforce(OPENSHIFT).await?;
            anyhow::Ok(stage)
        })
        .await
}

/// A namespace of the shared stage.
pub(crate) async fn namespace(name: &str) -> anyhow::Result<&'static Stage> {
    let stage = shared().await?;
    make_namespace(&stage.plane.client(0), name, &[], false).await?;
    Ok(stage)
}

/// A rollout of a `DeploymentConfig`: its `ReplicationController`, and the deployer pod that the controller makes for it.
pub(crate) struct Rollout {
    pub(crate) namespace: String,
    pub(crate) config: String,
    pub(crate) config_uid: String,
    pub(crate) version: u32,
}

impl Rollout {
    pub(crate) fn new(namespace: &str, config: &str, version: u32) -> Self {
        let config_uid = "f7e6fbec-11f3-4957-ad7f-c2b7287dce21".to_owned();
        Self {
            namespace: namespace.to_owned(),
            config: config.to_owned(),
            config_uid,
            version,
        }
    }

    /// As `cfg-1`.
    pub(crate) fn name(&self) -> String {
        format!("{}-{}", self.config, self.version)
    }

    /// As `cfg-1-deploy`.
    pub(crate) fn deployer(&self) -> String {
        format!("{}-deploy", self.name())
    }

    fn controllers(client: &Client, namespace: &str) -> Api<DynamicObject> {
        let kind = ApiResource::erase::<k8s_openapi::api::core::v1::ReplicationController>(&());
        Api::namespaced_with(client.clone(), namespace, &kind)
    }

    /// Makes the `ReplicationController`, in a phase such as `New`; gives its uid.
    pub(crate) async fn begin(&self, client: &Client, phase: &str) -> anyhow::Result<String> {
        let mut controller: Value = serde_json::from_str(include_str!("../data/openshift/replicationcontroller.json"))?;
        let (name, version) = (self.name(), self.version.to_string());
        let metadata = &mut controller["metadata"];
        for field in ["uid", "creationTimestamp", "generation"] {
            metadata.as_object_mut().context("metadata")?.remove(field);
        }
        metadata["name"] = json!(name);
        metadata["namespace"] = json!(self.namespace);
        metadata["labels"]["openshift.io/deployment-config.name"] = json!(self.config);
        metadata["ownerReferences"][0]["name"] = json!(self.config);
        metadata["ownerReferences"][0]["uid"] = json!(self.config_uid);
        let annotations = &mut metadata["annotations"];
        annotations["openshift.io/deployment-config.name"] = json!(self.config);
        annotations["openshift.io/deployment-config.latest-version"] = json!(version);
        annotations["openshift.io/deployment.phase"] = json!(phase);
        annotations["openshift.io/deployer-pod.name"] = json!(self.deployer());
        controller.as_object_mut().context("object")?.remove("status");
        let controller: DynamicObject = serde_json::from_value(controller)?;
        let made = Self::controllers(client, &self.namespace)
            .create(&PostParams::default(), &controller)
            .await?;
        made.metadata.uid.context("a uid")
    }

    /// Sets an annotation of the `ReplicationController`, as `openshift.io/deployment.phase`.
    pub(crate) async fn annotate(&self, client: &Client, key: &str, value: &str) -> anyhow::Result<()> {
        let patch = kube::api::Patch::Merge(json!({ "metadata": { "annotations": { key: value } } }));
        Self::controllers(client, &self.namespace)
            .patch(&self.name(), &kube::api::PatchParams::default(), &patch)
            .await?;
        Ok(())
    }

    /// Sets its phase.
    pub(crate) async fn set_phase(&self, client: &Client, phase: &str) -> anyhow::Result<()> {
        self.annotate(client, "openshift.io/deployment.phase", phase).await
    }

    /// The deployer pod for the `ReplicationController` with this uid, as the controller sends it.
    pub(crate) fn pod(&self, controller_uid: &str) -> Value {
        json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": self.deployer(),
                "namespace": self.namespace,
                "labels": { "openshift.io/deployer-pod-for.name": self.name() },
                "annotations": {
                    "openshift.io/deployment-config.name": self.config,
                    "openshift.io/deployment.name": self.name(),
                },
                "ownerReferences": [{
                    "apiVersion": "v1",
                    "kind": "ReplicationController",
                    "name": self.name(),
                    "uid": controller_uid,
                }],
            },
            "spec": {
                "containers": [{ "name": "deployment", "image": "registry.example/deployer:latest" }],
                "restartPolicy": "Never",
                "automountServiceAccountToken": false,
            },
        })
    }
}
