//! What the API server is told: a ruling, as the policy's mode and failure policy make of it.

use super::admission::Ruling;
use super::key::Key;
use super::refusal::{Blocker, Refusal, Undecided};
use crate::api::policy::{FailurePolicy, Mode};

/// Longest value of an audit annotation, in bytes: four of them stay below 1 KiB together.
const MAX_AUDIT_VALUE: usize = 240;

/// What a ruling is about.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// Name of the policy.
    pub policy: &'a str,
    /// `metadata.generation` of the policy.
    pub policy_generation: i64,
    /// What is done with a refusal.
    pub mode: Mode,
    /// What is done where no decision can be reached.
    pub failure_policy: FailurePolicy,
    /// Name of the pod.
    pub pod: &'a str,
    /// Unknown where the pod's identity could not be read.
    pub key: Option<&'a Key>,
}

/// An answer, apart from its wire format.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// `None` allows; `Some` refuses.
    pub denial: Option<Denial>,
    /// Texts that the client shows.
    pub warnings: Vec<String>,
    /// What stands in the way and how to get unblocked, whatever the mode makes of it; for the record. `None` where the pod is admitted.
    pub text: Option<String>,
    /// Key and value, at most four.
    pub audit: Vec<(&'static str, String)>,
}

/// The status of a refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denial {
    /// HTTP code.
    pub code: u16,
    /// The machine-readable reason that belongs to the code.
    pub reason: &'static str,
    /// What stands in the way and how to get unblocked.
    pub message: String,
    /// The type of the cause, one of [`Refusal::reason`] or [`Undecided::reason`].
    pub cause: &'static str,
    /// The field that it is about.
    pub field: String,
}

/// The verdict, as metrics, the log and the audit annotation name it.
#[must_use]
pub fn verdict(ruling: &Ruling) -> &'static str {
    match ruling {
        Ruling::Admitted => "Admitted",
        Ruling::NameExists => "NameExists",
        Ruling::Refused(_) => "Refused",
        Ruling::Undecided(_) => "Undecided",
    }
}

/// The reason for a verdict, as metrics, the log and the audit annotation name it.
#[must_use]
pub fn reason(ruling: &Ruling) -> &'static str {
    match ruling {
        Ruling::Admitted => "Free",
        Ruling::NameExists => "AlreadyExists",
        Ruling::Refused(refusal) => refusal.reason(),
        Ruling::Undecided(why) => why.reason(),
    }
}

/// Makes an answer of a ruling.
#[must_use]
pub fn answer(subject: &Subject<'_>, ruling: &Ruling) -> Answer {
    let mut answer = Answer {
        audit: audit(subject, ruling),
        ..Answer::default()
    };
    let Some(denial) = denial(subject, ruling) else {
        return answer;
    };
    answer.text = Some(denial.message.clone());
    let denies = match ruling {
        Ruling::Undecided(_) => subject.failure_policy == FailurePolicy::Fail && subject.mode == Mode::Enforce,
        _ => subject.mode == Mode::Enforce,
    };
    if denies {
        answer.denial = Some(denial);
    } else if subject.mode != Mode::Audit && *ruling != Ruling::NameExists {
        answer.warnings.push(denial.message);
    }
    answer
}

fn denial(subject: &Subject<'_>, ruling: &Ruling) -> Option<Denial> {
    let Subject { policy, pod, .. } = subject;
    let whose = subject
        .key
        .map_or_else(String::new, |key| format!(" for {:?}", key.subject.name()));
    let denial = match ruling {
        Ruling::Admitted => return None,
        Ruling::NameExists => Denial {
            code: 409,
            reason: "AlreadyExists",
            message: format!("pods {pod:?} already exists"),
            cause: reason(ruling),
            field: "metadata.name".into(),
        },
        Ruling::Refused(refusal) => Denial {
            code: 403,
            reason: "Forbidden",
            message: format!(
                "DeployerPolicy {policy:?} refuses pod {pod:?}{whose} ({}): {}",
                refusal.reason(),
                refusal.explain(subject.key, pod)
            ),
            cause: reason(ruling),
            field: refusal.field(),
        },
        Ruling::Undecided(why) => Denial {
            code: 503,
            reason: "ServiceUnavailable",
            message: format!(
                "DeployerPolicy {policy:?} could not decide on pod {pod:?}{whose} ({}): {why}",
                why.reason()
            ),
            cause: reason(ruling),
            field: String::new(),
        },
    };
    Some(denial)
}

