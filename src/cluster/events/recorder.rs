//! Writes Events (events.k8s.io/v1), and makes a series of those that repeat.
//!
//! The recorder of kube-runtime takes two Events for one if they differ in their note alone. Then the second pod that a
//! holder keeps out would only raise the count of an Event that names the first.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::{Event, EventSeries};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::{Client, Error};
use serde_json::json;

use super::Notice;
use crate::domain::answer::truncate;

/// Who reports.
const CONTROLLER: &str = "deployer-guard.io/webhook";
/// A repetition within this time after the last one belongs to the same series.
const SERIES_ENDS: Duration = Duration::from_mins(6);
/// Series that are remembered; beyond that, a repetition may be an Event of its own.
const MAX_SERIES: usize = 4096;
/// Longest part of an Event's name that is the object's: the whole has at most 253 characters.
const MAX_NAME: usize = 230;

/// What two Events must share to be one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Cause {
    /// Namespace, kind, name, uid.
    regarding: [Option<String>; 4],
    related: Option<String>,
    reason: &'static str,
    note: String,
}

/// An Event that is in the store.
#[derive(Clone, Debug)]
struct Published {
    name: String,
    count: i32,
    last: Instant,
}

/// Writes Events; one for each cause and replica.
pub(super) struct Recorder {
    client: Client,
    instance: String,
    series: HashMap<Cause, Published>,
}

impl Recorder {
    /// `instance` tells the replicas apart.
    pub(super) fn new(client: Client, instance: String) -> Self {
        Self {
            client,
            instance,
            series: HashMap::new(),
        }
    }

    /// Writes a notice about one of its objects: a new Event, or one more of a series.
    pub(super) async fn publish(&mut self, notice: &Notice, regarding: &ObjectReference) -> Result<(), Error> {
        let now = Instant::now();
        self.forget(now);
        let cause = Cause::of(notice, regarding);
        let namespace = regarding.namespace.as_deref().unwrap_or("default");
        let api: Api<Event> = Api::namespaced(self.client.clone(), namespace);
        if let Some(published) = self.series.get_mut(&cause) {
            match repeat(&api, published).await {
                Ok(_) => {
                    published.count += 1;
                    published.last = now;
                    return Ok(());
                }
                // It has expired or was deleted.
                Err(Error::Api(status)) if status.code == 404 => {}
                Err(error) => return Err(error),
            }
        }
        let name = event_name(regarding.name.as_deref().unwrap_or_default(), Timestamp::now());
        let event = self.event(&name, notice, regarding);
        api.create(&PostParams::default(), &event).await?;
        let published = Published {
            name,
            count: 1,
            last: now,
        };
        self.series.insert(cause, published);
        Ok(())
    }

    fn forget(&mut self, now: Instant) {
        if self.series.len() >= MAX_SERIES {
            self.series.clear();
        }
        self.series
            .retain(|_, published| now.duration_since(published.last) < SERIES_ENDS);
    }

    fn event(&self, name: &str, notice: &Notice, regarding: &ObjectReference) -> Event {
        Event {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                namespace: regarding.namespace.clone(),
                ..ObjectMeta::default()
            },
            event_time: Some(MicroTime(Timestamp::now())),
            type_: Some("Warning".to_owned()),
            reason: Some(notice.reason.to_owned()),
            action: Some("Admit".to_owned()),
            note: Some(notice.note.clone()),
            regarding: Some(regarding.clone()),
            related: notice.related.clone(),
            reporting_controller: Some(CONTROLLER.to_owned()),
            reporting_instance: Some(self.instance.clone()),
            ..Event::default()
        }
    }
}

impl Cause {
    fn of(notice: &Notice, regarding: &ObjectReference) -> Self {
        Self {
            regarding: [
                regarding.namespace.clone(),
                regarding.kind.clone(),
                regarding.name.clone(),
                regarding.uid.clone(),
            ],
            related: notice.related.as_ref().and_then(|related| related.uid.clone()),
            reason: notice.reason,
            note: notice.note.clone(),
        }
    }
}

async fn repeat(api: &Api<Event>, published: &Published) -> Result<Event, Error> {
    let series = EventSeries {
        count: published.count + 1,
        last_observed_time: MicroTime(Timestamp::now()),
    };
    let patch = Patch::Merge(json!({ "series": series }));
    api.patch(&published.name, &PatchParams::default(), &patch).await
}

/// As `cfg-2.18a3c0f2d1e4b5c6`; a long name of the object is cut.
fn event_name(object: &str, now: Timestamp) -> String {
    let mut object = object.to_owned();
    truncate(&mut object, MAX_NAME);
    let object = object.trim_end_matches(['.', '-']);
    format!("{object}.{:x}", now.as_nanosecond())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_name_of_the_object_is_cut_so_that_the_event_has_a_name() {
        let now = Timestamp::now();
        let name = event_name(&format!("{}-{}", "a".repeat(229), "b".repeat(23)), now);
        assert!(name.len() <= 253, "{}", name.len());
        assert!(name.starts_with(&format!("{}.", "a".repeat(229))), "{name}");
    }

    #[test]
    fn refusals_that_differ_in_their_text_alone_are_two_causes() {
        let notice = |note: &str| Notice {
            regarding: Vec::new(),
            related: None,
            reason: "DeployerRejected",
            note: note.to_owned(),
        };
        let claim = ObjectReference::default();
        assert_eq!(Cause::of(&notice("a"), &claim), Cause::of(&notice("a"), &claim));
        assert_ne!(Cause::of(&notice("a"), &claim), Cause::of(&notice("b"), &claim));
    }
}
