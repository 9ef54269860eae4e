//! The webhook configuration that a guard fills, and what policies say of themselves.

use std::time::Duration;

use anyhow::{Context, bail, ensure};
use deployer_guard::api::DeployerPolicy;
use deployer_guard::cluster::configurations::{ConfigurationError, Configurations};
use deployer_guard_testkit::objects::{apply_yaml, create_pod, loosen_schema, make_namespace};
use deployer_guard_testkit::{ControlPlane, NAMESPACE, Pki, Stage, until};
use k8s_openapi::api::admissionregistration::v1::{ValidatingWebhook, ValidatingWebhookConfiguration};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::Client;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::common::{PROGRAM, run};
use crate::scene::{pod, policy};

const LIMIT: Duration = Duration::from_mins(1);
const NAME: &str = "deployer-guard";
const USER: &str = "system:serviceaccount:deployer-guard:deployer-guard";

async fn guarded(guards: usize) -> anyhow::Result<Stage> {
    Stage::builder(PROGRAM)
        .plane(ControlPlane::builder().audit_log(true))
        .replicas(1)
        .guard_argument("--relist-period")
        .guard_argument("1s")
        .guards(guards)
        .start()
        .await
}

fn configurations(client: &Client) -> Api<ValidatingWebhookConfiguration> {
    Api::all(client.clone())
}

fn policies(client: &Client) -> Api<DeployerPolicy> {
    Api::all(client.clone())
}

async fn entries(client: &Client) -> anyhow::Result<Vec<ValidatingWebhook>> {
    let stored = configurations(client).get(NAME).await?;
    Ok(stored.webhooks.unwrap_or_default())
}

/// What an admin does to the configuration.
async fn merge(client: &Client, patch: &Value) -> anyhow::Result<()> {
    configurations(client)
        .patch(NAME, &PatchParams::default(), &Patch::Merge(patch))
        .await?;
    Ok(())
}

/// Waits until the stored entries are these, in any order.
async fn entries_become(stage: &Stage, what: &str, wanted: &[ValidatingWebhook]) -> anyhow::Result<()> {
    let client = stage.plane.client(0);
    let sorted = |mut entries: Vec<ValidatingWebhook>| {
        entries.sort_by(|one, other| one.name.cmp(&other.name));
        entries
    };
    let wanted = sorted(wanted.to_vec());
    let what = format!("{what} to be put right");
    let right = until(&what, LIMIT, async || {
        let found = sorted(entries(&client).await?);
        ensure!(found == wanted, "{found:#?}");
        Ok(())
    });
    right.await.map_err(|error| stage.guards[0].blame(error))
}

/// Waits until a condition of a policy has this status and reason, for its present generation; its message.
async fn condition(stage: &Stage, policy: &str, kind: &str, status: &str, reason: &str) -> anyhow::Result<String> {
    let client = stage.plane.client(0);
    let what = format!("{policy} to be {kind}={status}, {reason}");
    let found = until(&what, LIMIT, async || {
        let policy = policies(&client).get(policy).await?;
        let generation = policy.metadata.generation;
        let conditions = policy.status.unwrap_or_default().conditions;
        let found = conditions.iter().find(|condition| {
            condition.type_ == kind
                && condition.status == status
                && condition.reason == reason
                && condition.observed_generation == generation
        });
        found
            .map(|condition| condition.message.clone())
            .with_context(|| format!("{conditions:?}"))
    });
    found.await.map_err(|error| match stage.guards.first() {
        Some(guard) => guard.blame(error),
        None => error,
    })
}

async fn admits(client: &Client, name: &str, scene: &str, code: u16) -> anyhow::Result<()> {
    let pod = pod(name, &[("scene", scene), ("config", "a")]);
    let answer = create_pod(client, "default", &pod).await?;
    ensure!(answer.code == code, "{} {}", answer.code, answer.message());
    Ok(())
}

