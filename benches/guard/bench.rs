//! The run, from an empty cluster to the guard's restart.

use std::time::Duration;

use anyhow::{Context, bail, ensure};
use deployer_guard::api::DeployerPolicy;
use deployer_guard_testkit::objects::{apply_yaml, set_phase};
use deployer_guard_testkit::{GuardProcess, Stage, State, until};
use kube::{Api, Client};
use serde::Serialize;
use tokio::time::{Instant, sleep};

use crate::calls::{Audit, Calls};
use crate::common::desk::say;
use crate::common::machine::Machine;
use crate::common::memory::Memory;
use crate::ends::{End, Freed, measure};
use crate::parameters::Parameters;
use crate::report;
use crate::site::{fill, for_each, prepare, rollout};
use crate::witness::Witness;

const POLICY: &str = include_str!("../../policies/openshift-deploymentconfig.yaml");
const POLICY_NAME: &str = "openshift-deploymentconfig";
/// How long a part of the run may take.
const LIMIT: Duration = Duration::from_mins(10);
/// How long a guard that has done its work is left alone before it counts as at rest.
const SETTLE: Duration = Duration::from_secs(10);
/// No key was examined for so long: all were.
const STILL: Duration = Duration::from_secs(2);
/// How often a guard is asked how far it is, and how often its memory is looked at.
const POLL: Duration = Duration::from_millis(50);
const LOOK: Duration = Duration::from_secs(5);

/// Everything that was measured. Times in seconds.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Results {
    pub(crate) machine: Machine,
    pub(crate) parameters: Parameters,
    /// To make the namespaces and pods.
    pub(crate) filled_s: f64,
    /// From the guard's start to the last claim that it made by adoption.
    pub(crate) adopted_s: f64,
    /// From the guard's start to the note on the policy that stock was taken: it waits for the pending window first.
    pub(crate) stock_taken_s: f64,
    pub(crate) memory_after_stock: Memory,
    /// Holders that ended all at once, and the time to the last freed claim.
    pub(crate) ended_at_once: usize,
    pub(crate) freed_at_once_s: f64,
    pub(crate) freed: Vec<Freed>,
    pub(crate) calls_at_rest: Calls,
    /// Resident memory at rest, in MiB, every five seconds.
    pub(crate) resident_at_rest_mib: Vec<f64>,
    pub(crate) memory_at_rest: Memory,
    pub(crate) restart: Restart,
    pub(crate) seconds: f64,
}

/// A guard that was ended and started again.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Restart {
    /// From its start to its leading.
    pub(crate) leads_s: f64,
    /// From its start to the end of the last examination: every key was read live, and judged.
    pub(crate) stock_s: f64,
    /// Examinations by then.
    pub(crate) examinations: f64,
    pub(crate) memory: Memory,
}

/// Runs everything, and reports.
pub(crate) async fn run() -> anyhow::Result<()> {
    let begun = Instant::now();
    let parameters = Parameters::from_environment()?;
    say("starting etcd with fsync, a kube-apiserver and a replica of the webhook");
    let stage = prepare().await?;
    let client = stage.plane.client(0);
    let machine = Machine::of(&stage.plane).await?;
    say(&format!(
        "making {} pods in {} namespaces, {} of them deployers",
        parameters.pods, parameters.namespaces, parameters.claims
    ));
    let filling = Instant::now();
    fill(&client, &parameters).await?;
    let filled_s = filling.elapsed().as_secs_f64();
    apply_yaml(&client, POLICY, "bench").await?;
    stage.apply_configuration().await?;
    let witness = Witness::start(client.clone());

    say(&format!("{filled_s:.0} s; the guard is started, and adopts"));
    let started = Instant::now();
    let guard = stage.start_guard("guard-0", &["--lease-duration", "15s"]).await?;
    let run = Run {
        stage: &stage,
        client: &client,
        guard: &guard,
        parameters,
        witness: &witness,
    };
    let (adopted_s, stock_taken_s) = run.take_stock(started).await?;
    let memory_after_stock = run.memory()?;
    say(&format!(
        "{stock_taken_s:.0} s; {:.1} MiB resident. All but {} deployers finish",
        memory_after_stock.resident_mib, parameters.active
    ));
    let (ended_at_once, freed_at_once_s) = run.end_at_once().await?;
    say(&format!("{freed_at_once_s:.0} s; holders end one at a time"));
    let freed = run.end_singly().await?;
    say(&format!("{} s at rest", parameters.rest_seconds));
    let (calls_at_rest, resident_at_rest_mib) = run.rest().await?;
    let memory_at_rest = run.memory()?;
    say(&format!(
        "{:.1} MiB resident; the guard is ended, and started again",
        memory_at_rest.resident_mib
    ));
    let restart = run.restart().await?;
    report::report(&Results {
        machine,
        parameters,
        filled_s,
        adopted_s,
        stock_taken_s,
        memory_after_stock,
        ended_at_once,
        freed_at_once_s,
        freed,
        calls_at_rest,
        resident_at_rest_mib,
        memory_at_rest,
        restart,
        seconds: begun.elapsed().as_secs_f64(),
    })
}

