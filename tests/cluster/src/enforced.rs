//! Whether a policy is in force.

use std::time::Duration;

use anyhow::ensure;
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject};
use kube::core::GroupVersionKind;
use serde_json::json;

use crate::wait::until;

/// The `DeployerPolicy` objects, of which the testkit knows no type.
pub(crate) fn policies(client: &Client) -> Api<DynamicObject> {
    let gvk = GroupVersionKind::gvk("deployer-guard.io", "v1alpha1", "DeployerPolicy");
    let mut resource = ApiResource::from_gvk(&gvk);
    resource.plural = "deployerpolicies".into();
    Api::all_with(client.clone(), &resource)
}

/// Waits until the status of a policy says that its present generation is in force; the error has the conditions.
pub(crate) async fn wait_enforced(client: &Client, policy: &str, limit: Duration) -> anyhow::Result<()> {
    until(&format!("DeployerPolicy {policy} to be in force"), limit, async || {
        let policy = policies(client).get(policy).await?;
        let conditions = policy.data["status"]["conditions"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let enforced = conditions.iter().any(|condition| {
            condition["type"] == "Enforced"
                && condition["status"] == "True"
                && condition["observedGeneration"] == json!(policy.metadata.generation)
        });
        ensure!(enforced, "its conditions are {conditions:?}");
        Ok(())
    })
    .await
}
