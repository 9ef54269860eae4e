//! All records of many refusals tell the same story, whatever failed meanwhile.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, ensure};
use deployer_guard_testkit::objects::{create_pod, make_namespace};
use deployer_guard_testkit::{Program, Replica, Stage, until};
use futures::future::try_join_all;
use k8s_openapi::api::events::v1::Event;
use kube::api::{Api, ListParams};
use serde_json::Value;

use super::crowd::{CONFIGS, Crowd, Seen};
use super::scrape::Scrape;
use crate::common::{run, two_by_two};
use crate::creators::{BY_LABEL, claims, deployer, settled};

const NAMESPACE: &str = "sums";
const USERS: [&str; 3] = ["alice", "bob", "carol"];
const VERDICTS: &str = "by-label.policies.deployer-guard.io/";
/// How long records may take: 25 Events a second, and a status write that is tried again.
const SETTLED: Duration = Duration::from_mins(2);
/// Refusals that were seen when the first sums are drawn, and at the end.
const FIRST: usize = 500;
const ALL: usize = 1000;

/// What adds up, and how closely:
/// - clients and decisions: each refusal that a client saw was decided, and no decision was made that no client can account for.
///   In doubt are creates whose connection broke on the way, at most one decision each;
/// - metrics and decision log: equal for a replica that lives. The killed one is scraped just before: what its log has more was
///   decided between the scrape and the kill;
/// - audit log: an annotation for each refusal that a client saw, for each user; more only where a client lost its answer;
/// - Events: each refusal that a living replica made is published, failed or dropped, and what is published is in the store.
///   A failed one may be in the store too: its answer was lost. A killed replica's queue is lost;
/// - claims: each refusal that a living replica made is counted there or counted as dropped, once, also where the answer to a
///   write was lost. A killed replica loses what it had not written, which is less than what it decided since all was
///   written for the last time.
#[test]
fn after_1000_refusals_with_a_replica_killed_and_an_api_server_restarted_the_sums_agree() {
    run(async {
        let stage = two_by_two().start().await?;
        stage.enforce(BY_LABEL).await?;
        let crowd = begin(&stage).await?;
        let [doomed, lives] = &stage.replicas[..] else {
            anyhow::bail!("not two replicas")
        };

        // The first half: an API server is told to end, as for an upgrade, is killed when it takes no more requests, and comes back.
        let restart = async {
            crowd.watch(FIRST / 3).await;
            stage.plane.process(Program::ApiServer(1)).terminate()?;
            let client = stage.plane.client(1);
            until("the API server to take no more requests", SETTLED, async || {
                let answer = client.apiserver_version().await;
                ensure!(answer.is_err(), "it answers");
                Ok(())
            })
            .await?;
            stage.plane.restart(Program::ApiServer(1)).await
        };
        let (sent, restarted) = tokio::join!(crowd.until_refused(FIRST), restart);
        restarted?;
        sent?;
        let seen = crowd.seen();
        let both = [settled_records(doomed).await?, settled_records(lives).await?];
        let decided = both.iter().map(|records| records.logged).sum::<usize>();
        println!("first half: {}; {decided} decided", seen.summary());
        assert_decided(&seen, decided);
        assert_audited(&stage, &seen)?;
        let dropped = dropped(&both)?;
        let counted = until("the claims to count each refusal", SETTLED, async || {
            let counted = in_claims(&stage).await?;
            ensure!(
                counted + dropped == decided,
                "{counted} are counted and {dropped} dropped of {decided}"
            );
            Ok(counted)
        })
        .await?;
        let published = in_events(&stage).await?;
        for (replica, records) in ["webhook-0", "webhook-1"].iter().zip(&both) {
            assert_published(published.get(*replica).copied().unwrap_or_default(), &records.scrape);
        }
        println!("first half: {counted} in claims, {dropped} dropped, Events {published:?}");

        // The second half: a replica is killed.
        let kill = async {
            crowd.watch(FIRST + (ALL - FIRST) / 3).await;
            let scrape = Scrape::of(doomed).await?;
            doomed.webhook.process().kill()?;
            anyhow::Ok(scrape)
        };
        let (sent, dying) = tokio::join!(crowd.until_refused(ALL), kill);
        let dying = dying?;
        sent?;
        let seen = crowd.seen();
        let lives = settled_records(lives).await?;
        let of_doomed = logged(doomed)?;
        let since = of_doomed - both[0].logged;
        println!(
            "second half: {}; the killed replica had decided {of_doomed}, {since} of them since the first sums and {} since its \
             last scrape; the other one {}",
            seen.summary(),
            of_doomed as u64 - dying.refused(),
            lives.logged
        );
        assert!(dying.refused() <= of_doomed as u64 && dying.refused() >= both[0].scrape.refused());
        assert_decided(&seen, of_doomed + lives.logged);
        assert_audited(&stage, &seen)?;

        let (dropped_by_it, dropped_by_doomed) = (count(lives.scrape.dropped()?), count(dying.dropped()?));
        let written = until(
            "the claims to count what the living replica refused",
            SETTLED,
            async || {
                let counted = in_claims(&stage).await?;
                let least = lives.logged - dropped_by_it + both[0].logged - dropped_by_doomed;
                ensure!(counted >= least, "{counted} of at least {least}");
                Ok(counted)
            },
        )
        .await?;
        let most = lives.logged - dropped_by_it + of_doomed - dropped_by_doomed;
        ensure!(written <= most, "{written} of at most {most}");

        let published = in_events(&stage).await?;
        assert_published(published["webhook-1"], &lives.scrape);
        let by_doomed = published["webhook-0"];
        assert!(by_doomed >= count(dying.events("published")));
        assert!(by_doomed <= of_doomed - count(dying.events("dropped")));
        println!("second half: {written} in claims (at most {most}), Events {published:?}");
        Ok(())
    });
}

