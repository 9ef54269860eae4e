//! What tests do with one namespace of a stage, in the words of the tests.

use std::time::Duration;

use anyhow::{Context, ensure};
use deployer_guard::api::DeployerClaim;
use deployer_guard_testkit::objects::{Answer, create_pod, make_namespace, set_phase};
use deployer_guard_testkit::{ControlPlane, Stage, until};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use crate::common::{self, OPENSHIFT, PROGRAM, Rollout};

/// How long the webhook may take to see a pod that it admitted, and a record to appear.
pub(crate) const SOON: Duration = Duration::from_secs(20);

static OWN_POLICIES: OnceCell<Stage> = OnceCell::const_new();
static OUTAGE: OnceCell<Stage> = OnceCell::const_new();

/// One namespace of a stage.
pub(crate) struct Scene {
    pub(crate) stage: &'static Stage,
    pub(crate) client: Client,
    pub(crate) namespace: String,
}

impl Scene {
    /// On the shared stage, under the policy for `OpenShift`.
    pub(crate) async fn openshift(namespace: &str) -> anyhow::Result<Self> {
        Ok(Self::of(common::namespace(namespace).await?, namespace))
    }

    /// On a stage where tests bring policies of their own, each for pods that no other policy matches.
    pub(crate) async fn under(policies: &[Value], namespace: &str) -> anyhow::Result<Self> {
        let stage = own_policies().await?;
        let client = stage.plane.client(0);
        make_namespace(&client, namespace, &[("scene", namespace)], false).await?;
        stage.enforce(&documents(policies)).await?;
        Ok(Self::of(stage, namespace))
    }

    /// In a namespace that is there.
    pub(crate) fn of(stage: &'static Stage, namespace: &str) -> Self {
        Self {
            stage,
            client: stage.plane.client(0),
            namespace: namespace.to_owned(),
        }
    }

    pub(crate) fn rollout(&self, config: &str, version: u32) -> Rollout {
        Rollout::new(&self.namespace, config, version)
    }

    /// A rollout that has just begun, and its deployer pod.
    pub(crate) async fn begun(&self, config: &str, version: u32) -> anyhow::Result<(Rollout, Value)> {
        let rollout = self.rollout(config, version);
        let uid = rollout.begin(&self.client, "New").await?;
        let pod = rollout.pod(&uid);
        Ok((rollout, pod))
    }

    pub(crate) fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    pub(crate) async fn create(&self, pod: &Value) -> anyhow::Result<Answer> {
        create_pod(&self.client, &self.namespace, pod).await
    }

    /// The pod is created, without a warning, and the webhook has seen it in the store.
    pub(crate) async fn admits(&self, pod: &Value) -> anyhow::Result<()> {
        let answer = self.create(pod).await?;
        ensure!(answer.is_created(), "refused: {}", answer.message());
        ensure!(answer.warnings.is_empty(), "warned: {:?}", answer.warnings);
        self.confirmed().await
    }

    /// The pod is refused with 403 for this reason; gives the webhook's message.
    pub(crate) async fn refuses(&self, pod: &Value, reason: &str) -> anyhow::Result<String> {
        let answer = self.create(pod).await?;
        let (code, message) = (answer.code, answer.message().to_owned());
        let status = answer.result.err().context("it was admitted")?;
        let causes = status.details.map(|details| details.causes).unwrap_or_default();
        let given = causes.first().map(|cause| cause.reason.as_str()).unwrap_or_default();
        ensure!(
            code == 403 && given == reason,
            "{code} {given}, not 403 {reason}: {message}"
        );
        Ok(message
            .split_once("denied the request: ")
            .map_or(message.clone(), |(_, own)| own.to_owned()))
    }

    /// Waits until no claim of the namespace has a pod that is on its way.
    pub(crate) async fn confirmed(&self) -> anyhow::Result<()> {
        until("the admitted pods to be seen in the store", SOON, async || {
            let claims = self.claims().await?;
            let pending: Vec<_> = claims.iter().flat_map(|claim| &claim.spec.pending).collect();
            ensure!(pending.is_empty(), "{pending:?}");
            Ok(())
        })
        .await
    }

