//! A cluster in memory, behind [`Store`] and [`Upkeep`](super::upkeep::Upkeep): without an API server.

mod upkeep;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use kube::{Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use futures::channel::mpsc::UnboundedSender;

use super::store::{Failure, Keep, OwnerKind, ReadError, Store, WriteError};
use crate::api::DeployerPolicy;
use crate::api::claim::{DeployerClaim, DeployerClaimSpec, DeployerClaimStatus};
use crate::domain::sighting::{Activity, Sighting};

/// A cluster in memory: what it holds was [put](Self::put) there, or written as a claim.
///
/// # Guarantees
/// - Every call takes effect at one moment; a read sees all that was written before it began.
/// - A write of a claim is a compare-and-swap on `metadata.resourceVersion`, or on absence, as on an API server. Every write
///   gets a version of its own, and an object that is made anew gets a new uid.
///
/// # Caveats
/// - A label selector is not evaluated: a list returns every pod of the namespace, and a watch shows all pods. Whoever decides on a list matches each pod
///   again, because a list may make a verdict worse, never better.
/// - Nothing is validated, defaulted or garbage-collected.
#[derive(Debug, Default)]
pub struct MemoryStore {
    objects: Mutex<Objects>,
}

#[derive(Debug, Default)]
struct Objects {
    by_id: BTreeMap<Id, Value>,
    version: u64,
    watchers: Vec<UnboundedSender<Change>>,
}

/// What a watch is told of.
#[derive(Clone, Debug)]
enum Change {
    Stored(Id, Value),
    Removed(Id, Value),
}

/// Where an object is kept. Versions of one group are views of one object. A cluster-scoped one has no namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Id {
    group: String,
    kind: String,
    namespace: String,
    name: String,
}

impl MemoryStore {
    /// An empty cluster.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Puts `next` in place of the claim, if it is still the version that was read.
    fn replace(&self, read: &DeployerClaim, next: &DeployerClaim) -> Result<DeployerClaim, WriteError> {
        let mut objects = self.lock();
        let id = Id::claim(&read.namespace().unwrap_or_default(), &read.name_any());
        let stored = match objects.by_id.entry(id) {
            Entry::Occupied(stored) => stored.get()["metadata"]["resourceVersion"].clone(),
            Entry::Vacant(_) => return Err(WriteError::Conflict),
        };
        if json!(read.resource_version()) != stored {
            return Err(WriteError::Conflict);
        }
        objects.store(next)
    }

    /// Stores an object, in place of one of the same kind, namespace and name. Its uid and version are filled in where it
    /// has none.
    pub fn put(&self, mut object: Value) {
        let mut objects = self.lock();
        objects.stamp(&mut object);
        objects.insert(object);
    }

    /// Removes the object of the same kind, namespace and name, and says what it was.
    pub fn remove(&self, object: &Value) -> Option<Value> {
        self.lock().remove(Id::of(object))
    }

    /// All objects of a kind, in the order of group, namespace and name.
    #[must_use]
    pub fn objects(&self, kind: &str) -> Vec<Value> {
        let objects = self.lock();
        let of_kind = objects.by_id.iter().filter(|(id, _)| id.kind == kind);
        of_kind.map(|(_, object)| object.clone()).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Objects> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self, id: &Id) -> Option<Value> {
        self.lock().by_id.get(id).cloned()
    }

    fn read<K: DeserializeOwned>(&self, id: &Id) -> Result<Option<K>, ReadError> {
        let found = self.get(id).map(serde_json::from_value).transpose();
        found.map_err(|error| ReadError {
            what: format!("{} {:?}", id.kind, id.name),
            why: Failure::Unreadable(error.to_string()),
        })
    }
}

impl Objects {
    fn stamp(&mut self, object: &mut Value) {
        self.version += 1;
        let metadata = &mut object["metadata"];
        if metadata["uid"].is_null() {
            metadata["uid"] = format!("00000000-0000-4000-8000-{:012}", self.version).into();
        }
        metadata["resourceVersion"] = self.version.to_string().into();
    }

