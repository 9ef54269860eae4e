//! Live reads for one request, turned into what the decision takes.

use std::sync::Arc;

use super::ticket::Question;
use crate::cluster::store::{OwnerKind, ReadError, Store};
use crate::domain::admission::{Standpoint, Stranger};
use crate::domain::key::Key;
use crate::domain::policy::Policy;
use crate::domain::sighting::Activity;
use crate::domain::standpoint::{judge_owner, without_owner};
use serde_json::Value;

/// The listed pods that look active for the question's key. A pod whose identity cannot be read blocks nobody.
pub(super) async fn strangers<S: Store>(store: &S, question: &Question) -> Result<Vec<Stranger>, ReadError> {
    let policy = &question.policy;
    let keep = |pod: &Value| stranger(policy, &question.key, pod).is_some();
    let pods = store
        .pods(&question.key.namespace, &policy.label_selector(), &keep)
        .await?;
    Ok(pods
        .iter()
        .filter_map(|pod| stranger(policy, &question.key, pod))
        .collect())
}

fn stranger(policy: &Arc<Policy>, key: &Key, pod: &Value) -> Option<Stranger> {
    let text = |pointer| pod.pointer(pointer).and_then(Value::as_str);
    if !Activity::of_phase(text("/status/phase")).is_active() {
        return None;
    }
    let identity = policy.identity(pod);
    let others = identity
        .as_ref()
        .is_ok_and(|identity| Key::of(policy, &key.namespace, identity) != *key);
    // Most pods are of other keys: that is cheaper to see than whether they match.
    if others || !policy.matches(pod, None).unwrap_or(false) {
        return None;
    }
    let name = text("/metadata/name")?;
    match identity {
        Ok(identity) => Some(Stranger {
            name: name.to_owned(),
            uid: text("/metadata/uid").unwrap_or_default().to_owned(),
            generation: identity.generation,
        }),
        Err(error) => {
            tracing::warn!(namespace = key.namespace, pod = name, policy = policy.name, error = %error, "a matched pod has no readable identity");
            None
        }
    }
}

/// What the owner says, read now.
pub(super) async fn standpoint<S: Store>(store: &S, question: &Question) -> Result<Standpoint, ReadError> {
    let Some(owner) = &question.owner else {
        return Ok(without_owner(&question.policy, &question.pod));
    };
    let kind = OwnerKind {
        api_version: owner.api_version.clone(),
        kind: owner.kind.clone(),
    };
    let found = store.owner(&question.key.namespace, &kind, &owner.name).await?;
    Ok(judge_owner(&question.policy, &question.pod, owner, found.as_ref()))
}
