//! The sides that are compared, and pods for them: of one shape, told apart by a label that one configuration selects.

use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::ensure;
use deployer_guard_testkit::objects::{Answer, create_pod};
use deployer_guard_testkit::openshift::Rollout;
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::Pod;
use kube::api::DeleteParams;
use kube::{Api, Client};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::common::samples::Samples;

/// The label that a comparison webhook's configuration selects.
pub(crate) const WEBHOOK: &str = "bench.deployer-guard.io/webhook";
/// The label that the list-based webhook lists by.
pub(crate) const CONFIG: &str = "bench.deployer-guard.io/config";
/// The label that the policy for `OpenShift` selects.
const DEPLOYER: &str = "openshift.io/deployer-pod-for.name";

/// Who is asked about a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Side {
    /// Nobody: no configuration selects the pod.
    None,
    /// A webhook that always allows.
    Allow,
    /// A webhook that always denies.
    Deny,
    /// A webhook that lists the pods of the config and refuses if one is active.
    List,
    /// deployer-guard, under the policy for `OpenShift` as it is shipped.
    Ours,
}

impl Side {
    /// As tables show it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::None => "no webhook",
            Self::Allow => "always-allow",
            Self::Deny => "always-deny",
            Self::List => "list-based",
            Self::Ours => "deployer-guard",
        }
    }

    /// For names of objects.
    pub(crate) fn tag(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Ours => "ours",
            side => side.label().unwrap_or_default(),
        }
    }

    /// The path of a comparison webhook, and the value of its label.
    pub(crate) fn label(self) -> Option<&'static str> {
        match self {
            Self::None | Self::Ours => None,
            Self::Allow => Some("allow"),
            Self::Deny => Some("deny"),
            Self::List => Some("list"),
        }
    }
}

/// A number that no name of this run has yet.
pub(crate) fn fresh() -> u32 {
    static LAST: AtomicU32 = AtomicU32::new(0);
    LAST.fetch_add(1, Ordering::Relaxed)
}

/// A namespace to measure in.
#[derive(Clone)]
pub(crate) struct Place {
    pub(crate) client: Client,
    pub(crate) namespace: String,
}

impl Place {
    /// A pod for this side that works for rollout `version` of a config. What it needs beside itself is made.
    pub(crate) async fn pod(&self, side: Side, config: &str, version: u32) -> anyhow::Result<Value> {
        let rollout = Rollout::new(&self.namespace, config, version);
        if side == Side::Ours {
            let uid = rollout.begin(&self.client, "New").await?;
            return Ok(rollout.pod(&uid));
        }
        let mut pod = rollout.pod("9b4d5c3f-4f0e-4a8e-9a59-3f6a0f5f7d11");
        pod["metadata"]["labels"] = json!({ CONFIG: config });
        if let Some(label) = side.label() {
            pod["metadata"]["labels"][WEBHOOK] = json!(label);
        }
        Ok(pod)
    }

    /// A pod that carries the label that the policy selects and is no deployer: a hook pod. The API server evaluates the
    /// policy's match conditions on it, and asks nobody.
    pub(crate) fn hook(&self, name: &str) -> Value {
        let mut pod = Rollout::new(&self.namespace, name, 1).pod("9b4d5c3f-4f0e-4a8e-9a59-3f6a0f5f7d11");
        pod["metadata"]["name"] = json!(format!("{name}-hook-pre"));
        pod["metadata"]["labels"] = json!({ DEPLOYER: name });
        pod
    }

    /// Creates the pods, `width` at a time, each on a task of its own, and keeps how long each took.
    pub(crate) async fn create_all(&self, pods: &[Value], width: usize, took: &mut Samples) -> anyhow::Result<()> {
        for group in pods.chunks(width) {
            let begun = Instant::now();
            let tasks = group.iter().map(|pod| {
                let (place, pod) = (self.clone(), pod.clone());
                tokio::spawn(async move {
                    let begun = Instant::now();
                    let answer = place.create(&pod).await?;
                    anyhow::Ok((answer, begun.elapsed()))
                })
            });
            for task in try_join_all(tasks).await? {
                let (answer, elapsed) = task?;
                ensure!(answer.is_created(), "a create was refused: {}", answer.message());
                took.push(elapsed);
            }
            took.spend(begun.elapsed());
        }
        Ok(())
    }

    /// Creates one pod; a refusal is an answer.
    pub(crate) async fn create(&self, pod: &Value) -> anyhow::Result<Answer> {
        create_pod(&self.client, &self.namespace, pod).await
    }

    /// Deletes pods that were created.
    pub(crate) async fn delete_all(&self, pods: &[Value]) -> anyhow::Result<()> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        let at_once = DeleteParams::default().grace_period(0);
        for group in pods.chunks(16) {
            let deletes = group.iter().map(|pod| {
                let name = pod["metadata"]["name"].as_str().unwrap_or_default();
                api.delete(name, &at_once)
            });
            try_join_all(deletes).await?;
        }
        Ok(())
    }
}
