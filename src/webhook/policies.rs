//! Which policy a call is about: known ones from a watch, and read live where the call knows a version that we do not.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::{StreamExt, pin_mut};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, ResourceExt};
use tokio::sync::Semaphore;

use crate::api::DeployerPolicy;
use crate::api::policy::{FailurePolicy, Mode};
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
}

impl Target {
    /// Whether a version of the policy is at least as new as the one that the call is about.
    fn is_met_by(&self, known: &Known) -> bool {
        self.version
            .as_ref()
            .is_some_and(|(uid, generation)| *uid == known.uid && known.generation >= *generation)
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
        let api: Api<DeployerPolicy> = Api::all(client);
        let events = watcher(api, watcher::Config::default()).default_backoff();
        pin_mut!(events);
        let mut listed = HashMap::new();
        while let Some(event) = events.next().await {
            match event {
                Ok(Event::Init) => listed = HashMap::new(),
                Ok(Event::InitApply(policy)) => {
                    let name = policy.name_any();
                    listed.insert(name, self.compiled(policy).await);
                }
                Ok(Event::InitDone) => {
                    *self.lock() = std::mem::take(&mut listed);
                    complete.hold();
                }
                Ok(Event::Apply(policy)) => {
                    let name = policy.name_any();
                    let version = self.compiled(policy).await;
                    self.lock().insert(name, version);
                }
                Ok(Event::Delete(policy)) => {
                    self.lock().remove(&policy.name_any());
                }
                Err(error) => {
                    tracing::warn!(error = %error, "the policies cannot be watched; trying again. What a URL names newer than what is known is read live");
                }
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
            let stock_taken = known.policy.as_ref().is_ok_and(|policy| policy.stock_taken);
            policy.uid().as_ref() == Some(&known.uid)
                && policy.metadata.generation == Some(known.generation)
                && policy.is_stock_taken() == stock_taken
        })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<Known>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
