//! What the guard does: another leads when the one that leads is killed, what came in while nobody looked is dealt with, and a
//! policy that is not in force says so. Each scene asserts what it shows.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use deployer_guard_testkit::objects::create_pod;
use deployer_guard_testkit::{Stage, openshift::Rollout, until};
use serde_json::Value;

use crate::ground::Ground;
use crate::scenes::SHOP;
use crate::show::{heading, kind};

/// The lease of the guards: 15 s unless one says otherwise.
pub(crate) const LEASE: &str = "3s";
/// How long the guard may take for anything here. On an idle machine it takes a second or two.
const LIMIT: Duration = Duration::from_secs(30);
/// The policy that is in force.
const POLICY: &str = "openshift-deploymentconfig";
/// What the API servers go by, which the guard fills.
const CONFIGURATION: [&str; 3] = ["get", "validatingwebhookconfiguration", "deployer-guard"];
/// The object without its entries, as an admin applies it.
const MANIFEST: &str = "deploy/webhook-configuration.yaml";
/// The rollout whose deployer works when nobody looks, and the one whose deployer comes in beside it.
const ROLLOUTS: (u32, u32) = (18, 19);

/// The guard that leads is killed, and the other follows.
pub(crate) async fn succession(stage: &Stage) -> anyhow::Result<()> {
    heading("two guards run, of which one leads; that one is killed (-9)");
    let lease = [
        "-n",
        "deployer-guard",
        "get",
        "lease",
        "deployer-guard",
        "-o=custom-columns=LEADER:.spec.holderIdentity,TERM:.spec.leaseTransitions",
    ];
    let leader = stage.wait_leader().await?;
    stage.show(&lease).await?;
    let killed = Instant::now();
    stage.guards[leader].process().kill()?;
    let (client, meanwhile) = (stage.plane.client(0), Rollout::new(SHOP, "meanwhile", 1));
    let pod = meanwhile.pod(&meanwhile.begin(&client, "New").await?);
    let admitted = create_pod(&client, SHOP, &pod).await?;
    ensure!(admitted.is_created(), "{}", admitted.message());
    let next = stage.wait_leader().await?;
    ensure!(next != leader, "guard-{leader} was killed, and leads");
    println!(
        "{}: {}   while none leads: admission needs no guard",
        meanwhile.deployer(),
        kind(&admitted)
    );
    println!(
        "guard-{leader} is killed; guard-{next} leads {:.1} s later, when the Lease has not been renewed for {LEASE}",
        killed.elapsed().as_secs_f64()
    );
    stage.show(&lease).await?;
    stage.guards[leader].process().restart()?;
    Ok(())
}

/// A second deployer comes in while no guard runs and the API servers ask nobody.
pub(crate) async fn bypass(stage: &Stage) -> anyhow::Result<()> {
    wait_for_stock(stage).await?;
    heading("no guard runs, somebody empties the webhook configuration, and a second deployer comes in");
    let (holder, duplicate) = (rollout(ROLLOUTS.0), rollout(ROLLOUTS.1));
    let client = stage.plane.client(0);
    let admitted = create_pod(&client, SHOP, &holder.pod(&holder.begin(&client, "New").await?)).await?;
    println!("{}: {}", holder.deployer(), kind(&admitted));
    let uid = admitted.result.map_err(|status| anyhow::anyhow!(status.message))?;
    let uid = uid.metadata.uid.context("a uid")?;
    for guard in &stage.guards {
        guard.end(LIMIT).await?;
    }
    let patch = [
        "patch",
        "validatingwebhookconfiguration",
        "deployer-guard",
        "--type=merge",
        "-p={\"webhooks\":[]}",
    ];
    stage.show(&patch).await?;
    let pod = duplicate.pod(&duplicate.begin(&client, "New").await?);
    let unasked = until("an API server to ask nobody", LIMIT, async || {
        let answer = create_pod(&client, SHOP, &pod).await?;
        ensure!(answer.is_created(), "{}", answer.message());
        Ok(answer)
    });
    println!("{}: {}   beside it", duplicate.deployer(), kind(&unasked.await?));

    heading("the guards are started: the entries are back, and the second deployer, which has not started, is removed");
    for guard in &stage.guards {
        guard.process().restart()?;
    }
    let removed = removed(stage, &duplicate).await;
    let removed = removed.map_err(|error| stage.guards[0].blame(error))?;
    println!("Events about it:\n{removed}");
    wait_filled(stage).await?;
    stage.show(&CONFIGURATION).await?;
    stage.show(&["get", "dpol"]).await?;
    let columns = "-o=custom-columns=CONFIG:.spec.config,HOLDER:.spec.holder.name,PHASE:.status.phase";
    let claims = stage.stdout(&["-n", SHOP, "get", "deployerclaims", columns]).await?;
    println!("$ kubectl -n {SHOP} get deployerclaims   (that of cfg)");
    for line in claims
        .lines()
        .filter(|line| line.starts_with("CONFIG ") || line.starts_with("cfg "))
    {
        println!("{line}");
    }
    let stays = stage
        .stdout(&[
            "-n",
            SHOP,
            "get",
            "pod",
            &holder.deployer(),
            "-o=jsonpath={.metadata.uid}",
        ])
        .await?;
    ensure!(stays == uid, "the holder is not the one that was admitted: {stays}");
    Ok(())
}

