//! A leader that is cut off from its API server.

use std::time::Duration;

use anyhow::ensure;
use deployer_guard_testkit::{Balancer, Stage};
use kube::ResourceExt;
use tokio::time::{Instant, sleep};

use crate::scene::run;
use crate::site::{PROGRAM, SITE, Site};
use crate::witness::Witness;

const LEASE: Duration = Duration::from_secs(4);
/// Between two leftovers.
const PAUSE: Duration = Duration::from_millis(300);

/// Three times the leader's connections stand still for two leases and more, while deployers come in past the webhook and holders end.
#[test]
fn leftovers_that_come_while_the_leader_is_cut_off_are_dealt_with_and_no_holder_is_touched() {
    run(async {
        let builder = Stage::builder(PROGRAM).replicas(1);
        let builder = builder.guard_argument("--lease-duration").guard_argument("4s");
        let mut site = Site::before(builder).await?;
        let api_server = site.stage.plane.url(0).trim_start_matches("https://").parse()?;
        let mut between = Vec::new();
        for name in ["guard-0", "guard-1"] {
            let balancer = Balancer::start([api_server]).await?;
            let url = format!("https://{}", balancer.address());
            site.guard(name, Some(&url)).await?;
            between.push(balancer);
        }
        site.begin().await?;
        let witness = Witness::start(&site.stage.plane, SITE).await?;
        let mut made = Vec::new();
        for cut in 0..3 {
            let leader = site.stage.wait_leader().await?;
            between[leader].hold();
            let begun = Instant::now();
            for i in 0.. {
                let config = format!("cut{cut}-{i}");
                made.push((config.clone(), leftovers(&site, &config, i % 3).await?));
                if begun.elapsed() > LEASE * 2 {
                    break;
                }
                sleep(PAUSE).await;
            }
            site.until_leads(1 - leader).await?;
            between[leader].release();
        }
        eprintln!("{} keys", made.len());
        for (config, wanted) in &made {
            let pod = site.until_at_rest(config).await?.map(|pod| pod.name_any());
            ensure!(wanted.contains(&pod), "{pod:?} holds {config}, not one of {wanted:?}");
        }
        let leader = site.stage.wait_leader().await?;
        site.until_no_violation(leader).await?;
        let mut lost = 0;
        for guard in &site.stage.guards {
            let lines = guard.log_lines()?;
            lost += lines.iter().filter(|line| line["message"] == "leading no more").count();
        }
        ensure!(lost >= 3, "leadership was lost {lost} times");
        let seen = witness.finish().await?;
        seen.never_two_but_for(|name| name.ends_with("-past"))?;
        seen.no_claim_of_an_active_pod_was_freed()
    });
}

/// Makes what a guard has to deal with; who may be left at last.
async fn leftovers(site: &Site, config: &str, kind: usize) -> anyhow::Result<Vec<Option<String>>> {
    let name = |part: &str| format!("{config}-{part}");
    let (first, past, next) = (name("first"), name("past"), name("next"));
    site.admit(config, &first).await?;
    Ok(match kind {
        // A duplicate beside a holder.
        0 => {
            site.bypass(config, &past).await?;
            vec![Some(first)]
        }
        // A holder that ends, and one that follows it by itself.
        1 => {
            site.phase(&first, "Succeeded").await?;
            site.admit(config, &next).await?;
            vec![Some(next)]
        }
        // A duplicate beside a holder that ends. Whoever comes next is refused while the duplicate is there. That is adopted, or it
        // was condemned when the holder was active.
        _ => {
            site.bypass(config, &past).await?;
            site.phase(&first, "Failed").await?;
            let answer = site.create(config, &next).await?;
            if answer.is_created() {
                vec![Some(next)]
            } else {
                ensure!(answer.message().contains(&past), "{} {}", answer.code, answer.message());
                vec![Some(past), None]
            }
        }
    })
}