    fn store(&mut self, claim: &DeployerClaim) -> Result<DeployerClaim, WriteError> {
        let unreadable = |error: serde_json::Error| WriteError::Refused(Failure::Unreadable(error.to_string()));
        let mut object = serde_json::to_value(claim).map_err(unreadable)?;
        object["metadata"]["generation"] = self.generation_of(&object).into();
        self.stamp(&mut object);
        let stored = serde_json::from_value(object.clone()).map_err(unreadable)?;
        self.insert(object);
        Ok(stored)
    }

    /// One more with each change of the spec.
    fn generation_of(&self, object: &Value) -> i64 {
        let stored = self.by_id.get(&Id::of(object));
        let generation = stored.map_or(0, |stored| {
            stored["metadata"]["generation"].as_i64().unwrap_or_default()
        });
        let same = stored.is_some_and(|stored| stored["spec"] == object["spec"]);
        generation + i64::from(!same)
    }

    fn insert(&mut self, object: Value) {
        let id = Id::of(&object);
        self.by_id.insert(id.clone(), object.clone());
        self.tell(&Change::Stored(id, object));
    }

    /// What is removed shows its last state, in a version of its own.
    fn remove(&mut self, id: Id) -> Option<Value> {
        let mut object = self.by_id.remove(&id)?;
        self.stamp(&mut object);
        self.tell(&Change::Removed(id, object.clone()));
        Some(object)
    }

    fn tell(&mut self, change: &Change) {
        self.watchers
            .retain(|watcher| watcher.unbounded_send(change.clone()).is_ok());
    }
}

impl Id {
    fn new(api_version: &str, kind: &str, namespace: &str, name: &str) -> Self {
        let group = api_version.rsplit_once('/').map_or("", |(group, _)| group);
        Self {
            group: group.to_owned(),
            kind: kind.to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }
    }

    fn of(object: &Value) -> Self {
        let text = |pointer| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        Self::new(
            text("/apiVersion"),
            text("/kind"),
            text("/metadata/namespace"),
            text("/metadata/name"),
        )
    }

    fn claim(namespace: &str, name: &str) -> Self {
        let kind = DeployerClaim::kind(&());
        Self::new(&DeployerClaim::api_version(&()), &kind, namespace, name)
    }
}

#[async_trait]
impl Store for MemoryStore {
    async fn claim(&self, namespace: &str, name: &str) -> Result<Option<DeployerClaim>, ReadError> {
        self.read(&Id::claim(namespace, name))
    }

    async fn pod(&self, namespace: &str, name: &str) -> Result<Sighting, ReadError> {
        let found = self.get(&Id::new("v1", "Pod", namespace, name));
        Ok(found.map_or(Sighting::Absent, |pod| {
            let text = |pointer| pod.pointer(pointer).and_then(Value::as_str);
            Sighting::Present {
                uid: text("/metadata/uid").unwrap_or_default().to_owned(),
                activity: Activity::of_phase(text("/status/phase")),
            }
        }))
    }

    async fn pods(&self, namespace: &str, _label_selector: &str, keep: Keep<'_>) -> Result<Vec<Value>, ReadError> {
        let objects = self.lock();
        let pods = objects
            .by_id
            .iter()
            .filter(|(id, _)| id.group.is_empty() && id.kind == "Pod" && id.namespace == namespace);
        Ok(pods.map(|(_, pod)| pod).filter(|pod| keep(pod)).cloned().collect())
    }

    async fn owner(&self, namespace: &str, kind: &OwnerKind, name: &str) -> Result<Option<Value>, ReadError> {
        let id = |namespace| Id::new(&kind.api_version, &kind.kind, namespace, name);
        Ok(self.get(&id(namespace)).or_else(|| self.get(&id(""))))
    }

    async fn namespace_labels(&self, name: &str) -> Result<BTreeMap<String, String>, ReadError> {
        let found = self.get(&Id::new("v1", "Namespace", "", name));
        let labels = found.and_then(|namespace| namespace.pointer("/metadata/labels").cloned());
        Ok(labels
            .and_then(|labels| serde_json::from_value(labels).ok())
            .unwrap_or_default())
    }

    async fn policy(&self, name: &str) -> Result<Option<DeployerPolicy>, ReadError> {
        let kind = DeployerPolicy::kind(&());
        self.read(&Id::new(&DeployerPolicy::api_version(&()), &kind, "", name))
    }

