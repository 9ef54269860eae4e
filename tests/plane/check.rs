//! `deployer-guard check` says what the webhook does: from what kubectl prints of a live control plane, the same verdict, reason
//! and message as the server's.

use anyhow::{Context, ensure};
use serde_json::Value;
use tokio::process::Command;

use crate::common::{OPENSHIFT_NAME, PROGRAM, run};
use crate::scene::Scene;

/// What one of the two said: verdict, reason, and the message that the client is told.
type Said = (String, String, String);

/// Checks the create of a pod offline, then has it done; both say `verdict` and `reason`, and the same message.
async fn agree(scene: &Scene, pod: &Value, verdict: &str, reason: &str) -> anyhow::Result<()> {
    let offline = offline(scene, pod).await?;
    let server = live(scene, pod).await?;
    assert_eq!(offline, server, "check, then the server");
    assert_eq!(
        (offline.0.as_str(), offline.1.as_str()),
        (verdict, reason),
        "{}",
        offline.2
    );
    scene.confirmed().await
}

async fn offline(scene: &Scene, pod: &Value) -> anyhow::Result<Said> {
    let policy = printed(scene, "policy", &["get", "deployerpolicies", OPENSHIFT_NAME]).await?;
    let objects = printed(scene, "objects", &["get", "pods,rc,deployerclaims"]).await?;
    let namespace = printed(scene, "namespace", &["get", "namespace", &scene.namespace]).await?;
    let pod = scene.file("pod", pod)?;
    let review = printed(scene, "review", &["create", "--dry-run=client", "-f", &pod]).await?;
    let arguments = [
        ["--policy", &policy],
        ["--objects", &objects],
        ["--objects", &namespace],
        ["--review", &review],
        ["--output", "json"],
    ];
    let output = Command::new(PROGRAM)
        .arg("check")
        .args(arguments.concat())
        .args(["--namespace", &scene.namespace])
        .output()
        .await?;
    let report: Value =
        serde_json::from_slice(&output.stdout).with_context(|| String::from_utf8_lossy(&output.stderr).into_owned())?;
    let review = &report["reviews"][0];
    let decision = &review["decisions"][0];
    let passes = decision["verdict"] == "Admitted" || decision["verdict"] == "NotMatched";
    assert_eq!(output.status.code(), Some(i32::from(!passes)), "{review}");
    let text = |field: &str| decision[field].as_str().unwrap_or_default().to_owned();
    Ok((text("verdict"), text("reason"), text("message")))
}

/// What kubectl prints as YAML, in a file.
async fn printed(scene: &Scene, name: &str, arguments: &[&str]) -> anyhow::Result<String> {
    let (succeeded, yaml) = scene.kubectl(&[arguments, &["-o", "yaml"]].concat()).await?;
    ensure!(succeeded, "{yaml}");
    let file = scene
        .stage
        .plane
        .directory()
        .join(format!("{}-{name}.yaml", scene.namespace));
    std::fs::write(&file, yaml)?;
    Ok(file.display().to_string())
}

async fn live(scene: &Scene, pod: &Value) -> anyhow::Result<Said> {
    let before = scene.decisions()?.len();
    let answer = scene.create(pod).await?;
    let decisions = scene.decisions()?;
    ensure!(decisions.len() == before + 1, "{} decisions", decisions.len() - before);
    let text = |field: &str| decisions[before][field].as_str().unwrap_or_default().to_owned();
    let told = answer
        .message()
        .split_once("denied the request: ")
        .map_or("", |(_, told)| told);
    Ok((text("verdict"), text("reason"), told.to_owned()))
}

#[test]
fn the_offline_check_says_what_the_server_says() {
    run(async {
        let scene = Scene::openshift("check-agrees").await?;
        let (first, deployer) = scene.begun("cfg", 1).await?;
        agree(&scene, &deployer, "Admitted", "Free").await?;

        let (second, next) = scene.begun("cfg", 2).await?;
        agree(&scene, &next, "Refused", "DeployerActive").await?;
        agree(&scene, &deployer, "NameExists", "AlreadyExists").await?;

        scene.set_phase(&first.deployer(), "Failed").await?;
        let (third, newest) = scene.begun("cfg", 3).await?;
        agree(&scene, &newest, "Admitted", "Free").await?;
        scene.set_phase(&third.deployer(), "Failed").await?;
        agree(&scene, &next, "Refused", "OlderGeneration").await?;

        let (cancelled, deployer) = scene.begun("cfg", 4).await?;
        cancelled
            .annotate(&scene.client, "openshift.io/deployment.cancelled", "true")
            .await?;
        agree(&scene, &deployer, "Refused", "OwnerNotEligible").await?;

        // What the API server never asked about leaves no decision there, and no match here.
        let mut helper = next.clone();
        helper["metadata"]["name"] = format!("{}-helper", second.name()).into();
        let (verdict, reason, message) = offline(&scene, &helper).await?;
        assert_eq!(
            (verdict.as_str(), reason.as_str(), message.as_str()),
            ("NotMatched", "MatchCondition", "")
        );
        let decided = scene.decisions()?.len();
        ensure!(scene.create(&helper).await?.is_created());
        assert_eq!(scene.decisions()?.len(), decided);
        Ok(())
    });
}
