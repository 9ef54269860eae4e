//! One or more guards over a store, and what is in it, in the words of the tests. Time is paused and goes on by itself.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use deployer_guard::api::claim::{
    ClaimEntry, DeployerClaim, DeployerClaimSpec, PROTOCOL, PolicyReference, WaitingOwner,
};
use deployer_guard::cluster::events::{Events, Notice};
use deployer_guard::cluster::store::Store;
use deployer_guard::domain::key::{Key, Subject};
use deployer_guard::guard::board::{Board, Leads, PolicyVersion};
use deployer_guard::guard::reconciler::{Options, Reconciler};
use deployer_guard::telemetry::metrics::Metrics;
use serde_json::{Value, json};
use tokio::sync::mpsc::Receiver;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::faulty::FaultyStore;

pub(crate) const RUNNERS: &str = "runners";
/// Longer than anything takes that needs no window to pass.
const SOON: Duration = Duration::from_secs(20);

#[derive(Default)]
pub(crate) struct Leading(AtomicBool);

impl Leading {
    pub(crate) fn set(&self, leads: bool) {
        self.0.store(leads, SeqCst);
    }
}

impl Leads for Leading {
    fn leads(&self) -> bool {
        self.0.load(SeqCst)
    }
}

/// A running guard.
pub(crate) struct Guard {
    pub(crate) board: Arc<Board>,
    pub(crate) leading: Arc<Leading>,
    pub(crate) metrics: Arc<Metrics>,
    notices: Mutex<Receiver<Notice>>,
    told: Mutex<Vec<Notice>>,
    stop: Option<oneshot::Sender<()>>,
    running: JoinHandle<()>,
}

impl Guard {
    /// One that leads.
    pub(crate) fn start(store: &Arc<FaultyStore>) -> Self {
        let guard = Self::start_with(store, Options::default());
        guard.leading.set(true);
        guard
    }

    /// One that does not lead yet.
    pub(crate) fn start_with(store: &Arc<FaultyStore>, options: Options) -> Self {
        let (metrics, board, leading) = (
            Arc::new(Metrics::new()),
            Arc::<Board>::default(),
            Arc::<Leading>::default(),
        );
        let (events, notices) = Events::new(Arc::clone(&metrics));
        let leads: Arc<dyn Leads> = Arc::<Leading>::clone(&leading);
        let reconciler = Reconciler::new(
            Arc::clone(store),
            Arc::clone(&board),
            leads,
            events,
            Arc::clone(&metrics),
            options,
        );
        let (stop, stopped) = oneshot::channel();
        let running = tokio::spawn(reconciler.run(async move {
            let _ = stopped.await;
        }));
        Self {
            board,
            leading,
            metrics,
            notices: Mutex::new(notices),
            told: Mutex::default(),
            stop: Some(stop),
            running,
        }
    }

    /// Asks it to end, and waits until it has.
    pub(crate) async fn end(mut self) {
        drop(self.stop.take());
        (&mut self.running).await.unwrap();
    }

    /// Everything that Events said so far: reason, and the kinds and names of what they are about.
    pub(crate) fn told(&self) -> Vec<(String, Vec<String>)> {
        let mut notices = self.notices.lock().unwrap();
        let mut told = self.told.lock().unwrap();
        told.extend(std::iter::from_fn(|| notices.try_recv().ok()));
        let about = |notice: &Notice| {
            let regarding = notice.regarding.iter();
            let text = |part: &Option<String>| part.clone().unwrap_or_default();
            regarding
                .map(|object| format!("{}/{}", text(&object.kind), text(&object.name)))
                .collect()
        };
        told.iter()
            .map(|notice| (notice.reason.to_owned(), about(notice)))
            .collect()
    }

    pub(crate) fn has_told(&self, reason: &str) -> bool {
        self.told().iter().any(|(told, _)| told == reason)
    }

    /// How often an Event with this reason was told.
    pub(crate) fn times_told(&self, reason: &str) -> usize {
        self.told().iter().filter(|(told, _)| told == reason).count()
    }

    /// The sum over the lines of a metric that contain `labels`.
    pub(crate) fn metric(&self, name: &str, labels: &str) -> u64 {
        let text = self.metrics.encode();
        let lines = text
            .lines()
            .filter(|line| line.starts_with(&format!("deployer_guard_{name}")) && line.contains(labels));
        let values = lines.filter_map(|line| line.rsplit(' ').next());
        values.filter_map(|value| value.parse::<u64>().ok()).sum()
    }

    /// The entry of this version of a policy has been in force from now on.
    pub(crate) fn in_force(&self, policy: &str, generation: i64) -> PolicyVersion {
        let version = PolicyVersion {
            name: policy.into(),
            uid: format!("policy-{policy}"),
            generation,
        };
        let now = tokio::time::Instant::now();
        self.board.note(&version, |notice| notice.in_force_since = Some(now));
        version
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.running.abort();
    }
}

