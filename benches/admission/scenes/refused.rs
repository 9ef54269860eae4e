//! Creates that everybody refuses: many at a time, again and again, on one key that is held.

use std::time::Duration;

use anyhow::ensure;
use deployer_guard_testkit::Replica;
use futures::future::try_join_all;
use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::{Row, rows};
use crate::common::samples::{Samples, number};
use crate::own::{Counts, Decisions, add, count};
use crate::side::{Place, Side, fresh};

/// Clients that create at the same time.
const CLIENTS: u32 = 16;
/// How long one side is measured at a time, and how often.
const BLOCK: Duration = Duration::from_secs(1);
const BLOCKS: usize = 3;
/// Pause before each block, and after one of deployer-guard: until what it leaves to do in the background is done.
const REST: Duration = Duration::from_millis(200);

/// Refusals a second, and how long each takes.
pub(crate) async fn refused(condition: &'static str, place: &Place, replica: &Replica) -> anyhow::Result<Vec<Row>> {
    let mut taken = Vec::new();
    for side in [Side::Deny, Side::List, Side::Ours] {
        let config = format!("{}-{}-held", side.tag(), fresh());
        let holder = place.pod(side, &config, 1).await?;
        if side != Side::Deny {
            let answer = place.create(&holder).await?;
            ensure!(answer.is_created(), "{}", answer.message());
        }
        let pods = (2..CLIENTS + 2).map(|version| place.pod(side, &config, version));
        taken.push((side, holder, try_join_all(pods).await?, Samples::default()));
    }
    let (mut sent, decisions) = (Counts::new(), Decisions::from_now(replica)?);
    for _ in 0..BLOCKS {
        for (side, _, pods, took) in &mut taken {
            sleep(REST).await;
            let before = count(replica).await?;
            flood(place, pods, took).await?;
            if *side == Side::Ours {
                sleep(REST).await;
                add(&mut sent, &before, &count(replica).await?);
            }
        }
    }
    let decided = decisions.took()?.summary();
    for (side, holder, _, _) in &taken {
        if *side != Side::Deny {
            place.delete_all(std::slice::from_ref(holder)).await?;
        }
    }
    let taken: Vec<_> = taken
        .into_iter()
        .map(|(side, _, _, took)| (side.name(), took))
        .collect();
    let mut rows = rows(condition, "refused, 16 at a time, one held key", &taken);
    if let Some(ours) = rows.last_mut() {
        ours.decision_p50_ms = Some(decided.p50_ms);
        let refusals = number(ours.summary.samples);
        ours.requests = Some(sent.into_iter().map(|(name, sum)| (name, sum / refusals)).collect());
    }
    Ok(rows)
}

/// Each client creates its pod again as soon as it was refused.
async fn flood(place: &Place, pods: &[Value], took: &mut Samples) -> anyhow::Result<()> {
    let begun = Instant::now();
    let clients = pods.iter().map(|pod| {
        let (place, pod) = (place.clone(), pod.clone());
        tokio::spawn(async move {
            let mut took = Vec::new();
            while begun.elapsed() < BLOCK {
                let asked = Instant::now();
                let answer = place.create(&pod).await?;
                ensure!(answer.code == 403, "answered {}: {}", answer.code, answer.message());
                took.push(asked.elapsed());
            }
            Ok(took)
        })
    });
    for client in try_join_all(clients).await? {
        took.extend(client?);
    }
    took.spend(begun.elapsed());
    Ok(())
}