#[test]
fn a_policy_comes_into_force_stays_so_whatever_is_done_to_its_entry_and_leaves() {
    run(async {
        let stage = guarded(2).await?;
        let client = stage.plane.client(0);
        stage.enforce(&policy("app", &json!({})).to_string()).await?;
        condition(&stage, "app", "Accepted", "True", "Accepted").await?;
        condition(&stage, "app", "Enforced", "True", "InForce").await?;
        admits(&client, "one", "app", 201).await?;
        admits(&client, "two", "app", 403).await?;

        at_rest(&client).await?;
        drifts(&stage, &client).await?;
        rotation(&stage, &client).await?;
        versions(&stage, &client).await?;
        let (used_beyond, _) = denied(&stage)?;
        ensure!(used_beyond.is_empty(), "{used_beyond:#?}");
        Ok(())
    });
}

/// With everything as it is to be, nothing is written, although it is looked at each second.
async fn at_rest(client: &Client) -> anyhow::Result<()> {
    let versions = async || {
        let configuration = configurations(client).get(NAME).await?.metadata.resource_version;
        let policy = policies(client).get("app").await?.metadata.resource_version;
        anyhow::Ok((configuration, policy))
    };
    let before = versions().await?;
    sleep(Duration::from_secs(3)).await;
    ensure!(before == versions().await?, "something was written");
    Ok(())
}

async fn drifts(stage: &Stage, client: &Client) -> anyhow::Result<()> {
    let right = entries(client).await?;
    let other = json!({
        "name": "somebody.example.com", "admissionReviewVersions": ["v1"], "sideEffects": "None",
        "clientConfig": { "url": "https://127.0.0.1:1/" }, "failurePolicy": "Ignore",
    });
    let with = |change: &dyn Fn(&mut Vec<Value>)| {
        let mut entries: Vec<Value> = right.iter().map(|entry| json!(entry)).collect();
        change(&mut entries);
        json!({ "webhooks": entries })
    };
    for (what, patch) in [
        ("an emptied configuration", json!({ "webhooks": [] })),
        ("an emptied configuration, again", json!({ "webhooks": null })),
        ("a lost entry", with(&|entries| entries.truncate(1))),
        (
            "an edited entry",
            with(&|entries| {
                entries[1]["failurePolicy"] = json!("Ignore");
                entries[1]["matchConditions"] = json!([{ "name": "never", "expression": "false" }]);
            }),
        ),
        (
            "another CA bundle",
            with(&|entries| {
                entries[0]["clientConfig"]["caBundle"] = Value::Null;
                entries[1]["clientConfig"]["caBundle"] = Value::Null;
            }),
        ),
        (
            "a surplus entry under our names",
            with(&|entries| {
                let mut surplus = entries[1].clone();
                surplus["name"] = json!("zz.policies.deployer-guard.io");
                entries.push(surplus);
            }),
        ),
    ] {
        merge(client, &patch).await?;
        entries_become(stage, what, &right).await?;
    }

    // Another manager owns what it applies: our own apply alone would leave it.
    let taken = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": { "name": NAME },
        "webhooks": [
            {
                "name": right[1].name, "timeoutSeconds": 1, "admissionReviewVersions": ["v1"], "sideEffects": "NoneOnDryRun",
                "clientConfig": right[1].client_config,
                "matchConditions": [{ "name": "never", "expression": "false" }],
            },
            other.clone(),
        ],
    });
    let apply = PatchParams::apply("somebody").force();
    configurations(client)
        .patch(NAME, &apply, &Patch::Apply(&taken))
        .await?;
    let mut kept = right.clone();
    let found = entries(client).await?;
    let somebodys = found.into_iter().find(|entry| entry.name == "somebody.example.com");
    kept.push(somebodys.context("the entry of somebody else")?);
    entries_become(stage, "what another manager took", &kept).await?;
    let without = json!({ "webhooks": right });
    merge(client, &without).await?;
    entries_become(stage, "nothing", &right).await?;

    let leader = stage.wait_leader().await?;
    let drifts = stage.guards[leader]
        .metric("deployer_guard_configuration_drifts_total")
        .await?;
    ensure!(drifts >= 7.0, "{drifts} were counted");
    condition(stage, "app", "Enforced", "True", "InForce").await?;
    Ok(())
}

