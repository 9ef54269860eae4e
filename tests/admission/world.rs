//! A replica of the webhook over a store of the tests, the reviews that it is sent, and what it answers.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use deployer_guard::api::DeployerPolicy;
use deployer_guard::api::claim::{DeployerClaim, DeployerClaimSpec};
use deployer_guard::cluster::events::{Events, Notice};
use deployer_guard::domain::pursuit::Window;
use deployer_guard::observer::Observer;
use deployer_guard::statuses::Statuses;
use deployer_guard::telemetry::metrics::Metrics;
use deployer_guard::webhook::calls::{Call, Handler};
use deployer_guard::webhook::desk::Desks;
use deployer_guard::webhook::handler::Admission;
use deployer_guard::webhook::judge::Judge;
use deployer_guard::webhook::policies::Policies;
use deployer_guard::webhook::records::Records;
use serde_json::{Value, json};
use tokio::sync::mpsc::Receiver;
use tokio::time::Instant;

use crate::faulty::FaultyStore;

pub(crate) const OPENSHIFT: &str = "openshift-deploymentconfig";

/// One replica. Several may share a store.
pub(crate) struct Replica {
    pub(crate) store: Arc<FaultyStore>,
    pub(crate) policies: Arc<Policies<FaultyStore>>,
    pub(crate) desks: Arc<Desks<FaultyStore>>,
    pub(crate) observer: Arc<Observer<FaultyStore>>,
    pub(crate) metrics: Arc<Metrics>,
    /// What claims' statuses should say. Written only where a test runs it.
    pub(crate) statuses: Arc<Statuses>,
    admission: Arc<Admission<FaultyStore>>,
    notices: Mutex<Receiver<Notice>>,
}

impl Replica {
    /// A replica that knows the `OpenShift` policy and the one for runners, over a store of its own.
    pub(crate) fn new() -> Self {
        Self::over(Arc::default())
    }

    pub(crate) fn over(store: Arc<FaultyStore>) -> Self {
        let metrics = Arc::new(Metrics::new());
        let policies = Arc::new(Policies::new(Arc::clone(&store)));
        let observer = Arc::new(Observer::new(
            Arc::clone(&store),
            Window::default(),
            Arc::clone(&metrics),
        ));
        let desks = Arc::new(Desks::new(Arc::clone(&store), Arc::clone(&observer)));
        let (events, notices) = Events::new(Arc::clone(&metrics));
        let statuses = Arc::new(Statuses::new(Arc::<FaultyStore>::clone(&store), Arc::clone(&metrics)));
        let records = Records::new(Arc::clone(&metrics), events).telling(Arc::clone(&statuses));
        let judge = Judge::new(Arc::clone(&store), Arc::clone(&desks));
        let admission = Arc::new(Admission::new(Arc::clone(&policies), judge, records));
        let replica = Self {
            store,
            policies,
            desks,
            observer,
            metrics,
            statuses,
            admission,
            notices: Mutex::new(notices),
        };
        replica.learn(openshift(json!({})));
        replica.learn(runners(json!({})));
        replica
    }

    /// Stores a policy and lets the replica know it, as its watch would.
    pub(crate) fn learn(&self, policy: Value) {
        self.store.memory.put(policy.clone());
        self.policies
            .learn(&serde_json::from_value::<DeployerPolicy>(policy).unwrap());
    }

    /// Sends a review to the policy of this name in the version that is known, with the API server's default timeout.
    pub(crate) async fn ask(&self, policy: &str, review: &Value) -> Answer {
        self.ask_within(policy, review, Duration::from_secs(10)).await
    }

    pub(crate) async fn ask_within(&self, policy: &str, review: &Value, timeout: Duration) -> Answer {
        let version = self.policies.last_known(policy);
        let version = version.map_or_else(String::new, |known| format!("/{}/{}", known.uid, known.generation));
        self.ask_at(&format!("/admit/{policy}{version}"), review, timeout).await
    }

    /// Sends a review to a path, as the webhook configuration would name it.
    pub(crate) async fn ask_at(&self, path: &str, review: &Value, timeout: Duration) -> Answer {
        let (status, body) = self.send(path, review.to_string(), timeout).await;
        assert_eq!(status, 200, "{body}");
        Answer::read(&body, review)
    }

    /// The HTTP status and body of an answer.
    pub(crate) async fn send(&self, path: &str, body: impl Into<Vec<u8>>, timeout: Duration) -> (u16, String) {
        let call = Call {
            path: path.to_owned(),
            timeout: Some(timeout),
            body: body.into().into(),
            received: Instant::now().into_std(),
        };
        let reply = self.admission.handle(call).await;
        (reply.status, String::from_utf8(reply.body).unwrap())
    }

