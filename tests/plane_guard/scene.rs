//! One stage with one guard that leads, and namespaces with a policy each.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use anyhow::{Context, ensure};
use deployer_guard::api::{DeployerClaim, DeployerPolicy};
use deployer_guard::cluster::events::{Events, Publisher};
use deployer_guard::cluster::live::LiveStore;
use deployer_guard::domain::pursuit::Window;
use deployer_guard::guard::board::{Board, Leads, PolicyVersion};
use deployer_guard::guard::reconciler::{Options, Reconciler};
use deployer_guard::telemetry::metrics::Metrics;
use deployer_guard_testkit::objects::{create_pod, make_namespace, set_phase};
use deployer_guard_testkit::{ControlPlane, Stage, until};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::events::v1::Event;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config, ResourceExt};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::sync::OnceCell;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

/// The program under test.
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_deployer-guard");
/// How long anything may take that needs no window to pass, on a machine that does much else.
pub(crate) const SOON: Duration = Duration::from_secs(30);

/// Tests run on threads of their own; what they share lives on this runtime.
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().expect("a runtime"));
static GUARDED: OnceCell<Guarded> = OnceCell::const_new();

/// Runs a test to its end on the shared runtime.
pub(crate) fn run(test: impl Future<Output = anyhow::Result<()>>) {
    if let Err(error) = RUNTIME.block_on(test) {
        panic!("{error:?}");
    }
}

/// Nobody else is there.
struct Always;

impl Leads for Always {
    fn leads(&self) -> bool {
        true
    }
}

/// A stage, and the guard that runs on it.
pub(crate) struct Guarded {
    pub(crate) stage: Stage,
    pub(crate) store: Arc<LiveStore>,
    pub(crate) board: Arc<Board>,
    pub(crate) metrics: Arc<Metrics>,
}

/// The stage that the tests share, each in namespaces of its own. It ends with this process.
pub(crate) async fn guarded() -> anyhow::Result<&'static Guarded> {
    GUARDED.get_or_try_init(start).await
}

async fn start() -> anyhow::Result<Guarded> {
    let plane = ControlPlane::builder().controller_manager(true);
    let stage = Stage::builder(PROGRAM).plane(plane).replicas(1).start().await?;
    let file = stage
        .plane
        .service_account_kubeconfig(0, "deployer-guard", "deployer-guard")
        .await?;
    let options = KubeConfigOptions::default();
    let mut config = Config::from_custom_kubeconfig(Kubeconfig::read_from(file)?, &options).await?;
    config.default_retry = false;
    let client = Client::try_from(config)?;
    let (metrics, board) = (Arc::new(Metrics::new()), Arc::<Board>::default());
    let store = Arc::new(LiveStore::new(client.clone(), Arc::clone(&metrics)));
    let (events, notices) = Events::new(Arc::clone(&metrics));
    let publisher = Publisher::new(notices, client, "guard-0".into(), Arc::clone(&metrics));
    tokio::spawn(
        publisher
            .reporting_as("deployer-guard.io/guard")
            .run(CancellationToken::new()),
    );
    let options = Options {
        window: Window {
            pending: Duration::from_secs(3),
            settle: Duration::from_secs(1),
        },
        ..Options::default()
    };
    let reconciler = Reconciler::new(
        Arc::clone(&store),
        Arc::clone(&board),
        Arc::new(Always),
        events,
        Arc::clone(&metrics),
        options,
    );
    tokio::spawn(reconciler.run(std::future::pending()));
    Ok(Guarded {
        stage,
        store,
        board,
        metrics,
    })
}

/// A namespace, and a policy of the same name for its pods: those with the label `scene: <name>`, whose config is their label `config`.
pub(crate) struct Scene {
    pub(crate) guarded: &'static Guarded,
    pub(crate) client: Client,
    pub(crate) name: &'static str,
}

impl Scene {
    /// Stock was taken under the policy before, so that what comes in from now on is no old friend.
    pub(crate) async fn new(name: &'static str, spec: Value) -> anyhow::Result<Self> {
        let scene = Self::before(name).await?;
        scene.policy(spec).await?;
        let status = json!({ "status": { "stockTaking": { "generation": 1, "completedAt": "2026-01-01T00:00:00Z" } } });
        let policies: Api<DeployerPolicy> = Api::all(scene.client.clone());
        policies
            .patch_status(name, &PatchParams::default(), &Patch::Merge(status))
            .await?;
        // A pod of the very second of the policy counts as older: timestamps are of whole seconds.
        sleep(Duration::from_millis(1100)).await;
        Ok(scene)
    }

    /// The namespace without the policy.
    pub(crate) async fn before(name: &'static str) -> anyhow::Result<Self> {
        let guarded = guarded().await?;
        let client = guarded.stage.plane.client(0);
        make_namespace(&client, name, &[], true).await?;
        Ok(Self { guarded, client, name })
    }

