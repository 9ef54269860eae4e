//! A store in memory that fails as it is told, and remembers what it was asked.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use deployer_guard::api::DeployerPolicy;
use deployer_guard::api::claim::{DeployerClaim, DeployerClaimSpec, DeployerClaimStatus};
use deployer_guard::cluster::memory::MemoryStore;
use deployer_guard::cluster::store::{Failure, Keep, OwnerKind, ReadError, Store, WriteError};
use deployer_guard::domain::sighting::Sighting;
use kube::ResourceExt;
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio::time::Instant;

/// A call of [`Store`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Claim,
    Pod,
    Pods,
    Owner,
    Namespace,
    Policy,
    Create,
    Update,
    /// A write of a claim's status, which no decision waits for.
    Status,
}

impl Op {
    pub(crate) fn is_write(self) -> bool {
        matches!(self, Self::Create | Self::Update)
    }
}

/// What goes wrong with a call.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// It waits until the gate opens, and is done then.
    Hold(Gate),
    /// It fails, and nothing was done. A write is refused.
    Fail(Failure),
    /// A write loses the race, whatever is stored.
    Conflict,
    /// A write's answer is lost; it was done, or it was not.
    Lost {
        done: bool,
    },
    /// A write's answer is lost, and it is done only after this time.
    Late(Duration),
    Panic,
}

/// Shut at first; once open, it stays open.
#[derive(Clone, Debug)]
pub(crate) struct Gate(Arc<Semaphore>);

impl Gate {
    pub(crate) fn shut() -> Self {
        Self(Arc::new(Semaphore::new(0)))
    }

    pub(crate) fn open(&self) {
        self.0.close();
    }

    async fn pass(&self) {
        let _ = self.0.acquire().await;
    }
}

/// A call as it began.
#[derive(Clone, Debug)]
pub(crate) struct Began {
    pub(crate) op: Op,
    pub(crate) name: String,
    pub(crate) at: Instant,
}

struct Plan {
    op: Op,
    name: Option<String>,
    times: usize,
    fault: Fault,
}

#[derive(Default)]
pub(crate) struct FaultyStore {
    pub(crate) memory: Arc<MemoryStore>,
    plans: Mutex<Vec<Plan>>,
    began: Mutex<Vec<Began>>,
    in_flight: AtomicUsize,
    most_in_flight: AtomicUsize,
    /// Milliseconds that each call takes.
    trip: AtomicU64,
}

/// Counts a call as in flight until it ends or is dropped.
struct InFlight<'a>(&'a AtomicUsize);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

impl FaultyStore {
    /// The next so many calls of this kind meet the fault.
    pub(crate) fn plan(&self, op: Op, times: usize, fault: Fault) {
        self.plan_for(op, None, times, fault);
    }

    /// As [`Self::plan`], for calls about this name alone.
    pub(crate) fn plan_for(&self, op: Op, name: Option<&str>, times: usize, fault: Fault) {
        let name = name.map(str::to_owned);
        self.plans.lock().unwrap().push(Plan { op, name, times, fault });
    }

    /// All calls of this kind fail, until [`Self::heal`].
    pub(crate) fn fail(&self, op: Op, failure: Failure) {
        self.plan(op, usize::MAX, Fault::Fail(failure));
    }

    pub(crate) fn heal(&self) {
        self.plans.lock().unwrap().clear();
    }

    pub(crate) fn began(&self) -> Vec<Began> {
        self.began.lock().unwrap().clone()
    }

    pub(crate) fn count(&self, op: Op) -> usize {
        self.began().iter().filter(|began| began.op == op).count()
    }

    pub(crate) fn writes(&self) -> usize {
        self.began().iter().filter(|began| began.op.is_write()).count()
    }

    /// From now on each call takes this long, so that time counts the calls that wait for one another.
    pub(crate) fn take(&self, trip: Duration) {
        self.trip.store(trip.as_millis().try_into().unwrap(), SeqCst);
    }

    async fn travel(&self) {
        match self.trip.load(SeqCst) {
            0 => tokio::task::yield_now().await,
            trip => tokio::time::sleep(Duration::from_millis(trip)).await,
        }
    }

    pub(crate) fn most_in_flight(&self) -> usize {
        self.most_in_flight.load(SeqCst)
    }

