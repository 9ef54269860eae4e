//! The chart, installed on a node.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Api, ListParams};

use crate::enforced::wait_enforced;
use crate::node::{Helm, Node};
use crate::objects::apply_yaml;
use crate::programs::HOME;
use crate::stage::NAMESPACE;
use crate::wait::until;

/// How long Helm, and everything that it waits for, may take.
const PATIENCE: &str = "3m";
/// How long a policy may take to be in force.
const LIMIT: Duration = Duration::from_mins(1);
/// How much is told of a release that does not come up, of each kind.
const LINES: usize = 40;
/// The name of the release, and of everything in it.
const NAME: &str = NAMESPACE;
/// Selects the pods of the release.
const OURS: &str = "app.kubernetes.io/name=deployer-guard";
/// The image, without its tag.
const IMAGE: &str = "localhost/deployer-guard";

/// A release of the chart `charts/deployer-guard`, called `deployer-guard`, in the namespace of that name.
#[derive(Debug)]
pub struct Release<'a> {
    node: &'a Node,
    helm: Helm,
}

impl<'a> Release<'a> {
    /// Installs it with the image that the node was given, and waits until its pods are ready. Values are files of the chart's `ci`
    /// directory, by their names, or `key=value`.
    ///
    /// # Errors
    /// If Helm fails: with what it said, and what the pods say.
    pub async fn install(node: &'a Node, helm: Helm, values: &[&str]) -> anyhow::Result<Self> {
        let release = Self { node, helm };
        release.run(&["install", "--create-namespace"], values).await?;
        Ok(release)
    }

    /// The release that is there, or none yet.
    #[must_use]
    pub fn of(node: &'a Node, helm: Helm) -> Self {
        Self { node, helm }
    }

    /// Installs it, or upgrades it to these values, forgetting the former, and waits until its pods are ready.
    ///
    /// # Errors
    /// If Helm fails: with what it said, and what the pods say.
    pub async fn upgrade_or_install(node: &'a Node, helm: Helm, values: &[&str]) -> anyhow::Result<Self> {
        let release = Self { node, helm };
        let verb = ["upgrade", "--install", "--create-namespace", "--reset-values"];
        release.run(&verb, values).await?;
        Ok(release)
    }

    /// Upgrades it to these values, forgetting the former, and waits until its pods are ready.
    ///
    /// # Errors
    /// If Helm fails: with what it said, and what the pods say.
    pub async fn upgrade(&self, values: &[&str]) -> anyhow::Result<()> {
        self.run(&["upgrade", "--reset-values"], values).await
    }

    /// Uninstalls it, and waits until that is done. What Helm keeps by the chart's word stays.
    ///
    /// # Errors
    /// If Helm fails.
    pub async fn uninstall(self) -> anyhow::Result<()> {
        self.helm(&["uninstall", NAME, "--wait", "--timeout", PATIENCE])
            .await
            .map(drop)
    }

    /// Uninstalls it, if it is there.
    ///
    /// # Errors
    /// If Helm fails.
    pub async fn uninstall_if_there(self) -> anyhow::Result<()> {
        let uninstall = ["uninstall", NAME, "--ignore-not-found", "--wait", "--timeout", PATIENCE];
        self.helm(&uninstall).await.map(drop)
    }

    /// Runs the chart's tests; what Helm said.
    ///
    /// # Errors
    /// If one fails: with its log.
    pub async fn test(&self) -> anyhow::Result<String> {
        self.helm(&["test", NAME, "--logs", "--timeout", PATIENCE]).await
    }

