//! What one live read of a pod's name found, and the one notion of *active*.

use crate::api::claim::Outcome;

/// Whether a pod that exists still works, as its phase says.
///
/// Terminating, Pending, Running and Unknown pods are active: a deployer that is being deleted still deploys until it is
/// gone. The phases Succeeded and Failed end it, also while its object is still terminating.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Activity {
    /// Neither Succeeded nor Failed.
    Active,
    /// Phase Succeeded.
    Succeeded,
    /// Phase Failed.
    Failed,
}

impl Activity {
    /// Reads `status.phase`; a pod without one has just been made and is active.
    #[must_use]
    pub fn of_phase(phase: Option<&str>) -> Self {
        match phase {
            Some("Succeeded") => Self::Succeeded,
            Some("Failed") => Self::Failed,
            _ => Self::Active,
        }
    }

    /// Neither Succeeded nor Failed.
    #[must_use]
    pub fn is_active(self) -> bool {
        self == Self::Active
    }

    /// How it ended; `None` while it is active.
    #[must_use]
    pub fn outcome(self) -> Option<Outcome> {
        match self {
            Self::Active => None,
            Self::Succeeded => Some(Outcome::Completed),
            Self::Failed => Some(Outcome::Failed),
        }
    }
}

/// What a quorum GET of one pod name found.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Sighting {
    /// No pod of that name is in the store.
    Absent,
    /// A pod of that name is in the store.
    Present {
        /// Its uid: the name of a pod with another uid is another pod.
        uid: String,
        /// Whether it still works.
        activity: Activity,
    },
}

impl Sighting {
    /// The activity of the pod with this uid, if it is the one that was found.
    #[must_use]
    pub fn of(&self, wanted: &str) -> Option<Activity> {
        match self {
            Self::Present { uid, activity } if uid == wanted => Some(*activity),
            Self::Present { .. } | Self::Absent => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_succeeded_and_failed_end_a_pod() {
        for (phase, active) in [
            (None, true),
            (Some("Pending"), true),
            (Some("Running"), true),
            (Some("Unknown"), true),
            (Some(""), true),
            (Some("Succeeded"), false),
            (Some("Failed"), false),
        ] {
            assert_eq!(Activity::of_phase(phase).is_active(), active, "{phase:?}");
        }
    }

    #[test]
    fn a_name_with_another_uid_is_another_pod() {
        let seen = Sighting::Present {
            uid: "u1".into(),
            activity: Activity::Active,
        };
        assert_eq!(seen.of("u1"), Some(Activity::Active));
        assert_eq!(seen.of("u2"), None);
        assert_eq!(Sighting::Absent.of("u1"), None);
    }
}
