//! The rights in `deploy/rbac.yaml`: enough, none too many, and a missing one is named.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, ensure};
use deployer_guard_testkit::objects::{create_pod, make_namespace, set_phase};
use deployer_guard_testkit::{ControlPlane, Stage, until};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::Client;
use kube::api::{Api, DeleteParams, PostParams};
use serde_json::{Value, json};

use crate::common::{OPENSHIFT, PROGRAM, Rollout, run, shared};
use crate::scene::{pod, policy};

const RBAC: &str = include_str!("../../deploy/rbac.yaml");
const USER: &str = "system:serviceaccount:deployer-guard:deployer-guard";
const NAMESPACE: &str = "rights";
const SOON: Duration = Duration::from_secs(20);

/// API group, resource, verb.
type Right = (String, String, String);

fn granted() -> anyhow::Result<BTreeSet<Right>> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(RBAC)?;
    let mut rights = BTreeSet::new();
    for role in documents
        .into_iter()
        // What others may read is not ours to use; no guard runs here, and certificates are in files.
        .filter(|document| {
            let other = [
                "deployer-guard-view",
                "deployer-guard-leftovers",
                "deployer-guard-guard",
                "deployer-guard-certificates",
            ]
            .map(|name| json!(name));
            document["kind"] == "ClusterRole" && !other.contains(&document["metadata"]["name"])
        })
    {
        let role: ClusterRole = serde_json::from_value(role)?;
        for rule in role.rules.unwrap_or_default() {
            for group in rule.api_groups.iter().flatten() {
                for resource in rule.resources.iter().flatten() {
                    for verb in &rule.verbs {
                        rights.insert((group.clone(), resource.clone(), verb.clone()));
                    }
                }
            }
        }
    }
    Ok(rights)
}

/// What our `ServiceAccount` did, and what it was not allowed to do. A 403 may be an admission's too: that of a namespace
/// that is being deleted.
fn used(stage: &Stage) -> anyhow::Result<(BTreeSet<Right>, Vec<Value>)> {
    let events = stage.plane.audit_events()?;
    let ours = events.into_iter().filter(|event| event["user"]["username"] == USER);
    let (denied, allowed): (Vec<_>, Vec<_>) =
        ours.partition(|event| event["annotations"]["authorization.k8s.io/decision"] != "allow");
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let rights = allowed
        .iter()
        .filter(|event| event["objectRef"]["resource"].is_string());
    let rights = rights.map(|event| {
        let object = &event["objectRef"];
        let resource = match text(&object["subresource"]) {
            subresource if subresource.is_empty() => text(&object["resource"]),
            subresource => format!("{}/{subresource}", text(&object["resource"])),
        };
        (text(&object["apiGroup"]), resource, text(&event["verb"]))
    });
    Ok((rights.collect(), denied))
}

/// A stage on which the webhook has its own rights alone. In one Pod with a guard it holds those of the guard, too.
async fn stage() -> anyhow::Result<Stage> {
    let stage = Stage::builder(PROGRAM)
        .plane(ControlPlane::builder().audit_log(true))
        .start()
        .await?;
    let bindings: Api<ClusterRoleBinding> = Api::all(stage.plane.client(0));
    for of_the_guard in ["deployer-guard-leftovers", "deployer-guard-guard"] {
        bindings.delete(of_the_guard, &DeleteParams::default()).await?;
    }
    let everywhere = policy(
        "everywhere",
        &json!({ "match": { "objectSelector": { "matchLabels": { "scene": "rights" } } } }),
    );
    let mut somewhere = policy(
        "somewhere",
        &json!({ "match": { "objectSelector": { "matchLabels": { "scene": "rights" } } } }),
    );
    somewhere["spec"]["match"]["namespaceSelector"] = json!({ "matchLabels": { "scene": "rights" } });
    stage
        .enforce(&format!("{OPENSHIFT}\n---\n{everywhere}\n---\n{somewhere}"))
        .await?;
    make_namespace(&stage.plane.client(0), NAMESPACE, &[("scene", "rights")], false).await?;
    Ok(stage)
}

async fn begun(client: &Client, config: &str, version: u32) -> anyhow::Result<Value> {
    let rollout = Rollout::new(NAMESPACE, config, version);
    let uid = rollout.begin(client, "New").await?;
    Ok(rollout.pod(&uid))
}

#[test]
fn the_rights_are_enough_and_each_is_used() {
    run(async {
        let stage = stage().await?;
        let client = stage.plane.client(0);
        let (first, second) = (begun(&client, "cfg", 1).await?, begun(&client, "cfg", 2).await?);
        assert_eq!(create_pod(&client, NAMESPACE, &first).await?.code, 201);
        for _ in 0..4 {
            assert_eq!(create_pod(&client, NAMESPACE, &second).await?.code, 403);
        }
        set_phase(&client, NAMESPACE, "cfg-1-deploy", "Succeeded").await?;
        assert_eq!(create_pod(&client, NAMESPACE, &second).await?.code, 201);
        let both = pod("both", &[("scene", "rights"), ("config", "a")]);
        assert_eq!(create_pod(&client, NAMESPACE, &both).await?.code, 201);

        let granted = granted()?;
        until("every right to be used", SOON, async || {
            let (used, _) = used(&stage)?;
            let unused: Vec<_> = granted.difference(&used).collect();
            ensure!(unused.is_empty(), "not used: {unused:?}");
            Ok(())
        })
        .await?;
        let (used, denied) = used(&stage)?;
        ensure!(denied.is_empty(), "{denied:#?}");
        let beyond: Vec<_> = used.difference(&granted).collect();
        ensure!(beyond.is_empty(), "used without a rule of ours: {beyond:?}");
        Ok(())
    });
}

