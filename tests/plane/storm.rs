//! Sixteen creates for one config at the same moment, again and again.
//!
//! Each storm has a stage of its own, and one storm rages at a time.

mod calls;

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, ensure};
use deployer_guard_testkit::objects::{Answer, create_pod, make_namespace, set_phase};
use deployer_guard_testkit::{Churn, Stage, until};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, ListParams};
use kube::{Client, ResourceExt};
use serde_json::Value;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep};

use self::calls::Calls;
use crate::common::{run, two_by_two};
use crate::creators::{
    BY_LABEL, CONFIG, Creators, GIVEN_UP, LATE, assert_never_two, cause, claims, deployer, deployer_of_any_name,
    settled, unrelated, with_short_window, witness,
};

/// Creates in one round.
const CREATES: usize = 16;
/// Rounds for one config: the first makes the claim, the others find it. Two of four winners stay as finished pods, so
/// that their names are taken.
const ROUNDS_PER_CONFIG: usize = 4;
/// How long a paused replica is paused.
const PAUSE: Duration = Duration::from_millis(2500);

static ONE_AT_A_TIME: Mutex<()> = Mutex::const_new(());

#[test]
fn in_each_of_200_rounds_of_16_creates_exactly_one_is_admitted_and_never_two_are_active() {
    run(async {
        let _turn = ONE_AT_A_TIME.lock().await;
        let stage = two_by_two().start().await?;
        stage.enforce(BY_LABEL).await?;
        let mut storm = Storm::begin(&stage, "storm").await?;
        let watch = witness(&stage.plane, "storm").await?;
        for round in 0..200 {
            storm.round_with_one_winner(round).await?;
        }
        storm.report("quiet");
        assert_never_two(&watch.finish().await?);
        Ok(())
    });
}

#[test]
fn unrelated_pods_that_come_and_go_all_the_time_change_nothing_of_it() {
    run(async {
        let _turn = ONE_AT_A_TIME.lock().await;
        let stage = two_by_two().start().await?;
        stage.enforce(BY_LABEL).await?;
        let mut storm = Storm::begin(&stage, "churn").await?;
        let watch = witness(&stage.plane, "churn").await?;
        let churn = Churn::begin(stage.plane.clients(), "churn");
        for round in 0..60 {
            storm.round_with_one_winner(round).await?;
        }
        let rate = churn.end();
        storm.report(&format!("{rate:.0} unrelated pods a second"));
        assert!(rate > 0.0, "no unrelated pods came and went");
        assert_never_two(&watch.finish().await?);
        Ok(())
    });
}

/// What may be seen while replicas die and stall, and why:
/// - at most one 201 in a round, and never two active: no fault may change that;
/// - no 201 at all: the create that got the claim may be the one whose answer was lost, and it holds the key until it is
///   given up, W + 10 s after it was first seen;
/// - 500 from the API server (it could not call the webhook, or waited in vain), only where that API server had a connection to a
///   replica that was killed or paused in that round: each call on such a connection may be hit;
/// - nothing else but 403 and 409.
#[test]
fn a_killed_replica_and_a_paused_one_never_let_two_in_and_fail_only_the_calls_that_had_reached_them() {
    run(async {
        let _turn = ONE_AT_A_TIME.lock().await;
        let stage = with_short_window().start().await?;
        let policy = BY_LABEL.replace("timeoutSeconds: 5", "timeoutSeconds: 2");
        assert_ne!(policy, BY_LABEL);
        stage.enforce(&policy).await?;
        let mut storm = Storm::begin(&stage, "faults").await?;
        let watch = witness(&stage.plane, "faults").await?;
        for round in 0..40 {
            let faults = match round {
                39 => vec![Fault::Kill(0), Fault::Pause(1)],
                _ if round % 2 == 0 => vec![],
                _ => vec![[Fault::Kill(0), Fault::Pause(1), Fault::Kill(1), Fault::Pause(0)][round / 2 % 4]],
            };
            storm.round_with(round, &faults).await?;
        }
        assert!(storm.codes.contains_key(&500), "no fault was felt: {:?}", storm.codes);
        storm.wait_for_lost_creates().await?;
        for round in 0..40 {
            if round % ROUNDS_PER_CONFIG == 0 {
                storm.round_with_one_winner(round).await?;
            }
        }
        storm.report("replicas killed and paused");
        assert_never_two(&watch.finish().await?);
        Ok(())
    });
}

/// What happens to a replica in the middle of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// Killed (SIGKILL), and started again after the round.
    Kill(usize),
    /// Paused (SIGSTOP) for longer than the deadline.
    Pause(usize),
}

impl Fault {
    fn replica(self) -> usize {
        match self {
            Self::Kill(replica) | Self::Pause(replica) => replica,
        }
    }
}

