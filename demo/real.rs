//! The story on a real node: the chart is installed with Helm, deployers are pods that run, and what is killed comes back by itself.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use deployer_guard_testkit::objects::{Answer, create_pod, make_namespace};
use deployer_guard_testkit::{Helm, NAMESPACE, Node, Release, StoreWatch, openshift::Rollout, until};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams};
use serde_json::Value;

use crate::ground::Ground;
use crate::scenes::{CROWD, SHOP, at_once, config_of, crowd, records, refusal};
use crate::show::{heading, kind, say_how_it_ends, tally};

/// How long anything here may take. On an idle machine it takes some seconds.
const LIMIT: Duration = Duration::from_mins(1);
/// The policy that is in force.
const POLICY: &str = "openshift-deploymentconfig";
/// What the API server goes by, which the guard fills.
const CONFIGURATION: [&str; 3] = ["get", "validatingwebhookconfiguration", "deployer-guard"];
/// A deployer whose node selector says this waits for a node that does not come.
const NOWHERE: &str = "example.com/nowhere";

/// Tells the story to its end, with the image of this archive.
///
/// # Errors
/// If a scene does not go as it should.
pub(crate) async fn tell(image: &Path, keep: bool) -> anyhow::Result<()> {
    let begun = Instant::now();
    let node = Node::start(&[]).await?;
    node.load(image).await?;
    node.load(&node.image("deployer")?).await?;
    println!(
        "A real node, with control plane, scheduler, kubelet, containerd, kube-proxy and our image: {:.1} s",
        begun.elapsed().as_secs_f64()
    );
    let installing = Instant::now();
    println!("$ helm install deployer-guard charts/deployer-guard --set policies.openshift.enabled=true --wait");
    let release = Release::install(&node, Helm::Four, &["policies.openshift.enabled=true"]).await?;
    release.wait_enforced(POLICY).await?;
    println!("installed, and in force: {:.1} s", installing.elapsed().as_secs_f64());
    node.show(&["-n", NAMESPACE, "get", "deploy,pods"]).await?;
    make_namespace(&node.client(), SHOP, &[], true).await?;
    let witness = StoreWatch::start(vec![node.client()], Some(SHOP), config_of).await?;
    let holder = crowd(&node).await?;
    println!(
        "From helm install to the first refusal: {:.1} s",
        installing.elapsed().as_secs_f64()
    );
    refusal(&node, &holder).await?;
    records(&node).await?;
    succession(&node).await?;
    killed(&node, &release).await?;
    let seen = witness.finish().await?;
    ensure!(seen.violations.is_empty(), "two were active: {:?}", seen.violations);
    println!(
        "\nA watch of all {} pod events never saw two deployers of one config active.",
        seen.events
    );
    bypass(&node, &release).await?;
    println!("\nAll of it: {:.0} s.", begun.elapsed().as_secs_f64());
    if keep {
        leave(node)?;
    } else {
        println!("Everything is ended. To keep the cluster and play on: make demo KEEP=1, or make cluster");
    }
    Ok(())
}

fn leave(node: Node) -> anyhow::Result<()> {
    let (kubectl, kubeconfig, helm) = (
        node.kubectl_program(),
        node.kubeconfig(),
        node.helm_program(Helm::Four)?,
    );
    let left = node.leave_running()?;
    println!(
        "\nLeft running. In a shell:\n  export KUBECONFIG={}",
        kubeconfig.display()
    );
    println!("  alias kubectl={} helm={}", kubectl.display(), helm.display());
    println!("  kubectl get dpol -o wide; kubectl -n {SHOP} get deployerclaims,pods; kubectl -n {NAMESPACE} get pods");
    say_how_it_ends(&left.end_command)
}

/// A deployer does its work, which ends by itself, and the next is admitted.
async fn succession(node: &Node) -> anyhow::Result<()> {
    heading("a deployer works for three seconds; the next is refused until it has finished");
    let client = node.client();
    let (first, second) = (Rollout::new(SHOP, "short", 1), Rollout::new(SHOP, "short", 2));
    let pod = node.real(first.pod(&first.begin(&client, "New").await?), &["-for=3s"]);
    let admitted = create_pod(&client, SHOP, &pod).await?;
    println!("{}: {}", first.deployer(), kind(&admitted));
    ensure!(admitted.is_created(), "{}", admitted.message());
    let next = node.real(second.pod(&second.begin(&client, "New").await?), &["-for=1h"]);
    let refused = create_pod(&client, SHOP, &next).await?;
    println!("{}: {}", second.deployer(), kind(&refused));
    ensure!(refused.code == 403, "{}", refused.message());
    let admitted = until("the next deployer to be admitted", LIMIT, async || {
        let answer = create_pod(&client, SHOP, &next).await?;
        ensure!(answer.is_created(), "{}", answer.message());
        Ok(answer)
    });
    let admitted = admitted.await?;
    let phase = [
        "-n",
        SHOP,
        "get",
        "pod",
        &first.deployer(),
        "-o=jsonpath={.status.phase}",
    ];
    println!("{} is {}", first.deployer(), node.stdout(&phase).await?);
    println!("{}: {}", second.deployer(), kind(&admitted));
    Ok(())
}

