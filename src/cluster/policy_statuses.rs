//! The status of policies: conditional writes, and a dry run of one that shows whether an API server calls the webhook.

use kube::api::{Patch, PatchParams};
use kube::client::Body;
use kube::core::{ApiResource, Object, Request};
use kube::{Api, Client, Resource};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::request::{REQUEST, within};
use super::store::{Failure, WriteError};
use super::webhook_configuration::ANSWERS;
use crate::api::DeployerPolicy;
use crate::api::policy::DeployerPolicyStatus;

/// The field manager of the status.
const FIELD_MANAGER: &str = "deployer-guard-status";

/// A policy of which nothing but its metadata and its status is looked at: the rest may be of a version that we do not know.
pub type PolicyHead = Object<Value, DeployerPolicyStatus>;

/// The statuses of policies.
#[derive(Clone)]
pub struct PolicyStatuses {
    client: Client,
    api: Api<PolicyHead>,
}

impl PolicyStatuses {
    /// Over this client.
    #[must_use]
    pub fn new(client: Client) -> Self {
        Self {
            api: Api::all_with(client.clone(), &ApiResource::erase::<DeployerPolicy>(&())),
            client,
        }
    }

    /// Reads a policy live. `None`: there is none.
    ///
    /// # Errors
    /// If it cannot be read.
    pub async fn read(&self, name: &str) -> Result<Option<PolicyHead>, Failure> {
        within(self.api.get_opt(name)).await
    }

    /// Writes a policy's status, if it is still the object and version that was read. Fields that we do not know stay.
    ///
    /// # Errors
    /// If it was not written, or that is not known.
    pub async fn write(&self, read: &PolicyHead, status: &DeployerPolicyStatus) -> Result<(), WriteError> {
        let (Some(name), Some(uid), Some(version)) =
            (&read.metadata.name, &read.metadata.uid, &read.metadata.resource_version)
        else {
            return Err(WriteError::Conflict);
        };
        let mut fields = serde_json::to_value(status).unwrap_or_default();
        for field in ["stockTaking", "counts"] {
            // What is left out of a merge patch would stay.
            fields
                .as_object_mut()
                .map(|fields| fields.entry(field).or_insert(Value::Null));
        }
        let patch = json!({ "metadata": { "uid": uid, "resourceVersion": version }, "status": fields });
        let params = PatchParams {
            field_manager: Some(FIELD_MANAGER.into()),
            ..PatchParams::default()
        };
        let patch = Patch::Merge(&patch);
        let patched = within(self.api.patch_status(name, &params, &patch)).await;
        patched.map(drop).map_err(|failure| match failure {
            Failure::Answered { code: 404 | 409, .. } => WriteError::Conflict,
            Failure::Answered { code: 400..=428, .. } | Failure::Forbidden(_) => WriteError::Refused(failure),
            other => WriteError::Unknown(other),
        })
    }

    /// Patches a policy's status in a dry run, which our entry for policies lets through to the webhook. Nothing is stored.
    ///
    /// # Errors
    /// With what happened instead of an answer of the webhook.
    pub async fn probe(&self, name: &str) -> Result<(), String> {
        match timeout(REQUEST, self.dry_run(name)).await {
            Ok(result) => result,
            Err(_elapsed) => Err(format!("no answer within {REQUEST:?}")),
        }
    }

    async fn dry_run(&self, name: &str) -> Result<(), String> {
        let params = PatchParams {
            dry_run: true,
            field_manager: Some(FIELD_MANAGER.into()),
            ..PatchParams::default()
        };
        let patch = Patch::Merge(json!({ "status": {} }));
        let request = Request::new(DeployerPolicy::url_path(&(), None))
            .patch_subresource("status", name, &params, &patch)
            .map_err(|error| error.to_string())?;
        let response = self
            .client
            .send(request.map(Body::from))
            .await
            .map_err(|error| Failure::from(error).to_string())?;
        let warned = response
            .headers()
            .get_all("warning")
            .iter()
            .any(|warning| String::from_utf8_lossy(warning.as_bytes()).contains(ANSWERS));
        if warned {
            return Ok(());
        }
        let code = response.status();
        if code.is_success() {
            return Err("the API server did not call the webhook, or got no answer".into());
        }
        let body = response
            .into_body()
            .collect_bytes()
            .await
            .map_err(|error| error.to_string())?;
        let status: Value = serde_json::from_slice(&body).unwrap_or_default();
        Err(format!(
            "the API server answered {code}: {}",
            status["message"].as_str().unwrap_or_default()
        ))
    }
}
