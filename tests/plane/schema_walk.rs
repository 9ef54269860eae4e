//! Every field of a policy with every kind of wrong value that its schema knows: the rows are made from the schema that users install,
//! so no field can be without one.

use anyhow::{Context, ensure};
use deployer_guard::api::DeployerPolicy;
use kube::CustomResourceExt;
use kube::api::PostParams;
use kube::core::Request;
use serde_json::{Map, Value, json};

use crate::common::run;
use crate::scene::{Scene, policy};

const POLICIES: &str = "/apis/deployer-guard.io/v1alpha1/deployerpolicies";

/// A policy that has every field, and every list and map of one entry.
fn full() -> Value {
    let selector = json!({
        "matchLabels": { "a": "b" },
        "matchExpressions": [{ "key": "c", "operator": "In", "values": ["d"] }],
    });
    policy(
        "schema-walk",
        &json!({
            "mode": "Enforce", "failurePolicy": "Fail", "timeoutSeconds": 5,
            "match": {
                "namespaceSelector": selector, "objectSelector": selector,
                "matchConditions": [{ "name": "a", "expression": "true" }],
            },
            "config": { "label": "config", "uid": "'x'" },
            "generation": { "label": "v", "ordinal": "1" },
            "owner": { "apiVersion": "v1", "kind": "ReplicationController", "expression": "true", "wake": "Never" },
            "scope": "Config", "reruns": "Always", "olderGenerations": "Allow",
            "leftovers": { "duplicates": "Report", "orphans": "Report", "stuckAfterSeconds": 60, "keepClaimsSeconds": 300 },
        }),
    )
}

/// A wrong value.
struct Row {
    /// As `spec.match.matchConditions[0].name`.
    field: String,
    pointer: String,
    /// `None`: left out.
    value: Option<Value>,
    /// What the API server must say, beside the field.
    texts: Vec<String>,
}

/// The schema's rows, in order; and the fields that hold no others.
#[derive(Default)]
struct Walk {
    rows: Vec<Row>,
    leaves: Vec<String>,
    /// Pointers to objects with named fields, with how the API server writes them.
    objects: Vec<(String, String)>,
}

impl Walk {
    fn visit(&mut self, schema: &Value, field: &str, pointer: &str) -> anyhow::Result<()> {
        let kind = schema["type"]
            .as_str()
            .with_context(|| format!("{field} has no type"))?;
        let wrong = if kind == "string" { json!(7) } else { json!("text") };
        self.row(field, pointer, Some(wrong), &[format!("must be of type {kind}")]);
        self.limits(schema, field, pointer);
        match kind {
            "object" if schema["properties"].is_object() => {
                self.objects.push((field.to_owned(), pointer.to_owned()));
                for (name, property) in schema["properties"].as_object().into_iter().flatten() {
                    self.visit(property, &format!("{field}.{name}"), &format!("{pointer}/{name}"))?;
                }
                for name in schema["required"]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .filter_map(Value::as_str)
                {
                    self.row(
                        &format!("{field}.{name}"),
                        &format!("{pointer}/{name}"),
                        None,
                        &["Required value".into()],
                    );
                }
            }
            "object" => {
                let values = &schema["additionalProperties"];
                ensure!(values.is_object(), "{field} is an object of nothing");
                self.visit(values, &format!("{field}.a"), &format!("{pointer}/a"))?;
            }
            "array" => self.visit(&schema["items"], &format!("{field}[0]"), &format!("{pointer}/0"))?,
            _ => self.leaves.push(field.to_owned()),
        }
        Ok(())
    }

    fn limits(&mut self, schema: &Value, field: &str, pointer: &str) {
        if let Some(values) = schema["enum"].as_array() {
            let known = values
                .iter()
                .filter_map(Value::as_str)
                .map(|value| format!("\"{value}\""));
            self.row(field, pointer, Some(json!("Other")), &known.collect::<Vec<_>>());
        }
        let number = |name: &str| {
            schema[name]
                .as_f64()
                .map(|number| format!("{number:.0}").parse::<i64>().unwrap_or_default())
        };
        if let Some(least) = number("minimum") {
            self.row(
                field,
                pointer,
                Some(json!(least - 1)),
                &[format!("greater than or equal to {least}")],
            );
        }
        if let Some(most) = number("maximum") {
            self.row(
                field,
                pointer,
                Some(json!(most + 1)),
                &[format!("less than or equal to {most}")],
            );
        }
        if let Some(least) = number("minLength") {
            self.row(field, pointer, Some(json!("")), &[format!("at least {least} ")]);
        }
        let size = |name: &str| number(name).and_then(|most| usize::try_from(most).ok());
        if let Some(most) = size("maxLength") {
            self.row(field, pointer, Some(json!("a".repeat(most + 1))), &[most.to_string()]);
        }
        if schema["pattern"].is_string() {
            self.row(field, pointer, Some(json!("no such thing!")), &["should match".into()]);
        }
        if let Some(most) = size("maxItems") {
            self.row(
                field,
                pointer,
                Some(Value::Array(items(&schema["items"], most + 1))),
                &[format!("at most {most}")],
            );
        }
        if let Some(most) = size("maxProperties") {
            let entries: Map<_, _> = (0..=most).map(|n| (format!("k{n}"), json!("v"))).collect();
            self.row(
                field,
                pointer,
                Some(Value::Object(entries)),
                &[format!("at most {most}")],
            );
        }
    }

