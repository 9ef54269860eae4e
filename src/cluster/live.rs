//! The real cluster behind [`Store`] and [`Upkeep`](super::upkeep::Upkeep).

mod upkeep;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::{Api, ApiResource, DynamicObject, ListParams, PostParams};
use kube::core::{GroupVersionKind, Object};
use kube::discovery::{self, Scope};
use kube::{Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::store::{Failure, Keep, OwnerKind, ReadError, Store, WriteError};
use crate::api::DeployerPolicy;
use crate::api::claim::{DeployerClaim, DeployerClaimSpec, DeployerClaimStatus};
use crate::domain::sighting::{Activity, Sighting};
use crate::telemetry::metrics::Metrics;

/// Pods in one page of a list.
const PAGE: u32 = 500;

/// The parts of a pod that tell whether it is active. Everything else in the answer is skipped.
type PodGlance = Object<Skipped, PhaseOnly>;

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
struct Skipped {}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
struct PhaseOnly {
    phase: Option<String>,
}

/// A live cluster, reached through a `kube::Client`.
///
/// The client must not retry by itself (`Config::default_retry`): past a deadline nothing may be written.
#[derive(Clone)]
pub struct LiveStore {
    client: Client,
    pod: ApiResource,
    /// Where the API server serves the kinds of owners. Learnt once for each kind; it cannot change while the kind exists.
    kinds: Arc<Mutex<HashMap<OwnerKind, (ApiResource, Scope)>>>,
    metrics: Arc<Metrics>,
}

impl LiveStore {
    /// A store over this client.
    #[must_use]
    pub fn new(client: Client, metrics: Arc<Metrics>) -> Self {
        Self {
            client,
            pod: ApiResource::erase::<Pod>(&()),
            kinds: Arc::default(),
            metrics,
        }
    }

    /// Learns where the API server serves a kind of owner.
    ///
    /// # Errors
    /// If discovery fails or the kind is not served.
    pub async fn learn(&self, kind: &OwnerKind) -> Result<(ApiResource, Scope), ReadError> {
        if let Some(known) = self.kinds.lock().unwrap_or_else(PoisonError::into_inner).get(kind) {
            return Ok(known.clone());
        }
        let (group, version) = kind.api_version.rsplit_once('/').unwrap_or(("", &kind.api_version));
        let gvk = GroupVersionKind::gvk(group, version, &kind.kind);
        let served = discovery::pinned_kind(&self.client, &gvk).await;
        let (resource, capabilities) = self.count("discover", "owner", served).map_err(|why| ReadError {
            what: format!("the API resource of kind {} in {}", kind.kind, kind.api_version),
            why,
        })?;
        let found = (resource, capabilities.scope);
        self.kinds
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(kind.clone(), found.clone());
        Ok(found)
    }

    fn claims(&self, namespace: &str) -> Api<DeployerClaim> {
        Api::namespaced(self.client.clone(), namespace)
    }

    async fn get<K>(&self, api: Api<K>, kind: &'static str, name: &str) -> Result<Option<K>, ReadError>
    where
        K: Clone + std::fmt::Debug + DeserializeOwned,
    {
        // A GET without resourceVersion goes to etcd.
        let got = match api.get(name).await {
            // Another 404 says that the resource is not served, or is no answer of the API server: that is not "no such object".
            Err(kube::Error::Api(status)) if status.code == 404 && status.reason == "NotFound" => Ok(None),
            got => got.map(Some),
        };
        self.count("get", kind, got).map_err(|why| ReadError {
            what: format!("{kind} {name:?}"),
            why,
        })
    }

    fn count<T>(&self, verb: &'static str, kind: &'static str, result: kube::Result<T>) -> Result<T, Failure> {
        let result = result.map_err(Failure::from);
        self.metrics
            .api_request(verb, kind, if result.is_ok() { "ok" } else { "error" });
        result
    }
}

#[async_trait]
impl Store for LiveStore {
    async fn claim(&self, namespace: &str, name: &str) -> Result<Option<DeployerClaim>, ReadError> {
        self.get(self.claims(namespace), "deployerclaim", name).await
    }

    async fn pod(&self, namespace: &str, name: &str) -> Result<Sighting, ReadError> {
        let api: Api<PodGlance> = Api::namespaced_with(self.client.clone(), namespace, &self.pod);
        Ok(self
            .get(api, "pod", name)
            .await?
            .map_or(Sighting::Absent, |pod| Sighting::Present {
                activity: Activity::of_phase(pod.status.as_ref().and_then(|status| status.phase.as_deref())),
                uid: pod.metadata.uid.unwrap_or_default(),
            }))
    }

    async fn pods(&self, namespace: &str, label_selector: &str, keep: Keep<'_>) -> Result<Vec<Value>, ReadError> {
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), namespace, &self.pod);
        let mut params = ListParams::default().labels(label_selector).limit(PAGE);
        let failed = |why| ReadError {
            what: format!("the pods of namespace {namespace:?}"),
            why,
        };
        let mut pods = Vec::new();
        loop {
            let page = self.count("list", "pod", api.list(&params).await).map_err(failed)?;
            for pod in page.items {
                let pod = serde_json::to_value(pod).map_err(|error| failed(Failure::Unreadable(error.to_string())))?;
                pods.extend(keep(&pod).then_some(pod));
            }
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params = params.continue_token(&token),
                None => return Ok(pods),
            }
        }
    }

    async fn owner(&self, namespace: &str, kind: &OwnerKind, name: &str) -> Result<Option<Value>, ReadError> {
        let (resource, scope) = self.learn(kind).await?;
        let api: Api<DynamicObject> = match scope {
            Scope::Namespaced => Api::namespaced_with(self.client.clone(), namespace, &resource),
            Scope::Cluster => Api::all_with(self.client.clone(), &resource),
        };
        let failed = |why| ReadError {
            what: format!("{} {name:?}", kind.kind),
            why,
        };
        let found = self.count("get", "owner", api.get_opt(name).await);
        if let Err(Failure::Answered { code: 404, .. }) = &found {
            // Not the object but the resource is not there: the kind is served under another name by now, or no more.
            self.kinds.lock().unwrap_or_else(PoisonError::into_inner).remove(kind);
        }
        let found = found.map_err(failed)?;
        found
            .map(serde_json::to_value)
            .transpose()
            .map_err(|error| failed(Failure::Unreadable(error.to_string())))
    }

    async fn namespace_labels(&self, name: &str) -> Result<BTreeMap<String, String>, ReadError> {
        let api: Api<Namespace> = Api::all(self.client.clone());
        Ok(self
            .get(api, "namespace", name)
            .await?
            .map(|found| found.labels().clone())
            .unwrap_or_default())
    }

    async fn policy(&self, name: &str) -> Result<Option<DeployerPolicy>, ReadError> {
        self.get(Api::all(self.client.clone()), "deployerpolicy", name).await
    }

    async fn create_claim(
        &self,
        namespace: &str,
        name: &str,
        spec: DeployerClaimSpec,
    ) -> Result<DeployerClaim, WriteError> {
        let mut claim = DeployerClaim::new(name, spec);
        claim.meta_mut().namespace = Some(namespace.to_owned());
        let created = self.claims(namespace).create(&PostParams::default(), &claim).await;
        self.count("create", "deployerclaim", created).map_err(create_error)
    }

    async fn update_claim(&self, read: &DeployerClaim, spec: DeployerClaimSpec) -> Result<DeployerClaim, WriteError> {
        let claim = DeployerClaim { spec, ..read.clone() };
        let api = self.claims(&read.namespace().unwrap_or_default());
        let replaced = api.replace(&read.name_any(), &PostParams::default(), &claim).await;
        self.count("update", "deployerclaim", replaced)
            .map_err(WriteError::from)
    }

    async fn update_claim_status(&self, read: &DeployerClaim, status: DeployerClaimStatus) -> Result<(), WriteError> {
        let claim = DeployerClaim {
            status: Some(status),
            ..read.clone()
        };
        let api = self.claims(&read.namespace().unwrap_or_default());
        let replaced = api
            .replace_status(&read.name_any(), &PostParams::default(), &claim)
            .await;
        self.count("update", "deployerclaim/status", replaced)
            .map(|_| ())
            .map_err(WriteError::from)
    }
}

