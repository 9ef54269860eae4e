//! Holds a new pair back until the stored webhook configuration trusts it: API servers that do not know its authority yet would
//! refuse creates meanwhile.

use std::time::Duration;

use tokio::time::Instant;

use super::pair::{Fingerprint, Pair};
use super::trust::Truster;
use crate::cluster::store::Failure;

/// How long a configuration that cannot be read keeps a new pair back.
pub const UNREADABLE: Duration = Duration::from_mins(2);

/// What is to be done with a new pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is served from now on.
    Serve,
    /// The old pair is still the one to serve with.
    Hold(Why),
}

/// Why a new pair is held back.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Why {
    /// An entry of ours would not accept it.
    #[error("entry {entry:?} of the stored webhook configuration does not trust it yet: {why}")]
    NotTrusted {
        /// The entry.
        entry: String,
        /// What verification says.
        why: String,
    },
    /// All entries would, for too short a time.
    #[error("the stored webhook configuration trusts it, and API servers are given time to learn that")]
    Settling,
    /// What the entries trust is not known.
    #[error("the webhook configuration cannot be read: {0}")]
    Unread(String),
}

/// What is remembered of a new pair from look to look.
#[derive(Debug)]
pub struct HoldBack {
    delay: Duration,
    about: Option<Fingerprint>,
    /// Since when every entry has trusted it.
    trusted: Option<Instant>,
    /// Since when the configuration could not be read.
    unread: Option<Instant>,
}

/// One look at what the entries trust.
pub struct Look<'a> {
    /// The entries, or why they could not be read.
    pub entries: &'a Result<Vec<Truster>, Failure>,
    /// When the read was begun.
    pub begun: Instant,
    /// When it was over.
    pub ended: Instant,
    /// The time of this machine, in seconds since the Unix epoch.
    pub now: i64,
}

impl HoldBack {
    /// Nothing is held back yet. A pair has to be trusted for `delay` before it is served.
    #[must_use]
    pub fn new(delay: Duration) -> Self {
        Self {
            delay,
            about: None,
            trusted: None,
            unread: None,
        }
    }

    /// Whether what the entries trust makes a difference: where the old pair is of no use, the new one is served at once.
    #[must_use]
    pub fn is_needed(old: &Pair, now: i64) -> bool {
        old.valid_at(now).is_ok()
    }

    /// What is to be done with a new pair while the old one is valid. An old one that is no longer trusted is of no use either.
    pub fn judge(&mut self, new: &Pair, old: &Pair, look: &Look<'_>) -> Verdict {
        if self.about != Some(new.fingerprint()) {
            *self = Self {
                about: Some(new.fingerprint()),
                ..Self::new(self.delay)
            };
        }
        let entries = match look.entries {
            Ok(entries) => entries,
            Err(why) => {
                let since = *self.unread.get_or_insert(look.ended);
                if look.begun.saturating_duration_since(since) >= UNREADABLE {
                    return Verdict::Serve;
                }
                return Verdict::Hold(Why::Unread(why.to_string()));
            }
        };
        self.unread = None;
        let distrust = entries.iter().find_map(|entry| {
            let why = entry.trusts(new.chain(), look.now).err()?;
            let entry = entry.entry.clone();
            Some(Why::NotTrusted { entry, why })
        });
        if let Some(why) = distrust {
            self.trusted = None;
            return Verdict::Hold(why);
        }
        let since = *self.trusted.get_or_insert(look.ended);
        if entries.iter().any(|entry| entry.trusts(old.chain(), look.now).is_err()) {
            return Verdict::Serve;
        }
        if look.begun.saturating_duration_since(since) >= self.delay {
            Verdict::Serve
        } else {
            Verdict::Hold(Why::Settling)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::certificates::authority::{Life, Made, authority, serving};
    use crate::tls::trust::certificates;

    const NOW: i64 = 1_800_000_000;
    const DELAY: Duration = Duration::from_secs(10);

    fn issued(ca: &Made) -> Pair {
        let authority = certificates(ca.certificate.as_bytes()).unwrap().remove(0);
        let made = serving(&authority, &ca.key, &["127.0.0.1".into()], Life::from(NOW, 100)).unwrap();
        let provider = rustls::crypto::ring::default_provider();
        Pair::parse(made.certificate.as_bytes(), made.key.as_bytes(), &provider).unwrap()
    }

    #[test]
    fn a_pair_is_served_when_all_have_trusted_it_without_a_break_or_nobody_knows_for_two_minutes() {
        let [old, new] = [(); 2].map(|()| authority(Life::from(NOW, 1000)).unwrap());
        let (served_now, pair, other) = (issued(&old), issued(&new), issued(&new));
        let entry = |authorities: &[&Made]| Truster {
            entry: "p".into(),
            server_name: "127.0.0.1".into(),
            bundle: Some(authorities.iter().flat_map(|ca| ca.certificate.bytes()).collect()),
        };
        let new_alone = Ok(vec![entry(&[&new])]);
        let (trusting, half) = (
            Ok(vec![entry(&[&old, &new])]),
            Ok(vec![entry(&[&old, &new]), entry(&[&old])]),
        );
        let (nobody, unread) = (Ok(Vec::new()), Err(Failure::TimedOut));
        let began = Instant::now();
        let mut hold_back = HoldBack::new(DELAY);
        for (second, what, pair, entries, served) in [
            (0, "trusted just now", &pair, &trusting, false),
            (9, "for too short", &pair, &trusting, false),
            (10, "for long enough", &pair, &trusting, true),
            (20, "one does not", &pair, &half, false),
            (21, "all do again", &pair, &trusting, false),
            (30, "for too short again", &pair, &trusting, false),
            (31, "nobody knows", &pair, &unread, false),
            (32, "all have, then and now", &pair, &trusting, true),
            (33, "another pair begins anew", &other, &trusting, false),
            (43, "and has its time", &other, &trusting, true),
            (50, "nobody knows", &other, &unread, false),
            (169, "for less than two minutes", &other, &unread, false),
            (170, "for two minutes", &other, &unread, true),
            (200, "nobody calls, for the first time", &pair, &nobody, false),
            (210, "nobody calls", &pair, &nobody, true),
            (211, "the old one is trusted no more", &other, &new_alone, true),
        ] {
            let at = began + Duration::from_secs(second);
            let look = Look {
                entries,
                begun: at,
                ended: at,
                now: NOW,
            };
            assert_eq!(
                hold_back.judge(pair, &served_now, &look) == Verdict::Serve,
                served,
                "{second}: {what}"
            );
        }
        assert!(HoldBack::is_needed(&pair, NOW) && !HoldBack::is_needed(&pair, NOW + 101));
    }
}
