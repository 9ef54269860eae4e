//! Live reads for one request, turned into what the decision takes.

use std::sync::atomic::{AtomicU64, Ordering};

use super::ticket::Question;
use crate::aside::{AT_ONCE, Aside};
use crate::cluster::store::{OwnerKind, ReadError, Store};
use crate::domain::admission::{Standpoint, Stranger};
use crate::domain::expression::within;
use crate::domain::key::Key;
use crate::domain::policy::Policy;
use crate::domain::sighting::Activity;
use crate::domain::standpoint::{judge_owner, without_owner};
use serde_json::Value;

/// Why what a decision needs is not known.
pub(super) enum Unread {
    /// A read failed.
    Failed(ReadError),
    /// The policy's expressions were not evaluated in time.
    TooCostly,
}

impl From<ReadError> for Unread {
    fn from(error: ReadError) -> Self {
        Self::Failed(error)
    }
}

/// What a policy's expressions may cost over a whole list, before the rest of it is looked at aside: a tenth of a second.
const LIST_AT_ONCE: u64 = 20 * AT_ONCE;

/// The listed pods that look active for the question's key. A pod whose identity cannot be read blocks nobody.
pub(super) async fn strangers<S: Store>(
    store: &S,
    aside: &Aside,
    question: &Question,
) -> Result<Vec<Stranger>, Unread> {
    let policy = &question.policy;
    let left = AtomicU64::new(LIST_AT_ONCE);
    // What it would cost too much to look at here is held, and looked at aside.
    let keep = |pod: &Value| {
        let allowance = AT_ONCE.min(left.load(Ordering::Relaxed));
        let looked = within(allowance, || stranger(policy, &question.key, pod).is_some());
        left.fetch_sub(looked.cost, Ordering::Relaxed);
        looked.value.unwrap_or(true)
    };
    let pods = store
        .pods(&question.key.namespace, &policy.label_selector(), &keep)
        .await?;
    let key = question.key.clone();
    let strangers = aside
        .ask_of_each(policy, pods, question.deadline, move |policy, pod| {
            stranger(policy, &key, pod)
        })
        .await;
    let strangers = strangers.map_err(|_| Unread::TooCostly)?;
    Ok(strangers.into_iter().flatten().collect())
}

fn stranger(policy: &Policy, key: &Key, pod: &Value) -> Option<Stranger> {
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
pub(super) async fn standpoint<S: Store>(store: &S, aside: &Aside, question: &Question) -> Result<Standpoint, Unread> {
    let (policy, pod) = (&question.policy, &*question.pod);
    let said = if let Some(reference) = question.owner.clone() {
        let kind = OwnerKind {
            api_version: reference.api_version.clone(),
            kind: reference.kind.clone(),
        };
        let found = store.owner(&question.key.namespace, &kind, &reference.name).await?;
        let judged = aside.ask(policy, (pod, None), question.deadline, move |policy, pod, _| {
            judge_owner(policy, pod, &reference, found.as_ref())
        });
        judged.await
    } else {
        let judged = aside.ask(policy, (pod, None), question.deadline, |policy, pod, _| {
            without_owner(policy, pod)
        });
        judged.await
    };
    said.map_err(|_| Unread::TooCostly)
}
