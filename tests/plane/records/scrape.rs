//! What a replica says of itself at one moment.

use anyhow::{Context, ensure};
use deployer_guard_testkit::{Replica, http_get};

/// One answer of `/metrics`.
#[derive(Clone, Debug)]
pub(super) struct Scrape(String);

impl Scrape {
    pub(super) async fn of(replica: &Replica) -> anyhow::Result<Self> {
        let (code, text) = http_get(&format!("http://{}/metrics", replica.health)).await?;
        ensure!(code == 200, "{code} {text}");
        Ok(Self(text))
    }

    /// The samples of one metric: labels and value.
    pub(super) fn samples(&self, metric: &str) -> Vec<(String, u64)> {
        let lines = self
            .0
            .lines()
            .filter_map(|line| line.strip_prefix(metric)?.strip_prefix('{'));
        lines
            .filter_map(|line| {
                let (labels, value) = line.split_once("} ")?;
                Some((labels.to_owned(), value.parse().ok()?))
            })
            .collect()
    }

    /// The sum of the samples of a metric whose labels contain this.
    pub(super) fn sum(&self, metric: &str, labels: &str) -> u64 {
        let samples = self.samples(metric).into_iter();
        samples
            .filter(|(found, _)| found.contains(labels))
            .map(|(_, value)| value)
            .sum()
    }

    /// The value of a metric without labels.
    pub(super) fn value(&self, metric: &str) -> anyhow::Result<u64> {
        let mut lines = self.0.lines();
        let value = lines.find_map(|line| line.strip_prefix(metric)?.strip_prefix(' '));
        let value = value.with_context(|| format!("no {metric} in {}", self.0))?;
        Ok(value.parse()?)
    }

    pub(super) fn refused(&self) -> u64 {
        self.sum("deployer_guard_decisions_total", "verdict=\"Refused\"")
    }

    /// Events, by what became of them.
    pub(super) fn events(&self, result: &str) -> u64 {
        self.sum("deployer_guard_events_total", &format!("result=\"{result}\""))
    }

    /// Refusals that no claim will show.
    pub(super) fn dropped(&self) -> anyhow::Result<u64> {
        self.value("deployer_guard_claim_rejections_dropped_total")
    }
}
