//! Each verdict, with what is said about it.

use serde_json::{Value, json};

use crate::support::{OPENSHIFT, SNAPSHOT, check, deployer_guard, file, runner, runners, source};

/// What `tests/data/check/deployers.yaml` asks, in its order, comes to on the snapshot.
const DEPLOYERS: [&str; 7] = [
    "Refused OlderGeneration",
    "Refused OwnerNotEligible",
    "Admitted Free",
    "Refused DeployerActive",
    "Refused DeployerActive",
    "NameExists AlreadyExists",
    "NotMatched MatchCondition",
];

#[test]
fn deployers_are_decided_on_a_snapshot_of_a_live_cluster() {
    let reviews = "tests/data/check/deployers.yaml";
    let ended = check(&["--policy", OPENSHIFT, "--objects", SNAPSHOT, "--review", reviews]);
    assert_eq!(ended.verdicts(), DEPLOYERS, "{}", ended.stderr);
    assert_eq!(ended.code, 1);
    let summary = json!({"admitted": 1, "refused": 4, "nameExists": 1, "notMatched": 1, "undecided": 0});
    assert_eq!(ended.report()["summary"], summary);
}

#[test]
fn independent_reviews_do_not_meet_each_other() {
    let reviews = "tests/data/check/deployers.yaml";
    let ended = check(&[
        "--policy",
        OPENSHIFT,
        "--objects",
        SNAPSHOT,
        "--review",
        reviews,
        "--independent",
    ]);
    let mut alone = DEPLOYERS;
    // Only the one before stood in its way.
    alone[3] = "Admitted Free";
    assert_eq!(ended.verdicts(), alone);
}

#[test]
fn a_decision_names_all_that_it_was_made_of() {
    let reviews = "tests/data/check/deployers.yaml";
    let ended = check(&["--policy", OPENSHIFT, "--objects", SNAPSHOT, "--review", reviews]);
    let review = &ended.report()["reviews"][4];
    assert_eq!(
        review["source"],
        "tests/data/check/deployers.yaml, document 5 (line 89)"
    );
    assert_eq!(
        (&review["user"], &review["uid"]),
        (&json!("deployer-guard-check"), &json!("made-up-5"))
    );
    let message = "DeployerPolicy \"openshift-deploymentconfig\" refuses pod \"cfg-3-deploy\" for \"cfg\" (DeployerActive): deployer pod \"cfg-2-deploy\" \
                   (generation \"cfg-2\") is active, and only one deployer may work at once. Wait until it has finished, or end it: \
                   kubectl -n pay delete pod cfg-2-deploy";
    let mut decision = ended.decision(4, 0);
    // uids are those of the cluster that the snapshot was taken of.
    for uid in ["/owner/uid", "/holder/uid"] {
        let uid = decision.pointer_mut(uid).map(Value::take);
        assert!(uid.is_some_and(|uid| uid.as_str().is_some_and(|uid| uid.len() == 36)));
    }
    assert_eq!(
        decision,
        json!({
            "policy": "openshift-deploymentconfig",
            "mode": "Enforce",
            "verdict": "Refused",
            "reason": "DeployerActive",
            "explanation": message,
            "allowed": false,
            "code": 403,
            "message": message,
            "warnings": [],
            "identity": {
                "config": "cfg",
                "configUid": "f7e6fbec-11f3-4957-ad7f-c2b7287dce21",
                "generation": "cfg-3",
                "ordinal": 3,
            },
            "owner": { "apiVersion": "v1", "kind": "ReplicationController", "name": "cfg-3", "uid": null, "state": "Present" },
            "key": "pay/cfg",
            "claim": claim_of_cfg(),
            "holder": { "name": "cfg-2-deploy", "uid": null, "generation": "cfg-2", "state": "Active" },
        })
    );
}

/// The claim of `cfg` in the snapshot.
fn claim_of_cfg() -> String {
    let text = source(SNAPSHOT);
    let name = text
        .lines()
        .find_map(|line| line.trim().strip_prefix("name: openshift-deploymentconfig-cfg-"));
    format!("openshift-deploymentconfig-cfg-{}", name.expect("a claim"))
}

/// The objects as they were read back: the owner's phase is no more New.
#[test]
fn the_pods_of_openshift_are_told_apart() {
    let data = |name: &str| format!("tests/data/openshift/{name}.json");
    let owner = data("replicationcontroller");
    let review = |objects: &str, pod: &str| {
        check(&["--policy", OPENSHIFT, "--objects", objects, "--review", &data(pod)])
            .verdicts()
            .remove(0)
    };
    assert_eq!(review(&owner, "deployer-pod"), "Refused OwnerNotEligible");
    assert_eq!(review(&owner, "hook-pod"), "NotMatched MatchCondition");
    assert_eq!(review(&owner, "application-pod"), "NotMatched ObjectSelector");
    let new = source(&owner).replace(
        "\"openshift.io/deployment.phase\": \"Pending\"",
        "\"openshift.io/deployment.phase\": \"New\"",
    );
    assert_eq!(review(&file("rc.json", &new), "deployer-pod"), "Admitted Free");
    let replaced = new.replace("43632c6e", "00000000");
    assert_eq!(
        review(&file("rc.json", &replaced), "deployer-pod"),
        "Refused OwnerReplaced"
    );
}

