//! Pods that are created in a dry run, to see what becomes of them. Nothing is stored.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use kube::api::PostParams;
use kube::{Api, Client};
use serde_json::json;

use super::request::within;
use super::store::Failure;

/// What became of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It would be stored.
    Created,
    /// It is refused.
    Refused {
        /// HTTP code.
        code: u16,
        /// The type of the first cause; empty where there is none.
        cause: String,
        /// The API server's text.
        message: String,
    },
}

/// Creates pods in a dry run.
pub struct Trial {
    api: Api<Pod>,
}

impl Trial {
    /// In this namespace.
    #[must_use]
    pub fn new(client: Client, namespace: &str) -> Self {
        Self {
            api: Api::namespaced(client, namespace),
        }
    }

    /// Creates a pod of this name, with these labels and annotations.
    ///
    /// # Errors
    /// If the API server gives no answer, or no verdict.
    pub async fn create(
        &self,
        name: &str,
        labels: &BTreeMap<String, String>,
        annotations: &BTreeMap<String, String>,
    ) -> Result<Outcome, Failure> {
        // Whatever a namespace may ask of pods: no privileges, and requests and limits.
        let few = json!({ "cpu": "1m", "memory": "1Mi" });
        let pod = json!({
            "metadata": { "name": name, "labels": labels, "annotations": annotations },
            "spec": {
                "restartPolicy": "Never",
                "automountServiceAccountToken": false,
                "securityContext": { "runAsNonRoot": true, "runAsUser": 65532, "seccompProfile": { "type": "RuntimeDefault" } },
                "containers": [{
                    "name": "probe",
                    "image": "deployer-guard-probe",
                    "resources": { "requests": few, "limits": few },
                    "securityContext": {
                        "allowPrivilegeEscalation": false,
                        "readOnlyRootFilesystem": true,
                        "capabilities": { "drop": ["ALL"] },
                    },
                }],
            },
        });
        let pod: Pod = serde_json::from_value(pod).map_err(|error| Failure::Unreadable(error.to_string()))?;
        let params = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        let created = within(async {
            match self.api.create(&params, &pod).await {
                Ok(_) => Ok(Outcome::Created),
                Err(kube::Error::Api(status)) => Ok(Outcome::Refused {
                    code: status.code,
                    cause: status
                        .details
                        .as_ref()
                        .and_then(|details| details.causes.first())
                        .map(|cause| cause.reason.clone())
                        .unwrap_or_default(),
                    message: status.message.clone(),
                }),
                Err(error) => Err(error),
            }
        });
        created.await
    }
}
