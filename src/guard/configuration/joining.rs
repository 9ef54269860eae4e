//! A guard that does not lead asks for trust in the authorities of its source: it adds them to the entries that lack them.
//!
//! After an upgrade that changes who makes the certificate, the guard that leads is one of before, and goes by the old source until its
//! Pod ends; and no Pod of before ends until a new one is ready, which it is when the entries trust its certificate. Adding an
//! authority takes nothing away: what was served is trusted as before. The guard that leads finds it, and keeps it
//! ([`CaBundle::found_stored`](super::ca_bundle::CaBundle::found_stored)).

use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::{ValidatingWebhook, ValidatingWebhookConfiguration};
use rustls::pki_types::CertificateDer;
use tokio::time::Instant;

use super::ca_bundle::pem;
use super::entries::is_ours;
use super::{Programmer, entries_of};
use crate::cluster::configurations::ConfigurationError;
use crate::cluster::webhook_configuration::unstocked;
use crate::telemetry::metrics::Outcome;
use crate::tls::trust::certificates;

/// How long the guard that leads has to add them itself: where both go by one source, it does.
const LEADER_FIRST: Duration = Duration::from_secs(3);
/// The longest pause between two tries.
const LONGEST_PAUSE: Duration = Duration::from_mins(5);
/// One that comes this long after the last is a first one.
const LONG_AGO: Duration = Duration::from_mins(10);

