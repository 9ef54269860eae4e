//! The cluster that is looked after: namespaces, deployers that were there before the guard, and pods that are none.

use std::future::Future;
use std::path::PathBuf;

use anyhow::{Context, ensure};
use deployer_guard_testkit::objects::{create_pod, make_namespace};
use deployer_guard_testkit::openshift::Rollout;
use deployer_guard_testkit::{ControlPlane, Stage};
use futures::{StreamExt, TryStreamExt, stream};
use kube::Client;
use serde_json::{Value, json};

use crate::common::desk::program;
use crate::parameters::Parameters;

/// Requests that are under way at a time while the cluster is filled.
const WIDTH: usize = 48;
/// Variables of a container, so that a pod has the size of one in earnest: about 8 KiB as it is stored.
const VARIABLES: usize = 30;
/// Who did what, of the service account alone: the audit log is to cost little.
const AUDIT: &str = "apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- {level: Metadata, users: [\"system:serviceaccount:deployer-guard:deployer-guard\"]}
- {level: None}
";

/// Starts etcd with fsync, an API server that writes an audit log of our calls, and one replica of the webhook.
pub(crate) async fn prepare() -> anyhow::Result<Stage> {
    let audit = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("bench-guard-audit-policy.yaml");
    std::fs::write(&audit, AUDIT).with_context(|| format!("writing {}", audit.display()))?;
    let plane = ControlPlane::builder()
        .fsync(true)
        .audit_log(true)
        .api_server_flag(format!("--audit-policy-file={}", audit.display()));
    Stage::builder(program()).plane(plane).replicas(1).start().await
}

/// The namespace of the thing with this number.
pub(crate) fn namespace(parameters: &Parameters, number: usize) -> String {
    format!("scale-{}", number % parameters.namespaces)
}

/// The one rollout of the config with this number.
pub(crate) fn rollout(parameters: &Parameters, number: usize) -> Rollout {
    Rollout::new(&namespace(parameters, number), &format!("app-{number}"), 1)
}

/// Makes all of it. Nobody is asked: no policy is there yet.
pub(crate) async fn fill(client: &Client, parameters: &Parameters) -> anyhow::Result<()> {
    for_each(0..parameters.namespaces, async |number| {
        make_namespace(client, &namespace(parameters, number), &[], false).await
    })
    .await?;
    for_each(0..parameters.pods, async |number| {
        let pod = if number < parameters.claims {
            let rollout = rollout(parameters, number);
            let uid = rollout.begin(client, "Running").await?;
            rollout.pod(&uid)
        } else {
            unrelated(parameters, number)
        };
        let answer = create_pod(client, &namespace(parameters, number), &as_in_earnest(pod)).await?;
        ensure!(answer.is_created(), "{}", answer.message());
        Ok(())
    })
    .await
}

fn unrelated(parameters: &Parameters, number: usize) -> Value {
    let mut pod = Rollout::new(&namespace(parameters, number), "none", 1).pod("none");
    pod["metadata"] = json!({ "name": format!("pod-{number}"), "labels": { "app": "none" } });
    pod
}

/// Bound to a node, and of a size that is usual.
fn as_in_earnest(mut pod: Value) -> Value {
    pod["spec"]["nodeName"] = json!("node-0");
    let variable = |number| {
        let value = "a value of some length, as addresses and paths are";
        json!({ "name": format!("SETTING_OF_THE_DEPLOYMENT_{number}"), "value": value })
    };
    pod["spec"]["containers"][0]["env"] = (0..VARIABLES).map(variable).collect();
    pod
}

/// Does something for each number, many at a time.
pub(crate) async fn for_each<F>(
    numbers: impl IntoIterator<Item = usize>,
    act: impl Fn(usize) -> F,
) -> anyhow::Result<()>
where
    F: Future<Output = anyhow::Result<()>>,
{
    stream::iter(numbers)
        .map(act)
        .buffer_unordered(WIDTH)
        .try_collect()
        .await
}
