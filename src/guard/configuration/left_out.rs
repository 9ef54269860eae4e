//! Entries that are left as they are stored: those that the API server does not take, remembered, so that they are not tried again and
//! again, and those of policies that cannot be read.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhook;
use tokio::time::Instant;

use super::entries::{fingerprint, policy_of};
use super::known::Unreadable;
use crate::cluster::webhook_configuration::unstocked;

/// After how long one is tried again although it has not changed: the API server may have.
const AGAIN: Duration = Duration::from_mins(10);

/// Why an entry is left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// The API server refuses it: its text.
    Refused(String),
    /// It does not fit beside the others.
    TooLarge(String),
}

/// The entries that are left out, by what they mean.
#[derive(Debug, Default)]
pub(super) struct LeftOut(HashMap<String, (Why, Instant)>);

impl LeftOut {
    /// Leaves an entry out from now on.
    pub(super) fn remember(&mut self, entry: &ValidatingWebhook, why: Why) {
        self.0.retain(|_, (_, since)| since.elapsed() < AGAIN);
        self.0.insert(fingerprint(entry), (why, Instant::now()));
    }

    /// Why an entry is left out, if it is.
    pub(super) fn why(&self, entry: &ValidatingWebhook) -> Option<&Why> {
        let (why, since) = self.0.get(&fingerprint(entry))?;
        (since.elapsed() < AGAIN).then_some(why)
    }

    /// What is to be written: everything that is wanted but what is left out, in whose place the entry that is stored for the same
    /// policy stays. An old rule is better than none.
    ///
    /// In place of one that is refused it stays with the CA bundle of now: replicas exchange their certificate when all entries trust
    /// the new one, and would wait for it for ever.
    pub(super) fn without(
        &mut self,
        wanted: &[ValidatingWebhook],
        stored: &[ValidatingWebhook],
    ) -> Vec<ValidatingWebhook> {
        self.make_room(wanted, stored);
        let out: Vec<_> = wanted.iter().filter(|entry| self.why(entry).is_some()).collect();
        let mut target = keeping_stored(wanted, stored, &out);
        for refused in out
            .iter()
            .filter(|entry| matches!(self.why(entry), Some(Why::Refused(_))))
        {
            let Some(kept) = target.iter_mut().find(|entry| entry.name == refused.name) else {
                continue;
            };
            let mut trusting = kept.clone();
            trusting
                .client_config
                .ca_bundle
                .clone_from(&refused.client_config.ca_bundle);
            // Unless that is refused as well.
            if self.why(&trusting).is_none() {
                *kept = trusting;
            }
        }
        target
    }

    /// Where something of ours goes, there may be room for what did not fit.
    fn make_room(&mut self, wanted: &[ValidatingWebhook], stored: &[ValidatingWebhook]) {
        let goes = |entry: &&ValidatingWebhook| {
            super::entries::is_ours(&entry.name) && wanted.iter().all(|other| other.name != entry.name)
        };
        if stored.iter().any(|entry| goes(&entry)) {
            self.0.retain(|_, (why, _)| !matches!(why, Why::TooLarge(_)));
        }
    }
}

/// What is wanted, with what is stored in place of these, if there is anything. What is not as it is to be never says that stock was
/// taken: who knows for how long it has been like that.
pub(super) fn keeping_stored(
    wanted: &[ValidatingWebhook],
    stored: &[ValidatingWebhook],
    out: &[&ValidatingWebhook],
) -> Vec<ValidatingWebhook> {
    let is_out = |entry: &ValidatingWebhook| out.iter().any(|other| other.name == entry.name);
    let kept = |entry: &ValidatingWebhook| {
        if is_out(entry) {
            stored.iter().find(|other| other.name == entry.name).map(unstocked)
        } else {
            Some(entry.clone())
        }
    };
    wanted.iter().filter_map(kept).collect()
}

