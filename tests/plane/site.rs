//! A stage on which creates can be kept between admission and store, and its namespaces seen through both API servers.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use deployer_guard::api::claim::DeployerClaim;
use deployer_guard_testkit::objects::{Answer, create_pod, create_pod_with, make_namespace, set_phase};
use deployer_guard_testkit::{Balancer, Stage, StageBuilder, http_get, until};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use tokio::sync::{OnceCell, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::creators::{BY_LABEL, GIVEN_UP, LATE, cause, claim, deployer, settled, unrelated, with_short_window};
use crate::own_webhook::{OwnWebhook, call_for};

/// A pod with this label is held by a gate of that name, after deployer-guard has answered, until the gate is opened.
const GATE: &str = "test/gate";
/// Gates with this prefix, once open, lead nowhere: the pod is refused.
const DENY: &str = "deny-";
/// A pod with this label is refused because a webhook that has to be asked about it cannot be reached.
const UNREACHABLE: &str = "test/unreachable";
/// How long a claim may take to show what was just done.
pub(crate) const SOON: Duration = Duration::from_secs(4);

static SITE: OnceCell<Site> = OnceCell::const_new();

/// A stage on which lost creates are given up after 16 s, with a second validating webhook that holds pods back.
pub(crate) struct Site {
    pub(crate) stage: Stage,
    open: Arc<watch::Sender<HashSet<String>>>,
    _gates: OwnWebhook,
    /// Closes each connection at once.
    _nobody: Balancer,
}

impl Site {
    pub(crate) async fn start(stage: StageBuilder) -> anyhow::Result<Self> {
        let stage = stage.start().await?;
        stage.enforce(BY_LABEL).await?;
        let open = Arc::new(watch::Sender::new(HashSet::from(["probe".to_owned()])));
        let gates = Arc::clone(&open);
        let webhook = OwnWebhook::start(&stage.pki, stage.plane.directory(), move |request| {
            let mut gates = gates.subscribe();
            Box::pin(async move {
                let gate = request["object"]["metadata"]["labels"][GATE]
                    .as_str()
                    .unwrap_or_default();
                gates.wait_for(|open| open.contains(gate)).await?;
                Ok(!gate.starts_with(DENY))
            })
        })?;
        let probe = gated(unrelated("probe"), "probe");
        call_for(&stage.plane, &stage.pki, webhook.address, GATE, &probe, || {
            webhook.calls()
        })
        .await?;
        let nobody = Balancer::start([]).await?;
        let probe = with_unreachable(unrelated("probe"));
        call_for(&stage.plane, &stage.pki, nobody.address(), UNREACHABLE, &probe, || {
            nobody.refused()
        })
        .await?;
        Ok(Self {
            stage,
            open,
            _gates: webhook,
            _nobody: nobody,
        })
    }

    pub(crate) fn open(&self, gate: &str) {
        self.open.send_modify(|open| {
            open.insert(gate.to_owned());
        });
    }
}

/// A pod that the gate of this name holds.
pub(crate) fn gated(mut pod: Value, gate: &str) -> Value {
    pod["metadata"]["labels"][GATE] = json!(gate);
    pod
}

/// A pod that a webhook which cannot be reached would have to be asked about.
pub(crate) fn with_unreachable(mut pod: Value) -> Value {
    pod["metadata"]["labels"][UNREACHABLE] = json!("");
    pod
}

/// A pod that stays Terminating when it is deleted: the kubelet of its node, which is not there, would have to end it.
pub(crate) fn on_a_lost_node(mut pod: Value) -> Value {
    pod["spec"]["nodeName"] = json!("lost");
    pod
}

/// A namespace of a site, seen through both of its API servers.
pub(crate) struct Scene<'a> {
    pub(crate) site: &'a Site,
    pub(crate) namespace: &'static str,
    pub(crate) client: Client,
}

impl Scene<'static> {
    /// A namespace of the site that these tests share.
    pub(crate) async fn shared(namespace: &'static str) -> anyhow::Result<Self> {
        Scene::of(
            SITE.get_or_try_init(|| Site::start(with_short_window())).await?,
            namespace,
        )
        .await
    }
}

impl<'a> Scene<'a> {
    pub(crate) async fn of(site: &'a Site, namespace: &'static str) -> anyhow::Result<Self> {
        let client = site.stage.plane.client(0);
        make_namespace(&client, namespace, &[], false).await?;
        let scene = Self {
            site,
            namespace,
            client,
        };
        scene.both_answer(201, "").await?;
        Ok(scene)
    }

    /// Waits until a pod of no policy is answered like this by both API servers.
    pub(crate) async fn both_answer(&self, code: u16, text: &str) -> anyhow::Result<()> {
        for client in self.site.stage.plane.clients() {
            until("both API servers to know", Duration::from_secs(20), async || {
                let answer = create_pod_with(&client, self.namespace, &unrelated("known"), "dryRun=All").await?;
                ensure!(
                    answer.code == code && answer.message().contains(text),
                    "{} {}",
                    answer.code,
                    answer.message()
                );
                Ok(())
            })
            .await?;
        }
        Ok(())
    }

