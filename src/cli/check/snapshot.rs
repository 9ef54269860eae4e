//! The objects that a check is made on: what `kubectl get -o yaml` printed of a cluster.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{bail, ensure};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::api::{DeployerClaim, GROUP};
use crate::cli::manifests::{Manifest, Place, Reader};
use crate::cluster::memory::MemoryStore;
use crate::cluster::webhook_configuration::NAMESPACE_NAME;

/// The objects of a cluster at one time.
#[derive(Debug, Default)]
pub(super) struct Snapshot {
    objects: BTreeMap<Id, (Place, Value)>,
    /// What was passed over, and why.
    pub(super) notes: Vec<String>,
}

/// Group, kind, namespace and name.
type Id = (String, String, String, String);

/// What every object has.
#[derive(Deserialize)]
struct Any {
    metadata: ObjectMeta,
}

impl Snapshot {
    /// Reads a snapshot. Pods and claims that name no namespace are taken to be in `namespace`.
    ///
    /// # Errors
    /// If a file cannot be read, or an object in it cannot be one of a cluster, with place, field and remedy.
    pub(super) fn read(reader: &mut Reader, files: &[PathBuf], namespace: &str) -> anyhow::Result<Self> {
        let mut snapshot = Self::default();
        for manifest in reader.read_all(files)? {
            snapshot.take(manifest, namespace)?;
        }
        Ok(snapshot)
    }

    fn take(&mut self, mut manifest: Manifest, namespace: &str) -> anyhow::Result<()> {
        let (place, kind) = (manifest.place.clone(), manifest.kind.clone());
        if kind == "AdmissionReview" {
            bail!("{place}: an AdmissionReview is no object of a cluster; give it with --review");
        }
        let metadata = manifest.read::<Any>()?.metadata;
        let name = metadata.name.unwrap_or_default();
        ensure!(
            !name.is_empty(),
            "{place}: {kind} metadata.name is missing; give objects as they are stored (kubectl get -o yaml)"
        );
        let group = manifest.api_version.rsplit_once('/').map_or("", |(group, _)| group);
        match (group, &*kind) {
            (GROUP, "DeployerPolicy") => {
                self.notes.push(format!(
                    "{place}: DeployerPolicy {name:?} is no part of the snapshot; give the file with --policy to check under it"
                ));
                return Ok(());
            }
            (GROUP, "DeployerClaim") => {
                manifest.read::<DeployerClaim>()?;
            }
            ("", "Namespace") => manifest.object["metadata"]["labels"][NAMESPACE_NAME] = name.as_str().into(),
            _ => {}
        }
        let home = match metadata.namespace.filter(|namespace| !namespace.is_empty()) {
            Some(namespace) => namespace,
            None if (group, &*kind) == ("", "Pod") || group == GROUP => namespace.to_owned(),
            None => String::new(),
        };
        if !home.is_empty() {
            manifest.object["metadata"]["namespace"] = home.as_str().into();
        }
        let id = (group.to_owned(), kind, home, name);
        if let Some((other, object)) = self.objects.get(&id) {
            let (_, kind, _, name) = &id;
            ensure!(
                *object == manifest.object,
                "{place}: {kind} {name:?} is given twice and differs from that of {other}; leave the one that holds"
            );
        }
        self.objects.insert(id, (place, manifest.object));
        Ok(())
    }

    /// A cluster that holds these objects.
    pub(super) fn store(&self) -> MemoryStore {
        let store = MemoryStore::new();
        for (_, object) in self.objects.values() {
            store.put(object.clone());
        }
        store
    }

    /// Whether the namespace is in the snapshot.
    pub(super) fn has_namespace(&self, name: &str) -> bool {
        let id = (String::new(), "Namespace".into(), String::new(), name.to_owned());
        self.objects.contains_key(&id)
    }
}

/// A namespace that nothing is known of: it has the label that every namespace has.
pub(super) fn unknown_namespace(name: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": { "name": name, "labels": { NAMESPACE_NAME: name } },
    })
}
