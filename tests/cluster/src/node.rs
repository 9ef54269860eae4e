//! A real node, with everything that a cluster has: control plane, scheduler, kubelet, containerd, kube-proxy.
//!
//! It lives in network, mount and process namespaces of its own; of the machine it is given a control group and a directory.
//! A loopback port leads to its API server.

mod commands;
mod files;
mod others;

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use k8s_openapi::api::core::v1 as core;
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::process::Command;
use tokio::time::sleep;

use self::commands::Layout;
use crate::builder::READY_LIMIT;
use crate::kubeconfig::Access;
use crate::plane::{LeftRunning, left_running};
use crate::ports::free_ports;
use crate::process::{Process, State};
use crate::programs::{self, HOME, NodePrograms};
use crate::supervisor::Supervisor;
use crate::wait::until;

/// The audit log's file.
const AUDIT_LOG: &str = "audit-0.log";
/// Where kubelet looks for images.
const IMAGES: &str = "k8s.io";

/// A program of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Daemon {
    /// Carries connections from the loopback port of the machine to the API server.
    Reach,
    /// containerd.
    Containerd,
    /// etcd.
    Etcd,
    /// kube-apiserver.
    ApiServer,
    /// kube-controller-manager.
    ControllerManager,
    /// kube-scheduler.
    Scheduler,
    /// kube-proxy.
    Proxy,
    /// kubelet.
    Kubelet,
}

/// Which Helm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Helm {
    /// Helm 3.
    Three,
    /// Helm 4.
    Four,
}

/// A cluster of one node. Dropping it ends everything and removes its files; so does the end of this process, whatever ends it.
pub struct Node {
    supervisor: Arc<Supervisor>,
    programs: &'static NodePrograms,
    daemons: Vec<(Daemon, Process)>,
    client: Client,
}

impl Node {
    /// Whether a node can run on this machine; the error says why not.
    ///
    /// # Errors
    /// If it cannot: not Linux, not root, or no namespaces, as in some containers.
    pub async fn can_run() -> anyhow::Result<()> {
        let output = Command::new(script()).arg("check").kill_on_drop(true).output().await;
        let output = output.context("running node.sh")?;
        let said = String::from_utf8_lossy(&output.stdout);
        ensure!(output.status.success(), "node.sh check: {}", output.status);
        ensure!(said.trim().is_empty(), "{}", said.trim());
        Ok(())
    }

    /// Builds and installs what is missing, starts everything, and returns when the node is ready for pods. The flags are for the API
    /// server, and win over those that are given anyhow.
    ///
    /// # Errors
    /// If something is missing, or is not ready in time: with the end of its log.
    pub async fn start(api_server_flags: &[&str]) -> anyhow::Result<Self> {
        let programs = programs::node().await?;
        let address = format!("127.0.0.1:{}", free_ports(1)?[0]);
        let reach = programs.path("reach")?.display().to_string();
        let supervisor = Supervisor::start_by("node", |directory| {
            let listen = [reach, "listen".to_owned(), address.clone()];
            listen
                .into_iter()
                .chain([script().display().to_string(), directory])
                .collect()
        })?;
        let supervisor = Arc::new(supervisor);
        let directory = supervisor.directory().to_owned();
        let token = files::write_all(&directory)?;
        let access = Access {
            url: &format!("https://{address}"),
            ca_file: &directory.join("ca.crt"),
            user: "admin",
            token: &token,
        };
        access.write_kubeconfig(&directory.join("kubeconfig-0"))?;
        let client = access.client()?;
        let layout = Layout {
            programs,
            directory: &directory,
        };
        let flags: Vec<String> = api_server_flags.iter().map(|&flag| flag.to_owned()).collect();
        let commands = [
            (Daemon::Reach, "reach", layout.reach()?),
            (Daemon::Containerd, "containerd", layout.containerd()),
            (Daemon::Etcd, "etcd", layout.etcd()?),
            (Daemon::ApiServer, "kube-apiserver", layout.api_server(&flags)?),
            (
                Daemon::ControllerManager,
                "kube-controller-manager",
                layout.controller_manager()?,
            ),
            (Daemon::Scheduler, "kube-scheduler", layout.scheduler()?),
            (Daemon::Proxy, "kube-proxy", layout.proxy()?),
            (Daemon::Kubelet, "kubelet", layout.kubelet()?),
        ];
        let mut node = Self {
            supervisor,
            programs,
            daemons: Vec::new(),
            client,
        };
        for (daemon, name, words) in commands {
            if daemon == Daemon::ControllerManager {
                // Those that follow would try again, each with a pause that grows.
                node.wait_api_server().await?;
            }
            let process = Process::start_new(&node.supervisor, name, words)?;
            node.daemons.push((daemon, process));
        }
        node.load(&programs.path("pause.tar")?).await?;
        node.wait_ready().await?;
        Ok(node)
    }

