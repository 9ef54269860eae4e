//! A real API server takes every object of every render, by dry run.

use deployer_guard_testkit::ControlPlane;
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use kube::core::GroupVersionKind;
use kube::discovery::{self, Scope};
use serde_json::Value;

use crate::helm::{NAMESPACE, file, objects, read, rendered, shapes};

/// Kinds that other people's definitions bring.
const FOREIGN: [&str; 2] = ["cert-manager.io", "monitoring.coreos.com"];

async fn dry_run(client: &kube::Client, object: &Value) -> Result<(), kube::Error> {
    let (group, version) = match object["apiVersion"].as_str().unwrap().split_once('/') {
        Some(both) => both,
        None => ("", object["apiVersion"].as_str().unwrap()),
    };
    let kind = GroupVersionKind::gvk(group, version, object["kind"].as_str().unwrap());
    let (resource, capabilities) = discovery::pinned_kind(client, &kind).await?;
    let api: Api<DynamicObject> = match capabilities.scope {
        Scope::Cluster => Api::all_with(client.clone(), &resource),
        Scope::Namespaced => {
            let namespace = object["metadata"]["namespace"].as_str().unwrap_or(NAMESPACE);
            Api::namespaced_with(client.clone(), namespace, &resource)
        }
    };
    let name = object["metadata"]["name"].as_str().unwrap();
    // A field that the server does not know is an error.
    let params = PatchParams {
        dry_run: true,
        field_validation: Some(kube::api::ValidationDirective::Strict),
        ..PatchParams::apply("test").force()
    };
    api.patch(name, &params, &Patch::Apply(object)).await.map(drop)
}

async fn apply(client: &kube::Client, object: &Value) {
    let kind = object["kind"].as_str().unwrap();
    let name = object["metadata"]["name"].as_str().unwrap();
    let params = PatchParams::apply("test").force();
    match kind {
        "CustomResourceDefinition" => {
            let api: Api<k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition> =
                Api::all(client.clone());
            api.patch(name, &params, &Patch::Apply(object)).await.unwrap();
            let established = kube::runtime::wait::conditions::is_crd_established();
            kube::runtime::wait::await_condition(api, name, established)
                .await
                .unwrap();
        }
        _ => {
            let api: Api<k8s_openapi::api::core::v1::Namespace> = Api::all(client.clone());
            api.patch(name, &params, &Patch::Apply(object)).await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_api_server_takes_every_object_of_every_shape() {
    let plane = ControlPlane::builder().start().await.unwrap();
    let client = plane.client(0);
    for crd in ["deployerclaims.yaml", "deployerpolicies.yaml"] {
        for object in objects(&read(&format!("charts/deployer-guard/crds/{crd}"))) {
            apply(&client, &object).await;
        }
    }
    let namespace = serde_json::json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
    apply(&client, &namespace).await;
    let mut taken = 0;
    for (name, values) in shapes() {
        for object in rendered(&values, &[]) {
            let group = object["apiVersion"].as_str().unwrap().split('/').next().unwrap();
            if FOREIGN.contains(&group) {
                continue;
            }
            if let Err(error) = dry_run(&client, &object).await {
                panic!("{name}: {} {}: {error}", object["kind"], object["metadata"]["name"]);
            }
            taken += 1;
        }
    }
    assert!(taken > 100, "{taken}");
    assert!(file("charts/deployer-guard/crds").is_dir());
}
