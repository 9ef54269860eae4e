//! The cluster in memory behind [`Upkeep`].

use async_trait::async_trait;
use futures::channel::mpsc::unbounded;
use futures::{StreamExt, stream};
use kube::runtime::watcher::Event;
use kube::{Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{Change, Id, MemoryStore};
use crate::api::{DeployerClaim, DeployerPolicy};
use crate::cluster::store::{Failure, OwnerKind, ReadError, WriteError};
use crate::cluster::upkeep::{Fence, Listed, Upkeep, Watch};
use crate::domain::sighting::Activity;

impl MemoryStore {
    /// Removes the object, if it is still of this uid and version.
    fn remove_fenced(&self, id: Id, uid: Option<&str>, version: Option<&str>) -> Result<(), WriteError> {
        let mut objects = self.lock();
        let stored = objects.by_id.get(&id).ok_or(WriteError::Conflict)?;
        let metadata = &stored["metadata"];
        if metadata["uid"].as_str() != uid || metadata["resourceVersion"].as_str() != version {
            return Err(WriteError::Conflict);
        }
        objects.remove(id);
        Ok(())
    }

    /// All objects of a kind, and then whatever becomes of them.
    fn watch<K: DeserializeOwned + Send + 'static>(&self, group: &str, kind: &str) -> Watch<K> {
        let of_kind = {
            let (group, kind) = (group.to_owned(), kind.to_owned());
            move |id: &Id| id.group == group && id.kind == kind
        };
        let (sender, told) = unbounded();
        let mut objects = self.lock();
        let listed: Vec<Value> = objects
            .by_id
            .iter()
            .filter(|(id, _)| of_kind(id))
            .map(|(_, object)| object.clone())
            .collect();
        objects.watchers.push(sender);
        drop(objects);
        let begun = stream::iter(
            std::iter::once(Event::Init)
                .chain(listed.into_iter().map(Event::InitApply))
                .chain(std::iter::once(Event::InitDone)),
        );
        let changes = told.filter_map(move |change| {
            std::future::ready(match change {
                Change::Stored(id, object) => of_kind(&id).then_some(Event::Apply(object)),
                Change::Removed(id, object) => of_kind(&id).then_some(Event::Delete(object)),
            })
        });
        begun.chain(changes).map(read).boxed()
    }
}

fn read<K: DeserializeOwned>(event: Event<Value>) -> Result<Event<K>, Failure> {
    let read = |object| serde_json::from_value(object).map_err(|error| Failure::Unreadable(error.to_string()));
    Ok(match event {
        Event::Apply(object) => Event::Apply(read(object)?),
        Event::Delete(object) => Event::Delete(read(object)?),
        Event::InitApply(object) => Event::InitApply(read(object)?),
        Event::Init => Event::Init,
        Event::InitDone => Event::InitDone,
    })
}

fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn listed(object: &Value) -> Listed {
    Listed {
        namespace: text(object, "/metadata/namespace").to_owned(),
        name: text(object, "/metadata/name").to_owned(),
        uid: text(object, "/metadata/uid").to_owned(),
        version: text(object, "/metadata/resourceVersion").to_owned(),
    }
}

#[async_trait]
impl Upkeep for MemoryStore {
    async fn whole_pod(&self, namespace: &str, name: &str) -> Result<Option<Value>, ReadError> {
        Ok(self.get(&Id::new("v1", "Pod", namespace, name)))
    }

    async fn delete_pod(&self, pod: Fence<'_>) -> Result<(), WriteError> {
        let id = Id::new("v1", "Pod", pod.namespace, pod.name);
        self.remove_fenced(id, Some(pod.uid), Some(pod.version))
    }

    async fn delete_claim(&self, read: &DeployerClaim) -> Result<(), WriteError> {
        let id = Id::claim(&read.namespace().unwrap_or_default(), &read.name_any());
        self.remove_fenced(id, read.uid().as_deref(), read.resource_version().as_deref())
    }

    async fn annotate_owner(
        &self,
        namespace: &str,
        kind: &OwnerKind,
        (name, uid): (&str, &str),
        (key, value): (&str, &str),
    ) -> Result<(), WriteError> {
        let mut objects = self.lock();
        let ids = [namespace, ""].map(|namespace| Id::new(&kind.api_version, &kind.kind, namespace, name));
        let stored = ids.iter().find_map(|id| objects.by_id.get(id));
        let mut owner = stored.cloned().ok_or(WriteError::Conflict)?;
        if owner["metadata"]["uid"].as_str() != Some(uid) {
            return Err(WriteError::Conflict);
        }
        owner["metadata"]["annotations"][key] = json!(value);
        objects.stamp(&mut owner);
        objects.insert(owner);
        Ok(())
    }

    async fn list_active_pods(&self, _label_selector: &str) -> Result<Vec<Listed>, ReadError> {
        let pods = self.objects("Pod");
        let active = pods
            .iter()
            .filter(|pod| Activity::of_phase(pod.pointer("/status/phase").and_then(Value::as_str)).is_active());
        Ok(active.map(listed).collect())
    }

    async fn list_claims(&self) -> Result<Vec<Listed>, ReadError> {
        Ok(self.objects(&DeployerClaim::kind(&())).iter().map(listed).collect())
    }

    fn watch_claims(&self) -> Watch<DeployerClaim> {
        self.watch(&DeployerClaim::group(&()), &DeployerClaim::kind(&()))
    }

    fn watch_pods(&self, _label_selector: &str) -> Watch<Value> {
        self.watch("", "Pod")
    }

    fn watch_policies(&self) -> Watch<DeployerPolicy> {
        self.watch(&DeployerPolicy::group(&()), &DeployerPolicy::kind(&()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str) -> Value {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "shop", "name": name}})
    }

    fn fence(pod: &Listed) -> Fence<'_> {
        Fence {
            namespace: &pod.namespace,
            name: &pod.name,
            uid: &pod.uid,
            version: &pod.version,
        }
    }

    #[tokio::test]
    async fn a_delete_is_of_the_version_that_was_read() {
        let store = MemoryStore::new();
        store.put(pod("p"));
        let read = store.list_active_pods("").await.unwrap().remove(0);
        let mut bound = store.whole_pod("shop", "p").await.unwrap().unwrap();
        bound["spec"]["nodeName"] = json!("node");
        store.put(bound);
        assert_eq!(store.delete_pod(fence(&read)).await, Err(WriteError::Conflict));
        let read = store.list_active_pods("").await.unwrap().remove(0);
        assert_eq!(store.delete_pod(fence(&read)).await, Ok(()));
        assert_eq!(store.delete_pod(fence(&read)).await, Err(WriteError::Conflict));
    }

    #[tokio::test]
    async fn a_watch_shows_what_is_there_and_what_becomes_of_it() {
        let store = MemoryStore::new();
        store.put(pod("p"));
        let mut watch = store.watch_pods("");
        let mut seen = Vec::new();
        for _ in 0..3 {
            seen.push(watch.next().await.unwrap().unwrap());
        }
        assert!(matches!(&seen[..], [Event::Init, Event::InitApply(_), Event::InitDone]));
        store.put(pod("q"));
        store.remove(&pod("p"));
        assert!(matches!(watch.next().await, Some(Ok(Event::Apply(pod))) if pod["metadata"]["name"] == "q"));
        assert!(matches!(watch.next().await, Some(Ok(Event::Delete(pod))) if pod["metadata"]["name"] == "p"));
    }
}