/// As kube-apiserver sent them.
#[test]
fn reviews_are_decided_as_they_were_sent() {
    let rc =
        source("tests/data/openshift/replicationcontroller.json").replace("phase\": \"Pending\"", "phase\": \"New\"");
    let rc = file("rc.json", &rc);
    for (review, said) in [
        ("create", "Admitted Free"),
        ("create-dry-run", "Admitted Free"),
        ("update-label", "Refused IdentityChanged"),
        ("update-status", "NotMatched NotRegistered"),
        ("connect-exec", "NotMatched NotRegistered"),
        ("delete", "NotMatched NotRegistered"),
    ] {
        let path = format!("tests/data/reviews/{review}.json");
        let ended = check(&["--policy", OPENSHIFT, "--objects", &rc, "--review", &path]);
        assert_eq!(ended.verdicts(), [said], "{review}: {}", ended.stderr);
        let user = "system:serviceaccount:openshift-infra:deploymentconfig-controller";
        if review.starts_with("create") {
            assert_eq!(ended.report()["reviews"][0]["user"], user);
        }
    }
    // A dry run leaves nothing behind, a create does.
    for (first, second) in [
        ("create-dry-run", "Admitted Free"),
        ("create", "NameExists AlreadyExists"),
    ] {
        let first = format!("tests/data/reviews/{first}.json");
        let pod = "tests/data/openshift/deployer-pod.json";
        let ended = check(&[
            "--policy",
            OPENSHIFT,
            "--objects",
            &rc,
            "--review",
            &first,
            "--review",
            pod,
        ]);
        assert_eq!(ended.verdicts()[1], second);
    }
}

#[test]
fn what_cannot_be_decided_is_undecided_and_the_failure_policy_decides() {
    // The condition holds on pods that lack one label, and fails on this one.
    let failing = "  match: {matchConditions: [{name: even, expression: \"object.metadata.name != 'odd' || [1][object.spec.containers.size() + 4] == 1\"}]}\n";
    for (more, allowed, code) in [("", false, 503), ("  failurePolicy: Ignore\n", true, 200)] {
        let policy = file("p.yaml", &runners(&format!("{failing}{more}")));
        let ended = check(&["--policy", &policy, "--review", &file("r.yaml", &runner("odd", "a"))]);
        assert_eq!(
            (ended.verdicts().remove(0), ended.code),
            ("Undecided PolicyUnusable".into(), 3),
            "{}",
            ended.stderr
        );
        let decision = ended.decision(0, 0);
        assert_eq!(
            (&decision["allowed"], &decision["code"]),
            (&json!(allowed), &json!(code))
        );
        assert_eq!(
            decision["warnings"].as_array().map(Vec::len),
            Some(usize::from(allowed))
        );
    }
    let newer = source(SNAPSHOT).replace("    protocol: 1", "    protocol: 2");
    let reviews = "tests/data/check/deployers.yaml";
    let ended = check(&[
        "--policy",
        OPENSHIFT,
        "--objects",
        &file("s.yaml", &newer),
        "--review",
        reviews,
    ]);
    assert_eq!(
        (ended.verdicts()[2].as_str(), ended.code),
        ("Undecided NewerProtocol", 3)
    );
}

#[test]
fn the_mode_decides_what_the_client_is_told() {
    for (mode, allowed, code, told, warnings) in [
        ("Enforce", false, 403, true, 0),
        ("Warn", true, 200, false, 1),
        ("Audit", true, 200, false, 0),
    ] {
        let policy = file("p.yaml", &runners(&format!("  mode: {mode}\n")));
        let pods = file("r.yaml", &[runner("one", "a"), runner("two", "a")].concat());
        let ended = check(&["--policy", &policy, "--review", &pods]);
        assert_eq!(ended.verdicts(), ["Admitted Free", "Refused DeployerActive"], "{mode}");
        let decision = ended.decision(1, 0);
        assert_eq!(
            (&decision["allowed"], &decision["code"]),
            (&json!(allowed), &json!(code)),
            "{mode}"
        );
        assert_eq!(decision["message"].is_string(), told, "{mode}");
        assert_eq!(decision["warnings"].as_array().map(Vec::len), Some(warnings), "{mode}");
        assert!(decision["explanation"].is_string(), "{mode}");
        assert_eq!(ended.code, 1, "{mode}");
    }
}

