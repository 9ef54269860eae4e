//! The wire format: an `AdmissionReview` (admission.k8s.io/v1) in, another one out.

use kube::core::Status;
use kube::core::admission::AdmissionResponse;
use kube::core::response::{StatusCause, StatusDetails, StatusSummary};
use serde::Deserialize;
use serde_json::Value;

use crate::domain::answer::{Answer, Denial};

/// The only version that the webhook configuration names.
const API_VERSION: &str = "admission.k8s.io/v1";

/// What is read of an `AdmissionReview`: objects stay as they came, because policies read any part of them.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Envelope {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    request: Option<Request>,
}

/// The request in an `AdmissionReview`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Request {
    /// Names this call; the answer repeats it.
    pub uid: String,
    /// CREATE, UPDATE, DELETE or CONNECT.
    pub operation: String,
    /// What is asked for, as the webhook registered for it.
    #[serde(default)]
    pub resource: Resource,
    /// As `status`; empty for the object itself.
    #[serde(default)]
    pub sub_resource: Option<String>,
    /// Empty for a cluster-scoped object.
    #[serde(default)]
    pub namespace: Option<String>,
    /// Who asks.
    #[serde(default)]
    pub user_info: User,
    /// The object after the operation.
    #[serde(default)]
    pub object: Option<Value>,
    /// The object before an update.
    #[serde(default)]
    pub old_object: Option<Value>,
    /// Nothing will be stored, so nothing may be written.
    #[serde(default)]
    pub dry_run: Option<bool>,
}

/// A resource of the API.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Resource {
    /// Empty for the core group.
    #[serde(default)]
    pub group: String,
    /// As `pods`.
    #[serde(default)]
    pub resource: String,
}

/// Who asks.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct User {
    /// As `system:serviceaccount:shop:deployer`.
    #[serde(default)]
    pub username: String,
}

/// A body that is no `AdmissionReview` with a request. The HTTP answer is 400, and the failure policy decides.
#[derive(Debug, thiserror::Error)]
pub enum ReviewError {
    /// Not JSON, or a field has another type.
    #[error("the body is no AdmissionReview: {0}; send the API server's AdmissionReview, as JSON in UTF-8")]
    Unreadable(#[from] serde_json::Error),
    /// Not UTF-8.
    #[error("the body is no AdmissionReview: {0}; send the API server's AdmissionReview, as JSON in UTF-8")]
    NotText(#[from] std::str::Utf8Error),
    /// Another kind or version.
    #[error("the body is a {kind:?} of {api_version:?}; send an AdmissionReview of {API_VERSION}")]
    Kind {
        /// `apiVersion` in the body.
        api_version: String,
        /// `kind` in the body.
        kind: String,
    },
    /// No request in it.
    #[error("the AdmissionReview has no request; send one, as the API server does")]
    NoRequest,
    /// A request without uid cannot be answered.
    #[error("request.uid is empty; set it, or the answer could not be told from others")]
    NoUid,
    /// An operation whose object is needed came without it.
    #[error("request.object is missing; a {0} needs it")]
    NoObject(String),
    /// What every stored pod has is missing.
    #[error("{0} is missing or empty; the API server sets it")]
    NoField(&'static str),
}

impl Request {
    /// Reads the body of a call.
    ///
    /// # Errors
    /// With what is wrong, and where in the text.
    pub fn read(body: &[u8]) -> Result<Self, ReviewError> {
        // All of it, also where it is passed over.
        let text = std::str::from_utf8(body)?;
        let Envelope {
            api_version,
            kind,
            request,
        } = serde_json::from_str(text)?;
        if api_version != API_VERSION || kind != "AdmissionReview" {
            return Err(ReviewError::Kind { api_version, kind });
        }
        let request = request.ok_or(ReviewError::NoRequest)?;
        if request.uid.is_empty() {
            return Err(ReviewError::NoUid);
        }
        Ok(request)
    }

    /// The object after the operation.
    ///
    /// # Errors
    /// If it is missing or null.
    pub fn object(&self) -> Result<&Value, ReviewError> {
        let object = self.object.as_ref().filter(|object| object.is_object());
        object.ok_or_else(|| ReviewError::NoObject(self.operation.clone()))
    }

    /// The body of the answer.
    #[must_use]
    pub fn reply(&self, answer: &Answer) -> Vec<u8> {
        write(&self.uid, answer)
    }
}

/// The body of an answer to the request with this uid. Code, reason and message are always set, and a retry is never
/// asked for: clients would retry inside one call, silently.
#[must_use]
pub fn write(uid: &str, answer: &Answer) -> Vec<u8> {
    let mut response = response(uid, answer.denial.as_ref().map(status));
    response.audit_annotations = answer
        .audit
        .iter()
        .map(|(key, value)| ((*key).to_owned(), value.clone()))
        .collect();
    response.warnings = (!answer.warnings.is_empty()).then(|| answer.warnings.clone());
    encode(response)
}

/// As [`write`], with this status, or allowed; with these warnings.
pub(super) fn write_status(uid: &str, refused: Option<Status>, warnings: Vec<String>) -> Vec<u8> {
    let mut response = response(uid, refused);
    response.warnings = (!warnings.is_empty()).then_some(warnings);
    encode(response)
}

fn response(uid: &str, refused: Option<Status>) -> AdmissionResponse {
    let mut response = AdmissionResponse::invalid("");
    uid.clone_into(&mut response.uid);
    response.allowed = refused.is_none();
    response.result = refused.unwrap_or_else(|| Status::success().with_code(200));
    response
}

fn encode(response: AdmissionResponse) -> Vec<u8> {
    // These types hold nothing that JSON cannot express.
    serde_json::to_vec(&response.into_review()).unwrap_or_default()
}

fn status(denial: &Denial) -> Status {
    let cause = StatusCause {
        reason: denial.cause.to_owned(),
        message: denial.message.clone(),
        field: denial.field.clone(),
    };
    Status {
        status: Some(StatusSummary::Failure),
        code: denial.code,
        message: denial.message.clone(),
        reason: denial.reason.to_owned(),
        details: Some(StatusDetails {
            name: String::new(),
            group: String::new(),
            kind: String::new(),
            uid: String::new(),
            causes: vec![cause],
            retry_after_seconds: 0,
        }),
        ..Status::default()
    }
}
