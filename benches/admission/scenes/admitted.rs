//! Creates that everybody admits.

use std::collections::BTreeMap;
use std::time::Duration;

use deployer_guard_testkit::Replica;
use deployer_guard_testkit::objects::set_phase;
use futures::future::try_join_all;
use serde_json::Value;
use tokio::time::sleep;

use super::{Row, rows};
use crate::common::samples::{Samples, number};
use crate::own::{Counts, Decisions, add, count};
use crate::side::{Place, Side, fresh};

/// Pods in a block where one is created at a time.
const BLOCK: usize = 8;
/// Pause before each block, and after one of deployer-guard: until what it leaves to do in the background is done.
const PAUSE: Duration = Duration::from_millis(20);
const REST: Duration = Duration::from_millis(200);

/// Which keys the pods are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keys {
    /// A new one for each pod, under a policy under which the guard has taken stock.
    New,
    /// A new one for each pod, before stock was taken: the pods of the namespace are listed.
    NewBeforeStock,
    /// One that has a claim, whose holder finished.
    Finished,
}

/// Creates for keys that nobody holds, `width` at a time.
pub(crate) async fn admitted(
    condition: &'static str,
    place: &Place,
    replica: &Replica,
    keys: Keys,
    width: usize,
    samples: usize,
) -> anyhow::Result<Vec<Row>> {
    let sides = [Side::None, Side::Allow, Side::List, Side::Ours];
    let (block, scene) = (width.max(BLOCK), fresh());
    let mut lines: Vec<Line<'_>> = sides
        .map(|side| Line {
            place,
            side,
            scene,
            keys,
            width,
            version: 1,
            held: Vec::new(),
            took: Samples::default(),
        })
        .into();
    if keys == Keys::Finished {
        for line in &mut lines {
            line.occupy(block).await?;
        }
    }
    let (mut sent, decisions) = (Counts::new(), Decisions::from_now(replica)?);
    let rounds = samples.div_ceil(block);
    for round in 0..rounds {
        for turn in 0..lines.len() {
            let turn = (turn + round) % lines.len();
            let line = &mut lines[turn];
            let before = count(replica).await?;
            line.measure(block).await?;
            if line.side == Side::Ours {
                sleep(REST).await;
                add(&mut sent, &before, &count(replica).await?);
            }
            line.clear().await?;
        }
    }
    let decided = decisions.took()?.summary();
    let taken: Vec<_> = lines.iter().map(|line| (line.side.name(), line.took.clone())).collect();
    for line in &mut lines {
        place.delete_all(&line.held).await?;
    }
    let keys = match keys {
        Keys::New => "new keys",
        Keys::NewBeforeStock => "new keys, stock not taken",
        Keys::Finished => "holder finished",
    };
    let mut rows = rows(condition, &format!("admitted, {width} at a time, {keys}"), &taken);
    if let Some(ours) = rows.last_mut() {
        ours.decision_p50_ms = Some(decided.p50_ms);
        let creates = number(rounds * block);
        ours.requests = Some(
            sent.into_iter()
                .map(|(name, sum)| (name, sum / creates))
                .collect::<BTreeMap<_, _>>(),
        );
    }
    Ok(rows)
}

/// One side's way through the scene.
struct Line<'a> {
    place: &'a Place,
    side: Side,
    scene: u32,
    keys: Keys,
    width: usize,
    version: u32,
    /// The pods that were created last.
    held: Vec<Value>,
    took: Samples,
}

impl Line<'_> {
    /// The next block of pods, and what they need.
    async fn pods(&mut self, block: usize) -> anyhow::Result<Vec<Value>> {
        let version = self.version;
        self.version += 1;
        // A new key has a new config, an old one a new rollout.
        let (of, version) = match self.keys {
            Keys::New | Keys::NewBeforeStock => (version, 1),
            Keys::Finished => (0, version),
        };
        let prefix = format!("{}-{}-{of}", self.side.tag(), self.scene);
        let (place, side) = (self.place, self.side);
        let pods = (0..block).map(|number| {
            let config = format!("{prefix}-{number}");
            async move { place.pod(side, &config, version).await }
        });
        try_join_all(pods).await
    }

    /// The first pods of all keys.
    async fn occupy(&mut self, block: usize) -> anyhow::Result<()> {
        self.held = self.pods(block).await?;
        let mut unmeasured = Samples::default();
        self.place.create_all(&self.held, self.width, &mut unmeasured).await
    }

    async fn measure(&mut self, block: usize) -> anyhow::Result<()> {
        let finished = self.held.iter().map(|pod| {
            let name = pod["metadata"]["name"].as_str().unwrap_or_default();
            set_phase(&self.place.client, &self.place.namespace, name, "Succeeded")
        });
        try_join_all(finished).await?;
        let pods = self.pods(block).await?;
        sleep(PAUSE).await;
        self.place.create_all(&pods, self.width, &mut self.took).await?;
        self.place.delete_all(&std::mem::replace(&mut self.held, pods)).await
    }

    /// New keys leave no pods behind.
    async fn clear(&mut self) -> anyhow::Result<()> {
        if self.keys != Keys::Finished {
            self.place.delete_all(&std::mem::take(&mut self.held)).await?;
        }
        Ok(())
    }
}
