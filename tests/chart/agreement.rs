//! What the chart says, and what the program, the policies and the documentation say, is one.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use clap::Parser as _;
use deployer_guard::cli::Cli;
use deployer_guard::telemetry::metrics::{DecisionLabels, EventResult, GuardMetrics, Metrics};
use serde_json::{Value, json};

use crate::helm::{file, is_hook, objects, of_kind, program, read, rendered, shapes};

/// The containers of an object, wherever its Pod is.
fn containers(object: &Value) -> Vec<&Value> {
    ["/spec/containers", "/spec/template/spec/containers"]
        .iter()
        .filter_map(|path| object.pointer(path)?.as_array())
        .flatten()
        .collect()
}

#[test]
fn every_container_has_flags_that_the_program_takes() {
    let mut commands = BTreeSet::new();
    for (name, values) in shapes() {
        for object in rendered(&values, &[]) {
            for container in containers(&object) {
                let args: Vec<_> = container["args"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|arg| arg.as_str().unwrap())
                    .collect();
                commands.insert(args[0].to_owned());
                let all = ["deployer-guard"].into_iter().chain(args);
                if let Err(error) = Cli::try_parse_from(all) {
                    panic!("{name}, {}: {error}", object["metadata"]["name"]);
                }
            }
        }
    }
    let wanted = ["crds", "guard", "probe", "webhook"].map(str::to_owned);
    assert_eq!(commands, BTreeSet::from(wanted));
}

#[test]
fn no_container_may_do_more_than_it_needs() {
    for (name, values) in shapes() {
        for object in rendered(&values, &[]) {
            for container in containers(&object) {
                let context = &container["securityContext"];
                assert_eq!(context["allowPrivilegeEscalation"], false, "{name}");
                assert_eq!(context["readOnlyRootFilesystem"], true, "{name}");
                assert_eq!(context["capabilities"]["drop"][0], "ALL", "{name}");
                let pod = object
                    .pointer("/spec/template/spec/securityContext")
                    .unwrap_or(&object["spec"]["securityContext"]);
                assert_eq!(pod["runAsNonRoot"], true, "{name}");
                assert_eq!(pod["seccompProfile"]["type"], "RuntimeDefault", "{name}");
                assert!(container["resources"]["requests"]["memory"].is_string(), "{name}");
            }
        }
    }
}

/// Rights as a set of (scope, group, resource, name, verb).
fn rights(objects: &[Value]) -> BTreeSet<[String; 5]> {
    let list = |rule: &Value, field: &str| -> Vec<String> {
        let values = rule[field].as_array().map_or(&[][..], Vec::as_slice);
        values.iter().map(|value| value.as_str().unwrap().to_owned()).collect()
    };
    let mut rights = BTreeSet::new();
    for role in objects
        .iter()
        .filter(|object| matches!(object["kind"].as_str(), Some("ClusterRole" | "Role")))
    {
        let labels = &role["metadata"]["labels"];
        if is_hook(role) || labels.get("rbac.authorization.k8s.io/aggregate-to-admin").is_some() {
            continue;
        }
        for rule in role["rules"].as_array().unwrap() {
            let mut names = list(rule, "resourceNames");
            if names.is_empty() {
                names.push(String::new());
            }
            for (group, resource) in list(rule, "apiGroups").iter().flat_map(|group| {
                list(rule, "resources")
                    .into_iter()
                    .map(move |resource| (group, resource))
            }) {
                for name in &names {
                    for verb in list(rule, "verbs") {
                        rights.insert([
                            role["kind"].as_str().unwrap().to_owned(),
                            group.clone(),
                            resource.clone(),
                            name.clone(),
                            verb,
                        ]);
                    }
                }
            }
        }
    }
    rights
}

