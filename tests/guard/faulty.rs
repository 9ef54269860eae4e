//! A store in memory that fails as it is told, and remembers what it was asked to write.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use deployer_guard::api::DeployerPolicy;
use deployer_guard::api::claim::{DeployerClaim, DeployerClaimSpec, DeployerClaimStatus};
use deployer_guard::cluster::memory::MemoryStore;
use deployer_guard::cluster::store::{Failure, Keep, OwnerKind, ReadError, Store, WriteError};
use deployer_guard::cluster::upkeep::{Fence, Listed, Upkeep, Watch};
use deployer_guard::domain::sighting::Sighting;
use futures::{StreamExt, future};
use kube::ResourceExt;
use kube::runtime::watcher::Event;
use serde_json::Value;
use tokio::sync::Semaphore;

/// A call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Claim,
    Pod,
    Owner,
    Policy,
    Create,
    Update,
    Status,
    DeletePod,
    DeleteClaim,
    Annotate,
    ListPods,
    ListClaims,
}

impl Op {
    pub(crate) fn is_write(self) -> bool {
        matches!(
            self,
            Self::Create | Self::Update | Self::Status | Self::DeletePod | Self::DeleteClaim | Self::Annotate
        )
    }
}

/// What goes wrong with a call.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// It fails, and nothing was done. A write is refused.
    Fail(Failure),
    /// A write loses the race, whatever is stored.
    Conflict,
    /// A write's answer is lost; it was done, or it was not.
    Lost {
        done: bool,
    },
    /// It waits until the gate opens, and is done then.
    Hold(Gate),
    /// A read is done at once, and its answer waits until the gate opens.
    Late(Gate),
    /// A list shows nothing, as one from before all this.
    Stale,
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

struct Plan {
    op: Op,
    times: usize,
    fault: Fault,
}

/// What is done before a call is, once.
type Before = Box<dyn FnOnce(&MemoryStore) + Send>;

#[derive(Default)]
pub(crate) struct FaultyStore {
    pub(crate) memory: Arc<MemoryStore>,
    plans: Mutex<Vec<Plan>>,
    before: Mutex<Vec<(Op, Before)>>,
    began: Mutex<Vec<(Op, String)>>,
    /// Where the numbers go on by which calls take their time; 0: they take none.
    pace: AtomicU64,
    /// What must never happen, and did.
    wrong: Mutex<Vec<String>>,
    /// One for each watch that was begun: whether it shows nothing any more.
    deaf: Mutex<Vec<(&'static str, Arc<AtomicBool>)>>,
}

impl FaultyStore {
    /// The next so many calls of this kind meet the fault.
    pub(crate) fn plan(&self, op: Op, times: usize, fault: Fault) {
        self.plans.lock().unwrap().push(Plan { op, times, fault });
    }

    /// Just before the next call of this kind is carried out, this happens.
    pub(crate) fn before(&self, op: Op, happens: impl FnOnce(&MemoryStore) + Send + 'static) {
        self.before.lock().unwrap().push((op, Box::new(happens)));
    }

    pub(crate) fn heal(&self) {
        self.plans.lock().unwrap().clear();
    }

    /// The watches that are there show nothing from now on; new ones do.
    pub(crate) fn deafen(&self) {
        for (_, deaf) in self.deaf.lock().unwrap().iter() {
            deaf.store(true, SeqCst);
        }
    }

    /// The watches of pods that are there show nothing from now on.
    pub(crate) fn deafen_to_pods(&self) {
        for (_, deaf) in self.deaf.lock().unwrap().iter().filter(|(what, _)| *what == "pods") {
            deaf.store(true, SeqCst);
        }
    }

    /// The watches that are there hear again.
    pub(crate) fn undeafen(&self) {
        for (_, deaf) in self.deaf.lock().unwrap().iter() {
            deaf.store(false, SeqCst);
        }
    }

    /// Calls of this kind, by the name that they were about.
    pub(crate) fn calls(&self, op: Op) -> Vec<String> {
        let began = self.began.lock().unwrap();
        began
            .iter()
            .filter(|(other, _)| *other == op)
            .map(|(_, name)| name.clone())
            .collect()
    }

    pub(crate) fn writes(&self) -> Vec<(Op, String)> {
        let began = self.began.lock().unwrap();
        began.iter().filter(|(op, _)| op.is_write()).cloned().collect()
    }

    /// From now on each call takes a few milliseconds on its way there and back, so that things happen meanwhile.
    pub(crate) fn slow(&self, seed: u64) {
        self.pace.store(seed | 1, SeqCst);
    }

