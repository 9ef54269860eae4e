//! Starts a throw-away control plane and says how to use it; it ends with this process, or stays with `--keep`.

use anyhow::{Context, bail};
use deployer_guard_testkit::ControlPlane;

const USAGE: &str = "usage: control-plane [--api-servers N] [--controller-manager] [--audit-log] [--keep]";

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut builder = ControlPlane::builder();
    let mut keep = false;
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
            _ => bail!(USAGE),
        };
    }
    let plane = builder.start().await?;
    println!("directory {}", plane.directory().display());
    for i in 0..plane.api_servers() {
        println!("export KUBECONFIG={}", plane.kubeconfig(i).display());
    }
    println!("{} get namespaces", plane.kubectl_program().display());
    if keep {
        println!("end it with: {}", plane.leave_running()?.end_command);
    } else {
        println!("it ends with this process: press Ctrl-C");
        tokio::signal::ctrl_c().await?;
    }
    Ok(())
}
