//! Kinds of owners, whose resources are looked up once and kept.

use std::sync::Arc;
use std::time::Duration;

use anyhow::ensure;
use deployer_guard::cluster::live::LiveStore;
use deployer_guard::cluster::store::{OwnerKind, Store};
use deployer_guard::telemetry::metrics::Metrics;
use deployer_guard_testkit::until;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Client;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, PostParams};
use kube::core::GroupVersionKind;
use serde_json::{Value, json};

use crate::common::{namespace, run};

const LIMIT: Duration = Duration::from_secs(30);

#[test]
fn a_kind_that_is_served_under_another_name_is_looked_up_again() {
    run(async {
        let client = namespace("kinds").await?.plane.client(0);
        let store = LiveStore::new(client.clone(), Arc::new(Metrics::new()));
        let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
        for plural in ["rollouts", "releases"] {
            definitions
                .create(&PostParams::default(), &serde_json::from_value(definition(plural))?)
                .await?;
            let resource =
                ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("kinds.test", "v1", "Rollout"), plural);
            let objects: Api<DynamicObject> = Api::namespaced_with(client.clone(), "kinds", &resource);
            until("the kind to be served", LIMIT, async || {
                objects
                    .create(&PostParams::default(), &DynamicObject::new("r", &resource))
                    .await?;
                Ok(())
            })
            .await?;
            // The first look may still be at the old name: it fails, and is the last one to.
            until("the owner to be found", LIMIT, async || found(&store).await).await?;
            definitions
                .delete(&format!("{plural}.kinds.test"), &DeleteParams::default())
                .await?;
            gone(&client, plural).await?;
        }
        Ok(())
    });
}

async fn found(store: &LiveStore) -> anyhow::Result<()> {
    let kind = OwnerKind {
        api_version: "kinds.test/v1".into(),
        kind: "Rollout".into(),
    };
    let owner = store.owner("kinds", &kind, "r").await?;
    ensure!(owner.is_some(), "it is not there");
    Ok(())
}

async fn gone(client: &Client, plural: &str) -> anyhow::Result<()> {
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    until("the kind to be gone", LIMIT, async || {
        let left = definitions.get_opt(&format!("{plural}.kinds.test")).await?;
        ensure!(left.is_none(), "it is there");
        Ok(())
    })
    .await
}

fn definition(plural: &str) -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": { "name": format!("{plural}.kinds.test") },
        "spec": {
            "group": "kinds.test",
            "scope": "Namespaced",
            "names": { "plural": plural, "singular": "rollout", "kind": "Rollout", "listKind": "RolloutList" },
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": { "openAPIV3Schema": { "type": "object", "x-kubernetes-preserve-unknown-fields": true } },
            }],
        },
    })
}
