//! Objects of the exact shape that `OpenShift`'s controllers make.

use anyhow::Context;
use k8s_openapi::api::core::v1::ReplicationController;
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

/// A rollout of a `DeploymentConfig`: its `ReplicationController`, and the deployer pod that the controller makes for it.
#[derive(Clone, Debug)]
pub struct Rollout {
    /// Where it is.
    pub namespace: String,
    /// The name of the `DeploymentConfig`.
    pub config: String,
    /// The uid of the `DeploymentConfig`.
    pub config_uid: String,
    /// Its number, from 1.
    pub version: u32,
}

impl Rollout {
    /// The rollout with this number of a config; all configs of one name have the same uid until it is changed.
    #[must_use]
    pub fn new(namespace: &str, config: &str, version: u32) -> Self {
        let config_uid = "f7e6fbec-11f3-4957-ad7f-c2b7287dce21".to_owned();
        Self {
            namespace: namespace.to_owned(),
            config: config.to_owned(),
            config_uid,
            version,
        }
    }

    /// As `cfg-1`.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{}-{}", self.config, self.version)
    }

    /// As `cfg-1-deploy`.
    #[must_use]
    pub fn deployer(&self) -> String {
        format!("{}-deploy", self.name())
    }

    /// The uid of the `ReplicationController`.
    ///
    /// # Errors
    /// If there is none.
    pub async fn uid(&self, client: &Client) -> anyhow::Result<String> {
        let controller = Self::controllers(client, &self.namespace).get(&self.name()).await?;
        controller.metadata.uid.context("a uid")
    }

    fn controllers(client: &Client, namespace: &str) -> Api<DynamicObject> {
        let kind = ApiResource::erase::<ReplicationController>(&());
        Api::namespaced_with(client.clone(), namespace, &kind)
    }

    /// Makes the `ReplicationController`, in a phase such as `New`; gives its uid.
    ///
    /// # Errors
    /// If it is refused.
    pub async fn begin(&self, client: &Client, phase: &str) -> anyhow::Result<String> {
        let mut controller: Value =
            serde_json::from_str(include_str!("../../data/openshift/replicationcontroller.json"))?;
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
    ///
    /// # Errors
    /// If it is refused.
    pub async fn annotate(&self, client: &Client, key: &str, value: &str) -> anyhow::Result<()> {
        let patch = Patch::Merge(json!({ "metadata": { "annotations": { key: value } } }));
        Self::controllers(client, &self.namespace)
            .patch(&self.name(), &PatchParams::default(), &patch)
            .await?;
        Ok(())
    }

    /// Sets its phase.
    ///
    /// # Errors
    /// If it is refused.
    pub async fn set_phase(&self, client: &Client, phase: &str) -> anyhow::Result<()> {
        self.annotate(client, "openshift.io/deployment.phase", phase).await
    }

    /// The deployer pod for the `ReplicationController` with this uid, as the controller sends it.
    #[must_use]
    pub fn pod(&self, controller_uid: &str) -> Value {
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
