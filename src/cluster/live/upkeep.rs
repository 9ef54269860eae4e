//! The real cluster behind [`Upkeep`].

use std::fmt::Debug;
use std::future::ready;

use async_trait::async_trait;
use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, Preconditions};
use kube::core::{DeserializeGuard, DynamicObject};
use kube::discovery::Scope;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Config, Event, watcher};
use kube::{Api, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::LiveStore;
use crate::api::{DeployerClaim, DeployerPolicy};
use crate::cluster::store::{Failure, OwnerKind, ReadError, WriteError};
use crate::cluster::upkeep::{Fence, Listed, Upkeep, Watch};

/// Objects in one page of a list, and of the list that a watch begins with.
const PAGE: u32 = 500;
/// Pods in one page of the list that a watch of pods begins with: those come in full, and a page of them is in memory at a time.
const WHOLE_PODS: u32 = 50;
/// Pods that are neither Succeeded nor Failed.
const ACTIVE: &str = "status.phase!=Succeeded,status.phase!=Failed";
/// Times that a list begins anew because its pages expired while it was read.
const MAX_LISTS: usize = 3;

impl LiveStore {
    /// Lists metadata alone, page by page: the API server sends nothing else. Pages that expired (410) begin the list anew.
    async fn roll<K>(&self, params: ListParams, kind: &'static str) -> Result<Vec<Listed>, Failure>
    where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
    {
        let api: Api<K> = Api::all(self.client.clone());
        let first = params.limit(PAGE);
        let (mut params, mut rolled, mut lists) = (first.clone(), Vec::new(), 1);
        loop {
            let page = match self.count("list", kind, api.list_metadata(&params).await) {
                Err(Failure::Answered { code: 410, .. }) if lists < MAX_LISTS => {
                    (params, rolled, lists) = (first.clone(), Vec::new(), lists + 1);
                    continue;
                }
                page => page?,
            };
            rolled.extend(page.items.iter().map(listed));
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params = params.continue_token(&token),
                None => return Ok(rolled),
            }
        }
    }

    fn follow<K>(&self, api: Api<K>, config: Config, page: u32, kind: &'static str) -> Watch<K>
    where
        K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
    {
        let metrics = std::sync::Arc::clone(&self.metrics);
        let events = watcher(api, config.page_size(page)).default_backoff();
        events
            .map(move |event| {
                event.map_err(|error| {
                    metrics.api_request("watch", kind, "error");
                    Failure::from(error)
                })
            })
            .boxed()
    }
}

/// A watch without the objects that cannot be read as what they are to be: one that an older version stored, or a newer one, is not to
/// end the watch of all others.
fn readable<K>(events: Watch<DeserializeGuard<K>>, kind: &'static str) -> Watch<K>
where
    K: Resource + Send + 'static,
{
    let read = move |object: DeserializeGuard<K>| {
        let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
        let unreadable =
            |why| tracing::error!(kind, namespace, name, %why, "an object cannot be read, and is passed over");
        object.0.map_err(unreadable).ok()
    };
    let events = events.filter_map(move |event| {
        let event = match event {
            Ok(Event::Apply(object)) => read(object).map(Event::Apply).map(Ok),
            Ok(Event::InitApply(object)) => read(object).map(Event::InitApply).map(Ok),
            Ok(Event::Delete(object)) => read(object).map(Event::Delete).map(Ok),
            Ok(Event::Init) => Some(Ok(Event::Init)),
            Ok(Event::InitDone) => Some(Ok(Event::InitDone)),
            Err(why) => Some(Err(why)),
        };
        ready(event)
    });
    events.boxed()
}

fn listed<K: Resource>(object: &K) -> Listed {
    Listed {
        namespace: object.namespace().unwrap_or_default(),
        name: object.name_any(),
        uid: object.uid().unwrap_or_default(),
        version: object.resource_version().unwrap_or_default(),
    }
}

/// A delete of this very version.
fn fenced(uid: Option<&str>, version: Option<&str>) -> DeleteParams {
    DeleteParams::default().preconditions(Preconditions {
        uid: uid.map(str::to_owned),
        resource_version: version.map(str::to_owned),
    })
}

#[async_trait]
impl Upkeep for LiveStore {
    async fn whole_pod(&self, namespace: &str, name: &str) -> Result<Option<Value>, ReadError> {
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), namespace, &self.pod);
        let found = self.get(api, "pod", name).await?;
        found.map(serde_json::to_value).transpose().map_err(|error| ReadError {
            what: format!("pod {name:?}"),
            why: Failure::Unreadable(error.to_string()),
        })
    }

    async fn delete_pod(&self, pod: Fence<'_>) -> Result<(), WriteError> {
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), pod.namespace, &self.pod);
        let deleted = api.delete(pod.name, &fenced(Some(pod.uid), Some(pod.version))).await;
        self.count("delete", "pod", deleted).map(drop).map_err(WriteError::from)
    }

    async fn delete_claim(&self, read: &DeployerClaim) -> Result<(), WriteError> {
        let api = self.claims(&read.namespace().unwrap_or_default());
        let (uid, version) = (read.uid(), read.resource_version());
        let deleted = api
            .delete(&read.name_any(), &fenced(uid.as_deref(), version.as_deref()))
            .await;
        self.count("delete", "deployerclaim", deleted)
            .map(drop)
            .map_err(WriteError::from)
    }

    async fn annotate_owner(
        &self,
        namespace: &str,
        kind: &OwnerKind,
        (name, uid): (&str, &str),
        (key, value): (&str, &str),
    ) -> Result<(), WriteError> {
        let (resource, scope) = self.learn(kind).await.map_err(|error| WriteError::Refused(error.why))?;
        let api: Api<DynamicObject> = match scope {
            Scope::Namespaced => Api::namespaced_with(self.client.clone(), namespace, &resource),
            Scope::Cluster => Api::all_with(self.client.clone(), &resource),
        };
        // A uid cannot be changed: a patch of an object that was made anew under the name is refused.
        let patch = Patch::Merge(json!({ "metadata": { "uid": uid, "annotations": { key: value } } }));
        let patched = api.patch(name, &PatchParams::default(), &patch).await;
        self.count("patch", "owner", patched)
            .map(drop)
            .map_err(WriteError::from)
    }

    async fn list_active_pods(&self, label_selector: &str) -> Result<Vec<Listed>, ReadError> {
        let params = ListParams::default().labels(label_selector).fields(ACTIVE);
        self.roll::<Pod>(params, "pod").await.map_err(|why| ReadError {
            what: "the list of pods".into(),
            why,
        })
    }

    async fn list_claims(&self) -> Result<Vec<Listed>, ReadError> {
        let rolled = self.roll::<DeployerClaim>(ListParams::default(), "deployerclaim");
        rolled.await.map_err(|why| ReadError {
            what: "the list of claims".into(),
            why,
        })
    }

    fn watch_claims(&self) -> Watch<DeployerClaim> {
        let events = self.follow(Api::all(self.client.clone()), Config::default(), PAGE, "deployerclaim");
        readable(events, "DeployerClaim")
    }

    fn watch_pods(&self, label_selector: &str) -> Watch<Value> {
        let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &self.pod);
        let events = self.follow(api, Config::default().labels(label_selector), WHOLE_PODS, "pod");
        events.map(|event| event.and_then(to_value)).boxed()
    }

    fn watch_policies(&self) -> Watch<DeployerPolicy> {
        let events = self.follow(Api::all(self.client.clone()), Config::default(), PAGE, "deployerpolicy");
        readable(events, "DeployerPolicy")
    }
}

fn to_value(event: Event<DynamicObject>) -> Result<Event<Value>, Failure> {
    let value = |pod| serde_json::to_value(pod).map_err(|error| Failure::Unreadable(error.to_string()));
    Ok(match event {
        Event::Apply(pod) => Event::Apply(value(pod)?),
        Event::Delete(pod) => Event::Delete(value(pod)?),
        Event::InitApply(pod) => Event::InitApply(value(pod)?),
        Event::Init => Event::Init,
        Event::InitDone => Event::InitDone,
    })
}

impl From<watcher::Error> for Failure {
    fn from(error: watcher::Error) -> Self {
        match error {
            watcher::Error::InitialListFailed(error)
            | watcher::Error::WatchStartFailed(error)
            | watcher::Error::WatchFailed(error) => error.into(),
            watcher::Error::WatchError(status) => kube::Error::Api(status).into(),
            watcher::Error::NoResourceVersion => Self::Unreadable("a list without a resourceVersion".into()),
        }
    }
}
