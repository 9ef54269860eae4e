//! A stage with guard processes and one policy in force, whose pods are in one namespace.

use std::time::Duration;

use anyhow::{Context, ensure};
use deployer_guard::api::{DeployerClaim, DeployerPolicy};
use deployer_guard_testkit::objects::{Answer, create_pod, make_namespace, set_phase};
use deployer_guard_testkit::{NAMESPACE, Stage, StageBuilder, until};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::events::v1::Event;
use kube::api::{Api, ListParams, Patch, PatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config, ResourceExt};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::scene::SOON;

/// The program under test.
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_deployer-guard");
/// The name of the policy, and of the namespace with its pods.
pub(crate) const SITE: &str = "guarded";

/// A stage with guard processes of its own, which a test may harm.
pub(crate) struct Site {
    pub(crate) stage: Stage,
    /// Of the API server that stays unharmed, the last one.
    pub(crate) client: Client,
}

impl Site {
    /// No guard runs yet.
    pub(crate) async fn before(builder: StageBuilder) -> anyhow::Result<Self> {
        let stage = builder.start().await?;
        stage.apply_configuration().await?;
        let client = stage.plane.client(stage.plane.api_servers() - 1);
        make_namespace(&client, SITE, &[], false).await?;
        Ok(Self { stage, client })
    }

    /// One more guard, which reaches its API server at this address, or directly.
    pub(crate) async fn guard(&mut self, name: &str, url: Option<&str>) -> anyhow::Result<()> {
        let guard = match url {
            Some(url) => {
                let plane = &self.stage.plane;
                let file = plane.service_account_kubeconfig_at(url, NAMESPACE, NAMESPACE).await?;
                let file = file.display().to_string();
                self.stage.start_guard(name, &["--kubeconfig", &file]).await?
            }
            None => self.stage.start_guard(name, &[]).await?,
        };
        self.stage.guards.push(guard);
        Ok(())
    }

