//! A leader whose writes, and the answers to its reads, are under way while another leads.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use anyhow::ensure;
use deployer_guard_testkit::{Stage, until};
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams};
use tokio::time::{Instant, sleep, sleep_until};

use crate::proxy::{Hold, Passed, Proxy};
use crate::scene::{SOON, run};
use crate::site::{PROGRAM, SITE, Site};
use crate::witness::Witness;

/// Two of them are less than a guard's patience with a read, which would not act on one that it has given up.
const LEASE: Duration = Duration::from_secs(3);
/// What the first leader was about to do, or about to see, for each.
const CONFIGS: [&str; 4] = ["condemned", "deleted", "freed", "read"];

/// The leader is stopped for two leases when it has read and decided. For three keys its write is under way, and is delivered after
/// another guard and the webhook have given the key to somebody else; for the fourth it has yet to see what it read.
#[test]
fn what_a_leader_of_before_wrote_or_read_does_no_harm_when_it_arrives() {
    run(async {
        let builder = Stage::builder(PROGRAM).replicas(1);
        let builder = builder.guard_argument("--lease-duration").guard_argument("3s");
        let mut site = Site::before(builder).await?;
        let proxy = Proxy::start(site.as_guard().await?)?;
        site.guard("guard-0", Some(&proxy.url())).await?;
        site.begin().await?;
        let witness = Witness::start(&site.stage.plane, SITE).await?;
        caught(&site, &proxy).await?;
        site.stage.guards[0].process().pause()?;
        let paused = Instant::now();
        site.guard("guard-1", None).await?;
        given_to_others(&site).await?;
        sleep_until(paused + LEASE * 2).await;
        let before = state(&site).await?;

        proxy.release();
        let held = until("what was held to be answered", SOON, async || {
            let held = proxy.held();
            ensure!(held.iter().all(|call| call.code.is_some()), "{held:?}");
            Ok(held)
        })
        .await?;
        let refused = writes(&held);
        ensure!(
            refused.len() >= 3 && refused.iter().all(|call| call.code == Some(409)),
            "{held:?}"
        );
        let so_far = proxy.passed().len();
        site.stage.guards[0].process().resume()?;
        eprintln!("stopped for {:.1?}", paused.elapsed());
        let noticed = |line: &serde_json::Value| line["message"] == "this guard leads no more";
        site.stage.guards[0]
            .wait_log("that it leads no more", SOON, noticed)
            .await?;
        sleep(Duration::from_secs(3)).await;
        let after = state(&site).await?;
        ensure!(after == before, "{before:#?} became {after:#?}");
        // It confirms what old events of its watches show as pending: that takes no leader, and comes too late here.
        let harmless = |call: &Passed| {
            let condemns = call.body.contains("\"condemned\":");
            call.method == "PUT" && call.code == Some(409) && !condemns
        };
        let later = writes(&proxy.passed()[so_far..]);
        ensure!(
            later.iter().all(harmless),
            "it acted on what it had read long ago: {later:?}"
        );
        site.until_no_violation(1).await?;

        site.stage.guards[1].process().kill()?;
        works_as_before(&site).await?;
        let seen = witness.finish().await?;
        seen.never_two_but_for(|name| name.ends_with("-second") || name.ends_with("-fourth"))?;
        seen.no_claim_of_an_active_pod_was_freed()
    });
}

/// Makes leftovers, and waits until the first guard's writes for three keys and the answer to a read for the fourth are held.
async fn caught(site: &Site, proxy: &Proxy) -> anyhow::Result<()> {
    let mut claims = BTreeMap::new();
    for config in CONFIGS {
        site.admit(config, &format!("{config}-first")).await?;
        claims.insert(config, site.claim(config).await?.name_any());
    }
    site.until_leads(0).await?;
    let held_claims: HashSet<String> = ["condemned", "freed"].map(|config| claims[config].clone()).into();
    proxy.hold(move |method, path| {
        let name = path.rsplit('/').next().unwrap_or_default();
        match method {
            "PUT" if path.contains("/deployerclaims/") && held_claims.contains(name) => Hold::Request,
            "DELETE" if path.ends_with("/pods/deleted-second") => Hold::Request,
            "GET" if path.ends_with("/pods/read-second") => Hold::Answer,
            _ => Hold::No,
        }
    });
    for config in ["condemned", "deleted", "read"] {
        site.bypass(config, &format!("{config}-second")).await?;
    }
    site.phase("freed-first", "Succeeded").await?;
    until("all to be under way", SOON, async || {
        let held = proxy.held();
        let paths: HashSet<&str> = held.iter().map(|call| call.path.as_str()).collect();
        ensure!(paths.len() == 4, "{paths:?}");
        Ok(())
    })
    .await
    .map_err(|error| site.blame(error))
}

/// Each key gets another holder while the first guard stands still: two by adoption, two through the webhook.
async fn given_to_others(site: &Site) -> anyhow::Result<()> {
    for config in ["condemned", "deleted", "read"] {
        site.phase(&format!("{config}-first"), "Succeeded").await?;
    }
    site.until_leads(1).await?;
    until("the condemned pod to be gone", SOON, async || {
        ensure!(site.pods().get_opt("deleted-second").await?.is_none(), "it is there");
        Ok(())
    })
    .await?;
    // Another of the same name.
    site.admit("deleted", "deleted-second").await?;
    site.admit("freed", "freed-second").await?;
    for config in CONFIGS {
        let pod = site.until_settled(config).await?;
        ensure!(pod.name_any() == format!("{config}-second"));
    }
    Ok(())
}

/// The first guard leads again, and does what a guard does.
async fn works_as_before(site: &Site) -> anyhow::Result<()> {
    site.until_leads(0).await?;
    let at_once = DeleteParams::default().grace_period(0);
    site.pods().delete("read-second", &at_once).await?;
    site.admit("read", "read-third").await?;
    site.bypass("read", "read-fourth").await?;
    let left = site.until_settled("read").await?;
    ensure!(left.name_any() == "read-third");
    Ok(())
}

/// Names and uids of all pods, and what each claim says.
async fn state(site: &Site) -> anyhow::Result<(BTreeMap<String, Option<String>>, Vec<String>)> {
    let pods = site.pods().list(&ListParams::default()).await?.items;
    let pods = pods.into_iter().map(|pod| (pod.name_any(), pod.uid())).collect();
    let mut claims = Vec::new();
    for config in CONFIGS {
        claims.push(format!("{:?}", site.claim(config).await?.spec));
    }
    Ok((pods, claims))
}

/// Deletes, and writes of what claims decide: neither Events nor statuses.
fn writes(passed: &[Passed]) -> Vec<Passed> {
    let in_namespace = format!("/namespaces/{SITE}/");
    let is_write = |call: &&Passed| {
        let aside = ["/events", "/status"].iter().any(|end| call.path.ends_with(end));
        call.method != "GET" && call.path.contains(&in_namespace) && !aside
    };
    passed.iter().filter(is_write).cloned().collect()
}
