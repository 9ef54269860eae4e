//! One Secret of our namespace, by its name: read live, and written on condition of what was read.

use async_trait::async_trait;
use k8s_openapi::api::admissionregistration::v1::{ValidatingWebhook, ValidatingWebhookConfiguration};
use k8s_openapi::api::core::v1::Secret;
use kube::api::PostParams;
use kube::{Api, Client};

use super::configurations::{Configurations, FIELD_MANAGER};
use super::request::within;
use super::store::{Failure, WriteError};
use super::webhook_configuration::is_ours;
use crate::tls::secret::{Content, Upstream};
use crate::tls::trust::Truster;

/// The Secret of one name.
#[derive(Clone)]
pub struct Secrets {
    api: Api<Secret>,
    name: String,
    namespace: String,
}

impl Secrets {
    /// The Secret of this name and namespace. Needs `get` on this name alone, and to write it `update`, and `create`.
    #[must_use]
    pub fn new(client: Client, namespace: &str, name: &str) -> Self {
        Self {
            api: Api::namespaced(client, namespace),
            name: name.to_owned(),
            namespace: namespace.to_owned(),
        }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its namespace.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Reads it live. `None`: it does not exist.
    ///
    /// # Errors
    /// If it cannot be read.
    pub async fn read(&self) -> Result<Option<Secret>, Failure> {
        within(self.api.get_opt(&self.name)).await.map_err(discreet)
    }

    /// Makes it, if there is none.
    ///
    /// # Errors
    /// If it was not made, or that is not known.
    pub async fn create(&self, secret: &Secret) -> Result<Secret, WriteError> {
        let created = within(self.api.create(&params(), secret)).await;
        created.map_err(discreet).map_err(|failure| match failure {
            Failure::Answered { code: 404, .. } => WriteError::Refused(failure),
            failure => WriteError::from(failure),
        })
    }

    /// Replaces it, if it is still the object and version that was read: both stand in its metadata.
    ///
    /// # Errors
    /// If it was not replaced, or that is not known.
    pub async fn replace(&self, secret: &Secret) -> Result<Secret, WriteError> {
        if secret.metadata.uid.is_none() || secret.metadata.resource_version.is_none() {
            // Without them it would be no condition.
            return Err(WriteError::Conflict);
        }
        Ok(within(self.api.replace(&self.name, &params(), secret))
            .await
            .map_err(discreet)?)
    }
}

fn params() -> PostParams {
    PostParams {
        field_manager: Some(FIELD_MANAGER.into()),
        ..PostParams::default()
    }
}

/// What our entries of a stored configuration trust.
#[must_use]
pub fn trusters(configuration: Option<&ValidatingWebhookConfiguration>) -> Vec<Truster> {
    let entries = configuration.and_then(|configuration| configuration.webhooks.as_deref());
    let ours = entries.unwrap_or_default().iter().filter(|entry| is_ours(&entry.name));
    ours.map(truster).collect()
}

fn truster(entry: &ValidatingWebhook) -> Truster {
    let client = &entry.client_config;
    let server_name = match (&client.service, &client.url) {
        (Some(service), _) => format!("{}.{}.svc", service.name, service.namespace),
        (None, Some(url)) => host(url).to_owned(),
        (None, None) => String::new(),
    };
    Truster {
        entry: entry.name.clone(),
        server_name,
        bundle: client.ca_bundle.as_ref().map(|bundle| bundle.0.clone()),
    }
}

/// A failure without a word of the Secret: the parser's text may quote it.
fn discreet(failure: Failure) -> Failure {
    match failure {
        Failure::Unreadable(_) => Failure::Unreadable("the API server's answer is no Secret".into()),
        failure => failure,
    }
}

/// The host of an `https://` URL, without port and brackets.
#[must_use]
pub fn host(url: &str) -> &str {
    let rest = url.strip_prefix("https://").unwrap_or(url);
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    match authority.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, _port)) => address,
        None => authority.split(':').next().unwrap_or_default(),
    }
}

/// What the webhook reads for its certificate.
#[derive(Clone)]
pub struct CertificateReads {
    secrets: Secrets,
    configurations: Configurations,
}

impl CertificateReads {
    /// Reads this Secret and this configuration.
    #[must_use]
    pub fn new(secrets: Secrets, configurations: Configurations) -> Self {
        Self {
            secrets,
            configurations,
        }
    }
}

#[async_trait]
impl Upstream for CertificateReads {
    async fn content(&self) -> Result<Option<Content>, Failure> {
        let secret = self.secrets.read().await?;
        Ok(secret.map(|secret| {
            let mut data = secret.data.unwrap_or_default();
            let mut part = |key: &str| data.remove(key).map(|bytes| bytes.0);
            Content {
                certificate: part("tls.crt"),
                key: part("tls.key"),
            }
        }))
    }

    async fn trusters(&self) -> Result<Vec<Truster>, Failure> {
        let configuration = self.configurations.read().await?;
        Ok(trusters(configuration.as_ref()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_in_a_certificate_is_that_by_which_an_api_server_calls() {
        for (url, name) in [
            ("https://127.0.0.1:8443/admit/a", "127.0.0.1"),
            ("https://webhook.example", "webhook.example"),
            ("https://[::1]:8443/admit", "::1"),
            ("https://webhook.example?a=b", "webhook.example"),
        ] {
            assert_eq!(host(url), name, "{url}");
        }
    }
}
