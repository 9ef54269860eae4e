//! etcd that stands still between admission and store, for longer than anything waits for it.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::ensure;
use deployer_guard_testkit::objects::create_pod;
use deployer_guard_testkit::{ControlPlane, Program, Stage, until};
use futures::future::{join_all, try_join_all};
use kube::ResourceExt;
use tokio::time::{Instant, sleep};

use crate::scene::{SOON, run};
use crate::site::{PROGRAM, SITE, Site, deployer};
use crate::witness::Witness;

/// Both webhook and guards are told what is so here: the API servers give a create up after 5 s.
const TOLD: [&str; 2] = ["--api-server-request-timeout=5s", "--pending-window=6s"];
const REQUEST_TIMEOUT: &str = "--request-timeout=5s";
/// Longer than the request timeout, than W, and than the W + 10 s after which an entry may be given up.
const STALL: Duration = Duration::from_secs(18);
/// W + 10 s after etcd goes on, and much patience.
const GIVEN_UP: Duration = Duration::from_secs(75);
/// Creates that are on their way when etcd is stopped: some of them are stored when it goes on, each by chance.
const KEYS: usize = 32;
/// So often that is tried until one was.
const TRIES: usize = 4;

/// The API servers answer 504, the leader loses its Lease, and everybody's looks for the pods are older than W + 10 s by their own clocks.
/// Then etcd goes on, and with it some of the writes, seconds after their requests ended. Others try for each key all the time.
#[test]
fn pods_that_are_stored_when_a_stalled_etcd_goes_on_hold_their_keys_and_nobody_else_has_them() {
    run(async {
        let plane = ControlPlane::builder().api_servers(2).api_server_flag(REQUEST_TIMEOUT);
        let mut builder = Stage::builder(PROGRAM).plane(plane);
        for argument in TOLD {
            builder = builder.argument(argument).guard_argument(argument);
        }
        let mut site = Site::before(builder).await?;
        for name in ["guard-0", "guard-1"] {
            site.guard(name, None).await?;
        }
        site.begin().await?;
        let witness = Witness::start(&site.stage.plane, SITE).await?;
        let mut late = BTreeSet::new();
        for turn in 0..TRIES {
            late = stall(&site, turn).await?;
            if !late.is_empty() {
                break;
            }
        }
        ensure!(
            !late.is_empty(),
            "none of the writes outlived its request: this proves nothing"
        );
        let leader = site.stage.wait_leader().await?;
        site.until_no_violation(leader).await?;
        let seen = witness.finish().await?;
        seen.never_two()?;
        seen.no_claim_of_an_active_pod_was_freed()?;
        // Whoever was late was the first that its key ever had.
        for config in late {
            let first = seen.pods.pods.get(&config).and_then(|pods| pods.first());
            ensure!(first.is_some_and(|pod| pod.name == early(&config)), "{first:?}");
        }
        Ok(())
    });
}

fn early(config: &str) -> String {
    format!("{config}-early")
}

/// Stops etcd when creates were admitted and none is stored yet. The configs whose pod was stored after its create had failed.
async fn stall(site: &Site, turn: usize) -> anyhow::Result<BTreeSet<String>> {
    let configs: Vec<String> = (0..KEYS).map(|key| format!("t{turn}-{key}")).collect();
    let (plane, balancer) = (&site.stage.plane, &site.stage.balancer);
    balancer.hold_answers();
    let sent = configs.iter().enumerate().map(|(i, config)| {
        let (client, pod) = (plane.client(i % plane.api_servers()), deployer(config, &early(config)));
        tokio::spawn(async move { create_pod(&client, SITE, &pod).await })
    });
    let sent: Vec<_> = sent.collect();
    until("the creates to be admitted", SOON, async || {
        let admitted = pending(site, &configs).await?;
        ensure!(admitted == KEYS, "{admitted} of {KEYS} are");
        Ok(())
    })
    .await?;
    let etcd = plane.process(Program::Etcd);
    etcd.pause()?;
    let paused = Instant::now();
    balancer.release();
    let answers = async {
        let mut failed = BTreeSet::new();
        for (config, answer) in configs.iter().zip(join_all(sent).await) {
            // An API server that gives up may also close the connection.
            let created = answer?.is_ok_and(|answer| answer.is_created());
            ensure!(!created, "{config} was stored by an etcd that is stopped");
            failed.insert(config.clone());
        }
        anyhow::Ok(failed)
    };
    let resume = async {
        sleep(STALL).await;
        etcd.resume()?;
        anyhow::Ok(paused.elapsed())
    };
    let others = try_join_all(configs.iter().map(async |config| {
        let next = format!("{config}-next");
        until("the key to be held", STALL + GIVEN_UP, async || {
            // While nothing moves, a try may fail in any way.
            let answer = site.create(config, &next).await?;
            // 409: an answer was lost, and it is there.
            let held = [201, 409].contains(&answer.code) || answer.message().contains("is active");
            ensure!(held, "{} {}", answer.code, answer.message());
            Ok(())
        })
        .await
    }));
    let (failed, stopped, others) = tokio::join!(answers, resume, others);
    let (failed, stopped) = (failed?, stopped?);
    others.map_err(|error| site.blame(error))?;
    let settled = paused.elapsed();
    let mut late = BTreeSet::new();
    for config in &configs {
        let holder = site.until_settled(config).await?;
        ensure!(holder.metadata.deletion_timestamp.is_none(), "{config}");
        if holder.name_any() == early(config) {
            ensure!(failed.contains(config));
            late.insert(config.clone());
        }
    }
    eprintln!(
        "etcd stopped for {stopped:.1?}; {} of {KEYS} pods were stored after that, the other keys had a new holder {settled:.1?} after it stopped",
        late.len()
    );
    // A late one is a holder like any other.
    if let Some(config) = late.first() {
        site.phase(&early(config), "Succeeded").await?;
        ensure!(site.until_at_rest(config).await?.is_none(), "{config} is held");
    }
    Ok(late)
}

/// How many of these keys have a pod on its way.
async fn pending(site: &Site, configs: &[String]) -> anyhow::Result<usize> {
    let claims = site.claims().await?;
    let ours = claims.iter().filter(|claim| configs.contains(&claim.spec.config));
    Ok(ours.filter(|claim| claim.spec.pending.len() == 1).count())
}
