//! What a check found. The field names are what `--output json` prints, and stay as they are.

use std::fmt;

use serde::Serialize;

use crate::api::policy::Mode;
use crate::domain::admission::Ruling;

/// What was decided on all reviews, in their order.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Report {
    /// One entry for each review.
    pub(super) reviews: Vec<Reviewed>,
    /// How many reviews came to which verdict.
    pub(super) summary: Summary,
    /// What was passed over in the given files.
    pub(super) notes: Vec<String>,
}

/// What was decided on one review.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Reviewed {
    /// Where it was given: file, document and line.
    pub(super) source: String,
    /// CREATE, UPDATE, DELETE or CONNECT.
    pub(super) operation: String,
    /// The pod's namespace.
    pub(super) namespace: String,
    /// The pod's name.
    pub(super) pod: String,
    /// The pod's uid.
    pub(super) uid: String,
    /// Who asks.
    pub(super) user: String,
    /// Nothing would be stored, whatever is decided.
    pub(super) dry_run: bool,
    /// The verdict of all policies together: Undecided if it is that under one of them, else refused under one, else admitted under one.
    pub(super) verdict: Verdict,
    /// Whether the API server would go on with the request.
    pub(super) allowed: bool,
    /// What was made up or not known.
    pub(super) notes: Vec<String>,
    /// One entry for each policy, by name.
    pub(super) decisions: Vec<Decision>,
}

/// What was decided under one policy.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Decision {
    /// The policy's name.
    pub(super) policy: String,
    /// Its mode.
    pub(super) mode: Mode,
    /// The verdict, whatever the mode makes of it.
    pub(super) verdict: Verdict,
    /// Why: one of docs/reasons.md; `Free` where it is admitted; the part that did not match where it is `NotMatched`.
    pub(super) reason: String,
    /// What stands in the way and how to get unblocked, or what did not match, in words; null where it is admitted.
    pub(super) explanation: Option<String>,
    /// Whether the webhook lets the request pass.
    pub(super) allowed: bool,
    /// The HTTP code of the webhook's answer: 200, 403, 409 or 503.
    pub(super) code: u16,
    /// The message of the refusal that the client is told; null where it is told none.
    pub(super) message: Option<String>,
    /// The warnings that the client is told.
    pub(super) warnings: Vec<String>,
    /// What the pod works for; null where it did not match or that cannot be read.
    pub(super) identity: Option<Identity>,
    /// The owner that the pod names; null where the policy asks for none.
    pub(super) owner: Option<Owner>,
    /// What at most one deployer may be active for: namespace, and config or generation.
    pub(super) key: Option<String>,
    /// The name of the key's `DeployerClaim`.
    pub(super) claim: Option<String>,
    /// The pod that stands in the way, or else the one that the claim was given to before.
    pub(super) holder: Option<Holder>,
}

/// What a pod works for.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Identity {
    /// The config.
    pub(super) config: String,
    /// Its uid; null where the policy reads none, or the owner that it is read on is not there.
    pub(super) config_uid: Option<String>,
    /// The generation; null where the policy reads none.
    pub(super) generation: Option<String>,
    /// Its ordinal; null as for the uid.
    pub(super) ordinal: Option<i64>,
}

/// The owner that a pod names.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Owner {
    /// Group and version, as the policy reads it.
    pub(super) api_version: String,
    /// Its kind.
    pub(super) kind: String,
    /// Its name.
    pub(super) name: String,
    /// Its uid, as the pod names it.
    pub(super) uid: String,
    /// What the snapshot says.
    pub(super) state: OwnerState,
}

/// What the snapshot says of an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) enum OwnerState {
    /// It is there, under that uid.
    Present,
    /// It is there under another uid.
    Replaced,
    /// It is not there.
    Absent,
}

/// The pod that a key was given to.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Holder {
    /// Its name.
    pub(super) name: String,
    /// Its uid.
    pub(super) uid: String,
    /// The generation it works for; null where none is known.
    pub(super) generation: Option<String>,
    /// What the snapshot says: Active, Succeeded, Failed or Absent.
    pub(super) state: &'static str,
}

/// A verdict, in the words of the webhook's log and audit annotations, and one for pods that it is not asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(super) enum Verdict {
    /// No policy matches: the webhook is not asked.
    NotMatched,
    /// It may be created.
    Admitted,
    /// A pod of that name exists: the store will refuse it too.
    NameExists,
    /// It must not be created now.
    Refused,
    /// No decision can be reached; the policy's failurePolicy decides.
    Undecided,
}

impl From<&Ruling> for Verdict {
    fn from(ruling: &Ruling) -> Self {
        match ruling {
            Ruling::Admitted => Self::Admitted,
            Ruling::NameExists => Self::NameExists,
            Ruling::Refused(_) => Self::Refused,
            Ruling::Undecided(_) => Self::Undecided,
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// How many reviews came to which verdict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Summary {
    /// No policy matches them.
    pub(super) not_matched: usize,
    /// Admitted under every policy that matches.
    pub(super) admitted: usize,
    /// Their name exists.
    pub(super) name_exists: usize,
    /// Refused.
    pub(super) refused: usize,
    /// No decision can be reached.
    pub(super) undecided: usize,
}

impl Report {
    /// A report of these.
    pub(super) fn new(reviews: Vec<Reviewed>, notes: Vec<String>) -> Self {
        let mut summary = Summary::default();
        for review in &reviews {
            let count = match review.verdict {
                Verdict::NotMatched => &mut summary.not_matched,
                Verdict::Admitted => &mut summary.admitted,
                Verdict::NameExists => &mut summary.name_exists,
                Verdict::Refused => &mut summary.refused,
                Verdict::Undecided => &mut summary.undecided,
            };
            *count += 1;
        }
        Self {
            reviews,
            summary,
            notes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::answer::verdict;
    use crate::domain::refusal::{Refusal, Undecided};

    #[test]
    fn verdicts_are_those_of_the_log_and_the_worst_is_the_greatest() {
        let rulings = [
            Ruling::Admitted,
            Ruling::NameExists,
            Refusal::DeployerCondemned.into(),
            Undecided::Deadline.into(),
        ];
        let mut verdicts = vec![Verdict::NotMatched];
        for ruling in &rulings {
            assert_eq!(Verdict::from(ruling).to_string(), verdict(ruling));
            verdicts.push(ruling.into());
        }
        assert!(verdicts.is_sorted());
    }
}