/// Rounds of creates in one namespace, and what came of them.
struct Storm<'a> {
    stage: &'a Stage,
    creators: Creators,
    namespace: &'static str,
    client: Client,
    begun: Instant,
    rounds: usize,
    codes: BTreeMap<u16, usize>,
    causes: BTreeMap<String, usize>,
    without_winner: usize,
    spread: Duration,
    slowest_confirmation: Duration,
}

impl<'a> Storm<'a> {
    async fn begin(stage: &'a Stage, namespace: &'static str) -> anyhow::Result<Self> {
        let client = stage.plane.client(0);
        make_namespace(&client, namespace, &[], false).await?;
        // The other API server must know it too, which its cache may not yet.
        make_known(&stage.plane.client(1), namespace).await?;
        Ok(Self {
            creators: Creators::new(&stage.plane, CREATES).await?,
            stage,
            namespace,
            client,
            begun: Instant::now(),
            rounds: 0,
            codes: BTreeMap::new(),
            causes: BTreeMap::new(),
            without_winner: 0,
            spread: Duration::ZERO,
            slowest_confirmation: Duration::ZERO,
        })
    }

    /// One round, of which the answers are counted. Fails if more than one create was admitted.
    async fn volley(&mut self, round: usize) -> anyhow::Result<Vec<Answer>> {
        let volley = self
            .creators
            .volley(self.namespace, creates(&config_of(round), round))
            .await?;
        self.rounds += 1;
        self.spread = self.spread.max(volley.spread);
        for answer in &volley.answers {
            *self.codes.entry(answer.code).or_default() += 1;
            if answer.code == 403 {
                *self.causes.entry(cause(answer).to_owned()).or_default() += 1;
            }
        }
        let admitted = winners(&volley.answers);
        ensure!(
            admitted.len() <= 1,
            "round {round}: {} and more were admitted",
            admitted.join(", ")
        );
        Ok(volley.answers)
    }

    /// One round in which nothing fails: exactly one 201, all others 403 or 409, and the claim names the winner.
    async fn round_with_one_winner(&mut self, round: usize) -> anyhow::Result<()> {
        let answers = self.volley(round).await?;
        for answer in &answers {
            let legal = answer.code == 201 || refused_by_us(answer) || name_exists(answer);
            ensure!(legal, "round {round}: {} {}", answer.code, answer.message());
        }
        let [winner] = winners(&answers)[..] else {
            anyhow::bail!(
                "round {round}: nobody was admitted: {:?}",
                answers.iter().map(Answer::message).collect::<Vec<_>>()
            );
        };
        self.confirm(&config_of(round), winner).await?;
        self.end(round, winner).await
    }

    /// Waits until the replicas have seen the winner in the store. One that goes before is believed to be on its way.
    async fn confirm(&mut self, config: &str, winner: &str) -> anyhow::Result<()> {
        let begun = Instant::now();
        let claim = settled(&self.client, self.namespace, config, Duration::from_secs(10)).await?;
        self.slowest_confirmation = self.slowest_confirmation.max(begun.elapsed());
        let holder = claim.spec.holder.context("a holder")?;
        ensure!(
            holder.name == winner,
            "{winner} was admitted, and the claim names {}",
            holder.name
        );
        Ok(())
    }