    pub(crate) async fn claims(&self) -> anyhow::Result<Vec<DeployerClaim>> {
        let api: Api<DeployerClaim> = Api::namespaced(self.client.clone(), &self.namespace);
        Ok(api.list(&ListParams::default()).await?.items)
    }

    /// The only claim of the namespace.
    pub(crate) async fn claim(&self) -> anyhow::Result<DeployerClaim> {
        let claims = self.claims().await?;
        ensure!(claims.len() == 1, "{} claims", claims.len());
        claims.into_iter().next().context("a claim")
    }

    pub(crate) async fn set_phase(&self, pod: &str, phase: &str) -> anyhow::Result<()> {
        set_phase(&self.client, &self.namespace, pod, phase).await.map(drop)
    }

    /// Deletes a pod with grace 0: it is gone when this returns.
    pub(crate) async fn delete(&self, pod: &str) -> anyhow::Result<()> {
        self.pods()
            .delete(pod, &DeleteParams::default().grace_period(0))
            .await?;
        ensure!(self.pods().get_opt(pod).await?.is_none(), "pod {pod} is still there");
        Ok(())
    }

    /// Deletes a pod that a node has, as a user would: it stays, terminating.
    pub(crate) async fn delete_gracefully(&self, pod: &str) -> anyhow::Result<()> {
        self.pods().delete(pod, &DeleteParams::default()).await?;
        let left = self.pods().get(pod).await?;
        ensure!(
            left.metadata.deletion_timestamp.is_some(),
            "pod {pod} is not terminating"
        );
        Ok(())
    }

    /// Merges this into a pod.
    pub(crate) async fn patch(&self, pod: &str, patch: &Value) -> kube::Result<Pod> {
        self.pods()
            .patch(pod, &PatchParams::default(), &Patch::Merge(patch))
            .await
    }

    pub(crate) async fn exists(&self, pod: &str) -> anyhow::Result<bool> {
        Ok(self.pods().get_opt(pod).await?.is_some())
    }

    /// Every decision that was logged about pods of the namespace.
    pub(crate) fn decisions(&self) -> anyhow::Result<Vec<Value>> {
        let all = self.stage.decisions()?;
        Ok(all
            .into_iter()
            .filter(|line| line["namespace"] == self.namespace.as_str())
            .collect())
    }

    /// Runs kubectl in the namespace; what it printed, and whether it succeeded.
    pub(crate) async fn kubectl(&self, arguments: &[&str]) -> anyhow::Result<(bool, String)> {
        let all: Vec<&str> = ["-n", &self.namespace].iter().chain(arguments).copied().collect();
        let output = self.stage.plane.kubectl(&all).await?;
        let printed = [output.stdout, output.stderr].concat();
        Ok((output.status.success(), String::from_utf8(printed)?))
    }

    /// Writes an object to a file, for kubectl.
    pub(crate) fn file(&self, name: &str, object: &Value) -> anyhow::Result<String> {
        let path = self
            .stage
            .plane
            .directory()
            .join(format!("{}-{name}.json", self.namespace));
        std::fs::write(&path, object.to_string())?;
        Ok(path.display().to_string())
    }
}

/// A policy for pods with the label `scene: <name>`, whose config is their label `config`. `spec` is merged in.
pub(crate) fn policy(name: &str, spec: &Value) -> Value {
    let mut policy = json!({
        "apiVersion": "deployer-guard.io/v1alpha1",
        "kind": "DeployerPolicy",
        "metadata": { "name": name },
        "spec": {
            "match": { "objectSelector": { "matchLabels": { "scene": name } } },
            "config": { "label": "config" },
        },
    });
    merge(&mut policy["spec"], spec);
    policy
}