    pub(crate) async fn create(&self, pod: &Value) -> anyhow::Result<Answer> {
        create_pod(&self.client, self.namespace, pod).await
    }

    /// Creates a deployer of that name and generation; it must be admitted and seen.
    pub(crate) async fn admitted(&self, config: &str, name: &str) -> anyhow::Result<Pod> {
        self.admitted_pod(config, &deployer(config, name, name)).await
    }

    pub(crate) async fn admitted_pod(&self, config: &str, pod: &Value) -> anyhow::Result<Pod> {
        let answer = self.create(pod).await?;
        let stored = answer
            .result
            .map_err(|status| anyhow::anyhow!("{} {}", answer.code, status.message))?;
        let claim = settled(&self.client, self.namespace, config, SOON).await?;
        ensure!(claim.spec.holder.as_ref().map(|holder| &holder.uid) == stored.metadata.uid.as_ref());
        Ok(*stored)
    }

    /// A deployer of that name must be refused at both API servers for this cause, by a text that names `by`.
    pub(crate) async fn refused(&self, config: &str, name: &str, why: &str, by: &str) -> anyhow::Result<()> {
        for client in self.site.stage.plane.clients() {
            let answer = create_pod(&client, self.namespace, &deployer(config, name, name)).await?;
            ensure!(
                answer.code == 403
                    && cause(&answer) == why
                    && answer.message().contains(&format!("deployer pod {by:?}")),
                "{} {}",
                answer.code,
                answer.message()
            );
        }
        Ok(())
    }

    /// A deployer of that name must be answered `AlreadyExists`, and the claim be left as it is.
    pub(crate) async fn exists(&self, config: &str, name: &str) -> anyhow::Result<()> {
        let before = self.claim(config).await?;
        let answer = self.create(&deployer(config, name, name)).await?;
        ensure!(answer.code == 409, "{} {}", answer.code, answer.message());
        ensure!(answer.result.is_err_and(|status| status.reason == "AlreadyExists"));
        ensure!(self.claim(config).await?.spec == before.spec, "the claim changed");
        Ok(())
    }

    pub(crate) async fn claim(&self, config: &str) -> anyhow::Result<DeployerClaim> {
        claim(&self.client, self.namespace, config).await
    }

    pub(crate) async fn delete_claim(&self, config: &str) -> anyhow::Result<()> {
        let name = self.claim(config).await?.name_any();
        let claims: Api<DeployerClaim> = Api::namespaced(self.client.clone(), self.namespace);
        claims.delete(&name, &DeleteParams::default()).await?;
        Ok(())
    }

    pub(crate) async fn phase(&self, name: &str, phase: &str) -> anyhow::Result<()> {
        set_phase(&self.client, self.namespace, name, phase).await.map(drop)
    }

    pub(crate) async fn delete(&self, name: &str) -> anyhow::Result<()> {
        self.pods().delete(name, &DeleteParams::default()).await?;
        Ok(())
    }

    pub(crate) fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), self.namespace)
    }

    /// Sends a create that a gate holds, and waits until the claim is given to it.
    pub(crate) async fn on_its_way(
        &self,
        config: &str,
        name: &str,
        gate: &str,
    ) -> anyhow::Result<JoinHandle<anyhow::Result<Answer>>> {
        let pod = gated(deployer(config, name, name), gate);
        let (client, namespace) = (self.client.clone(), self.namespace);
        let sent = tokio::spawn(async move { create_pod(&client, namespace, &pod).await });
        until("the create to be admitted", SOON, async || {
            let pending = self.claim(config).await?.spec.pending;
            ensure!(pending.iter().any(|entry| entry.name == name), "pending: {pending:?}");
            Ok(())
        })
        .await?;
        Ok(sent)
    }

    /// Tries another deployer until it is admitted; how long after `since` that was. It may only be refused as long as
    /// something is pending.
    pub(crate) async fn admitted_in_the_end(
        &self,
        config: &str,
        name: &str,
        since: Instant,
    ) -> anyhow::Result<Duration> {
        until("the key to be free", GIVEN_UP + LATE, async || {
            let answer = self.create(&deployer(config, name, name)).await?;
            ensure!(answer.is_created(), "{} {}", answer.code, answer.message());
            Ok(since.elapsed())
        })
        .await
    }

    /// The sum of a counter over the replicas.
    pub(crate) async fn counted(&self, counter: &str) -> anyhow::Result<u64> {
        let mut sum = 0;
        for replica in &self.site.stage.replicas {
            let (_, text) = http_get(&format!("http://{}/metrics", replica.health)).await?;
            let value = text
                .lines()
                .find_map(|line| line.strip_prefix(counter)?.strip_prefix(' '));
            sum += value
                .with_context(|| format!("no {counter} in {text}"))?
                .parse::<u64>()?;
        }
        Ok(sum)
    }
}
