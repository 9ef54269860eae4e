//! What is rendered from each shape of values worth testing.

use serde_json::Value;

use crate::helm::{NAMESPACE, file, helm, objects, rendered, shapes, template};

#[test]
fn the_chart_has_nothing_that_lint_complains_of() {
    let chart = file("charts/deployer-guard");
    for (name, values) in shapes() {
        for program in ["helm", "helm3"] {
            let said = helm(
                program,
                &[
                    "lint",
                    chart.to_str().unwrap(),
                    "--strict",
                    "--namespace",
                    NAMESPACE,
                    "--kube-version",
                    "1.36.0",
                    "--values",
                    values.to_str().unwrap(),
                ],
            );
            assert!(said.is_ok(), "{program}, {name}: {}", said.unwrap_err());
        }
    }
}

/// A change of what is rendered is seen in a review. `UPDATE_MANIFESTS=1` writes them anew.
#[test]
fn each_shape_renders_what_it_did() {
    for (name, values) in shapes() {
        let text = template("helm", &["--values", values.to_str().unwrap()]).unwrap();
        let text = text.trim_start_matches('\n');
        let path = file("tests/chart/snapshots").join(format!("{name}.yaml"));
        if std::env::var_os("UPDATE_MANIFESTS").is_some() {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, text).unwrap();
        }
        let found = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            found == text,
            "{} is not what the chart renders; run UPDATE_MANIFESTS=1 cargo test --test chart, and look at the difference",
            path.display()
        );
    }
}

/// No certificate, no password, no time: a re-sync changes nothing.
#[test]
fn two_renders_are_one() {
    for (name, values) in shapes() {
        let flags = ["--values", values.to_str().unwrap()];
        let first = template("helm", &flags).unwrap();
        assert_eq!(first, template("helm", &flags).unwrap(), "{name}");
    }
}

#[test]
fn helm_3_renders_the_same_objects() {
    for (name, values) in shapes() {
        let theirs = template("helm3", &["--values", values.to_str().unwrap()]).unwrap();
        let mut theirs: Vec<_> = objects(&theirs).iter().map(ToString::to_string).collect();
        let mut ours: Vec<_> = rendered(&values, &[]).iter().map(ToString::to_string).collect();
        theirs.sort();
        ours.sort();
        assert_eq!(ours, theirs, "{name}");
    }
}

/// The guard alone fills these: a chart that named them would take its content away at each upgrade.
#[test]
fn what_the_guard_fills_is_rendered_without_content() {
    for (name, values) in shapes() {
        for object in rendered(&values, &[]) {
            let filled: &[&str] = match object["kind"].as_str().unwrap() {
                "ValidatingWebhookConfiguration" => &["webhooks"],
                "Secret" => &["data", "stringData"],
                "Lease" => &["spec"],
                _ => continue,
            };
            for field in filled {
                assert!(object.get(field).is_none(), "{name}: {object}");
            }
        }
    }
}

/// Fails where a name, a label or an annotation is no string.
fn check_names(value: &Value, path: &str) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                check_names(value, &format!("{path}/{name}"));
                let text = ["/labels", "/annotations", "/matchLabels"]
                    .iter()
                    .any(|end| path.ends_with(end));
                let named = ["name", "namespace", "serviceAccountName", "secretName"].contains(&name.as_str());
                assert!(
                    !(text || named) || value.is_string() || value.is_object(),
                    "{path}/{name}: {value}"
                );
            }
        }
        Value::Array(values) => values.iter().for_each(|value| check_names(value, path)),
        _ => {}
    }
}

/// What looks like a number or a word of YAML stays a string.
#[test]
fn names_that_look_like_something_else_stay_names() {
    let chart = file("charts/deployer-guard");
    let all = [
        "template",
        "123",
        chart.to_str().unwrap(),
        "--namespace",
        "456",
        "--kube-version",
        "1.36.0",
        "--set-string",
        "fullnameOverride=789,nameOverride=012,tests.namespace=on",
    ];
    for object in objects(&helm("helm", &all).unwrap()) {
        check_names(&object, object["kind"].as_str().unwrap());
    }
}