fn audit(subject: &Subject<'_>, ruling: &Ruling) -> Vec<(&'static str, String)> {
    let mut audit = vec![
        ("policy", format!("{}@{}", subject.policy, subject.policy_generation)),
        ("verdict", format!("{}: {}", verdict(ruling), reason(ruling))),
    ];
    if let Some(key) = subject.key {
        audit.push(("key", key.to_string()));
    }
    if let Some(Blocker { name, uid, .. }) = refusal(ruling).and_then(Refusal::blocker) {
        audit.push(("holder", format!("{name} {uid}")));
    }
    for (_, value) in &mut audit {
        truncate(value, MAX_AUDIT_VALUE);
    }
    audit
}

/// The refusal in a ruling.
#[must_use]
pub fn refusal(ruling: &Ruling) -> Option<&Refusal> {
    match ruling {
        Ruling::Refused(refusal) => Some(refusal),
        Ruling::Admitted | Ruling::NameExists | Ruling::Undecided(_) => None,
    }
}

/// Cuts a text to at most so many bytes, on a character boundary.
pub fn truncate(text: &mut String, bytes: usize) {
    text.truncate(text.floor_char_boundary(bytes));
}

impl From<Undecided> for Ruling {
    fn from(why: Undecided) -> Self {
        Self::Undecided(why)
    }
}

impl From<Refusal> for Ruling {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::key;

    fn refused() -> Ruling {
        Refusal::DeployerActive(Blocker {
            name: "cfg-1-deploy".into(),
            uid: "u1".into(),
            generation: Some("cfg-1".into()),
        })
        .into()
    }

    fn given(mode: Mode, failure_policy: FailurePolicy, ruling: &Ruling) -> Answer {
        let key = Key {
            policy: "openshift".into(),
            namespace: "shop".into(),
            subject: key::Subject::Config("cfg".into()),
        };
        let subject = Subject {
            policy: "openshift",
            policy_generation: 3,
            mode,
            failure_policy,
            pod: "cfg-2-deploy",
            key: Some(&key),
        };
        answer(&subject, ruling)
    }

    /// Code (0 allows) and number of warnings, for each ruling by mode and failure policy.
    #[test]
    fn mode_by_failure_policy_gives_the_answer() {
        use FailurePolicy::{Fail, Ignore};
        use Mode::{Audit, Enforce, Warn};
        let undecided: Ruling = Undecided::Deadline.into();
        for (mode, failure_policy, ruling, code, warnings) in [
            (Enforce, Fail, &Ruling::Admitted, 0, 0),
            (Enforce, Fail, &refused(), 403, 0),
            (Enforce, Ignore, &refused(), 403, 0),
            (Enforce, Fail, &Ruling::NameExists, 409, 0),
            (Enforce, Fail, &undecided, 503, 0),
            (Enforce, Ignore, &undecided, 0, 1),
            (Warn, Fail, &refused(), 0, 1),
            (Warn, Fail, &Ruling::NameExists, 0, 0),
            (Warn, Fail, &undecided, 0, 1),
            (Audit, Fail, &refused(), 0, 0),
            (Audit, Fail, &undecided, 0, 0),
        ] {
            let answer = given(mode, failure_policy, ruling);
            let case = format!("{mode:?} {failure_policy:?} {ruling:?}");
            assert_eq!(answer.denial.map_or(0, |denial| denial.code), code, "{case}");
            assert_eq!(answer.warnings.len(), warnings, "{case}");
            assert_eq!(answer.text.is_none(), *ruling == Ruling::Admitted, "{case}");
        }
    }

    #[test]
    fn a_refusal_names_the_holder_and_the_way_out_in_the_same_words_each_time() {
        let message = given(Mode::Enforce, FailurePolicy::Fail, &refused())
            .denial
            .unwrap()
            .message;
        assert_eq!(
            message,
            "DeployerPolicy \"openshift\" refuses pod \"cfg-2-deploy\" for \"cfg\" (DeployerActive): deployer pod \"cfg-1-deploy\" (generation \"cfg-1\") is active, \
             and only one deployer may work at once. Wait until it has finished, or end it: kubectl -n shop delete pod cfg-1-deploy"
        );
    }

    #[test]
    fn audit_annotations_are_four_at_most_and_short() {
        let long = "ä".repeat(600);
        let key = Key {
            policy: "p".into(),
            namespace: "n".into(),
            subject: key::Subject::Config(long),
        };
        let subject = Subject {
            policy: "p",
            policy_generation: 1,
            mode: Mode::Audit,
            failure_policy: FailurePolicy::Ignore,
            pod: "x",
            key: Some(&key),
        };
        let audit = answer(&subject, &refused()).audit;
        assert_eq!(
            audit.iter().map(|(name, _)| *name).collect::<Vec<_>>(),
            ["policy", "verdict", "key", "holder"]
        );
        assert!(audit.iter().map(|(_, value)| value.len()).sum::<usize>() < 1024);
        assert_eq!(audit[1].1, "Refused: DeployerActive");
    }
}