    /// What waits to be published.
    pub(crate) fn notices(&self) -> Vec<Notice> {
        let mut notices = self.notices.lock().unwrap();
        std::iter::from_fn(|| notices.try_recv().ok()).collect()
    }

    /// The value of a metric without labels, or the sum over the lines that contain `labels`.
    pub(crate) fn metric(&self, name: &str, labels: &str) -> f64 {
        let text = self.metrics.encode();
        let lines = text
            .lines()
            .filter(|line| line.starts_with(&format!("deployer_guard_{name}")));
        let values = lines
            .filter(|line| line.contains(labels))
            .filter_map(|line| line.rsplit(' ').next());
        values.filter_map(|value| value.parse::<f64>().ok()).sum()
    }

    /// How many entries are being followed.
    pub(crate) fn followed(&self) -> usize {
        self.observer.followed()
    }

    /// The only claim of the namespace.
    pub(crate) fn claim(&self) -> Option<DeployerClaim> {
        let mut claims = self.claims();
        assert!(claims.len() < 2, "{claims:?}");
        claims.pop()
    }

    pub(crate) fn claims(&self) -> Vec<DeployerClaim> {
        let objects = self.store.memory.objects("DeployerClaim");
        objects
            .into_iter()
            .map(|claim| serde_json::from_value(claim).unwrap())
            .collect()
    }

    pub(crate) fn spec(&self) -> DeployerClaimSpec {
        self.claim().expect("there is a claim").spec
    }

    /// Waits until nobody is pending: the observer has seen to it.
    pub(crate) async fn settled(&self) {
        while self.claims().iter().any(|claim| !claim.spec.pending.is_empty()) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// The pod of a review is stored, with this phase.
    pub(crate) fn store_pod(&self, review: &Value, phase: &str) {
        let mut pod = review["request"]["object"].clone();
        pod["status"]["phase"] = phase.into();
        self.store.memory.put(pod);
    }

    pub(crate) fn remove_pod(&self, review: &Value) {
        self.store
            .memory
            .remove(&review["request"]["object"])
            .expect("the pod is there");
    }

    /// A `ReplicationController` of this version, in this phase; its uid is that of [`deployer`].
    pub(crate) fn rollout(&self, version: u32, phase: &str) {
        self.store.memory.put(rollout(version, phase));
    }

    /// Admits a pod, which arrives in the store and is seen there.
    pub(crate) async fn run(&self, policy: &str, review: &Value) {
        self.ask(policy, review).await.admitted();
        self.store_pod(review, "Running");
        self.settled().await;
    }
}

/// The `response` of an answer. Reading it checks what holds for all of them.
#[derive(Clone, Debug)]
pub(crate) struct Answer(pub(crate) Value);

impl Answer {
    pub(crate) fn read(body: &str, review: &Value) -> Self {
        let answer: Value = serde_json::from_str(body).unwrap();
        assert_eq!(answer["apiVersion"], "admission.k8s.io/v1");
        assert_eq!(answer["kind"], "AdmissionReview");
        assert!(!body.to_ascii_lowercase().contains("retryafter"), "{body}");
        let response = Self(answer["response"].clone());
        assert_eq!(response.0["uid"], review["request"]["uid"], "{body}");
        let audit = response.audit();
        assert!(audit.len() <= 4, "{body}");
        let bytes: usize = audit.iter().map(|(key, value)| key.len() + value.len()).sum();
        assert!(bytes < 1024, "{bytes} {body}");
        if !response.is_allowed() {
            let status = &response.0["status"];
            assert!(status["code"].as_u64().is_some_and(|code| code >= 400), "{body}");
            for field in ["reason", "message"] {
                assert!(status[field].as_str().is_some_and(|text| !text.is_empty()), "{body}");
            }
            assert_eq!(status["details"]["causes"].as_array().map(Vec::len), Some(1), "{body}");
        }
        response
    }

    pub(crate) fn is_allowed(&self) -> bool {
        self.0["allowed"] == true
    }

    pub(crate) fn code(&self) -> u64 {
        if self.is_allowed() {
            0
        } else {
            self.0["status"]["code"].as_u64().unwrap()
        }
    }

    pub(crate) fn message(&self) -> &str {
        self.0["status"]["message"].as_str().unwrap_or_default()
    }

    pub(crate) fn cause(&self) -> &str {
        self.0["status"]["details"]["causes"][0]["reason"]
            .as_str()
            .unwrap_or_default()
    }

    pub(crate) fn warnings(&self) -> Vec<String> {
        self.0["warnings"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|text| text.as_str().unwrap().to_owned())
            .collect()
    }

    pub(crate) fn audit(&self) -> BTreeMap<String, String> {
        self.0
            .get("auditAnnotations")
            .map_or_else(BTreeMap::new, |audit| serde_json::from_value(audit.clone()).unwrap())
    }

