//! Many creates at the same moment, each on a connection of its own.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use deployer_guard::api::claim::DeployerClaim;
use deployer_guard_testkit::objects::{Answer, create_pod};
use deployer_guard_testkit::{ControlPlane, Report, Stage, StageBuilder, StoreWatch, until};
use futures::future::join_all;
use kube::api::{Api, ListParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::{Value, json};
use tokio::sync::Barrier;
use tokio::time::Instant;

use crate::common::PROGRAM;

/// The policy of these tests: config and generation by label, no owner, any generation may win.
pub(crate) const BY_LABEL: &str = "
apiVersion: deployer-guard.io/v1alpha1
kind: DeployerPolicy
metadata: {name: by-label}
spec:
  timeoutSeconds: 5
  match: {objectSelector: {matchExpressions: [{key: test/config, operator: Exists}]}}
  config: {label: test/config}
  generation: {label: test/generation}
  reruns: Always
  olderGenerations: Allow
";
/// The label that names the config.
pub(crate) const CONFIG: &str = "test/config";

/// W + 10 s on [`with_short_window`], the least time after which a lost create is given up.
pub(crate) const GIVEN_UP: Duration = Duration::from_secs(16);
/// What it may take beyond that: an observer looks every 2 s, and tests share the machine.
pub(crate) const LATE: Duration = Duration::from_secs(12);

/// A stage whose API servers keep a create for 5 s at most, so that a lost one is given up after 16 s instead of 55 s.
pub(crate) fn with_short_window() -> StageBuilder {
    Stage::builder(PROGRAM)
        .plane(
            ControlPlane::builder()
                .api_servers(2)
                .audit_log(true)
                .api_server_flag("--request-timeout=5s"),
        )
        .argument("--api-server-request-timeout=5s")
        .argument("--pending-window=6s")
}

/// A deployer under [`BY_LABEL`].
pub(crate) fn deployer(config: &str, generation: &str, name: &str) -> Value {
    pod(&json!({ "name": name, "labels": { CONFIG: config, "test/generation": generation } }))
}

/// The same with a generated name.
pub(crate) fn deployer_of_any_name(config: &str, generation: &str) -> Value {
    let prefix = format!("{config}-{generation}-any-");
    pod(&json!({ "generateName": prefix, "labels": { CONFIG: config, "test/generation": generation } }))
}

/// A pod that no policy matches.
pub(crate) fn unrelated(name: &str) -> Value {
    pod(&json!({ "name": name }))
}

fn pod(metadata: &Value) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {
            "containers": [{ "name": "deployment", "image": "registry.example/deployer:latest" }],
            "restartPolicy": "Never",
            "automountServiceAccountToken": false,
        },
    })
}

/// Watches who is active for which config under [`BY_LABEL`], in one namespace.
pub(crate) async fn witness(plane: &ControlPlane, namespace: &str) -> anyhow::Result<StoreWatch> {
    StoreWatch::start(plane.clients(), Some(namespace), |pod| {
        pod["metadata"]["labels"][CONFIG].as_str().map(ToOwned::to_owned)
    })
    .await
}

/// Fails if two pods were ever active for one key.
pub(crate) fn assert_never_two(report: &Report) {
    assert_eq!(report.violations, [], "two active at once");
}

/// The machine-readable reason of a refusal: the type of its first cause.
pub(crate) fn cause(answer: &Answer) -> &str {
    let status = answer.result.as_ref().err();
    let causes = status
        .and_then(|status| status.details.as_ref())
        .map(|details| &details.causes);
    causes
        .and_then(|causes| causes.first())
        .map_or("", |cause| &cause.reason)
}

/// How long an API server's watch cache may take to be there.
const LIST_LIMIT: Duration = Duration::from_secs(30);

/// The claims of a namespace by config.
pub(crate) async fn claims(client: &Client, namespace: &str) -> anyhow::Result<BTreeMap<String, DeployerClaim>> {
    let api: Api<DeployerClaim> = Api::namespaced(client.clone(), namespace);
    // An API server whose watch cache is young answers 429.
    let list = until("the claims to be listed", LIST_LIMIT, async || {
        Ok(api.list(&ListParams::default()).await?)
    })
    .await?;
    Ok(list
        .items
        .into_iter()
        .map(|claim| (claim.spec.config.clone(), claim))
        .collect())
}

/// The claim of a config, read live.
pub(crate) async fn claim(client: &Client, namespace: &str, config: &str) -> anyhow::Result<DeployerClaim> {
    let claims = claims(client, namespace).await?;
    claims
        .get(config)
        .cloned()
        .with_context(|| format!("no claim of {config}"))
}

/// Waits until a claim has no pending entry.
pub(crate) async fn settled(
    client: &Client,
    namespace: &str,
    config: &str,
    limit: Duration,
) -> anyhow::Result<DeployerClaim> {
    until("the claim to have nothing pending", limit, async || {
        let claim = claim(client, namespace, config).await?;
        anyhow::ensure!(claim.spec.pending.is_empty(), "pending: {:?}", claim.spec.pending);
        Ok(claim)
    })
    .await
}

/// A client of API server `i` with connections of its own. It repeats nothing by itself.
pub(crate) async fn own_client(plane: &ControlPlane, i: usize) -> anyhow::Result<Client> {
    let kubeconfig = Kubeconfig::read_from(plane.kubeconfig(i))?;
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    config.default_retry = false;
    Ok(Client::try_from(config)?)
}

/// Clients that send at the same moment; creator `i` sends to API server `i`, counted round.
pub(crate) struct Creators(Vec<Client>);

/// The answers to creates that were sent at the same moment, in the order of the creators.
pub(crate) struct Volley {
    pub(crate) answers: Vec<Answer>,
    /// Between the first create sent and the last one.
    pub(crate) spread: Duration,
}

impl Creators {
    /// Creators whose connections are open already.
    pub(crate) async fn new(plane: &ControlPlane, count: usize) -> anyhow::Result<Self> {
        let mut clients = Vec::new();
        for i in 0..count {
            let client = own_client(plane, i % plane.api_servers()).await?;
            client.apiserver_version().await?;
            clients.push(client);
        }
        Ok(Self(clients))
    }

    /// Creator `i` sends `pods[i]`, all at once; each create is one request.
    pub(crate) async fn volley(&self, namespace: &str, pods: Vec<Value>) -> anyhow::Result<Volley> {
        let start = Arc::new(Barrier::new(pods.len()));
        let tasks = self.0.iter().zip(pods).map(|(client, pod)| {
            let (client, start, namespace) = (client.clone(), Arc::clone(&start), namespace.to_owned());
            tokio::spawn(async move {
                start.wait().await;
                let sent = Instant::now();
                (sent, create_pod(&client, &namespace, &pod).await)
            })
        });
        let mut answers = Vec::new();
        let mut sent = Vec::new();
        for done in join_all(tasks).await {
            let (at, answer) = done?;
            sent.push(at);
            answers.push(answer?);
        }
        let spread = sent
            .iter()
            .max()
            .zip(sent.iter().min())
            .map(|(last, first)| *last - *first);
        Ok(Volley {
            answers,
            spread: spread.unwrap_or_default(),
        })
    }
}
