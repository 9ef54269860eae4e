//! What is asked: reviews as an API server sends them, and pods, of which reviews are made.

use std::path::PathBuf;

use anyhow::{Context, ensure};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Map, Value, json};

use crate::cli::manifests::{Manifest, Place, Reader};
use crate::webhook::review::Request;

/// One review, read as the webhook reads it.
#[derive(Clone, Debug)]
pub(super) struct Review {
    pub(super) place: Place,
    pub(super) request: Request,
    /// What was made up.
    pub(super) notes: Vec<String>,
}

/// What a pod does not say itself.
#[derive(Clone, Debug)]
pub(super) struct Defaults<'a> {
    /// The namespace that it is created in, where it names none.
    pub(super) namespace: &'a str,
    /// Who creates it.
    pub(super) user: &'a str,
}

/// The reviews of some files, in their order; and notes on what was passed over.
///
/// # Errors
/// If a file cannot be read or holds no review, or a review or pod in it cannot be sent to a webhook, with place, field and remedy.
pub(super) fn reviews(
    reader: &mut Reader,
    files: &[PathBuf],
    defaults: &Defaults<'_>,
) -> anyhow::Result<(Vec<Review>, Vec<String>)> {
    let (mut reviews, mut notes) = (Vec::new(), Vec::new());
    for file in files {
        let before = reviews.len();
        for manifest in reader.read(file)? {
            let (place, kind) = (&manifest.place, &manifest.kind);
            match (&*manifest.api_version, kind.as_str()) {
                (_, "AdmissionReview") => reviews.push(sent(&manifest)?),
                ("v1", "Pod") => reviews.push(created(&manifest, defaults, reviews.len() + 1)?),
                _ => notes.push(format!(
                    "{place}: {kind} is passed over: only pods are judged. Give the pods that it makes"
                )),
            }
        }
        ensure!(
            reviews.len() > before,
            "--review {}: there is no AdmissionReview and no Pod in it; give one (kubectl create --dry-run=client -o yaml prints pods)",
            file.display()
        );
    }
    Ok((reviews, notes))
}

/// A review as an API server sent it.
fn sent(manifest: &Manifest) -> anyhow::Result<Review> {
    let request = Request::read(manifest.object.to_string().as_bytes())
        .with_context(|| format!("{}: AdmissionReview: give it as an API server sends it", manifest.place))?;
    Ok(Review {
        place: manifest.place.clone(),
        request,
        notes: Vec::new(),
    })
}

/// The review of the pod's CREATE.
fn created(manifest: &Manifest, defaults: &Defaults<'_>, number: usize) -> anyhow::Result<Review> {
    let place = &manifest.place;
    // A label such as `app: 1` is refused by the API server; here it would be a label that is not there.
    manifest.read::<Pod>()?;
    let mut notes = Vec::new();
    let name = match (manifest.text("/metadata/name"), manifest.text("/metadata/generateName")) {
        (Some(name), _) => name.to_owned(),
        (None, Some(prefix)) => {
            let name = format!("{prefix}made-up-{number}");
            notes.push(format!("the name is made up from generateName {prefix:?}: {name}"));
            name
        }
        (None, None) => anyhow::bail!("{place}: Pod metadata.name is missing; give a name, or generateName"),
    };
    let namespace = manifest
        .text("/metadata/namespace")
        .unwrap_or(defaults.namespace)
        .to_owned();
    // As an API server does, whatever uid the manifest has: that is of the pod that it was read from.
    let uid = format!("made-up-{number}");
    let object = as_created(manifest.object.clone(), &name, &namespace, &uid);
    let kind = json!({ "group": "", "version": "v1", "kind": "Pod" });
    let resource = json!({ "group": "", "version": "v1", "resource": "pods" });
    let review = json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": format!("review-of-{uid}"),
            "kind": kind, "resource": resource, "requestKind": kind, "requestResource": resource,
            "name": name,
            "namespace": namespace,
            "operation": "CREATE",
            "userInfo": { "username": defaults.user },
            "object": object,
            "oldObject": null,
            "dryRun": false,
        },
    });
    Ok(Review {
        place: place.clone(),
        request: Request::read(review.to_string().as_bytes()).with_context(|| place.to_string())?,
        notes,
    })
}

/// The pod as an API server shows it to webhooks: with a name and a uid of its own, and without a past.
fn as_created(mut pod: Value, name: &str, namespace: &str, uid: &str) -> Value {
    let mut metadata = match pod["metadata"].take() {
        Value::Object(metadata) => metadata,
        _ => Map::new(),
    };
    for past in [
        "resourceVersion",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "selfLink",
    ] {
        metadata.remove(past);
    }
    metadata.insert("name".into(), name.into());
    metadata.insert("namespace".into(), namespace.into());
    metadata.insert("uid".into(), uid.into());
    metadata.insert("generation".into(), 1.into());
    metadata.insert("creationTimestamp".into(), Timestamp::now().to_string().into());
    // CEL tells null and empty from absent, and what an API server decoded has neither.
    for map in ["labels", "annotations"] {
        if metadata.get(map) == Some(&json!({})) {
            metadata.remove(map);
        }
    }
    pod["metadata"] = metadata.into();
    pod["status"] = json!({ "phase": "Pending" });
    remove_nulls(&mut pod);
    pod
}

fn remove_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, value| !value.is_null());
            fields.values_mut().for_each(remove_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(remove_nulls),
        _ => {}
    }
}
