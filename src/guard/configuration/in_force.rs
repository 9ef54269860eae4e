//! Which entries have been in force without a break, and which of them are to say that stock was taken.
//!
//! That stock was taken stands in one place: the URL of the policy's entry. An entry keeps that word only if it was read live just
//! now exactly as it is to be, word and all; it gets it only if stock was taken while it stood without a break. Every other entry
//! is written without it, so putting an entry right and forgetting the stock are one write. Nothing that a process remembers can
//! bring the word back; what it remembers can only take it away.

use std::collections::{HashMap, HashSet};

use k8s_openapi::api::admissionregistration::v1::{ValidatingWebhook, ValidatingWebhookConfiguration};
use tokio::time::Instant;

use super::entries::same;
use crate::cluster::webhook_configuration::stocked;
use crate::guard::board::{Board, Notice, PolicyVersion};

/// The entry of one version of a policy, in both forms that it may have.
#[derive(Clone, Debug)]
pub(super) struct Forms {
    version: PolicyVersion,
    plain: ValidatingWebhook,
    stocked: ValidatingWebhook,
}

/// What stands in the stored configuration for one version of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stands {
    /// Its entry, which does not say that stock was taken.
    Plain,
    /// Its entry, which says that stock was taken.
    Stocked,
    /// Nothing, or something else: what came in meanwhile may have been seen by nobody.
    Broken,
}

/// A state of the entries: the API server counts the generation up whenever an entry changes, and a configuration that is made
/// anew has another uid.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    uid: String,
    generation: i64,
}

/// What is known of the stored configuration from live reads, and from writes that were conditional on them.
#[derive(Debug, Default)]
pub(super) struct InForce {
    wanted: Vec<Forms>,
    stands: HashMap<PolicyVersion, Stands>,
    /// The configuration at the last look or own write; `None`: there was none, or nobody looked yet.
    last: Option<Place>,
    /// This guard led at the last look.
    led: bool,
    /// Versions whose entry was broken, or may have been, since it last stood without the word: the word is not believed.
    doubted: HashSet<PolicyVersion>,
}

impl Forms {
    /// The forms of an entry, from the one that does not say that stock was taken.
    pub(super) fn new(version: PolicyVersion, plain: ValidatingWebhook) -> Self {
        Self {
            version,
            stocked: stocked(&plain),
            plain,
        }
    }

    /// Both forms.
    pub(super) fn both(&self) -> [&ValidatingWebhook; 2] {
        [&self.plain, &self.stocked]
    }

    fn stands_in(&self, entries: &[ValidatingWebhook]) -> Stands {
        // Nothing may differ, the CA bundle included: while it was another one, nobody may have been asked.
        match entries.iter().find(|entry| entry.name == self.plain.name) {
            Some(found) if same(found, &self.plain) => Stands::Plain,
            Some(found) if same(found, &self.stocked) => Stands::Stocked,
            _ => Stands::Broken,
        }
    }
}

impl Place {
    fn of(configuration: &ValidatingWebhookConfiguration) -> Self {
        Self {
            uid: configuration.metadata.uid.clone().unwrap_or_default(),
            generation: configuration.metadata.generation.unwrap_or_default(),
        }
    }
}

impl InForce {
    /// From now on these entries are wanted. To be followed by a look.
    pub(super) fn want(&mut self, wanted: Vec<Forms>) {
        self.stands.clear();
        self.doubted
            .retain(|version| wanted.iter().any(|forms| forms.version == *version));
        self.wanted = wanted;
    }

    /// Looks at the configuration as it was just read live, `None` if there is none, before anything of it is put right.
    ///
    /// A watch may have gaps, and this guard may have been cut off: where the entries changed otherwise than by its own writes since
    /// its last look, all time in force begins anew. One that leads does not believe the word of such entries either; one that did
    /// not lead may, since the guard that led has written it.
    pub(super) fn look(&mut self, board: &Board, read: Option<&ValidatingWebhookConfiguration>, leads: bool) {
        let (before, now) = (self.last.take(), read.map(Place::of));
        if before != now {
            let doubtful = match (&before, &now) {
                (Some(before), Some(now)) => before.uid != now.uid || self.led && leads,
                _ => false,
            };
            for forms in &self.wanted {
                board.note(&forms.version, Notice::broken);
                if doubtful {
                    self.doubted.insert(forms.version.clone());
                }
            }
        }
        self.last = now;
        self.led = leads;
        if !leads {
            // Whoever leads takes stock: what this guard found when it led is old when it leads again.
            for forms in &self.wanted {
                board.note(&forms.version, |notice| notice.stock_taken = None);
            }
        }
        self.compare(
            board,
            read.and_then(|read| read.webhooks.as_deref()).unwrap_or_default(),
        );
    }

    /// This guard has written the configuration, on the condition that it still was what it had read or written before.
    pub(super) fn wrote(
        &mut self,
        board: &Board,
        before: &ValidatingWebhookConfiguration,
        written: &ValidatingWebhookConfiguration,
    ) {
        if self.last.as_ref() == Some(&Place::of(before)) {
            self.last = Some(Place::of(written));
        }
        self.compare(board, written.webhooks.as_deref().unwrap_or_default());
    }

    /// What a watch tells was so, if only for a moment.
    pub(super) fn heard(&mut self, board: &Board, told: Option<&ValidatingWebhookConfiguration>) {
        let entries = told.and_then(|told| told.webhooks.as_deref()).unwrap_or_default();
        for forms in &self.wanted {
            if forms.stands_in(entries) == Stands::Broken {
                board.note(&forms.version, Notice::broken);
                self.doubted.insert(forms.version.clone());
            }
        }
    }

    /// The entries that are to stand in place of what stood at the last look.
    pub(super) fn targets(&self, board: &Board) -> Vec<ValidatingWebhook> {
        self.wanted
            .iter()
            .map(|forms| {
                if self.is_to_say_so(board, &forms.version) {
                    forms.stocked.clone()
                } else {
                    forms.plain.clone()
                }
            })
            .collect()
    }

    fn is_to_say_so(&self, board: &Board, version: &PolicyVersion) -> bool {
        match self.stands.get(version) {
            Some(Stands::Stocked) => !self.doubted.contains(version),
            Some(Stands::Plain) => board.read(version).is_stock_taken(),
            Some(Stands::Broken) | None => false,
        }
    }

    fn compare(&mut self, board: &Board, entries: &[ValidatingWebhook]) {
        for forms in &self.wanted {
            let (version, stands) = (&forms.version, forms.stands_in(entries));
            match stands {
                Stands::Broken => drop(self.doubted.insert(version.clone())),
                Stands::Plain => drop(self.doubted.remove(version)),
                Stands::Stocked => {}
            }
            let believed = stands == Stands::Stocked && !self.doubted.contains(version);
            board.note(version, |notice| {
                if stands == Stands::Broken {
                    notice.broken();
                } else {
                    notice.in_force_since.get_or_insert_with(Instant::now);
                    notice.stocked = believed;
                }
            });
            self.stands.insert(version.clone(), stands);
        }
    }
}

#[cfg(test)]
mod tests;