    /// Waits until so many calls of this kind began.
    pub(crate) async fn until(&self, op: Op, times: usize) {
        while self.count(op) < times {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    fn fault(&self, op: Op, name: &str) -> Option<Fault> {
        let mut plans = self.plans.lock().unwrap();
        let fits = |plan: &&mut Plan| {
            plan.op == op && plan.times > 0 && plan.name.as_deref().is_none_or(|planned| planned == name)
        };
        let plan = plans.iter_mut().find(fits)?;
        plan.times -= 1;
        Some(plan.fault.clone())
    }

    fn begin(&self, op: Op, name: &str) -> (InFlight<'_>, Option<Fault>) {
        let at = Instant::now();
        let name = name.to_owned();
        let fault = self.fault(op, &name);
        self.began.lock().unwrap().push(Began { op, name, at });
        let now = self.in_flight.fetch_add(1, SeqCst) + 1;
        self.most_in_flight.fetch_max(now, SeqCst);
        (InFlight(&self.in_flight), fault)
    }

    async fn read<T>(
        &self,
        op: Op,
        name: &str,
        read: impl Future<Output = Result<T, ReadError>>,
    ) -> Result<T, ReadError> {
        let (_in_flight, fault) = self.begin(op, name);
        // Others get in between, as they do on a network.
        self.travel().await;
        match fault {
            Some(Fault::Fail(why)) => {
                let what = format!("{op:?} {name:?}");
                return Err(ReadError { what, why });
            }
            Some(Fault::Hold(gate)) => gate.pass().await,
            Some(Fault::Panic) => panic!("asked to panic"),
            Some(fault) => panic!("{fault:?} is no fault of a read"),
            None => {}
        }
        let found = read.await;
        tokio::task::yield_now().await;
        found
    }

    async fn write(&self, op: Op, name: &str, write: Write) -> Result<DeployerClaim, WriteError> {
        let (_in_flight, fault) = self.begin(op, name);
        let lost = WriteError::Unknown(Failure::Unreachable("the connection broke".into()));
        self.travel().await;
        match fault {
            Some(Fault::Fail(why)) => return Err(WriteError::Refused(why)),
            Some(Fault::Conflict) => return Err(WriteError::Conflict),
            Some(Fault::Lost { done }) => {
                if done {
                    let _ = write.carry_out(&self.memory).await;
                }
                return Err(lost);
            }
            Some(Fault::Late(after)) => {
                let memory = Arc::clone(&self.memory);
                tokio::spawn(async move {
                    tokio::time::sleep(after).await;
                    write.carry_out(&memory).await
                });
                return Err(lost);
            }
            Some(Fault::Panic) => panic!("asked to panic"),
            Some(Fault::Hold(gate)) => {
                // As on an API server, it is done whoever stops waiting for it.
                let memory = Arc::clone(&self.memory);
                let held = tokio::spawn(async move {
                    gate.pass().await;
                    write.carry_out(&memory).await
                });
                return held.await.unwrap_or(Err(lost));
            }
            None => {}
        }
        let written = write.carry_out(&self.memory).await;
        tokio::task::yield_now().await;
        written
    }
}

/// A write that can be carried out later.
struct Write {
    namespace: String,
    name: String,
    read: Option<DeployerClaim>,
    content: Content,
}

enum Content {
    Spec(Box<DeployerClaimSpec>),
    Status(DeployerClaimStatus),
}

impl Write {
    async fn carry_out(self, memory: &MemoryStore) -> Result<DeployerClaim, WriteError> {
        match (self.read, self.content) {
            (Some(read), Content::Spec(spec)) => memory.update_claim(&read, *spec).await,
            (None, Content::Spec(spec)) => memory.create_claim(&self.namespace, &self.name, *spec).await,
            (read, Content::Status(status)) => {
                let read = read.unwrap_or_default();
                memory.update_claim_status(&read, status).await.map(|()| read)
            }
        }
    }
}

#[async_trait]
impl Store for FaultyStore {
    async fn claim(&self, namespace: &str, name: &str) -> Result<Option<DeployerClaim>, ReadError> {
        self.read(Op::Claim, name, self.memory.claim(namespace, name)).await
    }

    async fn pod(&self, namespace: &str, name: &str) -> Result<Sighting, ReadError> {
        self.read(Op::Pod, name, self.memory.pod(namespace, name)).await
    }

    async fn pods(&self, namespace: &str, label_selector: &str, keep: Keep<'_>) -> Result<Vec<Value>, ReadError> {
        self.read(Op::Pods, "", self.memory.pods(namespace, label_selector, keep))
            .await
    }

    async fn owner(&self, namespace: &str, kind: &OwnerKind, name: &str) -> Result<Option<Value>, ReadError> {
        self.read(Op::Owner, name, self.memory.owner(namespace, kind, name))
            .await
    }

    async fn namespace_labels(&self, name: &str) -> Result<BTreeMap<String, String>, ReadError> {
        self.read(Op::Namespace, name, self.memory.namespace_labels(name)).await
    }

    async fn policy(&self, name: &str) -> Result<Option<DeployerPolicy>, ReadError> {
        self.read(Op::Policy, name, self.memory.policy(name)).await
    }

    async fn create_claim(
        &self,
        namespace: &str,
        name: &str,
        spec: DeployerClaimSpec,
    ) -> Result<DeployerClaim, WriteError> {
        let (namespace, read) = (namespace.to_owned(), None);
        let write = Write {
            namespace,
            name: name.to_owned(),
            read,
            content: Content::Spec(Box::new(spec)),
        };
        self.write(Op::Create, name, write).await
    }

    async fn update_claim_status(&self, read: &DeployerClaim, status: DeployerClaimStatus) -> Result<(), WriteError> {
        let (namespace, name) = (read.namespace().unwrap_or_default(), read.name_any());
        let write = Write {
            namespace,
            name: name.clone(),
            read: Some(read.clone()),
            content: Content::Status(status),
        };
        self.write(Op::Status, &name, write).await.map(drop)
    }

    async fn update_claim(&self, read: &DeployerClaim, spec: DeployerClaimSpec) -> Result<DeployerClaim, WriteError> {
        let (namespace, name) = (read.namespace().unwrap_or_default(), read.name_any());
        let write = Write {
            namespace,
            name: name.clone(),
            read: Some(read.clone()),
            content: Content::Spec(Box::new(spec)),
        };
        self.write(Op::Update, &name, write).await
    }
}