    fn row(&mut self, field: &str, pointer: &str, value: Option<Value>, texts: &[String]) {
        self.rows.push(Row {
            field: field.to_owned(),
            pointer: pointer.to_owned(),
            value,
            texts: texts.to_vec(),
        });
    }
}

/// So many good entries of a list.
fn items(schema: &Value, count: usize) -> Vec<Value> {
    let item = |n: usize| {
        if schema["type"] == "string" {
            return json!(format!("v{n}"));
        }
        if schema["properties"]["operator"].is_object() {
            return json!({ "key": format!("k{n}"), "operator": "Exists" });
        }
        json!({ "name": format!("n{n}"), "expression": "true" })
    };
    (0..count).map(item).collect()
}

fn walked() -> anyhow::Result<Walk> {
    let crd = serde_json::to_value(DeployerPolicy::crd())?;
    let mut walk = Walk::default();
    walk.visit(
        &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"],
        "spec",
        "/spec",
    )?;
    Ok(walk)
}

/// What the API server says to a policy; empty if it takes it. Nothing is stored.
async fn said(scene: &Scene, policy: &Value, strict: bool) -> anyhow::Result<String> {
    let dry_run = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let mut request = Request::new(POLICIES).create(&dry_run, policy.to_string().into_bytes())?;
    if strict {
        *request.uri_mut() = format!("{POLICIES}?dryRun=All&fieldValidation=Strict").parse()?;
    }
    match scene.client.request::<Value>(request).await {
        Ok(_) => Ok(String::new()),
        Err(kube::Error::Api(status)) if matches!(status.code, 400 | 422) => Ok(status.message.clone()),
        Err(error) => Err(error.into()),
    }
}

#[test]
fn every_field_is_refused_with_every_kind_of_wrong_value() {
    run(async {
        let scene = Scene::under(&[policy("schema-walk-scene", &json!({}))], "schema-walk").await?;
        ensure!(
            said(&scene, &full(), true).await?.is_empty(),
            "{}",
            said(&scene, &full(), true).await?
        );
        let walk = walked()?;
        // Every field is in the policy that is changed, or is one of several of which exactly one is given.
        ensure!(walk.leaves.len() > 30, "{:?}", walk.leaves);
        for leaf in &walk.leaves {
            ensure!(walk.rows.iter().any(|row| row.field == *leaf), "{leaf} has no row");
        }
        let mut wrong = Vec::new();
        for row in &walk.rows {
            let mut policy = full();
            let (parent, name) = row.pointer.rsplit_once('/').context("a field")?;
            let parent = if parent.is_empty() {
                Some(&mut policy)
            } else {
                policy.pointer_mut(parent)
            };
            match (parent.with_context(|| row.pointer.clone())?, &row.value) {
                (Value::Array(items), Some(value)) => items[0] = value.clone(),
                (Value::Object(fields), Some(value)) => drop(fields.insert(name.to_owned(), value.clone())),
                (Value::Object(fields), None) => drop(fields.remove(name)),
                (other, _) => anyhow::bail!("{} is in {other}", row.pointer),
            }
            let message = said(&scene, &policy, false).await.with_context(|| row.field.clone())?;
            // The API server names the map, not always the key.
            let field = row
                .field
                .strip_suffix("matchLabels.a")
                .map_or(row.field.clone(), |map| format!("{map}matchLabels"));
            if !message.contains(&field) || row.texts.iter().any(|text| !message.contains(text)) {
                let value = row.value.as_ref().map_or("(none)".into(), |value| {
                    value.to_string().chars().take(60).collect::<String>()
                });
                wrong.push(format!(
                    "{} = {value}\n  wanted {:?}\n  said   {message:.400?}",
                    row.field, row.texts
                ));
            }
        }
        ensure!(
            wrong.is_empty(),
            "{} of {}:\n{}",
            wrong.len(),
            walk.rows.len(),
            wrong.join("\n")
        );
        Ok(())
    });
}

#[test]
fn a_field_that_does_not_exist_is_named_wherever_it_stands() {
    run(async {
        let scene = Scene::under(&[policy("schema-unknown-scene", &json!({}))], "schema-unknown").await?;
        for (field, pointer) in walked()?.objects {
            let mut policy = full();
            policy.pointer_mut(&pointer).with_context(|| pointer.clone())?["unheardOf"] = json!(1);
            let message = said(&scene, &policy, true).await?;
            ensure!(
                message.contains(&format!("unknown field \"{field}.unheardOf\"")),
                "{field}: {message:?}"
            );
        }
        Ok(())
    });
}
