//! What the policies want: each of them judged, and the entries that are to stand for them.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::admissionregistration::v1::{ValidatingWebhook, ValidatingWebhookConfiguration};
use kube::ResourceExt;

use super::entries::{differences, policy_of};
use super::in_force::Forms;
use super::known::{Snapshot, version_of};
use super::{Programmer, RoundError, Settings, State, entries_of, left_out};
use crate::api::DeployerPolicy;
use crate::cluster::webhook_configuration::{generate, webhook_name};
use crate::guard::policy_standing::Accepted;

/// A policy, and what its entry is to be.
pub(super) struct Judged {
    pub(super) policy: DeployerPolicy,
    pub(super) accepted: Accepted,
    pub(super) entry: Option<Forms>,
}

impl Programmer {
    /// Judges again, on live reads of every policy whose entry differs: what was heard of a policy may be old, and nothing is written
    /// on the word of a list or a watch.
    pub(super) async fn judge_live(
        &self,
        state: &mut State,
        found: &ValidatingWebhookConfiguration,
        mut differing: BTreeSet<String>,
    ) -> Result<Vec<Judged>, RoundError> {
        let (stored, mut live) = (entries_of(Some(found)), BTreeMap::new());
        loop {
            for policy in differing.iter().filter_map(|name| policy_of(name)) {
                if !live.contains_key(policy) {
                    let what = "a policy";
                    let read = self.known.read(policy).await;
                    let read = read.map_err(|why| RoundError::Read { what, why })?;
                    live.insert(policy.to_owned(), read);
                }
            }
            let mut policies = self.known.snapshot();
            for (name, policy) in &live {
                policies.put(name, policy.clone());
            }
            let judged = self.judge(state, policies).await?;
            self.look(state, &judged, Some(found));
            differing = differences(&stored, &self.wanted(state, &stored));
            let is_read = |name: &String| policy_of(name).is_none_or(|policy| live.contains_key(policy));
            if differing.iter().all(is_read) {
                return Ok(judged);
            }
        }
    }

    /// Judges these policies.
    pub(super) async fn judge(&self, state: &mut State, policies: Snapshot) -> Result<Vec<Judged>, RoundError> {
        let mut judged = Vec::new();
        let (readable, unreadable) = policies.split();
        state.unreadable = unreadable;
        for policy in readable {
            let accepted = state.acceptance.judge(&policy).await.map_err(|why| RoundError::Read {
                what: "the kind of a policy's owner",
                why,
            })?;
            judged.push(Judged {
                policy,
                accepted,
                entry: None,
            });
        }
        let accepted: Vec<_> = judged
            .iter()
            .filter(|judged| judged.accepted == Accepted::Accepted)
            .map(|judged| judged.policy.clone())
            .collect();
        let entries = self.generated(&accepted, self.ca_bundle.current().as_deref());
        let mut entries: BTreeMap<_, _> = entries.map(|entry| (entry.name.clone(), entry)).collect();
        for judged in &mut judged {
            let plain = entries.remove(&webhook_name(&judged.policy.name_any()));
            judged.entry = plain.map(|plain| Forms::new(version_of(&judged.policy), plain));
        }
        Ok(judged)
    }

    /// The entries that are to stand in place of what was looked at: the one that judges policies first.
    pub(super) fn wanted(&self, state: &State, stored: &[ValidatingWebhook]) -> Vec<ValidatingWebhook> {
        let bundle = self.ca_bundle.current();
        let first = self.generated(&[], bundle.as_deref()).take(1);
        let unreadable = left_out::of_unreadable(stored, &state.unreadable, bundle.as_deref());
        first
            .chain(state.in_force.targets(&self.board))
            .chain(unreadable)
            .collect()
    }

    /// The entries of these policies, after the one that judges policies.
    fn generated(
        &self,
        policies: &[DeployerPolicy],
        bundle: Option<&[u8]>,
    ) -> impl Iterator<Item = ValidatingWebhook> + use<> {
        let Settings {
            backend,
            own_namespace,
            name,
            ..
        } = &self.settings;
        let generated = generate(policies, backend, bundle, own_namespace, name);
        generated.webhooks.into_iter().flatten()
    }
}