impl From<kube::Error> for Failure {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) if status.code == 403 => Self::Forbidden(status.message),
            kube::Error::Api(status) => Self::Answered {
                code: status.code,
                reason: status.reason,
                message: status.message,
            },
            kube::Error::SerdeError(error) => Self::Unreadable(error.to_string()),
            kube::Error::Discovery(error) => Self::Unreadable(error.to_string()),
            // Nothing was sent: trying again gives the same.
            error @ (kube::Error::BuildRequest(_) | kube::Error::HttpError(_)) => Self::Unreadable(root_cause(&error)),
            other => Self::Unreachable(root_cause(&other)),
        }
    }
}

/// The innermost text of an error: the outer ones only say that a request failed.
fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

/// As any write's, but a create that finds nothing met no race: its namespace or the resource itself is gone.
fn create_error(failure: Failure) -> WriteError {
    match failure {
        Failure::Answered { code: 404, .. } => WriteError::Refused(failure),
        failure => failure.into(),
    }
}

/// Tells a lost race from a refusal, and both from an answer that leaves open whether the write was done.
impl From<Failure> for WriteError {
    fn from(failure: Failure) -> Self {
        match failure {
            // 404: what was read is gone.
            Failure::Answered { code: 404 | 409, .. } => Self::Conflict,
            Failure::Answered { code: 400..=428, .. } | Failure::Forbidden(_) => Self::Refused(failure),
            Failure::Answered { code: 429, .. } => Self::Shed(failure),
            failure => Self::Unknown(failure),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(code: u16) -> Failure {
        Failure::Answered {
            code,
            reason: String::new(),
            message: String::new(),
        }
    }

    #[test]
    fn only_a_lost_race_is_a_conflict_and_only_a_clear_no_is_a_refusal() {
        for (code, conflict, refused) in [
            (404, true, false),
            (409, true, false),
            (400, false, true),
            (413, false, true),
            (422, false, true),
            (429, false, false),
            (500, false, false),
            (503, false, false),
            (504, false, false),
        ] {
            let error = WriteError::from(answered(code));
            assert_eq!(error == WriteError::Conflict, conflict, "{code}");
            assert_eq!(matches!(error, WriteError::Refused(_)), refused, "{code}");
        }
        assert!(matches!(WriteError::from(Failure::TimedOut), WriteError::Unknown(_)));
    }

    /// Taken for a conflict, it would be tried again without a pause until the deadline.
    #[test]
    fn a_create_that_finds_nothing_is_refused() {
        assert!(matches!(create_error(answered(404)), WriteError::Refused(_)));
        assert_eq!(create_error(answered(409)), WriteError::Conflict);
    }
}