/// Fifty configs, each with an active deployer, and those who want another one.
async fn begin(stage: &Stage) -> anyhow::Result<Crowd> {
    let client = stage.plane.client(0);
    make_namespace(&client, NAMESPACE, &[], false).await?;
    let crowd = Crowd::gather(stage, NAMESPACE, &USERS).await?;
    try_join_all((0..CONFIGS).map(async |i| {
        let config = format!("cfg{i}");
        let holder = deployer(&config, "first", &format!("{config}-holder"));
        let answer = create_pod(&client, NAMESPACE, &holder).await?;
        ensure!(answer.is_created(), "{}", answer.message());
        settled(&client, NAMESPACE, &config, SETTLED).await
    }))
    .await?;
    Ok(crowd)
}

/// What a living replica has on record when nothing waits any more.
struct Kept {
    scrape: Scrape,
    logged: usize,
}

/// Waits until a replica has nothing in its queue of Events; then metrics and decision log must agree.
async fn settled_records(replica: &Replica) -> anyhow::Result<Kept> {
    let kept = until("each refusal to be an Event or counted", SETTLED, async || {
        let logged = logged(replica)?;
        let scrape = Scrape::of(replica).await?;
        let settled: u64 = ["published", "failed", "dropped"]
            .iter()
            .map(|result| scrape.events(result))
            .sum();
        ensure!(
            settled == scrape.refused(),
            "{settled} of {} refusals",
            scrape.refused()
        );
        Ok(Kept { scrape, logged })
    })
    .await?;
    assert_eq!(kept.scrape.refused(), kept.logged as u64, "metrics and decision log");
    Ok(kept)
}

/// The refusals in a replica's decision log.
fn logged(replica: &Replica) -> anyhow::Result<usize> {
    let lines = replica.webhook.log_lines()?.into_iter();
    Ok(lines
        .filter(|line| line["target"] == "deployer_guard::decision" && line["verdict"] == "Refused")
        .count())
}

