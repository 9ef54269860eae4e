//! CEL in the API server and ours: the same value, or ours refuses the expression when the policy is made.

use std::collections::BTreeMap;

use anyhow::{Context, ensure};
use deployer_guard::api::DeployerPolicy;
use deployer_guard::cluster::webhook_configuration::{Backend, generate};
use deployer_guard::domain::expression::{Expression, Scope};
use deployer_guard::domain::policy::{FieldError, Policy};
use k8s_openapi::api::admissionregistration::v1::{ValidatingWebhook, ValidatingWebhookConfiguration};
use kube::api::{Api, PostParams};
use serde_json::{Value, json};

use crate::common::run;
use crate::evaluation::{Evaluation, Values};
use crate::scene::{Scene, policy};

const DATA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/cel");

/// What came of an expression: refused, or a value for each pod, where `None` is a failed evaluation.
type Outcome = Result<Vec<Option<String>>, String>;

#[test]
fn an_expression_has_the_same_value_in_the_api_server_or_is_refused() {
    run(async {
        let scene = Scene::under(&[policy("cel-conformance", &json!({}))], "cel-conformance").await?;
        let (table, pods) = (table()?, pods()?);
        let rows: Vec<(&String, &String)> = table
            .iter()
            .flat_map(|(section, rows)| rows.iter().map(move |row| (section, row)))
            .collect();
        let expressions: Vec<String> = rows.iter().map(|(_, row)| (*row).clone()).collect();
        let mut evaluation = Evaluation::of(&scene, &expressions).await?;
        let (mut stored, mut values) = (Vec::new(), Vec::new());
        for pod in &pods {
            let (pod, of_it) = evaluation.create(pod).await?;
            stored.push(pod);
            values.push(of_it);
        }
        let mut wrong = Vec::new();
        for (place, (section, row)) in rows.iter().enumerate() {
            let theirs = match evaluation.refused.get(&place) {
                Some(why) => Err(why.clone()),
                None => Ok(values
                    .iter()
                    .map(|values| values.at(place).map(str::to_owned))
                    .collect()),
            };
            let ours = ours(row, &stored);
            if classify(&theirs, &ours) != *section {
                wrong.push(format!("{section}: {row}\n    theirs {theirs:?}\n    ours   {ours:?}"));
            }
        }
        ensure!(
            wrong.is_empty(),
            "{} of {}:\n{}",
            wrong.len(),
            rows.len(),
            wrong.join("\n")
        );
        Ok(())
    });
}

/// What `/validate` takes never makes the apply of the webhook configuration fail.
#[test]
fn the_api_server_takes_every_condition_that_a_policy_may_have() {
    run(async {
        let scene = Scene::under(&[policy("cel-conditions", &json!({}))], "cel-conditions").await?;
        let table = table()?;
        let rows = table
            .values()
            .flatten()
            .filter(|row| with_conditions(&[row.as_str()]).is_ok());
        let conditions: Vec<&str> = rows.map(String::as_str).collect();
        ensure!(
            conditions.len() > 100,
            "only {} of them are conditions",
            conditions.len()
        );
        let policies = conditions.chunks(56).map(with_conditions);
        let mut policies = policies
            .collect::<Result<Vec<_>, _>>()
            .map_err(|errors| anyhow::anyhow!("{errors:?}"))?;
        for (place, policy) in policies.iter_mut().enumerate() {
            policy.metadata.name = Some(format!("p-{place}"));
        }
        let configuration = generate(&policies, &backend(), None, "deployer-guard", "cel-conditions");
        let entries = configuration.webhooks.as_ref().map_or(0, Vec::len);
        ensure!(
            entries == policies.len() + 1,
            "{entries} entries for {} policies",
            policies.len()
        );
        let api: Api<ValidatingWebhookConfiguration> = Api::all(scene.client.clone());
        let dry_run = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        api.create(&dry_run, &configuration).await?;
        Ok(())
    });
}

