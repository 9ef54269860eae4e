//! How long it takes from a holder's end to a free claim.

use std::time::Duration;

use deployer_guard_testkit::objects::set_phase;
use k8s_openapi::api::core::v1::Pod;
use kube::api::DeleteParams;
use kube::{Api, Client};
use serde::Serialize;
use tokio::time::{Instant, sleep};

use crate::common::samples::{Samples, Summary};
use crate::parameters::Parameters;
use crate::site::rollout;
use crate::witness::Witness;

/// How long a claim may take to be free.
const LIMIT: Duration = Duration::from_mins(1);

/// A way for a holder to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Succeeded,
    Deleted,
}

/// What was measured of one way to end.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Freed {
    pub(crate) end: &'static str,
    pub(crate) summary: Summary,
    /// The longest.
    pub(crate) most_ms: f64,
    /// Every one, in order, in milliseconds.
    pub(crate) all_ms: Vec<f64>,
}

/// Ends the holders with these numbers one at a time, each after a pause of another length, so that nothing that comes round is
/// always met at the same moment. Time runs from before the request that ends it to the claim's event at a watch.
pub(crate) async fn measure(
    client: &Client,
    parameters: &Parameters,
    witness: &Witness,
    end: End,
    numbers: std::ops::Range<usize>,
) -> anyhow::Result<Freed> {
    let mut samples = Samples::default();
    let mut all = Vec::new();
    for number in numbers {
        sleep(Duration::from_millis(u64::try_from(number * 37 % 211)?)).await;
        let rollout = rollout(parameters, number);
        let begun = Instant::now();
        match end {
            End::Succeeded => drop(set_phase(client, &rollout.namespace, &rollout.deployer(), "Succeeded").await?),
            End::Deleted => {
                let pods: Api<Pod> = Api::namespaced(client.clone(), &rollout.namespace);
                let at_once = DeleteParams::default().grace_period(0);
                drop(pods.delete(&rollout.deployer(), &at_once).await?);
            }
        }
        let took = witness.freed(&rollout.config, LIMIT).await?.duration_since(begun);
        samples.spend(begun.elapsed());
        all.push(took);
    }
    let all_ms: Vec<f64> = all.iter().map(|took| took.as_secs_f64() * 1e3).collect();
    samples.extend(all);
    Ok(Freed {
        end: match end {
            End::Succeeded => "its pod Succeeded",
            End::Deleted => "its pod was deleted",
        },
        summary: samples.summary(),
        most_ms: all_ms.iter().copied().fold(0.0, f64::max),
        all_ms,
    })
}
