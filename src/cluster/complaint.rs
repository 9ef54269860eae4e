//! What is said of a watch that does not work.

use kube::runtime::watcher::Event;

use super::store::Failure;

/// Says what is wrong with a watch once, and that it works again.
#[derive(Debug)]
pub(crate) struct Complaint {
    what: &'static str,
    said: Option<String>,
}

impl Complaint {
    /// Nothing is wrong yet. `what` is watched, in the plural.
    pub(crate) fn new(what: &'static str) -> Self {
        Self { what, said: None }
    }

    /// The watch failed. Of a `policy`, or of none.
    pub(crate) fn fails(&mut self, policy: &str, why: &Failure) {
        // A watch that expired begins anew by itself, and a connection that breaks is made again.
        if matches!(why, Failure::Answered { code: 410, .. }) {
            tracing::debug!(policy, what = self.what, error = %why, "a watch begins anew");
            return;
        }
        let text = why.to_string();
        if self.said.as_ref() != Some(&text) {
            tracing::warn!(
                policy,
                what = self.what,
                error = text,
                "a watch does not work; trying again"
            );
            self.said = Some(text);
        }
    }

    /// That a watch begins says nothing yet: its list may fail.
    pub(crate) fn hears<K>(&mut self, policy: &str, event: &Event<K>) {
        if !matches!(event, Event::Init) {
            self.works(policy);
        }
    }

    /// The watch works.
    pub(crate) fn works(&mut self, policy: &str) {
        if self.said.take().is_some() {
            tracing::info!(policy, what = self.what, "the watch works again");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_is_said_once_however_often_it_is_tried() {
        let mut complaint = Complaint::new("claims");
        let gone = Failure::Answered {
            code: 404,
            reason: "NotFound".into(),
            message: "the server could not find the requested resource".into(),
        };
        for _ in 0..3 {
            complaint.hears("", &Event::<()>::Init);
            complaint.fails("", &gone);
            assert!(
                complaint.said.is_some(),
                "each try begins with Init, and is no recovery"
            );
        }
        complaint.hears("", &Event::<()>::InitDone);
        assert_eq!(complaint.said, None);
    }

    #[test]
    fn a_watch_that_expired_is_ordinary() {
        let mut complaint = Complaint::new("pods");
        let expired = Failure::Answered {
            code: 410,
            reason: "Expired".into(),
            message: String::new(),
        };
        complaint.fails("p", &expired);
        assert_eq!(complaint.said, None);
    }
}
