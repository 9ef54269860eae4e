//! A node runs pods, comes back after a power cut, and leaves nothing behind. Needs: root, and the built programs; elsewhere these tests
//! say why they are not run.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, ensure};
use deployer_guard_testkit::{Daemon, Node, objects, until};
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::Api;
use kube::api::PostParams;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;

const SOON: Duration = Duration::from_mins(1);

/// Whether a node can run here; else it says why not.
async fn can_run() -> bool {
    match Node::can_run().await {
        Ok(()) => true,
        Err(why) => {
            println!("not run: no node can run here: {why:#}");
            false
        }
    }
}

fn deployer(name: &str, arguments: &[&str]) -> Value {
    json!({
        "metadata": { "name": name, "labels": { "app": name } },
        "spec": {
            "containers": [{ "name": "deployer", "image": "localhost/deployer:test", "args": arguments }],
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
        },
    })
}

async fn wait_phase(pods: &Api<Pod>, name: &str, phase: &str) -> anyhow::Result<Pod> {
    until(&format!("pod {name} to be {phase}"), SOON, async || {
        let pod = pods.get(name).await?;
        let status = pod.status.clone().unwrap_or_default();
        ensure!(status.phase.as_deref() == Some(phase), "it is {status:?}");
        Ok(pod)
    })
    .await
}

#[tokio::test]
async fn pods_run_and_a_power_cut_ends_them_and_loses_nothing_that_was_stored() -> anyhow::Result<()> {
    if !can_run().await {
        return Ok(());
    }
    let node = Node::start(&[]).await?;
    node.load(&node.image("deployer")?).await?;
    let pods: Api<Pod> = Api::default_namespaced(node.client());
    for (name, arguments, phase) in [
        ("works", vec!["-for=100ms"], "Succeeded"),
        ("fails", vec!["-for=100ms", "-exit=3"], "Failed"),
        ("stays", vec![], "Running"),
    ] {
        let answer = objects::create_pod(&node.client(), "default", &deployer(name, &arguments)).await?;
        ensure!(answer.is_created(), "{}", answer.message());
        wait_phase(&pods, name, phase).await?;
    }
    let service: Service = serde_json::from_value(json!({
        "metadata": { "name": "stays" }, "spec": { "ports": [{ "port": 80 }], "selector": { "app": "stays" } },
    }))?;
    let services: Api<Service> = Api::default_namespaced(node.client());
    let service = services.create(&PostParams::default(), &service).await?;
    let address = service.spec.and_then(|spec| spec.cluster_ip).context("an address")?;
    let leads = async || {
        until("kube-proxy to know the Service", SOON, async || {
            let output = node.exec(&["nft", "list", "ruleset"]).await?;
            let rules = String::from_utf8_lossy(&output.stdout).into_owned();
            ensure!(output.status.success() && rules.contains(&address), "{rules}");
            Ok(())
        })
        .await
    };
    leads().await?;
    let audited = node.audit_events()?;
    let created = |event: &&Value| {
        let object = &event["objectRef"];
        event["verb"] == "create" && object["resource"] == "pods" && object["subresource"].is_null()
    };
    assert_eq!(audited.iter().filter(created).count(), 3);

    let before = pods.get("stays").await?.metadata.uid;
    node.reboot()?;
    node.wait_ready().await?;
    assert_eq!(
        pods.get("works")
            .await?
            .status
            .and_then(|status| status.phase)
            .as_deref(),
        Some("Succeeded")
    );
    assert_eq!(pods.get("stays").await?.metadata.uid, before);
    leads().await?;
    // One without a restart policy is over, since its container did not survive.
    wait_phase(&pods, "stays", "Failed").await?;
    let answer = objects::create_pod(&node.client(), "default", &deployer("after", &["-for=100ms"])).await?;
    ensure!(answer.is_created(), "{}", answer.message());
    wait_phase(&pods, "after", "Succeeded").await?;

    node.process(Daemon::Kubelet).pause()?;
    node.process(Daemon::Kubelet).resume()?;
    let directory = node.directory().to_owned();
    drop(node);
    nothing_left(&directory).await
}

#[tokio::test]
async fn whatever_ends_the_owner_ends_the_node() -> anyhow::Result<()> {
    if !can_run().await {
        return Ok(());
    }
    let mut owner = Command::new(env!("CARGO_BIN_EXE_control-plane"))
        .arg("--node")
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let mut lines = BufReader::new(owner.stdout.take().context("its output")?).lines();
    let mut directory = None;
    while let Some(line) = lines.next_line().await? {
        if let Some(path) = line.strip_prefix("directory ") {
            directory = Some(PathBuf::from(path));
        }
        if line.contains("it ends with") {
            break;
        }
    }
    owner.kill().await?;
    nothing_left(&directory.context("it said no directory")?).await
}

/// No file, no process and no control group of the node.
async fn nothing_left(directory: &Path) -> anyhow::Result<()> {
    let name = directory.file_name().and_then(|name| name.to_str()).context("a name")?;
    until("the node to be gone", SOON, async || {
        ensure!(!directory.exists(), "{} is there", directory.display());
        for entry in fs::read_dir("/proc")?.flatten() {
            let words = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let words = String::from_utf8_lossy(&words).into_owned();
            ensure!(!words.contains(name), "{words} runs");
        }
        for entry in fs::read_dir("/sys/fs/cgroup")?.flatten() {
            let group = entry.path().join(name);
            ensure!(
                !group.exists() && entry.file_name() != name,
                "{} is there",
                group.display()
            );
        }
        Ok(())
    })
    .await
}
