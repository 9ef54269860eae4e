//! The story, scene by scene. Each asserts what it shows.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::ensure;
use deployer_guard_testkit::objects::{create_pod, make_namespace, set_phase};
use deployer_guard_testkit::{ControlPlane, Stage, StoreWatch, openshift::Rollout, until};

use crate::ground::Ground;
use crate::guards;
use crate::scenes::{CROWD, REFUSED_POD, SHOP, at_once, config_of, crowd, records, refusal};
use crate::show::{heading, kind, say_how_it_ends, tally};

/// Rounds of the storm in which a replica is killed.
const ROUNDS: u32 = 20;
/// The policy that is in force.
const POLICY: &str = include_str!("../policies/openshift-deploymentconfig.yaml");
/// How long the API servers keep a create. It bounds how long an admitted pod may be on its way, and that bounds how soon the guard
/// knows who was there before: with the usual 34 s this story would take a minute more.
const REQUEST_TIMEOUT: &str = "5s";
/// The pending window: longer than that.
const WINDOW: &str = "6s";

/// Tells the story to its end.
///
/// # Errors
/// If a scene does not go as it should.
pub(crate) async fn tell(program: PathBuf, keep: bool) -> anyhow::Result<()> {
    let begun = Instant::now();
    let plane = ControlPlane::builder()
        .api_servers(2)
        .audit_log(true)
        .api_server_flag(format!("--request-timeout={REQUEST_TIMEOUT}"))
        .controller_manager(true);
    let mut stage = Stage::builder(program.clone())
        .plane(plane)
        .guards(2)
        .guard_argument("--lease-duration")
        .guard_argument(guards::LEASE);
    for argument in [
        format!("--api-server-request-timeout={REQUEST_TIMEOUT}"),
        format!("--pending-window={WINDOW}"),
    ] {
        stage = stage.argument(argument.clone()).guard_argument(argument);
    }
    let stage = stage.start().await?;
    stage.enforce(POLICY).await?;
    make_namespace(&stage.plane.client(0), SHOP, &[], true).await?;
    println!(
        "etcd, 2 kube-apiservers, kube-controller-manager, 2 replicas of the webhook, 2 guards, and policies/openshift-deploymentconfig.yaml in force: {:.1} s",
        begun.elapsed().as_secs_f64()
    );
    let witness = StoreWatch::start(stage.plane.clients(), Some(SHOP), config_of).await?;
    let holder = crowd(&stage).await?;
    refusal(&stage, &holder).await?;
    records(&stage).await?;
    succession(&stage, holder).await?;
    storm(&stage).await?;
    guards::succession(&stage).await?;
    let seen = witness.finish().await?;
    ensure!(seen.violations.is_empty(), "two were active: {:?}", seen.violations);
    println!(
        "\nA watch of all {} pod events never saw two deployers of one config active.",
        seen.events
    );
    guards::bypass(&stage).await?;
    guards::missing(&stage).await?;
    println!("\nAll of it: {:.0} s.", begun.elapsed().as_secs_f64());
    if keep {
        leave(stage, &program).await?;
    } else {
        println!("Everything is ended. To keep the cluster and play on: make demo KEEP=1");
    }
    Ok(())
}

/// Leaves the cluster running, and says what to try on it.
async fn leave(stage: Stage, program: &Path) -> anyhow::Result<()> {
    let kubectl = stage.plane.kubectl_program();
    let kubeconfig = stage.plane.kubeconfig(0).to_owned();
    let pod = stage.plane.directory().join(REFUSED_POD);
    let logs = stage.plane.directory().join("guard-*.out");
    let left = stage.leave_running().await?;
    let (kubectl, kubeconfig) = (kubectl.display(), kubeconfig.display());
    let (pod, program, logs) = (pod.display(), program.display(), logs.display());
    println!("\nLeft running. In a shell:\n  export KUBECONFIG={kubeconfig}\n  alias kubectl={kubectl}");
    println!(
        "The policies, and whether they are in force; the claims, one for each config, with their holders and refusals:"
    );
    println!("  kubectl get dpol -o wide; kubectl -n {SHOP} get deployerclaims,pods");
    println!("An old rollout's deployer again, which is refused (cfg-18-deploy works):");
    println!("  kubectl create -f {pod}");
    println!("The same verdict without the cluster, from what kubectl prints of it:");
    println!("  kubectl -n {SHOP} get pods,rc,deployerclaims -o yaml > snapshot.yaml");
    println!(
        "  {program} check --policy policies/openshift-deploymentconfig.yaml --objects snapshot.yaml --review {pod}"
    );
    println!("Which guard leads, and what the guards log:");
    println!("  kubectl -n deployer-guard get lease deployer-guard; tail {logs}");
    say_how_it_ends(&left.end_command)
}

