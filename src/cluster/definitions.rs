//! The `CustomResourceDefinition`s of a cluster.

use std::fmt;
use std::time::Duration;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use tokio::time::sleep;

use super::request::within;
use super::store::Failure;

/// The field manager of the definitions.
const FIELD_MANAGER: &str = "deployer-guard-crds";
/// How often a definition is looked at until it is served.
const AGAIN: Duration = Duration::from_millis(200);

/// What an apply did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    /// It was not there.
    Created,
    /// It was another.
    Changed,
    /// It was the same.
    Unchanged,
}

impl fmt::Display for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Created => "created",
            Self::Changed => "changed",
            Self::Unchanged => "unchanged",
        })
    }
}

/// The definitions of a cluster.
pub struct Definitions {
    api: Api<CustomResourceDefinition>,
}

impl Definitions {
    /// Over this client.
    #[must_use]
    pub fn new(client: Client) -> Self {
        Self { api: Api::all(client) }
    }

    /// Makes a definition what it is to be, by server-side apply. Fields that another manager has taken are taken back.
    ///
    /// # Errors
    /// If the API server does not take it.
    pub async fn apply(&self, wanted: &CustomResourceDefinition) -> Result<Done, Failure> {
        let name = wanted.metadata.name.clone().unwrap_or_default();
        let before = within(self.api.get_opt(&name)).await?;
        let params = PatchParams::apply(FIELD_MANAGER).force();
        let after = within(self.api.patch(&name, &params, &Patch::Apply(wanted))).await?;
        Ok(match before {
            None => Done::Created,
            Some(before) if before.metadata.generation != after.metadata.generation => Done::Changed,
            Some(_) => Done::Unchanged,
        })
    }

    /// Waits until a definition is served.
    ///
    /// # Errors
    /// If it cannot be read, or is refused its names.
    pub async fn established(&self, name: &str) -> Result<(), Failure> {
        loop {
            let definition = within(self.api.get(name)).await?;
            let conditions = definition
                .status
                .and_then(|status| status.conditions)
                .unwrap_or_default();
            if let Some(refused) = conditions
                .iter()
                .find(|condition| condition.type_ == "NamesAccepted" && condition.status == "False")
            {
                let text = refused.message.clone().unwrap_or_default();
                return Err(Failure::NotServed(format!(
                    "CustomResourceDefinition {name}: its names are not accepted: {text}; another definition has them: remove that one"
                )));
            }
            if conditions
                .iter()
                .any(|condition| condition.type_ == "Established" && condition.status == "True")
            {
                return Ok(());
            }
            sleep(AGAIN).await;
        }
    }
}