/// The conditions that we generate, on pods with and without labels, annotations, and the keys that are read.
#[test]
fn a_generated_condition_has_our_own_verdict_on_every_pod_and_fails_on_none() {
    run(async {
        let scene = Scene::under(&[policy("cel-generated", &json!({}))], "cel-generated").await?;
        let policies = [
            json!({ "config": { "label": "app" }, "generation": { "annotation": "example.com/gen" } }),
            json!({
                "config": { "label": null, "expression": "object.metadata.annotations['a'] // of any pod" },
                "match": { "matchConditions": [{ "name": "c", "expression": "has(object.metadata.labels) && 'app' in object.metadata.labels // no more" }] },
            }),
            json!({ "match": { "matchConditions": [
                { "name": "c", "expression": "has(object.metadata.labels) &&\n  object.metadata.labels.exists(k, k.startsWith('a'))" },
                { "name": "d", "expression": "!has(object.metadata.annotations) || size(object.metadata.annotations) < 2" },
            ] } }),
        ];
        let policies = policies.iter().map(of_spec).collect::<Result<Vec<_>, _>>()?;
        let mut expressions = Vec::new();
        for policy in &policies {
            let entry = entry_of(policy)?;
            expressions.push(
                entry
                    .match_conditions
                    .into_iter()
                    .flatten()
                    .map(|condition| condition.expression)
                    .collect::<Vec<_>>(),
            );
        }
        let mut evaluation = Evaluation::of(&scene, &expressions.concat()).await?;
        ensure!(evaluation.refused.is_empty(), "{:?}", evaluation.refused);
        let compiled: Vec<Policy> = policies
            .iter()
            .map(|policy| Policy::compile(policy).expect("it was generated"))
            .collect();
        let metadata = [
            json!({}),
            json!({ "labels": null, "annotations": null }),
            json!({ "labels": {}, "annotations": {} }),
            json!({ "labels": { "app": "shop" } }),
            json!({ "labels": { "app": "" }, "annotations": { "a": "1" } }),
            json!({ "labels": { "other": "x" }, "annotations": { "example.com/gen": "1", "a": "1", "b": "2" } }),
            json!({ "annotations": { "example.com/gen": "2" } }),
        ];
        for (place, metadata) in metadata.iter().enumerate() {
            let (stored, values) = evaluation.create(&pod(&format!("new-{place}"), metadata)).await?;
            check(&compiled, &expressions, &values, None, &stored).with_context(|| metadata.to_string())?;
        }
        for (place, old) in metadata.iter().enumerate() {
            let name = format!("old-{place}");
            let created = scene.create(&pod(&name, old)).await?;
            let stored = serde_json::to_value(created.result.map_err(|status| anyhow::anyhow!("{status:?}"))?)?;
            for new in &metadata {
                let mut changed = stored.clone();
                changed["metadata"]["labels"] = new["labels"].clone();
                changed["metadata"]["annotations"] = new["annotations"].clone();
                let (changed, values) = evaluation.replace(&changed).await?;
                check(&compiled, &expressions, &values, Some(&stored), &changed)
                    .with_context(|| format!("{old} to {new}"))?;
            }
        }
        Ok(())
    });
}

/// Compares the conditions of each policy with its own verdict.
fn check(
    policies: &[Policy],
    expressions: &[Vec<String>],
    values: &Values,
    old: Option<&Value>,
    new: &Value,
) -> anyhow::Result<()> {
    let mut place = 0;
    for (policy, expressions) in policies.iter().zip(expressions) {
        let theirs = (place..).zip(expressions).map(|(place, expression)| {
            values
                .at(place)
                .with_context(|| format!("it fails: {expression}"))
                .map(|value| value == "<true>")
        });
        let theirs = theirs.collect::<anyhow::Result<Vec<_>>>()?;
        place += expressions.len();
        let [not_mirror, changed, users @ ..] = theirs.as_slice() else {
            anyhow::bail!("{expressions:?}");
        };
        let wanted = old.is_none_or(|old| !policy.changed_keys(old, new).is_empty());
        ensure!(
            *not_mirror && *changed == wanted,
            "changed: {changed}, ours {wanted}: {expressions:?}"
        );
        // Each condition may hold for the pod after or before; ours asks for all of them at once.
        let matches = policy.matches(new, old)? || old.is_some_and(|old| policy.matches(old, Some(old)) == Ok(true));
        let all = users.iter().all(|holds| *holds);
        ensure!(
            !matches || all,
            "the API server does not ask about a pod that the policy matches: {expressions:?}"
        );
        ensure!(
            matches == all || (old.is_some() && users.len() > 1),
            "matches: {matches}, theirs {all}: {expressions:?}"
        );
    }
    Ok(())
}

