//! Bad input: each is named with its file, document, field and remedy; nothing is printed, and the exit code is 2.

use crate::support::{check, deployer_guard, file, runner, runners};

const NAMESPACE: &str = "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n";
const CLAIM: &str =
    "apiVersion: deployer-guard.io/v1alpha1\nkind: DeployerClaim\nmetadata: {name: c, namespace: shop}\n";

/// Checks with these three files; gives what is said on standard error, the name of the file as `FILE`.
fn complaint(policy: &str, objects: &str, review: &str) -> String {
    let [policy, objects, review] =
        [("p", policy), ("s", objects), ("r", review)].map(|(name, text)| file(&format!("{name}.yaml"), text));
    let ended = check(&["--policy", &policy, "--objects", &objects, "--review", &review]);
    assert_eq!((ended.code, ended.stdout.as_str()), (2, ""), "{}", ended.stderr);
    let named = [("P", policy), ("S", objects), ("R", review)];
    named
        .iter()
        .fold(ended.stderr, |text, (short, path)| text.replace(path, short))
}

#[test]
fn a_bad_policy_is_named() {
    let good = runners("");
    for (policy, said) in [
        (
            good.replace("mode", "").replace("config: {label", "config: {labl"),
            "deployer-guard: P, document 1 (line 1): DeployerPolicy \"runners\": spec.config.labl: there is no such field; remove it, or give one of \
             annotation, expression, label, uid\n",
        ),
        (
            runners("  mode: Enforced\n"),
            "deployer-guard: P, document 1 (line 1): DeployerPolicy \"runners\": spec.mode: unknown variant `Enforced`, expected one of `Enforce`, \
             `Warn`, `Audit`; see kubectl explain deployerpolicy.spec\n",
        ),
        (
            runners("  timeoutSeconds: 31\n"),
            "deployer-guard: P, document 1 (line 1): DeployerPolicy \"runners\": spec.timeoutSeconds: the timeout must be from 1 to 30 seconds\n",
        ),
        (
            runners("  generation: {expression: \"object.metadata.labels[\"}\n"),
            "deployer-guard: P, document 1 (line 1): DeployerPolicy \"runners\": spec.generation.expression: line 1, column ",
        ),
        (
            good.replace("name: runners", "name: Runners_1"),
            "deployer-guard: P, document 1 (line 1): DeployerPolicy \"Runners_1\": metadata.name: the name may hold lower case letters",
        ),
        (
            good.replace("metadata: {name: runners}", "metadata: {}"),
            "deployer-guard: P, document 1 (line 1): DeployerPolicy \"\": metadata.name: the policy has no name; give it one\n",
        ),
        (
            good.replace("v1alpha1", "v1"),
            "deployer-guard: P, document 1 (line 1): DeployerPolicy \"runners\": apiVersion: \"deployer-guard.io/v1\" is not known here; give \
             deployer-guard.io/v1alpha1\n",
        ),
        (
            good.replace("kind: DeployerPolicy", "kind: DeployerPolcy"),
            "deployer-guard: P, document 1 (line 1): DeployerPolcy \"runners\": kind: there is no kind DeployerPolcy in the group \
             deployer-guard.io; give DeployerPolicy\n",
        ),
        (
            format!("{good}---\n{good}"),
            "deployer-guard: P, document 2 (line 8): DeployerPolicy \"runners\" is given twice; remove one of them\n",
        ),
        (
            NAMESPACE.into(),
            "deployer-guard: no DeployerPolicy is in the given files; write one",
        ),
        (
            String::new(),
            "deployer-guard: no DeployerPolicy is in the given files; write one",
        ),
        ("a: [".into(), "deployer-guard: P is no YAML: "),
        (
            "a: 1".into(),
            "deployer-guard: P, document 1 (line 1): apiVersion is missing, or no text; say which kind of object it is\n",
        ),
    ] {
        let found = complaint(&policy, NAMESPACE, &runner("one", "a"));
        assert!(found.starts_with(said), "{policy}\n{found}");
    }
}

#[test]
fn all_that_is_wrong_with_policies_is_said_at_once() {
    let first = runners("  Mode: Warn\n  mode: Wrn\n");
    let second = runners("  timeoutSeconds: 0\n").replace("name: runners", "name: others");
    let found = complaint(&format!("{first}---\n{second}"), NAMESPACE, &runner("one", "a"));
    for said in [
        "\"runners\": spec.Mode: ",
        "\"runners\": spec.mode: ",
        "document 2 (line 10): DeployerPolicy \"others\": spec.timeoutSeconds: ",
    ] {
        assert!(found.contains(said), "{found}");
    }
    assert_eq!(found.lines().count(), 3, "{found}");
}