/// Sixteen at once while a whole replica is killed, and then a guard alone.
async fn killed(node: &Node, release: &Release<'_>) -> anyhow::Result<()> {
    heading(&format!(
        "{CROWD} at once, while one of the two replicas is killed (-9)"
    ));
    let pods = release.pods().await?;
    let victim = pods.first().context("no pods of ours")?.name_any();
    let mut answers = Vec::new();
    for container in ["webhook", "guard"] {
        release.kill_container(&victim, container).await?;
    }
    for round in 0..4 {
        match at_once(node, &format!("killed{round}")).await {
            Ok((_winner, some)) => answers.extend(some),
            // All of a round may have been on their way to the replica that is gone.
            Err(error) if error.to_string() == "none was admitted" => {
                println!("   one round in which none was admitted");
            }
            Err(error) => return Err(error),
        }
    }
    for (count, answer) in tally(&answers) {
        println!("{count:>4} x {answer}");
    }
    release.wait_ready(2).await?;
    node.show(&["-n", NAMESPACE, "get", "pods"]).await?;
    node.show(&[
        "-n",
        NAMESPACE,
        "get",
        "lease",
        "deployer-guard",
        "-o=custom-columns=LEADER:.spec.holderIdentity,TERM:.spec.leaseTransitions",
    ])
    .await
}

/// All of ours is stopped and the configuration emptied; two deployers come in, of which one runs; ours is started again.
async fn bypass(node: &Node, release: &Release<'_>) -> anyhow::Result<()> {
    println!("\n(A guard takes stock of who was there before it; until it has, it deletes nobody: about a minute.)");
    until("stock to be taken", 3 * LIMIT, async || {
        let path = "-o=jsonpath={.status.firstStockTakenAt}";
        let taken = node.stdout(&["get", "dpol", POLICY, path]).await?;
        ensure!(!taken.is_empty(), "it is not");
        Ok(())
    })
    .await?;
    heading(
        "all of ours is scaled to nothing, somebody empties the webhook configuration, and two more deployers come in",
    );
    scale(node, 0).await?;
    release.wait_ready(0).await?;
    let patch = [
        "patch",
        CONFIGURATION[1],
        CONFIGURATION[2],
        "--type=merge",
        "-p={\"webhooks\":[]}",
    ];
    node.show(&patch).await?;
    let client = node.client();
    let duplicate = |version: u32| Rollout::new(SHOP, "short", version);
    for (version, waits) in [(3, false), (4, true)] {
        let rollout = duplicate(version);
        let mut pod = node.real(rollout.pod(&rollout.begin(&client, "New").await?), &["-for=1h"]);
        if waits {
            pod["spec"]["nodeSelector"][NOWHERE] = "true".into();
        }
        let admitted = until("the API server to ask nobody", LIMIT, async || {
            let answer = create_pod(&client, SHOP, &pod).await?;
            ensure!(answer.is_created(), "{}", answer.message());
            Ok(answer)
        });
        let how = if waits {
            "which waits for a node"
        } else {
            "which starts"
        };
        println!("{}: {}   beside it, {how}", rollout.deployer(), kind(&admitted.await?));
    }
    let started: Api<Pod> = Api::namespaced(client.clone(), SHOP);
    until("the second to run", LIMIT, async || {
        let pod = started.get(&duplicate(3).deployer()).await?;
        ensure!(
            pod.status
                .is_some_and(|status| status.phase.as_deref() == Some("Running")),
            "it does not"
        );
        Ok(())
    })
    .await?;

    heading("ours is back: the entries too; who waits is removed, who runs is reported, and nobody else gets in");
    scale(node, 2).await?;
    release.wait_ready(2).await?;
    release.wait_enforced(POLICY).await?;
    until("the one that waits to be removed", LIMIT, async || {
        let left = started.get_opt(&duplicate(4).deployer()).await?;
        ensure!(left.is_none(), "it is there");
        Ok(())
    })
    .await?;
    println!("{}", told(node, &duplicate(3), "DuplicateDeployer").await?);
    println!("{}", told(node, &duplicate(4), "DeployerDeleted").await?);
    let late = duplicate(5);
    let refused = refused(node, &late).await?;
    println!("{}: {}", late.deployer(), kind(&refused));
    started
        .delete(&duplicate(3).deployer(), &DeleteParams::default())
        .await?;
    node.show(&["get", "dpol"]).await
}

async fn refused(node: &Node, rollout: &Rollout) -> anyhow::Result<Answer> {
    let client = node.client();
    let pod = node.real(rollout.pod(&rollout.begin(&client, "New").await?), &["-for=1h"]);
    until("another deployer to be refused", LIMIT, async || {
        let answer = create_pod(&client, SHOP, &pod).await?;
        ensure!(answer.code == 403, "it was answered {}", answer.code);
        Ok(answer)
    })
    .await
}

async fn scale(node: &Node, replicas: u32) -> anyhow::Result<()> {
    let replicas = format!("--replicas={replicas}");
    node.show(&["-n", NAMESPACE, "scale", "deployment", NAMESPACE, &replicas])
        .await
}

/// What an Event about a deployer says.
async fn told(node: &Node, rollout: &Rollout, reason: &str) -> anyhow::Result<String> {
    until(&format!("an Event {reason}"), LIMIT, async || {
        let events = node
            .stdout(&["-n", SHOP, "get", "events.events.k8s.io", "-o=json"])
            .await?;
        let events: Value = serde_json::from_str(&events)?;
        let about =
            |event: &&Value| event["reason"] == reason && event["regarding"]["name"] == rollout.deployer().as_str();
        let event = events["items"].as_array().into_iter().flatten().find(about);
        let text = event.context("there is none")?["note"].clone();
        Ok(format!("{reason}\n  {}", text.as_str().unwrap_or_default()))
    })
    .await
}
