//! The small things that every test does with a control plane.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, ensure};
use k8s_openapi::api::core::v1::{Namespace, Pod, ServiceAccount};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams};
use kube::client::Body;
use kube::core::Status;
use kube::discovery::{Scope, pinned_kind};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

use crate::wait::until;

/// How long objects may take to come into being.
const LIMIT: Duration = Duration::from_secs(30);

/// What an API server said to a create.
#[derive(Debug, Clone)]
pub struct Answer {
    /// The HTTP status code.
    pub code: u16,
    /// The texts of its `Warning` headers.
    pub warnings: Vec<String>,
    /// The pod as it was stored, or the refusal.
    pub result: Result<Box<Pod>, Box<Status>>,
}

impl Answer {
    /// Whether the pod was stored (or would have been, in a dry run).
    #[must_use]
    pub fn is_created(&self) -> bool {
        self.code == 201
    }

    /// The refusal's message; empty if there was none.
    #[must_use]
    pub fn message(&self) -> &str {
        self.result.as_ref().err().map_or("", |status| &status.message)
    }
}

/// Creates a pod by one request, which is never repeated.
///
/// # Errors
/// If there was no answer of the API server; a refusal is an [`Answer`].
pub async fn create_pod(client: &Client, namespace: &str, pod: &Value) -> anyhow::Result<Answer> {
    create_pod_with(client, namespace, pod, "").await
}

/// Creates a pod with a query string, such as `dryRun=All`.
///
/// # Errors
/// If there was no answer of the API server; a refusal is an [`Answer`].
pub async fn create_pod_with(client: &Client, namespace: &str, pod: &Value, query: &str) -> anyhow::Result<Answer> {
    let request = http::Request::post(format!("/api/v1/namespaces/{namespace}/pods?{query}"))
        .header("content-type", "application/json")
        .body(Body::from(serde_json::to_vec(pod)?))?;
    let response = client.send(request).await.context("creating a pod")?;
    let code = response.status().as_u16();
    let warnings = response
        .headers()
        .get_all("warning")
        .iter()
        .map(|value| warning_text(&String::from_utf8_lossy(value.as_bytes())))
        .collect();
    let body = response
        .into_body()
        .collect_bytes()
        .await
        .context("reading the answer to a create")?;
    let unreadable = || format!("answer {code}: {}", String::from_utf8_lossy(&body));
    let result = if response_is_success(code) {
        Ok(serde_json::from_slice(&body).with_context(unreadable)?)
    } else {
        Err(serde_json::from_slice(&body).with_context(unreadable)?)
    };
    Ok(Answer { code, warnings, result })
}

fn response_is_success(code: u16) -> bool {
    (200..300).contains(&code)
}

/// The quoted text of `299 - "text"`, without its escapes.
fn warning_text(header: &str) -> String {
    let quoted = header
        .split_once('"')
        .map_or(header, |(_, rest)| rest.trim_end_matches('"'));
    quoted.replace("\\\"", "\"").replace("\\\\", "\\")
}

/// Sets a pod's phase through `pods/status`, as a kubelet would.
///
/// # Errors
/// If the API server refuses.
pub async fn set_phase(client: &Client, namespace: &str, name: &str, phase: &str) -> anyhow::Result<Pod> {
    Api::<Pod>::namespaced(client.clone(), namespace)
        .patch_status(
            name,
            &PatchParams::default(),
            &Patch::Merge(json!({"status": {"phase": phase}})),
        )
        .await
        .with_context(|| format!("setting pod {namespace}/{name} to {phase}"))
}

/// Makes a namespace, with labels, and waits until pods can be made in it: with a controller-manager, until the default
/// service account is there.
///
/// # Errors
/// If it exists already, or that does not come to be within 30 s.
pub async fn make_namespace(
    client: &Client,
    name: &str,
    labels: &[(&str, &str)],
    controller_manager: bool,
) -> anyhow::Result<()> {
    let labels: serde_json::Map<String, Value> = labels
        .iter()
        .map(|(label, value)| ((*label).to_owned(), json!(value)))
        .collect();
    let namespace = serde_json::from_value(json!({"metadata": {"name": name, "labels": labels}}))?;
    Api::<Namespace>::all(client.clone())
        .create(&PostParams::default(), &namespace)
        .await
        .with_context(|| format!("making namespace {name}"))?;
    until(&format!("namespace {name} to be usable"), LIMIT, async || {
        Api::<Namespace>::all(client.clone()).get(name).await?;
        if controller_manager {
            Api::<ServiceAccount>::namespaced(client.clone(), name)
                .get("default")
                .await?;
        }
        Ok(())
    })
    .await
}

