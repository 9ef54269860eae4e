//! How the entries get into the stored configuration: all at once, and where the API server does not take them, as many as it does.

use k8s_openapi::api::admissionregistration::v1::{ValidatingWebhook, ValidatingWebhookConfiguration};

use super::entries::{differences, fingerprint, merged};
use super::left_out::Why;
use super::{Programmer, State, entries, entries_of, left_out};
use crate::cluster::configurations::ConfigurationError;
use crate::cluster::store::Failure;
use crate::telemetry::metrics::Outcome;

impl Programmer {
    /// Writes what is wanted, less what is left out; learns what has to be left out.
    pub(super) async fn write(
        &self,
        state: &mut State,
        found: &ValidatingWebhookConfiguration,
        wanted: &[ValidatingWebhook],
    ) -> Result<(), ConfigurationError> {
        let stored = entries_of(Some(found));
        self.tell_drift(state, &stored, wanted);
        let target = state.left_out.without(wanted, &stored);
        if self.settings.dry_run {
            tracing::info!(entries = ?differences(&stored, &target), "would write the webhook configuration");
            return Ok(());
        }
        match self.write_exactly(state, found, &target).await {
            Err(ConfigurationError::Refused(text)) => self.find_refused(state, found, &target, &text).await,
            Err(ConfigurationError::TooLarge(text)) => self.fit(state, found, &target, &text).await,
            result => result.map(drop),
        }
    }

    /// Makes these all of our entries, if it still is what was found. Gives what it is then.
    async fn write_exactly(
        &self,
        state: &mut State,
        found: &ValidatingWebhookConfiguration,
        target: &[ValidatingWebhook],
    ) -> Result<ValidatingWebhookConfiguration, ConfigurationError> {
        if !self.leads.leads() {
            return Err(ConfigurationError::Conflict);
        }
        let written = match self.configurations.apply(found, target, false).await {
            // Another manager owns what we would take away.
            Ok(written) if !differences(&entries_of(Some(&written)), target).is_empty() => {
                state.in_force.wrote(&self.board, found, &written);
                self.replace_all(state, &written, target).await?
            }
            // Or a part of it: without ours, the rest makes no sense.
            Err(ConfigurationError::Refused(_)) => self.replace_all(state, found, target).await?,
            result => {
                let written = result?;
                state.in_force.wrote(&self.board, found, &written);
                written
            }
        };
        let differing = differences(&entries_of(Some(&written)), target);
        if !differing.is_empty() {
            let text = format!("the API server stores {differing:?} in another way than they were written");
            return Err(ConfigurationError::Failed(Failure::Unreadable(text)));
        }
        self.metrics.configuration_written(Outcome::Done);
        tracing::info!(
            configuration = self.settings.name,
            entries = target.len(),
            changed = ?differences(&entries_of(Some(found)), target),
            "wrote the webhook configuration"
        );
        self.look_at_bundles(state, Some(&written));
        state.written = Some(fingerprints(target));
        Ok(written)
    }

    /// Makes these all of our entries, whoever owns a part of them.
    async fn replace_all(
        &self,
        state: &mut State,
        found: &ValidatingWebhookConfiguration,
        target: &[ValidatingWebhook],
    ) -> Result<ValidatingWebhookConfiguration, ConfigurationError> {
        if !self.leads.leads() {
            return Err(ConfigurationError::Conflict);
        }
        let all = merged(&entries_of(Some(found)), target);
        let written = self.configurations.replace_all(found, &all, false).await?;
        state.in_force.wrote(&self.board, found, &written);
        Ok(written)
    }

    /// The API server refuses the whole: each changed entry is tried beside what is stored, in a dry run. What is refused is left
    /// out from now on.
    async fn find_refused(
        &self,
        state: &mut State,
        found: &ValidatingWebhookConfiguration,
        target: &[ValidatingWebhook],
        text: &str,
    ) -> Result<(), ConfigurationError> {
        let stored = entries_of(Some(found));
        let changed = changed(&stored, target);
        let mut any = false;
        for &entry in &changed {
            let others: Vec<_> = changed
                .iter()
                .copied()
                .filter(|other| other.name != entry.name)
                .collect();
            let attempt = merged(&stored, &left_out::keeping_stored(target, &stored, &others));
            match self.configurations.replace_all(found, &attempt, true).await {
                Err(ConfigurationError::Refused(text)) => {
                    tracing::warn!(
                        entry = entry.name,
                        text,
                        "the API server refuses an entry: what is stored of it stays, if there is anything"
                    );
                    state.left_out.remember(entry, Why::Refused(text));
                    any = true;
                }
                Err(ConfigurationError::Conflict) => return Err(ConfigurationError::Conflict),
                Err(ConfigurationError::Failed(why)) => return Err(ConfigurationError::Failed(why)),
                Ok(_) | Err(ConfigurationError::TooLarge(_)) => {}
            }
        }
        if !any {
            // Each is good alone: it is their company.
            for entry in changed {
                state.left_out.remember(entry, Why::Refused(text.to_owned()));
            }
        }
        let target = state.left_out.without(target, &stored);
        self.write_exactly(state, found, &target).await.map(drop)
    }

    /// The whole does not fit: as many of the changed entries as do are written, by halves. A write that does not fit changes
    /// nothing.
    async fn fit(
        &self,
        state: &mut State,
        found: &ValidatingWebhookConfiguration,
        target: &[ValidatingWebhook],
        text: &str,
    ) -> Result<(), ConfigurationError> {
        let stored = entries_of(Some(found));
        let mut changed = changed(&stored, target);
        // What is in force comes before what is new.
        changed.sort_by_key(|entry| stored.iter().all(|other| other.name != entry.name));
        let (mut fits, mut too_many) = (0, changed.len());
        // Each success makes a new version: what somebody else changed meanwhile has to be looked at first.
        let mut now = found.clone();
        while too_many - fits > 1 {
            let some = fits.midpoint(too_many);
            let attempt = left_out::keeping_stored(target, &stored, &changed[some..]);
            match self.write_exactly(state, &now, &attempt).await {
                Ok(written) => (now, fits) = (written, some),
                Err(ConfigurationError::TooLarge(_)) => too_many = some,
                Err(other) => return Err(other),
            }
        }
        for entry in &changed[fits..] {
            tracing::warn!(
                entry = entry.name,
                text,
                "an entry does not fit into the webhook configuration as it is to be: what is stored of it stays, if there is anything"
            );
            state.left_out.remember(entry, Why::TooLarge(text.to_owned()));
        }
        Ok(())
    }

    fn tell_drift(&self, state: &State, stored: &[ValidatingWebhook], wanted: &[ValidatingWebhook]) {
        let ours: Vec<_> = stored
            .iter()
            .filter(|entry| entries::is_ours(&entry.name))
            .cloned()
            .collect();
        if state
            .written
            .as_ref()
            .is_some_and(|written| *written != fingerprints(&ours))
        {
            self.metrics.configuration_drifted();
            tracing::warn!(
                configuration = self.settings.name,
                entries = ?differences(stored, wanted),
                "somebody else changed our entries of the webhook configuration; putting them right"
            );
        }
    }
}

/// The entries of the target that are not stored as they are to be.
fn changed<'a>(stored: &[ValidatingWebhook], target: &'a [ValidatingWebhook]) -> Vec<&'a ValidatingWebhook> {
    let names = differences(stored, target);
    target.iter().filter(|entry| names.contains(&entry.name)).collect()
}

fn fingerprints(entries: &[ValidatingWebhook]) -> Vec<String> {
    let mut all: Vec<_> = entries.iter().map(fingerprint).collect();
    all.sort();
    all
}
