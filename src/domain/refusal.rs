//! Why a deployer is refused: each reason is one text for the user, one metric label, one audit value.

use std::fmt;

use super::key::Key;
use crate::api::claim::{ClaimEntry, Outcome};

/// The pod that stands in the way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Blocker {
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// The generation it works for, where the policy knows generations.
    pub generation: Option<String>,
}

impl From<&ClaimEntry> for Blocker {
    fn from(entry: &ClaimEntry) -> Self {
        Self {
            name: entry.name.clone(),
            uid: entry.uid.clone(),
            generation: entry.generation.clone(),
        }
    }
}

impl fmt::Display for Blocker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "deployer pod {:?}", self.name)?;
        self.generation
            .as_ref()
            .map_or(Ok(()), |generation| write!(f, " (generation {generation:?})"))
    }
}

/// Why a deployer must not be started now. The decision was reached: this is never a failure of ours.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// G1: another pod is active for the key.
    DeployerActive(Blocker),
    /// G1: another pod was admitted for the key, and is neither in the store nor given up.
    DeployerPending(Blocker),
    /// This very pod was marked to be deleted as a duplicate.
    DeployerCondemned,
    /// As many pods of this one name were admitted and never stored as a claim may remember.
    TooManyPending,
    /// G2: the generation completed.
    GenerationCompleted {
        /// The generation.
        generation: String,
    },
    /// G2: the generation was run, and the policy says `reruns: Never`.
    GenerationAlreadyRun {
        /// The generation.
        generation: String,
        /// How its last run ended.
        outcome: Outcome,
    },
    /// G3: a newer generation was seen, or is on its way.
    OlderGeneration {
        /// The pod's ordinal.
        ordinal: i64,
        /// The newest ordinal.
        newest: i64,
        /// The generation with the newest ordinal.
        newest_generation: Option<String>,
    },
    /// G4: the pod has no owner of the kind that the policy asks for.
    OwnerMissing {
        /// What is wrong and how to mend it.
        message: String,
    },
    /// G4: the pod has several owners of that kind.
    OwnerAmbiguous {
        /// What is wrong and how to mend it.
        message: String,
    },
    /// G4: the owner does not exist.
    OwnerGone {
        /// As `ReplicationController "cfg-1"`.
        owner: String,
    },
    /// G4: the owner exists under another uid.
    OwnerReplaced {
        /// As `ReplicationController "cfg-1"`.
        owner: String,
    },
    /// G4: the owner does not satisfy `spec.owner.expression`.
    OwnerNotEligible {
        /// As `ReplicationController "cfg-1"`.
        owner: String,
        /// The policy's expression.
        expression: String,
    },
    /// The pod or its owner lacks what the policy reads, or it cannot be used.
    IdentityInvalid {
        /// The policy's field, as `spec.config.annotation`.
        field: String,
        /// What is wrong and how to mend it.
        message: String,
    },
    /// Another policy that matches the pod refuses it.
    OtherPolicy {
        /// The other policy.
        policy: String,
        /// Its reason.
        reason: &'static str,
        /// Its text.
        message: String,
    },
    /// An update changes what the policy matches or reads on an active pod.
    IdentityChanged {
        /// As `label openshift.io/deployer-pod-for.name`.
        keys: Vec<String>,
    },
}

