//! Policies that the schema cannot judge: an expression that does not compile is refused with its field and position.

use super::calls::{Call, Reply};
use super::review::{Request, write_status};
use crate::api::{DeployerPolicy, GROUP};
use crate::aside::AT_ONCE;
use crate::cluster::webhook_configuration::ANSWERS;
use crate::domain::expression::BUDGET;
use crate::domain::policy::Policy;
use kube::core::Status;
use kube::core::response::{StatusCause, StatusDetails, StatusSummary};
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

/// Answers reviews of `DeployerPolicy` objects, one at a time and on a thread of their own: to compile one and to try its expressions may
/// take seconds.
#[derive(Debug)]
pub(super) struct Validation(Semaphore);

impl Validation {
    pub(super) fn new() -> Self {
        Self(Semaphore::new(1))
    }

    /// Answers one, by the deadline.
    pub(super) async fn validate(&self, call: &Call, deadline: Instant) -> Reply {
        let body = call.body.clone();
        let answered = timeout_at(deadline, async {
            let _turn = self.0.acquire().await;
            tokio::task::spawn_blocking(move || validate(&body)).await
        });
        match answered.await {
            Ok(Ok(reply)) => reply,
            Ok(Err(_)) => Reply::text(
                500,
                "the policy could not be judged: the webhook failed; its log says why",
            ),
            Err(_) => Reply::text(
                503,
                "the policy could not be judged in time; make its expressions simpler, or try again",
            ),
        }
    }
}

fn validate(body: &[u8]) -> Reply {
    let request = match Request::read(body) {
        Ok(request) => request,
        Err(error) => return Reply::text(400, &error.to_string()),
    };
    if request.sub_resource.as_deref() == Some("status") {
        // Only a dry run gets here: the guard wants to know whether an API server calls us.
        return Reply::json(200, write_status(&request.uid, None, vec![answers(&request)]));
    }
    if !matches!(request.operation.as_str(), "CREATE" | "UPDATE") {
        return Reply::json(200, write_status(&request.uid, None, Vec::new()));
    }
    let object = match request.object() {
        Ok(object) => object.clone(),
        Err(error) => return Reply::text(400, &error.to_string()),
    };
    let name = object
        .pointer("/metadata/name")
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned();
    let judged = match serde_json::from_value::<DeployerPolicy>(object) {
        Ok(policy) => judge(&policy),
        Err(error) => Err(vec![cause("", error.to_string())]),
    };
    let mut causes = match judged {
        Ok(warnings) => return Reply::json(200, write_status(&request.uid, None, warnings)),
        Err(causes) => causes,
    };
    let message = causes
        .iter()
        .map(|cause| cause.message.as_str())
        .collect::<Vec<_>>()
        .join("; ");
    // A client puts the field before the text.
    for cause in &mut causes {
        if let Some(text) = cause.message.strip_prefix(&cause.field) {
            cause.message = text.trim_start_matches([':', ' ']).to_owned();
        }
    }
    let details = StatusDetails {
        name,
        group: GROUP.into(),
        kind: "DeployerPolicy".into(),
        uid: String::new(),
        causes,
        retry_after_seconds: 0,
    };
    let status = Status {
        status: Some(StatusSummary::Failure),
        code: 422,
        message,
        reason: "Invalid".into(),
        details: Some(details),
        ..Status::default()
    };
    Reply::json(200, write_status(&request.uid, Some(status), Vec::new()))
}

fn answers(request: &Request) -> String {
    let name = |object: &Value| Some(object.pointer("/metadata/name")?.as_str()?.to_owned());
    let name = request.object.as_ref().and_then(name).unwrap_or_default();
    format!("{ANSWERS} {name:?}")
}

/// What is to be warned of, or everything that is wrong.
fn judge(policy: &DeployerPolicy) -> Result<Vec<String>, Vec<StatusCause>> {
    let compiled = Policy::compile(policy).map_err(|errors| {
        let causes = errors.iter().map(|error| cause(&error.field, error.to_string()));
        causes.collect::<Vec<_>>()
    })?;
    let (mut warnings, mut causes) = (Vec::new(), Vec::new());
    for (field, cost) in compiled.costs() {
        if cost >= BUDGET {
            let message = format!(
                "{field}: on a pod of 300 KB the expression takes more than the {BUDGET} steps that it may; make it simpler: fewer macros within macros"
            );
            causes.push(cause(&field, message));
        } else if cost > AT_ONCE {
            warnings.push(format!(
                "{field}: on a pod of 300 KB the expression takes {cost} steps. More than {AT_ONCE} are evaluated aside, where large deployer pods of this policy wait for each other; make it simpler if yours are large"
            ));
        }
    }
    if causes.is_empty() { Ok(warnings) } else { Err(causes) }
}

fn cause(field: &str, message: String) -> StatusCause {
    StatusCause {
        reason: "FieldValueInvalid".into(),
        message,
        field: field.to_owned(),
    }
}