fn dropped(records: &[Kept]) -> anyhow::Result<usize> {
    let each: Vec<_> = records.iter().map(|records| records.scrape.dropped()).collect();
    each.into_iter().sum::<anyhow::Result<u64>>().map(count)
}

fn count(count: u64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}

fn assert_decided(seen: &Seen, decided: usize) {
    assert!(decided >= seen.refusals(), "{decided} decided, {}", seen.summary());
    assert!(
        decided <= seen.refusals() + seen.in_doubt,
        "{decided} decided, {}",
        seen.summary()
    );
    for (pod, texts) in &seen.texts {
        assert_eq!(texts.len(), 1, "{pod} was told {texts:#?}");
    }
}

/// The Events in the store, with the counts of series, by who reports them.
async fn in_events(stage: &Stage) -> anyhow::Result<BTreeMap<String, usize>> {
    let api: Api<Event> = Api::namespaced(stage.plane.client(0), NAMESPACE);
    let mut sums: BTreeMap<String, usize> = BTreeMap::new();
    for event in api.list(&ListParams::default()).await? {
        let count = event.series.as_ref().map_or(1, |series| series.count);
        let instance = event.reporting_instance.context("an instance")?;
        *sums.entry(instance).or_default() += usize::try_from(count)?;
    }
    Ok(sums)
}

fn assert_published(in_store: usize, scrape: &Scrape) {
    let (published, failed) = (count(scrape.events("published")), count(scrape.events("failed")));
    assert!(
        (published..=published + failed).contains(&in_store),
        "{in_store} in the store, {published} published, {failed} failed"
    );
}

async fn in_claims(stage: &Stage) -> anyhow::Result<usize> {
    let claims = claims(&stage.plane.client(0), NAMESPACE).await?;
    let counts = claims
        .values()
        .map(|claim| Some(claim.status.as_ref()?.rejections.as_ref()?.count));
    Ok(usize::try_from(counts.flatten().sum::<i64>())?)
}

/// Each refusal that a client saw is in the audit log with who asked; the annotations are few, short and equal for equal causes.
fn assert_audited(stage: &Stage, seen: &Seen) -> anyhow::Result<()> {
    let mut by_user: BTreeMap<String, usize> = BTreeMap::new();
    let mut by_pod: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
    for event in stage.plane.audit_events()? {
        let ours = annotations(&event);
        if ours.get("verdict").map(String::as_str) != Some("Refused: DeployerActive") {
            continue;
        }
        let bytes: usize = ours
            .iter()
            .map(|(key, text)| VERDICTS.len() + key.len() + text.len())
            .sum();
        assert!(ours.len() <= 4 && bytes < 1024, "{ours:?}");
        let user = event["user"]["username"].as_str().context("a user")?;
        *by_user.entry(user.to_owned()).or_default() += 1;
        let pod = event["objectRef"]["name"].as_str().context("a pod")?;
        let first = by_pod.entry(pod.to_owned()).or_insert_with(|| ours.clone());
        assert_eq!(*first, ours, "{pod}");
    }
    assert_eq!(by_user.len(), USERS.len());
    for (user, refused) in &seen.refused {
        assert!(by_user[user] >= *refused, "{user}: {by_user:?}, {}", seen.summary());
    }
    let audited: usize = by_user.values().sum();
    assert!(
        audited <= seen.refusals() + seen.in_doubt,
        "{by_user:?}, {}",
        seen.summary()
    );
    println!("audited {by_user:?}");
    Ok(())
}

/// Our annotations of an audit event, without their prefix.
fn annotations(event: &Value) -> BTreeMap<String, String> {
    let annotations = event["annotations"].as_object().into_iter().flatten();
    annotations
        .filter_map(|(key, value)| Some((key.strip_prefix(VERDICTS)?.to_owned(), value.as_str()?.to_owned())))
        .collect()
}
