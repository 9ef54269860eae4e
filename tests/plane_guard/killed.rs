//! A guard that is killed at every step of what it does about leftovers.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{bail, ensure};
use deployer_guard_testkit::{Stage, until};
use kube::ResourceExt;
use tokio::time::{Instant, sleep};

use crate::proxy::{Hold, Passed, Proxy};
use crate::scene::{SOON, run};
use crate::site::{PROGRAM, SITE, Site};
use crate::witness::Witness;

/// Rounds at the least.
const ROUNDS: usize = 24;

/// How often in a row a step has to be missed to be none.
const MISSES: usize = 3;

/// In each round two deployers come in past the webhook, and the guard is killed: right before each of its writes reaches the API
/// server, right after each is done, and, when all steps had their turn, at any moment. A write that was not delivered arrives when
/// the next guard has long finished the work.
#[test]
fn a_guard_that_is_killed_at_any_step_leaves_nothing_that_the_next_one_does_not_finish() {
    run(async {
        let builder = Stage::builder(PROGRAM).replicas(1);
        let builder = builder.guard_argument("--lease-duration").guard_argument("3s");
        let mut site = Site::before(builder).await?;
        let proxy = Proxy::start(site.as_guard().await?)?;
        site.guard("guard-0", Some(&proxy.url())).await?;
        site.begin().await?;
        let witness = Witness::start(&site.stage.plane, SITE).await?;
        let mut steps: BTreeMap<String, usize> = BTreeMap::new();
        let mut exhausted = None;
        let (mut round, mut number, mut missed) = (0, 0, 0);
        while exhausted.is_none() || round < ROUNDS {
            let at = match exhausted {
                None => At::Step {
                    number: number / 2,
                    hold: if number % 2 == 0 { Hold::Request } else { Hold::Answer },
                },
                // Other moments in each round, the same in each run.
                Some(whole) => At::Moment(whole * u32::try_from(round * 7 % 16)? / 16),
            };
            let (step, took) = one(&site, &proxy, round, at).await?;
            if matches!(at, At::Step { .. }) {
                match step {
                    Some(step) => {
                        *steps.entry(step).or_default() += 1;
                        (number, missed) = (number + 1, 0);
                    }
                    // All may be done before the last step is: once is not never.
                    None if missed < MISSES => missed += 1,
                    None => exhausted = Some(took),
                }
            }
            round += 1;
        }
        eprintln!("{round} rounds, killed at {steps:#?}; all took {exhausted:?}");
        for step in ["POST deployerclaims", "PUT deployerclaims", "DELETE pods"] {
            ensure!(steps.contains_key(step), "never at {step}: {steps:?}");
        }
        ensure!(steps["PUT deployerclaims"] >= 4, "condemning and cleaning: {steps:?}");
        site.until_no_violation(0).await?;
        let seen = witness.finish().await?;
        seen.no_claim_of_an_active_pod_was_freed()
    });
}

/// When the guard is killed.
#[derive(Clone, Copy, Debug)]
enum At {
    Step { number: usize, hold: Hold },
    Moment(Duration),
}

/// Which step was met, if it was, and how long it took until then or until all was done.
async fn one(site: &Site, proxy: &Proxy, round: usize, at: At) -> anyhow::Result<(Option<String>, Duration)> {
    let config = format!("cfg{round}");
    let guard = site.stage.guards[0].process();
    let before = proxy.held().len();
    if let At::Step { number, hold } = at {
        let count = AtomicUsize::new(0);
        proxy.hold(move |method, path| {
            let counts = is_step(method, path);
            if counts && count.fetch_add(1, Ordering::SeqCst) == number {
                hold
            } else {
                Hold::No
            }
        });
    }
    let begun = Instant::now();
    for name in ["one", "two"] {
        site.bypass(&config, &format!("{config}-{name}")).await?;
    }
    let step = match at {
        At::Moment(moment) => {
            sleep(moment.saturating_sub(begun.elapsed())).await;
            None
        }
        At::Step { hold, .. } => until("the step, or all to be done", SOON, async || {
            let held = proxy.held();
            match held.get(before) {
                Some(step) if hold == Hold::Answer && step.code.is_none() => bail!("it is under way"),
                Some(step) => Ok(Some(step.clone())),
                None => site.settled(&config).await.map(|_| None),
            }
        })
        .await
        .map_err(|error| site.stage.guards[0].blame(error))?,
    };
    let took = begun.elapsed();
    guard.kill()?;
    proxy.hold(|_, _| Hold::No);
    site.again().await?;
    let left = site.until_settled(&config).await?;
    if let Some(step) = &step {
        proxy.release();
        until("what was held to be answered", SOON, async || {
            let code = proxy.held()[before].code;
            ensure!(code.is_some());
            let late = step.hold == Hold::Request;
            ensure!(!late || code >= Some(400), "{step:?} was accepted: {code:?}");
            Ok(())
        })
        .await?;
        let still = site.until_settled(&config).await?;
        ensure!(still.uid() == left.uid(), "{step:?}: another holds {config}");
    }
    Ok((step.as_ref().map(name_of), took))
}

/// What a guard does about keys: anything but Events and the status of claims, which come at any moment.
fn is_step(method: &str, path: &str) -> bool {
    method != "GET"
        && path.contains(&format!("/namespaces/{SITE}/"))
        && !path.ends_with("/events")
        && !path.ends_with("/status")
}

fn name_of(step: &Passed) -> String {
    let parts: Vec<&str> = step.path.rsplit('/').collect();
    let kind = ["pods", "deployerclaims"].into_iter().find(|kind| parts.contains(kind));
    let status = if parts.first() == Some(&"status") {
        "/status"
    } else {
        ""
    };
    format!("{} {}{status}", step.method, kind.unwrap_or(&step.path))
}
