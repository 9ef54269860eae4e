//! What an owner, read live at this admission, says of its deployer (G4).

use serde_json::Value;

use super::admission::Standpoint;
use super::policy::{IdentityError, OwnerError, OwnerReference, Policy};
use super::refusal::Refusal;

/// Judges the owner that a pod names by what a live GET found. `None`: there is no owner of that name.
#[must_use]
pub fn judge_owner(policy: &Policy, pod: &Value, reference: &OwnerReference, found: Option<&Value>) -> Standpoint {
    let name = format!("{} {:?}", reference.kind, reference.name);
    let Some(owner) = found else {
        return Standpoint::Refused(Refusal::OwnerGone { owner: name });
    };
    if owner.pointer("/metadata/uid").and_then(Value::as_str) != Some(&reference.uid) {
        return Standpoint::Refused(Refusal::OwnerReplaced { owner: name });
    }
    match policy.owner_allows(pod, owner) {
        Ok(true) => of_values(policy, pod, Some(owner)),
        Ok(false) => {
            let expression = policy.owner_rule().and_then(|rule| rule.expression.as_ref());
            let expression = expression
                .map(|expression| expression.source().to_owned())
                .unwrap_or_default();
            Standpoint::Refused(Refusal::OwnerNotEligible {
                owner: name,
                expression,
            })
        }
        Err(error) => Standpoint::Refused(IdentityError::from(error).into()),
    }
}

/// What is known at once, under a policy that asks for no owner.
#[must_use]
pub fn without_owner(policy: &Policy, pod: &Value) -> Standpoint {
    of_values(policy, pod, None)
}

fn of_values(policy: &Policy, pod: &Value, owner: Option<&Value>) -> Standpoint {
    let values = policy
        .config_uid(pod, owner)
        .and_then(|uid| Ok((uid, policy.ordinal(pod, owner)?)));
    match values {
        Ok((config_uid, ordinal)) => Standpoint::Eligible { config_uid, ordinal },
        Err(error) => Standpoint::Refused(error.into()),
    }
}

impl From<IdentityError> for Refusal {
    fn from(error: IdentityError) -> Self {
        let message = error.to_string();
        let field = match error {
            IdentityError::Missing { field, .. }
            | IdentityError::Empty { field, .. }
            | IdentityError::TooLong { field, .. }
            | IdentityError::ControlCharacters { field, .. } => field,
            IdentityError::Expression(error) => error.field,
        };
        Self::IdentityInvalid { field, message }
    }
}

impl From<OwnerError> for Refusal {
    fn from(error: OwnerError) -> Self {
        let message = error.to_string();
        match error {
            OwnerError::Missing { .. } => Self::OwnerMissing { message },
            OwnerError::Several { .. } => Self::OwnerAmbiguous { message },
            OwnerError::Malformed { .. } => Self::IdentityInvalid {
                field: "metadata.ownerReferences".into(),
                message,
            },
        }
    }
}