    async fn create_claim(
        &self,
        namespace: &str,
        name: &str,
        spec: DeployerClaimSpec,
    ) -> Result<DeployerClaim, WriteError> {
        let mut objects = self.lock();
        if objects.by_id.contains_key(&Id::claim(namespace, name)) {
            return Err(WriteError::Conflict);
        }
        let mut claim = DeployerClaim::new(name, spec);
        claim.meta_mut().namespace = Some(namespace.to_owned());
        objects.store(&claim)
    }

    async fn update_claim(&self, read: &DeployerClaim, spec: DeployerClaimSpec) -> Result<DeployerClaim, WriteError> {
        self.replace(read, &DeployerClaim { spec, ..read.clone() })
    }

    async fn update_claim_status(&self, read: &DeployerClaim, status: DeployerClaimStatus) -> Result<(), WriteError> {
        let status = Some(status);
        self.replace(read, &DeployerClaim { status, ..read.clone() })
            .map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(config: &str) -> DeployerClaimSpec {
        DeployerClaimSpec {
            config: config.into(),
            ..DeployerClaimSpec::default()
        }
    }

    #[tokio::test]
    async fn of_two_writes_on_one_version_the_first_wins() {
        let store = MemoryStore::new();
        let created = store.create_claim("shop", "c", spec("a")).await.unwrap();
        assert_eq!(
            store.create_claim("shop", "c", spec("b")).await,
            Err(WriteError::Conflict)
        );
        let updated = store.update_claim(&created, spec("b")).await.unwrap();
        assert_ne!(updated.resource_version(), created.resource_version());
        assert_eq!(updated.uid(), created.uid());
        assert_eq!(store.update_claim(&created, spec("c")).await, Err(WriteError::Conflict));
        assert_eq!(store.claim("shop", "c").await.unwrap(), Some(updated));
    }

    #[tokio::test]
    async fn a_claim_made_anew_is_not_the_one_that_was_read() {
        let store = MemoryStore::new();
        let first = store.create_claim("shop", "c", spec("a")).await.unwrap();
        store.remove(&serde_json::to_value(&first).unwrap()).unwrap();
        assert_eq!(store.update_claim(&first, spec("b")).await, Err(WriteError::Conflict));
        let second = store.create_claim("shop", "c", spec("a")).await.unwrap();
        assert_ne!(second.uid(), first.uid());
        assert_eq!(store.update_claim(&first, spec("b")).await, Err(WriteError::Conflict));
        assert_eq!(store.claim("elsewhere", "c").await, Ok(None));
    }

    #[tokio::test]
    async fn what_is_not_in_the_spec_survives_an_update() {
        let store = MemoryStore::new();
        let created = store.create_claim("shop", "c", spec("a")).await.unwrap();
        let mut object = serde_json::to_value(&created).unwrap();
        object["metadata"]["labels"] = json!({"team": "red"});
        object["status"] = json!({"phase": "Held", "ofANewerVersion": 1});
        object["spec"]["ofANewerVersion"] = 1.into();
        store.put(object);
        let read = store.claim("shop", "c").await.unwrap().unwrap();
        let next = DeployerClaimSpec {
            config: "b".into(),
            ..read.spec.clone()
        };
        let updated = serde_json::to_value(store.update_claim(&read, next).await.unwrap()).unwrap();
        assert_eq!(updated["spec"]["config"], "b");
        assert_eq!(updated["spec"]["ofANewerVersion"], 1);
        assert_eq!(updated["status"]["ofANewerVersion"], 1);
        assert_eq!(updated["metadata"]["labels"]["team"], "red");
    }

    #[tokio::test]
    async fn owners_are_found_in_the_namespace_or_the_cluster_whatever_their_version() {
        let store = MemoryStore::new();
        store.put(json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"namespace": "shop", "name": "j"}}));
        store.put(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}}));
        let kind = |api_version: &str, kind: &str| OwnerKind {
            api_version: api_version.into(),
            kind: kind.into(),
        };
        for (kind, namespace, name, found) in [
            (kind("batch/v1beta1", "Job"), "shop", "j", true),
            (kind("batch/v1", "Job"), "elsewhere", "j", false),
            (kind("v1", "Job"), "shop", "j", false),
            (kind("v1", "Node"), "shop", "n", true),
        ] {
            let owner = store.owner(namespace, &kind, name).await.unwrap();
            assert_eq!(owner.is_some(), found, "{kind:?} {namespace}");
        }
    }
}
