//! Generated files are what the types generate. Needs nothing but the sources.

#![allow(missing_docs, reason = "a test")]

mod reference;

use std::path::Path;

use deployer_guard::api::crd;

/// Compares a file with what the types generate; with `UPDATE_MANIFESTS=1` writes it instead.
fn check(file: &str, wanted: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    if std::env::var_os("UPDATE_MANIFESTS").is_some() {
        std::fs::write(&path, wanted).expect("the file can be written");
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == wanted,
        "{file} is not what the types generate; run UPDATE_MANIFESTS=1 cargo test --test drift"
    );
}

fn check_manifest(kind: &str, file: &str) {
    let crd = crd::crds()
        .into_iter()
        .find(|crd| crd.spec.names.kind == kind)
        .expect(kind);
    check(file, &crd::manifest(&crd).expect("YAML"));
}

#[test]
fn the_manifest_of_policies_is_current() {
    check_manifest("DeployerPolicy", "deploy/crds/deployerpolicies.yaml");
}

#[test]
fn the_manifest_of_claims_is_current() {
    check_manifest("DeployerClaim", "deploy/crds/deployerclaims.yaml");
}

#[test]
fn the_reference_of_fields_is_current() {
    check("docs/api.md", &reference::document(&crd::crds()));
}

/// A claim's fields of a newer version survive a read and a write, and the schema does not open for it.
#[test]
fn unknown_fields_are_kept_by_the_types_and_pruned_by_the_schema() {
    let text = r#"{"protocol":1,"policy":{"name":"p","uid":"u","new":1},"config":"c","holder":{"name":"h","uid":"u","new":{"a":[1]}},
        "pending":[{"name":"h","uid":"u","new":true}],"condemned":[{"name":"h","uid":"u","new":"x"}],"spared":[{"name":"s","uid":"u","new":2}],"newest":[{"ordinal":1,"new":null}],
        "outcomes":[{"generation":"g","outcome":"Failed","podName":"p","podUid":"u","observedAt":"2026-01-02T03:04:05Z","new":[]}],"new":2}"#;
    let before: serde_json::Value = serde_json::from_str(text).expect("JSON");
    let spec: deployer_guard::api::DeployerClaimSpec = serde_json::from_value(before.clone()).expect("a claim");
    assert_eq!(serde_json::to_value(&spec).expect("JSON"), before);
    let status = serde_json::json!({"phase": "Held", "new": 1, "rejections": {"count": 1, "new": 1}});
    let read: deployer_guard::api::DeployerClaimStatus = serde_json::from_value(status.clone()).expect("a status");
    assert_eq!(serde_json::to_value(&read).expect("JSON"), status);
    let manifests = crd::manifests().expect("YAML");
    for open in ["preserve-unknown", "additionalProperties: true", "nullable", "unknown:"] {
        assert!(!manifests.contains(open), "{open}");
    }
}

/// Every pod that a claim names is read at each decision, and a pending one is followed by every replica: one claim with thousands of
/// them takes a replica's memory.
#[test]
fn the_schema_takes_no_longer_lists_than_we_write() {
    use deployer_guard::domain::claim::{MAX_CONDEMNED, MAX_NEWEST, MAX_OUTCOMES, MAX_PENDING, MAX_SPARED};
    let crd = crd::crds()
        .into_iter()
        .find(|crd| crd.spec.names.kind == "DeployerClaim");
    let crd = serde_json::to_value(crd.expect("DeployerClaim")).expect("JSON");
    let spec = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties";
    for (list, most) in [
        ("pending", MAX_PENDING),
        ("condemned", MAX_CONDEMNED),
        ("spared", MAX_SPARED),
        ("newest", MAX_NEWEST),
        ("outcomes", MAX_OUTCOMES),
    ] {
        let found = crd.pointer(&format!("{spec}/{list}/maxItems"));
        assert_eq!(found, Some(&most.into()), "{list}");
    }
}
