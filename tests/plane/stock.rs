//! That stock was taken stands in the URL of the stored entry: it comes with the stock, stays as long as the entry does, and goes in
//! the very write that puts the entry right.

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use anyhow::{Context, ensure};
use deployer_guard::api::policy::StockTaking;
use deployer_guard::api::{DeployerClaim, DeployerPolicy};
use deployer_guard_testkit::objects::{create_pod, create_pod_with};
use deployer_guard_testkit::{ControlPlane, Stage, until};
use jiff::Timestamp;
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use k8s_openapi::api::rbac::v1::ClusterRole;
use kube::Client;
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use serde_json::json;
use tokio::time::sleep;

use crate::common::{PROGRAM, run};
use crate::creators::cause;
use crate::scene::{pod, policy};

/// The pending window and the settling time of this stage, the lag of API servers and much patience: 26 s and more.
const LIMIT: Duration = Duration::from_mins(2);
const USER: &str = "system:serviceaccount:deployer-guard:deployer-guard";
const NAME: &str = "deployer-guard";

#[test]
fn the_stored_entry_says_that_stock_was_taken_until_somebody_edits_it() {
    run(async {
        let mut stage = Stage::builder(PROGRAM)
            .plane(
                ControlPlane::builder()
                    .audit_log(true)
                    .api_server_flag("--request-timeout=5s"),
            )
            .replicas(1)
            .argument("--api-server-request-timeout=5s")
            .argument("--pending-window=6s")
            .guard_argument("--api-server-request-timeout=5s")
            .guard_argument("--pending-window=6s")
            .guard_argument("--relist-period=1s")
            .guards(1)
            .start()
            .await?;
        stage.enforce(&policy("app", &json!({})).to_string()).await?;
        let client = stage.plane.client(0);
        let (plain, _) = entry(&client).await?;
        ensure!(plain.ends_with("/1"), "{plain}");
        let before = lists(&stage)?;
        create(&client, "held", "held").await?;
        ensure!(lists(&stage)? > before, "a new key needs a list");

        let says_so = format!("{plain}/stocked");
        becomes(&stage, &says_so).await?;
        a_new_key_needs_no_list(&stage, &client).await?;
        let first = record(&stage, "on record", |taken| {
            taken.is_some_and(|taken| taken.generation == 1)
        })
        .await?;
        ensure!(first.is_some(), "it is not known when that was first so");

        it_survives_a_restart_of_the_guard(&mut stage, &client).await?;
        it_goes_in_the_write_that_puts_an_edited_entry_right(&stage, &client, &plain).await?;
        let still = record(&stage, "off the record", |taken| taken.is_none()).await?;
        ensure!(still == first, "{still:?} instead of {first:?}");
        Ok(())
    });
}

/// The URL of the policy's stored entry, and the generation of the configuration.
async fn entry(client: &Client) -> anyhow::Result<(String, i64)> {
    let stored = configurations(client).get(NAME).await?;
    let entries = stored.webhooks.unwrap_or_default();
    let entry = entries.into_iter().find(|entry| entry.name.starts_with("app."));
    let url = entry.and_then(|entry| entry.client_config.url).context("no entry")?;
    Ok((url, stored.metadata.generation.context("no generation")?))
}

fn configurations(client: &Client) -> Api<ValidatingWebhookConfiguration> {
    Api::all(client.clone())
}

async fn becomes(stage: &Stage, wanted: &str) -> anyhow::Result<()> {
    let client = stage.plane.client(0);
    let what = format!("the entry's URL to be {wanted}");
    let found = until(&what, LIMIT, async || {
        let (url, _) = entry(&client).await?;
        ensure!(url == wanted, "{url}");
        Ok(())
    });
    found.await.map_err(|error| stage.guards[0].blame(error))
}

/// How often the webhook has listed pods: a guard lists those of all namespaces.
fn lists(stage: &Stage) -> anyhow::Result<usize> {
    let events = stage.plane.audit_events()?;
    let ours = events.iter().filter(|event| {
        let object = &event["objectRef"];
        event["user"]["username"] == USER
            && event["verb"] == "list"
            && object["resource"] == "pods"
            && object["namespace"] == "default"
    });
    Ok(ours.count())
}

async fn create(client: &Client, name: &str, config: &str) -> anyhow::Result<()> {
    let answer = create_pod(client, "default", &pod(name, &[("scene", "app"), ("config", config)])).await?;
    ensure!(answer.is_created(), "{} {}", answer.code, answer.message());
    Ok(())
}

/// Waits until what is on record of the stock-taking is so; when the first one was.
async fn record(
    stage: &Stage,
    what: &str,
    so: impl Fn(Option<StockTaking>) -> bool,
) -> anyhow::Result<Option<Timestamp>> {
    let policies: Api<DeployerPolicy> = Api::all(stage.plane.client(0));
    let what = format!("the stock-taking to be {what}");
    until(&what, LIMIT, async || {
        let status = policies.get("app").await?.status.unwrap_or_default();
        ensure!(so(status.stock_taking), "{:?}", status.stock_taking);
        Ok(status.first_stock_taken_at)
    })
    .await
}

