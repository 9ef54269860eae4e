//! The scenes that go the same way on a control plane and on a node. Each asserts what it shows.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use deployer_guard_testkit::objects::{Answer, create_pod};
use deployer_guard_testkit::{openshift::Rollout, until};
use futures::future::try_join_all;
use serde_json::Value;
use tokio::sync::Barrier;

use crate::ground::Ground;
use crate::show::{heading, tally};

/// The namespace of the story.
pub(crate) const SHOP: &str = "shop";
/// Deployers that are created at once.
pub(crate) const CROWD: u32 = 16;
/// The file of a deployer pod that is refused.
pub(crate) const REFUSED_POD: &str = "deployer.json";

/// What a deployer pod works for.
pub(crate) fn config_of(pod: &Value) -> Option<String> {
    pod.pointer("/metadata/labels/openshift.io~1deployer-pod-for.name")?;
    pod.pointer("/metadata/annotations/openshift.io~1deployment-config.name")?
        .as_str()
        .map(str::to_owned)
}

/// Sixteen rollouts of one config, whose deployers are created at the same moment, over all API servers.
pub(crate) async fn crowd(ground: &impl Ground) -> anyhow::Result<Rollout> {
    heading(&format!(
        "{CROWD} deployer pods of DeploymentConfig \"cfg\" are created at once"
    ));
    let (winner, answers) = at_once(ground, "cfg").await?;
    for (count, answer) in tally(&answers) {
        println!("{count:>4} x {answer}");
    }
    Ok(winner)
}

/// Begins rollouts 1 to 16 of a config, sends all their deployers at one moment, and gives the one that was admitted.
pub(crate) async fn at_once(ground: &impl Ground, config: &str) -> anyhow::Result<(Rollout, Vec<Answer>)> {
    let line = Arc::new(Barrier::new(CROWD as usize));
    let creates = (1..=CROWD).map(|version| {
        let (line, client) = (Arc::clone(&line), ground.client(version as usize));
        let rollout = Rollout::new(SHOP, config, version);
        async move {
            let pod = ground.dressed(rollout.pod(&rollout.begin(&client, "New").await?));
            line.wait().await;
            anyhow::Ok((create_pod(&client, SHOP, &pod).await?, rollout))
        }
    });
    let (mut winners, mut answers) = (Vec::new(), Vec::new());
    for (answer, rollout) in try_join_all(creates).await? {
        winners.extend(answer.is_created().then_some(rollout));
        answers.push(answer);
    }
    ensure!(winners.len() <= 1, "{} of {config} were admitted", winners.len());
    Ok((winners.pop().context("none was admitted")?, answers))
}

/// The refusal, as a person at a terminal sees it.
pub(crate) async fn refusal(ground: &impl Ground, holder: &Rollout) -> anyhow::Result<()> {
    let other = Rollout::new(SHOP, "cfg", if holder.version == CROWD { CROWD - 1 } else { CROWD });
    let uid = other.uid(&ground.client(0)).await?;
    let file = ground.directory().join(REFUSED_POD);
    std::fs::write(&file, ground.dressed(other.pod(&uid)).to_string())?;
    let shown = format!("{}.json", other.deployer());
    heading(&format!("kubectl create -f {shown}"));
    let output = ground.kubectl(&["create", "-f", &file.display().to_string()]).await?;
    ensure!(!output.status.success(), "a second deployer was admitted");
    print!(
        "{}",
        String::from_utf8_lossy(&output.stderr).replace(&file.display().to_string(), &shown)
    );
    Ok(())
}

/// The claim, the Events, the audit annotations and the decision log.
pub(crate) async fn records(ground: &impl Ground) -> anyhow::Result<()> {
    heading(&format!("kubectl -n {SHOP} get deployerclaims"));
    let columns = "-o=custom-columns=CONFIG:.spec.config,GENERATION:.spec.holder.generation,HOLDER:.spec.holder.name,\
                   PHASE:.status.phase,REJECTIONS:.status.rejections.count,REQUESTED BY:.spec.holder.requestedBy";
    let claims = until("the claim's status", Duration::from_secs(10), async || {
        let claims = ground.stdout(&["-n", SHOP, "get", "deployerclaims", columns]).await?;
        ensure!(
            claims.contains(&format!(" {CROWD} ")),
            "it is not written yet: {claims}"
        );
        Ok(claims)
    });
    print!("{}", claims.await?);
    heading(&format!(
        "kubectl -n {SHOP} get events.events.k8s.io   (about one of the refused rollouts)"
    ));
    let event = until("an Event about a refusal", Duration::from_secs(10), async || {
        let template = "{range .items[?(@.reason==\"DeployerRejected\")]}{.type} {.reason} {.regarding.kind}/{.regarding.name} related={.related.name}\n  {.note}\n{end}";
        let events = ground.stdout(&["-n", SHOP, "get", "events.events.k8s.io", &format!("-o=jsonpath={template}")]).await?;
        let lines: Vec<&str> = events.lines().take(2).collect();
        ensure!(lines.len() == 2, "there is none");
        Ok(lines.join("\n"))
    })
    .await?;
    println!("{event}");
    heading("audit annotations of a refusal, from the API server's audit log");
    let audited = ground.audit_events()?.into_iter().rev().find_map(|event| {
        let annotations = event.get("annotations")?.as_object()?.clone();
        annotations
            .iter()
            .any(|(_, value)| value.as_str().is_some_and(|value| value.starts_with("Refused")))
            .then_some(annotations)
    });
    for (key, value) in audited.context("no refusal in the audit log")? {
        if key.contains(".policies.deployer-guard.io/") {
            println!("{key}: {}", value.as_str().unwrap_or_default());
        }
    }
    heading("the webhook's log of one");
    let decisions = ground.decisions().await?;
    let decision = decisions
        .iter()
        .rev()
        .find(|line| line["verdict"] == "Refused")
        .context("no refusal in the log")?;
    for part in [
        "user", "pod", "key", "verdict", "reason", "holder", "allowed", "took_ms",
    ] {
        print!("{part}={} ", decision[part]);
    }
    println!();
    Ok(())
}
