//! A call, from its path and body to its answer.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::Instant;

use super::calls::{Call, Handler, Reply, Undecided as Unserved};
use super::judge::{Judge, Judgement, Terms};
use super::policies::{Known, Policies, Target};
use super::records::{Decision, Records};
use super::review::Request;
use super::timeout::DEFAULT_TIMEOUT;
use super::validation::Validation;
use crate::cluster::store::{ReadError, Store};
use crate::cluster::webhook_configuration::STOCKED;
use crate::domain::answer::Answer;
use crate::domain::refusal::Undecided;

/// Least part of the timeout that is kept for the way back.
const LEAST_MARGIN: Duration = Duration::from_millis(100);

/// Where a call goes, by its path.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Route {
    /// `/admit/<policy>[/<uid>/<generation>[/stocked]]`
    Admit(Target),
    /// `/validate/deployerpolicies`
    ValidatePolicy,
    Unknown,
}

impl Route {
    fn of(path: &str) -> Self {
        let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
        match parts.as_slice() {
            ["admit", name] if !name.is_empty() => Self::Admit(Target {
                name: (*name).to_owned(),
                version: None,
                stocked: false,
            }),
            ["admit", name, uid, generation] => Self::version(name, uid, generation, false),
            ["admit", name, uid, generation, STOCKED] => Self::version(name, uid, generation, true),
            ["validate", "deployerpolicies"] => Self::ValidatePolicy,
            _ => Self::Unknown,
        }
    }

    fn version(name: &str, uid: &str, generation: &str, stocked: bool) -> Self {
        generation.parse().map_or(Self::Unknown, |generation| {
            Self::Admit(Target {
                name: name.to_owned(),
                version: Some((uid.to_owned(), generation)),
                stocked,
            })
        })
    }
}

/// Answers admission calls.
pub struct Admission<S> {
    policies: Arc<Policies<S>>,
    judge: Judge<S>,
    records: Records,
    validation: Validation,
}

impl<S: Store> Admission<S> {
    /// A handler over these parts.
    #[must_use]
    pub fn new(policies: Arc<Policies<S>>, judge: Judge<S>, records: Records) -> Self {
        Self {
            policies,
            judge,
            records,
            validation: Validation::new(),
        }
    }

    async fn admit(&self, call: &Call, target: &Target) -> Reply {
        let request = match Request::read(&call.body) {
            Ok(request) => request,
            Err(error) => return Reply::text(400, &error.to_string()),
        };
        let deadline = deadline(call);
        let found = match tokio::time::timeout_at(deadline, self.policies.find(target)).await {
            Ok(Ok(found)) => found,
            Ok(Err(error)) => return self.unreached(call, target, &request, error.into()),
            Err(_) => {
                let error = ReadError::timed_out(format!("DeployerPolicy {:?}", target.name));
                return self.unreached(call, target, &request, error.into());
            }
        };
        let Some(known) = found else {
            let text = format!(
                "DeployerPolicy {:?} does not exist, so it was not asked: remove its entry from the webhook configuration",
                target.name
            );
            tracing::warn!(
                request = request.uid,
                policy = target.name,
                "a call about a policy that does not exist was allowed"
            );
            return Reply::json(
                200,
                request.reply(&Answer {
                    warnings: vec![text],
                    ..Answer::default()
                }),
            );
        };
        let terms = Terms {
            deadline,
            stock_taken: target.is_stocked(&known),
        };
        let judged = match self.judge.judge(&self.policies, &known, &request, terms).await {
            Ok(judged) => judged,
            Err(error) => return Reply::text(400, &error.to_string()),
        };
        if judged
            .as_ref()
            .is_some_and(|judgement| judgement.ruling == Undecided::Panicked.into())
        {
            self.records.panicked();
        }
        let answer = judged.map(|judgement| self.answered(call, &known, &request, &judgement));
        // Where there was nothing to decide there is nothing to record.
        Reply::json(200, request.reply(&answer.unwrap_or_default()))
    }