async fn rotation(stage: &Stage, client: &Client) -> anyhow::Result<()> {
    let bundle = async || {
        let entries = entries(client).await?;
        let bundles: Vec<_> = entries
            .into_iter()
            .map(|entry| entry.client_config.ca_bundle.map(|bundle| bundle.0).unwrap_or_default())
            .collect();
        ensure!(bundles.windows(2).all(|pair| pair[0] == pair[1]), "they differ");
        Ok(String::from_utf8(bundles.into_iter().next().unwrap_or_default())?)
    };
    let certificates = |pem: &str| pem.matches("BEGIN CERTIFICATE").count();
    let both = stage.pki.ca() + &Pki::new("next")?.ca();
    std::fs::write(stage.ca_file(), &both)?;
    until("both authorities to be stored", LIMIT, async || {
        let bundle = bundle().await?;
        ensure!(certificates(&bundle) == 2, "{bundle}");
        Ok(())
    })
    .await?;
    let good = bundle().await?;
    std::fs::write(stage.ca_file(), "-----BEGIN CERTIFICATE-----\nhalf of one")?;
    let leader = stage.wait_leader().await?;
    until("the broken file to be noticed", LIMIT, async || {
        let failures = stage.guards[leader]
            .metric("deployer_guard_ca_bundle_reload_failures_total")
            .await?;
        ensure!(failures > 0.0, "it is not");
        Ok(())
    })
    .await?;
    ensure!(bundle().await? == good, "the last good bundle did not stay");
    let third = Pki::new("third")?.ca();
    std::fs::write(stage.ca_file(), stage.pki.ca() + &third)?;
    until(
        "one that comes to be stored beside one that leaves",
        LIMIT,
        async || {
            let bundle = bundle().await?;
            // Replicas may still serve with a certificate of the one that leaves.
            ensure!(certificates(&bundle) == 3, "{bundle}");
            Ok(())
        },
    )
    .await
}

async fn versions(stage: &Stage, client: &Client) -> anyhow::Result<()> {
    let patch = json!({ "spec": { "timeoutSeconds": 7 } });
    policies(client)
        .patch("app", &PatchParams::default(), &Patch::Merge(&patch))
        .await?;
    stage.wait_enforced("app").await?;
    let found = entries(client).await?;
    let entry = found
        .iter()
        .find(|entry| entry.name.starts_with("app."))
        .context("the entry")?;
    let url = entry.client_config.url.clone().unwrap_or_default();
    ensure!(
        url.ends_with("/2") && entry.timeout_seconds == Some(7),
        "{url} {entry:?}"
    );

    let listed = String::from_utf8(stage.plane.kubectl(&["get", "dpol"]).await?.stdout)?;
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let lines: Vec<_> = listed.lines().map(words).collect();
    ensure!(
        lines[0][..7] == ["NAME", "MODE", "SCOPE", "ACCEPTED", "ENFORCED", "CLAIMS", "REJECTIONS"],
        "{listed}"
    );
    ensure!(
        lines[1][..5] == ["app", "Enforce", "Config", "True", "True"],
        "{listed}"
    );

    policies(client).delete("app", &DeleteParams::default()).await?;
    until("the entry to go", LIMIT, async || {
        let names: Vec<_> = entries(client).await?.into_iter().map(|entry| entry.name).collect();
        ensure!(names == ["policies.deployer-guard.io"], "{names:?}");
        Ok(())
    })
    .await
    .map_err(|error| stage.guards.iter().fold(error, |error, guard| guard.blame(error)))
}