impl Refusal {
    /// The machine-readable reason, in upper camel case: the type of the cause in the answer, a metric label and an audit value.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::DeployerActive(_) => "DeployerActive",
            Self::DeployerPending(_) => "DeployerPending",
            Self::DeployerCondemned => "DeployerCondemned",
            Self::TooManyPending => "TooManyPending",
            Self::GenerationCompleted { .. } => "GenerationCompleted",
            Self::GenerationAlreadyRun { .. } => "GenerationAlreadyRun",
            Self::OlderGeneration { .. } => "OlderGeneration",
            Self::OwnerMissing { .. } => "OwnerMissing",
            Self::OwnerAmbiguous { .. } => "OwnerAmbiguous",
            Self::OwnerGone { .. } => "OwnerGone",
            Self::OwnerReplaced { .. } => "OwnerReplaced",
            Self::OwnerNotEligible { .. } => "OwnerNotEligible",
            Self::IdentityInvalid { .. } => "IdentityInvalid",
            Self::OtherPolicy { .. } => "RefusedByOtherPolicy",
            Self::IdentityChanged { .. } => "IdentityChanged",
        }
    }

    /// The pod that stands in the way, where there is one.
    #[must_use]
    pub fn blocker(&self) -> Option<&Blocker> {
        match self {
            Self::DeployerActive(blocker) | Self::DeployerPending(blocker) => Some(blocker),
            _ => None,
        }
    }

    /// The field of the pod or policy that the refusal is about.
    #[must_use]
    pub fn field(&self) -> String {
        match self {
            Self::OwnerMissing { .. }
            | Self::OwnerAmbiguous { .. }
            | Self::OwnerGone { .. }
            | Self::OwnerReplaced { .. }
            | Self::OwnerNotEligible { .. } => "metadata.ownerReferences".into(),
            Self::IdentityInvalid { field, .. } => field.clone(),
            Self::IdentityChanged { .. } => "metadata".into(),
            _ => "metadata.name".into(),
        }
    }

    /// What stands in the way, and how to get unblocked. The same cause gives the same text each time: callers put it into
    /// Events, and only equal texts aggregate.
    #[must_use]
    pub fn explain(&self, key: Option<&Key>, pod: &str) -> String {
        let namespace = key.map_or("", |key| key.namespace.as_str());
        let release = || {
            key.map_or_else(String::new, |key| {
                format!("kubectl -n {namespace} get deployerclaim {} -o yaml", key.claim_name())
            })
        };
        match self {
            Self::DeployerActive(by) => format!(
                "{by} is active, and only one deployer may work at once. Wait until it has finished, or end it: kubectl -n {namespace} delete pod {}",
                by.name
            ),
            Self::DeployerPending(by) => format!(
                "{by} was admitted and is on its way to the store. Try again when it has finished; if it never arrives, it is given up after the pending window (about a minute). See: {}",
                release()
            ),
            Self::DeployerCondemned => {
                format!("pod {pod:?} is being removed, as a duplicate or an orphan. Create a new pod")
            }
            Self::TooManyPending => format!(
                "too many pods named {pod:?} were admitted and none of them was seen in the store: something after admission refuses them (a quota, another webhook), or they are deleted within a moment. Mend that, and try again after the pending window (about a minute). See: {}",
                release()
            ),
            Self::GenerationCompleted { generation } => format!(
                "generation {generation:?} has completed and is not run again (policy spec.reruns). Start a new generation"
            ),
            Self::GenerationAlreadyRun { generation, outcome } => format!(
                "generation {generation:?} was run before (outcome {outcome:?}) and is not run again (policy spec.reruns: Never). Start a new generation"
            ),
            Self::OlderGeneration {
                ordinal,
                newest,
                newest_generation,
            } => {
                let newest_generation = newest_generation
                    .as_ref()
                    .map_or_else(String::new, |g| format!(" ({g:?})"));
                format!(
                    "its generation has ordinal {ordinal}, and {newest}{newest_generation} is newer (policy spec.olderGenerations: Deny). To go back to an old version, start a new generation from it"
                )
            }
            Self::OwnerGone { owner } => {
                format!("its owner, {owner}, does not exist: the rollout was removed. Start a new rollout")
            }
            Self::OwnerReplaced { owner } => format!(
                "its owner, {owner}, exists with another uid: it was deleted and made again. Let the new one create its own deployer"
            ),
            Self::OwnerNotEligible { owner, expression } => format!(
                "its owner, {owner}, is not in a state that may start a deployer (policy spec.owner.expression: {}). Retry the rollout, or start a new one",
                one_line(expression)
            ),
            Self::OwnerMissing { message }
            | Self::OwnerAmbiguous { message }
            | Self::IdentityInvalid { message, .. } => message.clone(),
            Self::OtherPolicy {
                policy,
                reason,
                message,
            } => {
                format!("DeployerPolicy {policy:?} refuses it too ({reason}): {message}")
            }
            Self::IdentityChanged { keys } => format!(
                "{} of an active deployer pod cannot be added, changed or removed, because the policy matches or reads it. Wait until the pod has finished, or delete it",
                keys.join(", ")
            ),
        }
    }
}

