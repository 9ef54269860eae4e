//! Policies that the schema cannot judge: an expression that does not compile is refused with its field and position.

use super::calls::Reply;
use super::review::{Request, write_status};
use crate::api::DeployerPolicy;
use crate::domain::policy::Policy;
use kube::core::Status;
use kube::core::response::{StatusCause, StatusDetails, StatusSummary};

/// Answers the review of a `DeployerPolicy`.
pub(super) fn validate(body: &[u8]) -> Reply {
    let request = match Request::read(body) {
        Ok(request) => request,
        Err(error) => return Reply::text(400, &error.to_string()),
    };
    if !matches!(request.operation.as_str(), "CREATE" | "UPDATE") {
        return Reply::json(200, write_status(&request.uid, None));
    }
    let object = match request.object() {
        Ok(object) => object.clone(),
        Err(error) => return Reply::text(400, &error.to_string()),
    };
    let causes = match serde_json::from_value::<DeployerPolicy>(object) {
        Ok(policy) => errors_of(&policy),
        Err(error) => vec![cause("", error.to_string())],
    };
    if causes.is_empty() {
        return Reply::json(200, write_status(&request.uid, None));
    }
    let message = causes
        .iter()
        .map(|cause| cause.message.as_str())
        .collect::<Vec<_>>()
        .join("; ");
    let details = StatusDetails {
        name: String::new(),
        group: String::new(),
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
    Reply::json(200, write_status(&request.uid, Some(status)))
}

fn errors_of(policy: &DeployerPolicy) -> Vec<StatusCause> {
    let errors = Policy::compile(policy).err().unwrap_or_default();
    errors
        .iter()
        .map(|error| cause(&error.field, error.to_string()))
        .collect()
}

fn cause(field: &str, message: String) -> StatusCause {
    StatusCause {
        reason: "FieldValueInvalid".into(),
        message,
        field: field.to_owned(),
    }
}
