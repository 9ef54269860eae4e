//! A guard as a process of its own.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use serde_json::Value;

use crate::http_get::http_get;
use crate::plane::ControlPlane;
use crate::ports::free_ports;
use crate::process::Process;
use crate::webhook::WebhookProcess;

/// A running guard. Dropping it ends it; so does the end of its control plane, whatever ends that.
#[derive(Debug)]
pub struct GuardProcess {
    program: WebhookProcess,
    health: SocketAddr,
}

impl GuardProcess {
    /// Runs `program guard` among the programs of a control plane, with a health port of its own; does not wait for it. The name is
    /// as [`WebhookProcess::builder`] wants it.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start(
        plane: &ControlPlane,
        program: &Path,
        name: &str,
        arguments: impl IntoIterator<Item = String>,
    ) -> anyhow::Result<Self> {
        let health = SocketAddr::from(([127, 0, 0, 1], free_ports(1)?[0]));
        let program = WebhookProcess::builder(name, program)
            .args(["guard", "--instance", name, "--health-listen"])
            .arg(health.to_string())
            .args(arguments)
            .under(plane)
            .start()?;
        Ok(Self { program, health })
    }

    /// The process, to pause, resume, kill, terminate and restart it.
    #[must_use]
    pub fn process(&self) -> &Process {
        self.program.process()
    }

    /// The sum of the samples of a metric, with any labels; the name as it is printed, such as `deployer_guard_leader`.
    ///
    /// # Errors
    /// If there is no answer, or no such metric in it.
    pub async fn metric(&self, name: &str) -> anyhow::Result<f64> {
        let (code, body) = http_get(&format!("http://{}/metrics", self.health)).await?;
        ensure!(code == 200, "{code}: {body}");
        let samples: Vec<f64> = body
            .lines()
            .filter_map(|line| line.strip_prefix(name))
            .filter(|rest| rest.starts_with([' ', '{']))
            .filter_map(|rest| rest.rsplit(' ').next()?.parse().ok())
            .collect();
        if samples.is_empty() {
            bail!("no {name} in {body}");
        }
        Ok(samples.into_iter().sum())
    }

    /// Whether it leads, by its own word.
    ///
    /// # Errors
    /// If it does not answer.
    pub async fn leads(&self) -> anyhow::Result<bool> {
        Ok(self.metric("deployer_guard_leader").await? > 0.0)
    }

    /// What it logged so far; see [`WebhookProcess::log_lines`].
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn log_lines(&self) -> anyhow::Result<Vec<Value>> {
        self.program.log_lines().context("the log of a guard")
    }

    /// Waits until a log line satisfies `wanted`; see [`WebhookProcess::wait_log`].
    ///
    /// # Errors
    /// If there is none within `limit`.
    pub async fn wait_log(
        &self,
        what: &str,
        limit: Duration,
        wanted: impl FnMut(&Value) -> bool,
    ) -> anyhow::Result<Value> {
        self.program.wait_log(what, limit, wanted).await
    }

    /// `error` with the end of the guard's log.
    #[must_use]
    pub fn blame(&self, error: anyhow::Error) -> anyhow::Error {
        self.process().blame(error)
    }
}