/// A pod with these labels.
pub(crate) fn pod(name: &str, labels: &[(&str, &str)]) -> Value {
    let labels: serde_json::Map<_, _> = labels
        .iter()
        .map(|(key, value)| ((*key).to_owned(), json!(value)))
        .collect();
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": name, "labels": labels },
        "spec": {
            "containers": [{ "name": "deployment", "image": "registry.example/deployer:latest" }],
            "restartPolicy": "Never",
            "automountServiceAccountToken": false,
        },
    })
}

/// A JSON merge patch: null removes.
pub(crate) fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        target.clone_from(patch);
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    let Some(target) = target.as_object_mut() else { return };
    for (key, value) in patch {
        if value.is_null() {
            target.remove(key);
        } else {
            merge(target.entry(key).or_insert(Value::Null), value);
        }
    }
}

fn documents(policies: &[Value]) -> String {
    let policies: Vec<String> = policies.iter().map(ToString::to_string).collect();
    policies.join("\n---\n")
}

/// The policy for `OpenShift` under another name, for pods that also have this label, with this in its spec.
pub(crate) fn openshift_policy(name: &str, label: (&str, &str), spec: &Value) -> anyhow::Result<Value> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(OPENSHIFT)?;
    let mut policy = documents.into_iter().next().context("a policy")?;
    policy["metadata"]["name"] = json!(name);
    policy["spec"]["match"]["objectSelector"]["matchLabels"] = json!({ label.0: label.1 });
    merge(&mut policy["spec"], spec);
    Ok(policy)
}

async fn own_policies() -> anyhow::Result<&'static Stage> {
    OWN_POLICIES
        .get_or_try_init(|| async {
            Stage::builder(PROGRAM)
                .plane(ControlPlane::builder().audit_log(true))
                .start()
                .await
        })
        .await
}

/// The policy of the outage that ignores it.
pub(crate) const IGNORES_OUTAGES: &str = "ignores-outages";

/// A stage with kube-controller-manager on which every replica of the webhook is down. The policy for `OpenShift` and
/// [`IGNORES_OUTAGES`] are in force. In the namespaces `outage-update` and `outage-namespace` deployer `cfg-1-deploy` is active; in the
/// first it was made by `kubectl apply`.
pub(crate) async fn outage() -> anyhow::Result<&'static Stage> {
    OUTAGE
        .get_or_try_init(|| async {
            let plane = ControlPlane::builder().controller_manager(true);
            let stage = Stage::builder(PROGRAM).plane(plane).start().await?;
            let ignoring = policy(IGNORES_OUTAGES, &json!({ "failurePolicy": "Ignore" }));
            stage.enforce(&format!("{OPENSHIFT}\n---\n{ignoring}")).await?;
            let client = stage.plane.client(0);
            for namespace in ["outage-update", "outage-namespace"] {
                make_namespace(&client, namespace, &[], true).await?;
                let rollout = Rollout::new(namespace, "cfg", 1);
                let pod = rollout.pod(&rollout.begin(&client, "New").await?);
                let file = stage.plane.directory().join(format!("{namespace}.json"));
                std::fs::write(&file, pod.to_string())?;
                let applied = stage
                    .plane
                    .kubectl(&["apply", "-f", &file.display().to_string()])
                    .await?;
                ensure!(applied.status.success(), "{}", String::from_utf8_lossy(&applied.stderr));
            }
            for replica in &stage.replicas {
                replica.webhook.process().kill()?;
            }
            Ok(stage)
        })
        .await
}

/// A namespace of the stage on which every replica is down.
pub(crate) async fn in_outage(namespace: &str) -> anyhow::Result<Scene> {
    let stage = outage().await?;
    make_namespace(&stage.plane.client(0), namespace, &[], true).await?;
    Ok(Scene::of(stage, namespace))
}

/// The uid of a pod that was just created.
pub(crate) fn uid_of(answer: &Answer) -> String {
    answer
        .result
        .as_ref()
        .ok()
        .and_then(|pod| pod.uid())
        .unwrap_or_default()
}
