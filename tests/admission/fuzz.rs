//! Bodies and pods at random: never a panic, always HTTP 400 or an answer with the request's uid.
//!
//! The corpus is `tests/data/reviews`: reviews as an API server sent them, which are mutated as text and as JSON, and `odd.txt`, one
//! body on each line: what was found at random, and is tried each time.

use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::world::{OPENSHIFT, Replica, review, runners};

const TIMEOUT: Duration = Duration::from_secs(10);
const CORPUS: &[&str] = &[
    "create",
    "create-generated-name",
    "create-dry-run",
    "update-label",
    "update-status",
    "connect-exec",
    "delete",
];

/// A replica with its runtime, for all cases of a property.
struct Bench {
    runtime: Runtime,
    replica: Replica,
}

impl Bench {
    fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let replica = runtime.block_on(async {
            let replica = Replica::new();
            replica.rollout(1, "New");
            // One that reads expressions, over everything.
            let mut policy = runners(json!({
                "match": {"matchConditions": [{"name": "c", "expression": "has(object.metadata.labels) && object.metadata.labels.exists(k, k.size() > 3)"}]},
                "config": {"expression": "object.metadata.?annotations[?'config'].orValue(object.metadata.name)"},
                "generation": {"expression": "string(object.spec.containers.size())", "ordinal": "size(object.metadata.name)"},
            }));
            policy["metadata"]["name"] = "expressions".into();
            policy["metadata"]["uid"] = "policy-expressions".into();
            replica.learn(policy);
            replica
        });
        Self { runtime, replica }
    }

    /// What comes of a body at each policy, and at the path that judges policies.
    fn check(&self, body: &[u8]) -> Result<(), TestCaseError> {
        let uid = serde_json::from_slice::<Value>(body).ok();
        let uid = uid.and_then(|review| Some(review.pointer("/request/uid")?.as_str()?.to_owned()));
        for path in [
            format!("/admit/{OPENSHIFT}/policy-openshift/1"),
            "/admit/runners".into(),
            "/admit/expressions/policy-expressions/1".into(),
            "/admit/unknown".into(),
            "/validate/deployerpolicies".into(),
        ] {
            let (status, text) = self.runtime.block_on(self.replica.send(&path, body, TIMEOUT));
            if status == 400 {
                prop_assert!(!text.is_empty());
                continue;
            }
            prop_assert_eq!(status, 200, "{}: {}", path, text);
            let answer: Value = serde_json::from_str(&text).unwrap();
            let answered = answer["response"]["uid"].as_str();
            // What the reader passes over may be no JSON; and it takes a list for an object.
            prop_assert!(uid.is_none() || answered == uid.as_deref(), "{}: {}", path, text);
            prop_assert!(answered.is_some_and(|uid| !uid.is_empty()), "{}: {}", path, text);
            prop_assert!(answer["response"]["allowed"].is_boolean());
            prop_assert!(!text.contains("Panicked"), "{}: {}", path, text);
        }
        for claim in self.replica.claims() {
            let name = claim.metadata.name.unwrap_or_default();
            prop_assert!(is_object_name(&name), "{name}");
            prop_assert!(!claim.spec.config.is_empty() && !claim.spec.config.chars().any(char::is_control));
        }
        Ok(())
    }
}

/// Whether an API server takes it for the name of an object.
fn is_object_name(name: &str) -> bool {
    let is_part = |part: &str| {
        !part.is_empty()
            && !part.starts_with('-')
            && !part.ends_with('-')
            && part
                .bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
    };
    name.len() <= 253 && name.split('.').all(is_part)
}

fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,12}".prop_map(Value::from),
        select(vec![
            "CREATE", "UPDATE", "DELETE", "pods", "", "Pod", "a/b", "\0", "../x"
        ])
        .prop_map(Value::from),
        "[a-z]{600}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        let key = prop_oneof![
            select(vec![
                "metadata",
                "labels",
                "annotations",
                "name",
                "uid",
                "spec",
                "phase"
            ])
            .prop_map(str::to_owned),
            ".{0,6}"
        ];
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::btree_map(key, inner, 0..4).prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// A change of one place of a JSON document.
#[derive(Clone, Debug)]
enum Edit {
    Replace(Index, Value),
    Remove(Index),
    Insert(Index, String, Value),
}