/// Applies each document of a YAML file by server-side apply; see [`apply_yaml`].
///
/// # Errors
/// If the file cannot be read, or as [`apply_yaml`].
pub async fn apply_file(client: &Client, path: &Path, field_manager: &str) -> anyhow::Result<Vec<DynamicObject>> {
    let text = fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    apply_yaml(client, &text, field_manager)
        .await
        .with_context(|| path.display().to_string())
}

/// Takes a rule out of the schema of a custom resource's spec, by its path there, such as `mode/enum`: an object that breaks it may have
/// been stored under a schema that did not have it. The API servers take it up a moment later.
///
/// # Errors
/// If there is no such definition or rule.
pub async fn loosen_schema(client: &Client, definition: &str, rule: &str) -> anyhow::Result<()> {
    let pointer = format!("/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/{rule}");
    let patch = serde_json::from_value(json!([{ "op": "remove", "path": pointer }]))?;
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    definitions
        .patch(definition, &PatchParams::default(), &Patch::Json::<()>(patch))
        .await
        .with_context(|| format!("{rule} of {definition}"))?;
    Ok(())
}

/// Applies each document of a YAML text in turn by server-side apply, with force. A kind that the API server does not
/// serve yet is waited for, and a `CustomResourceDefinition` until it is Established. Objects without a namespace go to
/// `default`. Returns them as stored.
///
/// # Errors
/// If a document is no object, its kind is not served within 30 s, or the API server refuses it.
pub async fn apply_yaml(client: &Client, text: &str, field_manager: &str) -> anyhow::Result<Vec<DynamicObject>> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(text).context("reading YAML")?;
    let mut applied = Vec::new();
    for document in documents.into_iter().filter(|document| !document.is_null()) {
        let object: DynamicObject = serde_json::from_value(document).context("a document that is no object")?;
        applied.push(apply(client, &object, field_manager).await?);
    }
    Ok(applied)
}

async fn apply(client: &Client, object: &DynamicObject, field_manager: &str) -> anyhow::Result<DynamicObject> {
    let types = object
        .types
        .as_ref()
        .context("a document without apiVersion and kind")?;
    let (name, kind) = (object.name_any(), &types.kind);
    let gvk = GroupVersionKind::try_from(types)?;
    let (resource, capabilities) = until(&format!("kind {kind} to be served"), LIMIT, async || {
        Ok(pinned_kind(client, &gvk).await?)
    })
    .await?;
    let api: Api<DynamicObject> = match capabilities.scope {
        Scope::Cluster => Api::all_with(client.clone(), &resource),
        Scope::Namespaced => {
            let namespace = object.metadata.namespace.as_deref().unwrap_or("default");
            Api::namespaced_with(client.clone(), namespace, &resource)
        }
    };
    let stored = api
        .patch(&name, &PatchParams::apply(field_manager).force(), &Patch::Apply(object))
        .await
        .with_context(|| format!("applying {kind} {name}"))?;
    if kind == "CustomResourceDefinition" {
        wait_for_crds(client, &[&name]).await?;
    }
    Ok(stored)
}

/// Waits until each of the `CustomResourceDefinition`s (`plural.group`) is Established.
///
/// # Errors
/// If one is not within 30 s.
pub async fn wait_for_crds(client: &Client, names: &[&str]) -> anyhow::Result<()> {
    let api = Api::<CustomResourceDefinition>::all(client.clone());
    for name in names {
        until(&format!("CRD {name} to be Established"), LIMIT, async || {
            let conditions = api
                .get(name)
                .await?
                .status
                .and_then(|status| status.conditions)
                .unwrap_or_default();
            let established = conditions
                .iter()
                .any(|condition| condition.type_ == "Established" && condition.status == "True");
            ensure!(established, "its conditions are {conditions:?}");
            Ok(())
        })
        .await?;
    }
    Ok(())
}