    /// Runs Helm in the release's namespace; what it printed.
    ///
    /// # Errors
    /// If it fails: with its complaint.
    pub async fn helm(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let arguments = [arguments, &["--namespace", NAMESPACE]].concat();
        let output = self.node.helm(self.helm, &arguments).await?;
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        let complaint = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.success(),
            "helm {}: {complaint}{printed}",
            arguments.join(" ")
        );
        Ok(printed)
    }

    async fn run(&self, verb: &[&str], values: &[&str]) -> anyhow::Result<()> {
        let chart = chart();
        let mut arguments = verb.to_vec();
        let path = chart.display().to_string();
        let image = format!("image.repository={IMAGE}");
        arguments.extend([NAME, &path, "--wait", "--timeout", PATIENCE, "--set", &image]);
        let values: Vec<(&str, String)> = values
            .iter()
            .map(|&value| {
                if value.contains('=') {
                    ("--set", value.to_owned())
                } else {
                    ("--values", chart.join("ci").join(value).display().to_string())
                }
            })
            .collect();
        for (flag, value) in &values {
            arguments.extend([flag, value.as_str()]);
        }
        match self.helm(&arguments).await {
            Ok(_said) => Ok(()),
            Err(error) => bail!("{error:#}\n{}", self.states().await),
        }
    }

    /// What a person would look at when it does not come up.
    async fn states(&self) -> String {
        let mut said = String::new();
        let logs = ["--all-containers", "--prefix", "--tail=4"];
        for arguments in [
            &["get", "pods", "-o=wide"][..],
            &["get", "events", "--sort-by=.metadata.creationTimestamp"],
            &[&["logs", "--selector", OURS][..], &logs].concat(),
        ] {
            let arguments = [&["--namespace", NAMESPACE], arguments].concat();
            if let Ok(output) = self.node.kubectl(&arguments).await {
                let printed = String::from_utf8_lossy(&output.stdout).into_owned();
                let lines: Vec<&str> = printed.lines().collect();
                said.push_str(&lines[lines.len().saturating_sub(LINES)..].join("\n"));
                said.push('\n');
            }
        }
        said
    }

    /// The release's pods that are there, those that end not among them.
    ///
    /// # Errors
    /// If they cannot be listed.
    pub async fn pods(&self) -> anyhow::Result<Vec<Pod>> {
        let api: Api<Pod> = Api::namespaced(self.node.client(), NAMESPACE);
        let pods = api.list(&ListParams::default().labels(OURS)).await?.items;
        Ok(pods
            .into_iter()
            .filter(|pod| pod.metadata.deletion_timestamp.is_none())
            .collect())
    }

    /// Waits until so many of its pods are ready, and no others are there.
    ///
    /// # Errors
    /// If they are not within a minute.
    pub async fn wait_ready(&self, replicas: usize) -> anyhow::Result<()> {
        until(&format!("{replicas} pods to be ready"), LIMIT, async || {
            let pods = self.pods().await?;
            let ready = pods.iter().filter(|pod| is_ready(pod)).count();
            ensure!(
                ready == replicas && pods.len() == replicas,
                "{ready} of {} are",
                pods.len()
            );
            Ok(())
        })
        .await
    }

    /// Applies policies (YAML), and waits until all of them are in force.
    ///
    /// # Errors
    /// If one is refused, or is not in force within a minute.
    pub async fn enforce(&self, policies: &str) -> anyhow::Result<()> {
        for policy in apply_yaml(&self.node.client(), policies, "release").await? {
            self.wait_enforced(&policy.name_any()).await?;
        }
        Ok(())
    }

    /// Waits until the status of a policy says that its present generation is in force.
    ///
    /// # Errors
    /// If it does not within a minute: with the conditions.
    pub async fn wait_enforced(&self, policy: &str) -> anyhow::Result<()> {
        wait_enforced(&self.node.client(), policy, LIMIT).await
    }

    /// Kills (SIGKILL) all processes of one container of a pod; kubelet starts it again.
    ///
    /// # Errors
    /// If the container does not run.
    pub async fn kill_container(&self, pod: &str, container: &str) -> anyhow::Result<()> {
        let id = self.container_id(pod, container).await?;
        let kill = ["tasks", "kill", "--all", "--signal", "SIGKILL", &id];
        self.node.ctr(&kill).await.map(drop)
    }

    /// Kills (SIGKILL) the guard of a pod, and not its container: the parent stays and begins it again.
    ///
    /// # Errors
    /// If no guard runs there at the moment.
    pub async fn kill_guard(&self, pod: &str) -> anyhow::Result<()> {
        let id = self.container_id(pod, "guard").await?;
        let listed = self.node.ctr(&["tasks", "ps", &id]).await?;
        let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
        let words = listed.lines().filter_map(|line| line.split_whitespace().next());
        let processes: Vec<u32> = words.filter_map(|word| word.parse().ok()).collect();
        // The parent came first.
        let (parent, child) = (processes.iter().min(), processes.iter().max());
        ensure!(child != parent, "no guard runs in {pod}: {listed}");
        let child = child.map(ToString::to_string).unwrap_or_default();
        let output = self.node.exec(&["kill", "-KILL", &child]).await?;
        ensure!(
            output.status.success(),
            "kill: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(())
    }

    /// containerd's name of a container that runs.
    async fn container_id(&self, pod: &str, container: &str) -> anyhow::Result<String> {
        let api: Api<Pod> = Api::namespaced(self.node.client(), NAMESPACE);
        let status = api.get(pod).await?.status.unwrap_or_default();
        let mut statuses = status.container_statuses.into_iter().flatten();
        let id = statuses.find(|status| status.name == container).and_then(|status| {
            let running = status.state?.running.is_some();
            running.then_some(status.container_id?)
        });
        let id = id.with_context(|| format!("container {container} of {pod} does not run"))?;
        Ok(id.rsplit('/').next().unwrap_or_default().to_owned())
    }
}

/// Where the chart is.
#[must_use]
pub fn chart() -> PathBuf {
    Path::new(HOME).join("../../charts/deployer-guard")
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions
        .into_iter()
        .any(|condition| condition.type_ == "Ready" && condition.status == "True")
}
