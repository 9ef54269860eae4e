//! Deployers that come and go among many pods that have nothing to do with them.

use std::time::Duration;

use anyhow::{bail, ensure};
use deployer_guard_testkit::objects::{Answer, create_pod};
use deployer_guard_testkit::{Churn, ControlPlane, Stage, until};
use futures::future::{join_all, try_join_all};
use kube::ResourceExt;
use kube::api::DeleteParams;
use tokio::time::Instant;

use crate::scene::run;
use crate::site::{PROGRAM, SITE, Site, deployer};
use crate::witness::Witness;

const KEYS: usize = 4;
const ROUNDS: usize = 20;
/// Creates at the same moment.
const CREATES: usize = 4;
const LIMIT: Duration = Duration::from_mins(1);
/// Pods that are only to be deleted: enough for the rounds at 150 a second.
const UNRELATED: usize = 3000;

/// 80 rounds, those of four keys side by side, with two guards and two API servers: whoever counts pods by watches is late all the time.
#[test]
fn among_150_deletes_a_second_never_two_are_active_and_no_claim_of_an_active_pod_is_freed() {
    run(async {
        let plane = ControlPlane::builder().api_servers(2);
        let mut site = Site::before(Stage::builder(PROGRAM).plane(plane)).await?;
        for name in ["guard-0", "guard-1"] {
            site.guard(name, None).await?;
        }
        site.begin().await?;
        let witness = Witness::start(&site.stage.plane, SITE).await?;
        let churn = Churn::prepared(site.stage.plane.clients(), SITE, UNRELATED).await?;
        let begun = Instant::now();
        let rounds = (0..KEYS).map(async |key| {
            for round in 0..ROUNDS {
                one(&site, &format!("cfg{key}"), round).await?;
            }
            anyhow::Ok(())
        });
        try_join_all(rounds).await?;
        let took = begun.elapsed();
        let rate = churn.end();
        for key in 0..KEYS {
            let config = format!("cfg{key}");
            until("the claim to be free", LIMIT, async || {
                let spec = site.claim(&config).await?.spec;
                ensure!(spec.holder.is_none() && spec.pending.is_empty(), "{spec:?}");
                Ok(())
            })
            .await?;
        }
        let seen = witness.finish().await?;
        seen.never_two()?;
        seen.no_claim_of_an_active_pod_was_freed()?;
        let freed = seen.moved_on.len();
        eprintln!(
            "{} rounds in {took:.1?}, {rate:.0} pods deleted a second, {freed} times a claim moved on",
            KEYS * ROUNDS
        );
        ensure!(freed >= KEYS * ROUNDS, "claims moved on {freed} times");
        ensure!(rate > 1.0, "there was no churn: {rate} a second");
        Ok(())
    });
}

/// Some create at once until one is admitted, which ends in one of three ways.
async fn one(site: &Site, config: &str, round: usize) -> anyhow::Result<()> {
    let clients = site.stage.plane.clients();
    let admitted = until("one to be admitted", LIMIT, async || {
        let creates = (0..CREATES).map(|i| {
            let client = clients[i % clients.len()].clone();
            let pod = deployer(config, &format!("{config}-{round}-{i}"));
            async move { create_pod(&client, SITE, &pod).await }
        });
        let answers = join_all(creates).await.into_iter();
        let (admitted, others): (Vec<_>, Vec<_>) =
            answers.partition(|answer| answer.as_ref().is_ok_and(Answer::is_created));
        ensure!(!admitted.is_empty(), "{others:?}");
        Ok(admitted)
    })
    .await?;
    let admitted = admitted.into_iter().filter_map(|answer| answer.ok()?.result.ok());
    let admitted: Vec<String> = admitted.map(|pod| pod.name_any()).collect();
    let [name] = admitted.as_slice() else {
        bail!("admitted at once: {admitted:?}");
    };
    match round % 3 {
        0 => site.phase(name, "Succeeded").await,
        1 => site.phase(name, "Failed").await,
        _ => {
            let at_once = DeleteParams::default().grace_period(0);
            site.pods().delete(name, &at_once).await?;
            Ok(())
        }
    }
}