/// The entries of policies that cannot be read: they stay as they are stored, with the CA bundle of now.
pub(super) fn of_unreadable(
    stored: &[ValidatingWebhook],
    unreadable: &BTreeMap<String, Unreadable>,
    bundle: Option<&[u8]>,
) -> Vec<ValidatingWebhook> {
    let of_them = |entry: &&ValidatingWebhook| policy_of(&entry.name).is_some_and(|name| unreadable.contains_key(name));
    let kept = |entry: &ValidatingWebhook| {
        let mut kept = unstocked(entry);
        kept.client_config.ca_bundle = bundle.map(|bundle| ByteString(bundle.to_vec()));
        kept
    };
    stored.iter().filter(of_them).map(kept).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::board::PolicyVersion;

    fn entry(name: &str, timeout: i32) -> ValidatingWebhook {
        ValidatingWebhook {
            name: format!("{name}.policies.deployer-guard.io"),
            timeout_seconds: Some(timeout),
            ..ValidatingWebhook::default()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_entry_is_left_out_until_it_changes_or_time_has_passed() {
        let mut left_out = LeftOut::default();
        let (good, bad, mended) = (entry("good", 1), entry("bad", 1), entry("bad", 2));
        left_out.remember(&bad, Why::Refused("no".into()));
        assert_eq!(
            left_out.without(&[good.clone(), bad.clone()], &[]),
            std::slice::from_ref(&good)
        );
        let both = [good, mended];
        assert_eq!(left_out.without(&both, &[]), both);
        tokio::time::advance(AGAIN).await;
        assert!(left_out.why(&bad).is_none());
    }

    #[tokio::test]
    async fn the_stored_entry_of_an_older_generation_stays_in_place_of_a_refused_one() {
        let mut left_out = LeftOut::default();
        let (old, new) = (entry("app", 1), entry("app", 2));
        left_out.remember(&new, Why::Refused("no".into()));
        assert_eq!(left_out.without(&[new], std::slice::from_ref(&old)), [old]);
    }

    #[tokio::test]
    async fn what_stays_in_place_of_a_refused_entry_trusts_the_bundle_of_now_unless_that_is_refused_too() {
        let bundle = |entry: &ValidatingWebhook, bundle: &str| {
            let mut entry = entry.clone();
            entry.client_config.ca_bundle = Some(ByteString(bundle.into()));
            entry
        };
        let mut left_out = LeftOut::default();
        let (old, new) = (bundle(&entry("app", 1), "old"), bundle(&entry("app", 2), "new"));
        let wanted = std::slice::from_ref(&new);
        left_out.remember(&new, Why::Refused("no".into()));
        let trusting = bundle(&old, "new");
        let target = left_out.without(wanted, std::slice::from_ref(&old));
        assert_eq!(target, std::slice::from_ref(&trusting));
        assert_eq!(left_out.without(wanted, &target), target, "it is written once");
        left_out.remember(&trusting, Why::Refused("no".into()));
        assert_eq!(
            left_out.without(wanted, std::slice::from_ref(&old)),
            std::slice::from_ref(&old)
        );
        let mut left_out = LeftOut::default();
        left_out.remember(&new, Why::TooLarge("no".into()));
        assert_eq!(left_out.without(wanted, std::slice::from_ref(&old)), [old]);
    }

    #[tokio::test]
    async fn what_stays_in_place_of_a_refused_entry_does_not_say_that_stock_was_taken() {
        let (mut old, new) = (entry("app", 1), entry("app", 2));
        for path in ["https://x/admit/app/u/1", "https://x/admit/app/u/1/stocked"] {
            old.client_config.url = Some(path.into());
            let kept = keeping_stored(std::slice::from_ref(&new), std::slice::from_ref(&old), &[&new]);
            assert_eq!(kept[0].client_config.url.as_deref(), Some("https://x/admit/app/u/1"));
        }
    }

    #[tokio::test]
    async fn what_did_not_fit_is_tried_again_when_another_goes() {
        let mut left_out = LeftOut::default();
        let (small, large) = (entry("small", 1), entry("large", 1));
        left_out.remember(&large, Why::TooLarge("no".into()));
        let stored = [small.clone()];
        assert_eq!(left_out.without(&[small.clone(), large.clone()], &stored), stored);
        assert_eq!(left_out.without(std::slice::from_ref(&large), &stored), [large]);
    }

    #[test]
    fn the_entry_of_a_policy_that_cannot_be_read_stays_with_the_bundle_of_now_and_without_the_word() {
        let mut stored = entry("strange", 1);
        stored.client_config.url = Some("https://webhook.example/admit/strange/uid/1/stocked".into());
        stored.client_config.ca_bundle = Some(ByteString(b"old".to_vec()));
        let of = |name: &str| Unreadable {
            version: PolicyVersion {
                name: name.into(),
                uid: "u".into(),
                generation: 1,
            },
            status: None,
            why: "why".into(),
        };
        let unreadable = ["strange", "never-stored"].map(|name| (name.to_owned(), of(name)));
        let unreadable = BTreeMap::from(unreadable);
        let kept = of_unreadable(&[stored.clone(), entry("good", 1)], &unreadable, Some(b"new"));
        stored.client_config.url = Some("https://webhook.example/admit/strange/uid/1".into());
        stored.client_config.ca_bundle = Some(ByteString(b"new".to_vec()));
        assert_eq!(kept, [stored]);
    }
}
