//! The run: which scenes, under which conditions, in which order.

use std::time::{Duration, Instant};

use serde::Serialize;

use crate::common::desk::{from_environment, say};
use crate::common::machine::Machine;
use crate::common::memory::Memory;
use crate::crowd::{Churn, fill};
use crate::ground::Ground;
use crate::process::{Start, start_once};
use crate::report;
use crate::scenes::{Keys, Race, Row, admitted, race, refused, round_trips, unmatched};
use crate::side::Place;

/// Conditions, as tables name them.
pub(crate) const EMPTY: &str = "an empty namespace";
pub(crate) const FULL: &str = "a full namespace";
pub(crate) const CHURN: &str = "a full namespace, and writes to another type";

/// How long a process is left alone before its memory is looked at after the run.
const REST: Duration = Duration::from_secs(2);

/// What can be chosen, and what cannot.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Parameters {
    /// Pods in the full namespace: `BENCH_PODS`.
    pub(crate) pods: usize,
    /// Active deployers among them.
    pub(crate) deployers: usize,
    /// Writes a second to another type.
    pub(crate) writes_per_second: u32,
    /// Creates of each side in each scene: `BENCH_SAMPLES`.
    pub(crate) samples: usize,
    /// Rounds of 16 at once on one key.
    pub(crate) rounds: u32,
    /// Starts of a replica.
    pub(crate) starts: u32,
}

/// Everything that was measured.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Results {
    pub(crate) machine: Machine,
    pub(crate) parameters: Parameters,
    pub(crate) rows: Vec<Row>,
    pub(crate) races: Vec<Race>,
    pub(crate) starts: Vec<Start>,
    /// Writes to another type, as many as were really done.
    pub(crate) writes_per_second: f64,
    /// deployer-guard's replica after the run.
    pub(crate) memory_after: Memory,
    /// The process of the comparison webhooks after the run.
    pub(crate) comparison_memory_after: Memory,
    pub(crate) seconds: f64,
}

/// Runs everything, and reports.
pub(crate) async fn run() -> anyhow::Result<()> {
    let begun = Instant::now();
    let parameters = Parameters {
        pods: from_environment("BENCH_PODS", 1000)?,
        deployers: 300,
        writes_per_second: 100,
        samples: from_environment("BENCH_SAMPLES", 96)?,
        rounds: 100,
        starts: 7,
    };
    say("starting etcd with fsync, a kube-apiserver, a replica of deployer-guard and the webhooks to compare with");
    let ground = Ground::prepare().await?;
    let machine = Machine::of(&ground.stage.plane).await?;
    let mut run = Run {
        ground: &ground,
        parameters,
        rows: Vec::new(),
    };
    let starts = run.starts().await?;
    let empty = ground.place("empty").await?;
    run.warm_up(&empty).await?;
    run.round_trips(&empty).await?;
    run.scenes(EMPTY, &empty).await?;
    run.unmatched(&empty).await?;
    let races = run.races(&empty).await?;
    let full = ground.place("full").await?;
    say(&format!(
        "filling a namespace with {} pods, {} of them active deployers",
        parameters.pods, parameters.deployers
    ));
    fill(&full, parameters.pods, parameters.deployers).await?;
    run.scenes(FULL, &full).await?;
    say(&format!(
        "{} writes a second to a ConfigMap from now on",
        parameters.writes_per_second
    ));
    let churn = Churn::start(&empty, parameters.writes_per_second).await?;
    run.scenes(CHURN, &full).await?;
    let writes_per_second = churn.per_second();
    say(&format!("{writes_per_second:.0} writes a second were done"));
    drop(churn);
    tokio::time::sleep(REST).await;
    let [comparison, ours] = ground.pids()?;
    report::report(&Results {
        machine,
        parameters,
        rows: run.rows,
        races,
        starts,
        writes_per_second,
        memory_after: Memory::of(ours)?,
        comparison_memory_after: Memory::of(comparison)?,
        seconds: begun.elapsed().as_secs_f64(),
    })
}

struct Run<'a> {
    ground: &'a Ground,
    parameters: Parameters,
    rows: Vec<Row>,
}

impl Run<'_> {
    async fn starts(&self) -> anyhow::Result<Vec<Start>> {
        say(&format!(
            "{} starts of a replica, one after another",
            self.parameters.starts
        ));
        let mut starts = Vec::new();
        for _ in 0..self.parameters.starts {
            starts.push(start_once(&self.ground.stage).await?);
        }
        Ok(starts)
    }

    /// Connections are made, caches are filled; nothing of it counts.
    async fn warm_up(&self, place: &Place) -> anyhow::Result<()> {
        say("warming up");
        let replica = &self.ground.stage.replicas[0];
        let warm = Place {
            client: place.client.clone(),
            namespace: self.ground.place("warm").await?.namespace,
        };
        admitted(EMPTY, &warm, replica, Keys::New, 16, 64).await?;
        admitted(EMPTY, &warm, replica, Keys::New, 1, 24).await?;
        Ok(())
    }

    async fn round_trips(&mut self, place: &Place) -> anyhow::Result<()> {
        say(&format!("{EMPTY}: single requests to the API server, one at a time"));
        let rows = round_trips(EMPTY, place, 2 * self.parameters.samples).await?;
        self.keep(rows);
        Ok(())
    }

    /// What is measured under every condition.
    async fn scenes(&mut self, condition: &'static str, place: &Place) -> anyhow::Result<()> {
        let replica = &self.ground.stage.replicas[0];
        for (width, keys) in [
            (1, Keys::NewBeforeStock),
            (1, Keys::New),
            (1, Keys::Finished),
            (16, Keys::New),
            (16, Keys::Finished),
        ] {
            say(&format!(
                "{condition}: admitted creates, {width} at a time, {keys:?} keys"
            ));
            self.ground.note_stock(keys != Keys::NewBeforeStock).await?;
            let samples = self.parameters.samples * if width == 1 { 1 } else { 2 };
            let rows = admitted(condition, place, replica, keys, width, samples).await?;
            self.keep(rows);
        }
        say(&format!("{condition}: refused creates, 16 at a time on one key"));
        let rows = refused(condition, place, replica).await?;
        self.keep(rows);
        Ok(())
    }

    async fn unmatched(&mut self, place: &Place) -> anyhow::Result<()> {
        say(&format!(
            "{EMPTY}: pods that no policy matches, with and without configurations"
        ));
        let rows = unmatched(EMPTY, self.ground, place, 2 * self.parameters.samples).await?;
        self.keep(rows);
        Ok(())
    }

    async fn races(&self, place: &Place) -> anyhow::Result<Vec<Race>> {
        say(&format!(
            "{} rounds of 16 creates at once on one key",
            self.parameters.rounds
        ));
        race(place, self.parameters.rounds).await
    }

    fn keep(&mut self, rows: Vec<Row>) {
        for row in &rows {
            say(&format!(
                "    {:<20} p50 {:>7.1} ms   {:>6.0} a second",
                row.side, row.summary.p50_ms, row.summary.per_second
            ));
        }
        self.rows.extend(rows);
    }
}
