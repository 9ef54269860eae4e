//! Bodies that are no review of a pod: HTTP 400 with a text that names what is wrong, and the failure policy decides.

use std::time::Duration;

use serde_json::{Value, json};

use crate::world::{Replica, review, runner};

const TIMEOUT: Duration = Duration::from_secs(10);

#[tokio::test]
async fn what_is_missing_is_named() {
    let replica = Replica::new();
    let without = |pointer: &str| {
        let mut review = runner("a", "u1", "shop");
        let (parent, field) = pointer.rsplit_once('/').unwrap();
        review
            .pointer_mut(parent)
            .unwrap()
            .as_object_mut()
            .unwrap()
            .remove(field)
            .unwrap();
        review.to_string()
    };
    let with = |pointer: &str, value: Value| {
        let mut review = runner("a", "u1", "shop");
        *review.pointer_mut(pointer).unwrap() = value;
        review.to_string()
    };
    for (body, named) in [
        (String::new(), "EOF"),
        ("not JSON".into(), "line 1 column"),
        ("[]".into(), "AdmissionReview"),
        (
            json!({"kind": "Pod", "apiVersion": "v1"}).to_string(),
            "\"Pod\" of \"v1\"",
        ),
        (
            with("/apiVersion", "admission.k8s.io/v1beta1".into()),
            "admission.k8s.io/v1beta1",
        ),
        (without("/request"), "request"),
        (without("/request/uid"), "uid"),
        (with("/request/uid", "".into()), "request.uid"),
        (without("/request/operation"), "operation"),
        (without("/request/object"), "request.object"),
        (with("/request/object", Value::Null), "request.object"),
        (without("/request/object/metadata/uid"), "metadata/uid"),
        (with("/request/object/metadata/uid", "".into()), "metadata/uid"),
        (without("/request/object/metadata/name"), "metadata/name"),
        (without("/request/namespace"), "request/namespace"),
        (with("/request/namespace", "".into()), "request/namespace"),
    ] {
        let (status, text) = replica.send("/admit/runners", body.clone(), TIMEOUT).await;
        assert_eq!(status, 400, "{body}: {text}");
        assert!(text.contains(named), "{named}: {text}");
    }
    assert_eq!(replica.store.writes(), 0);
}

#[tokio::test]
async fn a_path_that_names_no_policy_is_404() {
    let replica = Replica::new();
    for path in [
        "/",
        "/admit",
        "/admit/",
        "/admit/runners/uid",
        "/admit/runners/uid/one",
        "/elsewhere",
    ] {
        let (status, text) = replica.send(path, review("create").to_string(), TIMEOUT).await;
        assert_eq!(status, 404, "{path}: {text}");
    }
}
