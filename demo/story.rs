//! The story, scene by scene. Each asserts what it shows.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use deployer_guard_testkit::objects::{Answer, create_pod, make_namespace, set_phase};
use deployer_guard_testkit::{ControlPlane, Stage, StoreWatch, openshift::Rollout, until};
use futures::future::try_join_all;
use serde_json::Value;
use tokio::sync::Barrier;

use crate::guards;
use crate::show::{heading, kind, stdout, tally};

/// The namespace of the story.
pub(crate) const SHOP: &str = "shop";
/// Deployers that are created at once.
const CROWD: u32 = 16;
/// Rounds of the storm in which a replica is killed.
const ROUNDS: u32 = 20;
/// The file of a deployer pod that is refused.
const REFUSED_POD: &str = "deployer.json";
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
    println!("End it with:\n  {}", left.end_command);
    Ok(())
}

/// What a deployer pod works for.
fn config_of(pod: &Value) -> Option<String> {
    pod.pointer("/metadata/labels/openshift.io~1deployer-pod-for.name")?;
    pod.pointer("/metadata/annotations/openshift.io~1deployment-config.name")?
        .as_str()
        .map(str::to_owned)
}

/// Sixteen rollouts of one config, whose deployers are created at the same moment over both API servers.
async fn crowd(stage: &Stage) -> anyhow::Result<Rollout> {
    heading(&format!(
        "{CROWD} deployer pods of DeploymentConfig \"cfg\" are created at once"
    ));
    let (winner, answers) = at_once(stage, "cfg").await?;
    for (count, answer) in tally(&answers) {
        println!("{count:>4} x {answer}");
    }
    Ok(winner)
}

/// Begins rollouts 1 to 16 of a config, sends all their deployers at one moment, and gives the one that was admitted.
async fn at_once(stage: &Stage, config: &str) -> anyhow::Result<(Rollout, Vec<Answer>)> {
    let line = Arc::new(Barrier::new(CROWD as usize));
    let creates = (1..=CROWD).map(|version| {
        let (line, client) = (Arc::clone(&line), stage.plane.client(version as usize % 2));
        let rollout = Rollout::new(SHOP, config, version);
        async move {
            let pod = rollout.pod(&rollout.begin(&client, "New").await?);
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
async fn refusal(stage: &Stage, holder: &Rollout) -> anyhow::Result<()> {
    let other = Rollout::new(SHOP, "cfg", if holder.version == CROWD { CROWD - 1 } else { CROWD });
    let uid = other.uid(&stage.plane.client(0)).await?;
    let file = stage.plane.directory().join(REFUSED_POD);
    std::fs::write(&file, other.pod(&uid).to_string())?;
    let shown = format!("{}.json", other.deployer());
    heading(&format!("kubectl create -f {shown}"));
    let output = stage
        .plane
        .kubectl(&["create", "-f", &file.display().to_string()])
        .await?;
    ensure!(!output.status.success(), "a second deployer was admitted");
    print!(
        "{}",
        String::from_utf8_lossy(&output.stderr).replace(&file.display().to_string(), &shown)
    );
    Ok(())
}

/// The claim, the Events, the audit annotations and the decision log.
async fn records(stage: &Stage) -> anyhow::Result<()> {
    heading(&format!("kubectl -n {SHOP} get deployerclaims"));
    let columns = "-o=custom-columns=CONFIG:.spec.config,GENERATION:.spec.holder.generation,HOLDER:.spec.holder.name,\
                   PHASE:.status.phase,REJECTIONS:.status.rejections.count,REQUESTED BY:.spec.holder.requestedBy";
    let claims = until("the claim's status", Duration::from_secs(10), async || {
        let claims = stdout(stage, &["-n", SHOP, "get", "deployerclaims", columns]).await?;
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
        let events = stdout(stage, &["-n", SHOP, "get", "events.events.k8s.io", &format!("-o=jsonpath={template}")]).await?;
        let lines: Vec<&str> = events.lines().take(2).collect();
        ensure!(lines.len() == 2, "there is none");
        Ok(lines.join("\n"))
    })
    .await?;
    println!("{event}");
    heading("audit annotations of a refusal, from the API server's audit log");
    let audited = stage.plane.audit_events()?.into_iter().rev().find_map(|event| {
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
    let decisions = stage.decisions()?;
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
            let pending = stdout(stage, &["-n", SHOP, "get", "deployerclaims", path]).await?;
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
