//! Starts a real node with the chart installed on it, refuses a first deployer, and leaves it running: `make cluster`.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use deployer_guard_testkit::objects::{Answer, create_pod, make_namespace};
use deployer_guard_testkit::openshift::Rollout;
use deployer_guard_testkit::{Helm, Node, Release, until};

const USAGE: &str = "usage: cluster IMAGE-ARCHIVE STATE-FILE (the command that ends the cluster is written there)";
/// Where the first deployers are made.
const NAMESPACE: &str = "shop";
/// How long the policy may take to be in force.
const LIMIT: Duration = Duration::from_mins(1);

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let [archive, state] = &arguments[..] else { bail!(USAGE) };
    Node::can_run()
        .await
        .context("no node can run here; `make demo` needs none")?;
    ensure!(
        !state.exists(),
        "a cluster was left running; `make cluster-down` ends it"
    );
    let begun = Instant::now();
    let node = tokio::select! {
        node = start(archive, begun) => node?,
        _ = tokio::signal::ctrl_c() => bail!("interrupted"),
    };
    let (kubeconfig, kubectl, helm) = (
        node.kubeconfig(),
        node.kubectl_program(),
        node.helm_program(Helm::Four)?,
    );
    let enter = node.enter_command();
    let left = node.leave_running()?;
    fs::write(state, format!("{}\n", left.end_command))?;
    println!("\nLeft running. In a shell:");
    println!("  export KUBECONFIG={}", kubeconfig.display());
    println!("  alias kubectl={} helm={}", kubectl.display(), helm.display());
    println!(
        "  kubectl get dpol -o wide; kubectl -n {NAMESPACE} get deployerclaims,pods; kubectl -n deployer-guard get pods"
    );
    println!("  helm -n deployer-guard status deployer-guard; helm -n deployer-guard test deployer-guard");
    println!("Inside the node (ctr, nft, curl to a Service):\n  {enter} COMMAND");
    println!("End it with:\n  make cluster-down");
    Ok(())
}

async fn start(archive: &Path, begun: Instant) -> anyhow::Result<Node> {
    let passed = |what: &str| println!("{:>6.1} s  {what}", begun.elapsed().as_secs_f64());
    let node = Node::start(&[]).await?;
    passed("a node is ready: control plane, scheduler, kubelet, containerd, kube-proxy");
    node.load(archive).await?;
    node.load(&node.image("deployer")?).await?;
    passed("its images are there");
    let installing = Instant::now();
    let release = Release::install(&node, Helm::Four, &["policies.openshift.enabled=true"]).await?;
    passed("helm install --wait charts/deployer-guard has returned");
    let refusal = first_refusal(&node, &release).await?;
    passed("the first deployer is refused");
    println!("\n{}", refusal.message());
    println!(
        "\nFrom helm install to that refusal: {:.1} s",
        installing.elapsed().as_secs_f64()
    );
    Ok(node)
}

/// One deployer works, and another is refused.
async fn first_refusal(node: &Node, release: &Release<'_>) -> anyhow::Result<Answer> {
    release.wait_enforced("openshift-deploymentconfig").await?;
    let client = node.client();
    make_namespace(&client, NAMESPACE, &[], true).await?;
    let (first, second) = (Rollout::new(NAMESPACE, "cfg", 1), Rollout::new(NAMESPACE, "cfg", 2));
    let pod = node.real(first.pod(&first.begin(&client, "New").await?), &["-for=1h"]);
    let other = node.real(second.pod(&second.begin(&client, "New").await?), &["-for=1h"]);
    until("a deployer to be admitted", LIMIT, async || {
        let answer = create_pod(&client, NAMESPACE, &pod).await?;
        ensure!(answer.is_created(), "{}", answer.message());
        Ok(())
    })
    .await?;
    let answer = create_pod(&client, NAMESPACE, &other).await?;
    ensure!(
        answer.code == 403,
        "the second was answered {}: {}",
        answer.code,
        answer.message()
    );
    Ok(answer)
}