    pub(crate) async fn policy(&self, spec: Value) -> anyhow::Result<PolicyVersion> {
        let mut policy = json!({
            "apiVersion": "deployer-guard.io/v1alpha1",
            "kind": "DeployerPolicy",
            "metadata": { "name": self.name },
            "spec": {
                "match": { "objectSelector": { "matchLabels": { "scene": self.name } } },
                "config": { "label": "config" },
            },
        });
        for (field, value) in spec.as_object().context("an object")? {
            policy["spec"][field] = value.clone();
        }
        let policies: Api<DeployerPolicy> = Api::all(self.client.clone());
        let made = policies
            .create(&PostParams::default(), &serde_json::from_value(policy)?)
            .await?;
        Ok(PolicyVersion {
            name: made.name_any(),
            uid: made.uid().context("a uid")?,
            generation: made.metadata.generation.context("a generation")?,
        })
    }

    pub(crate) fn pod(&self, name: &str, labels: &Value) -> Value {
        let mut pod = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": { "name": name, "labels": { "scene": self.name, "config": "cfg" } },
            "spec": {
                "containers": [{ "name": "deployment", "image": "registry.example/deployer:latest" }],
                "restartPolicy": "Never",
                "automountServiceAccountToken": false,
            },
        });
        for (label, value) in labels.as_object().into_iter().flatten() {
            pod["metadata"]["labels"][label] = value.clone();
        }
        pod
    }

    pub(crate) async fn create(&self, pod: &Value) -> anyhow::Result<()> {
        let answer = create_pod(&self.client, self.name, pod).await?;
        ensure!(answer.is_created(), "refused: {}", answer.message());
        Ok(())
    }

    /// Creates a pod that a node has. There is no such node.
    pub(crate) async fn create_bound(&self, mut pod: Value) -> anyhow::Result<()> {
        pod["spec"]["nodeName"] = json!("no-such-node");
        self.create(&pod).await
    }

    pub(crate) fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), self.name)
    }

    pub(crate) fn claims(&self) -> Api<DeployerClaim> {
        Api::namespaced(self.client.clone(), self.name)
    }

    pub(crate) async fn set_phase(&self, pod: &str, phase: &str) -> anyhow::Result<()> {
        set_phase(&self.client, self.name, pod, phase).await.map(drop)
    }

    pub(crate) async fn remove(&self, pod: &str) -> anyhow::Result<()> {
        self.pods()
            .delete(pod, &DeleteParams::default().grace_period(0))
            .await?;
        Ok(())
    }

    /// The only claim of the namespace.
    pub(crate) async fn claim(&self) -> anyhow::Result<DeployerClaim> {
        let claims = self.claims().list(&ListParams::default()).await?.items;
        ensure!(claims.len() == 1, "{} claims", claims.len());
        claims.into_iter().next().context("a claim")
    }

    /// Waits until the claim satisfies this.
    pub(crate) async fn until_claim(
        &self,
        what: &str,
        so: impl Fn(&DeployerClaim) -> bool,
    ) -> anyhow::Result<DeployerClaim> {
        until(what, SOON, async || {
            let claim = self.claim().await?;
            ensure!(so(&claim), "{:?} {:?}", claim.spec, claim.status);
            Ok(claim)
        })
        .await
    }

    /// Waits until this pod holds the claim.
    pub(crate) async fn until_held_by(&self, pod: &str) -> anyhow::Result<DeployerClaim> {
        self.until_claim(&format!("{pod} to hold the claim"), |claim| {
            claim.spec.holder.as_ref().is_some_and(|holder| holder.name == pod)
        })
        .await
    }

    pub(crate) async fn until_gone(&self, pod: &str) -> anyhow::Result<()> {
        until(&format!("{pod} to be gone"), SOON, async || {
            ensure!(self.pods().get_opt(pod).await?.is_none(), "it is there");
            Ok(())
        })
        .await
    }

    /// Waits until an Event with this reason is about an object of this kind and name.
    pub(crate) async fn until_told(&self, reason: &str, kind: &str, name: &str) -> anyhow::Result<Event> {
        let namespace = if kind == "DeployerPolicy" { "default" } else { self.name };
        let events: Api<Event> = Api::namespaced(self.client.clone(), namespace);
        until(&format!("Event {reason} on {kind} {name}"), SOON, async || {
            let all = events.list(&ListParams::default()).await?.items;
            let about = |event: &Event| {
                let regarding = event.regarding.as_ref();
                event.reason.as_deref() == Some(reason)
                    && regarding.and_then(|object| object.kind.as_deref()) == Some(kind)
                    && regarding.and_then(|object| object.name.as_deref()) == Some(name)
            };
            let told: Vec<_> = all
                .iter()
                .map(|event| event.reason.clone().unwrap_or_default())
                .collect();
            all.into_iter().find(about).with_context(|| format!("{told:?}"))
        })
        .await
    }

    /// The value of a metric of the guard, for this scene's policy.
    pub(crate) fn metric(&self, name: &str, labels: &str) -> u64 {
        let (text, policy) = (self.guarded.metrics.encode(), format!("policy=\"{}\"", self.name));
        let lines = text.lines().filter(|line| {
            line.starts_with(&format!("deployer_guard_{name}")) && line.contains(&policy) && line.contains(labels)
        });
        let values = lines.filter_map(|line| line.rsplit(' ').next());
        values.filter_map(|value| value.parse::<u64>().ok()).sum()
    }

    /// Nothing that the guard tried was refused.
    pub(crate) fn nothing_failed(&self) -> anyhow::Result<()> {
        let failed = self.metric("guard_actions_total", "result=\"failed\"");
        ensure!(failed == 0, "{failed} actions failed");
        Ok(())
    }
}