#[test]
fn namespaces_are_selected_by_the_labels_of_the_snapshot() {
    let selector =
        "  match: {objectSelector: {matchLabels: {role: runner}}, namespaceSelector: {matchLabels: {team: red}}}\n";
    let policy = file("p.yaml", &runners(selector));
    let pod = file("r.yaml", &runner("one", "a"));
    let namespace = |labels: &str| {
        file(
            "n.yaml",
            &format!("apiVersion: v1\nkind: Namespace\nmetadata: {{name: shop, labels: {{{labels}}}}}\n"),
        )
    };
    for (labels, said) in [
        ("team: red", "Admitted Free"),
        ("team: blue", "NotMatched NamespaceSelector"),
    ] {
        let objects = namespace(labels);
        let ended = check(&[
            "--policy",
            &policy,
            "--objects",
            &objects,
            "--review",
            &pod,
            "--namespace",
            "shop",
        ]);
        assert_eq!(ended.verdicts(), [said]);
        assert_eq!(ended.report()["reviews"][0]["notes"], json!([]));
    }
    let ended = check(&["--policy", &policy, "--review", &pod, "--namespace", "shop"]);
    assert_eq!(ended.verdicts(), ["NotMatched NamespaceSelector"]);
    let note =
        "namespace \"shop\" is not in the snapshot: it is taken to have no label but kubernetes.io/metadata.name";
    assert_eq!(ended.report()["reviews"][0]["notes"], json!([note]));
    // That label it has, whatever is known.
    let named = selector.replace("team: red", "kubernetes.io/metadata.name: shop");
    let policy = file("p.yaml", &runners(&named));
    for arguments in [&[][..], &["--objects", &namespace("")]] {
        let all = [
            &["--policy", &policy, "--review", &pod, "--namespace", "shop"],
            arguments,
        ]
        .concat();
        assert_eq!(check(&all).verdicts(), ["Admitted Free"]);
    }
}

#[test]
fn some_namespaces_are_never_matched() {
    let (policy, pod) = (file("p.yaml", &runners("")), file("r.yaml", &runner("one", "a")));
    for (namespace, guard, said) in [
        ("kube-system", "deployer-guard", "NotMatched NamespaceExcluded"),
        ("deployer-guard", "deployer-guard", "NotMatched NamespaceExcluded"),
        ("deployer-guard", "elsewhere", "Admitted Free"),
    ] {
        let flags = ["--namespace", namespace, "--guard-namespace", guard];
        let ended = check(&[&["--policy", &policy, "--review", &pod], &flags[..]].concat());
        assert_eq!(ended.verdicts(), [said], "{namespace}");
    }
}

#[test]
fn an_update_matters_where_it_changes_what_the_policy_reads_on_an_active_pod() {
    let policy = file("p.yaml", &runners(""));
    let update = |old: &str, new: &str, phase: &str| {
        let pod = |labels: &str| {
            format!(
                "{{metadata: {{name: one, namespace: shop, uid: u, labels: {{{labels}}}}}, status: {{phase: {phase}}}}}"
            )
        };
        let review = format!(
            "apiVersion: admission.k8s.io/v1\nkind: AdmissionReview\nrequest: {{uid: r, operation: UPDATE, namespace: shop, \
             resource: {{group: '', resource: pods}}, object: {}, oldObject: {}}}\n",
            pod(new),
            pod(old)
        );
        let ended = check(&["--policy", &policy, "--review", &file("r.yaml", &review)]);
        assert_eq!(ended.stderr, "");
        ended.verdicts().remove(0)
    };
    let (runner, other) = ("role: runner, app: a", "role: other, app: a");
    for (old, new, phase, said) in [
        (runner, "role: runner, app: b", "Running", "Refused IdentityChanged"),
        (runner, other, "Running", "Refused IdentityChanged"),
        (other, runner, "Running", "Refused IdentityChanged"),
        (
            runner,
            "role: runner, app: a, more: x",
            "Running",
            "NotMatched NothingChanged",
        ),
        (other, "role: third, app: a", "Running", "NotMatched ObjectSelector"),
        (runner, other, "Failed", "NotMatched PodFinished"),
    ] {
        assert_eq!(update(old, new, phase), said, "{old} {new} {phase}");
    }
}

#[test]
fn a_mirror_of_a_static_pod_is_never_matched() {
    let mirror = runner("one", "a").replace("spec:", "  annotations: {kubernetes.io/config.mirror: x}\nspec:");
    let ended = check(&[
        "--policy",
        &file("p.yaml", &runners("")),
        "--review",
        &file("r.yaml", &mirror),
    ]);
    assert_eq!(ended.verdicts(), ["NotMatched MirrorPod"], "{}", ended.stderr);
}

