//! A stage for one test, which may do harm to it: webhook, guards as processes, and a witness that counts the active pods of each key.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, ensure};
use deployer_guard::api::{DeployerClaim, DeployerPolicy};
use deployer_guard_testkit::objects::{create_pod, loosen_schema, make_namespace, set_phase};
use deployer_guard_testkit::{ApiProxy, GuardProcess, NAMESPACE, Report, Stage, StageBuilder, StoreWatch, until};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::scene::{PROGRAM, SOON};

/// A stage, and a namespace in which pods work for policies: those with the label `scene: <policy>`, for the config in their label
/// `config`.
pub(crate) struct Ground {
    pub(crate) stage: Stage,
    pub(crate) client: Client,
    pub(crate) namespace: &'static str,
    witness: StoreWatch,
}

/// A stage whose guards look for what watches missed each second.
pub(crate) fn stage() -> StageBuilder {
    Stage::builder(PROGRAM)
        .replicas(1)
        .guard_argument("--relist-period")
        .guard_argument("1s")
}

/// A policy for pods with the label `scene: <name>`, with these fields in its spec.
pub(crate) fn policy(name: &str, spec: &Value) -> Value {
    let mut policy = json!({
        "apiVersion": "deployer-guard.io/v1alpha1",
        "kind": "DeployerPolicy",
        "metadata": { "name": name },
        "spec": {
            "match": { "objectSelector": { "matchLabels": { "scene": name } } },
            "config": { "label": "config" },
            // The replicas of these tests are ended at will.
            "failurePolicy": "Ignore",
        },
    });
    for (field, value) in spec.as_object().into_iter().flatten() {
        policy["spec"][field] = value.clone();
    }
    policy
}

/// A deployer of a policy for a config.
pub(crate) fn pod(name: &str, policy: &str, config: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": name, "labels": { "scene": policy, "config": config } },
        "spec": {
            "containers": [{ "name": "deployment", "image": "registry.example/deployer:latest" }],
            "restartPolicy": "Never",
            "automountServiceAccountToken": false,
        },
    })
}

/// The same, on a node. There is no such node.
pub(crate) fn bound(mut pod: Value) -> Value {
    pod["spec"]["nodeName"] = json!("no-such-node");
    pod
}

impl Ground {
    /// Starts the stage and makes the namespace.
    pub(crate) async fn new(stage: StageBuilder, namespace: &'static str) -> anyhow::Result<Self> {
        let stage = stage.start().await?;
        stage.apply_configuration().await?;
        let client = stage.plane.client(0);
        make_namespace(&client, namespace, &[], false).await?;
        // The last API server: a test that restarts one restarts the first.
        let clients = vec![stage.plane.client(stage.plane.api_servers() - 1)];
        let witness = StoreWatch::start(clients, None, |pod| {
            let text = |pointer| pod.pointer(pointer).and_then(Value::as_str);
            let (policy, config) = (text("/metadata/labels/scene")?, text("/metadata/labels/config")?);
            Some(format!("{policy} {config}"))
        })
        .await?;
        Ok(Self {
            stage,
            client,
            namespace,
            witness,
        })
    }

    /// A proxy before the first API server, and a guard that knows no other way.
    pub(crate) async fn behind_proxy(&mut self, arguments: &[&str]) -> anyhow::Result<ApiProxy> {
        let proxy = ApiProxy::start(&self.stage.plane, 0).await?;
        self.guard_behind(&proxy, arguments).await?;
        Ok(proxy)
    }

    /// One more guard behind a proxy.
    pub(crate) async fn guard_behind(&mut self, proxy: &ApiProxy, arguments: &[&str]) -> anyhow::Result<()> {
        let plane = &self.stage.plane;
        let kubeconfig = plane
            .service_account_kubeconfig_at(&proxy.url(), NAMESPACE, NAMESPACE)
            .await?;
        let kubeconfig = kubeconfig.display().to_string();
        let arguments = [&["--kubeconfig", &kubeconfig], arguments].concat();
        let name = format!("guard-{}", self.stage.guards.len());
        let guard = self.stage.start_guard(&name, &arguments).await?;
        self.stage.guards.push(guard);
        Ok(())
    }

    /// The guard that was started last.
    pub(crate) fn guard(&self) -> &GuardProcess {
        self.stage.guards.last().expect("a guard")
    }

