//! Starts a throw-away control plane, or a node, and says how to use it; it ends with this process, or stays with `--keep`.

use std::path::Path;

use anyhow::{Context, bail};
use deployer_guard_testkit::{ControlPlane, ControlPlaneBuilder, LeftRunning, Node};

const USAGE: &str = "usage: control-plane [--api-servers N] [--controller-manager] [--audit-log] [--keep] | control-plane --node [--keep]";

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut builder = ControlPlane::builder();
    let (mut keep, mut node) = (false, false);
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        builder = match &*arg {
            "--api-servers" => builder.api_servers(args.next().context(USAGE)?.parse().context(USAGE)?),
            "--controller-manager" => builder.controller_manager(true),
            "--audit-log" => builder.audit_log(true),
            "--keep" => {
                keep = true;
                builder
            }
            "--node" => {
                node = true;
                builder
            }
            _ => bail!(USAGE),
        };
    }
    if node {
        run_node(keep).await
    } else {
        run(builder, keep).await
    }
}

async fn run(builder: ControlPlaneBuilder, keep: bool) -> anyhow::Result<()> {
    let plane = builder.start().await?;
    println!("directory {}", plane.directory().display());
    for i in 0..plane.api_servers() {
        println!("export KUBECONFIG={}", plane.kubeconfig(i).display());
    }
    say_kubectl(&plane.kubectl_program());
    end(keep, plane, ControlPlane::leave_running).await
}

async fn run_node(keep: bool) -> anyhow::Result<()> {
    Node::can_run().await.context("no node can run here")?;
    let node = Node::start(&[]).await?;
    println!("directory {}", node.directory().display());
    println!("export KUBECONFIG={}", node.kubeconfig().display());
    say_kubectl(&node.kubectl_program());
    end(keep, node, Node::leave_running).await
}

fn say_kubectl(program: &Path) {
    println!("{} get namespaces", program.display());
}

/// Leaves it running, or ends it when this process is asked to end.
async fn end<T>(keep: bool, running: T, leave: fn(T) -> anyhow::Result<LeftRunning>) -> anyhow::Result<()> {
    if keep {
        println!("end it with: {}", leave(running)?.end_command);
    } else {
        println!("it ends with this process: press Ctrl-C");
        tokio::signal::ctrl_c().await?;
    }
    Ok(())
}
