//! Processes seen from outside: memory, and how long a start takes.

use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use deployer_guard_testkit::{NAMESPACE, Stage, State, WebhookProcess, free_ports};
use serde::Serialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::Command;
use tokio::time::{Instant, sleep};

use crate::common::desk::program;
use crate::common::memory::Memory;

/// How often a starting process is asked whether it is ready.
const POLL: Duration = Duration::from_millis(2);
/// How long a start may take.
const LIMIT: Duration = Duration::from_secs(30);
/// How long a process that got ready is left alone before its memory is looked at.
const REST: Duration = Duration::from_millis(500);

/// The process id of a webhook that runs.
pub(crate) fn pid(webhook: &WebhookProcess) -> anyhow::Result<u32> {
    match webhook.process().state()? {
        State::Running { pid } => Ok(pid),
        State::Ended { code } => bail!("it ended with code {code}"),
    }
}

/// One start of a replica.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Start {
    /// From before its process was made to the first 200 of `/readyz`.
    pub(crate) ready_ms: f64,
    /// Ready, and asked nothing yet.
    pub(crate) idle: Memory,
}

/// Starts one more replica, and ends it again. Nobody calls it.
pub(crate) async fn start_once(stage: &Stage) -> anyhow::Result<Start> {
    let kubeconfig = stage.plane.service_account_kubeconfig(0, NAMESPACE, NAMESPACE).await?;
    let certificates = stage.plane.directory().join("webhook-certificates");
    let ports = free_ports(2)?;
    let health = SocketAddr::from(([127, 0, 0, 1], ports[1]));
    let begun = Instant::now();
    let mut replica = Command::new(program())
        .args(["webhook", "--instance", "start"])
        .arg("--tls-cert-file")
        .arg(certificates.join("webhook.crt"))
        .arg("--tls-key-file")
        .arg(certificates.join("webhook.key"))
        .arg("--kubeconfig")
        .arg(kubeconfig)
        .args(["--listen", &format!("127.0.0.1:{}", ports[0])])
        .args(["--health-listen", &health.to_string()])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .context("starting a replica")?;
    while !is_ready(health).await.unwrap_or(false) {
        ensure!(begun.elapsed() < LIMIT, "a replica is not ready after {LIMIT:?}");
        sleep(POLL).await;
    }
    let ready_ms = begun.elapsed().as_secs_f64() * 1e3;
    sleep(REST).await;
    let idle = Memory::of(replica.id().context("a replica that ended")?)?;
    replica.kill().await?;
    Ok(Start { ready_ms, idle })
}

async fn is_ready(health: SocketAddr) -> std::io::Result<bool> {
    let mut stream = TcpStream::connect(health).await?;
    stream
        .write_all(b"GET /readyz HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n")
        .await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    Ok(answer.starts_with(b"HTTP/1.1 200"))
}
