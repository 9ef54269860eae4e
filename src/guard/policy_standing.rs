//! How a policy stands: whether it can be used, and whether it is in force. Each variant is one reason of a condition on the
//! policy (`docs/reasons.md`).

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::watch;

use super::board::PolicyVersion;
use crate::api::policy::FailurePolicy;

/// Whether a policy can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Accepted {
    /// It compiles, and its owner kind may be read.
    Accepted,
    /// It does not compile: everything that is wrong.
    Invalid(String),
    /// It holds what this version does not know: what.
    Unreadable(String),
    /// No resource of the owner's kind is served: which.
    OwnerNotServed(String),
    /// The owner's kind may not be read: the RBAC rule to add.
    OwnerNotReadable(String),
}

/// Whether a policy is in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Enforced {
    /// Its entry for this generation is in the stored configuration.
    Stored,
    /// Its entry is not there yet.
    Pending,
    /// The configuration does not exist.
    ConfigurationMissing,
    /// The API server refuses the entry: its text.
    Refused(String),
    /// The entry did not fit: the API server's text.
    TooLarge(String),
    /// The configuration may not be read or written: the API server's text.
    NotPermitted(String),
    /// There is no CA bundle to put into the configuration: why.
    CaBundleMissing(String),
    /// It is not accepted.
    NotAccepted,
    /// It cannot be read: what is stored of its entry stays.
    Kept,
}

/// How one version of a policy stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Which version.
    pub version: PolicyVersion,
    /// What happens when no decision can be reached.
    pub failure_policy: FailurePolicy,
    /// Whether it can be used.
    pub accepted: Accepted,
    /// Whether it is in force.
    pub enforced: Enforced,
}

/// How all policies stand, by name, after a round of the configuration's room.
pub type Standings = BTreeMap<String, Standing>;

/// Tells others how policies stand.
pub type StandingsSender = watch::Sender<Arc<Standings>>;

impl Accepted {
    /// Status, reason and message of the condition `Accepted`.
    #[must_use]
    pub fn condition(&self) -> (bool, &'static str, String) {
        match self {
            Self::Accepted => (true, "Accepted", "The policy can be used.".into()),
            Self::Invalid(errors) => (false, "Invalid", errors.clone()),
            Self::Unreadable(why) => (
                false,
                "Unreadable",
                format!(
                    "It holds what this version does not know: {why}. If a newer version wrote it, upgrade; else correct it."
                ),
            ),
            Self::OwnerNotServed(text) => (false, "OwnerNotServed", text.clone()),
            Self::OwnerNotReadable(text) => (false, "OwnerNotReadable", text.clone()),
        }
    }
}

impl Enforced {
    /// Status, reason and message of the condition `Enforced`. `probe`: what a dry run through an API server said, if it was
    /// asked. `configuration` is the name of the configuration.
    #[must_use]
    pub fn condition(
        &self,
        configuration: &str,
        failure_policy: FailurePolicy,
        probe: Option<&Result<(), String>>,
    ) -> (bool, &'static str, String) {
        let object = format!("ValidatingWebhookConfiguration {configuration:?}");
        match self {
            Self::Stored => match probe {
                Some(Err(why)) => unanswered(failure_policy, why),
                Some(Ok(())) => (
                    true,
                    "InForce",
                    "The entry is stored, and a dry run through an API server reached the webhook.".into(),
                ),
                None => (true, "InForce", "The entry is stored.".into()),
            },
            Self::Pending => (
                false,
                "Pending",
                format!("The entry of this generation is not in {object} yet."),
            ),
            Self::ConfigurationMissing => (
                false,
                "ConfigurationMissing",
                format!(
                    "{object} does not exist, and deployer-guard never makes it: apply the manifest that it belongs to, or nothing is enforced."
                ),
            ),
            Self::Refused(text) => (false, "Refused", format!("The API server refuses the entry: {text}")),
            Self::TooLarge(text) => (
                false,
                "TooLarge",
                format!(
                    "The entry does not fit into {object} beside the others: {text}. Have fewer policies, or shorter ones."
                ),
            ),
            Self::NotPermitted(text) => (
                false,
                "NotPermitted",
                format!(
                    "{object} may not be read or patched ({text}): a rule of the ServiceAccount is missing. Apply deploy/rbac.yaml; installed by the chart: helm upgrade."
                ),
            ),
            Self::CaBundleMissing(why) => (
                false,
                "CABundleMissing",
                format!("No API server would trust the webhook: {why}"),
            ),
            Self::NotAccepted => (
                false,
                "NotAccepted",
                "A policy that is not accepted is not enforced.".into(),
            ),
            Self::Kept => (
                false,
                "EntryKept",
                format!(
                    "The policy cannot be read. The entry of an earlier generation, if {object} has one, stays as it is, and replicas that knew that generation decide by it; others decide nothing."
                ),
            ),
        }
    }
}

fn unanswered(failure_policy: FailurePolicy, why: &str) -> (bool, &'static str, String) {
    let (holds, meaning) = match failure_policy {
        FailurePolicy::Fail => (true, "matched pods are refused (failurePolicy Fail)"),
        FailurePolicy::Ignore => (false, "matched pods are admitted unseen (failurePolicy Ignore)"),
    };
    (
        holds,
        "Unanswered",
        format!(
            "The entry is stored, but a dry run through an API server did not reach the webhook: {why}. Until it does, {meaning}."
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every reason that a policy's conditions may have, once.
    #[test]
    fn every_reason_is_documented() {
        let documented = include_str!("../../docs/reasons.md");
        let text = || String::from("text");
        let accepted = [
            Accepted::Accepted,
            Accepted::Invalid(text()),
            Accepted::Unreadable(text()),
            Accepted::OwnerNotServed(text()),
            Accepted::OwnerNotReadable(text()),
        ];
        let enforced = [
            Enforced::Stored,
            Enforced::Pending,
            Enforced::ConfigurationMissing,
            Enforced::Refused(text()),
            Enforced::TooLarge(text()),
            Enforced::NotPermitted(text()),
            Enforced::CaBundleMissing(text()),
            Enforced::NotAccepted,
            Enforced::Kept,
        ];
        let accepted = accepted.iter().map(Accepted::condition);
        let enforced = enforced
            .iter()
            .map(|enforced| enforced.condition("c", FailurePolicy::Fail, None));
        for (_, reason, message) in accepted.chain(enforced).chain([unanswered(FailurePolicy::Fail, "no")]) {
            assert!(documented.contains(&format!("`{reason}`")), "{reason}");
            assert!(!message.is_empty());
        }
    }

    #[test]
    fn a_webhook_that_does_not_answer_is_a_rule_that_holds_only_where_undecided_means_refused() {
        let probe = Err("no answer".to_owned());
        for (failure_policy, holds) in [(FailurePolicy::Fail, true), (FailurePolicy::Ignore, false)] {
            let (status, reason, message) = Enforced::Stored.condition("c", failure_policy, Some(&probe));
            assert_eq!((status, reason), (holds, "Unanswered"));
            assert!(message.contains("no answer"), "{message}");
        }
        assert_eq!(
            Enforced::Stored.condition("c", FailurePolicy::Ignore, Some(&Ok(()))).1,
            "InForce"
        );
    }
}