/// The configuration is deleted, which is how one turns everything off, and applied again.
pub(crate) async fn missing(stage: &Stage) -> anyhow::Result<()> {
    heading("the webhook configuration is deleted: it stays deleted, and the policy says so");
    stage.show(&["delete", CONFIGURATION[1], CONFIGURATION[2]]).await?;
    let said = until("the policy to say so", LIMIT, async || {
        let enforced = enforced(stage).await?;
        ensure!(enforced["reason"] == "ConfigurationMissing", "it says {enforced}");
        Ok(enforced)
    });
    let said = said.await?;
    ensure!(said["status"] == "False", "{said}");
    stage.show(&["get", "dpol"]).await?;
    println!(
        "Enforced: {}: {}",
        said["reason"].as_str().unwrap_or_default(),
        said["message"].as_str().unwrap_or_default()
    );
    let found = stage.plane.kubectl(&CONFIGURATION).await?;
    ensure!(!found.status.success(), "somebody made it again");

    heading("an admin applies it again, and the guard fills it");
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join(MANIFEST);
    println!("$ kubectl apply -f {MANIFEST}");
    print!(
        "{}",
        stage.stdout(&["apply", "-f", &manifest.display().to_string()]).await?
    );
    wait_filled(stage).await?;
    stage.wait_enforced(POLICY).await?;
    stage.show(&CONFIGURATION).await?;
    let (client, late) = (stage.plane.client(0), rollout(ROLLOUTS.1));
    let pod = late.pod(&late.uid(&client).await?);
    let refused = until("an API server to ask again", LIMIT, async || {
        let answer = create_pod(&client, SHOP, &pod).await?;
        ensure!(answer.code == 403, "it answered {}", answer.code);
        Ok(answer)
    });
    println!("{}: {}", late.deployer(), kind(&refused.await?));
    Ok(())
}

fn rollout(version: u32) -> Rollout {
    Rollout::new(SHOP, "cfg", version)
}

/// Whoever is there before that is never deleted by the guard.
async fn wait_for_stock(stage: &Stage) -> anyhow::Result<()> {
    println!(
        "\n(A guard takes stock of the deployers that were there before the policy, and never deletes those. That it has done so is"
    );
    println!(
        "known when everything that was on its way then has arrived or been given up; with the windows of this story after 26 s.)"
    );
    until("stock to be taken", 2 * LIMIT, async || {
        let path = "-o=jsonpath={.status.stockTaking.completedAt}";
        let taken = stage.stdout(&["get", "dpol", POLICY, path]).await?;
        ensure!(!taken.is_empty(), "it is not");
        Ok(())
    })
    .await
}

/// Waits until the pod is gone; what its Events say of it.
async fn removed(stage: &Stage, duplicate: &Rollout) -> anyhow::Result<String> {
    let pod = duplicate.deployer();
    until("the second deployer to be gone, and its Events", LIMIT, async || {
        let events = stage
            .stdout(&["-n", SHOP, "get", "events.events.k8s.io", "-o=json"])
            .await?;
        let events: Value = serde_json::from_str(&events)?;
        let mut told = Vec::new();
        for reason in ["DuplicateDeployer", "DuplicateCondemned", "DeployerDeleted"] {
            let about = |event: &&Value| event["reason"] == reason && event["regarding"]["name"] == pod.as_str();
            let event = events["items"].as_array().into_iter().flatten().find(about);
            let note = event.with_context(|| format!("no Event {reason}"))?["note"].clone();
            told.push(format!("{reason}\n  {}", note.as_str().unwrap_or_default()));
        }
        let left = stage
            .stdout(&["-n", SHOP, "get", "pod", &pod, "--ignore-not-found", "-o=name"])
            .await?;
        if !left.is_empty() {
            bail!("{left} is there");
        }
        Ok(told.join("\n"))
    })
    .await
}

/// Waits until the configuration has entries.
async fn wait_filled(stage: &Stage) -> anyhow::Result<()> {
    until("the configuration to be filled", LIMIT, async || {
        let names = [&CONFIGURATION[..], &["-o=jsonpath={.webhooks[*].name}"]].concat();
        let names = stage.stdout(&names).await?;
        ensure!(names.contains(POLICY), "its entries are {names:?}");
        Ok(())
    })
    .await
}

/// The policy's condition `Enforced`.
async fn enforced(stage: &Stage) -> anyhow::Result<Value> {
    let policy: Value = serde_json::from_str(&stage.stdout(&["get", "dpol", POLICY, "-o=json"]).await?)?;
    let conditions = policy["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let enforced = conditions.into_iter().find(|condition| condition["type"] == "Enforced");
    enforced.context("it has no such condition")
}
