//! `webhook-config` reads policies as strictly as `check` does.

use crate::support::{OPENSHIFT, deployer_guard, file, runners, source};

#[test]
fn the_configuration_is_made_of_every_policy_of_the_repository() {
    let ended = deployer_guard(&["webhook-config", OPENSHIFT, "policies/spinnaker-run-job.yaml"], "");
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    for name in ["openshift-deploymentconfig", "spinnaker-run-job"] {
        assert!(
            ended.stdout.contains(&format!("{name}.policies.deployer-guard.io")),
            "{}",
            ended.stdout
        );
    }
}

/// As `kubectl get deployerpolicies -o yaml` prints them.
#[test]
fn a_list_that_was_read_back_is_taken_with_uid_and_generation() {
    let mut policy: serde_json::Value = serde_saphyr::from_str(&source(OPENSHIFT)).expect("YAML");
    policy["metadata"]["uid"] = "u-1".into();
    policy["metadata"]["generation"] = 3.into();
    policy["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z".into();
    policy["status"] = serde_json::json!({"observedGeneration": 3, "ofANewerVersion": 1});
    let list =
        serde_json::json!({"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": ""}, "items": [policy]});
    let ended = deployer_guard(&["webhook-config", "-"], &list.to_string());
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert!(
        ended.stdout.contains("/admit/openshift-deploymentconfig/u-1/3"),
        "{}",
        ended.stdout
    );
}

/// The last policy was deleted: its entry is to go.
#[test]
fn of_an_empty_list_the_entry_that_judges_policies_is_left() {
    let list = "apiVersion: v1\nitems: []\nkind: List\nmetadata:\n  resourceVersion: \"\"\n";
    let ended = deployer_guard(&["webhook-config", "-"], list);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let entries: Vec<_> = ended
        .stdout
        .lines()
        .filter(|line| line.contains("admissionReviewVersions"))
        .collect();
    assert_eq!(entries.len(), 1, "{}", ended.stdout);
    assert!(ended.stdout.contains("policies.deployer-guard.io"), "{}", ended.stdout);
    let ended = deployer_guard(&["webhook-config", "-"], "");
    assert!(
        ended.stderr.contains("no DeployerPolicy is in the given files"),
        "{}",
        ended.stderr
    );
}

#[test]
fn what_is_misspelt_is_no_configuration() {
    for (policy, said) in [
        (runners("  typo: 1\n"), "spec.typo: there is no such field"),
        (
            runners("").replace("matchLabels", "matchLables"),
            "spec.match.objectSelector.matchLables: there is no such field",
        ),
        (
            runners("").replace("name: runners", "name: No_Name"),
            "metadata.name: the name may hold lower case letters",
        ),
        (
            runners("").replace("name: runners", "name: -x"),
            "metadata.name: the name may hold lower case letters",
        ),
        (
            runners("").replace("name: runners", "name: a..b"),
            "metadata.name: the name may hold lower case letters",
        ),
        (
            runners("").replace("name: runners", &format!("name: {}", "a".repeat(64))),
            "metadata.name: the name may have at most 63",
        ),
        (
            runners("").replace("metadata: {name: runners}", "metadata: {}"),
            "metadata.name: the policy has no name",
        ),
        (runners("  scope: Generation\n"), "spec.scope"),
    ] {
        let path = file("p.yaml", &policy);
        let ended = deployer_guard(&["webhook-config", &path], "");
        assert_eq!((ended.code, ended.stdout.as_str()), (1, ""), "{policy}");
        let place = format!("deployer-guard: {path}, document 1 (line 1): DeployerPolicy ");
        assert!(
            ended.stderr.starts_with(&place) && ended.stderr.contains(said),
            "{}",
            ended.stderr
        );
    }
}