/// Waits until something is so, for a while of paused time.
#[track_caller]
pub(crate) fn until(what: &'static str, mut so: impl FnMut() -> bool) -> impl Future<Output = ()> {
    let caller = std::panic::Location::caller();
    async move {
        let begun = tokio::time::Instant::now();
        while !so() {
            assert!(begun.elapsed() < SOON, "{caller}: not within {SOON:?}: {what}");
            sleep(Duration::from_millis(5)).await;
        }
    }
}

/// Lets everything happen that is going to.
pub(crate) async fn settle() {
    sleep(Duration::from_secs(5)).await;
}

/// A store with the policy for runners: one pod with the label `role: runner` for each `app`. Its pods are younger than it.
pub(crate) fn store() -> Arc<FaultyStore> {
    let store = Arc::<FaultyStore>::default();
    store.memory.put(runners(json!({})));
    store
}

pub(crate) fn runners(changes: Value) -> Value {
    let mut policy = json!({
        "apiVersion": "deployer-guard.io/v1alpha1",
        "kind": "DeployerPolicy",
        "metadata": {
            "name": RUNNERS,
            "uid": "policy-runners",
            "generation": 1,
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": {"match": {"objectSelector": {"matchLabels": {"role": "runner"}}}, "config": {"label": "app"}},
        // Stock was taken under it before, so that what comes in now is no old friend.
        "status": {"stockTaking": {"generation": 1, "completedAt": "2026-01-01T01:00:00Z"}},
    });
    let Value::Object(changes) = changes else {
        panic!("not an object")
    };
    for (field, value) in changes {
        policy["spec"][field] = value;
    }
    policy
}

/// A runner that was made some minutes into 2026-02-01.
pub(crate) fn runner(name: &str, app: &str, minute: u32) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "namespace": "shop",
            "name": name,
            "uid": format!("uid-{name}"),
            "labels": {"role": "runner", "app": app},
            "creationTimestamp": format!("2026-02-01T00:{minute:02}:00Z"),
        },
        "spec": {"containers": []},
        "status": {"phase": "Pending"},
    })
}

pub(crate) fn bound(mut pod: Value) -> Value {
    pod["spec"]["nodeName"] = "node".into();
    pod["status"]["phase"] = "Running".into();
    pod
}

pub(crate) fn phase(mut pod: Value, phase: &str) -> Value {
    pod["status"]["phase"] = phase.into();
    pod
}

pub(crate) fn entry(pod: &Value) -> ClaimEntry {
    let text = |pointer| pod.pointer(pointer).and_then(Value::as_str).unwrap().to_owned();
    ClaimEntry {
        name: text("/metadata/name"),
        uid: text("/metadata/uid"),
        ..ClaimEntry::default()
    }
}

pub(crate) fn claim_name(app: &str) -> String {
    let key = Key {
        policy: RUNNERS.into(),
        namespace: "shop".into(),
        subject: Subject::Config(app.into()),
    };
    key.claim_name()
}

pub(crate) fn spec(app: &str) -> DeployerClaimSpec {
    DeployerClaimSpec {
        protocol: PROTOCOL,
        policy: PolicyReference {
            name: RUNNERS.into(),
            uid: "policy-runners".into(),
            generation: Some(1),
            ..PolicyReference::default()
        },
        config: app.into(),
        ..DeployerClaimSpec::default()
    }
}

/// The claim of `app`, held by this pod, which was seen in the store.
pub(crate) async fn held(store: &FaultyStore, app: &str, holder: &Value) -> DeployerClaim {
    let spec = DeployerClaimSpec {
        holder: Some(entry(holder)),
        ..spec(app)
    };
    store.memory.create_claim("shop", &claim_name(app), spec).await.unwrap()
}

/// Owners wait for the claim, as the webhook would write it.
pub(crate) async fn waits(store: &FaultyStore, app: &str, waiting: Vec<WaitingOwner>) {
    let claim = store.memory.claim("shop", &claim_name(app)).await.unwrap().unwrap();
    let mut status = claim.status.clone().unwrap_or_default();
    status.waiting = waiting;
    store.memory.update_claim_status(&claim, status).await.unwrap();
}

/// The claim of `app`.
pub(crate) fn claim(store: &FaultyStore, app: &str) -> Option<DeployerClaim> {
    let claims = store.memory.objects("DeployerClaim");
    let claims = claims
        .into_iter()
        .filter(|claim| claim["metadata"]["name"] == claim_name(app));
    claims.map(|claim| serde_json::from_value(claim).unwrap()).next()
}

pub(crate) fn holder(store: &FaultyStore, app: &str) -> Option<String> {
    Some(claim(store, app)?.spec.holder?.name)
}

pub(crate) fn exists(store: &FaultyStore, pod: &str) -> bool {
    let pods = store.memory.objects("Pod");
    pods.iter().any(|object| object["metadata"]["name"] == pod)
}
