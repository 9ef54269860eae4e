//! The one `ValidatingWebhookConfiguration` that is ours to fill, and never to make.

use std::future::ready;
use std::time::Duration;

use futures::{Stream, StreamExt};
use k8s_openapi::api::admissionregistration::v1::{ValidatingWebhook, ValidatingWebhookConfiguration};
use kube::api::{Patch, PatchParams, WatchEvent, WatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::request::within;
use super::store::Failure;

/// The field manager of our entries.
pub const FIELD_MANAGER: &str = "deployer-guard";
/// What the API server says of an object that is too large.
const TOO_LARGE: [&str; 2] = ["too large", "larger than max"];
/// How long a watch lasts, in seconds, before it is begun anew.
const WATCH: u32 = 240;
/// How long a watch that should have ended by itself is still listened to.
const DEAD: Duration = Duration::from_secs(WATCH as u64 + 10);

/// Why a configuration was not written. Nothing was changed, except where it is unknown.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigurationError {
    /// It is another version by now, or another object, or gone.
    #[error("the configuration changed since it was read")]
    Conflict,
    /// Its content is refused; the API server says why.
    #[error("{0}")]
    Refused(String),
    /// It is too large to be stored.
    #[error("{0}")]
    TooLarge(String),
    /// Anything else: another try may succeed.
    #[error("{0}")]
    Failed(Failure),
}

/// The configuration of one name.
#[derive(Clone)]
pub struct Configurations {
    api: Api<ValidatingWebhookConfiguration>,
    name: String,
}

impl Configurations {
    /// The configuration of this name.
    #[must_use]
    pub fn new(client: Client, name: &str) -> Self {
        Self {
            api: Api::all(client),
            name: name.to_owned(),
        }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Reads it live. `None`: it does not exist.
    ///
    /// # Errors
    /// If it cannot be read.
    pub async fn read(&self) -> Result<Option<ValidatingWebhookConfiguration>, Failure> {
        // A GET without resourceVersion goes to etcd.
        within(self.api.get_opt(&self.name)).await
    }

    /// Makes these the entries that are ours, by server-side apply, if it is still the object and version that was read:
    /// so one that was deleted meanwhile is not made anew. Entries of others stay.
    ///
    /// # Errors
    /// If nothing was written, or that is not known.
    pub async fn apply(
        &self,
        read: &ValidatingWebhookConfiguration,
        entries: &[ValidatingWebhook],
        dry_run: bool,
    ) -> Result<ValidatingWebhookConfiguration, ConfigurationError> {
        let mut params = PatchParams::apply(FIELD_MANAGER).force();
        params.dry_run = dry_run;
        let patch = self.with_precondition(read, entries)?;
        let patched = within(self.api.patch(&self.name, &params, &Patch::Apply(&patch))).await;
        patched.map_err(ConfigurationError::from)
    }

    /// Makes these all entries, on the same condition: what server-side apply leaves, because another manager owns it, goes.
    ///
    /// # Errors
    /// If nothing was written, or that is not known.
    pub async fn replace_all(
        &self,
        read: &ValidatingWebhookConfiguration,
        entries: &[ValidatingWebhook],
        dry_run: bool,
    ) -> Result<ValidatingWebhookConfiguration, ConfigurationError> {
        let params = PatchParams {
            dry_run,
            field_manager: Some(FIELD_MANAGER.into()),
            ..PatchParams::default()
        };
        let patch = self.with_precondition(read, entries)?;
        let patched = within(self.api.patch(&self.name, &params, &Patch::Merge(&patch))).await;
        patched.map_err(ConfigurationError::from)
    }

    fn with_precondition(
        &self,
        read: &ValidatingWebhookConfiguration,
        entries: &[ValidatingWebhook],
    ) -> Result<Value, ConfigurationError> {
        let (Some(uid), Some(version)) = (&read.metadata.uid, &read.metadata.resource_version) else {
            // Without them it would be no condition.
            return Err(ConfigurationError::Conflict);
        };
        Ok(json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingWebhookConfiguration",
            "metadata": { "name": self.name, "uid": uid, "resourceVersion": version },
            "webhooks": entries,
        }))
    }

    /// What the configuration becomes from this version on (or from what the API server has in its memory), `None` at its
    /// deletion; only needs `watch` on this name. Ends after a few minutes, and at any error: begin anew with what a read finds.
    ///
    /// # Errors
    /// If the watch cannot be begun.
    pub async fn watch(
        &self,
        version: Option<&str>,
    ) -> Result<impl Stream<Item = Option<ValidatingWebhookConfiguration>> + Send + use<>, Failure> {
        let params = WatchParams::default()
            .fields(&format!("metadata.name={}", self.name))
            .timeout(WATCH);
        let stream = self
            .api
            .watch(&params, version.unwrap_or("0"))
            .await
            .map_err(Failure::from)?;
        // An error, an expired version among them, ends it.
        Ok(stream
            .take_until(sleep(DEAD))
            .take_while(|event| ready(matches!(event, Ok(event) if !matches!(event, WatchEvent::Error(_)))))
            .filter_map(|event| {
                ready(match event {
                    Ok(WatchEvent::Added(object) | WatchEvent::Modified(object)) => Some(Some(object)),
                    Ok(WatchEvent::Deleted(_)) => Some(None),
                    _ => None,
                })
            }))
    }
}

impl From<Failure> for ConfigurationError {
    fn from(failure: Failure) -> Self {
        match failure {
            // etcd refuses above 1.5 MiB, and the API server's own connection to it above 2 MiB, in words of its own.
            Failure::Answered { message, .. } if TOO_LARGE.iter().any(|words| message.contains(words)) => {
                Self::TooLarge(message)
            }
            Failure::Answered { code: 413, message, .. } => Self::TooLarge(message),
            Failure::Answered { code: 404 | 409, .. } => Self::Conflict,
            Failure::Answered {
                code: 400 | 422,
                message,
                ..
            } => Self::Refused(message),
            failure => Self::Failed(failure),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_large_is_told_from_what_is_refused_and_from_a_lost_race() {
        let answered = |code, message: &str| {
            ConfigurationError::from(Failure::Answered {
                code,
                reason: String::new(),
                message: message.into(),
            })
        };
        assert!(matches!(
            answered(500, "etcdserver: request is too large"),
            ConfigurationError::TooLarge(_)
        ));
        let grpc =
            "rpc error: code = ResourceExhausted desc = trying to send message larger than max (2251184 vs. 2097152)";
        assert!(matches!(answered(500, grpc), ConfigurationError::TooLarge(_)));
        assert!(matches!(
            answered(413, "limit is 3145728"),
            ConfigurationError::TooLarge(_)
        ));
        assert!(matches!(answered(422, "invalid"), ConfigurationError::Refused(_)));
        assert_eq!(answered(409, "changed"), ConfigurationError::Conflict);
        assert_eq!(answered(404, "gone"), ConfigurationError::Conflict);
        assert!(matches!(answered(500, "timeout"), ConfigurationError::Failed(_)));
    }
}