/// The requests of our `ServiceAccount` that were refused for want of a right, and the verbs that it used on configurations.
fn denied(stage: &Stage) -> anyhow::Result<(Vec<Value>, Vec<String>)> {
    let events = stage.plane.audit_events()?;
    let ours: Vec<_> = events
        .into_iter()
        .filter(|event| event["user"]["username"] == USER)
        .collect();
    let denied = ours
        .iter()
        .filter(|event| event["annotations"]["authorization.k8s.io/decision"] == "forbid")
        .cloned();
    let verbs = ours
        .iter()
        .filter(|event| event["objectRef"]["resource"] == "validatingwebhookconfigurations")
        .filter_map(|event| event["verb"].as_str().map(str::to_owned));
    Ok((denied.collect(), verbs.collect()))
}

#[test]
fn a_deleted_configuration_stays_deleted_and_every_policy_says_so_until_an_admin_makes_it_anew() {
    run(async {
        let stage = guarded(1).await?;
        let client = stage.plane.client(0);
        let both = format!("{}\n---\n{}", policy("one", &json!({})), policy("two", &json!({})));
        stage.enforce(&both).await?;
        configurations(&client).delete(NAME, &DeleteParams::default()).await?;
        for name in ["one", "two"] {
            let message = condition(&stage, name, "Enforced", "False", "ConfigurationMissing").await?;
            ensure!(message.contains("does not exist"), "{message}");
        }
        // The guard looks at it each second.
        sleep(Duration::from_secs(3)).await;
        ensure!(configurations(&client).get_opt(NAME).await?.is_none(), "it is back");
        ensure!((stage.guards[0].metric("deployer_guard_configuration_missing").await? - 1.0).abs() < 0.1);
        let (denied, verbs) = denied(&stage)?;
        ensure!(denied.is_empty(), "{denied:#?}");
        ensure!(
            verbs
                .iter()
                .all(|verb| ["get", "watch", "patch"].contains(&verb.as_str())),
            "{verbs:?}"
        );
        stage.apply_configuration().await?;
        for name in ["one", "two"] {
            condition(&stage, name, "Enforced", "True", "InForce").await?;
        }
        admits(&client, "a", "two", 201).await?;
        admits(&client, "b", "two", 403).await
    });
}

/// Server-side apply makes what is not there. This one must not, whatever rights it has, and nor may it fill another object of the name.
#[test]
fn a_configuration_that_is_deleted_between_read_and_write_is_not_made_anew() {
    run(async {
        let client = crate::common::shared().await?.plane.client(0);
        let api = configurations(&client);
        let object: ValidatingWebhookConfiguration =
            serde_json::from_value(json!({ "metadata": { "name": "deleted-meanwhile" } }))?;
        api.create(&PostParams::default(), &object).await?;
        let ours = Configurations::new(client.clone(), "deleted-meanwhile");
        let read = ours.read().await?.context("it was made")?;
        api.delete("deleted-meanwhile", &DeleteParams::default()).await?;
        for made_anew in [false, true] {
            if made_anew {
                api.create(&PostParams::default(), &object).await?;
            }
            for dry_run in [true, false] {
                let written = ours.apply(&read, &[], dry_run).await;
                ensure!(matches!(written, Err(ConfigurationError::Conflict)), "{written:?}");
            }
            let written = ours.replace_all(&read, &[], false).await;
            ensure!(matches!(written, Err(ConfigurationError::Conflict)), "{written:?}");
            let there = api.get_opt("deleted-meanwhile").await?.is_some();
            ensure!(there == made_anew, "there: {there}");
        }
        api.delete("deleted-meanwhile", &DeleteParams::default()).await?;
        Ok(())
    });
}

/// A policy whose entry the API server does not take, although our own check does.
fn refused_policy() -> Value {
    let conditions = json!([{ "name": "not a name", "expression": "true" }]);
    policy("refused", &json!({ "match": { "matchConditions": conditions } }))
}