#[test]
fn no_right_is_missing_on_the_shared_stage_while_its_tests_run() {
    run(async {
        let (used, denied) = used(shared().await?)?;
        // The watch of policies is there from the start, whichever test is first.
        ensure!(
            used.iter().any(|(_, _, verb)| verb == "watch"),
            "nothing of ours is in the audit log: {used:?}"
        );
        ensure!(denied.is_empty(), "{denied:#?}");
        Ok(())
    });
}

/// Takes one verb on a resource away, and gives the role as it was.
async fn take_away(client: &Client, role: &str, resource: &str, verb: &str) -> anyhow::Result<ClusterRole> {
    let api: Api<ClusterRole> = Api::all(client.clone());
    let before = api.get(role).await?;
    let mut less = before.clone();
    let rules = less.rules.as_mut().context("rules")?;
    for rule in rules.iter_mut() {
        if rule.resources.iter().flatten().any(|one| one == resource) {
            rule.verbs.retain(|one| one != verb);
        }
    }
    rules.retain(|rule| !rule.verbs.is_empty());
    api.replace(role, &PostParams::default(), &less).await?;
    Ok(before)
}

async fn wait_allowed(stage: &Stage, resource: &str, verb: &str, wanted: &str) -> anyhow::Result<()> {
    until(&format!("{verb} {resource} to be {wanted}"), SOON, async || {
        let asked = ["auth", "can-i", verb, resource, "--as", USER, "-n", NAMESPACE];
        let said = String::from_utf8(stage.plane.kubectl(&asked).await?.stdout)?;
        ensure!(said.trim() == wanted, "{said}");
        Ok(())
    })
    .await
}

#[test]
fn a_missing_right_is_an_indeterminate_refusal_that_names_it() {
    run(async {
        let stage = stage().await?;
        let client = stage.plane.client(0);
        let webhook = "deployer-guard-webhook";
        for (i, (role, resource, verb, fresh, reason)) in [
            (webhook, "pods", "get", false, "ReadFailed"),
            (webhook, "pods", "list", true, "ReadFailed"),
            (webhook, "deployerclaims", "get", false, "ReadFailed"),
            (webhook, "deployerclaims", "create", true, "WriteFailed"),
            (webhook, "deployerclaims", "update", false, "WriteFailed"),
            (
                "deployer-guard-owners",
                "replicationcontrollers",
                "get",
                false,
                "ReadFailed",
            ),
        ]
        .into_iter()
        .enumerate()
        {
            let config = format!("cfg{i}");
            if !fresh {
                let first = begun(&client, &config, 1).await?;
                assert_eq!(create_pod(&client, NAMESPACE, &first).await?.code, 201);
                set_phase(&client, NAMESPACE, &format!("{config}-1-deploy"), "Failed").await?;
            }
            let next = begun(&client, &config, 2).await?;
            let mut before = take_away(&client, role, resource, verb).await?;
            wait_allowed(&stage, resource, verb, "no").await?;
            let answer = create_pod(&client, NAMESPACE, &next).await?;
            let (code, message) = (answer.code, answer.message().to_owned());
            let status = answer
                .result
                .err()
                .with_context(|| format!("{verb} {resource}: admitted"))?;
            let causes = status.details.map(|details| details.causes).unwrap_or_default();
            let cause = causes.first().map(|cause| cause.reason.as_str());
            ensure!(
                code == 503 && cause == Some(reason),
                "{verb} {resource}: {code} {cause:?}: {message}"
            );
            ensure!(
                message.contains("forbidden") && message.contains(&format!("cannot {verb} resource \"{resource}\"")),
                "{verb} {resource}: {message}"
            );

            before.metadata.resource_version = None;
            before.metadata.managed_fields = None;
            Api::<ClusterRole>::all(client.clone())
                .replace(role, &PostParams::default(), &before)
                .await?;
            wait_allowed(&stage, resource, verb, "yes").await?;
            let answer = create_pod(&client, NAMESPACE, &next).await?;
            ensure!(
                answer.is_created(),
                "{verb} {resource} given back: {}",
                answer.message()
            );
        }
        Ok(())
    });
}

#[test]
fn with_failure_policy_ignore_a_missing_right_is_a_warning_that_names_it() {
    run(async {
        let stage = stage().await?;
        let client = stage.plane.client(0);
        let ignoring = policy("ignoring", &json!({ "failurePolicy": "Ignore" }));
        stage.enforce(&ignoring.to_string()).await?;
        take_away(&client, "deployer-guard-webhook", "pods", "get").await?;
        wait_allowed(&stage, "pods", "get", "no").await?;
        let pod = pod("first", &[("scene", "ignoring"), ("config", "a")]);
        let answer = create_pod(&client, NAMESPACE, &pod).await?;
        ensure!(answer.is_created(), "{}", answer.message());
        let [warning] = &answer.warnings[..] else {
            anyhow::bail!("{:?}", answer.warnings)
        };
        ensure!(
            warning.starts_with("DeployerPolicy \"ignoring\" could not decide on pod \"first\"")
                && warning.contains("cannot get resource \"pods\""),
            "{warning}"
        );
        Ok(())
    });
}
