//! Pods that are stored long after their admission, because something stood still in between.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::ensure;
use deployer_guard_testkit::objects::create_pod;
use deployer_guard_testkit::{ControlPlane, Program, until};
use futures::future::{join_all, try_join_all};
use tokio::time::{Instant, sleep};

use crate::common::run;
use crate::creators::{GIVEN_UP, LATE, assert_never_two, cause, claims, deployer, with_short_window, witness};
use crate::site::{SOON, Scene, Site, gated};

/// etcd stands still when the pods are written, and the API servers give up (504). Some of the pods are stored when it goes
/// on, seconds after that answer: each of them holds its key, and the other keys become free.
#[test]
fn pods_that_are_stored_when_a_stalled_etcd_goes_on_never_meet_another_one() {
    run(async {
        let site = Site::start(with_short_window()).await?;
        let codes = stall(&site, Program::Etcd, Duration::from_secs(6)).await?;
        ensure!(codes.contains_key(&504), "etcd did not stall: {codes:?}");
        Ok(())
    });
}

/// An API server is stopped between the webhook's answer and the store, for longer than W and less than W + 10 s, while
/// others try at the other API server. It keeps creates for longer than the webhook was told, so all of them are stored then.
#[test]
fn pods_that_a_stopped_api_server_stores_after_the_window_and_before_the_second_look_never_meet_another_one() {
    run(async {
        let patient = ControlPlane::builder().api_servers(2);
        let site = Site::start(with_short_window().plane(patient)).await?;
        // The first replica knows the cluster through the API server that will be stopped.
        let first = site.stage.replicas[0].address;
        site.stage.balancer.remove(first);
        site.stage.balancer.cut(first);
        sleep(Duration::from_millis(200)).await;
        let codes = stall(&site, Program::ApiServer(0), Duration::from_secs(10)).await?;
        // Most arrive when it goes on; a create whose call to a webhook was still under way is given up by the API server.
        assert!(codes.contains_key(&201), "none arrived late: {codes:?}");
        assert!(codes.keys().all(|code| [201, 500, 504].contains(code)), "{codes:?}");
        Ok(())
    });
}

/// Creates that are under way at a time.
const STALLED: usize = 32;

/// Stops a program when creates at the first API server were admitted and none is written yet, for that long; others try at the
/// second API server all the time, until each key is held. Two must never be active. Gives the answers to the first ones.
async fn stall(site: &Site, program: Program, pause: Duration) -> anyhow::Result<BTreeMap<u16, usize>> {
    Scene::of(site, "stall").await?;
    let plane = &site.stage.plane;
    let watch = witness(plane, "stall").await?;
    let begun = Instant::now();
    let sent = (0..STALLED).map(|i| {
        let client = plane.client(0);
        let pod = gated(deployer(&format!("cfg{i}"), "early", &format!("cfg{i}-early")), "stall");
        tokio::spawn(async move { create_pod(&client, "stall", &pod).await })
    });
    let sent: Vec<_> = sent.collect();
    until("all creates to be admitted", SOON, async || {
        let claims = claims(&plane.client(1), "stall").await?;
        let pending = claims.values().filter(|claim| claim.spec.pending.len() == 1).count();
        ensure!(pending == STALLED, "{pending} are");
        Ok(())
    })
    .await?;
    let admitted = begun.elapsed();
    let process = plane.process(program);
    process.pause()?;
    site.open("stall");
    let (paused, going_on) = (Instant::now(), sleep(pause));
    let resume = async {
        going_on.await;
        process.resume()?;
        anyhow::Ok(paused.elapsed())
    };
    let first = async {
        let mut codes: BTreeMap<u16, usize> = BTreeMap::new();
        for answer in join_all(sent).await {
            // An API server that gives up may also close the connection.
            *codes.entry(answer?.map_or(0, |answer| answer.code)).or_default() += 1;
        }
        anyhow::Ok(codes)
    };
    let others = try_join_all((0..STALLED).map(async |i| {
        let next = deployer(&format!("cfg{i}"), "late", &format!("cfg{i}-late"));
        until("the key to be held", pause + GIVEN_UP + LATE, async || {
            // While nothing moves, a try may fail in any way.
            let answer = create_pod(&plane.client(1), "stall", &next).await?;
            let held = answer.is_created() || cause(&answer) == "DeployerActive";
            ensure!(held, "{} {}", answer.code, answer.message());
            Ok(answer.is_created())
        })
        .await
    }));
    let (resumed, codes, others) = tokio::join!(resume, first, others);
    let (resumed, codes, others) = (resumed?, codes?, others?);
    let free = others.iter().filter(|admitted| **admitted).count();
    println!(
        "{STALLED} creates, admitted in {admitted:.1?}, then {program:?} stopped for {resumed:.1?}: answered {codes:?}, {} were \
         stored, {free} keys became free, {:.1?}",
        STALLED - free,
        begun.elapsed()
    );
    let report = watch.finish().await?;
    assert_eq!(report.pods.len(), STALLED);
    assert_never_two(&report);
    Ok(codes)
}
