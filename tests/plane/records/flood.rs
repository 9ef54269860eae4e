//! A hundred refusals a second: what it costs, and what it must not.
//!
//! `DEPLOYER_GUARD_FLOOD_SECONDS` says for how long; 20 s if it does not.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, ensure};
use deployer_guard_testkit::objects::{Answer, create_pod, make_namespace};
use deployer_guard_testkit::{ControlPlane, Stage, until};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Namespace;
use kube::Client;
use kube::api::{Api, DeleteParams};
use serde_json::{Value, json};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use super::scrape::Scrape;
use crate::common::{PROGRAM, run, two_by_two};
use crate::creators::{BY_LABEL, cause, deployer, settled};
use crate::own_webhook::{OwnWebhook, configure};

/// Configs that are fought over.
const CONFIGS: usize = 5;
/// Creates a second.
const RATE: u32 = 100;
/// Creates under way at a time, if the machine does not keep up.
const AT_A_TIME: usize = 64;
/// Who the replicas are to the API server.
const REPLICA: &str = "system:serviceaccount:deployer-guard:deployer-guard";
/// What a replica may grow by once it has been in the flood for a while, in bytes.
const GROWTH: u64 = 16 << 20;
/// How long a claim takes to be confirmed, or a namespace to go.
const SOON: Duration = Duration::from_mins(1);

fn duration() -> Duration {
    let seconds = std::env::var("DEPLOYER_GUARD_FLOOD_SECONDS").ok();
    Duration::from_secs(seconds.and_then(|seconds| seconds.parse().ok()).unwrap_or(20))
}

/// Creates at every API server, each of another name, and what became of them.
struct Flood {
    task: JoinHandle<()>,
    told: Arc<Mutex<Told>>,
}

#[derive(Clone, Debug, Default)]
struct Told {
    /// How long refusals took.
    refused: Vec<Duration>,
    others: BTreeMap<String, usize>,
}

impl Told {
    fn take(&mut self, answer: anyhow::Result<Answer>, took: Duration) {
        match answer {
            Ok(answer) if cause(&answer) == "DeployerActive" => self.refused.push(took),
            Ok(answer) => {
                let what = format!("{} {}", answer.code, cause(&answer));
                *self.others.entry(what).or_default() += 1;
            }
            Err(error) => *self.others.entry(format!("{error:#}")).or_default() += 1,
        }
    }

    fn quantile(&mut self, of_100: usize) -> Duration {
        self.refused.sort();
        let at = self.refused.len() * of_100 / 100;
        self.refused.get(at).copied().unwrap_or_default()
    }
}

impl Flood {
    fn begin(clients: Vec<Client>, namespace: &'static str) -> Self {
        let told = Arc::new(Mutex::new(Told::default()));
        let taken = Arc::clone(&told);
        let task = tokio::spawn(async move {
            let mut ticks = interval(Duration::from_secs(1) / RATE);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
            let at_work = Arc::new(Semaphore::new(AT_A_TIME));
            for number in 0_usize.. {
                ticks.tick().await;
                let Ok(permit) = Arc::clone(&at_work).acquire_owned().await else {
                    return;
                };
                let (client, told) = (clients[number % clients.len()].clone(), Arc::clone(&taken));
                tokio::spawn(async move {
                    let config = format!("cfg{}", number % CONFIGS);
                    let pod = deployer(&config, "late", &format!("{config}-{number}"));
                    let sent = Instant::now();
                    let answer = create_pod(&client, namespace, &pod).await;
                    let mut told = told.lock().unwrap_or_else(PoisonError::into_inner);
                    told.take(answer, sent.elapsed());
                    drop(permit);
                });
            }
        });
        Self { task, told }
    }