#[test]
fn a_bad_snapshot_is_named() {
    let pod = runner("one", "a");
    for (objects, said) in [
        (
            format!(
                "{NAMESPACE}---\napiVersion: v1\nkind: List\nitems:\n- {{apiVersion: v1, kind: Pod, metadata: {{labels: {{a: b}}}}}}\n"
            ),
            "deployer-guard: S, document 2 (line 5), item 1: Pod metadata.name is missing; give objects as they are stored (kubectl get -o yaml)\n",
        ),
        (
            format!("{NAMESPACE}{}", pod.replace("app: a", "app: 1")),
            "deployer-guard: S, document 2 (line 5): Pod metadata.labels",
        ),
        (
            "apiVersion: admission.k8s.io/v1\nkind: AdmissionReview\n".into(),
            "deployer-guard: S, document 1 (line 1): an AdmissionReview is no object of a cluster; give it with --review\n",
        ),
        (
            format!("{CLAIM}spec: {{protocol: 1, config: a, policy: {{name: p, uid: u}}, holder: {{name: h}}}}\n"),
            "deployer-guard: S, document 1 (line 1): DeployerClaim spec.holder: missing field `uid`; mend the field\n",
        ),
        (
            format!(
                "{NAMESPACE}---\n{}",
                NAMESPACE.replace("{name: shop}", "{name: shop, labels: {a: b}}")
            ),
            "deployer-guard: S, document 2 (line 5): Namespace \"shop\" is given twice and differs from that of S, document 1 (line 1); leave \
             the one that holds\n",
        ),
    ] {
        let found = complaint(&runners(""), &objects, &pod);
        assert!(found.starts_with(said), "{objects}\n{found}");
    }
}

#[test]
fn a_bad_review_is_named() {
    let review =
        |request: &str| format!("apiVersion: admission.k8s.io/v1\nkind: AdmissionReview\nrequest: {{{request}}}\n");
    let pods = "resource: {group: '', resource: pods}, namespace: shop";
    let good = runner("one", "a");
    for (review, said) in [
        (
            good.replace("app: a", "app: 1"),
            "deployer-guard: R, document 1 (line 2): Pod metadata.labels",
        ),
        (
            good.replace("  name: one\n", ""),
            "deployer-guard: R, document 1 (line 2): Pod metadata.name is missing; give a name, or generateName\n",
        ),
        (
            NAMESPACE.into(),
            "deployer-guard: --review R: there is no AdmissionReview and no Pod in it; give one",
        ),
        (
            review("").replace("/v1\n", "/v1beta1\n"),
            "deployer-guard: R, document 1 (line 1): AdmissionReview: give it as an API server sends it: the body is no AdmissionReview: missing field `uid`",
        ),
        (
            review("uid: u, operation: CREATE").replace("/v1\n", "/v1beta1\n"),
            "deployer-guard: R, document 1 (line 1): AdmissionReview: give it as an API server sends it: the body is a \"AdmissionReview\" of \
             \"admission.k8s.io/v1beta1\"; send an AdmissionReview of admission.k8s.io/v1\n",
        ),
        (
            review(&format!("uid: u, operation: CREATE, {pods}")),
            "deployer-guard: R, document 1 (line 1): AdmissionReview: give it as an API server sends it: request.object is missing; a CREATE needs it\n",
        ),
        (
            review(&format!(
                "uid: u, operation: CREATE, {pods}, object: {{metadata: {{labels: {{role: runner}}}}}}"
            )),
            "deployer-guard: R, document 1 (line 1): AdmissionReview: give it as an API server sends it: /metadata/name is missing or empty; the API server sets it\n",
        ),
        (
            "- 1".into(),
            "deployer-guard: R, document 1 (line 1): this is no Kubernetes object; give fields such as apiVersion, kind and metadata\n",
        ),
    ] {
        let found = complaint(&runners(""), NAMESPACE, &review);
        assert!(found.starts_with(said), "{review}\n{found}");
    }
}

#[test]
fn a_file_that_cannot_be_read_is_named_once() {
    let policy = file("p.yaml", &runners(""));
    let ended = check(&["--policy", &policy, "--review", "none.yaml"]);
    assert_eq!(ended.code, 2);
    assert_eq!(
        ended.stderr,
        "deployer-guard: none.yaml cannot be read: No such file or directory (os error 2)\n"
    );
    let ended = deployer_guard(&["check", "--policy", "-", "--review", "-"], &runners(""));
    assert_eq!(ended.code, 2);
    assert_eq!(
        ended.stderr,
        "deployer-guard: - (standard input) is given twice; give one of them as a file\n"
    );
}

/// A manifest holds more than pods, and a snapshot more than is asked.
#[test]
fn what_is_passed_over_is_said() {
    let policy = file("p.yaml", &format!("{NAMESPACE}---\n{}", runners("")));
    let objects = file("s.yaml", &runners(""));
    let review = file("r.yaml", &format!("{NAMESPACE}{}", runner("one", "a")));
    let ended = check(&["--policy", &policy, "--objects", &objects, "--review", &review]);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let notes = ended.report()["notes"].clone();
    assert_eq!(
        notes[0],
        format!(
            "{objects}, document 1 (line 1): DeployerPolicy \"runners\" is no part of the snapshot; give the file with --policy to check under it"
        )
    );
    assert_eq!(
        notes[1],
        format!(
            "{review}, document 1 (line 1): Namespace is passed over: only pods are judged. Give the pods that it makes"
        )
    );
}

#[test]
fn values_of_files_cannot_forge_lines_of_the_table() {
    let pod = runner("one", "\"a\\nnote: all is well\"");
    let (policy, pod) = (file("p.yaml", &runners("")), file("r.yaml", &pod));
    let ended = deployer_guard(&["check", "--policy", &policy, "--review", &pod], "");
    assert_eq!(ended.code, 1, "{}", ended.stderr);
    assert!(ended.stdout.contains("IdentityInvalid"), "{}", ended.stdout);
    assert!(!ended.stdout.contains("\nnote: all is well"), "{}", ended.stdout);
}