/// The holder finishes, the next rollout is admitted, and a retry of an old one is refused.
async fn succession(stage: &Stage, holder: Rollout) -> anyhow::Result<()> {
    let client = stage.plane.client(0);
    heading("the holder finishes; the next rollout starts; an old one is tried again");
    set_phase(&client, SHOP, &holder.deployer(), "Succeeded").await?;
    holder.set_phase(&client, "Complete").await?;
    println!("{} has Succeeded", holder.deployer());
    let next = Rollout::new(SHOP, "cfg", CROWD + 1);
    let admitted = create_pod(&client, SHOP, &next.pod(&next.begin(&client, "New").await?)).await?;
    println!("{}: {}", next.deployer(), kind(&admitted));
    ensure!(admitted.is_created(), "{}", admitted.message());
    until(
        "the new holder to be seen in the store",
        Duration::from_secs(10),
        async || {
            let path = "-o=jsonpath={.items[?(@.spec.config==\"cfg\")].spec.pending}";
            let pending = stage.stdout(&["-n", SHOP, "get", "deployerclaims", path]).await?;
            ensure!(pending.is_empty(), "it is pending");
            Ok(())
        },
    )
    .await?;
    set_phase(&client, SHOP, &next.deployer(), "Succeeded").await?;
    let old = Rollout::new(SHOP, "cfg", if holder.version == 1 { 2 } else { 1 });
    let refused = create_pod(&client, SHOP, &old.pod(&old.uid(&client).await?)).await?;
    println!("{}: {}", old.deployer(), kind(&refused));
    println!(
        "  {}\n",
        refused
            .message()
            .rsplit_once("\": ")
            .map_or(refused.message(), |(_, why)| why)
    );
    ensure!(refused.code == 403, "an old rollout came back: {}", refused.code);
    Ok(())
}

/// Round after round of sixteen at once, in the middle of which a replica is killed.
async fn storm(stage: &Stage) -> anyhow::Result<()> {
    heading(&format!(
        "{ROUNDS} rounds of {CROWD} at once; replica 0 is killed (-9) in round {}, and started again",
        ROUNDS / 2
    ));
    let mut admitted = Vec::new();
    let mut answers = Vec::new();
    for round in 0..ROUNDS {
        let config = format!("storm{round}");
        let killed = async {
            if round == ROUNDS / 2 {
                tokio::time::sleep(Duration::from_millis(30)).await;
                stage.replicas[0].webhook.process().kill()?;
            }
            anyhow::Ok(())
        };
        let (outcome, killed) = tokio::join!(at_once(stage, &config), killed);
        killed?;
        match outcome {
            Ok((winner, round_answers)) => {
                admitted.push(winner);
                answers.extend(round_answers);
            }
            Err(error) if round == ROUNDS / 2 && error.to_string() == "none was admitted" => {}
            Err(error) => return Err(error),
        }
        if round == ROUNDS / 2 {
            stage.replicas[0].webhook.process().restart()?;
            stage.replicas[0].wait_ready().await?;
        }
    }
    for (count, answer) in tally(&answers)
        .into_iter()
        .filter(|(_, answer)| !answer.starts_with("201"))
    {
        println!("{count:>4} x {answer}");
    }
    println!("{:>4} x 201 Created, never two in a round", admitted.len());
    Ok(())
}
