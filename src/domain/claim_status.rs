//! What a claim's status says, from its spec and what was refused since it was last written.

use super::answer::truncate;
use super::waiting::OwnerNews;
use crate::api::claim::{Batch, DeployerClaimSpec, DeployerClaimStatus, Phase, Rejection};

/// A claim's status keeps this many refusals, newest first.
pub const MAX_RECENT: usize = 10;

/// A claim's status remembers the last batch of this many writers: each that could have a write on its way.
pub const MAX_WRITERS: usize = 16;

/// Longest text of a refusal in a claim's status, in bytes.
pub const MAX_MESSAGE: usize = 1000;

/// What happened to one key that its claim's status does not hold yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unwritten {
    /// How many refusals there were.
    pub count: i64,
    /// The last of them, newest first, at most [`MAX_RECENT`].
    pub recent: Vec<Rejection>,
    /// Owners that wait, or wait no more.
    pub owners: OwnerNews,
}

impl Unwritten {
    /// Takes in a refusal. Its text is cut: the claim is read at each decision.
    pub fn add(&mut self, mut rejection: Rejection) {
        truncate(&mut rejection.message, MAX_MESSAGE);
        self.count += 1;
        self.recent.insert(0, rejection);
        self.recent.truncate(MAX_RECENT);
    }

    /// Whether there is nothing to write.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0 && self.owners.is_empty()
    }

    /// Takes back what could not be written: it is older than what is here.
    pub fn take_back(&mut self, older: Self) {
        self.count += older.count;
        self.recent.extend(older.recent);
        self.recent.truncate(MAX_RECENT);
        self.owners.take_back(older.owners);
    }
}

/// The phase that a spec is in, as far as the claim knows.
#[must_use]
pub fn phase(spec: &DeployerClaimSpec) -> Phase {
    match &spec.holder {
        _ if !spec.pending.is_empty() => Phase::Pending,
        Some(_) => Phase::Held,
        None => Phase::Free,
    }
}

/// Whether a status holds a batch already.
///
/// A write whose answer was lost may have been done, and may still be done: it is sent again as the same batch, conditional on
/// the version that was asked this. So it counts once.
#[must_use]
pub fn holds(status: Option<&DeployerClaimStatus>, batch: &Batch) -> bool {
    let batches = status
        .and_then(|status| status.rejections.as_ref())
        .map(|it| &it.batches);
    let mut batches = batches.into_iter().flatten();
    batches.any(|held| held.writer == batch.writer && held.number >= batch.number)
}

/// The status with this added, as that batch. Everything else in it stays.
#[must_use]
pub fn updated(
    status: Option<&DeployerClaimStatus>,
    spec: &DeployerClaimSpec,
    unwritten: &Unwritten,
    batch: &Batch,
) -> DeployerClaimStatus {
    let mut status = status.cloned().unwrap_or_default();
    status.phase = Some(phase(spec));
    unwritten.owners.apply(&mut status.waiting);
    if unwritten.count > 0 {
        let rejections = status.rejections.get_or_insert_default();
        rejections.count += unwritten.count;
        rejections.recent.extend(unwritten.recent.iter().cloned());
        rejections
            .recent
            .sort_by_key(|rejection| std::cmp::Reverse(rejection.time));
        rejections.recent.truncate(MAX_RECENT);
        rejections.batches.retain(|held| held.writer != batch.writer);
        rejections.batches.insert(0, batch.clone());
        rejections.batches.truncate(MAX_WRITERS);
    }
    status
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::api::claim::{ClaimEntry, Rejections};

    fn rejection(second: i64) -> Rejection {
        Rejection {
            time: Timestamp::from_second(second).unwrap(),
            pod: format!("pod-{second}"),
            ..Rejection::default()
        }
    }

    fn entry(uid: &str) -> ClaimEntry {
        ClaimEntry {
            uid: uid.into(),
            ..ClaimEntry::default()
        }
    }

    fn batch(writer: &str, number: i64) -> Batch {
        Batch {
            writer: writer.into(),
            number,
            ..Batch::default()
        }
    }

    #[test]
    fn a_batch_is_held_from_its_write_on_whoever_else_writes() {
        let mut one = Unwritten::default();
        one.add(rejection(1));
        let write = |status: Option<&DeployerClaimStatus>, batch: &Batch| {
            updated(status, &DeployerClaimSpec::default(), &one, batch)
        };
        assert!(!holds(None, &batch("a", 1)));
        let mut status = write(None, &batch("a", 4));
        for (writer, number, expected) in [("a", 4, true), ("a", 3, true), ("a", 5, false), ("b", 4, false)] {
            assert_eq!(
                holds(Some(&status), &batch(writer, number)),
                expected,
                "{writer} {number}"
            );
        }
        for other in 1..MAX_WRITERS {
            status = write(Some(&status), &batch(&format!("other-{other}"), 9));
            status = write(Some(&status), &batch(&format!("other-{other}"), 10));
        }
        assert!(holds(Some(&status), &batch("a", 4)));
        status = write(Some(&status), &batch("one too many", 1));
        assert!(!holds(Some(&status), &batch("a", 4)));
        assert_eq!(status.rejections.unwrap().batches.len(), MAX_WRITERS);
    }

    #[test]
    fn the_phase_follows_holder_and_pending() {
        let free = DeployerClaimSpec::default();
        let held = DeployerClaimSpec {
            holder: Some(entry("u")),
            ..free.clone()
        };
        let pending = DeployerClaimSpec {
            pending: vec![entry("u")],
            ..held.clone()
        };
        let released = DeployerClaimSpec {
            pending: vec![entry("u")],
            ..free.clone()
        };
        for (spec, expected) in [
            (free, Phase::Free),
            (held, Phase::Held),
            (pending, Phase::Pending),
            (released, Phase::Pending),
        ] {
            assert_eq!(phase(&spec), expected, "{spec:?}");
        }
    }

    #[test]
    fn every_refusal_is_counted_and_the_newest_are_kept_in_order() {
        let mut unwritten = Unwritten::default();
        (0..30).for_each(|second| unwritten.add(rejection(second)));
        unwritten.recent[0].message = String::new();
        let long = Rejection {
            message: "ä".repeat(4000),
            ..rejection(29)
        };
        let mut cut = Unwritten::default();
        cut.add(long);
        assert!(cut.recent[0].message.len() <= MAX_MESSAGE);
        let mut later = Unwritten::default();
        later.add(rejection(100));
        later.take_back(unwritten);
        let before = DeployerClaimStatus {
            rejections: Some(Rejections {
                count: 5,
                recent: vec![rejection(25), rejection(1)],
                ..Rejections::default()
            }),
            ..DeployerClaimStatus::default()
        };
        let status = updated(Some(&before), &DeployerClaimSpec::default(), &later, &batch("a", 1));
        let rejections = status.rejections.unwrap();
        assert_eq!(rejections.count, 36);
        assert_eq!(rejections.recent.len(), MAX_RECENT);
        assert_eq!(rejections.recent[0].pod, "pod-100");
        assert!(
            rejections
                .recent
                .is_sorted_by_key(|rejection| std::cmp::Reverse(rejection.time))
        );
    }

    #[test]
    fn nothing_but_phase_and_rejections_changes() {
        let mut before = DeployerClaimStatus::default();
        before.unknown.insert("newer".into(), 1.into());
        let (spec, nothing) = (DeployerClaimSpec::default(), Unwritten::default());
        let after = updated(Some(&before), &spec, &nothing, &batch("a", 1));
        assert_eq!(
            after,
            DeployerClaimStatus {
                phase: Some(Phase::Free),
                ..before
            }
        );
    }
}