/// Our schema knows what a condition may be called, and keeps such a policy out: this is one that was stored under a schema that did not.
async fn forget_what_a_name_is(client: &Client) -> anyhow::Result<()> {
    let pattern = "match/properties/matchConditions/items/properties/name/pattern";
    loosen_schema(client, "deployerpolicies.deployer-guard.io", pattern).await?;
    until("the schema to be in use", LIMIT, async || {
        let dry_run = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        let policy = serde_json::from_value(refused_policy())?;
        policies(client).create(&dry_run, &policy).await?;
        Ok(())
    })
    .await
}

#[test]
fn a_policy_that_the_api_server_refuses_is_named_and_the_others_come_into_force() {
    run(async {
        let stage = guarded(1).await?;
        let client = stage.plane.client(0);
        forget_what_a_name_is(&client).await?;
        let all = [
            policy("before", &json!({})),
            refused_policy(),
            policy("zafter", &json!({})),
        ];
        let all: Vec<_> = all.iter().map(ToString::to_string).collect();
        apply_yaml(&client, &all.join("\n---\n"), "test").await?;
        for name in ["before", "zafter"] {
            condition(&stage, name, "Enforced", "True", "InForce").await?;
        }
        let message = condition(&stage, "refused", "Enforced", "False", "Refused").await?;
        ensure!(message.contains("not a name"), "{message}");
        condition(&stage, "refused", "Accepted", "True", "Accepted").await?;

        // It is not tried each second.
        let refused = || {
            let events = stage.plane.audit_events()?;
            let patches = events.iter().filter(|event| {
                event["verb"] == "patch"
                    && event["objectRef"]["resource"] == "validatingwebhookconfigurations"
                    && event["user"]["username"] == USER
            });
            anyhow::Ok(patches.count())
        };
        sleep(Duration::from_secs(1)).await;
        let before = refused()?;
        sleep(Duration::from_secs(3)).await;
        ensure!(refused()? == before, "it was tried again");

        let mended = policy("refused", &json!({ "match": { "matchConditions": [] } }));
        apply_yaml(&client, &mended.to_string(), "test").await?;
        condition(&stage, "refused", "Enforced", "True", "InForce").await?;

        // Another manager owns a part of a good entry: without ours, the rest of it would make no sense.
        let stored = entries(&client).await?;
        let part = stored
            .iter()
            .find(|entry| entry.name.starts_with("before."))
            .context("an entry")?;
        let taken = json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingWebhookConfiguration",
            "metadata": { "name": NAME },
            "webhooks": [{
                "name": part.name, "admissionReviewVersions": ["v1"], "sideEffects": part.side_effects,
                "clientConfig": part.client_config,
            }],
        });
        let apply = PatchParams::apply("somebody").force();
        configurations(&client)
            .patch(NAME, &apply, &Patch::Apply(&taken))
            .await?;
        let before = policy("before", &json!({ "timeoutSeconds": 3 }));
        apply_yaml(&client, &before.to_string(), "test").await?;
        condition(&stage, "before", "Enforced", "True", "InForce").await?;

        // A good one that becomes a bad one: the old entry is better than none.
        apply_yaml(&client, &refused_policy().to_string(), "test").await?;
        condition(&stage, "refused", "Enforced", "False", "Refused").await?;
        let found = entries(&client).await?;
        ensure!(
            found.iter().any(|entry| entry.name.starts_with("refused.")),
            "the old entry went"
        );
        Ok(())
    });
}

