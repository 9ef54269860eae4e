//! Nothing is left behind, whatever ends the owner. Needs: the built programs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, ensure};
use deployer_guard_testkit::{ControlPlane, Process, Program, State, WebhookProcess, until};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

const SOON: Duration = Duration::from_secs(10);

#[tokio::test]
async fn dropping_a_plane_ends_it_at_once() -> anyhow::Result<()> {
    let plane = ControlPlane::builder().start().await?;
    let directory = plane.directory().to_owned();
    let processes = [plane.process(Program::Etcd), plane.process(Program::ApiServer(0))];
    let pids = processes.iter().map(pid).collect::<anyhow::Result<Vec<_>>>()?;
    assert_eq!(running_in(&directory), 3, "the two and their supervisor");
    processes[1].pause()?;
    drop(plane);
    assert!(!directory.exists());
    assert_eq!(pids.iter().filter(|pid| runs(**pid)).count(), 0);
    assert!(
        processes[0].state().is_err(),
        "a handle held longer keeps nothing alive"
    );
    Ok(())
}

#[tokio::test]
async fn killing_or_terminating_the_owner_ends_everything() -> anyhow::Result<()> {
    for signal in ["KILL", "TERM", "INT"] {
        let (mut owner, directory) = start_owner(&[]).await?;
        assert!(running_in(&directory) >= 3, "etcd, kube-apiserver and the supervisor");
        send(signal, owner.id().context("a pid")?).await?;
        owner.wait().await?;
        gone(&directory).await.context(signal)?;
    }
    Ok(())
}

#[tokio::test]
async fn programs_do_not_outlive_a_killed_supervisor() -> anyhow::Result<()> {
    let plane = ControlPlane::builder().start().await?;
    let directory = plane.directory().to_owned();
    let supervisor = fs::read_to_string(directory.join("supervisor.pid"))?.trim().parse()?;
    send("KILL", supervisor).await?;
    until("the programs to be gone", SOON, async || {
        ensure!(running_in(&directory) == 0, "{} run", running_in(&directory));
        Ok(())
    })
    .await?;
    assert!(plane.process(Program::Etcd).state().is_err());
    drop(plane);
    assert!(!directory.exists());
    Ok(())
}

#[tokio::test]
async fn a_plane_left_running_stays_until_it_is_ended() -> anyhow::Result<()> {
    let (mut owner, directory) = start_owner(&["--keep"]).await?;
    assert!(owner.wait().await?.success());
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(running_in(&directory) >= 3);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("down.sh");
    let output = Command::new(script).arg(&directory).output().await?;
    assert!(output.status.success(), "{output:?}");
    gone(&directory).await
}

#[tokio::test]
async fn a_webhook_ends_with_its_handle_and_with_its_plane() -> anyhow::Result<()> {
    let plane = ControlPlane::builder().start().await?;
    let stubborn = ["-c", "trap '' TERM; echo up; while :; do sleep 1; done"];
    let own = WebhookProcess::builder("own", "/bin/sh").args(stubborn).start()?;
    let shared = WebhookProcess::builder("shared", "/bin/sh")
        .args(stubborn)
        .under(&plane)
        .start()?;
    let dropped = WebhookProcess::builder("dropped", "/bin/sh")
        .args(stubborn)
        .under(&plane)
        .start()?;
    let pids = [own.process(), shared.process(), dropped.process()].map(pid);
    let [own_pid, shared_pid, dropped_pid] = [pids[0].as_ref(), pids[1].as_ref(), pids[2].as_ref()].map(Result::unwrap);
    own.wait_log("up", SOON, |line| line == "up").await?;
    drop((own, dropped));
    assert!(!runs(*own_pid) && !runs(*dropped_pid) && runs(*shared_pid));
    drop(plane);
    assert!(!runs(*shared_pid));
    drop(shared);
    Ok(())
}

/// Starts a process that owns a control plane; returns it and the control plane's directory once that is ready.
async fn start_owner(args: &[&str]) -> anyhow::Result<(Child, PathBuf)> {
    let mut owner = Command::new(env!("CARGO_BIN_EXE_control-plane"))
        .args(args)
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let mut lines = BufReader::new(owner.stdout.take().context("its output")?).lines();
    let mut directory = None;
    while let Some(line) = lines.next_line().await? {
        if let Some(path) = line.strip_prefix("directory ") {
            directory = Some(PathBuf::from(path));
        }
        if line.contains("end it with") || line.contains("it ends with") {
            break;
        }
    }
    Ok((owner, directory.context("it said no directory")?))
}

async fn gone(directory: &Path) -> anyhow::Result<()> {
    until("the control plane to be gone", SOON, async || {
        ensure!(!directory.exists(), "{} is there", directory.display());
        ensure!(running_in(directory) == 0, "{} processes run", running_in(directory));
        Ok(())
    })
    .await
}

async fn send(signal: &str, pid: u32) -> anyhow::Result<()> {
    let status = Command::new("kill")
        .arg("-s")
        .arg(signal)
        .arg(pid.to_string())
        .status()
        .await?;
    ensure!(status.success(), "kill: {status}");
    Ok(())
}

fn pid(process: &Process) -> anyhow::Result<u32> {
    match process.state()? {
        State::Running { pid } => Ok(pid),
        ended @ State::Ended { .. } => Err(anyhow::anyhow!("{ended:?}")),
    }
}

/// Whether a process runs; a zombie does not.
fn runs(pid: u32) -> bool {
    fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|words| !words.is_empty())
}

/// How many processes name the directory among their arguments.
fn running_in(directory: &Path) -> usize {
    let directory = directory.display().to_string();
    let processes = fs::read_dir("/proc").expect("a Linux /proc");
    processes
        .filter_map(|entry| fs::read(entry.ok()?.path().join("cmdline")).ok())
        .filter(|words| String::from_utf8_lossy(words).contains(&directory))
        .count()
}
