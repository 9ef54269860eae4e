//! Which policy a call is about: known ones from a watch, and read live where the call knows a version that we do not.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::{StreamExt, pin_mut};
use kube::core::{ApiResource, DynamicObject};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, ResourceExt};
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::Semaphore;

use crate::api::DeployerPolicy;
use crate::api::policy::{FailurePolicy, Mode};
use crate::cluster::complaint::Complaint;
use crate::cluster::store::{ReadError, Store};
use crate::domain::policy::Policy;
use crate::telemetry::health::Condition;

/// One version of a policy.
#[derive(Clone, Debug)]
pub struct Known {
    /// `metadata.name`.
    pub name: String,
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.generation`.
    pub generation: i64,
    /// What is done with a verdict.
    pub mode: Mode,
    /// What happens when no decision can be reached.
    pub failure_policy: FailurePolicy,
    /// The compiled policy, or everything that is wrong with it.
    pub policy: Result<Arc<Policy>, String>,
}

impl Known {
    /// Compiles a policy as it is stored.
    #[must_use]
    pub fn new(policy: &DeployerPolicy) -> Self {
        let compiled = Policy::compile(policy)
            .map(Arc::new)
            .map_err(|errors| errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "));
        if let Err(error) = &compiled {
            tracing::error!(policy = policy.name_any(), error, "a policy cannot be used");
        }
        Self {
            name: policy.name_any(),
            uid: policy.uid().unwrap_or_default(),
            generation: policy.metadata.generation.unwrap_or_default(),
            mode: policy.spec.mode,
            failure_policy: policy.spec.effective_failure_policy(),
            policy: compiled,
        }
    }
}

impl Known {
    /// A policy that is there and cannot be read. What it says of the case that nothing can be decided is taken from it where that can be
    /// read, and else as strictly as can be.
    fn unreadable(policy: &Value, why: &serde_json::Error) -> Self {
        fn of<T: for<'de> Deserialize<'de>>(policy: &Value, pointer: &str) -> Option<T> {
            T::deserialize(policy.pointer(pointer)?).ok()
        }
        let mode = of(policy, "/spec/mode").unwrap_or(Mode::Enforce);
        let failure_policy: FailurePolicy = of(policy, "/spec/failurePolicy").unwrap_or(FailurePolicy::Fail);
        Self {
            name: of(policy, "/metadata/name").unwrap_or_default(),
            uid: of(policy, "/metadata/uid").unwrap_or_default(),
            generation: of(policy, "/metadata/generation").unwrap_or_default(),
            mode,
            failure_policy: failure_policy.under(mode),
            policy: Err(format!("it cannot be read: {why}")),
        }
    }

    /// A policy that could not be read, ever: the strictest one.
    pub(super) fn unread(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            uid: String::new(),
            generation: 0,
            mode: Mode::Enforce,
            failure_policy: FailurePolicy::Fail,
            policy: Err("it could not be read".into()),
        }
    }
}

/// The policy that a call is about, as its URL names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The policy's name.
    pub name: String,
    /// The uid and generation that the webhook configuration was made from, if it says so.
    pub version: Option<(String, i64)>,
    /// Stock was taken under that version, and its entry has been in force without a break since before that.
    pub stocked: bool,
}

impl Target {
    /// Whether a version of the policy is at least as new as the one that the call is about.
    fn is_met_by(&self, known: &Known) -> bool {
        self.version
            .as_ref()
            .is_some_and(|(uid, generation)| *uid == known.uid && known.generation >= *generation)
    }

    /// Whether stock was taken under this very version of the policy: the URL, which is a part of what is in force, says so. No
    /// other word is taken for it, that of the policy's status least of all.
    #[must_use]
    pub fn is_stocked(&self, known: &Known) -> bool {
        self.stocked && self.version.as_ref() == Some(&(known.uid.clone(), known.generation))
    }
}

/// The policies of the cluster.
pub struct Policies<S> {
    store: Arc<S>,
    known: Mutex<HashMap<String, Arc<Known>>>,
    /// Held while a policy is compiled, which may take some tenths of a second: on a thread of its own.
    compiling: Semaphore,
}

impl<S: Store> Policies<S> {
    /// Nothing is known until [`Self::watch`] runs or something is [learnt](Self::learn); until then everything is read live.
    #[must_use]
    pub fn new(store: Arc<S>) -> Self {
        Self {
            store,
            known: Mutex::default(),
            compiling: Semaphore::new(1),
        }
    }

    /// Keeps the known policies up to date, for ever. `complete` holds from the first full list on.
    pub async fn watch(self: Arc<Self>, client: Client, complete: Condition) {
        let api: Api<DynamicObject> = Api::all_with(client, &ApiResource::erase::<DeployerPolicy>(&()));
        let events = watcher(api, watcher::Config::default()).default_backoff();
        pin_mut!(events);
        let mut complaint = Complaint::new("policies");
        let mut listed = HashMap::new();
        while let Some(event) = events.next().await {
            if let Ok(event) = &event {
                complaint.hears("", event);
            }
            match event {
                Ok(Event::Init) => listed = HashMap::new(),
                Ok(Event::InitApply(policy)) => {
                    let name = policy.name_any();
                    listed.insert(name, self.heard(policy).await);
                }
                Ok(Event::InitDone) => {
                    *self.lock() = std::mem::take(&mut listed);
                    complete.hold();
                }
                Ok(Event::Apply(policy)) => {
                    let name = policy.name_any();
                    let known = self.heard(policy).await;
                    self.lock().insert(name, known);
                }
                Ok(Event::Delete(policy)) => {
                    self.lock().remove(&policy.name_any());
                }
                Err(why) => complaint.fails("", &why.into()),
            }
        }
    }

    /// The version of a policy that a watch showed. One that cannot be read, as one that was written for a newer version, harms no other:
    /// the last version that could be stays, as its entry does. Where there is none nothing is decided under it.
    async fn heard(&self, found: DynamicObject) -> Arc<Known> {
        let name = found.name_any();
        let Ok(policy) = serde_json::to_value(found) else {
            return Arc::new(Known::unread(&name));
        };
        match DeployerPolicy::deserialize(&policy) {
            Ok(policy) => self.compiled(policy).await,
            Err(why) => {
                tracing::error!(policy = name, %why, "a policy cannot be read");
                let last = self.last_known(&name).filter(|known| known.policy.is_ok());
                last.unwrap_or_else(|| Arc::new(Known::unreadable(&policy, &why)))
            }
        }
    }

    /// Takes in a version of a policy as it is stored: from now on it is the known one.
    pub fn learn(&self, policy: &DeployerPolicy) {
        let version = self.version_of(policy);
        self.lock().insert(policy.name_any(), version);
    }

    /// Finds the policy that a call is about, in the version that the call knows or a newer one. `None`: there is no such
    /// policy in the store.
    ///
    /// # Errors
    /// If it has to be read live and that fails.
    pub async fn find(&self, target: &Target) -> Result<Option<Arc<Known>>, ReadError> {
        if let Some(known) = self.last_known(&target.name).filter(|known| target.is_met_by(known)) {
            return Ok(Some(known));
        }
        let found = self.store.policy(&target.name).await?;
        match found {
            Some(policy) => Ok(Some(self.compiled(policy).await)),
            None => Ok(None),
        }
    }

    /// The last version of a policy that was seen, however old.
    #[must_use]
    pub fn last_known(&self, name: &str) -> Option<Arc<Known>> {
        self.lock().get(name).cloned()
    }

    /// All policies but one, as they were last seen.
    #[must_use]
    pub fn others(&self, name: &str) -> Vec<Arc<Known>> {
        self.lock()
            .values()
            .filter(|known| known.name != name)
            .cloned()
            .collect()
    }

    /// The same as [`Self::version_of`], on a thread where nobody else waits.
    async fn compiled(&self, policy: DeployerPolicy) -> Arc<Known> {
        if let Some(known) = self.known_version(&policy) {
            return known;
        }
        let _turn = self.compiling.acquire().await;
        let name = policy.name_any();
        let compiled = tokio::task::spawn_blocking(move || Known::new(&policy)).await;
        Arc::new(compiled.unwrap_or_else(|_| Known::unread(&name)))
    }

    /// The compiled version, made anew only if it is not the one that is known.
    fn version_of(&self, policy: &DeployerPolicy) -> Arc<Known> {
        self.known_version(policy)
            .unwrap_or_else(|| Arc::new(Known::new(policy)))
    }

    fn known_version(&self, policy: &DeployerPolicy) -> Option<Arc<Known>> {
        let known = self.last_known(&policy.name_any());
        known.filter(|known| {
            policy.uid().as_ref() == Some(&known.uid) && policy.metadata.generation == Some(known.generation)
        })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<Known>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn stock_was_taken_under_the_very_version_that_the_url_names_and_no_other() {
        let policy = json!({
            "apiVersion": "deployer-guard.io/v1alpha1",
            "kind": "DeployerPolicy",
            "metadata": {"name": "app", "uid": "u", "generation": 4},
            "spec": {"match": {"objectSelector": {"matchLabels": {"role": "x"}}}, "config": {"label": "app"}},
            "status": {"stockTaking": {"generation": 4, "completedAt": "2026-01-01T00:00:00Z"}},
        });
        let known = Known::new(&serde_json::from_value(policy).unwrap());
        for (version, stocked, taken) in [
            (Some(("u", 4)), true, true),
            (Some(("u", 4)), false, false),
            (Some(("u", 3)), true, false),
            (Some(("u", 5)), true, false),
            (Some(("other", 4)), true, false),
            (None, true, false),
            (None, false, false),
        ] {
            let target = Target {
                name: "app".into(),
                version: version.map(|(uid, generation)| (uid.to_owned(), generation)),
                stocked,
            };
            assert_eq!(target.is_stocked(&known), taken, "{target:?}");
        }
    }
}
