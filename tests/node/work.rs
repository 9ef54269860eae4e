//! Deployers that run, and what is said when one is created.

use anyhow::ensure;
use deployer_guard_testkit::objects::{Answer, create_pod};
use deployer_guard_testkit::{Stream, until};
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::Api;
use serde_json::{Value, json};

use crate::site::{SOON, Site};

/// The policy of these tests: the label says what a pod works for.
pub(crate) const BY_LABEL: &str = "
apiVersion: deployer-guard.io/v1alpha1
kind: DeployerPolicy
metadata: {name: by-label}
spec:
  match: {objectSelector: {matchExpressions: [{key: test/config, operator: Exists}]}}
  config: {label: test/config}
  generation: {label: test/generation}
  reruns: Always
  olderGenerations: Allow
";
/// The label that names the config.
const CONFIG: &str = "test/config";
/// Creates a second, while something goes on.
const RATE: u32 = 50;
/// The configs that a stream's deployers work for.
const STREAMED: usize = 5;

/// What a deployer works for, under [`BY_LABEL`].
pub(crate) fn config_of(pod: &Value) -> Option<String> {
    pod.pointer("/metadata/labels/test~1config")?
        .as_str()
        .map(str::to_owned)
}

/// A deployer that runs the testkit's program with these arguments.
pub(crate) fn deployer(config: &str, name: &str, arguments: &[&str]) -> Value {
    let mut pod = program(arguments);
    pod["metadata"] = json!({ "name": name, "labels": { CONFIG: config, "test/generation": name } });
    pod
}

/// A pod (without a name) that runs the testkit's program.
pub(crate) fn program(arguments: &[&str]) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {},
        "spec": {
            "containers": [{ "name": "deployer", "image": "localhost/deployer:test", "args": arguments }],
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": false,
        },
    })
}

/// The template of a Job whose pods are deployers.
pub(crate) fn template(config: &str, arguments: &[&str]) -> Value {
    let mut pod = program(arguments);
    pod["metadata"] = json!({ "labels": { CONFIG: config, "test/generation": "job" } });
    json!({ "metadata": pod["metadata"], "spec": pod["spec"] })
}

impl Site {
    /// Creates a pod, which has to be admitted.
    pub(crate) async fn admitted(&self, namespace: &str, pod: &Value) -> anyhow::Result<()> {
        let answer = create_pod(&self.client(), namespace, pod).await?;
        ensure!(answer.is_created(), "{} {}", answer.code, answer.message());
        Ok(())
    }

    /// Creates a pod, which a rule has to refuse.
    pub(crate) async fn refused(&self, namespace: &str, pod: &Value) -> anyhow::Result<Answer> {
        let answer = create_pod(&self.client(), namespace, pod).await?;
        let by_rule = answer.code == 403 && answer.message().contains("DeployerPolicy");
        ensure!(by_rule, "{} {}", answer.code, answer.message());
        Ok(answer)
    }

    /// Creates a pod again and again until it is admitted; it may only be refused by a rule before.
    pub(crate) async fn admitted_soon(&self, namespace: &str, pod: &Value) -> anyhow::Result<()> {
        until("a deployer to be admitted", SOON, async || {
            let answer = create_pod(&self.client(), namespace, pod).await?;
            ensure!(answer.is_created(), "{} {}", answer.code, answer.message());
            Ok(())
        })
        .await
    }

    /// Waits until a pod is as it should be.
    pub(crate) async fn wait_pod(
        &self,
        namespace: &str,
        name: &str,
        what: &str,
        wanted: impl Fn(&Pod) -> bool,
    ) -> anyhow::Result<Pod> {
        let api: Api<Pod> = Api::namespaced(self.client(), namespace);
        until(&format!("pod {name} to be {what}"), SOON, async || {
            let pod = api.get(name).await?;
            ensure!(wanted(&pod), "it is {:?}", pod.status);
            Ok(pod)
        })
        .await
    }

    /// Waits until a pod is in this phase.
    pub(crate) async fn wait_phase(&self, namespace: &str, name: &str, phase: &str) -> anyhow::Result<Pod> {
        self.wait_pod(namespace, name, phase, |pod| self::phase(pod) == phase)
            .await
    }

    /// Waits until a pod is gone.
    pub(crate) async fn wait_gone(&self, namespace: &str, name: &str) -> anyhow::Result<()> {
        let api: Api<Pod> = Api::namespaced(self.client(), namespace);
        until(&format!("pod {name} to be gone"), 2 * SOON, async || {
            let left = api.get_opt(name).await?;
            ensure!(left.is_none(), "it is there: {:?}", left.and_then(|pod| pod.status));
            Ok(())
        })
        .await
    }

    /// Fifty creates a second, every second one of a deployer of one of five configs, the others of pods that no policy matches. They
    /// wait for a scheduler that is not there, so that they cost kubelet nothing.
    pub(crate) fn stream(&self, namespace: &str) -> Stream {
        Stream::begin(self.client(), namespace, RATE, |number| {
            let mut pod = if number % 2 == 0 {
                deployer(
                    &format!("streamed-{}", number / 2 % STREAMED),
                    &format!("d{number}"),
                    &[],
                )
            } else {
                program(&[])
            };
            pod["metadata"]["name"] = json!(format!("p{number}"));
            pod["spec"]["schedulerName"] = json!("nobody");
            pod
        })
    }
}

/// A pod's phase.
pub(crate) fn phase(pod: &Pod) -> &str {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    phase.unwrap_or_default()
}

/// What a stream saw: nothing failed, and both kinds of answer came.
pub(crate) fn nothing_failed(flow: &deployer_guard_testkit::Flow) -> anyhow::Result<()> {
    println!(
        "  {} creates were admitted, {} refused by a rule, {} failed",
        flow.admitted,
        flow.refused,
        flow.failed.len()
    );
    ensure!(flow.failed.is_empty(), "these failed: {:?}", flow.failed);
    ensure!(flow.admitted > 0, "none was admitted");
    Ok(())
}

/// That so many deployers of a config are there at most, whatever became of them, is seen by the witness; this says that some were.
pub(crate) async fn of_config(client: &Client, namespace: &str, config: &str) -> anyhow::Result<Vec<Pod>> {
    let api: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let selected = kube::api::ListParams::default().labels(&format!("{CONFIG}={config}"));
    Ok(api.list(&selected).await?.items)
}
