//! Where a policy's expressions are evaluated: cheap ones at once, costly ones aside, where no other policy waits for them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use serde_json::Value;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

use crate::domain::expression::{BUDGET, within};
use crate::domain::policy::Policy;
use crate::domain::refusal::Undecided;

/// What a policy's expressions may cost on the threads that all requests share: some milliseconds. The policy for `OpenShift` costs a
/// hundredth of it.
pub(crate) const AT_ONCE: u64 = 200_000;

/// What they may cost aside, on one pod.
const ASIDE: u64 = 4 * BUDGET;

/// The threads for costly expressions: half of the machine's, and one for each policy.
#[derive(Debug)]
pub(crate) struct Aside {
    places: Arc<Semaphore>,
    turns: Mutex<HashMap<String, Weak<Semaphore>>>,
}

impl Aside {
    pub(crate) fn new() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            places: Arc::new(Semaphore::new((threads / 2).max(1))),
            turns: Mutex::default(),
        }
    }

    /// What the policy says of a pod, and of the pod before, if it is an update. Without cost to speak of where its expressions are
    /// cheap.
    ///
    /// # Errors
    /// [`Undecided::TooCostly`], by the deadline.
    pub(crate) async fn ask<T: Send + 'static>(
        &self,
        policy: &Arc<Policy>,
        (pod, old): (&Value, Option<&Value>),
        deadline: Instant,
        question: impl Fn(&Policy, &Value, Option<&Value>) -> T + Send + 'static,
    ) -> Result<T, Undecided> {
        if let Some(said) = within(AT_ONCE, || question(policy, pod, old)).value {
            return Ok(said);
        }
        let (policy, pod, old) = (Arc::clone(policy), pod.clone(), old.cloned());
        let name = policy.name.clone();
        let said = self.run(&name, deadline, move || {
            within(ASIDE, || question(&policy, &pod, old.as_ref())).value
        });
        said.await?.ok_or(Undecided::TooCostly)
    }

    /// What the policy says of each of these pods. It stops at the deadline, also in the middle.
    ///
    /// # Errors
    /// [`Undecided::TooCostly`], by the deadline.
    pub(crate) async fn ask_of_each<T: Send + 'static>(
        &self,
        policy: &Arc<Policy>,
        pods: Vec<Value>,
        deadline: Instant,
        question: impl Fn(&Policy, &Value) -> T + Send + 'static,
    ) -> Result<Vec<T>, Undecided> {
        let all = |allowance: u64, pods: &[Value]| {
            within(allowance, || pods.iter().map(|pod| question(policy, pod)).collect())
        };
        if let Some(said) = all(AT_ONCE, &pods).value {
            return Ok(said);
        }
        let (name, policy) = (policy.name.clone(), Arc::clone(policy));
        let said = self.run(&name, deadline, move || {
            let said = pods.iter().map(|pod| {
                let late = Instant::now() >= deadline;
                (!late).then(|| within(ASIDE, || question(&policy, pod)).value)?
            });
            said.collect::<Option<Vec<_>>>()
        });
        said.await?.ok_or(Undecided::TooCostly)
    }

    /// Runs a job when it is the policy's turn and there is a place. A job that was begun is finished, whoever stops waiting.
    async fn run<T: Send + 'static>(
        &self,
        policy: &str,
        deadline: Instant,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Undecided> {
        // The policy's turn first: at the places each policy stands once, and none in front of another by its number of requests.
        let turn = self.turn(policy);
        let places = Arc::clone(&self.places);
        let done = async move {
            let turn = turn.acquire_owned().await.ok()?;
            let place = places.acquire_owned().await.ok()?;
            let held = (turn, place);
            let job = tokio::task::spawn_blocking(move || {
                let _held = held;
                job()
            });
            job.await.ok()
        };
        timeout_at(deadline, done)
            .await
            .ok()
            .flatten()
            .ok_or(Undecided::TooCostly)
    }

    fn turn(&self, policy: &str) -> Arc<Semaphore> {
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(turn) = turns.get(policy).and_then(Weak::upgrade) {
            return turn;
        }
        turns.retain(|_, turn| turn.strong_count() > 0);
        let turn = Arc::new(Semaphore::new(1));
        turns.insert(policy.to_owned(), Arc::downgrade(&turn));
        turn
    }
}
