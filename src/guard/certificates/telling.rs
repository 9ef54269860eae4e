//! What is said of the Secret: Events about what was written, and in the log what keeps a round from its end.

use k8s_openapi::api::core::v1::{ObjectReference, Secret};
use rustls::pki_types::CertificateDer;

use super::Certificates;
use super::held::Held;
use super::memory::Memory;
use super::plan::{PATIENCE, Step};
use crate::cluster::events::{Notice, Severity};

impl Certificates {
    pub(super) fn publish(&self, secret: &Secret, reason: &'static str, note: String) {
        self.events.take(Notice {
            regarding: vec![ObjectReference {
                api_version: Some("v1".into()),
                kind: Some("Secret".into()),
                namespace: Some(self.settings.namespace.clone()),
                name: Some(self.settings.name.clone()),
                uid: secret.metadata.uid.clone(),
                ..ObjectReference::default()
            }],
            related: None,
            severity: Severity::Normal,
            reason,
            action: "Renew",
            note,
        });
    }

    /// Says for which entries a new authority waits: a warning where it has waited for long.
    pub(super) fn tell_wait(
        &self,
        memory: &mut Memory,
        held: &Held,
        entries: &[String],
        stored: &[Vec<CertificateDer<'static>>],
        now: i64,
    ) {
        let waiting = held.waiting();
        let lacks = |bundle: &[_]| waiting.is_some_and(|ca| !bundle.contains(&ca.certificate));
        let lacking = entries.iter().zip(stored).filter(|(_, bundle)| lacks(bundle));
        let lacking: Vec<_> = lacking.map(|(entry, _)| entry.as_str()).collect();
        let what = "a new authority joined the bundle, and waits until";
        if lacking.is_empty() {
            self.note(
                memory,
                &format!("{what} all API servers have heard that the stored webhook configuration trusts it"),
            );
        } else if waiting.is_none_or(|ca| now < ca.life.made() + PATIENCE) {
            self.note(
                memory,
                &format!(
                    "{what} the stored webhook configuration trusts it in {}",
                    lacking.join(", ")
                ),
            );
        } else {
            self.tell(memory, &format!(
                "{what} the stored webhook configuration trusts it in {}: these could not be written for minutes, and the guard that leads says why",
                lacking.join(", ")
            ));
        }
    }

    /// Says what keeps a round from its end, once.
    pub(super) fn tell(&self, memory: &mut Memory, what: &str) {
        if memory.told != what {
            tracing::warn!(secret = self.settings.name, "{what}");
            what.clone_into(&mut memory.told);
        }
    }

    /// The same of what is in order.
    pub(super) fn note(&self, memory: &mut Memory, what: &str) {
        if memory.told != what {
            tracing::info!(secret = self.settings.name, "{what}");
            what.clone_into(&mut memory.told);
        }
    }
}

/// The reason of the Event about a step, and its text.
pub(super) fn told(step: &Step) -> (&'static str, String) {
    match step {
        Step::Restore => (
            "CertificatesRestored",
            "the Secret had lost its content: it was put back".into(),
        ),
        Step::Join(why) => (
            "AuthorityJoined",
            format!("a new authority joined the CA bundle: {why}"),
        ),
        Step::Promote(why) => (
            "AuthorityIssues",
            format!("the new authority issued the serving certificate: {why}"),
        ),
        Step::Issue(why) => (
            "CertificateIssued",
            format!("a new serving certificate was issued: {why}"),
        ),
        Step::Tidy(what) => ("CertificatesTidied", format!("taken out of the Secret: {what}")),
        Step::Wait | Step::Doubt | Step::Rest => ("None", String::new()),
    }
}
