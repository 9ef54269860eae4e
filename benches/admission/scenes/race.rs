//! Many creates at one moment for one key that is free: how many are admitted.

use std::sync::Arc;
use std::time::Duration;

use anyhow::ensure;
use futures::future::try_join_all;
use serde::Serialize;
use tokio::sync::Barrier;
use tokio::time::sleep;

use crate::side::{Place, Side, fresh};

/// Creates at one moment.
const CROWD: u32 = 16;

/// Longer than it takes until an admitted pod is confirmed.
const REST: Duration = Duration::from_millis(200);

/// What came of the rounds of one side.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Race {
    pub(crate) side: &'static str,
    pub(crate) rounds: u32,
    /// Rounds in which more than one was admitted: what must not be.
    pub(crate) rounds_with_more_than_one: u32,
    /// Rounds in which none was admitted.
    pub(crate) rounds_with_none: u32,
    /// The most that one round admitted.
    pub(crate) most: u32,
}

/// Rounds of 16 at once, each on a new key, the sides taking turns.
pub(crate) async fn race(place: &Place, rounds: u32) -> anyhow::Result<Vec<Race>> {
    let mut races = [Side::List, Side::Ours].map(|side| {
        let race = Race {
            side: side.name(),
            rounds,
            rounds_with_more_than_one: 0,
            rounds_with_none: 0,
            most: 0,
        };
        (side, race)
    });
    for _ in 0..rounds {
        for (side, race) in &mut races {
            let admitted = at_once(place, *side).await?;
            race.rounds_with_more_than_one += u32::from(admitted > 1);
            race.rounds_with_none += u32::from(admitted == 0);
            race.most = race.most.max(admitted);
        }
    }
    Ok(races.into_iter().map(|(_, race)| race).collect())
}

/// How many of a crowd are admitted.
async fn at_once(place: &Place, side: Side) -> anyhow::Result<u32> {
    let config = format!("{}-{}-race", side.tag(), fresh());
    let pods = try_join_all((1..=CROWD).map(|version| place.pod(side, &config, version))).await?;
    let line = Arc::new(Barrier::new(pods.len()));
    let creates = pods.iter().map(|pod| {
        let (place, pod, line) = (place.clone(), pod.clone(), Arc::clone(&line));
        tokio::spawn(async move {
            line.wait().await;
            place.create(&pod).await
        })
    });
    let answers = try_join_all(creates)
        .await?
        .into_iter()
        .collect::<anyhow::Result<Vec<_>>>()?;
    let mut admitted = Vec::new();
    for (answer, pod) in answers.iter().zip(pods) {
        ensure!(
            answer.is_created() || answer.code == 403,
            "answered {}: {}",
            answer.code,
            answer.message()
        );
        if answer.is_created() {
            admitted.push(pod);
        }
    }
    // A pod that is deleted before it was confirmed would be looked for all through the run.
    if side == Side::Ours {
        sleep(REST).await;
    }
    place.delete_all(&admitted).await?;
    Ok(u32::try_from(admitted.len())?)
}
