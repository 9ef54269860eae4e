//! What the story is told on: a control plane with our programs beside it, or a node on which they are installed.

use std::path::PathBuf;
use std::process::Output;

use anyhow::{Context, ensure};
use deployer_guard_testkit::{NAMESPACE, Node, Stage};
use kube::Client;
use serde_json::Value;

/// What the scenes need.
pub(crate) trait Ground {
    /// An admin's client; creates are spread over several of them, by number.
    fn client(&self, i: usize) -> Client;
    /// A directory for files of the story.
    fn directory(&self) -> PathBuf;
    /// Runs kubectl.
    async fn kubectl(&self, arguments: &[&str]) -> anyhow::Result<Output>;
    /// The API servers' audit events.
    fn audit_events(&self) -> anyhow::Result<Vec<Value>>;
    /// The decisions that the replicas logged.
    async fn decisions(&self) -> anyhow::Result<Vec<Value>>;
    /// A deployer pod as it is sent here: where pods run, it has to have something to run.
    fn dressed(&self, pod: Value) -> Value;

    /// What kubectl prints.
    async fn stdout(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let output = self.kubectl(arguments).await?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8(output.stdout)?)
    }

    /// A command, and what kubectl prints.
    async fn show(&self, arguments: &[&str]) -> anyhow::Result<()> {
        println!("$ kubectl {}", arguments.join(" "));
        print!("{}", self.stdout(arguments).await?);
        Ok(())
    }
}

impl Ground for Stage {
    fn client(&self, i: usize) -> Client {
        self.plane.client(i % self.plane.api_servers())
    }

    fn directory(&self) -> PathBuf {
        self.plane.directory().to_owned()
    }

    async fn kubectl(&self, arguments: &[&str]) -> anyhow::Result<Output> {
        self.plane.kubectl(arguments).await
    }

    fn audit_events(&self) -> anyhow::Result<Vec<Value>> {
        self.plane.audit_events()
    }

    async fn decisions(&self) -> anyhow::Result<Vec<Value>> {
        Stage::decisions(self)
    }

    fn dressed(&self, pod: Value) -> Value {
        pod
    }
}

impl Ground for Node {
    fn client(&self, _i: usize) -> Client {
        Node::client(self)
    }

    fn directory(&self) -> PathBuf {
        Node::directory(self).to_owned()
    }

    async fn kubectl(&self, arguments: &[&str]) -> anyhow::Result<Output> {
        Node::kubectl(self, arguments).await
    }

    fn audit_events(&self) -> anyhow::Result<Vec<Value>> {
        Node::audit_events(self)
    }

    async fn decisions(&self) -> anyhow::Result<Vec<Value>> {
        let ours = [
            "--namespace",
            NAMESPACE,
            "logs",
            "--selector=app.kubernetes.io/name=deployer-guard",
            "--container=webhook",
            "--tail=-1",
        ];
        let lines = self.stdout(&ours).await.context("the webhook's log")?;
        let lines = lines.lines().filter_map(|line| serde_json::from_str(line).ok());
        Ok(lines
            .filter(|line: &Value| line["target"] == "deployer_guard::decision")
            .collect())
    }

    fn dressed(&self, pod: Value) -> Value {
        self.real(pod, &["-for=1h"])
    }
}