struct Run<'a> {
    stage: &'a Stage,
    client: &'a Client,
    guard: &'a GuardProcess,
    parameters: Parameters,
    witness: &'a Witness,
}

impl Run<'_> {
    fn memory(&self) -> anyhow::Result<Memory> {
        match self.guard.process().state()? {
            State::Running { pid } => Memory::of(pid),
            State::Ended { code } => bail!("the guard ended with code {code}"),
        }
    }

    /// Seconds from `started` until every deployer has a claim, and until the policy says that stock was taken.
    async fn take_stock(&self, started: Instant) -> anyhow::Result<(f64, f64)> {
        let adopted = self.witness.held(self.parameters.claims, LIMIT).await;
        adopted.map_err(|error| self.guard.blame(error))?;
        let adopted_s = started.elapsed().as_secs_f64();
        say(&format!("{adopted_s:.0} s; stock is taken"));
        let policies: Api<DeployerPolicy> = Api::all(self.client.clone());
        let taken = until("stock to be taken", LIMIT, async || {
            let status = policies.get(POLICY_NAME).await?.status.unwrap_or_default();
            let taken = status.stock_taking.is_some();
            ensure!(taken, "the policy's conditions are {:?}", status.conditions);
            Ok(())
        });
        taken.await.map_err(|error| self.guard.blame(error))?;
        let stock_taken_s = started.elapsed().as_secs_f64();
        sleep(STILL).await;
        Ok((adopted_s, stock_taken_s))
    }

    /// Ends every holder that is not to stay, as fast as they can be ended.
    async fn end_at_once(&self) -> anyhow::Result<(usize, f64)> {
        let begun = Instant::now();
        let ending = self.parameters.active..self.parameters.claims;
        let ended = ending.len();
        for_each(ending, async |number| {
            let rollout = rollout(&self.parameters, number);
            set_phase(self.client, &rollout.namespace, &rollout.deployer(), "Succeeded").await?;
            Ok(())
        })
        .await?;
        let freed = self.witness.held(self.parameters.active, LIMIT).await;
        freed.map_err(|error| self.guard.blame(error))?;
        Ok((ended, begun.elapsed().as_secs_f64()))
    }

    async fn end_singly(&self) -> anyhow::Result<Vec<Freed>> {
        sleep(SETTLE).await;
        let mut freed = Vec::new();
        let samples = self.parameters.samples;
        for (end, first) in [(End::Succeeded, 0), (End::Deleted, samples)] {
            let numbers = first..first + samples;
            let measured = measure(self.client, &self.parameters, self.witness, end, numbers).await;
            let measured = measured.map_err(|error| self.guard.blame(error))?;
            say(&format!(
                "    {:<20} p50 {:>6.1} ms   p99 {:>6.1} ms",
                measured.end, measured.summary.p50_ms, measured.summary.p99_ms
            ));
            freed.push(measured);
        }
        Ok(freed)
    }

    async fn rest(&self) -> anyhow::Result<(Calls, Vec<f64>)> {
        sleep(SETTLE).await;
        let log = self.stage.plane.audit_log(0).context("an audit log")?;
        let audit = Audit::from_now(log)?;
        let begun = Instant::now();
        let mut resident = Vec::new();
        while begun.elapsed() < self.parameters.rest() {
            sleep(LOOK).await;
            resident.push(self.memory()?.resident_mib);
        }
        Ok((audit.calls(begun.elapsed().as_secs_f64() / 60.0)?, resident))
    }

    async fn restart(&self) -> anyhow::Result<Restart> {
        let process = self.guard.process();
        process.terminate()?;
        process.wait_end(LIMIT).await?;
        let started = Instant::now();
        process.restart()?;
        let (mut leads_s, mut last) = (None, (0.0, started));
        while last.0 < 1.0 || last.1.elapsed() < STILL {
            ensure!(
                started.elapsed() < LIMIT,
                "the guard has examined {} keys after {LIMIT:?}",
                last.0
            );
            sleep(POLL).await;
            // It does not answer at once.
            if leads_s.is_none() && self.guard.leads().await.unwrap_or(false) {
                leads_s = Some(started.elapsed().as_secs_f64());
            }
            let examined = self.guard.metric("deployer_guard_guard_examinations_total").await;
            if let Some(examined) = examined.ok().filter(|examined| *examined > last.0) {
                last = (examined, Instant::now());
            }
        }
        let (examinations, at) = last;
        let keys = u32::try_from(self.parameters.claims)?;
        ensure!(
            examinations >= f64::from(keys),
            "only {examinations} of {keys} keys were examined after the restart"
        );
        Ok(Restart {
            leads_s: leads_s.context("the guard does not lead")?,
            stock_s: at.duration_since(started).as_secs_f64(),
            examinations,
            memory: self.memory()?,
        })
    }
}
