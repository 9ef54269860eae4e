//! What comes in wrong, from the socket to the answer: the status, and a text that names what is wrong and what to do. The server
//! lives on, and no claim is touched.

use std::sync::Arc;
use std::time::Duration;

use deployer_guard::cluster::events::Events;
use deployer_guard::cluster::memory::MemoryStore;
use deployer_guard::domain::pursuit::Window;
use deployer_guard::observer::Observer;
use deployer_guard::telemetry::metrics::Metrics;
use deployer_guard::webhook::calls::Handler;
use deployer_guard::webhook::desk::Desks;
use deployer_guard::webhook::handler::Admission;
use deployer_guard::webhook::judge::Judge;
use deployer_guard::webhook::policies::Policies;
use deployer_guard::webhook::records::Records;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;

use crate::support::{Answer, Site, post};

const MIB: usize = 1024 * 1024;
const PATH: &str = "/admit/runners?timeout=10s";

/// The program's own handler over a store in memory, behind the server. `runners` is its only policy: the config is an annotation.
fn site(store: &Arc<MemoryStore>) -> Site {
    let metrics = Arc::new(Metrics::new());
    let policies = Arc::new(Policies::new(Arc::clone(store)));
    let observer = Observer::new(Arc::clone(store), Window::default(), Arc::clone(&metrics));
    let desks = Arc::new(Desks::new(Arc::clone(store), Arc::new(observer)));
    let (events, _) = Events::new(Arc::clone(&metrics));
    let judge = Judge::new(Arc::clone(store), desks);
    let handler = Admission::new(policies, judge, Records::new(metrics, events));
    store.put(json!({
        "apiVersion": "deployer-guard.io/v1alpha1",
        "kind": "DeployerPolicy",
        "metadata": {"name": "runners", "uid": "policy", "generation": 1},
        "spec": {"match": {"objectSelector": {"matchLabels": {"role": "runner"}}}, "config": {"annotation": "config"}},
    }));
    Site::serving(&[], Arc::new(handler) as Arc<dyn Handler>)
}

/// A review of the create of a runner that works for `config`, in a dry run.
fn review(config: &str) -> Value {
    json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "r", "operation": "CREATE", "namespace": "shop", "dryRun": true,
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "userInfo": {"username": "tester"},
            "object": {
                "apiVersion": "v1", "kind": "Pod",
                "metadata": {"name": "a", "namespace": "shop", "uid": "u", "labels": {"role": "runner"}, "annotations": {"config": config}},
            },
        },
    })
}

/// With the value at a pointer changed.
fn with(pointer: &str, value: Value) -> Vec<u8> {
    let mut review = review("cfg");
    *review.pointer_mut(pointer).expect(pointer) = value;
    review.to_string().into_bytes()
}

fn without(pointer: &str) -> Vec<u8> {
    let mut review = review("cfg");
    let (parent, field) = pointer.rsplit_once('/').unwrap();
    let parent = review
        .pointer_mut(parent)
        .and_then(Value::as_object_mut)
        .expect(pointer);
    assert!(parent.remove(field).is_some(), "{pointer}");
    review.to_string().into_bytes()
}

fn edited(from: &str, to: &str) -> Vec<u8> {
    let text = review("cfg").to_string();
    assert!(text.contains(from), "{from}");
    text.replacen(from, to, 1).into_bytes()
}

/// A review in which a value is nested so deeply.
fn nested(levels: usize) -> Vec<u8> {
    let deep = format!("{}1{}", "[".repeat(levels), "]".repeat(levels));
    edited("\"role\":\"runner\"", &format!("\"role\":\"runner\",\"deep\":{deep}"))
}

/// A review of exactly so many bytes.
fn padded(bytes: usize) -> Vec<u8> {
    let mut body = review("cfg").to_string().into_bytes();
    body.resize(bytes, b' ');
    body
}

/// What must come of a body.
enum Wanted {
    /// An HTTP status, and texts of the answer.
    Http(u16, &'static [&'static str]),
    /// An answer that refuses: code, reason, cause, field, and texts of its message.
    Refused(u64, &'static str, &'static str, &'static str, &'static [&'static str]),
    /// An answer that allows, and texts of its warnings.
    Allowed(&'static [&'static str]),
}

