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
use kube::core::Status;
use kube::{Client, Error};
use serde_json::json;
use sha2::{Digest, Sha256};

use super::{Notice, Severity};
use crate::domain::answer::truncate;

/// Who reports, where nobody else is named.
const CONTROLLER: &str = "deployer-guard.io/webhook";
/// A repetition within this time after the last one belongs to the same series.
const SERIES_ENDS: Duration = Duration::from_mins(6);
/// Series that are remembered; beyond that, a repetition may be an Event of its own.
const MAX_SERIES: usize = 4096;
/// Longest part of an Event's name that is the object's: the whole has at most 253 characters.
const MAX_NAME: usize = 230;

/// How long a namespace that takes no Events is left alone: one of that name may be made again.
const LEFT_ALONE: Duration = Duration::from_secs(30);
/// Namespaces that are remembered as ending.
const MAX_ENDING: usize = 1024;

/// What two Events must share to be one, as a digest: notes and names are long, and thousands are remembered.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Cause([u8; 32]);

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
    controller: &'static str,
    instance: String,
    series: HashMap<Cause, Published>,
    /// Namespaces that took no Event because they are ending or gone, and when that was.
    ending: HashMap<String, Instant>,
}

impl Recorder {
    /// `instance` tells the replicas apart.
    pub(super) fn new(client: Client, instance: String) -> Self {
        Self {
            client,
            controller: CONTROLLER,
            instance,
            series: HashMap::new(),
            ending: HashMap::new(),
        }
    }

    /// Whether the namespace of this object took no Event just now, because it is ending or gone.
    pub(super) fn is_ending(&self, regarding: &ObjectReference) -> bool {
        let ending = self.ending.get(namespace(regarding));
        ending.is_some_and(|since| since.elapsed() < LEFT_ALONE)
    }

    /// Reports under this name.
    pub(super) fn reporting_as(self, controller: &'static str) -> Self {
        Self { controller, ..self }
    }

    /// Writes a notice about one of its objects: a new Event, or one more of a series.
    pub(super) async fn publish(&mut self, notice: &Notice, regarding: &ObjectReference) -> Result<(), Error> {
        let now = Instant::now();
        self.forget(now);
        let cause = Cause::of(notice, regarding);
        let api: Api<Event> = Api::namespaced(self.client.clone(), namespace(regarding));
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
        let created = api.create(&PostParams::default(), &event).await;
        if let Err(Error::Api(status)) = &created
            && takes_nothing(status)
        {
            self.leave_alone(namespace(regarding), now);
        }
        created?;
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

    fn leave_alone(&mut self, namespace: &str, now: Instant) {
        self.ending.retain(|_, since| now.duration_since(*since) < LEFT_ALONE);
        if self.ending.len() < MAX_ENDING {
            self.ending.insert(namespace.to_owned(), now);
        }
    }

    fn event(&self, name: &str, notice: &Notice, regarding: &ObjectReference) -> Event {
        Event {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                namespace: regarding.namespace.clone(),
                ..ObjectMeta::default()
            },
            event_time: Some(MicroTime(Timestamp::now())),
            type_: Some(
                match notice.severity {
                    Severity::Normal => "Normal",
                    Severity::Warning => "Warning",
                }
                .to_owned(),
            ),
            reason: Some(notice.reason.to_owned()),
            action: Some(notice.action.to_owned()),
            note: Some(notice.note.clone()),
            regarding: Some(regarding.clone()),
            related: notice.related.clone(),
            reporting_controller: Some(self.controller.to_owned()),
            reporting_instance: Some(self.instance.clone()),
            ..Event::default()
        }
    }
}

impl Cause {
    fn of(notice: &Notice, regarding: &ObjectReference) -> Self {
        let mut digest = Sha256::new();
        let mut add = |part: Option<&str>| {
            // Each with its length, so that no two lists of parts look alike.
            let length = part.map_or(u64::MAX, |part| part.len() as u64);
            digest.update(length.to_le_bytes());
            digest.update(part.unwrap_or_default());
        };
        let related = notice.related.as_ref();
        for part in [
            &regarding.namespace,
            &regarding.kind,
            &regarding.name,
            &regarding.uid,
            &related.and_then(|related| related.namespace.clone()),
            &related.and_then(|related| related.name.clone()),
            &related.and_then(|related| related.uid.clone()),
        ] {
            add(part.as_deref());
        }
        add(Some(notice.reason));
        add(Some(&notice.note));
        Self(digest.finalize().into())
    }
}

/// Where an Event about this object belongs: what has no namespace is spoken of in `default`.
fn namespace(regarding: &ObjectReference) -> &str {
    regarding.namespace.as_deref().unwrap_or("default")
}

/// Whether a create failed because its namespace is being deleted, or gone.
fn takes_nothing(status: &Status) -> bool {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    let terminating = || causes.clone().any(|cause| cause.reason == "NamespaceTerminating");
    status.code == 404 || (status.code == 403 && terminating())
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
            reason: "DeployerRejected",
            note: note.to_owned(),
            ..Notice::default()
        };
        let claim = ObjectReference::default();
        assert_eq!(Cause::of(&notice("a"), &claim), Cause::of(&notice("a"), &claim));
        assert_ne!(Cause::of(&notice("a"), &claim), Cause::of(&notice("b"), &claim));
        let named = |namespace: &str, name: &str| ObjectReference {
            namespace: Some(namespace.into()),
            name: Some(name.into()),
            ..ObjectReference::default()
        };
        let of = |object: &ObjectReference| Cause::of(&notice("a"), object);
        assert_ne!(of(&named("a", "bc")), of(&named("ab", "c")));
        assert_ne!(of(&named("a", "")), of(&named("", "a")));
        let related = Notice {
            related: Some(named("a", "b")),
            ..notice("a")
        };
        assert_ne!(Cause::of(&related, &claim), of(&claim));
    }

    #[test]
    fn only_a_namespace_that_ends_or_is_gone_takes_nothing() {
        let status = |code: u16, cause: &str| -> Status {
            let json = json!({ "code": code, "details": { "causes": [{ "reason": cause }] } });
            serde_json::from_value(json).unwrap()
        };
        for (code, cause, expected) in [
            (403, "NamespaceTerminating", true),
            (403, "FieldValueInvalid", false),
            (404, "", true),
            (409, "NamespaceTerminating", false),
            (500, "", false),
        ] {
            assert_eq!(takes_nothing(&status(code, cause)), expected, "{code} {cause}");
        }
    }
}
