//! The condition of a claim that says whether its key is violated, for people.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use super::reason::Reason;
use crate::api::claim::DeployerClaimStatus;
use crate::domain::leftovers::Finding;

/// Two deployers work for the key, or one works that must not.
pub const VIOLATED: &str = "Violated";
/// Longest message, in bytes.
const MAX_MESSAGE: usize = 1000;

/// The status with the condition put right. `None`: it is right already.
#[must_use]
pub(super) fn put_right(
    status: Option<&DeployerClaimStatus>,
    violations: &[(&Finding, String)],
    now: Timestamp,
) -> Option<DeployerClaimStatus> {
    let known = status.and_then(|status| status.conditions.iter().find(|condition| condition.type_ == VIOLATED));
    let (value, reason, mut message) = match violations.first() {
        Some((first, _)) => {
            let notes: Vec<&str> = violations.iter().map(|(_, note)| note.as_str()).collect();
            ("True", Reason::of_finding(first).word(), notes.join("; "))
        }
        None => ("False", "NoViolation", "at most one deployer is active".to_owned()),
    };
    crate::domain::answer::truncate(&mut message, MAX_MESSAGE);
    let right = match known {
        Some(known) => known.status == value && known.reason == reason && known.message == message,
        None => value == "False",
    };
    if right {
        return None;
    }
    let since = known
        .filter(|known| known.status == value)
        .map(|known| known.last_transition_time.clone());
    let mut status = status.cloned().unwrap_or_default();
    status.conditions.retain(|condition| condition.type_ != VIOLATED);
    status.conditions.push(Condition {
        type_: VIOLATED.to_owned(),
        status: value.to_owned(),
        reason: reason.to_owned(),
        message,
        last_transition_time: since.unwrap_or(Time(now)),
        observed_generation: None,
    });
    Some(status)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::claim::PodReference;

    fn revived() -> Finding {
        Finding::Revived(PodReference::default())
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn a_claim_that_was_never_violated_needs_no_condition() {
        assert_eq!(put_right(None, &[], at(1)), None);
    }

    #[test]
    fn a_violation_is_said_once_and_taken_back_when_it_is_over() {
        let finding = revived();
        let violations = [(&finding, "a note".to_owned())];
        let violated = put_right(None, &violations, at(1)).unwrap();
        let condition = &violated.conditions[0];
        assert_eq!((&*condition.status, &*condition.reason), ("True", "DeployerRevived"));
        assert_eq!(put_right(Some(&violated), &violations, at(2)), None);
        let changed = put_right(Some(&violated), &[(&finding, "another".to_owned())], at(3)).unwrap();
        assert_eq!(changed.conditions[0].last_transition_time, Time(at(1)));
        let over = put_right(Some(&changed), &[], at(4)).unwrap();
        assert_eq!((&*over.conditions[0].status, over.conditions.len()), ("False", 1));
        assert_eq!(over.conditions[0].last_transition_time, Time(at(4)));
        assert_eq!(put_right(Some(&over), &[], at(5)), None);
    }
}
