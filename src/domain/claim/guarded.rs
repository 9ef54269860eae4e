//! The transitions that a guard makes: freed, adopted, spared, condemned, forgotten.
//!
//! Each gives `None` where it changes nothing or must not be made, so that a caller that misjudged writes nothing.

use jiff::Timestamp;

use crate::api::claim::{ClaimEntry, DeployerClaimSpec, Outcome, PROTOCOL, PodReference};

/// A claim names this many condemned pods. Beyond it no more are condemned: a mark is never lost.
pub const MAX_CONDEMNED: usize = 32;
/// A claim names this many spared pods. Beyond it the others are reported.
pub const MAX_SPARED: usize = 32;

impl DeployerClaimSpec {
    /// Never to be deleted by us.
    #[must_use]
    pub fn is_spared(&self, uid: &str) -> bool {
        self.spared.iter().any(|pod| pod.uid == uid)
    }

    /// Holder or pending.
    #[must_use]
    pub fn is_entry(&self, uid: &str) -> bool {
        self.entries().any(|entry| entry.uid == uid)
    }

    /// These entries have ended: each was in the store, and by a GET that began after this claim was read it has finished or is gone.
    #[must_use]
    pub fn freed(&self, ended: &[(ClaimEntry, Outcome)], now: Timestamp) -> Option<Self> {
        let mut next = self.clone();
        for (entry, outcome) in ended.iter().filter(|(entry, _)| self.is_entry(&entry.uid)) {
            next.end(entry, *outcome, now);
        }
        (next.entries().count() < self.entries().count()).then_some(next)
    }

    /// A deployer that was not admitted becomes the holder. A GET that began after this claim was read found it active, and each entry
    /// ended: `ended` are those. `None` if another entry is left, or the pod is condemned.
    #[must_use]
    pub fn adopted(&self, pod: ClaimEntry, ended: &[(ClaimEntry, Outcome)], now: Timestamp) -> Option<Self> {
        let mut next = self.clone();
        for (entry, outcome) in ended {
            next.end(entry, *outcome, now);
        }
        if next.entries().next().is_some() || self.is_condemned(&pod.uid) {
            return None;
        }
        next.protocol = PROTOCOL;
        next.raise(&pod);
        next.holder = Some(pod);
        Some(next)
    }

    /// These pods are never deleted by us. `None` if there is no room for all of them, or one is condemned.
    #[must_use]
    pub fn sparing(&self, pods: &[PodReference]) -> Option<Self> {
        let mut next = self.clone();
        for pod in pods.iter().filter(|pod| !self.is_spared(&pod.uid)) {
            next.spared.push(pod.clone());
        }
        let condemned = pods.iter().any(|pod| self.is_condemned(&pod.uid));
        let sound = !condemned && next.spared.len() > self.spared.len() && next.spared.len() <= MAX_SPARED;
        next.protocol = PROTOCOL;
        sound.then_some(next)
    }

    /// These pods are to be deleted. A holder among them leaves the claim by the same write; it leaves no outcome, because it never ran.
    /// `None` if there is no room for all of them, or one is pending, spared or condemned already.
    #[must_use]
    pub fn condemning(&self, pods: &[PodReference]) -> Option<Self> {
        let exempt =
            |pod: &PodReference| self.is_pending(&pod.uid) || self.is_spared(&pod.uid) || self.is_condemned(&pod.uid);
        if pods.is_empty() || pods.iter().any(exempt) || self.condemned.len() + pods.len() > MAX_CONDEMNED {
            return None;
        }
        let mut next = self.clone();
        next.condemned.extend(pods.iter().cloned());
        next.holder
            .take_if(|holder| pods.iter().any(|pod| pod.uid == holder.uid));
        next.protocol = PROTOCOL;
        Some(next)
    }

    /// These condemned pods are gone, and these spared ones are gone or have finished. `ended` are outcomes of some of the latter.
    #[must_use]
    pub fn forgetting(&self, pods: &[PodReference], ended: &[(ClaimEntry, Outcome)], now: Timestamp) -> Option<Self> {
        let mut next = self.clone();
        let kept = |pod: &PodReference| pods.iter().all(|gone| gone.uid != pod.uid);
        next.condemned.retain(kept);
        next.spared.retain(kept);
        if (next.condemned.len(), next.spared.len()) == (self.condemned.len(), self.spared.len()) {
            return None;
        }
        for (entry, outcome) in ended.iter().filter(|(entry, _)| !self.is_entry(&entry.uid)) {
            next.raise(entry);
            next.remember(entry, *outcome, now);
        }
        Some(next)
    }
}