/// The tests run with the rights of `deploy/rbac.yaml`, and a release has no others.
#[test]
fn a_release_has_the_rights_that_the_tests_run_with() {
    let release = rights(&rendered(
        &file("charts/deployer-guard/ci/default-values.yaml"),
        &["--set", "policies.openshift.enabled=true"],
    ));
    let tested = rights(&objects(&read("deploy/rbac.yaml")));
    let (more, less): (Vec<_>, Vec<_>) = (
        release.difference(&tested).collect(),
        tested.difference(&release).collect(),
    );
    assert!(
        more.is_empty() && less.is_empty(),
        "in the chart alone: {more:?}\nin deploy/rbac.yaml alone: {less:?}"
    );
}

#[test]
fn the_right_to_delete_pods_can_be_withheld() {
    let values = file("charts/deployer-guard/ci/spinnaker-warn-values.yaml");
    let deletes = rights(&rendered(&values, &[]))
        .into_iter()
        .any(|[_, _, resource, _, verb]| resource == "pods" && verb == "delete");
    assert!(!deletes);
}

#[test]
fn nobody_else_may_write_claims() {
    for (name, values) in shapes() {
        for role in rendered(&values, &[]).iter().filter(|role| {
            role["metadata"]["labels"]
                .get("rbac.authorization.k8s.io/aggregate-to-admin")
                .is_some()
        }) {
            for rule in role["rules"].as_array().unwrap() {
                let claims = rule["resources"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .any(|resource| resource.as_str().unwrap().starts_with("deployerclaims"));
                let writes = rule["verbs"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .any(|verb| !["get", "list", "watch"].contains(&verb.as_str().unwrap()));
                assert!(!(claims && writes), "{name}: {role}");
            }
        }
    }
}

#[test]
fn the_policies_are_those_of_the_repository() {
    let all = rendered(
        &file("charts/deployer-guard/ci/default-values.yaml"),
        &[
            "--set",
            r"policies.openshift.enabled=true,policies.spinnaker.enabled=true,policies.spinnaker.podLabels.example\.com/role=deployer",
        ],
    );
    let policies: BTreeMap<_, _> = of_kind(&all, "DeployerPolicy")
        .into_iter()
        .filter(|policy| !is_hook(policy))
        .map(|policy| (policy["metadata"]["name"].as_str().unwrap(), &policy["spec"]))
        .collect();
    assert_eq!(policies.len(), 2);
    for (name, spec) in policies {
        let mut wanted = objects(&read(&format!("policies/{name}.yaml"))).remove(0)["spec"].take();
        // Said in the chart, because they can be changed there.
        for (field, default) in [("mode", "Enforce"), ("failurePolicy", "Fail")] {
            wanted.as_object_mut().unwrap().entry(field).or_insert(default.into());
        }
        assert_eq!(*spec, wanted, "{name}");
    }
}

#[test]
fn the_custom_resource_definitions_are_those_of_the_types() {
    for name in ["deployerclaims.yaml", "deployerpolicies.yaml"] {
        let ours = read(&format!("deploy/crds/{name}"));
        if std::env::var_os("UPDATE_MANIFESTS").is_some() {
            std::fs::write(file(&format!("charts/deployer-guard/crds/{name}")), &ours).unwrap();
        }
        assert!(
            read(&format!("charts/deployer-guard/crds/{name}")) == ours,
            "run UPDATE_MANIFESTS=1 cargo test --test chart"
        );
    }
}

/// The names of our metrics in a text.
fn metrics_in(text: &str) -> BTreeSet<&str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .filter(|word| word.starts_with("deployer_guard_"))
        .collect()
}

/// The names of labels that a text asks for: in braces before an operator, and after `by`.
fn labels_in(text: &str) -> BTreeSet<&str> {
    let named = |word: &str| !word.is_empty() && word.chars().all(|c| c.is_ascii_lowercase() || c == '_');
    let selected = text
        .split(['{', ','])
        .filter_map(|part| part.split(['=', '!']).next().filter(|_| part.contains('=')));
    let grouped = text
        .split("by (")
        .skip(1)
        .filter_map(|part| part.split(')').next())
        .flat_map(|list| list.split(','));
    selected
        .chain(grouped)
        .map(str::trim)
        .filter(|word| named(word))
        .collect()
}

#[test]
fn alerts_and_dashboard_ask_for_metrics_that_there_are() {
    let guard = Arc::new(GuardMetrics::default());
    guard.leads_if(|| true);
    let metrics = Metrics::with_guard(&guard);
    // Those with labels are exposed once they were used.
    let decision = DecisionLabels {
        policy: "p".into(),
        operation: "CREATE",
        verdict: "Admitted",
        reason: "Free",
        dry_run: false,
    };
    metrics.decided(&decision, Duration::ZERO);
    metrics.api_request("get", "pods", "ok");
    metrics.event(EventResult::Published);
    metrics.reconciling().violations("p", 0);
    metrics.reconciling().acted("p", "Freed", "done");
    metrics.reconciling().found("p", "DeployerStuck");
    let exposed = metrics.encode();
    let known = metrics_in(&exposed);
    let values = file("charts/deployer-guard/ci/monitoring-values.yaml");
    let all = rendered(&values, &[]);
    let rules = of_kind(&all, "PrometheusRule")[0].to_string();
    let dashboard = of_kind(&all, "ConfigMap")[0]["data"]["deployer-guard.json"]
        .as_str()
        .unwrap()
        .to_owned();
    serde_json::from_str::<Value>(&dashboard).expect("the dashboard is JSON");
    for text in [&rules, &dashboard] {
        let asked = metrics_in(text);
        assert!(asked.len() > 4, "{asked:?}");
        // One is named by a regular expression.
        let unknown: Vec<_> = asked
            .difference(&known)
            .filter(|name| **name != "deployer_guard_")
            .collect();
        assert!(unknown.is_empty(), "{unknown:?}");
    }
    // Prometheus adds these itself.
    let given = ["namespace", "service", "endpoint", "le", "container", "pod", "__name__"];
    for expression in expressions(&rules).into_iter().chain(expressions(&dashboard)) {
        for label in labels_in(&expression) {
            let known = given.contains(&label) || exposed.contains(&format!("{label}=\""));
            assert!(known, "{label} in {expression}");
        }
    }
}

/// Prometheus' own parsers take what is asked of it, with the templates of the alerts. It is asked for recorded rules alone where a
/// dashboard asks for panels, in whose variables Grafana puts values.
#[test]
fn prometheus_understands_alerts_and_dashboard() {
    let all = rendered(&file("charts/deployer-guard/ci/monitoring-values.yaml"), &[]);
    let alerts = of_kind(&all, "PrometheusRule")[0]["spec"].to_string();
    let dashboard = of_kind(&all, "ConfigMap")[0]["data"]["deployer-guard.json"]
        .as_str()
        .unwrap();
    let panels: Vec<_> = expressions(dashboard)
        .into_iter()
        .map(|expression| json!({"record": "panel", "expr": expression.replace("$__rate_interval", "1m")}))
        .collect();
    let panels = json!({"groups": [{"name": "dashboard", "rules": panels}]}).to_string();
    let faulty = panels.replacen("max(", "max((", 1);
    assert_eq!(check_rules(&alerts), Ok(()));
    assert_eq!(check_rules(&panels), Ok(()));
    assert!(check_rules(&faulty).is_err());
}

/// Checks groups of rules; the error is what is wrong with them.
fn check_rules(groups: &str) -> Result<(), String> {
    let mut checker = Command::new(program("check-rules"))
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("check-rules runs");
    let mut stdin = checker.stdin.take().expect("a pipe");
    stdin.write_all(groups.as_bytes()).expect("it reads all of it");
    drop(stdin);
    let output = checker.wait_with_output().expect("it ends");
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() {
        Ok(())
    } else {
        Err(complaint)
    }
}

/// What is asked of Prometheus in an object.
fn expressions(object: &str) -> Vec<String> {
    fn collect(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Object(fields) => {
                for (name, value) in fields {
                    match value.as_str() {
                        Some(text) if name == "expr" => found.push(text.to_owned()),
                        _ => collect(value, found),
                    }
                }
            }
            Value::Array(values) => values.iter().for_each(|value| collect(value, found)),
            _ => {}
        }
    }
    let mut found = Vec::new();
    collect(&serde_json::from_str(object).expect("JSON"), &mut found);
    assert!(found.len() > 4, "{found:?}");
    found
}

