//! A pod that is stored long after its admission, when its key has a new holder.

use std::time::Duration;

use anyhow::ensure;
use deployer_guard_testkit::objects::create_pod;
use deployer_guard_testkit::{ControlPlane, Program, Stage, until};
use kube::ResourceExt;
use tokio::time::{Instant, sleep};

use crate::scene::{SOON, run};
use crate::site::{PROGRAM, SITE, Site, deployer};
use crate::witness::Witness;

/// The webhook and the guards are told that a create is kept for 5 s at most.
const WINDOW: [&str; 2] = ["--api-server-request-timeout=5s", "--pending-window=6s"];
/// W + 10 s, and what it may take beyond that.
const GIVEN_UP: Duration = Duration::from_secs(28);

/// An API server is stopped between the webhook's answer and the store, for longer than W + 10 s and than the time that it was said
/// to keep a create. Another deployer gets the key. When the API server goes on, it stores the first one beside it.
#[test]
fn a_pod_that_is_stored_beside_the_next_holder_is_removed_before_it_could_start() {
    run(async {
        let mut builder = Stage::builder(PROGRAM).plane(ControlPlane::builder().api_servers(2));
        for argument in WINDOW {
            builder = builder.argument(argument).guard_argument(argument);
        }
        let mut site = Site::before(builder).await?;
        // Odd numbers: they talk to the second API server.
        for name in ["guard-1", "guard-3"] {
            site.guard(name, None).await?;
        }
        site.begin().await?;
        let (plane, balancer) = (&site.stage.plane, &site.stage.balancer);
        let witness = Witness::start(plane, SITE).await?;
        // The first replica knows the cluster through the API server that will be stopped.
        let first = site.stage.replicas[0].address;
        balancer.remove(first);
        balancer.cut(first);
        sleep(Duration::from_millis(200)).await;

        balancer.hold_answers();
        let client = plane.client(0);
        let early = tokio::spawn(async move { create_pod(&client, SITE, &deployer("cfg", "early")).await });
        until("the first to be admitted", SOON, async || {
            let pending = site.claim("cfg").await?.spec.pending;
            ensure!(pending.len() == 1, "{pending:?}");
            Ok(())
        })
        .await?;
        plane.process(Program::ApiServer(0)).pause()?;
        let paused = Instant::now();
        balancer.release();
        let next = until("the key to be free", GIVEN_UP, async || {
            let answer = site.create("cfg", "next").await?;
            answer.result.map_err(|status| anyhow::anyhow!("{}", status.message))
        })
        .await?;
        let holder = site.until_settled("cfg").await?;
        ensure!(holder.uid() == next.uid());
        let given_up = paused.elapsed();
        ensure!(given_up > Duration::from_secs(16), "after {given_up:?}");

        plane.process(Program::ApiServer(0)).resume()?;
        let early = early.await??;
        ensure!(
            early.is_created(),
            "it did not arrive: {} {}",
            early.code,
            early.message()
        );
        eprintln!("stored {:.1?} after its admission", paused.elapsed());
        for (reason, pod) in [
            ("DeployerLate", "early"),
            ("DuplicateDeployer", "early"),
            ("DuplicateDeployer", "next"),
            ("DeployerDeleted", "early"),
        ] {
            site.until_told(reason, pod).await?;
        }
        let holder = site.until_settled("cfg").await?;
        ensure!(holder.uid() == next.uid(), "the holder was touched");
        ensure!(holder.metadata.deletion_timestamp.is_none());
        let leader = site.stage.wait_leader().await?;
        let guard = &site.stage.guards[leader];
        ensure!(guard.metric("deployer_guard_guard_findings_total").await? >= 2.0);
        site.until_no_violation(leader).await?;

        let seen = witness.finish().await?;
        ensure!(seen.pods.violations.len() == 1, "{:#?}", seen.pods.violations);
        ensure!(seen.pods.violations[0].pods[1].name == "early");
        // The claim moved on from the first one before it was there.
        seen.no_claim_of_an_active_pod_was_freed()
    });
}