    /// What came back since the last time this was asked.
    fn told(&self) -> Told {
        std::mem::take(&mut *self.told.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The configs, each held.
async fn begin(stage: &Stage, namespace: &'static str, accounts: bool) -> anyhow::Result<()> {
    stage.enforce(BY_LABEL).await?;
    let client = stage.plane.client(0);
    make_namespace(&client, namespace, &[], accounts).await?;
    for i in 0..CONFIGS {
        let config = format!("cfg{i}");
        let answer = create_pod(
            &client,
            namespace,
            &deployer(&config, "first", &format!("{config}-holder")),
        )
        .await?;
        ensure!(answer.is_created(), "{}", answer.message());
        settled(&client, namespace, &config, SOON).await?;
    }
    Ok(())
}

/// The resident memory of each replica, in bytes.
async fn resident(stage: &Stage) -> anyhow::Result<Vec<u64>> {
    let mut all = Vec::new();
    for replica in &stage.replicas {
        all.push(Scrape::of(replica).await?.value("process_resident_memory_bytes")?);
    }
    Ok(all)
}

fn mebibytes(all: &[u64]) -> Vec<u64> {
    all.iter().map(|bytes| bytes >> 20).collect()
}

fn assert_flat(before: &[u64], after: &[u64]) {
    for (before, after) in before.iter().zip(after) {
        assert!(*after <= before + GROWTH, "from {before} to {after} bytes");
    }
}

/// A request of a replica, as an API server's audit log has it.
#[derive(Clone, Debug)]
struct Asked {
    at: Timestamp,
    resource: String,
    name: String,
    code: u64,
}

/// What the replica that speaks to API server `i` asked of it in a namespace.
fn asked(plane: &ControlPlane, i: usize, namespace: &str) -> anyhow::Result<Vec<Asked>> {
    let text = std::fs::read_to_string(plane.audit_log(i).context("no audit log")?)?;
    let events = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    Ok(events
        .filter(|event| event["user"]["username"] == REPLICA && event["objectRef"]["namespace"] == namespace)
        .filter_map(|event| {
            let text = |pointer: &str| {
                event
                    .pointer(pointer)
                    .and_then(Value::as_str)
                    .unwrap_or_default()
                    .to_owned()
            };
            let subresource = text("/objectRef/subresource");
            Some(Asked {
                at: text("/requestReceivedTimestamp").parse().ok()?,
                resource: format!("{}/{subresource}", text("/objectRef/resource")),
                name: text("/objectRef/name"),
                code: event["responseStatus"]["code"].as_u64().unwrap_or_default(),
            })
        })
        .collect())
}

/// Whole seconds from the first to the last, rounded up.
fn span(asked: &[&Asked]) -> u64 {
    let first = asked.iter().map(|asked| asked.at).min();
    let last = asked.iter().map(|asked| asked.at).max();
    let span = first
        .zip(last)
        .map_or(0, |(first, last)| last.as_millisecond() - first.as_millisecond());
    u64::try_from(span).unwrap_or_default() / 1000 + 1
}

/// At most one status write a second for each claim, and 25 Events a second after a burst of 64.
fn assert_bounded(asked: &[Asked]) -> (usize, usize) {
    let mut statuses: BTreeMap<&str, Vec<&Asked>> = BTreeMap::new();
    for write in asked.iter().filter(|asked| asked.resource == "deployerclaims/status") {
        statuses.entry(&write.name).or_default().push(write);
    }
    for (claim, writes) in &statuses {
        let (count, seconds) = (writes.len() as u64, span(writes));
        assert!(count <= seconds + 1, "{claim}: {count} writes in {seconds} s");
    }
    let events: Vec<&Asked> = asked.iter().filter(|asked| asked.resource == "events/").collect();
    let seconds = span(&events);
    assert!(
        events.len() as u64 <= 64 + 25 * (seconds + 1),
        "{} in {seconds} s",
        events.len()
    );
    (statuses.values().map(Vec::len).sum(), events.len())
}

/// In the middle third no write of a record is answered: a webhook of the test holds them.
#[test]
fn a_flood_of_refusals_is_bounded_in_memory_and_writes_and_waits_for_no_record() {
    run(async {
        let stage = two_by_two().start().await?;
        begin(&stage, "flood", false).await?;
        let (blocked, held) = (watch::Sender::new(false), Arc::new(AtomicUsize::new(0)));
        let (gate, counted) = (blocked.clone(), Arc::clone(&held));
        let webhook = OwnWebhook::start(&stage.pki, stage.plane.directory(), move |_| {
            let (mut gate, counted) = (gate.subscribe(), Arc::clone(&counted));
            Box::pin(async move {
                counted.fetch_add(usize::from(*gate.borrow()), Ordering::Relaxed);
                gate.wait_for(|blocked| !blocked).await?;
                Ok(true)
            })
        })?;
        configure(
            &stage.plane,
            &stage.pki,
            webhook.address,
            "records",
            &writes_of_records(),
        )
        .await?;

        let third = duration() / 3;
        let before = resident(&stage).await?;
        let flood = Flood::begin(stage.plane.clients(), "flood");
        let mut phases = Vec::new();
        for block in [false, true, false] {
            blocked.send_replace(block);
            sleep(third).await;
            phases.push((block, flood.told(), resident(&stage).await?));
        }
        drop(flood);
        ensure!(
            webhook.calls() > 0 && held.load(Ordering::Relaxed) > 0,
            "no record was held"
        );
        println!("resident before: {:?} MiB", mebibytes(&before));
        for (block, told, resident) in &mut phases {
            println!(
                "records held {block}: {} refused, p50 {:.1?}, p99 {:.1?}, else {:?}, resident {:?} MiB",
                told.refused.len(),
                told.quantile(50),
                told.quantile(99),
                told.others,
                mebibytes(resident)
            );
            // If answers waited for records, all of the middle third would be given up. One or the other may be on a busy machine.
            let others: usize = told.others.values().sum();
            ensure!(told.refused.len() > 10 * others, "{:?}", told.others);
        }
        assert_flat(&phases[0].2, &phases[2].2);
        for (i, replica) in stage.replicas.iter().enumerate() {
            let (statuses, events) = assert_bounded(&asked(&stage.plane, i, "flood")?);
            let scrape = Scrape::of(replica).await?;
            println!(
                "replica {i}: {} refusals, {statuses} writes of {CONFIGS} statuses, {events} of Events; Events published {}, failed \
                 {}, dropped {}",
                scrape.refused(),
                scrape.events("published"),
                scrape.events("failed"),
                scrape.events("dropped")
            );
        }
        Ok(())
    });
}

/// Writes of Events and of claims' statuses in namespace `flood`.
fn writes_of_records() -> Value {
    let rule = |group: &str, resource: &str| json!({ "apiGroups": [group], "apiVersions": ["*"], "operations": ["CREATE", "UPDATE"], "resources": [resource] });
    json!({
        "failurePolicy": "Ignore",
        "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": "flood" } },
        "rules": [rule("events.k8s.io", "events"), rule("deployer-guard.io", "deployerclaims/status")],
    })
}

/// Requests to a namespace after its end, for each replica: what was under way, and a look at each claim.
const AFTERWARDS: usize = CONFIGS + 4;
/// Events that a replica tries in vain in a namespace that ends: one, and one more each 30 s.
const IN_VAIN: usize = 4;

#[test]
fn a_namespace_that_is_deleted_in_the_middle_of_a_flood_is_left_alone() {
    run(async {
        let plane = ControlPlane::builder()
            .api_servers(2)
            .audit_log(true)
            .controller_manager(true);
        let stage = Stage::builder(PROGRAM).plane(plane).start().await?;
        begin(&stage, "ends", true).await?;
        let flood = Flood::begin(stage.plane.clients(), "ends");
        sleep(duration() / 2).await;
        let (before, told) = (resident(&stage).await?, flood.told());
        let namespaces: Api<Namespace> = Api::all(stage.plane.client(0));
        namespaces.delete("ends", &DeleteParams::default()).await?;
        let marked = Timestamp::now();
        until("the namespace to be gone", SOON, async || {
            ensure!(namespaces.get_opt("ends").await?.is_none(), "it is there");
            Ok(())
        })
        .await?;
        let gone = Timestamp::now();
        // The flood goes on; what a storm would take is here to be seen.
        sleep(duration() / 2).await;
        let after = resident(&stage).await?;
        let late = flood.told();
        drop(flood);
        println!(
            "{} refused before, then {} and {:?}; gone after {:.1?}; resident {:?}, then {:?} MiB",
            told.refused.len(),
            late.refused.len(),
            late.others,
            gone.duration_since(marked),
            mebibytes(&before),
            mebibytes(&after)
        );
        ensure!(!told.refused.is_empty(), "there was no flood: {:?}", told.others);
        for i in 0..stage.replicas.len() {
            let asked = asked(&stage.plane, i, "ends")?;
            let afterwards: Vec<_> = asked.iter().filter(|asked| asked.at > gone).collect();
            let in_vain = asked
                .iter()
                .filter(|asked| asked.resource == "events/" && asked.code >= 400);
            let in_vain = in_vain.count();
            println!(
                "replica {i}: {} requests afterwards, {in_vain} Events in vain",
                afterwards.len()
            );
            assert!(afterwards.len() <= AFTERWARDS, "{afterwards:#?}");
            assert!(in_vain <= IN_VAIN, "{in_vain} Events in vain");
        }
        assert_flat(&before, &after);
        Ok(())
    });
}
