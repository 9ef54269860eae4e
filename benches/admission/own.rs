//! What deployer-guard says of itself: the requests that it sent, from its metrics, and how long it took, from its log.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::time::Duration;

use anyhow::ensure;
use deployer_guard_testkit::{Replica, http_get};
use serde_json::Value;

use crate::common::samples::Samples;

/// How often each request was sent, as `get pod`.
pub(crate) type Counts = BTreeMap<String, f64>;

/// All requests so far.
pub(crate) async fn count(replica: &Replica) -> anyhow::Result<Counts> {
    let (code, text) = http_get(&format!("http://{}/metrics", replica.health)).await?;
    ensure!(code == 200, "/metrics answered {code}");
    let mut counts = Counts::new();
    for line in text.lines() {
        let Some((labels, value)) = line
            .strip_prefix("deployer_guard_api_requests_total{")
            .and_then(|rest| rest.split_once("} "))
        else {
            continue;
        };
        let label = |name: &str| {
            labels
                .split(',')
                .find_map(|label| label.strip_prefix(name)?.strip_prefix("=\"")?.strip_suffix('"'))
                .unwrap_or_default()
        };
        let request = format!("{} {}", label("verb"), label("resource"));
        *counts.entry(request).or_default() += value.parse::<f64>()?;
    }
    Ok(counts)
}

/// Adds what was sent between two counts.
pub(crate) fn add(sum: &mut Counts, before: &Counts, after: &Counts) {
    for (request, count) in after {
        *sum.entry(request.clone()).or_default() += count - before.get(request).copied().unwrap_or_default();
    }
}

/// Its decisions from a moment on.
pub(crate) struct Decisions {
    log: File,
}

impl Decisions {
    /// From now on.
    pub(crate) fn from_now(replica: &Replica) -> anyhow::Result<Self> {
        let mut log = File::open(replica.webhook.process().output_file())?;
        log.seek(SeekFrom::End(0))?;
        Ok(Self { log })
    }

    /// How long each took since, by its log.
    pub(crate) fn took(mut self) -> anyhow::Result<Samples> {
        let mut bytes = Vec::new();
        self.log.read_to_end(&mut bytes)?;
        let text = String::from_utf8_lossy(&bytes);
        let mut samples = Samples::default();
        for line in text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
            if let Some(took) = line["took_ms"].as_f64() {
                samples.push(Duration::from_secs_f64(took / 1e3));
            }
        }
        Ok(samples)
    }
}
