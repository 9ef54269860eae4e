//! Which namespaces a policy speaks of, for counting and telling alone: asked once in a while. What is decided is read live.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::json;
use tokio::time::Instant;

use super::lookout::Watched;
use crate::cluster::request::read_within;
use crate::cluster::store::ReadError;
use crate::cluster::upkeep::Upkeep;
use crate::cluster::webhook_configuration::never_matched;

/// How long the labels of a namespace are believed.
const FRESH: Duration = Duration::from_mins(5);

/// The labels of a namespace, and when they were asked for.
type Asked = (BTreeMap<String, String>, Instant);

/// The labels of namespaces, as they were last asked for.
#[derive(Debug)]
pub(super) struct Namespaces<S> {
    store: Arc<S>,
    own: String,
    labels: Mutex<HashMap<Arc<str>, Asked>>,
}

/// Namespaces that a policy does not speak of, and those of which that could not be asked.
#[derive(Debug, Default)]
pub(super) struct Outside {
    excluded: HashSet<Arc<str>>,
    unknown: HashSet<Arc<str>>,
}

impl Outside {
    /// Whether the policy speaks of a namespace, as far as anybody knows.
    pub(super) fn counts(&self, namespace: &str) -> bool {
        !self.excluded.contains(namespace)
    }

    /// Whether the policy is known to speak of a namespace.
    pub(super) fn is_told_of(&self, namespace: &str) -> bool {
        self.counts(namespace) && !self.unknown.contains(namespace)
    }
}

impl<S: Upkeep> Namespaces<S> {
    /// `own` is our own namespace, which no policy ever matches.
    pub(super) fn new(store: Arc<S>, own: String) -> Self {
        Self {
            store,
            own,
            labels: Mutex::default(),
        }
    }

    /// Which namespaces of a policy's active pods it does not speak of.
    pub(super) async fn outside(&self, watched: &Watched) -> Outside {
        let namespaces: HashSet<Arc<str>> = watched.pods().namespaces().cloned().collect();
        let mut outside = Outside::default();
        for namespace in namespaces {
            match self.is_in(watched, &namespace).await {
                Ok(true) => {}
                Ok(false) => drop(outside.excluded.insert(namespace)),
                Err(error) => {
                    tracing::debug!(namespace = &*namespace, %error, "the labels of a namespace cannot be read; trying again");
                    outside.unknown.insert(namespace);
                }
            }
        }
        outside
    }

    async fn is_in(&self, watched: &Watched, namespace: &Arc<str>) -> Result<bool, ReadError> {
        if never_matched(&self.own).contains(&&**namespace) {
            return Ok(false);
        }
        let policy = &watched.policy;
        if !policy.selects_namespaces() {
            return Ok(true);
        }
        let labels = self.labels(namespace).await?;
        Ok(policy.matches_namespace(&json!({ "metadata": { "labels": labels } })))
    }

    async fn labels(&self, namespace: &Arc<str>) -> Result<BTreeMap<String, String>, ReadError> {
        let known = {
            let mut all = self.labels.lock().unwrap_or_else(PoisonError::into_inner);
            all.retain(|_, (_, asked)| asked.elapsed() < FRESH);
            all.get(namespace).map(|(labels, _)| labels.clone())
        };
        if let Some(labels) = known {
            return Ok(labels);
        }
        let labels = read_within("the namespace", self.store.namespace_labels(namespace)).await?;
        let asked = (labels.clone(), Instant::now());
        let mut all = self.labels.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(Arc::clone(namespace), asked);
        Ok(labels)
    }
}