#[test]
fn policies_that_do_not_fit_are_named_and_as_many_as_fit_are_in_force() {
    run(async {
        let stage = guarded(1).await?;
        let client = stage.plane.client(0);
        stage.enforce(&policy("aaa", &json!({})).to_string()).await?;
        // Six entries of 440 kB, since each condition stands twice in them: etcd takes 1.5 MiB.
        let long = format!("object.metadata.name != '{}'", "x".repeat(3_900));
        let conditions: Vec<_> = (0..56)
            .map(|i| json!({ "name": format!("c{i}"), "expression": long }))
            .collect();
        let match_ = json!({ "match": { "objectSelector": null, "matchConditions": conditions } });
        let names: Vec<_> = (0..6).map(|i| format!("large{i}")).collect();
        for name in &names {
            apply_yaml(&client, &policy(name, &match_).to_string(), "test").await?;
        }
        let mut fit = 0;
        for name in &names {
            let what = format!("{name} to be in force or not to fit");
            let enforced = until(&what, LIMIT, async || {
                let status = policies(&client).get(name).await?.status.unwrap_or_default();
                let reason = status.conditions.iter().find(|condition| condition.type_ == "Enforced");
                match reason.map(|condition| condition.reason.as_str()) {
                    Some("InForce") => Ok(true),
                    Some("TooLarge") => Ok(false),
                    other => bail!("{other:?}"),
                }
            });
            fit += usize::from(enforced.await.map_err(|error| stage.guards[0].blame(error))?);
        }
        ensure!((1..names.len()).contains(&fit), "{fit} fit");
        condition(&stage, "aaa", "Enforced", "True", "InForce").await?;
        for name in &names {
            policies(&client).delete(name, &DeleteParams::default()).await?;
        }
        until("only the small one to be left", LIMIT, async || {
            let count = entries(&client).await?.len();
            ensure!(count == 2, "{count} entries");
            Ok(())
        })
        .await
    });
}