    async fn on_the_way(&self) {
        let pace = self.pace.load(SeqCst);
        if pace == 0 {
            // Others get in between, as they do on a network.
            return tokio::task::yield_now().await;
        }
        let next = pace
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407)
            | 1;
        self.pace.store(next, SeqCst);
        // Mostly fast, sometimes very slow.
        let pause = [0, 1, 1, 2, 3, 5, 8, 60][usize::try_from(next >> 61).unwrap()];
        tokio::time::sleep(Duration::from_millis(pause)).await;
    }

    pub(crate) fn wrong(&self) -> Vec<String> {
        self.wrong.lock().unwrap().clone()
    }

    /// Whether a pod works at this moment.
    fn works(&self, uid: &str) -> bool {
        let pods = self.memory.objects("Pod");
        pods.iter().any(|pod| {
            let phase = pod["status"]["phase"].as_str().unwrap_or_default();
            pod["metadata"]["uid"] == uid && !["Succeeded", "Failed"].contains(&phase)
        })
    }

    /// A claim loses a pod that works, or gets a second one as holder.
    fn judge_write(&self, before: &DeployerClaimSpec, next: &DeployerClaimSpec) {
        let mut wrong = self.wrong.lock().unwrap();
        let listed = |uid: &str| {
            let others = next.condemned.iter().chain(&next.spared);
            next.entries().any(|entry| entry.uid == uid) || others.into_iter().any(|pod| pod.uid == uid)
        };
        for entry in before
            .entries()
            .filter(|entry| !listed(&entry.uid) && self.works(&entry.uid))
        {
            wrong.push(format!(
                "the claim of {} is taken from {}, which works",
                next.config, entry.name
            ));
        }
        let (old, new) = (before.holder.as_ref(), next.holder.as_ref());
        if let (Some(old), Some(new)) = (old, new)
            && old.uid != new.uid
            && self.works(&old.uid)
        {
            wrong.push(format!("{} is made holder beside {}, which works", new.name, old.name));
        }
    }

    /// A holder, or a pod that was bound, is deleted.
    fn judge_delete(&self, uid: &str, bound: bool) {
        let claims = self.memory.objects("DeployerClaim");
        let claims = claims
            .into_iter()
            .map(|claim| serde_json::from_value::<DeployerClaim>(claim).unwrap());
        let held = claims
            .into_iter()
            .any(|claim| claim.spec.entries().any(|entry| entry.uid == uid));
        if held || bound {
            let what = format!("{uid} was deleted; held: {held}, bound: {bound}");
            self.wrong.lock().unwrap().push(what);
        }
    }

    async fn begin(&self, op: Op, name: &str) -> Option<Fault> {
        self.began.lock().unwrap().push((op, name.to_owned()));
        self.on_the_way().await;
        let due = {
            let mut before = self.before.lock().unwrap();
            let at = before.iter().position(|(planned, _)| *planned == op);
            at.map(|at| before.remove(at).1)
        };
        if let Some(happens) = due {
            happens(&self.memory);
        }
        let mut plans = self.plans.lock().unwrap();
        let plan = plans.iter_mut().find(|plan| plan.op == op && plan.times > 0)?;
        plan.times -= 1;
        Some(plan.fault.clone())
    }

    async fn read<T>(
        &self,
        op: Op,
        name: &str,
        read: impl Future<Output = Result<T, ReadError>>,
    ) -> Result<T, ReadError> {
        match self.begin(op, name).await {
            Some(Fault::Fail(why)) => {
                let what = format!("{op:?} {name:?}");
                return Err(ReadError { what, why });
            }
            Some(Fault::Hold(gate)) => gate.pass().await,
            Some(Fault::Late(gate)) => {
                let found = read.await;
                gate.pass().await;
                return found;
            }
            Some(Fault::Panic) => panic!("asked to panic"),
            Some(fault) => panic!("{fault:?} is no fault of a read"),
            None => {}
        }
        let found = read.await;
        self.on_the_way().await;
        found
    }

    async fn list(
        &self,
        op: Op,
        list: impl Future<Output = Result<Vec<Listed>, ReadError>>,
    ) -> Result<Vec<Listed>, ReadError> {
        match self.begin(op, "").await {
            Some(Fault::Stale) => Ok(Vec::new()),
            Some(Fault::Fail(why)) => Err(ReadError {
                what: format!("{op:?}"),
                why,
            }),
            Some(fault) => panic!("{fault:?} is no fault of a list"),
            None => list.await,
        }
    }

    async fn write<T>(
        &self,
        op: Op,
        name: &str,
        write: impl Future<Output = Result<T, WriteError>>,
    ) -> Result<T, WriteError> {
        let lost = WriteError::Unknown(Failure::Unreachable("the connection broke".into()));
        match self.begin(op, name).await {
            Some(Fault::Fail(why)) => return Err(WriteError::Refused(why)),
            Some(Fault::Conflict) => return Err(WriteError::Conflict),
            Some(Fault::Lost { done: false }) => return Err(lost),
            Some(Fault::Lost { done: true }) => {
                let _ = write.await;
                return Err(lost);
            }
            Some(Fault::Hold(gate)) => gate.pass().await,
            Some(Fault::Panic) => panic!("asked to panic"),
            Some(Fault::Stale | Fault::Late(_)) => panic!("a write is never stale"),
            None => {}
        }
        let written = write.await;
        self.on_the_way().await;
        written
    }

