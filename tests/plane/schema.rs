//! Policies that the API server refuses, by their schema or through our validating path.

use anyhow::{Context, ensure};
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use serde_json::{Value, json};

use crate::common::run;
use crate::scene::{Scene, merge, policy};

fn api(scene: &Scene) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("deployer-guard.io", "v1alpha1", "DeployerPolicy");
    Api::all_with(scene.client.clone(), &ApiResource::from_gvk(&kind))
}

/// What the API server says to a policy with this merged into its spec; empty if it takes it. Nothing is stored.
async fn said(scene: &Scene, spec: &Value) -> anyhow::Result<String> {
    said_to(scene, &policy("schema", spec)).await
}

async fn said_to(scene: &Scene, policy: &Value) -> anyhow::Result<String> {
    let dry_run = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    match api(scene)
        .create(&dry_run, &serde_json::from_value(policy.clone())?)
        .await
    {
        Ok(_) => Ok(String::new()),
        Err(kube::Error::Api(status)) if matches!(status.code, 400 | 422) => Ok(status.message.clone()),
        Err(error) => Err(error.into()),
    }
}

/// Checks a table: what is merged into the spec, and texts that the answer must have, the field first.
async fn check(scene: &Scene, table: &[(Value, &[&str])]) -> anyhow::Result<()> {
    let mut wrong = Vec::new();
    for (spec, texts) in table {
        let message = said(scene, spec).await.with_context(|| spec.to_string())?;
        if message.is_empty() || texts.iter().any(|text| !message.contains(text)) {
            wrong.push(format!("{spec}\n  wanted {texts:?}\n  said   {message:?}"));
        }
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

/// A scene whose validating path is called: some policy is in force.
async fn scene(namespace: &str) -> anyhow::Result<Scene> {
    Scene::under(&[policy("schema-scene", &json!({}))], namespace).await
}

#[test]
fn a_wrong_value_is_refused_with_its_field_and_the_remedy() {
    run(async {
        let scene = scene("schema-values").await?;
        assert_eq!(said(&scene, &json!({})).await?, "");
        let long = "x".repeat(4097);
        let conditions = |count: usize| -> Vec<Value> {
            (0..count)
                .map(|i| json!({ "name": format!("c{i}"), "expression": "true" }))
                .collect()
        };
        assert_eq!(
            said(&scene, &json!({ "match": { "matchConditions": conditions(56) } })).await?,
            ""
        );
        check(
            &scene,
            &[
                (json!({ "mode": "Off" }), &["spec.mode", "\"Enforce\", \"Warn\", \"Audit\""]),
                (json!({ "failurePolicy": "Retry" }), &["spec.failurePolicy", "\"Fail\", \"Ignore\""]),
                (json!({ "timeoutSeconds": 0 }), &["spec.timeoutSeconds", "greater than or equal to 1"]),
                (json!({ "timeoutSeconds": 31 }), &["spec.timeoutSeconds", "less than or equal to 30"]),
                (json!({ "timeoutSeconds": "5s" }), &["spec.timeoutSeconds", "integer"]),
                (json!({ "match": null }), &["spec.match", "Required value"]),
                (json!({ "match": { "objectSelector": null } }), &["spec.match must narrow: give spec.match.objectSelector at least one entry"]),
                (json!({ "match": { "objectSelector": { "matchLabels": null } } }), &["spec.match must narrow", "or add spec.match.matchConditions"]),
                (json!({ "match": { "objectSelector": { "matchLabels": { "a": "b c" } } } }), &["spec.match.objectSelector.matchLabels", "should match"]),
                (json!({ "match": { "objectSelector": { "matchExpressions": [{ "key": "a", "operator": "Is" }] } } }), &["spec.match.objectSelector.matchExpressions[0].operator", "\"In\", \"NotIn\", \"Exists\", \"DoesNotExist\""]),
                (json!({ "match": { "objectSelector": { "matchExpressions": [{ "key": "a", "operator": "In" }] } } }), &["matchExpressions[].values must have at least one entry for In and NotIn"]),
                (json!({ "match": { "objectSelector": { "matchExpressions": [{ "key": "a", "operator": "Exists", "values": ["b"] }] } } }), &["none for Exists and DoesNotExist"]),
                (json!({ "match": { "namespaceSelector": { "matchExpressions": [{ "key": "a b", "operator": "Exists" }] } } }), &["spec.match.namespaceSelector.matchExpressions[0].key", "should match"]),
                (json!({ "match": { "matchConditions": [{ "name": "deployer-guard.io/x", "expression": "true" }] } }), &["spec.match.matchConditions[0].name", "the prefix is reserved; choose another name"]),
                (json!({ "match": { "matchConditions": [{ "name": "a b", "expression": "true" }] } }), &["spec.match.matchConditions[0].name", "should match"]),
                (json!({ "match": { "matchConditions": [{ "name": "a", "expression": "" }] } }), &["spec.match.matchConditions[0].expression", "at least 1"]),
                (json!({ "match": { "matchConditions": [{ "name": "a", "expression": "true" }, { "name": "a", "expression": "true" }] } }), &["spec.match.matchConditions[1]", "Duplicate value"]),
                (json!({ "match": { "matchConditions": conditions(57) } }), &["spec.match.matchConditions", "at most 56"]),
                (json!({ "match": { "matchConditions": [{ "name": "a", "expression": long }] } }), &["spec.match.matchConditions[0].expression", "4096"]),
                (json!({ "config": null }), &["spec.config", "Required value"]),
                (json!({ "config": { "label": null } }), &["spec.config needs exactly one of label, annotation and expression: give one and remove the others"]),
                (json!({ "config": { "annotation": "b" } }), &["spec.config needs exactly one of label, annotation and expression"]),
                (json!({ "config": { "label": "" } }), &["spec.config.label"]),
                (json!({ "config": { "label": "a b" } }), &["spec.config.label", "should match"]),
                (json!({ "config": { "label": "Example.com/a" } }), &["spec.config.label", "should match"]),
                (json!({ "config": { "label": null, "annotation": "/a" } }), &["spec.config.annotation", "should match"]),
                (json!({ "config": { "uid": "" } }), &["spec.config.uid"]),
                (json!({ "generation": {} }), &["spec.generation needs exactly one of label, annotation and expression"]),
                (json!({ "generation": { "label": "a", "annotation": "b" } }), &["spec.generation needs exactly one of"]),
                (json!({ "generation": { "label": "a", "ordinal": 3 } }), &["spec.generation.ordinal", "string"]),
                (json!({ "owner": { "kind": "Job" } }), &["spec.owner.apiVersion", "Required value"]),
                (json!({ "owner": { "apiVersion": "batch/v1" } }), &["spec.owner.kind", "Required value"]),
                (json!({ "owner": { "apiVersion": "batch", "kind": "Job" } }), &["spec.owner.apiVersion", "should match"]),
                (json!({ "owner": { "apiVersion": "batch/v1", "kind": "a job" } }), &["spec.owner.kind", "should match"]),
                (json!({ "owner": { "apiVersion": "batch/v1", "kind": "Job", "wake": "Always" } }), &["spec.owner.wake", "\"Never\", \"OnRelease\""]),
                (json!({ "scope": "Cluster" }), &["spec.scope", "\"Config\", \"Generation\""]),
                (json!({ "scope": "Generation" }), &["spec.scope Generation needs spec.generation: say where a pod's generation is read, or use scope Config"]),
                (json!({ "reruns": "Sometimes" }), &["spec.reruns", "\"Always\", \"AfterFailure\", \"Never\""]),
                (json!({ "reruns": "Never" }), &["spec.reruns other than Always needs spec.generation", "or leave reruns out"]),
                (json!({ "olderGenerations": "Refuse" }), &["spec.olderGenerations", "\"Allow\", \"Deny\""]),
                (json!({ "olderGenerations": "Deny" }), &["spec.olderGenerations Deny needs spec.scope Config and spec.generation.ordinal: give both, or use Allow"]),
                (json!({ "olderGenerations": "Deny", "generation": { "label": "v" } }), &["spec.olderGenerations Deny needs"]),
                (json!({ "olderGenerations": "Deny", "scope": "Generation", "generation": { "label": "v", "ordinal": "1" } }), &["spec.olderGenerations Deny needs"]),
                (json!({ "leftovers": { "duplicates": "Delete" } }), &["spec.leftovers.duplicates", "\"Report\", \"DeleteUnstarted\""]),
                (json!({ "leftovers": { "orphans": "Delete" } }), &["spec.leftovers.orphans", "\"Report\", \"DeleteUnstarted\""]),
                (json!({ "leftovers": { "stuckAfterSeconds": 59 } }), &["spec.leftovers.stuckAfterSeconds", "greater than or equal to 60"]),
                (json!({ "leftovers": { "keepClaimsSeconds": 299 } }), &["spec.leftovers.keepClaimsSeconds", "greater than or equal to 300"]),
            ],
        )
        .await?;
        let mut named = policy(&"n".repeat(64), &json!({}));
        named["spec"]["match"]["objectSelector"]["matchLabels"]["scene"] = json!("x");
        let message = said_to(&scene, &named).await?;
        ensure!(
            message.contains("metadata.name may have at most 63 characters")
                && message.contains("choose a shorter one"),
            "{message}"
        );
        Ok(())
    });
}

#[test]
fn a_misspelt_field_is_refused_by_kubectl_with_its_name() {
    run(async {
        let scene = scene("schema-misspelt").await?;
        let file = scene.file(
            "misspelt",
            &policy("schema-misspelt", &json!({ "failurepolicy": "Ignore" })),
        )?;
        let (done, printed) = scene.kubectl(&["create", "-f", &file]).await?;
        ensure!(
            !done && printed.contains("unknown field \"spec.failurepolicy\""),
            "{printed}"
        );
        Ok(())
    });
}

#[test]
fn what_claims_are_named_by_cannot_be_changed_and_the_rest_can() {
    run(async {
        let scene = scene("schema-transitions").await?;
        let with_generation = json!({ "generation": { "label": "v", "ordinal": "1" } });
        let policies = [policy("schema-one", &json!({})), policy("schema-two", &with_generation)];
        for policy in &policies {
            api(&scene)
                .create(&PostParams::default(), &serde_json::from_value(policy.clone())?)
                .await?;
        }
        let change = async |name: &str, spec: &Value| -> anyhow::Result<String> {
            let patch = Patch::Merge(json!({ "spec": spec }));
            match api(&scene).patch(name, &PatchParams::default(), &patch).await {
                Ok(_) => Ok(String::new()),
                Err(kube::Error::Api(status)) if status.code == 422 => Ok(status.message.clone()),
                Err(error) => Err(error.into()),
            }
        };
        for (name, spec, text) in [
            (
                "schema-one",
                json!({ "config": { "label": "other" } }),
                "spec.config is immutable",
            ),
            (
                "schema-one",
                json!({ "config": { "label": null, "annotation": "config" } }),
                "spec.config is immutable",
            ),
            (
                "schema-one",
                json!({ "config": { "uid": "'x'" } }),
                "spec.config is immutable",
            ),
            (
                "schema-one",
                with_generation.clone(),
                "spec.generation can neither be added nor removed",
            ),
            (
                "schema-two",
                json!({ "generation": null }),
                "spec.generation can neither be added nor removed",
            ),
            (
                "schema-two",
                json!({ "generation": { "label": "w" } }),
                "spec.generation is immutable",
            ),
            (
                "schema-two",
                json!({ "generation": { "label": null, "annotation": "v" } }),
                "spec.generation is immutable",
            ),
            (
                "schema-two",
                json!({ "generation": { "label": null, "expression": "'v'" } }),
                "spec.generation is immutable",
            ),
            (
                "schema-one",
                json!({ "config": { "label": null, "expression": "'x'" } }),
                "spec.config is immutable",
            ),
            (
                "schema-two",
                json!({ "generation": { "ordinal": "2" } }),
                "spec.generation is immutable",
            ),
            (
                "schema-two",
                json!({ "scope": "Generation" }),
                "spec.scope is immutable",
            ),
        ] {
            let message = change(name, &spec).await?;
            ensure!(
                message.contains(text) && message.contains("make a new policy under another name"),
                "{name} {spec}: {message:?}"
            );
        }
        for spec in [
            json!({ "mode": "Audit" }),
            json!({ "failurePolicy": "Ignore", "timeoutSeconds": 9 }),
            json!({ "match": { "matchConditions": [{ "name": "a", "expression": "true" }] } }),
            json!({ "reruns": "Never", "olderGenerations": "Allow" }),
            json!({ "owner": { "apiVersion": "batch/v1", "kind": "Job" } }),
            json!({ "owner": null }),
            json!({ "leftovers": { "orphans": "DeleteUnstarted" } }),
        ] {
            assert_eq!(change("schema-two", &spec).await?, "", "{spec}");
        }
        for name in ["schema-one", "schema-two"] {
            api(&scene).delete(name, &DeleteParams::default()).await?;
        }
        Ok(())
    });
}

#[test]
fn an_expression_that_cannot_work_is_refused_with_field_and_position() {
    run(async {
        let scene = scene("schema-expressions").await?;
        let condition =
            |expression: &str| json!({ "match": { "matchConditions": [{ "name": "a", "expression": expression }] } });
        check(
            &scene,
            &[
                (condition("object."), &["policies.deployer-guard.io", "spec.match.matchConditions[0].expression: line 1, column 8: syntax error"]),
                (condition("true &&\n  object.metadata.name = 'a'"), &["spec.match.matchConditions[0].expression: line 2, column"]),
                (condition("owner.metadata.name == 'a'"), &["spec.match.matchConditions[0].expression: line 1, column 1: unknown variable owner; this field may read object and oldObject"]),
                (condition("request.operation == 'CREATE'"), &["unknown variable request"]),
                (condition("object.metadata.name.reverse() == 'a'"), &["line 1, column 29: unknown function reverse; known are"]),
                (condition("object.metadata.labels['a'] == 'b'"), &["spec.match.matchConditions[0].expression", "has()"]),
                (condition("object.metadata.annotations['a'] == 'b'"), &["spec.match.matchConditions[0].expression", "has()"]),
                (condition("object.metadata.name"), &["spec.match.matchConditions[0].expression", "must yield a bool"]),
                (condition("object.metadata.name.matches('(')"), &["spec.match.matchConditions[0].expression", "regular expression"]),
                (condition("1 == 'a'"), &["spec.match.matchConditions[0].expression: line 1, column 3: == cannot be applied to (int, string)", "convert what is of another type"]),
                (condition("[1, 'a'].size() == 2"), &["spec.match.matchConditions[0].expression: line 1, column 1: a list literal mixes int and string", "wrap each in dyn(), or convert them"]),
                (condition("{'a': 1, 'b': 'c'}.size() == 2"), &["a map literal's values mix int and string", "wrap each in dyn(), or convert them"]),
                (condition("true ? true : 'a' == 1"), &["== cannot be applied to (string, int)"]),
                (condition("int('x') == 1"), &["spec.match.matchConditions[0].expression: line 1, column 4: int cannot convert this literal; correct it"]),
                (condition("object.metadata.name.matches('a{1,2000}')"), &["the pattern of matches is not a regular expression", "repeated more than 1000 times"]),
                (condition("object.metadata.name.matches('[[a]b]')"), &["spec.match.matchConditions[0].expression", "escape them"]),
                (condition("object.metadata.name.matches(object.metadata.name)"), &["the pattern of matches must be a string literal of at most 256 characters"]),
                (condition("'a'.all(c, true)"), &["a macro goes over a string; give it a list or a map"]),
                (condition("string(0.5) == '0.5'"), &["the API server writes a double in another way; convert it with int() first"]),
                (condition(&format!("0 == 1{}", " + 1".repeat(200))), &["spec.match.matchConditions[0].expression: the expression is nested too deeply; split"]),
                (condition(&format!("{}true{}", "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9].all(a, ".repeat(6), ")".repeat(6))), &["takes too many steps even on a pod with next to nothing in it; make it simpler"]),
                (condition(&format!("{}true{}", "object.spec.containers.all(a, ".repeat(7), ")".repeat(7))), &["spec.match.matchConditions[0].expression: on a pod of 300 KB", "make it simpler"]),
                (json!({ "match": { "objectSelector": { "matchLabels": { "": "x" } } } }), &["spec.match.objectSelector.matchLabels", "give it a name of at most 63 letters"]),
                (json!({ "match": { "objectSelector": { "matchLabels": { "a b": "x" } } } }), &["spec.match.objectSelector.matchLabels", "give it a name of at most 63 letters"]),
                (json!({ "match": { "namespaceSelector": { "matchLabels": { "a/b/c": "x" } } } }), &["spec.match.namespaceSelector.matchLabels", "give it a name of at most 63 letters"]),
                (json!({ "config": { "label": null, "expression": "owner.metadata.name" } }), &["spec.config.expression: line 1, column 1: unknown variable owner; this field may read object"]),
                (json!({ "config": { "uid": "owner.metadata.uid" } }), &["spec.config.uid: line 1, column 1: unknown variable owner"]),
                (json!({ "config": { "label": null, "expression": "object.metadata.name + 1" } }), &["spec.config.expression", "must yield a string, but it yields a int"]),
                (json!({ "config": { "uid": "1" } }), &["spec.config.uid: the expression must yield a string, but it yields a int"]),
                (json!({ "generation": { "expression": "true" } }), &["spec.generation.expression: the expression must yield a string, but it yields a bool"]),
                (json!({ "generation": { "label": "v", "ordinal": "'1'" } }), &["spec.generation.ordinal: the expression must yield a int, but it yields a string"]),
                (json!({ "owner": { "apiVersion": "v1", "kind": "ReplicationController", "expression": "'yes'" } }), &["spec.owner.expression: the expression must yield a bool, but it yields a string"]),
                (json!({ "generation": { "label": "v", "ordinal": "number(object)" } }), &["spec.generation.ordinal: line 1, column 7: unknown function number"]),
                (json!({ "owner": { "apiVersion": "v1", "kind": "ReplicationController", "expression": "pod.x" } }), &["spec.owner.expression: line 1, column 1: unknown variable pod; this field may read object and owner"]),
            ],
        )
        .await?;
        // Everything that is wrong is said at once.
        let mut both = condition("object.");
        merge(&mut both, &json!({ "config": { "uid": "x" } }));
        let message = said(&scene, &both).await?;
        ensure!(
            message.contains("matchConditions[0]") && message.contains("spec.config.uid"),
            "{message}"
        );
        Ok(())
    });
}