    /// An admin's client. It repeats no request by itself.
    #[must_use]
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Where the node's files are. It is removed at the end; tests may put files of their own there.
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.supervisor.directory()
    }

    /// An admin's kubeconfig file.
    #[must_use]
    pub fn kubeconfig(&self) -> PathBuf {
        self.directory().join("kubeconfig-0")
    }

    /// The built kubectl.
    #[must_use]
    pub fn kubectl_program(&self) -> PathBuf {
        self.programs.path("kubectl").unwrap_or_default()
    }

    /// Runs kubectl as admin. Whether it succeeded is in the output's status.
    ///
    /// # Errors
    /// If it cannot be run.
    pub async fn kubectl<S: AsRef<OsStr>>(&self, arguments: &[S]) -> anyhow::Result<Output> {
        let mut command = Command::new(self.kubectl_program());
        command
            .arg("--kubeconfig")
            .arg(self.kubeconfig())
            .arg("--cache-dir")
            .arg(self.directory().join("kubectl-cache"))
            .args(arguments);
        command.kill_on_drop(true).output().await.context("running kubectl")
    }

    /// The path of one of the two Helms.
    ///
    /// # Errors
    /// If it was not built.
    pub fn helm_program(&self, version: Helm) -> anyhow::Result<PathBuf> {
        self.programs.path(match version {
            Helm::Three => "helm3",
            Helm::Four => "helm",
        })
    }

    /// Runs Helm as admin, with nothing of the user's own settings. Whether it succeeded is in the output's status.
    ///
    /// # Errors
    /// If it cannot be run.
    pub async fn helm<S: AsRef<OsStr>>(&self, version: Helm, arguments: &[S]) -> anyhow::Result<Output> {
        let home = self.directory().join("helm");
        let mut command = Command::new(self.helm_program(version)?);
        for directory in ["CACHE", "CONFIG", "DATA"] {
            command.env(format!("HELM_{directory}_HOME"), home.join(directory));
        }
        command.env("KUBECONFIG", self.kubeconfig()).args(arguments);
        command.kill_on_drop(true).output().await.context("running helm")
    }

    /// Runs a command of this machine inside the node: `ctr`, `nft`, `curl` to the address of a Service.
    ///
    /// # Errors
    /// If it cannot be run.
    pub async fn exec<S: AsRef<OsStr>>(&self, command: &[S]) -> anyhow::Result<Output> {
        let output = Command::new(script())
            .arg("exec")
            .arg(self.directory())
            .args(command)
            .kill_on_drop(true)
            .output();
        output.await.context("running a command inside the node")
    }

    /// Gives containerd the images of an archive (docker-archive or OCI).
    ///
    /// # Errors
    /// If containerd does not answer in time, or refuses it.
    pub async fn load(&self, archive: &Path) -> anyhow::Result<()> {
        // Inside, a path begins elsewhere.
        let archive = fs::canonicalize(archive).with_context(|| format!("looking up {}", archive.display()))?;
        let archive = archive.display().to_string();
        let containerd = self.process(Daemon::Containerd);
        let loaded = until("containerd to take an image", READY_LIMIT, async || {
            self.ctr(&["images", "import", &archive]).await.map(drop)
        });
        containerd.while_running(loaded).await
    }

    /// Gives an image that containerd has one more name.
    ///
    /// # Errors
    /// If there is no such image.
    pub async fn tag(&self, image: &str, name: &str) -> anyhow::Result<()> {
        self.ctr(&["images", "tag", "--force", image, name]).await.map(drop)
    }

    /// An image of the small programs that come with the testkit: `deployer` is called `localhost/deployer:test`.
    ///
    /// # Errors
    /// If there is none of that name.
    pub fn image(&self, name: &str) -> anyhow::Result<PathBuf> {
        self.programs.path(&format!("{name}.tar"))
    }

    /// A pod whose container runs the testkit's `deployer` with these arguments, in place of what it was to run.
    #[must_use]
    pub fn real(&self, mut pod: Value, arguments: &[&str]) -> Value {
        for container in pod["spec"]["containers"].as_array_mut().into_iter().flatten() {
            container["image"] = json!("localhost/deployer:test");
            container["args"] = json!(arguments);
        }
        pod
    }

    /// The shell command that runs another one inside, as [`Node::exec`] does.
    #[must_use]
    pub fn enter_command(&self) -> String {
        format!("{} exec {}", script().display(), self.directory().display())
    }

    /// Runs containerd's own client, which has to succeed.
    pub(crate) async fn ctr(&self, arguments: &[&str]) -> anyhow::Result<Output> {
        let words = [&["ctr", "--namespace", IMAGES], arguments].concat();
        let output = self.exec(&words).await?;
        let complaint = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "ctr {}: {complaint}", arguments.join(" "));
        Ok(output)
    }

    /// A handle to one of the programs: to pause, kill and restart it.
    ///
    /// # Panics
    /// Never: all of them are there once the node has started.
    #[must_use]
    pub fn process(&self, daemon: Daemon) -> Process {
        let mut found = self.daemons.iter().filter(|(other, _)| *other == daemon);
        found
            .next()
            .map(|(_, process)| process.clone())
            .expect("it was started")
    }

    /// Everything ends at once, as in a power cut, and begins again on the same files. Returns when the programs are started, not when
    /// they are ready ([`Node::wait_ready`]).
    ///
    /// # Errors
    /// If the node does not come up again.
    pub fn reboot(&self) -> anyhow::Result<()> {
        let answer = self.supervisor.ask("reboot")?;
        ensure!(answer == "ok", "the supervisor said {answer}");
        for (_, process) in &self.daemons {
            process.start_again()?;
        }
        Ok(())
    }

    /// The audit events so far, in order.
    ///
    /// # Errors
    /// If the log cannot be read.
    pub fn audit_events(&self) -> anyhow::Result<Vec<Value>> {
        let path = self.directory().join(AUDIT_LOG);
        let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        // The last line may be half written at this moment.
        Ok(text
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect())
    }

    /// Waits until the API server says that it is ready, and namespace `default` is there.
    ///
    /// # Errors
    /// If it is not ready in time: with the end of its log.
    pub async fn wait_api_server(&self) -> anyhow::Result<()> {
        let ready = until("kube-apiserver to be ready", READY_LIMIT, async || {
            let ready = http::Request::get("/readyz").body(Vec::new())?;
            self.client.request_text(ready).await?;
            Api::<core::Namespace>::all(self.client()).get("default").await?;
            Ok(())
        });
        let etcd = self.process(Daemon::Etcd);
        etcd.while_running(self.process(Daemon::ApiServer).while_running(ready))
            .await
    }

    /// Waits until the node is ready, and pods may be made.
    ///
    /// # Errors
    /// If it is not in time: with the end of kubelet's log.
    pub async fn wait_ready(&self) -> anyhow::Result<()> {
        self.wait_api_server().await?;
        let kubelet = self.process(Daemon::Kubelet);
        let ready = until("the node to be ready", READY_LIMIT, async || {
            // It ends if containerd is not ready for it yet, and its unit on a machine would begin it again.
            if let State::Ended { code } = kubelet.state()? {
                sleep(Duration::from_secs(1)).await;
                kubelet.restart()?;
                bail!("kubelet had ended with code {code}");
            }
            // What is stored of the node may be from before a power cut: kubelet listens there as soon as it works.
            let listens = self.exec(&["bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/10248"]).await?;
            ensure!(listens.status.success(), "kubelet does not work yet");
            let node = Api::<core::Node>::all(self.client()).get(commands::NODE).await?;
            let conditions = node.status.and_then(|status| status.conditions).unwrap_or_default();
            let ready = |condition: &core::NodeCondition| condition.type_ == "Ready" && condition.status == "True";
            ensure!(conditions.iter().any(ready), "its conditions are {conditions:?}");
            Api::<core::ServiceAccount>::namespaced(self.client(), "default")
                .get("default")
                .await?;
            Ok(())
        });
        let ready = self.process(Daemon::Containerd).while_running(ready).await;
        ready.map_err(|error| kubelet.blame(error))
    }

    /// Leaves it running when this process ends; says how to end it.
    ///
    /// # Errors
    /// If it has ended already.
    pub fn leave_running(self) -> anyhow::Result<LeftRunning> {
        self.supervisor.leave_running()?;
        Ok(left_running(self.directory()))
    }
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Node")
            .field("directory", &self.directory())
            .finish_non_exhaustive()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // Not left to the last handle: a Process may be held longer.
        self.supervisor.end();
    }
}

fn script() -> PathBuf {
    Path::new(HOME).join("node.sh")
}
