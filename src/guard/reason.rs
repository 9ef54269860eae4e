//! What the guard did or found, as one word: the reason of its Events, in its log, and with its metrics.

use crate::domain::leftovers::{Action, Change, Condemnation, CondemnedStays, Finding};

/// What the guard did or found. The words are stable: people alert on them, and docs/reasons.md explains each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reason {
    /// An admitted pod was seen in the store.
    DeployerConfirmed,
    /// Its holder finished or is gone: the key is free.
    ClaimFreed,
    /// A deployer that was not admitted became the holder.
    DeployerAdopted,
    /// A deployer that is never deleted by us.
    DeployerSpared,
    /// A duplicate is about to be deleted.
    DuplicateCondemned,
    /// An orphan is about to be deleted.
    OrphanCondemned,
    /// A condemned pod was deleted.
    DeployerDeleted,
    /// Condemned or spared pods are gone.
    DeployerForgotten,
    /// A waiting owner was touched.
    OwnerWoken,
    /// Woken owners were taken off the list.
    OwnerUnlisted,
    /// A claim of no more use was removed.
    ClaimRemoved,
    /// Two are active for one key.
    DuplicateDeployer,
    /// It is active again.
    DeployerRevived,
    /// It was stored long after its admission.
    DeployerLate,
    /// Its owner has nothing left for it to do.
    DeployerOrphaned,
    /// Its owner could not be read or judged.
    OwnerUnread,
    /// It is active for too long.
    DeployerStuck,
    /// It is condemned, and is not deleted.
    CondemnedStays,
    /// The policy no longer matches it.
    IdentityChanged,
    /// What it works for cannot be read.
    IdentityUnreadable,
    /// More leftovers than a claim holds.
    TooManyLeftovers,
    /// The claim is of a newer version.
    NewerProtocol,
}

impl Reason {
    /// All of them.
    pub const ALL: [Self; 22] = [
        Self::DeployerConfirmed,
        Self::ClaimFreed,
        Self::DeployerAdopted,
        Self::DeployerSpared,
        Self::DuplicateCondemned,
        Self::OrphanCondemned,
        Self::DeployerDeleted,
        Self::DeployerForgotten,
        Self::OwnerWoken,
        Self::OwnerUnlisted,
        Self::ClaimRemoved,
        Self::DuplicateDeployer,
        Self::DeployerRevived,
        Self::DeployerLate,
        Self::DeployerOrphaned,
        Self::OwnerUnread,
        Self::DeployerStuck,
        Self::CondemnedStays,
        Self::IdentityChanged,
        Self::IdentityUnreadable,
        Self::TooManyLeftovers,
        Self::NewerProtocol,
    ];

    /// The word.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::DeployerConfirmed => "DeployerConfirmed",
            Self::ClaimFreed => "ClaimFreed",
            Self::DeployerAdopted => "DeployerAdopted",
            Self::DeployerSpared => "DeployerSpared",
            Self::DuplicateCondemned => "DuplicateCondemned",
            Self::OrphanCondemned => "OrphanCondemned",
            Self::DeployerDeleted => "DeployerDeleted",
            Self::DeployerForgotten => "DeployerForgotten",
            Self::OwnerWoken => "OwnerWoken",
            Self::OwnerUnlisted => "OwnerUnlisted",
            Self::ClaimRemoved => "ClaimRemoved",
            Self::DuplicateDeployer => "DuplicateDeployer",
            Self::DeployerRevived => "DeployerRevived",
            Self::DeployerLate => "DeployerLate",
            Self::DeployerOrphaned => "DeployerOrphaned",
            Self::OwnerUnread => "OwnerUnread",
            Self::DeployerStuck => "DeployerStuck",
            Self::CondemnedStays => "CondemnedStays",
            Self::IdentityChanged => "IdentityChanged",
            Self::IdentityUnreadable => "IdentityUnreadable",
            Self::TooManyLeftovers => "TooManyLeftovers",
            Self::NewerProtocol => "NewerProtocol",
        }
    }

    /// Something is out of order, or a pod is deleted; else it is the normal course of things.
    #[must_use]
    pub fn is_warning(self) -> bool {
        !matches!(
            self,
            Self::DeployerConfirmed
                | Self::ClaimFreed
                | Self::DeployerForgotten
                | Self::OwnerWoken
                | Self::OwnerUnlisted
                | Self::ClaimRemoved
        )
    }

    /// What an action is.
    #[must_use]
    pub fn of_action(action: &Action) -> Self {
        match action {
            Action::WriteClaim { change, .. } => match change {
                Change::Confirmed { .. } => Self::DeployerConfirmed,
                Change::Freed(_) => Self::ClaimFreed,
                Change::Adopted { .. } => Self::DeployerAdopted,
                Change::Spared(_) => Self::DeployerSpared,
                Change::Condemned(pods) => match pods.first() {
                    Some((_, Condemnation::Orphan(_))) => Self::OrphanCondemned,
                    Some((_, Condemnation::Duplicate)) | None => Self::DuplicateCondemned,
                },
                Change::Forgotten(_) => Self::DeployerForgotten,
            },
            Action::DeletePod { .. } => Self::DeployerDeleted,
            Action::Wake(_) => Self::OwnerWoken,
            Action::Unlist(_) => Self::OwnerUnlisted,
            Action::RemoveClaim => Self::ClaimRemoved,
        }
    }

    /// What a finding is.
    #[must_use]
    pub fn of_finding(finding: &Finding) -> Self {
        match finding {
            Finding::Duplicate { .. } => Self::DuplicateDeployer,
            Finding::Revived(_) => Self::DeployerRevived,
            Finding::LateArrival(_) => Self::DeployerLate,
            Finding::Orphan { .. } => Self::DeployerOrphaned,
            Finding::OwnerUnread { .. } => Self::OwnerUnread,
            Finding::Stuck { .. } => Self::DeployerStuck,
            Finding::CondemnedStays { .. } => Self::CondemnedStays,
            Finding::IdentityChanged(_) => Self::IdentityChanged,
            Finding::IdentityUnreadable { .. } => Self::IdentityUnreadable,
            Finding::Crowded(_) => Self::TooManyLeftovers,
            Finding::NewerProtocol { .. } => Self::NewerProtocol,
        }
    }
}

/// Why a condemned pod stays, for people.
pub(super) fn why_it_stays(why: CondemnedStays) -> &'static str {
    match why {
        CondemnedStays::Started => "it was bound to a node before it could be deleted; stop it by hand",
        CondemnedStays::Terminating => {
            "it is being deleted already, and something keeps it; look at its finalizers and its node"
        }
        CondemnedStays::Disarmed => "the policy's mode is not Enforce, so nothing is deleted",
        CondemnedStays::IdentityChanged => "the policy no longer matches it; delete it by hand",
        CondemnedStays::HoldsTheClaim => "the claim names it as its holder, too; look at who edited the claim",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_is_explained() {
        let text = include_str!("../../docs/reasons.md");
        for reason in Reason::ALL {
            assert!(text.contains(&format!("`{}`", reason.word())), "{reason:?}");
        }
    }

    #[test]
    fn no_two_have_one_word() {
        let words: std::collections::BTreeSet<_> = Reason::ALL.iter().map(|reason| reason.word()).collect();
        assert_eq!(words.len(), Reason::ALL.len());
    }
}