/// An expression as a person reads it in a sentence: runs of white space are one space.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Why no decision could be reached. Never taken for "no other deployer": the policy's `failurePolicy` decides.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Undecided {
    /// The time that the API server gives was used up.
    Deadline,
    /// As many calls as may be are in progress.
    Overloaded,
    /// The handler panicked: a fault of ours.
    Panicked,
    /// A live read failed.
    ReadFailed {
        /// What was read, as `pod "cfg-1-deploy"`.
        what: String,
        /// Forbidden, timed out, unreachable, or what the API server said.
        why: String,
    },
    /// The claim could not be written for another reason than a conflict.
    WriteFailed {
        /// Forbidden, unreachable, or what the API server said.
        why: String,
    },
    /// The claim was written by a newer version under rules that this one does not know.
    NewerProtocol {
        /// The claim's protocol.
        protocol: i32,
    },
    /// The claim is stored with something that this version cannot read.
    ClaimUnreadable {
        /// The claim's namespace.
        namespace: String,
        /// The claim's name.
        claim: String,
        /// What cannot be read.
        why: String,
    },
    /// The policy that the call is about cannot be used.
    PolicyUnusable {
        /// The policy's errors.
        why: String,
    },
    /// The policy's expressions were not evaluated in the time, or take too many steps on this pod.
    TooCostly,
}

impl Undecided {
    /// The machine-readable reason, in upper camel case.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Deadline => "DeadlineExceeded",
            Self::Overloaded => "Overloaded",
            Self::Panicked => "Panicked",
            Self::ReadFailed { .. } => "ReadFailed",
            Self::WriteFailed { .. } => "WriteFailed",
            Self::NewerProtocol { .. } => "NewerProtocol",
            Self::ClaimUnreadable { .. } => "ClaimUnreadable",
            Self::PolicyUnusable { .. } => "PolicyUnusable",
            Self::TooCostly => "ExpressionsTooCostly",
        }
    }
}

impl fmt::Display for Undecided {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Deadline => f.write_str("no decision could be reached in the time that the API server gives (policy spec.timeoutSeconds). Try again"),
            Self::Overloaded => f.write_str("deployer-guard has as many calls in progress as it may have (--max-calls). Try again"),
            Self::Panicked => f.write_str("deployer-guard met a fault of its own; its log says where. Try again, and report it"),
            Self::ReadFailed { what, why } => write!(f, "{what} could not be read live: {why}"),
            Self::WriteFailed { why } => write!(f, "the claim could not be written: {why}"),
            Self::NewerProtocol { protocol } => write!(f, "the claim has protocol {protocol}, which a newer version of deployer-guard wrote. Finish the upgrade"),
            Self::ClaimUnreadable { namespace, claim, why } => write!(f, "the claim holds what this version of deployer-guard cannot read ({why}): a newer version or an editor wrote it. Finish the upgrade, or correct it: kubectl -n {namespace} edit deployerclaim {claim}"),
            Self::PolicyUnusable { why } => write!(f, "the policy cannot be used: {why}"),
            Self::TooCostly => f.write_str("the policy's CEL expressions are too costly on this pod to be evaluated in the time that the API server gives. Make them simpler: fewer macros within macros, and no comparison of whole objects"),
        }
    }
}