    /// Waits until policies are in force, and says that stock was taken under them: what comes in from now on is no old friend.
    /// Waiting for it would take most of a minute.
    pub(crate) async fn enforce(&self, policies: &[Value]) -> anyhow::Result<()> {
        let texts: Vec<_> = policies.iter().map(ToString::to_string).collect();
        self.stage.enforce(&texts.join("\n---\n")).await?;
        let names = policies.iter().filter_map(|policy| policy["metadata"]["name"].as_str());
        for name in names {
            until("the guard to take it that stock was taken", SOON, async || {
                if !self.is_stock_taken(name).await? {
                    let status =
                        json!({ "status": { "stockTaking": { "generation": 1, "completedAt": "2026-01-01T00:00:00Z" } } });
                    self.policies()
                        .patch_status(name, &PatchParams::default(), &Patch::Merge(status))
                        .await?;
                    // It writes the status at most once a second.
                    sleep(Duration::from_millis(2500)).await;
                }
                ensure!(self.is_stock_taken(name).await?, "it wrote over it");
                Ok(())
            })
            .await?;
        }
        Ok(())
    }

    /// Takes a rule out of the schema of a policy's spec, by its path there: a policy like this one may have been stored under a schema
    /// that did not have it.
    pub(crate) async fn allow(&self, rule: &str, policy: &Value) -> anyhow::Result<()> {
        loosen_schema(&self.client, "deployerpolicies.deployer-guard.io", rule).await?;
        let dry_run = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        until("the schema to be in use", SOON, async || {
            let policy = serde_json::from_value(policy.clone())?;
            self.policies().create(&dry_run, &policy).await?;
            Ok(())
        })
        .await
    }

    pub(crate) async fn is_stock_taken(&self, policy: &str) -> anyhow::Result<bool> {
        let policy = self.policies().get(policy).await?;
        let taking = policy.status.as_ref().and_then(|status| status.stock_taking);
        Ok(taking.is_some_and(|taking| Some(taking.generation) == policy.metadata.generation))
    }

    pub(crate) fn policies(&self) -> Api<DeployerPolicy> {
        Api::all(self.client.clone())
    }