#[test]
fn what_a_guard_may_not_do_is_said_on_the_policy_and_in_its_log() {
    run(async {
        let stage = guarded(1).await?;
        let client = stage.plane.client(0);
        stage.enforce(&policy("app", &json!({})).to_string()).await?;

        let owned = json!({ "owner": { "apiVersion": "batch/v1", "kind": "Job" } });
        let unknown = json!({ "owner": { "apiVersion": "example.com/v1", "kind": "Nothing" } });
        let both = format!("{}\n---\n{}", policy("owned", &owned), policy("unknown", &unknown));
        apply_yaml(&client, &both, "test").await?;
        let message = condition(&stage, "owned", "Accepted", "False", "OwnerNotReadable").await?;
        let rule = r#"{apiGroups: ["batch"], resources: ["jobs"], verbs: ["get"]}"#;
        ensure!(message.contains(rule), "{message}");
        condition(&stage, "owned", "Enforced", "False", "NotAccepted").await?;
        condition(&stage, "unknown", "Accepted", "False", "OwnerNotServed").await?;
        let roles: Api<ClusterRole> = Api::all(client.clone());
        let mut owners = roles.get("deployer-guard-owners").await?;
        let added = json!({ "apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["get"] });
        owners
            .rules
            .get_or_insert_default()
            .push(serde_json::from_value(added)?);
        roles
            .replace("deployer-guard-owners", &PostParams::default(), &owners)
            .await?;
        condition(&stage, "owned", "Enforced", "True", "InForce").await?;

        let bindings: Api<ClusterRoleBinding> = Api::all(client.clone());
        // It would let the guard read, too, as one Pod has one account.
        bindings
            .delete("deployer-guard-certificates", &DeleteParams::default())
            .await?;
        let before = roles.get("deployer-guard-guard").await?;
        let mut less = before.clone();
        less.rules.get_or_insert_default().retain(|rule| {
            !rule
                .resources
                .iter()
                .flatten()
                .any(|resource| resource.starts_with("validating"))
        });
        roles
            .replace("deployer-guard-guard", &PostParams::default(), &less)
            .await?;
        let message = condition(&stage, "app", "Enforced", "False", "NotPermitted").await?;
        ensure!(message.contains("validatingwebhookconfigurations"), "{message}");
        let again = json!({ "rules": before.rules });
        roles
            .patch("deployer-guard-guard", &PatchParams::default(), &Patch::Merge(&again))
            .await?;
        condition(&stage, "app", "Enforced", "True", "InForce").await?;

        bindings
            .delete("deployer-guard-guard", &DeleteParams::default())
            .await?;
        bindings
            .delete("deployer-guard-webhook", &DeleteParams::default())
            .await?;
        stage.guards[0]
            .wait_log("what it may not do", LIMIT, |line| {
                let error = line["error"].as_str().unwrap_or_default();
                line["level"] == "WARN"
                    && error.contains("forbidden")
                    && error.contains("cannot list resource \"deployerpolicies\"")
            })
            .await?;
        Ok(())
    });
}

#[test]
fn a_webhook_that_is_down_is_seen_through_the_api_server() {
    run(async {
        let stage = guarded(1).await?;
        let client = stage.plane.client(0);
        let ignoring = policy("ignoring", &json!({ "failurePolicy": "Ignore" }));
        stage.replicas[0].webhook.process().kill()?;
        let both = format!("{}\n---\n{ignoring}", policy("failing", &json!({})));
        apply_yaml(&client, &both, "test").await?;
        condition(&stage, "failing", "Enforced", "True", "Unanswered").await?;
        let message = condition(&stage, "ignoring", "Enforced", "False", "Unanswered").await?;
        ensure!(message.contains("admitted unseen"), "{message}");
        stage.replicas[0].webhook.process().restart()?;
        for name in ["failing", "ignoring"] {
            condition(&stage, name, "Enforced", "True", "InForce").await?;
        }
        Ok(())
    });
}

/// With `--dry-run` a guard does what one that leads does, and writes nothing.
#[test]
fn a_dry_run_writes_nothing_and_takes_no_lease() {
    run(async {
        let stage = Stage::builder(PROGRAM).replicas(1).start().await?;
        let client = stage.plane.client(0);
        stage.apply_configuration().await?;
        apply_yaml(&client, &policy("app", &json!({})).to_string(), "test").await?;
        let guard = stage.start_guard("guard-dry", &["--dry-run"]).await?;
        guard
            .wait_log("what it would write", LIMIT, |line| {
                line["message"] == "would write the webhook configuration"
            })
            .await?;
        ensure!(!guard.leads().await?, "it counts as a leader");
        let leases: Api<Lease> = Api::namespaced(client.clone(), NAMESPACE);
        ensure!(
            leases.list(&ListParams::default()).await?.items.is_empty(),
            "it took a Lease"
        );
        ensure!(entries(&client).await?.is_empty(), "it wrote entries");
        ensure!(
            policies(&client).get("app").await?.status.is_none(),
            "it wrote a status"
        );
        Ok(())
    });
}

/// Two policies that change again and again, beside one that does not: that one is never out of force.
#[test]
fn an_entry_is_never_missing_because_others_change() {
    run(async {
        let stage = guarded(1).await?;
        let client = stage.plane.client(0);
        let steady = policy("steady", &json!({}));
        stage.enforce(&steady.to_string()).await?;
        make_namespace(&client, "steady", &[], false).await?;
        let holder = pod("holder", &[("scene", "steady"), ("config", "a")]);
        ensure!(create_pod(&client, "steady", &holder).await?.is_created());
        let changing = async {
            for i in 1..8 {
                for name in ["changing", "zchanging"] {
                    let policy = policy(name, &json!({ "timeoutSeconds": i }));
                    apply_yaml(&client, &policy.to_string(), "test").await?;
                    sleep(Duration::from_millis(150)).await;
                }
                policies(&client).delete("changing", &DeleteParams::default()).await?;
            }
            anyhow::Ok(())
        };
        let asking = async {
            for i in 0.. {
                let pod = pod(&format!("p{i}"), &[("scene", "steady"), ("config", "a")]);
                let answer = create_pod(&client, "steady", &pod).await?;
                ensure!(answer.code == 403, "{} {}", answer.code, answer.message());
            }
            Ok(())
        };
        tokio::select! {
            changed = changing => changed?,
            asked = asking => asked?,
        }
        let list = policies(&client).list(&ListParams::default()).await?;
        ensure!(!list.items.is_empty());
        ensure!(NAME == NAMESPACE, "the configuration and the namespace have one name");
        Ok(())
    });
}