    /// Starts the only guard again, which was killed, and spares it the wait for its Lease of before.
    pub(crate) async fn again(&self) -> anyhow::Result<()> {
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), NAMESPACE);
        let free = json!({ "spec": { "holderIdentity": "", "leaseDurationSeconds": 1 } });
        leases
            .patch("deployer-guard", &PatchParams::default(), &Patch::Merge(&free))
            .await?;
        self.stage.guards[0].process().restart()
    }

    /// A client with the rights of the guards, which repeats nothing.
    pub(crate) async fn as_guard(&self) -> anyhow::Result<Client> {
        let plane = &self.stage.plane;
        let last = plane.api_servers() - 1;
        let file = plane.service_account_kubeconfig(last, NAMESPACE, NAMESPACE).await?;
        let options = KubeConfigOptions::default();
        let mut config = Config::from_custom_kubeconfig(Kubeconfig::read_from(file)?, &options).await?;
        config.default_retry = false;
        Ok(Client::try_from(config)?)
    }

    /// Puts the policy in force. Stock was taken under it, so that what comes in from now on is no old friend.
    pub(crate) async fn begin(&self) -> anyhow::Result<()> {
        let policy = json!({
            "apiVersion": "deployer-guard.io/v1alpha1",
            "kind": "DeployerPolicy",
            "metadata": { "name": SITE },
            "spec": {
                "match": { "objectSelector": { "matchLabels": { "scene": SITE } } },
                "config": { "label": "config" },
                "timeoutSeconds": 30,
            },
        });
        self.stage.enforce(&policy.to_string()).await?;
        let policies: Api<DeployerPolicy> = Api::all(self.client.clone());
        let taken = json!({ "status": { "stockTaking": { "generation": 1, "completedAt": "2026-01-01T00:00:00Z" } } });
        until("stock to be taken, and to stay so", SOON, async || {
            policies
                .patch_status(SITE, &PatchParams::default(), &Patch::Merge(&taken))
                .await?;
            // What the guard knew before may be written once more. A pod of the very second of the policy counts as older, too.
            sleep(Duration::from_millis(1500)).await;
            let status = policies.get(SITE).await?.status.unwrap_or_default();
            ensure!(status.stock_taking.is_some(), "{status:?}");
            Ok(())
        })
        .await
    }

    pub(crate) async fn until_leads(&self, i: usize) -> anyhow::Result<()> {
        until("a guard to lead", SOON, async || {
            ensure!(self.stage.guards[i].leads().await?, "it does not");
            Ok(())
        })
        .await
        .map_err(|error| self.stage.guards[i].blame(error))
    }

    pub(crate) async fn create(&self, config: &str, name: &str) -> anyhow::Result<Answer> {
        create_pod(&self.client, SITE, &deployer(config, name)).await
    }

    /// A deployer comes in through the webhook, and is seen in the store.
    pub(crate) async fn admit(&self, config: &str, name: &str) -> anyhow::Result<Pod> {
        let answer = self.create(config, name).await?;
        let pod = answer.result.map_err(|status| anyhow::anyhow!("{}", status.message))?;
        until("the pod to be confirmed", SOON, async || {
            let claim = self.claim(config).await?;
            ensure!(claim.spec.pending.is_empty(), "{:?}", claim.spec);
            Ok(())
        })
        .await?;
        Ok(*pod)
    }

    /// A deployer comes in past the webhook: it is told what it is by `pods/status`, about which nobody is asked.
    pub(crate) async fn bypass(&self, config: &str, name: &str) -> anyhow::Result<Pod> {
        let mut pod = deployer(config, name);
        let labels = pod["metadata"]["labels"].take();
        let answer = create_pod(&self.client, SITE, &pod).await?;
        ensure!(answer.is_created(), "{}", answer.message());
        let labels = json!({ "metadata": { "labels": labels } });
        let merge = Patch::Merge(&labels);
        Ok(self.pods().patch_status(name, &PatchParams::default(), &merge).await?)
    }

    pub(crate) async fn phase(&self, name: &str, phase: &str) -> anyhow::Result<()> {
        set_phase(&self.client, SITE, name, phase).await.map(drop)
    }

    pub(crate) fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), SITE)
    }

    /// All claims.
    pub(crate) async fn claims(&self) -> anyhow::Result<Vec<DeployerClaim>> {
        let claims: Api<DeployerClaim> = Api::namespaced(self.client.clone(), SITE);
        Ok(claims.list(&ListParams::default()).await?.items)
    }

    /// The claim of a config.
    pub(crate) async fn claim(&self, config: &str) -> anyhow::Result<DeployerClaim> {
        let claims = self.claims().await?;
        let found = claims.into_iter().find(|claim| claim.spec.config == config);
        found.with_context(|| format!("no claim of {config}"))
    }

    /// The active deployer of a config, if all is as it is to be: there is at most one, it holds the claim, and nothing else is listed
    /// there.
    async fn at_rest(&self, config: &str) -> anyhow::Result<Option<Pod>> {
        let selector = format!("scene={SITE},config={config}");
        let pods = self.pods().list(&ListParams::default().labels(&selector)).await?.items;
        let ended = |pod: &Pod| {
            let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
            matches!(phase, Some("Succeeded" | "Failed"))
        };
        let mut active: Vec<Pod> = pods.into_iter().filter(|pod| !ended(pod)).collect();
        let names: Vec<_> = active.iter().map(ResourceExt::name_any).collect();
        let spec = self.claim(config).await?.spec;
        ensure!(names.len() <= 1, "{names:?} are active; {spec:?}");
        let pod = active.pop();
        let holder = spec.holder.as_ref().map(|holder| holder.uid.clone());
        ensure!(
            holder == pod.as_ref().and_then(ResourceExt::uid),
            "{names:?} is active; {spec:?}"
        );
        let listed = spec.pending.len() + spec.condemned.len() + spec.spared.len();
        ensure!(listed == 0, "{spec:?}");
        Ok(pod)
    }

    /// The one active deployer of a config, if all is as it is to be.
    pub(crate) async fn settled(&self, config: &str) -> anyhow::Result<Pod> {
        self.at_rest(config).await?.context("the key is free")
    }

    /// Waits until all is as it is to be with a config, whether it has an active deployer or none.
    pub(crate) async fn until_at_rest(&self, config: &str) -> anyhow::Result<Option<Pod>> {
        let what = format!("{config} to be at rest");
        let at_rest = until(&what, SOON, || self.at_rest(config)).await;
        at_rest.map_err(|error| self.blame(error))
    }

    /// Waits until all is as it is to be with a config; its one active deployer.
    pub(crate) async fn until_settled(&self, config: &str) -> anyhow::Result<Pod> {
        let what = format!("{config} to be settled");
        let settled = until(&what, SOON, || self.settled(config)).await;
        settled.map_err(|error| self.blame(error))
    }

    /// `error` with the ends of the guards' logs.
    pub(crate) fn blame(&self, error: anyhow::Error) -> anyhow::Error {
        self.stage.guards.iter().fold(error, |error, guard| guard.blame(error))
    }

    /// Waits until an Event with this reason is about a pod.
    pub(crate) async fn until_told(&self, reason: &str, pod: &str) -> anyhow::Result<()> {
        let events: Api<Event> = Api::namespaced(self.client.clone(), SITE);
        until(&format!("Event {reason} on {pod}"), SOON, async || {
            let all = events.list(&ListParams::default()).await?.items;
            let about = |event: &Event| event.regarding.as_ref().and_then(|object| object.name.as_deref()) == Some(pod);
            let told: Vec<_> = all
                .iter()
                .filter(|event| about(event))
                .map(|event| &event.reason)
                .collect();
            ensure!(told.contains(&&Some(reason.to_owned())), "{told:?}");
            Ok(())
        })
        .await
    }

    /// Waits until a guard counts no violation.
    pub(crate) async fn until_no_violation(&self, guard: usize) -> anyhow::Result<()> {
        until("no violation to be counted", SOON, async || {
            let count = self.stage.guards[guard].metric("deployer_guard_violations").await?;
            ensure!(count < 0.5, "{count} are");
            Ok(())
        })
        .await
    }
}

/// A deployer under the policy.
pub(crate) fn deployer(config: &str, name: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": name, "labels": { "scene": SITE, "config": config } },
        "spec": {
            "containers": [{ "name": "deployment", "image": "registry.example/deployer:latest" }],
            "restartPolicy": "Never",
            "automountServiceAccountToken": false,
        },
    })
}
