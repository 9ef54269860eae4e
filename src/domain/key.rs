//! What at most one deployer may be active for, and the name of the claim that stands for it.

use std::fmt;

use data_encoding::BASE32_NOPAD;
use sha2::{Digest, Sha256};

use super::policy::{Identity, Policy};
use crate::api::policy::Scope;

/// The part of a claim's name that a person recognises is cut to this many bytes.
const SLUG_BYTES: usize = 63;
/// Bytes of the SHA-256 that go into a claim's name: 128 bits, 26 characters of base32.
const DIGEST_BYTES: usize = 16;

/// What a key is about: the whole config, or one generation of it (policy `scope`).
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Subject {
    /// `scope: Config`: one deployer for each config.
    Config(String),
    /// `scope: Generation`: one deployer for each generation.
    Generation(String),
}

impl Subject {
    /// The config's or generation's name.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Config(name) | Self::Generation(name) => name,
        }
    }

    fn tag(&self) -> &'static str {
        match self {
            Self::Config(_) => "config",
            Self::Generation(_) => "generation",
        }
    }
}

/// (policy, namespace, config or generation): what at most one deployer may be active for.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// Name of the `DeployerPolicy`.
    pub policy: String,
    /// Namespace of the deployer pods and of the claim.
    pub namespace: String,
    /// The config or generation.
    pub subject: Subject,
}

impl Key {
    /// The key of a pod with this identity under a policy.
    #[must_use]
    pub fn of(policy: &Policy, namespace: &str, identity: &Identity) -> Self {
        let subject = match (policy.scope, &identity.generation) {
            (Scope::Generation, Some(generation)) => Subject::Generation(generation.clone()),
            _ => Subject::Config(identity.config.clone()),
        };
        Self {
            policy: policy.name.clone(),
            namespace: namespace.to_owned(),
            subject,
        }
    }

    /// The name of the `DeployerClaim` of this key in its namespace: `<policy>-<readable part>-<digest>`.
    ///
    /// Guarantees: a valid DNS-1123 subdomain of at most 154 characters for a policy name of at most 63; two keys of one
    /// namespace that differ never share a name, whatever characters they hold (the digest is over length-prefixed
    /// fields). Two versions of the program run side by side during an upgrade, so the function must never change: exclusion
    /// would be lost between them. A golden test holds it.
    #[must_use]
    pub fn claim_name(&self) -> String {
        let mut digest = Sha256::new();
        for field in [
            "deployer-guard.io/claim/v1",
            &self.policy,
            self.subject.tag(),
            self.subject.name(),
        ] {
            digest.update(u64::try_from(field.len()).unwrap_or(u64::MAX).to_be_bytes());
            digest.update(field.as_bytes());
        }
        let digest = base32_lower(&digest.finalize()[..DIGEST_BYTES]);
        match slug(self.subject.name()) {
            slug if slug.is_empty() => format!("{}-{digest}", self.policy),
            slug => format!("{}-{slug}-{digest}", self.policy),
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.subject.name())
    }
}

fn base32_lower(bytes: &[u8]) -> String {
    BASE32_NOPAD.encode(bytes).to_ascii_lowercase()
}

/// The letters and digits of a name, everything else as single dashes, so that a person recognises it.
fn slug(name: &str) -> String {
    let mut slug = String::with_capacity(SLUG_BYTES);
    for c in name.chars() {
        let c = c.to_ascii_lowercase();
        if c.is_ascii_alphanumeric() {
            slug.push(c);
        } else if !slug.is_empty() && !slug.ends_with('-') {
            slug.push('-');
        }
        if slug.len() == SLUG_BYTES {
            break;
        }
    }
    slug.truncate(slug.trim_end_matches('-').len());
    slug
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn config(policy: &str, name: &str) -> Key {
        Key {
            policy: policy.into(),
            namespace: "shop".into(),
            subject: Subject::Config(name.into()),
        }
    }

    /// These names are stored in people's clusters. A change here loses exclusion while two versions run side by side.
    #[test]
    fn claim_names_never_change() {
        let generation = Key {
            subject: Subject::Generation("cfg".into()),
            ..config("openshift", "")
        };
        for (key, name) in [
            (config("openshift", "cfg"), "openshift-cfg-zanr3eerftv6xqaqvpuzrzywtm"),
            (generation, "openshift-cfg-dcmkkgjju7zv3efkt72ektv6ry"),
            (
                config("openshift", "Deployment.apps shop/Käse"),
                "openshift-deployment-apps-shop-k-se-vxg5bnkfmpd53hpqpvvln5dlrq",
            ),
            (config("openshift", "/"), "openshift-doe7uktxt3eljiy5kkmvp5m6ei"),
        ] {
            assert_eq!(key.claim_name(), name, "{key:?}");
        }
    }

    #[test]
    fn configs_that_differ_only_past_the_readable_part_have_different_claims() {
        let long = "x".repeat(400);
        assert_ne!(
            config("p", &format!("{long}a")).claim_name(),
            config("p", &format!("{long}b")).claim_name()
        );
    }

    #[test]
    fn the_boundary_between_policy_and_config_is_part_of_the_name() {
        assert_ne!(config("a", "b-c").claim_name(), config("a-b", "c").claim_name());
    }

    proptest! {
        #[test]
        fn every_name_is_a_dns_subdomain(name in ".{0,600}") {
            let claim = config("a-policy.of-mine", &name).claim_name();
            prop_assert!(claim.len() <= 154);
            for label in claim.split('.') {
                prop_assert!(!label.is_empty() && !label.starts_with('-') && !label.ends_with('-'), "{claim}");
                prop_assert!(label.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-'), "{claim}");
            }
        }

        #[test]
        fn different_configs_have_different_claims(a in ".{0,80}", b in ".{0,80}") {
            prop_assert_eq!(a == b, config("p", &a).claim_name() == config("p", &b).claim_name());
        }
    }
}