    /// Frees the key, in turn by the end of the winner and by its deletion.
    async fn end(&self, round: usize, winner: &str) -> anyhow::Result<()> {
        if round.is_multiple_of(2) {
            set_phase(&self.client, self.namespace, winner, "Succeeded").await?;
        } else {
            self.pods().delete(winner, &DeleteParams::default()).await?;
        }
        Ok(())
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), self.namespace)
    }

    /// One round in the middle of which replicas fail; they are well again when this returns.
    async fn round_with(&mut self, round: usize, faults: &[Fault]) -> anyhow::Result<()> {
        let stage = self.stage;
        let mut calls = Calls::of(stage).await?;
        let strike = async {
            // Somewhere in the tens of milliseconds that a round takes.
            sleep(Duration::from_millis(1 + (5 * round as u64) % 23)).await;
            for fault in faults {
                let process = stage.replicas[fault.replica()].webhook.process();
                match fault {
                    Fault::Kill(_) => process.kill()?,
                    Fault::Pause(_) => process.pause()?,
                }
            }
            sleep(if faults.iter().any(|fault| matches!(fault, Fault::Pause(_))) {
                PAUSE
            } else {
                Duration::from_millis(100)
            })
            .await;
            anyhow::Ok(())
        };
        let (answers, struck) = tokio::join!(self.volley(round), strike);
        struck?;
        calls.look(stage)?;
        let answers = answers?;
        for (creator, answer) in answers.iter().enumerate() {
            let api_server = creator % 2;
            let failing = faults
                .iter()
                .any(|fault| calls.went(api_server, stage.replicas[fault.replica()].address));
            let failed = answer.code == 500 && answer.message().contains("failed calling webhook");
            ensure!(
                answer.code == 201 || refused_by_us(answer) || name_exists(answer) || (failing && failed),
                "round {round} with {faults:?}: API server {api_server}, whose calls went to {:?}, answered {} {}",
                calls.backends[api_server],
                answer.code,
                answer.message()
            );
        }
        match winners(&answers)[..] {
            [winner] => self.end(round, winner).await?,
            _ => self.without_winner += 1,
        }
        self.heal(faults).await
    }

    async fn heal(&self, faults: &[Fault]) -> anyhow::Result<()> {
        for fault in faults {
            let replica = &self.stage.replicas[fault.replica()];
            match fault {
                Fault::Kill(_) => replica.webhook.process().restart()?,
                Fault::Pause(_) => replica.webhook.process().resume()?,
            }
            replica.wait_ready().await?;
        }
        if !faults.is_empty() {
            // Else all calls would stay with the replica that was well.
            for replica in &self.stage.replicas {
                self.stage.balancer.cut(replica.address);
            }
            sleep(Duration::from_millis(200)).await;
        }
        Ok(())
    }

    /// Lets somebody meet each claim, and waits until what was lost is given up and all keys are free.
    async fn wait_for_lost_creates(&self) -> anyhow::Result<()> {
        let begun = Instant::now();
        let mut lost = 0;
        for (config, claim) in claims(&self.client, self.namespace).await? {
            if !claim.spec.pending.is_empty() {
                let poke = deployer(&config, "poke", &format!("{config}-poke"));
                let answer = create_pod(&self.client, self.namespace, &poke).await?;
                lost += usize::from(cause(&answer) == "DeployerPending");
            }
        }
        for config in claims(&self.client, self.namespace).await?.keys() {
            settled(&self.client, self.namespace, config, GIVEN_UP + LATE).await?;
        }
        for pod in self.pods().list(&ListParams::default().labels(CONFIG)).await? {
            if pod.status.as_ref().and_then(|status| status.phase.as_deref()) != Some("Succeeded") {
                set_phase(&self.client, self.namespace, &pod.name_any(), "Succeeded").await?;
            }
        }
        println!("{lost} lost creates were given up after {:.1?}", begun.elapsed());
        Ok(())
    }

    fn report(&self, what: &str) {
        println!(
            "{} rounds of {CREATES} ({what}): answers {:?}, refusals {:?}, {} rounds without a winner, {:.1?}, sent within \
             {:.1?}, confirmed within {:.0?}",
            self.rounds,
            self.codes,
            self.causes,
            self.without_winner,
            self.begun.elapsed(),
            self.spread,
            self.slowest_confirmation
        );
    }
}

/// The config of a round: a new one every few rounds.
fn config_of(round: usize) -> String {
    format!("cfg{}", round / ROUNDS_PER_CONFIG)
}

/// Sixteen creates, half of them for each API server: eight fixed names of two generations, two names twice (one to each API
/// server, and both to one), and four generated ones.
fn creates(config: &str, round: usize) -> Vec<Value> {
    let fixed = |generation: &str, i: usize| deployer(config, generation, &format!("{config}-{generation}-{i}"));
    let any = |generation| deployer_of_any_name(config, generation);
    let mut pods = vec![
        // The same name at two API servers, and twice at one.
        fixed("old", 4),
        fixed("old", 4),
        fixed("new", 4),
        fixed("new", 0),
        fixed("new", 4),
        fixed("old", 0),
        any("old"),
        any("new"),
        any("new"),
        any("old"),
    ];
    pods.extend((1..4).flat_map(|i| [fixed("old", i), fixed("new", i)]));
    // Who is the first to be sent changes; the pairs stay at their API servers.
    let by = 2 * (round % (CREATES / 2));
    pods.rotate_left(by);
    pods
}

fn winners(answers: &[Answer]) -> Vec<&str> {
    let created = answers.iter().filter_map(|answer| answer.result.as_ref().ok());
    created.filter_map(|pod| pod.metadata.name.as_deref()).collect()
}

fn refused_by_us(answer: &Answer) -> bool {
    answer.code == 403 && matches!(cause(answer), "DeployerActive" | "DeployerPending")
}

fn name_exists(answer: &Answer) -> bool {
    let already = |status: &kube::core::Status| status.reason == "AlreadyExists";
    answer.code == 409 && answer.result.as_ref().is_err_and(|status| already(status))
}

/// Waits until an API server takes pods into a namespace.
async fn make_known(client: &Client, namespace: &str) -> anyhow::Result<()> {
    until(
        "the namespace to be known to the other API server",
        Duration::from_secs(10),
        async || {
            let pod = unrelated("known");
            let answer =
                deployer_guard_testkit::objects::create_pod_with(client, namespace, &pod, "dryRun=All").await?;
            ensure!(answer.code == 201, "{}", answer.message());
            Ok(())
        },
    )
    .await
}