fn any_edit() -> impl Strategy<Value = Edit> {
    let key = prop_oneof![
        select(vec![
            "dryRun",
            "subResource",
            "oldObject",
            "labels",
            "annotations",
            "ownerReferences",
            "role",
            "app",
            "config"
        ])
        .prop_map(str::to_owned),
        ".{0,8}",
    ];
    prop_oneof![
        (any::<Index>(), any_value()).prop_map(|(place, value)| Edit::Replace(place, value)),
        any::<Index>().prop_map(Edit::Remove),
        (any::<Index>(), key, any_value()).prop_map(|(place, key, value)| Edit::Insert(place, key, value)),
    ]
}

/// Pointers to everything in a document, but to what the bookkeeping of fields holds.
fn places(document: &Value, at: &str, found: &mut Vec<String>) {
    found.push(at.to_owned());
    let escaped = |key: &str| key.replace('~', "~0").replace('/', "~1");
    match document {
        Value::Object(entries) => {
            for (key, value) in entries.iter().filter(|(key, _)| *key != "managedFields") {
                places(value, &format!("{at}/{}", escaped(key)), found);
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                places(item, &format!("{at}/{index}"), found);
            }
        }
        _ => {}
    }
}

fn apply(document: &mut Value, edit: &Edit) {
    let mut all = Vec::new();
    places(document, "", &mut all);
    let (Edit::Replace(place, _) | Edit::Remove(place) | Edit::Insert(place, ..)) = edit;
    let pointer = all[place.index(all.len())].clone();
    match edit {
        Edit::Replace(_, value) => {
            if let Some(target) = document.pointer_mut(&pointer) {
                target.clone_from(value);
            }
        }
        Edit::Insert(_, key, value) => {
            if let Some(Value::Object(target)) = document.pointer_mut(&pointer) {
                target.insert(key.clone(), value.clone());
            }
        }
        Edit::Remove(_) => {
            let Some((parent, key)) = pointer.rsplit_once('/') else {
                return;
            };
            if let Some(Value::Object(parent)) = document.pointer_mut(parent) {
                parent.remove(&key.replace("~1", "/").replace("~0", "~"));
            }
        }
    }
}

/// Cases of each property: bounded by their number, so that a slow machine does the same work.
fn cases(count: u32) -> ProptestConfig {
    ProptestConfig::with_cases(count)
}

#[test]
fn what_was_found_is_answered() {
    let bench = Bench::new();
    for body in include_str!("../data/reviews/odd.txt").lines() {
        bench
            .check(body.as_bytes())
            .unwrap_or_else(|error| panic!("{body}: {error}"));
    }
}

#[test]
fn any_bytes_are_answered() {
    let bench = Bench::new();
    proptest!(cases(300), |(body in vec(any::<u8>(), 0..200))| bench.check(&body)?);
}

#[test]
fn any_document_is_answered() {
    let bench = Bench::new();
    proptest!(cases(300), |(request in any_value(), object in any_value())| {
        let bodies = [
            json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}),
            json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
                "uid": "r", "operation": "CREATE", "namespace": "shop", "resource": {"resource": "pods"}, "object": object,
            }}),
        ];
        for body in bodies {
            bench.check(body.to_string().as_bytes())?;
        }
    });
}

#[test]
fn a_real_review_with_some_of_its_bytes_changed_is_answered() {
    let bench = Bench::new();
    let edit = (any::<Index>(), 0_usize..4, vec(any::<u8>(), 0..4));
    proptest!(cases(400), |(name in select(CORPUS), edits in vec(edit, 1..4))| {
        let mut body = review(name).to_string().into_bytes();
        for (place, cut, bytes) in edits {
            let start = place.index(body.len());
            body.splice(start..(start + cut).min(body.len()), bytes);
        }
        bench.check(&body)?;
    });
}

#[test]
fn a_real_review_with_some_of_its_fields_changed_is_answered() {
    let bench = Bench::new();
    proptest!(cases(600), |(name in select(CORPUS), runner in any::<bool>(), edits in vec(any_edit(), 1..5))| {
        let mut review = review(name);
        if runner && review["request"]["object"].is_object() {
            review["request"]["object"]["metadata"]["labels"] = json!({"role": "runner", "app": "shop"});
        }
        for edit in &edits {
            apply(&mut review, edit);
        }
        bench.check(review.to_string().as_bytes())?;
    });
}