/// `path: whether it has a default` of each value.
fn leaves(value: &Value, path: &str, found: &mut BTreeSet<String>) {
    match value.as_object() {
        Some(fields) if !fields.is_empty() => {
            for (name, value) in fields {
                leaves(value, &format!("{path}/{name}"), found);
            }
        }
        _ => {
            found.insert(path.to_owned());
        }
    }
}

/// Whether the schema knows a value, by its own properties: an object without them is Kubernetes' own.
fn knows(schema: &Value, path: &str) -> bool {
    let mut schema = schema;
    for name in path.split('/').skip(1) {
        let Some(properties) = schema.get("properties") else {
            return schema["type"] == "object";
        };
        match properties.get(name) {
            Some(next) => schema = next,
            None => return false,
        }
    }
    true
}

/// Every property of the schema is a value, and no other is let in.
fn properties(schema: &Value, path: &str, values: &Value) {
    let Some(fields) = schema.get("properties").and_then(Value::as_object) else {
        return;
    };
    assert_eq!(schema["additionalProperties"], false, "{path} lets unknown values in");
    for (name, schema) in fields.iter().filter(|(name, _)| !path.is_empty() || *name != "global") {
        // What an issuer is called, and what a selector asks for, has no default.
        if path == "/certificates/certManager/issuerRef" || path.ends_with("/namespaceSelector") {
            continue;
        }
        let value = values
            .get(name)
            .unwrap_or_else(|| panic!("{path}/{name} is in the schema alone"));
        properties(schema, &format!("{path}/{name}"), value);
    }
}