/// As soon as the API server follows.
async fn a_new_key_needs_no_list(stage: &Stage, client: &Client) -> anyhow::Result<()> {
    let keys = AtomicUsize::new(0);
    until("a new key to need no list", LIMIT, async || {
        let key = format!("key-{}", keys.fetch_add(1, Relaxed));
        let before = lists(stage)?;
        create(client, &key, &key).await?;
        let more = lists(stage)? - before;
        ensure!(more == 0, "{more} lists for {key}");
        Ok(())
    })
    .await
}

async fn it_survives_a_restart_of_the_guard(stage: &mut Stage, client: &Client) -> anyhow::Result<()> {
    let before = entry(client).await?;
    // What is no change of an entry is none of its generation either.
    let annotated = json!({ "metadata": { "annotations": { "example.com/by": "somebody" } } });
    configurations(client)
        .patch(NAME, &PatchParams::default(), &Patch::Merge(&annotated))
        .await?;
    stage.guards[0].process().terminate()?;
    let another = stage.start_guard("guard-1", &[]).await?;
    stage.guards = vec![another];
    stage.wait_leader().await?;
    // It looks each second.
    sleep(Duration::from_secs(3)).await;
    let after = entry(client).await?;
    ensure!(after == before, "{before:?} became {after:?}");
    Ok(())
}

/// The guard stands still while the entry matches nothing and a deployer comes in; and it may not make a claim for that one later, so
/// that only a list can find it.
async fn it_goes_in_the_write_that_puts_an_edited_entry_right(
    stage: &Stage,
    client: &Client,
    plain: &str,
) -> anyhow::Result<()> {
    no_more_claims(client).await?;
    let guard = stage.guards[0].process();
    guard.pause()?;
    let mut stored = configurations(client).get(NAME).await?;
    for entry in stored.webhooks.iter_mut().flatten() {
        if let Some(first) = entry.match_conditions.iter_mut().flatten().next() {
            first.expression = "false".into();
        }
    }
    let edited = configurations(client)
        .replace(NAME, &PostParams::default(), &stored)
        .await?;
    asked_about_the_held_key(client, false).await?;
    create(client, "unseen", "unseen").await?;
    guard.resume()?;
    becomes(stage, plain).await?;
    let (_, generation) = entry(client).await?;
    ensure!(
        Some(generation) == edited.metadata.generation.map(|edited| edited + 1),
        "the word outlived a write: {generation}, {:?}",
        edited.metadata.generation
    );
    asked_about_the_held_key(client, true).await?;
    let claims: Api<DeployerClaim> = Api::namespaced(client.clone(), "default");
    let claims = claims.list(&ListParams::default()).await?;
    ensure!(
        claims.iter().all(|claim| claim.spec.config != "unseen"),
        "it has a claim"
    );
    let before = lists(stage)?;
    let late = pod("late", &[("scene", "app"), ("config", "unseen")]);
    let answer = create_pod(client, "default", &late).await?;
    ensure!(
        answer.code == 403 && cause(&answer) == "DeployerActive",
        "{} {}",
        answer.code,
        answer.message()
    );
    ensure!(answer.message().contains("unseen"), "{}", answer.message());
    ensure!(lists(stage)? > before, "no list was needed");
    Ok(())
}

/// Waits until the API server asks the webhook, which refuses, or does not.
async fn asked_about_the_held_key(client: &Client, asks: bool) -> anyhow::Result<()> {
    let second = pod("second", &[("scene", "app"), ("config", "held")]);
    until("the API server to follow the configuration", LIMIT, async || {
        let answer = create_pod_with(client, "default", &second, "dryRun=All").await?;
        ensure!(answer.is_created() != asks, "{} {}", answer.code, answer.message());
        Ok(())
    })
    .await
}

/// Takes the right to make claims away from ours.
async fn no_more_claims(client: &Client) -> anyhow::Result<()> {
    let roles: Api<ClusterRole> = Api::all(client.clone());
    for mut role in roles.list(&ListParams::default()).await? {
        let mut changed = false;
        for rule in role.rules.iter_mut().flatten() {
            let resources = rule.resources.iter().flatten();
            if resources.into_iter().any(|resource| resource == "deployerclaims") {
                let before = rule.verbs.len();
                rule.verbs.retain(|verb| verb != "create");
                changed |= rule.verbs.len() != before;
            }
        }
        if changed {
            let name = role.metadata.name.clone().context("a name")?;
            roles.replace(&name, &PostParams::default(), &role).await?;
        }
    }
    let review: SubjectAccessReview = serde_json::from_value(json!({ "spec": {
        "user": USER,
        "groups": ["system:serviceaccounts", "system:serviceaccounts:deployer-guard", "system:authenticated"],
        "resourceAttributes": {
            "group": "deployer-guard.io", "resource": "deployerclaims", "verb": "create", "namespace": "default",
        },
    } }))?;
    until("the right to be gone", LIMIT, async || {
        let answer = Api::<SubjectAccessReview>::all(client.clone())
            .create(&PostParams::default(), &review)
            .await?;
        ensure!(answer.status.is_some_and(|status| !status.allowed), "it is there");
        Ok(())
    })
    .await
}