/// Under two policies a pod is admitted only if both admit it, and a refusal by one leaves no claim under the other.
#[test]
fn every_policy_has_its_say() {
    let other = runners("")
        .replace("name: runners", "name: by-team")
        .replace("label: app", "label: team");
    let policies = file("p.yaml", &format!("{}---\n{other}", runners("")));
    let pod = |name: &str, app: &str, team: &str| runner(name, &format!("{app}, team: {team}"));
    let pods = [
        pod("one", "a", "red"),
        pod("two", "b", "red"),
        pod("three", "b", "blue"),
    ]
    .concat();
    let ended = check(&["--policy", &policies, "--review", &file("r.yaml", &pods)]);
    let report = ended.report();
    let reasons: Vec<Vec<&str>> = report["reviews"]
        .as_array()
        .expect("reviews")
        .iter()
        .map(|review| {
            let decisions = review["decisions"].as_array().expect("decisions").iter();
            decisions
                .map(|decision| decision["reason"].as_str().expect("a reason"))
                .collect()
        })
        .collect();
    assert_eq!(
        reasons,
        [
            ["Free", "Free"],
            ["DeployerActive", "RefusedByOtherPolicy"],
            ["Free", "Free"]
        ]
    );
}

#[test]
fn a_generated_name_is_made_up_for_all_to_see() {
    let pod = runner("x", "a").replace("name: x", "generateName: run-");
    let (policy, pods) = (file("p.yaml", &runners("")), [pod.clone(), pod].concat());
    let ended = deployer_guard(
        &["check", "--policy", &policy, "--review", "-", "--output", "json"],
        &pods,
    );
    assert_eq!(ended.verdicts(), ["Admitted Free", "Refused DeployerActive"]);
    let review = &ended.report()["reviews"][0];
    assert_eq!(
        (&review["pod"], &review["uid"]),
        (&json!("run-made-up-1"), &json!("made-up-1"))
    );
    assert_eq!(
        review["notes"],
        json!(["the name is made up from generateName \"run-\": run-made-up-1"])
    );
    assert_eq!(review["source"], "standard input, document 1 (line 2)");
}

/// As `kubectl run --dry-run=client -o yaml` prints it: with `creationTimestamp: null` and `status: {}`.
#[test]
fn what_kubectl_prints_of_a_dry_run_is_a_pod() {
    let run = "tests/data/check/run.yaml";
    let flags = ["--review", run, "--review", run, "--namespace", "ci", "--as", "alice"];
    let ended = check(&[&["--policy", &file("p.yaml", &runners(""))], &flags[..]].concat());
    assert_eq!(
        ended.verdicts(),
        ["Admitted Free", "NameExists AlreadyExists"],
        "{}",
        ended.stderr
    );
    let review = &ended.report()["reviews"][0];
    assert_eq!((&review["namespace"], &review["user"]), (&json!("ci"), &json!("alice")));
    assert_eq!(review["decisions"][0]["key"], "ci/shop");
}

/// What a pod was in another life says nothing of the one that is created from its manifest.
#[test]
fn a_pod_that_was_read_back_is_created_anew() {
    let pod = runner("one", "a").replace(
        "  name: one\n",
        "  name: one\n  uid: u-1\n  resourceVersion: \"7\"\n  deletionTimestamp: 2026-01-01T00:00:00Z\n  creationTimestamp: null\n",
    ) + "status: {phase: Succeeded}\n";
    let (policy, pods) = (file("p.yaml", &runners("")), file("r.yaml", &pod));
    let second = file("r.yaml", &runner("two", "a"));
    let ended = check(&["--policy", &policy, "--review", &pods, "--review", &second]);
    assert_eq!(
        ended.verdicts(),
        ["Admitted Free", "Refused DeployerActive"],
        "{}",
        ended.stderr
    );
    // The very pod, in the snapshot.
    let objects = file("s.yaml", &pod.replace("name: one", "namespace: default\n  name: one"));
    let ended = check(&["--policy", &policy, "--objects", &objects, "--review", &pods]);
    assert_eq!(ended.verdicts(), ["NameExists AlreadyExists"]);
}

#[test]
fn a_snapshot_without_claims_is_judged_by_its_pods() {
    let policy = file("p.yaml", &runners(""));
    let active = runner("one", "a") + "status: {phase: Running}\n";
    let ended_pod = runner("one", "a") + "status: {phase: Failed}\n";
    let pod = file("r.yaml", &runner("two", "a"));
    for (objects, said) in [(active, "Refused DeployerActive"), (ended_pod, "Admitted Free")] {
        let ended = check(&[
            "--policy",
            &policy,
            "--objects",
            &file("s.yaml", &objects),
            "--review",
            &pod,
        ]);
        assert_eq!(ended.verdicts(), [said], "{}", ended.stderr);
    }
}