#[test]
fn the_schema_knows_every_value_and_no_other() {
    let values: Value = serde_saphyr::from_str(&read("charts/deployer-guard/values.yaml")).unwrap();
    let schema: Value = serde_json::from_str(&read("charts/deployer-guard/values.schema.json")).unwrap();
    let mut paths = BTreeSet::new();
    leaves(&values, "", &mut paths);
    let unknown: Vec<_> = paths.iter().filter(|path| !knows(&schema, path)).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
    properties(&schema, "", &values);
}

/// A value, or a group of values that is one (Kubernetes' own, say), has a comment above it.
#[test]
fn every_value_is_documented() {
    let text = read("charts/deployer-guard/values.yaml");
    let (mut undocumented, mut documented, mut comment) = (Vec::new(), Vec::<usize>::new(), false);
    for line in text.lines() {
        let indent = line.len() - line.trim_start().len();
        if line.trim_start().starts_with('#') {
            comment = line.trim_start().starts_with("# -- ");
            continue;
        }
        documented.retain(|above| *above < indent);
        if comment {
            documented.push(indent);
        } else if documented.is_empty() && line.contains(':') && !line.ends_with(':') {
            undocumented.push(line);
        }
        comment = false;
    }
    assert!(undocumented.is_empty(), "{undocumented:?}");
}

#[test]
fn the_readme_is_made_from_the_values() {
    let chart = file("charts/deployer-guard");
    let made = Command::new(program("helm-docs"))
        .args([
            "--chart-search-root",
            chart.to_str().unwrap(),
            "--dry-run",
            "--log-level",
            "error",
        ])
        .output()
        .expect("helm-docs runs");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let made = String::from_utf8(made.stdout).unwrap();
    let path = chart.join("README.md");
    if std::env::var_os("UPDATE_MANIFESTS").is_some() {
        std::fs::write(&path, &made).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found.trim() == made.trim(),
        "charts/deployer-guard/README.md: run UPDATE_MANIFESTS=1 cargo test --test chart"
    );
}