    /// Answers and records what was decided.
    fn answered(&self, call: &Call, known: &Known, request: &Request, judgement: &Judgement) -> Answer {
        let Judgement {
            pod,
            ruling,
            key,
            generation,
            ordinal,
            owner,
            claim,
            operation,
        } = judgement;
        let answer = judgement.answer(known);
        self.records.keep(&Decision {
            request: &request.uid,
            received: call.received,
            policy: (&known.name, known.generation),
            policy_uid: &known.uid,
            mode: known.mode,
            operation,
            dry_run: request.dry_run.unwrap_or_default(),
            user: &request.user_info.username,
            pod: (&pod.namespace, &pod.name, &pod.uid),
            key: key.as_ref(),
            generation: generation.as_deref(),
            ordinal: *ordinal,
            owner: owner.as_ref(),
            wakes: known.policy.as_ref().is_ok_and(|policy| policy.wakes_owners()),
            claim: claim.as_ref(),
            ruling,
            answer: &answer,
        });
        answer
    }

    /// No decision was reached before the policy or the pod were looked at: the policy's last known failure policy decides, and
    /// refuses if none is known.
    fn unreached(&self, call: &Call, target: &Target, request: &Request, why: Undecided) -> Reply {
        let known = self.policies.last_known(&target.name);
        let known = known.unwrap_or_else(|| Arc::new(Known::unread(&target.name)));
        Reply::json(
            200,
            request.reply(&self.answered(call, &known, request, &Judgement::unreached(request, why))),
        )
    }
}

#[async_trait]
impl<S: Store> Handler for Admission<S> {
    async fn handle(&self, call: Call) -> Reply {
        match Route::of(&call.path) {
            Route::Admit(target) => self.admit(&call, &target).await,
            Route::ValidatePolicy => self.validation.validate(&call, deadline(&call)).await,
            Route::Unknown => Reply::text(
                404,
                "no such path; calls go to /admit/<policy>/<uid>/<generation>[/stocked], /admit/<policy> or /validate/deployerpolicies",
            ),
        }
    }

    fn undecided(&self, call: &Call, why: Unserved) -> Reply {
        let why = match why {
            Unserved::Overloaded { .. } => Undecided::Overloaded,
            Unserved::Panicked => Undecided::Panicked,
        };
        match (Route::of(&call.path), Request::read(&call.body)) {
            (Route::Admit(target), Ok(request)) => self.unreached(call, &target, &request, why),
            (_, Ok(_)) => Reply::text(503, &why.to_string()),
            (_, Err(error)) => Reply::text(400, &error.to_string()),
        }
    }
}

/// Past this nothing is written for the call: what the API server waits, less a margin for the way back.
fn deadline(call: &Call) -> Instant {
    let timeout = call.timeout.unwrap_or(DEFAULT_TIMEOUT);
    let margin = (timeout / 10).max(LEAST_MARGIN).min(timeout / 2);
    Instant::from_std(call.received + timeout.saturating_sub(margin))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_policy_comes_from_the_path() {
        let versioned = Target {
            name: "openshift".into(),
            version: Some(("u-1".into(), 4)),
            stocked: false,
        };
        let stocked = Target {
            stocked: true,
            ..versioned.clone()
        };
        for (path, route) in [
            ("/admit/openshift/u-1/4", Route::Admit(versioned)),
            ("/admit/openshift/u-1/4/stocked", Route::Admit(stocked)),
            ("/admit/openshift/u-1/4/other", Route::Unknown),
            ("/admit/openshift/u-1/four/stocked", Route::Unknown),
            ("/admit/openshift/u-1/4/stocked/stocked", Route::Unknown),
            (
                "/admit/openshift",
                Route::Admit(Target {
                    name: "openshift".into(),
                    version: None,
                    stocked: false,
                }),
            ),
            ("/validate/deployerpolicies", Route::ValidatePolicy),
            ("/admit/openshift/u-1/four", Route::Unknown),
            ("/admit/", Route::Unknown),
            ("/admit/a/b", Route::Unknown),
            ("/", Route::Unknown),
        ] {
            assert_eq!(Route::of(path), route, "{path}");
        }
    }

    #[test]
    fn the_deadline_keeps_a_tenth_for_the_way_back_and_is_never_past() {
        for (timeout, kept) in [
            (Some(5000), 500),
            (Some(1000), 100),
            (Some(100), 50),
            (Some(30_000), 3000),
            (None, 1000),
        ] {
            let received = std::time::Instant::now();
            let call = Call {
                path: String::new(),
                timeout: timeout.map(Duration::from_millis),
                body: actix_web::web::Bytes::new(),
                received,
            };
            let full = timeout.map_or(DEFAULT_TIMEOUT, Duration::from_millis);
            assert_eq!(
                deadline(&call).into_std(),
                received + full.saturating_sub(Duration::from_millis(kept)),
                "{timeout:?}"
            );
        }
    }
}