    pub(crate) fn verdict(&self) -> String {
        self.audit().remove("verdict").unwrap_or_default()
    }

    #[track_caller]
    pub(crate) fn admitted(&self) {
        assert!(self.is_allowed() && self.warnings().is_empty(), "{}", self.0);
        assert_eq!(self.verdict(), "Admitted: Free", "{}", self.0);
    }

    /// Allowed, because the policy has nothing to say about it.
    #[track_caller]
    pub(crate) fn not_matched(&self) {
        assert!(
            self.is_allowed() && self.warnings().is_empty() && self.audit().is_empty(),
            "{}",
            self.0
        );
    }

    #[track_caller]
    pub(crate) fn refused(&self, code: u64, cause: &str) {
        assert_eq!((self.code(), self.cause()), (code, cause), "{}", self.0);
    }
}

fn json_of(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

/// A review as an API server sent it, from `tests/data/reviews`.
pub(crate) fn review(name: &str) -> Value {
    json_of(match name {
        "create" => include_str!("../data/reviews/create.json"),
        "create-generated-name" => include_str!("../data/reviews/create-generated-name.json"),
        "create-dry-run" => include_str!("../data/reviews/create-dry-run.json"),
        "update-label" => include_str!("../data/reviews/update-label.json"),
        "update-status" => include_str!("../data/reviews/update-status.json"),
        "connect-exec" => include_str!("../data/reviews/connect-exec.json"),
        "delete" => include_str!("../data/reviews/delete.json"),
        other => panic!("no review {other}"),
    })
}

/// The create of the deployer of version `version` of `cfg`.
pub(crate) fn deployer(version: u32, uid: &str) -> Value {
    let mut review = named(review("create"), &format!("cfg-{version}-deploy"), uid);
    let metadata = &mut review["request"]["object"]["metadata"];
    metadata["labels"]["openshift.io/deployer-pod-for.name"] = format!("cfg-{version}").into();
    metadata["annotations"]["openshift.io/deployment.name"] = format!("cfg-{version}").into();
    metadata["ownerReferences"][0]["name"] = format!("cfg-{version}").into();
    metadata["ownerReferences"][0]["uid"] = format!("rc-{version}").into();
    review
}

/// The create of a runner pod, which works for `app` and has no owner.
pub(crate) fn runner(name: &str, uid: &str, app: &str) -> Value {
    let mut review = named(review("create"), name, uid);
    let metadata = &mut review["request"]["object"]["metadata"];
    metadata["labels"] = json!({"role": "runner", "app": app});
    metadata["annotations"] = json!({});
    metadata["ownerReferences"] = json!([]);
    review
}

fn named(mut review: Value, name: &str, uid: &str) -> Value {
    let request = &mut review["request"];
    request["uid"] = format!("review-of-{uid}").into();
    request["name"] = name.into();
    request["object"]["metadata"]["name"] = name.into();
    request["object"]["metadata"]["uid"] = uid.into();
    review
}

pub(crate) fn rollout(version: u32, phase: &str) -> Value {
    let mut owner = json_of(include_str!("../data/openshift/replicationcontroller.json"));
    let metadata = &mut owner["metadata"];
    metadata["name"] = format!("cfg-{version}").into();
    metadata["uid"] = format!("rc-{version}").into();
    metadata["annotations"]["openshift.io/deployment-config.latest-version"] = version.to_string().into();
    metadata["annotations"]["openshift.io/deployment.phase"] = phase.into();
    owner
}

/// The policy for `OpenShift`, with these fields of its spec changed.
pub(crate) fn openshift(changes: Value) -> Value {
    let policy: Value = serde_saphyr::from_str(include_str!("../../policies/openshift-deploymentconfig.yaml")).unwrap();
    stored(policy, "policy-openshift", changes)
}

/// A policy without owner and generation: one pod with the label `role: runner` for each `app`.
pub(crate) fn runners(changes: Value) -> Value {
    let policy = json!({
        "apiVersion": "deployer-guard.io/v1alpha1",
        "kind": "DeployerPolicy",
        "metadata": {"name": "runners"},
        "spec": {"match": {"objectSelector": {"matchLabels": {"role": "runner"}}}, "config": {"label": "app"}},
    });
    stored(policy, "policy-runners", changes)
}

fn stored(mut policy: Value, uid: &str, changes: Value) -> Value {
    policy["metadata"]["uid"] = uid.into();
    policy["metadata"]["generation"] = 1.into();
    let Value::Object(changes) = changes else {
        panic!("not an object")
    };
    for (field, value) in changes {
        policy["spec"][field] = value;
    }
    policy
}