use Wanted::{Allowed, Http, Refused};

/// What it is, where it is sent, its content type, its body, and what must come of it.
type Row = (&'static str, &'static str, &'static str, Vec<u8>, Wanted);

#[rustfmt::skip]
fn table() -> Vec<Row> {
    let json = "application/json";
    let identity = |config: &str| review(config).to_string().into_bytes();
    vec![
        ("nothing", PATH, json, vec![], Http(400, &["the body is no AdmissionReview: EOF", "as JSON in UTF-8"])),
        ("not JSON", PATH, json, b"hello".to_vec(), Http(400, &["the body is no AdmissionReview", "line 1 column 1", "as JSON in UTF-8"])),
        ("YAML", PATH, json, b"kind: AdmissionReview".to_vec(), Http(400, &["line 1 column 1", "as JSON in UTF-8"])),
        ("a list", PATH, json, b"[]".to_vec(), Http(400, &["the body is no AdmissionReview", "as JSON in UTF-8"])),
        ("null", PATH, json, b"null".to_vec(), Http(400, &["the body is no AdmissionReview", "as JSON in UTF-8"])),
        ("truncated", PATH, json, review("cfg").to_string().into_bytes()[..200].to_vec(), Http(400, &["EOF", "line 1 column 200"])),
        ("something after it", PATH, json, [review("cfg").to_string().as_bytes(), b"{}"].concat(), Http(400, &["trailing characters"])),
        ("invalid UTF-8", PATH, json, [&b"{\"kind\": \"\xff\xfe"[..], b"\"}"].concat(), Http(400, &["invalid utf-8", "as JSON in UTF-8"])),
        ("half a surrogate", PATH, json, edited("\"tester\"", "\"\\ud800\""), Http(400, &["line 1 column"])),
        ("nested deeply", PATH, json, nested(10_000), Http(400, &["recursion limit exceeded", "line 1 column"])),
        ("deep, all of it", PATH, json, "[".repeat(MIB).into_bytes(), Http(400, &["the body is no AdmissionReview", "as JSON in UTF-8"])),
        ("nested a little", PATH, json, nested(60), Allowed(&[])),
        ("a key twice", PATH, json, edited("\"dryRun\":true", "\"uid\":\"other\",\"dryRun\":true"), Http(400, &["duplicate field `uid`"])),
        ("another kind", PATH, json, with("/kind", "Pod".into()), Http(400, &["\"Pod\" of \"admission.k8s.io/v1\"; send an AdmissionReview of admission.k8s.io/v1"])),
        ("another version", PATH, json, with("/apiVersion", "admission.k8s.io/v1beta1".into()), Http(400, &["v1beta1\"; send an AdmissionReview of admission.k8s.io/v1"])),
        ("no version", PATH, json, without("/apiVersion"), Http(400, &["of \"\"; send an AdmissionReview"])),
        ("no request", PATH, json, without("/request"), Http(400, &["the AdmissionReview has no request; send"])),
        ("request null", PATH, json, with("/request", Value::Null), Http(400, &["the AdmissionReview has no request; send"])),
        ("request a text", PATH, json, with("/request", "x".into()), Http(400, &["invalid type: string \"x\""])),
        ("no uid", PATH, json, without("/request/uid"), Http(400, &["missing field `uid`"])),
        ("uid empty", PATH, json, with("/request/uid", "".into()), Http(400, &["request.uid is empty; set it"])),
        ("uid a number", PATH, json, with("/request/uid", 7.into()), Http(400, &["invalid type: integer `7`"])),
        ("no operation", PATH, json, without("/request/operation"), Http(400, &["missing field `operation`"])),
        ("no object", PATH, json, without("/request/object"), Http(400, &["request.object is missing; a CREATE needs it"])),
        ("object null", PATH, json, with("/request/object", Value::Null), Http(400, &["request.object is missing; a CREATE needs it"])),
        ("object a list", PATH, json, with("/request/object", json!([])), Http(400, &["request.object is missing; a CREATE needs it"])),
        ("no name", PATH, json, without("/request/object/metadata/name"), Http(400, &["/metadata/name is missing or empty; the API server sets it"])),
        ("no pod uid", PATH, json, without("/request/object/metadata/uid"), Http(400, &["/metadata/uid is missing or empty; the API server sets it"])),
        ("no namespace", PATH, json, without("/request/namespace"), Http(400, &["/request/namespace is missing or empty; the API server sets it"])),
        ("another operation", PATH, json, with("/request/operation", "DELETE".into()), Allowed(&[])),
        ("another resource", PATH, json, with("/request/resource/resource", "secrets".into()), Allowed(&[])),
        ("another content type", PATH, "text/plain", identity("cfg"), Http(415, &["the content type must be application/json"])),
        ("YAML's content type", PATH, "application/yaml", identity("cfg"), Http(415, &["the content type must be application/json"])),
        ("a charset", PATH, "application/json; charset=utf-8", identity("cfg"), Allowed(&[])),
        ("8 MiB", PATH, json, padded(8 * MIB), Allowed(&[])),
        ("8 MiB and a byte", PATH, json, padded(8 * MIB + 1), Http(413, &["larger than the 8388608 bytes that are read (--max-body-bytes)"])),
        ("no such path", "/elsewhere", json, identity("cfg"), Http(404, &["no such path; calls go to /admit/<policy>/<uid>/<generation>"])),
        ("a generation that is none", "/admit/runners/policy/x", json, identity("cfg"), Http(404, &["no such path"])),
        ("an unknown policy", "/admit/unknown/uid/1", json, identity("cfg"), Allowed(&["DeployerPolicy \"unknown\" does not exist", "remove its entry from the webhook configuration"])),
        ("an unknown policy, and no review", "/admit/unknown/uid/1", json, b"{}".to_vec(), Http(400, &["send an AdmissionReview"])),
        ("no identity", PATH, json, without("/request/object/metadata/annotations/config"), Refused(403, "Forbidden", "IdentityInvalid", "spec.config.annotation", &["the pod has no annotation config, which spec.config.annotation of the policy reads; set it on the pod"])),
        ("no annotations", PATH, json, with("/request/object/metadata/annotations", Value::Null), Refused(403, "Forbidden", "IdentityInvalid", "spec.config.annotation", &["set it on the pod"])),
        ("identity a number", PATH, json, with("/request/object/metadata/annotations/config", 7.into()), Refused(403, "Forbidden", "IdentityInvalid", "spec.config.annotation", &["set it on the pod"])),
        ("identity empty", PATH, json, identity(""), Refused(403, "Forbidden", "IdentityInvalid", "spec.config.annotation", &["annotation config is empty", "give it a value"])),
        ("identity of 513 bytes", PATH, json, identity(&"x".repeat(513)), Refused(403, "Forbidden", "IdentityInvalid", "spec.config.annotation", &["has 513 bytes", "at most 512; give it a shorter value"])),
        ("identity of 512 bytes", PATH, json, identity(&"x".repeat(512)), Allowed(&[])),
        ("identity of 64 KB", PATH, json, identity(&"x".repeat(65_536)), Refused(403, "Forbidden", "IdentityInvalid", "spec.config.annotation", &["has 65536 bytes", "give it a shorter value"])),
        ("identity of line feeds", PATH, json, identity("a\nb"), Refused(403, "Forbidden", "IdentityInvalid", "spec.config.annotation", &["holds control characters", "give it a value without them"])),
        ("identity of NUL", PATH, json, identity("a\0b"), Refused(403, "Forbidden", "IdentityInvalid", "spec.config.annotation", &["holds control characters"])),
        ("identity of ESC", PATH, json, identity("\u{1b}[31m"), Refused(403, "Forbidden", "IdentityInvalid", "spec.config.annotation", &["holds control characters"])),
        ("identity of non-ASCII", PATH, json, identity("Käse 🧀"), Allowed(&[])),
        ("identity with slashes", PATH, json, identity("../../etc/passwd?x=1#y"), Allowed(&[])),
        ("identity of spaces", PATH, json, identity("   "), Allowed(&[])),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_is_named_and_the_server_lives_on() {
    let store = Arc::new(MemoryStore::new());
    let site = site(&store);
    for (what, path, content_type, body, wanted) in table() {
        let answer = site.post_as(path, content_type, &body).await;
        check(what, &answer, &wanted);
        assert_eq!(store.objects("DeployerClaim"), Vec::<Value>::new(), "{what}");
        // The next good one is answered.
        let next = site.post(PATH, review("next").to_string().as_bytes()).await;
        check(&format!("after {what}"), &next, &Allowed(&[]));
    }
    assert!(
        site.metrics.encode().contains("deployer_guard_panics_total 0"),
        "{}",
        site.metrics.encode()
    );
}

fn check(what: &str, answer: &Answer, wanted: &Wanted) {
    let body = &answer.body;
    if let Http(status, texts) = wanted {
        assert_eq!(answer.status, *status, "{what}: {body}");
        assert!(
            texts.iter().all(|text| body.contains(text)),
            "{what}: {texts:?} in {body}"
        );
        return;
    }
    assert_eq!(answer.status, 200, "{what}: {body}");
    let review: Value = serde_json::from_str(body).unwrap();
    let response = &review["response"];
    assert_eq!(response["uid"], "r", "{what}: {body}");
    let (allowed, said, texts) = match wanted {
        Refused(code, reason, cause, field, texts) => {
            let (status, given) = (&response["status"], &response["status"]["details"]["causes"][0]);
            assert_eq!(
                (&status["code"], &status["reason"]),
                (&json!(code), &json!(reason)),
                "{what}: {body}"
            );
            assert_eq!(
                (&given["reason"], &given["field"]),
                (&json!(cause), &json!(field)),
                "{what}: {body}"
            );
            (false, status["message"].to_string(), *texts)
        }
        Allowed(texts) => {
            assert_eq!(response["warnings"].is_null(), texts.is_empty(), "{what}: {body}");
            (true, response["warnings"].to_string(), *texts)
        }
        Http(..) => unreachable!("it is done"),
    };
    assert_eq!(response["allowed"], allowed, "{what}: {body}");
    let said = said.replace("\\\"", "\"");
    assert!(
        texts.iter().all(|text| said.contains(text)),
        "{what}: {texts:?} in {said}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_breaks_off_is_answered_or_hung_up_on_and_the_server_lives_on() {
    let store = Arc::new(MemoryStore::new());
    let site = site(&store);
    let whole = post(PATH, review("cfg").to_string().as_bytes());
    for part in [whole.len() - 1, whole.len() / 2, 40] {
        let mut stream = site.connect().await;
        stream.write_all(&whole[..part]).await.unwrap();
        stream.shutdown().await.unwrap();
        let answer = tokio::time::timeout(Duration::from_secs(20), Answer::read(&mut stream)).await;
        if let Ok(answer) = answer.expect("an end within the timeout of the call") {
            assert!((400..500).contains(&answer.status), "{answer:?}");
        }
        let next = site.post(PATH, review("next").to_string().as_bytes()).await;
        check("after half a body", &next, &Allowed(&[]));
    }
    assert_eq!(store.objects("DeployerClaim"), Vec::<Value>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn configs_that_differ_only_where_a_cut_name_would_not_show_it_have_two_claims() {
    let store = Arc::new(MemoryStore::new());
    let site = site(&store);
    let long = "x".repeat(500);
    let alike = [
        format!("{long}a"),
        format!("{long}b"),
        "a/b".into(),
        "a-b".into(),
        "A-b".into(),
        "a b".into(),
        "ä".into(),
        "a\u{308}".into(),
    ];
    for (place, config) in alike.iter().enumerate() {
        let mut review = review(config);
        review["request"]["dryRun"] = false.into();
        review["request"]["object"]["metadata"]["name"] = format!("pod-{place}").into();
        review["request"]["object"]["metadata"]["uid"] = format!("uid-{place}").into();
        let answer = site.post(PATH, review.to_string().as_bytes()).await;
        check(config, &answer, &Allowed(&[]));
    }
    let claims = store.objects("DeployerClaim");
    let mut configs: Vec<_> = claims
        .iter()
        .map(|claim| claim["spec"]["config"].as_str().unwrap().to_owned())
        .collect();
    configs.sort();
    let mut wanted = alike.to_vec();
    wanted.sort();
    assert_eq!(configs, wanted);
}