fn pod(name: &str, metadata: &Value) -> Value {
    let mut pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": { "containers": [{ "name": "a", "image": "a" }] } });
    pod["metadata"]["name"] = json!(name);
    pod
}

fn backend() -> Backend {
    Backend::Url("https://127.0.0.1:1".into())
}

fn entry_of(policy: &DeployerPolicy) -> anyhow::Result<ValidatingWebhook> {
    let configuration = generate(
        std::slice::from_ref(policy),
        &backend(),
        None,
        "deployer-guard",
        "generated",
    );
    configuration
        .webhooks
        .and_then(|entries| entries.into_iter().nth(1))
        .context("the policy does not compile")
}

fn of_spec(spec: &Value) -> serde_json::Result<DeployerPolicy> {
    let mut policy = policy("generated", spec);
    // Of any pod: the conditions alone decide.
    policy["spec"]["match"]["objectSelector"] =
        json!({ "matchExpressions": [{ "key": "none", "operator": "DoesNotExist" }] });
    serde_json::from_value(policy)
}

/// A policy with these conditions, or what is wrong with them.
fn with_conditions(expressions: &[&str]) -> Result<DeployerPolicy, Vec<FieldError>> {
    let named = expressions
        .iter()
        .enumerate()
        .map(|(place, expression)| json!({ "name": format!("c-{place}"), "expression": expression }));
    let spec = json!({ "match": { "matchConditions": named.collect::<Vec<_>>() } });
    let policy = of_spec(&spec).expect("a policy");
    Policy::compile(&policy).map(|_| policy)
}

fn table() -> anyhow::Result<BTreeMap<String, Vec<String>>> {
    Ok(serde_saphyr::from_str(&std::fs::read_to_string(format!(
        "{DATA}/expressions.yaml"
    ))?)?)
}

fn pods() -> anyhow::Result<Vec<Value>> {
    Ok(serde_saphyr::from_str(&std::fs::read_to_string(format!(
        "{DATA}/pods.yaml"
    ))?)?)
}

fn ours(row: &str, pods: &[Value]) -> Outcome {
    let expression = Expression::compile("f", &format!("string(\n{row}\n)"), &["object", "oldObject"]);
    let expression = expression.map_err(|error| error.to_string())?;
    let value = |pod| {
        let value = expression
            .string(&Scope::new(&[("object", Some(pod)), ("oldObject", None)]))
            .ok();
        value.map(|value| format!("<{value}>"))
    };
    Ok(pods.iter().map(value).collect())
}

fn classify(theirs: &Outcome, ours: &Outcome) -> &'static str {
    match (theirs, ours) {
        (Err(_), Err(_)) => "neither",
        (Ok(_), Err(_)) => "refused",
        (Err(_), Ok(_)) => "accepted by us alone",
        (Ok(theirs), Ok(ours)) if theirs == ours => "same",
        // A failure is never taken for a value: the decision is refused or not reached.
        (Ok(theirs), Ok(ours))
            if theirs
                .iter()
                .zip(ours)
                .all(|(theirs, ours)| ours.is_none() || theirs == ours) =>
        {
            "fails"
        }
        (Ok(_), Ok(_)) => "another value",
    }
}
