//! What the room tells others of its rounds: how each policy stands, and what cannot be done.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::admissionregistration::v1::{ValidatingWebhook, ValidatingWebhookConfiguration};
use kube::ResourceExt;

use super::entries::same_but_for_the_bundle;
use super::in_force::Forms;
use super::judging::Judged;
use super::known::{Unreadable, version_of};
use super::left_out::Why;
use super::{Programmer, State, entries_of};
use crate::api::policy::FailurePolicy;
use crate::guard::policy_standing::{Accepted, Enforced, Standing, Standings};

impl Programmer {
    /// Leaves on the board, and tells others, how the policies stand.
    pub(super) fn tell(
        &self,
        state: &mut State,
        judged: &[Judged],
        stored: Option<&ValidatingWebhookConfiguration>,
        unknown: Option<&Enforced>,
    ) {
        let entries = entries_of(stored);
        let mut standings = Standings::new();
        for judged in judged {
            let version = version_of(&judged.policy);
            let enforced = match (unknown, stored, &judged.entry) {
                (Some(why), _, _) => why.clone(),
                (None, _, None) => Enforced::NotAccepted,
                (None, None, Some(_)) => Enforced::ConfigurationMissing,
                (None, Some(_), Some(forms)) if self.is_stored(&entries, forms) => Enforced::Stored,
                (None, Some(_), Some(forms)) => {
                    match forms.both().into_iter().find_map(|entry| state.left_out.why(entry)) {
                        Some(Why::Refused(text)) => Enforced::Refused(text.clone()),
                        Some(Why::TooLarge(text)) => Enforced::TooLarge(text.clone()),
                        None => Enforced::Pending,
                    }
                }
            };
            let standing = Standing {
                version,
                failure_policy: judged.policy.spec.effective_failure_policy(),
                accepted: judged.accepted.clone(),
                enforced,
            };
            standings.insert(judged.policy.name_any(), standing);
        }
        // What is known of a version that cannot be read now is forgotten: nobody looks whether its entry stays in force.
        let versions: Vec<_> = standings.values().map(|standing| standing.version.clone()).collect();
        self.board.keep(&versions);
        for (name, unreadable) in &state.unreadable {
            let enforced = match (unknown, stored) {
                (Some(why), _) => why.clone(),
                (None, None) => Enforced::ConfigurationMissing,
                (None, Some(_)) => Enforced::Kept,
            };
            let standing = Standing {
                version: unreadable.version.clone(),
                failure_policy: FailurePolicy::Fail,
                accepted: Accepted::Unreadable(unreadable.why.clone()),
                enforced,
            };
            standings.insert(name.clone(), standing);
        }
        let not_enforced = standings
            .values()
            .filter(|standing| standing.enforced != Enforced::Stored);
        let missing = stored.is_none() && unknown.is_none();
        self.metrics.enforced(missing, not_enforced.count());
        let why_of = |(name, unreadable): (&String, &Unreadable)| (name.clone(), unreadable.why.clone());
        let told: BTreeMap<_, _> = state.unreadable.iter().map(why_of).collect();
        for (policy, why) in &told {
            if state.unreadable_told.get(policy) != Some(why) {
                tracing::error!(
                    policy,
                    why,
                    "a policy cannot be read: what is stored of its entry stays. Was it written for a newer version?"
                );
            }
        }
        state.unreadable_told = told;
        if missing && !state.missing_told {
            tracing::error!(
                configuration = self.settings.name,
                "the webhook configuration does not exist: no policy is in force. It is never made here: apply the manifest that it belongs to"
            );
        }
        state.missing_told = missing;
        self.standings.send_if_modified(|before| {
            let changed = **before != standings;
            *before = Arc::new(standings);
            changed
        });
    }

    /// Whether an entry is stored in one of its forms, with the bundle of now or the one before it.
    fn is_stored(&self, stored: &[ValidatingWebhook], forms: &Forms) -> bool {
        let is_one = |found: &ValidatingWebhook| {
            let bundle = found.client_config.ca_bundle.as_ref().map(|bundle| bundle.0.as_slice());
            forms
                .both()
                .into_iter()
                .any(|form| same_but_for_the_bundle(found, form))
                && self.ca_bundle.knows(bundle)
        };
        stored.iter().any(is_one)
    }
}