    fn hear<K: Send + 'static>(&self, what: &'static str, events: Watch<K>) -> Watch<K> {
        let deaf = Arc::new(AtomicBool::new(false));
        self.deaf.lock().unwrap().push((what, Arc::clone(&deaf)));
        let heard = move |event: &Result<Event<K>, Failure>| {
            let change = matches!(event, Ok(Event::Apply(_) | Event::Delete(_)));
            future::ready(!(change && deaf.load(SeqCst)))
        };
        events.filter(heard).boxed()
    }
}

#[async_trait]
impl Store for FaultyStore {
    async fn claim(&self, namespace: &str, name: &str) -> Result<Option<DeployerClaim>, ReadError> {
        self.read(Op::Claim, name, self.memory.claim(namespace, name)).await
    }

    /// An observer's look.
    async fn pod(&self, namespace: &str, name: &str) -> Result<Sighting, ReadError> {
        self.memory.pod(namespace, name).await
    }

    async fn pods(&self, namespace: &str, label_selector: &str, keep: Keep<'_>) -> Result<Vec<Value>, ReadError> {
        self.memory.pods(namespace, label_selector, keep).await
    }

    async fn owner(&self, namespace: &str, kind: &OwnerKind, name: &str) -> Result<Option<Value>, ReadError> {
        self.read(Op::Owner, name, self.memory.owner(namespace, kind, name))
            .await
    }

    async fn namespace_labels(&self, name: &str) -> Result<BTreeMap<String, String>, ReadError> {
        self.memory.namespace_labels(name).await
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
        self.write(Op::Create, name, self.memory.create_claim(namespace, name, spec))
            .await
    }

    async fn update_claim(&self, read: &DeployerClaim, spec: DeployerClaimSpec) -> Result<DeployerClaim, WriteError> {
        let write = async {
            let written = self.memory.update_claim(read, spec.clone()).await;
            if written.is_ok() {
                self.judge_write(&read.spec, &spec);
            }
            written
        };
        self.write(Op::Update, &read.name_any(), write).await
    }

    async fn update_claim_status(&self, read: &DeployerClaim, status: DeployerClaimStatus) -> Result<(), WriteError> {
        self.write(
            Op::Status,
            &read.name_any(),
            self.memory.update_claim_status(read, status),
        )
        .await
    }
}

#[async_trait]
impl Upkeep for FaultyStore {
    async fn whole_pod(&self, namespace: &str, name: &str) -> Result<Option<Value>, ReadError> {
        self.read(Op::Pod, name, self.memory.whole_pod(namespace, name)).await
    }

    async fn delete_pod(&self, pod: Fence<'_>) -> Result<(), WriteError> {
        let delete = async {
            let found = self.memory.whole_pod(pod.namespace, pod.name).await;
            let found = found
                .ok()
                .flatten()
                .is_some_and(|pod| pod["spec"]["nodeName"].is_string());
            let deleted = self.memory.delete_pod(pod).await;
            if deleted.is_ok() {
                self.judge_delete(pod.uid, found);
            }
            deleted
        };
        self.write(Op::DeletePod, pod.name, delete).await
    }

    async fn delete_claim(&self, read: &DeployerClaim) -> Result<(), WriteError> {
        self.write(Op::DeleteClaim, &read.name_any(), self.memory.delete_claim(read))
            .await
    }

    async fn annotate_owner(
        &self,
        namespace: &str,
        kind: &OwnerKind,
        owner: (&str, &str),
        annotation: (&str, &str),
    ) -> Result<(), WriteError> {
        let write = self.memory.annotate_owner(namespace, kind, owner, annotation);
        self.write(Op::Annotate, owner.0, write).await
    }

    async fn list_active_pods(&self, label_selector: &str) -> Result<Vec<Listed>, ReadError> {
        self.list(Op::ListPods, self.memory.list_active_pods(label_selector))
            .await
    }

    async fn list_claims(&self) -> Result<Vec<Listed>, ReadError> {
        self.list(Op::ListClaims, self.memory.list_claims()).await
    }

    fn watch_claims(&self) -> Watch<DeployerClaim> {
        self.hear("claims", self.memory.watch_claims())
    }

    fn watch_pods(&self, label_selector: &str) -> Watch<Value> {
        self.hear("pods", self.memory.watch_pods(label_selector))
    }

    fn watch_policies(&self) -> Watch<DeployerPolicy> {
        self.hear("policies", self.memory.watch_policies())
    }
}