    pub(crate) fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), self.namespace)
    }

    pub(crate) fn claims(&self) -> Api<DeployerClaim> {
        Api::namespaced(self.client.clone(), self.namespace)
    }

    /// Ends every replica of the webhook: with `failurePolicy: Ignore`, everything comes in.
    pub(crate) fn end_webhook(&self) -> anyhow::Result<()> {
        self.stage
            .replicas
            .iter()
            .try_for_each(|replica| replica.webhook.process().kill())
    }

    /// Starts the replicas again.
    pub(crate) async fn return_webhook(&self) -> anyhow::Result<()> {
        for replica in &self.stage.replicas {
            replica.webhook.process().restart()?;
            replica.wait_ready().await?;
        }
        Ok(())
    }

    /// Creates a pod, which must succeed; its uid.
    pub(crate) async fn create(&self, pod: &Value) -> anyhow::Result<String> {
        let answer = create_pod(&self.client, self.namespace, pod).await?;
        let created = answer.result.as_ref().ok().and_then(|pod| pod.uid());
        created.with_context(|| format!("refused: {}", answer.message()))
    }

    /// Waits until a pod is refused, with 403. Until then API servers may not have called the webhook yet: it is asked by a dry run.
    pub(crate) async fn refuses(&self, pod: &Value) -> anyhow::Result<()> {
        until("a pod to be refused", SOON, async || {
            let answer = self.dry_run(pod).await?;
            ensure!(answer == 403, "{answer}");
            Ok(())
        })
        .await?;
        let answer = create_pod(&self.client, self.namespace, pod).await?;
        ensure!(answer.code == 403, "{} {}", answer.code, answer.message());
        Ok(())
    }

    /// Waits until a pod would be let in.
    pub(crate) async fn lets_in(&self, pod: &Value) -> anyhow::Result<()> {
        until("a pod to be let in", SOON, async || {
            let answer = self.dry_run(pod).await?;
            ensure!(answer == 201, "{answer}");
            Ok(())
        })
        .await
    }

    async fn dry_run(&self, pod: &Value) -> anyhow::Result<u16> {
        let query = "dryRun=All";
        let answer = deployer_guard_testkit::objects::create_pod_with(&self.client, self.namespace, pod, query).await?;
        Ok(answer.code)
    }

    pub(crate) async fn set_phase(&self, pod: &str, phase: &str) -> anyhow::Result<()> {
        set_phase(&self.client, self.namespace, pod, phase).await.map(drop)
    }

    /// Deletes a pod at once.
    pub(crate) async fn remove(&self, pod: &str) -> anyhow::Result<()> {
        let at_once = DeleteParams::default().grace_period(0);
        self.pods().delete(pod, &at_once).await?;
        Ok(())
    }

    /// The uid of a pod that must be there.
    pub(crate) async fn uid(&self, pod: &str) -> anyhow::Result<String> {
        self.pods()
            .get(pod)
            .await
            .with_context(|| format!("pod {pod}"))?
            .uid()
            .context("a uid")
    }

    pub(crate) async fn until_gone(&self, pod: &str) -> anyhow::Result<()> {
        let what = format!("{pod} to be gone");
        let gone = until(&what, SOON, async || {
            ensure!(self.pods().get_opt(pod).await?.is_none(), "it is there");
            Ok(())
        });
        gone.await.map_err(|error| self.blame(error))
    }

    /// The claim of a policy's config.
    pub(crate) async fn claim(&self, policy: &str, config: &str) -> anyhow::Result<DeployerClaim> {
        let claims = self.claims().list(&ListParams::default()).await?.items;
        let ours = |claim: &DeployerClaim| claim.spec.policy.name == policy && claim.spec.config == config;
        claims
            .into_iter()
            .find(ours)
            .with_context(|| format!("no claim for {config}"))
    }

    /// Waits until the claim of a policy's config is like this.
    pub(crate) async fn until_claim(
        &self,
        (policy, config): (&str, &str),
        what: &str,
        so: impl Fn(&DeployerClaim) -> bool,
    ) -> anyhow::Result<DeployerClaim> {
        let what = format!("the claim for {config} to be {what}");
        let found = until(&what, SOON, async || {
            let claim = self.claim(policy, config).await?;
            ensure!(so(&claim), "{:?}", claim.spec);
            Ok(claim)
        });
        found.await.map_err(|error| self.blame(error))
    }

    /// Waits until this pod holds the claim, and nobody is on the way.
    pub(crate) async fn until_held(&self, key: (&str, &str), pod: &str) -> anyhow::Result<DeployerClaim> {
        self.until_claim(key, &format!("held by {pod}"), |claim| {
            let holder = claim.spec.holder.as_ref();
            holder.is_some_and(|holder| holder.name == pod) && claim.spec.pending.is_empty()
        })
        .await
    }

    /// Waits until nobody holds the claim.
    pub(crate) async fn until_free(&self, key: (&str, &str)) -> anyhow::Result<DeployerClaim> {
        self.until_claim(key, "free", |claim| {
            claim.spec.holder.is_none() && claim.spec.pending.is_empty()
        })
        .await
    }

    /// Waits until the guards that lead have put this on record, by the reason and a pod's name in the note of a log line.
    pub(crate) async fn until_logged(&self, reason: &str, pod: &str) -> anyhow::Result<()> {
        until(&format!("{reason} of {pod} to be logged"), SOON, async || {
            ensure!(self.is_logged(reason, pod)?, "it is not");
            Ok(())
        })
        .await
        .map_err(|error| self.blame(error))
    }

    /// Whether any guard has put this on record.
    pub(crate) fn is_logged(&self, reason: &str, pod: &str) -> anyhow::Result<bool> {
        for guard in &self.stage.guards {
            let lines = guard.log_lines()?;
            let about = |line: &Value| {
                let note = line["note"].as_str().unwrap_or_default();
                line["reason"] == reason && note.contains(pod)
            };
            if lines.iter().any(about) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    pub(crate) fn blame(&self, error: anyhow::Error) -> anyhow::Error {
        self.stage.guards.iter().fold(error, |error, guard| guard.blame(error))
    }

    /// Ends it: the witness has seen these pods, each by name, come in as one too many, and no other.
    pub(crate) async fn end_with(self, duplicates: &[&str]) -> anyhow::Result<Report> {
        let report = self.witness.finish().await?;
        let seen: BTreeSet<_> = report
            .violations
            .iter()
            .filter_map(|violation| violation.pods.last().map(|pod| pod.name.as_str()))
            .collect();
        let expected: BTreeSet<_> = duplicates.iter().copied().collect();
        ensure!(seen == expected, "{:#?}", report.violations);
        Ok(report)
    }
}
