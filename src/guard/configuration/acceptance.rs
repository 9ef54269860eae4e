//! Whether a policy can be used: it compiles, and its owner's kind is served and may be read.

use std::collections::HashMap;
use std::time::Duration;

use k8s_openapi::api::authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec};
use kube::api::{ApiResource, PostParams};
use kube::{Api, Client};
use tokio::time::Instant;

use super::super::policy_standing::Accepted;
use crate::api::DeployerPolicy;
use crate::api::policy::{Mode, Wake};
use crate::cluster::live::LiveStore;
use crate::cluster::request::within;
use crate::cluster::store::{Failure, OwnerKind};
use crate::domain::policy::Policy;

/// How long a right that was found is believed in. One that is missing is asked for again in each round.
const BELIEVED: Duration = Duration::from_mins(5);

/// Judges policies.
pub struct Acceptance {
    store: LiveStore,
    reviews: Api<SelfSubjectAccessReview>,
    /// Kinds whose owners we may do this with.
    allowed: HashMap<(OwnerKind, Verbs), Instant>,
}

/// What is done with owners of a kind.
type Verbs = &'static [&'static str];

const READ: Verbs = &["get"];
const READ_AND_WAKE: Verbs = &["get", "patch"];

impl Acceptance {
    /// Asks this cluster.
    #[must_use]
    pub fn new(client: Client, store: LiveStore) -> Self {
        Self {
            store,
            reviews: Api::all(client),
            allowed: HashMap::new(),
        }
    }

    /// Judges one policy.
    ///
    /// # Errors
    /// If the API server does not answer: then nothing is known.
    pub async fn judge(&mut self, policy: &DeployerPolicy) -> Result<Accepted, Failure> {
        if let Err(errors) = Policy::compile(policy) {
            let errors: Vec<_> = errors.iter().map(ToString::to_string).collect();
            return Ok(Accepted::Invalid(errors.join("; ")));
        }
        let Some(owner) = &policy.spec.owner else {
            return Ok(Accepted::Accepted);
        };
        let kind = OwnerKind {
            api_version: owner.api_version.clone(),
            kind: owner.kind.clone(),
        };
        let wakes = policy.spec.mode == Mode::Enforce && owner.wake == Wake::OnRelease;
        let wanted = (kind.clone(), if wakes { READ_AND_WAKE } else { READ });
        if self
            .allowed
            .get(&wanted)
            .is_some_and(|since| since.elapsed() < BELIEVED)
        {
            return Ok(Accepted::Accepted);
        }
        self.allowed.remove(&wanted);
        let resource = match within(self.store.learn(&kind)).await {
            Ok((resource, _)) => resource,
            Err(why) => {
                return match why {
                    Failure::Unreadable(_) | Failure::Answered { code: 404, .. } => {
                        Ok(Accepted::OwnerNotServed(format!(
                            "spec.owner: the API server serves no kind {} in {}: correct it, or install what serves it.",
                            kind.kind, kind.api_version
                        )))
                    }
                    why => Err(why),
                };
            }
        };
        for verb in wanted.1 {
            if !self.may(verb, &resource).await? {
                return Ok(Accepted::OwnerNotReadable(rule_to_add(&resource, wanted.1)));
            }
        }
        self.allowed.insert(wanted, Instant::now());
        Ok(Accepted::Accepted)
    }

    async fn may(&self, verb: &str, resource: &ApiResource) -> Result<bool, Failure> {
        let attributes = ResourceAttributes {
            group: Some(resource.group.clone()),
            resource: Some(resource.plural.clone()),
            verb: Some(verb.to_owned()),
            ..ResourceAttributes::default()
        };
        let review = SelfSubjectAccessReview {
            spec: SelfSubjectAccessReviewSpec {
                resource_attributes: Some(attributes),
                ..SelfSubjectAccessReviewSpec::default()
            },
            ..SelfSubjectAccessReview::default()
        };
        let reviewed = within(self.reviews.create(&PostParams::default(), &review)).await?;
        Ok(reviewed.status.is_some_and(|status| status.allowed))
    }
}

fn rule_to_add(resource: &ApiResource, verbs: Verbs) -> String {
    let verbs: Vec<String> = verbs.iter().map(|verb| format!("\"{verb}\"")).collect();
    format!(
        "spec.owner: deployer-guard may not {may} {plural}. Add to ClusterRole \
         deployer-guard-owners the rule {{apiGroups: [\"{group}\"], resources: [\"{plural}\"], verbs: [{verbs}]}}.",
        may = if verbs.len() > 1 {
            "read, or not patch as spec.owner.wake asks,"
        } else {
            "read"
        },
        verbs = verbs.join(", "),
        plural = resource.plural,
        group = resource.group
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rule_to_add_can_be_copied() {
        let gvk = kube::core::GroupVersionKind::gvk("batch", "v1", "Job");
        for (verbs, list) in [(READ, r#"["get"]"#), (READ_AND_WAKE, r#"["get", "patch"]"#)] {
            let text = rule_to_add(&ApiResource::from_gvk_with_plural(&gvk, "jobs"), verbs);
            let rule = format!(r#"{{apiGroups: ["batch"], resources: ["jobs"], verbs: {list}}}"#);
            assert!(text.contains(&rule), "{text}");
        }
    }
}
