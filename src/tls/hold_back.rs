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
    /// Since when no entry has lost by it.
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

/// Seconds before its end in which a pair is taken for ended: API servers have clocks of their own, and count an end from its first
/// moment.
pub const LAST_MOMENTS: i64 = 5;

/// The first entry of ours that would not accept a pair.
#[must_use]
pub fn distrust(pair: &Pair, entries: &[Truster], now: i64) -> Option<Why> {
    entries.iter().find_map(|entry| {
        let why = entry.trusts(pair.chain(), now).err()?;
        let entry = entry.entry.clone();
        Some(Why::NotTrusted { entry, why })
    })
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

    /// Whether what the entries trust makes a difference: where the old pair is of no use, or is about to be, the new one is served
    /// at once.
    #[must_use]
    pub fn is_needed(current: Option<&Pair>, now: i64) -> bool {
        current.is_some_and(|current| current.valid_at(now + LAST_MOMENTS).is_ok())
    }

    /// What is to be done with a new pair while the current one is good.
    ///
    /// It is held back only for the sake of an entry that trusts the current pair and not the new one; and where others trust the new
    /// one alone, the pair is served that more entries trust.
    pub fn judge(&mut self, current: &Pair, new: &Pair, look: &Look<'_>) -> Verdict {
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
        let (mut lose, mut win, mut first) = (0_usize, 0_usize, None);
        for entry in entries {
            let trusts_current = entry.trusts(current.chain(), look.now).is_ok();
            match entry.trusts(new.chain(), look.now) {
                Ok(()) if !trusts_current => win += 1,
                Err(why) if trusts_current => {
                    lose += 1;
                    let entry = entry.entry.clone();
                    first.get_or_insert(Why::NotTrusted { entry, why });
                }
                Ok(()) | Err(_) => {}
            }
        }
        if win > lose {
            return Verdict::Serve;
        }
        if let Some(why) = first {
            self.trusted = None;
            return Verdict::Hold(why);
        }
        let since = *self.trusted.get_or_insert(look.ended);
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
        let (current, pair, other) = (issued(&old), issued(&new), issued(&new));
        let entry = |ca: &Made| Truster {
            entry: "p".into(),
            server_name: "127.0.0.1".into(),
            bundle: Some(ca.certificate.clone().into_bytes()),
        };
        let both = || Truster {
            bundle: Some(format!("{}{}", old.certificate, new.certificate).into_bytes()),
            ..entry(&old)
        };
        let (trusting, half) = (Ok(vec![both()]), Ok(vec![both(), entry(&old)]));
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
        ] {
            let at = began + Duration::from_secs(second);
            let look = Look {
                entries,
                begun: at,
                ended: at,
                now: NOW,
            };
            assert_eq!(
                hold_back.judge(&current, pair, &look) == Verdict::Serve,
                served,
                "{second}: {what}"
            );
        }
        assert!(HoldBack::is_needed(Some(&pair), NOW) && !HoldBack::is_needed(Some(&pair), NOW + 96));
        assert!(!HoldBack::is_needed(None, NOW));
    }

    #[test]
    fn the_pair_is_served_that_more_entries_trust() {
        let [old, new, foreign] = [(); 3].map(|()| authority(Life::from(NOW, 1000)).unwrap());
        let (current, pair) = (issued(&old), issued(&new));
        let entry = |authorities: &[&Made]| Truster {
            entry: "p".into(),
            server_name: "127.0.0.1".into(),
            bundle: Some(authorities.iter().flat_map(|ca| ca.certificate.bytes()).collect()),
        };
        let (o, n, b, f) = (entry(&[&old]), entry(&[&new]), entry(&[&old, &new]), entry(&[&foreign]));
        for (what, entries, at_once, later) in [
            ("one trusts the current pair alone", vec![&b, &b, &o], false, false),
            ("as many trust either alone", vec![&b, &n, &o], false, false),
            ("more trust the current one alone", vec![&o, &n, &o], false, false),
            ("more trust the new one alone", vec![&n, &n, &o], true, true),
            ("none trusts the current one", vec![&n, &f], true, true),
            ("one trusts neither", vec![&b, &f], false, true),
            ("none trusts any", vec![&f], false, true),
        ] {
            let entries = Ok(entries.into_iter().cloned().collect());
            let (mut hold_back, began) = (HoldBack::new(DELAY), Instant::now());
            let mut judge = |at| {
                let look = Look {
                    entries: &entries,
                    begun: at,
                    ended: at,
                    now: NOW,
                };
                hold_back.judge(&current, &pair, &look) == Verdict::Serve
            };
            assert_eq!((judge(began), judge(began + DELAY)), (at_once, later), "{what}");
        }
    }
}