/// When the entries were first found to lack an authority, and when they were added.
#[derive(Debug, Default)]
pub(super) struct Joining {
    lacking: Option<Instant>,
    added: Option<(Instant, Duration)>,
    /// Since when the entries hold all of these.
    whole: Option<(Instant, Vec<CertificateDer<'static>>)>,
}

impl Joining {
    /// Whether it is time to add what is lacking of these authorities.
    fn is_due(&mut self, is_lacking: bool, authorities: &[CertificateDer<'static>], at: Instant) -> bool {
        let whole = self.whole.take().filter(|(_, held)| held == authorities);
        if !is_lacking {
            self.lacking = None;
            self.whole = whole.or_else(|| Some((at, authorities.to_vec())));
            return false;
        }
        // They were there for long, and the guard that leads has let go of them: replicas may serve by them.
        if whole.as_ref().is_some_and(|(since, _)| *since + LONG_AGO <= at) {
            self.whole = whole;
            return true;
        }
        let since = *self.lacking.get_or_insert(at);
        match self.added {
            // It was added, and taken away after long: it is needed at once.
            Some((added, _)) if added + LONG_AGO <= at => true,
            Some((added, pause)) => added + pause <= at,
            None => since + LEADER_FIRST <= at,
        }
    }

    fn added(&mut self, at: Instant) {
        let pause = match self.added {
            Some((added, pause)) if at < added + LONG_AGO => (pause * 2).min(LONGEST_PAUSE),
            _ => LEADER_FIRST,
        };
        self.added = Some((at, pause));
        self.whole = None;
    }
}

impl Programmer {
    /// Adds the authorities of this guard's source to entries of ours that lack them, if another guard leads and has not done so. Gives
    /// whether some lack them.
    pub(super) async fn join(&self, joining: &mut Joining, found: Option<&ValidatingWebhookConfiguration>) -> bool {
        let (entries, authorities) = (entries_of(found), self.ca_bundle.source());
        let lacking: Vec<_> = (0..entries.len())
            .filter(|i| !self.leads.leads() && joined(&entries[*i], &authorities) != entries[*i])
            .collect();
        let Some(found) = found.filter(|_| joining.is_due(!lacking.is_empty(), &authorities, Instant::now())) else {
            return !lacking.is_empty();
        };
        let with = |some: &[usize]| -> Vec<_> {
            let one = |(i, entry)| {
                if some.contains(&i) {
                    joined(entry, &authorities)
                } else {
                    entry.clone()
                }
            };
            entries.iter().enumerate().map(one).collect()
        };
        let mut written = self.configurations.replace_all(found, &with(&lacking), false).await;
        if matches!(written, Err(ConfigurationError::Refused(_))) {
            // The API server refuses one of them as it stands, perhaps: the others need not suffer for it. Another try adds the next.
            for i in &lacking {
                written = self.configurations.replace_all(found, &with(&[*i]), false).await;
                if !matches!(written, Err(ConfigurationError::Refused(_))) {
                    break;
                }
            }
        }
        match written {
            Ok(_) => {
                joining.added(Instant::now());
                self.metrics.configuration_written(Outcome::Done);
                tracing::info!(
                    configuration = self.settings.name,
                    "added the authorities of this guard's source to the entries: the guard that leads did not"
                );
            }
            Err(ConfigurationError::Conflict) => self.metrics.configuration_written(Outcome::Conflict),
            Err(error) => {
                joining.added(Instant::now());
                self.metrics.configuration_written(Outcome::Failed);
                tracing::warn!(%error, "the authorities of this guard's source cannot be added to the entries");
            }
        }
        true
    }
}

/// The entry with these authorities beside those that it has. Where it has none, the API server goes by its system's, and where it has
/// something else, the guard that leads puts it right: such an entry stays as it is, and so does one of others.
///
/// It no longer says that stock was taken: who writes an entry that differs from what it should be does not vouch for that.
fn joined(entry: &ValidatingWebhook, authorities: &[CertificateDer<'static>]) -> ValidatingWebhook {
    let stored = entry.client_config.ca_bundle.as_ref();
    let Some(stored) = stored
        .and_then(|bundle| certificates(&bundle.0).ok())
        .filter(|_| is_ours(&entry.name))
    else {
        return entry.clone();
    };
    let lacking: Vec<_> = authorities
        .iter()
        .filter(|authority| !stored.contains(authority))
        .collect();
    if lacking.is_empty() {
        return entry.clone();
    }
    let mut entry = unstocked(entry);
    entry.client_config.ca_bundle = Some(ByteString(pem(stored.iter().chain(lacking))));
    entry
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::admissionregistration::v1::WebhookClientConfig;

    use super::*;

    #[test]
    fn what_lacks_is_added_after_the_leader_had_its_time_and_again_ever_more_slowly() {
        let at = Instant::now();
        let seconds = |seconds| at + Duration::from_secs(seconds);
        let mut joining = Joining::default();
        assert!(!joining.is_due(true, &[], at));
        assert!(!joining.is_due(false, &[], seconds(2)), "the leader did it");
        assert!(!joining.is_due(true, &[], seconds(4)));
        assert!(joining.is_due(true, &[], seconds(7)));
        joining.added(seconds(7));
        assert!(!joining.is_due(true, &[], seconds(9)));
        assert!(joining.is_due(true, &[], seconds(10)), "somebody took it away");
        joining.added(seconds(10));
        assert!(!joining.is_due(true, &[], seconds(15)) && joining.is_due(true, &[], seconds(16)));
        joining.added(seconds(16));
        assert!(joining.is_due(true, &[], seconds(16 + 600)), "it was not kept for ever");
        joining.added(seconds(16 + 600));
        assert!(joining.is_due(true, &[], seconds(16 + 603)));
    }

    #[test]
    fn what_was_there_for_long_is_added_at_once_and_what_is_new_is_the_leaders_first() {
        let at = Instant::now();
        let seconds = |seconds| at + Duration::from_secs(seconds);
        let authority = |byte: u8| vec![CertificateDer::from(vec![byte])];
        let mut joining = Joining::default();
        assert!(!joining.is_due(false, &authority(1), at));
        assert!(!joining.is_due(false, &authority(1), seconds(3600)));
        assert!(joining.is_due(true, &authority(1), seconds(3601)), "it was let go of");
        assert!(
            joining.is_due(true, &authority(1), seconds(3602)),
            "the write met another"
        );
        joining.added(seconds(3602));
        assert!(
            !joining.is_due(true, &authority(1), seconds(3603)),
            "somebody takes it away again"
        );

        let mut joining = Joining::default();
        assert!(!joining.is_due(false, &authority(1), seconds(4000)));
        assert!(!joining.is_due(false, &authority(1), seconds(5000)));
        assert!(
            !joining.is_due(true, &authority(2), seconds(5001)),
            "the source has another"
        );
    }

    #[test]
    fn authorities_join_those_of_our_entries_and_nothing_else_changes() {
        let [one, two] = [(); 2].map(|()| {
            let pem = rcgen::generate_simple_self_signed(["ca".to_owned()])
                .unwrap()
                .cert
                .pem();
            certificates(pem.as_bytes()).unwrap()
        });
        let entry = |name: &str, bundle: Option<&[u8]>| ValidatingWebhook {
            name: name.into(),
            client_config: WebhookClientConfig {
                ca_bundle: bundle.map(|bundle| ByteString(bundle.to_vec())),
                url: Some("https://x/admit/app/u/1/stocked".into()),
                service: None,
            },
            ..ValidatingWebhook::default()
        };
        let (ours, stored) = ("app.policies.deployer-guard.io", pem(one.iter()));
        let both = pem(one.iter().chain(&two));
        let added = joined(&entry(ours, Some(&stored)), &two);
        assert_eq!(
            added.client_config.ca_bundle.as_ref().map(|bundle| &bundle.0),
            Some(&both)
        );
        assert_eq!(added.client_config.url.as_deref(), Some("https://x/admit/app/u/1"));
        for stays in [
            entry(ours, Some(&both)),
            entry(ours, None),
            entry(ours, Some(b"nonsense")),
            entry("another.example", Some(&stored)),
        ] {
            assert_eq!(joined(&stays, &two), stays);
        }
    }
}
