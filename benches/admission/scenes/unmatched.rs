//! Pods that no policy matches: with all configurations in force, and with none in the cluster.

use std::time::Duration;

use serde_json::Value;
use tokio::time::sleep;

use super::{Row, rows};
use crate::common::samples::Samples;
use crate::ground::Ground;
use crate::side::{Place, Side};

/// Pods in a block, and in the blocks before them that let the API server settle.
const BLOCK: usize = 20;
const SETTLE: usize = 5;
/// Pause after a change of the configurations: the API server compiles what is in them.
const REST: Duration = Duration::from_millis(300);

/// Creates one at a time. The last side is hook pods: the policy's selector matches them, its match conditions do not.
pub(crate) async fn unmatched(
    condition: &'static str,
    ground: &Ground,
    place: &Place,
    samples: usize,
) -> anyhow::Result<Vec<Row>> {
    let mut taken = [
        ("no configuration", Samples::default()),
        ("unmatched", Samples::default()),
        ("unmatched hook pod", Samples::default()),
    ];
    for round in 0..samples.div_ceil(BLOCK) {
        ground.lift().await?;
        sleep(REST).await;
        let pods = plain(place, &format!("without-{round}")).await?;
        measure(place, &pods, &mut taken[0].1).await?;
        ground.enforce().await?;
        sleep(REST).await;
        let pods = plain(place, &format!("with-{round}")).await?;
        measure(place, &pods, &mut taken[1].1).await?;
        let pods: Vec<Value> = (0..BLOCK + SETTLE)
            .map(|number| place.hook(&format!("hook-{round}-{number}")))
            .collect();
        measure(place, &pods, &mut taken[2].1).await?;
    }
    Ok(rows(condition, "no policy matches, 1 at a time", &taken))
}

async fn plain(place: &Place, prefix: &str) -> anyhow::Result<Vec<Value>> {
    let mut pods = Vec::new();
    for number in 0..BLOCK + SETTLE {
        pods.push(place.pod(Side::None, &format!("{prefix}-{number}"), 1).await?);
    }
    Ok(pods)
}

async fn measure(place: &Place, pods: &[Value], took: &mut Samples) -> anyhow::Result<()> {
    let (settle, measured) = pods.split_at(SETTLE);
    place.create_all(settle, 1, &mut Samples::default()).await?;
    place.create_all(measured, 1, took).await?;
    place.delete_all(pods).await
}
