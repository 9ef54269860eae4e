//! A real API server takes every object of every render, and applying a render again changes nothing that the guard wrote.

use deployer_guard_testkit::ControlPlane;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Client;
use kube::api::{Api, DynamicObject, Patch, PatchParams, ValidationDirective};
use kube::core::GroupVersionKind;
use kube::discovery::{self, Scope};
use kube::runtime::wait::{await_condition, conditions};
use serde_json::{Value, json};

use crate::helm::{NAMESPACE, file, is_hook, objects, program, read, rendered, shapes};

/// The API of an object's kind.
async fn api_of(client: &Client, object: &Value) -> Result<Api<DynamicObject>, kube::Error> {
    let api_version = object["apiVersion"].as_str().unwrap();
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let kind = GroupVersionKind::gvk(group, version, object["kind"].as_str().unwrap());
    let (resource, capabilities) = discovery::pinned_kind(client, &kind).await?;
    Ok(match capabilities.scope {
        Scope::Cluster => Api::all_with(client.clone(), &resource),
        Scope::Namespaced => {
            let namespace = object["metadata"]["namespace"].as_str().unwrap_or(NAMESPACE);
            Api::namespaced_with(client.clone(), namespace, &resource)
        }
    })
}

/// Applies an object server-side and without force. A field that the server does not know is an error.
async fn apply(client: &Client, manager: &str, object: &Value, dry_run: bool) -> Result<DynamicObject, kube::Error> {
    let params = PatchParams {
        dry_run,
        field_validation: Some(ValidationDirective::Strict),
        ..PatchParams::apply(manager)
    };
    let name = object["metadata"]["name"].as_str().unwrap();
    api_of(client, object)
        .await?
        .patch(name, &params, &Patch::Apply(object))
        .await
}

/// Applies definitions, and waits until their kinds are there.
async fn define(client: &Client, definitions: &str) {
    for object in objects(definitions) {
        apply(client, "helm", &object, false).await.unwrap();
        let api: Api<CustomResourceDefinition> = Api::all(client.clone());
        let name = object["metadata"]["name"].as_str().unwrap();
        await_condition(api, name, conditions::is_crd_established())
            .await
            .unwrap();
    }
}

/// A control plane with the chart's definitions and the release's namespace.
async fn prepared() -> ControlPlane {
    let plane = ControlPlane::builder().start().await.unwrap();
    let client = plane.client(0);
    for crd in ["deployerclaims.yaml", "deployerpolicies.yaml"] {
        define(&client, &read(&format!("charts/deployer-guard/crds/{crd}"))).await;
    }
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
    apply(&client, "helm", &namespace, false).await.unwrap();
    plane
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_api_server_takes_every_object_of_every_shape() {
    let plane = prepared().await;
    let definitions_of_others = std::fs::read_to_string(program("crds.yaml")).unwrap();
    define(&plane.client(0), &definitions_of_others).await;
    let mut taken = 0;
    for (name, values) in shapes() {
        for object in rendered(&values, &[]) {
            if let Err(error) = apply(&plane.client(0), "helm", &object, true).await {
                panic!("{name}: {} {}: {error}", object["kind"], object["metadata"]["name"]);
            }
            taken += 1;
        }
    }
    assert!(taken > 100, "{taken}");
}

/// `helm template --no-hooks | kubectl apply --server-side`, a re-sync, and an upgrade to another version: none conflicts with what the
/// guard wrote, and none takes it away.
#[tokio::test(flavor = "multi_thread")]
async fn applied_again_a_release_keeps_what_the_guard_wrote() {
    let plane = prepared().await;
    let client = plane.client(0);
    let values = file("charts/deployer-guard/ci/openshift-values.yaml");
    let release: Vec<Value> = rendered(&values, &["--no-hooks"]);
    assert!(!release.iter().any(is_hook));
    for object in &release {
        apply(&client, "helm", object, false).await.unwrap();
    }

    let data = json!({"data": {"tls.crt": "eA==", "ca.crt": "eA=="}});
    let webhooks = json!({"webhooks": [{"name": "p.policies.deployer-guard.io", "admissionReviewVersions": ["v1"],
        "sideEffects": "None", "clientConfig": {"url": "https://127.0.0.1:1/"}}]});
    let lease = json!({"spec": {"holderIdentity": "guard", "leaseDurationSeconds": 15}});
    let filled = [
        ("Secret", data),
        ("ValidatingWebhookConfiguration", webhooks),
        ("Lease", lease),
    ];
    for (kind, content) in &filled {
        let object = release.iter().find(|object| object["kind"] == *kind).expect(kind);
        let name = object["metadata"]["name"].as_str().unwrap();
        let api = api_of(&client, object).await.unwrap();
        api.patch(name, &PatchParams::default(), &Patch::Merge(content))
            .await
            .unwrap();
    }

    let again = rendered(&values, &["--no-hooks"]);
    let next = rendered(&values, &["--no-hooks", "--set-string", "commonLabels.version=next"]);
    for object in again.iter().chain(&next) {
        let stored = apply(&client, "helm", object, false).await.unwrap();
        for (kind, content) in &filled {
            if object["kind"] == *kind {
                let (field, written) = content.as_object().unwrap().iter().next().unwrap();
                let kept = serde_json::to_value(&stored).unwrap()[field].take();
                let kept = if let Some(first) = kept.get(0) {
                    first.clone()
                } else {
                    kept
                };
                let written = written.get(0).unwrap_or(written);
                for (key, value) in written.as_object().unwrap() {
                    let same = kept[key] == *value || key == "clientConfig" && kept[key]["url"] == value["url"];
                    assert!(same, "{kind}: {key} is {}", kept[key]);
                }
            }
        }
    }
}
