//! What a control plane is to be, and its start.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};

use crate::commands::{AUDIT_POLICY, Layout};
use crate::kubeconfig::Access;
use crate::pki::{self, Pki, write};
use crate::plane::{ApiServer, ControlPlane};
use crate::ports::{free_ports, random};
use crate::process::Process;
use crate::programs;
use crate::supervisor::Supervisor;

/// How often a start is tried when another process took one of the ports in between.
const ATTEMPTS: usize = 4;

/// Says what a [`ControlPlane`] is to be; [`ControlPlaneBuilder::start`] starts it.
///
/// Unless told otherwise: one API server, no controller-manager, no audit log, etcd without fsync.
#[derive(Debug, Clone)]
pub struct ControlPlaneBuilder {
    api_servers: usize,
    controller_manager: bool,
    audit_log: bool,
    fsync: bool,
    api_server_flags: Vec<String>,
    etcd_flags: Vec<String>,
}

impl Default for ControlPlaneBuilder {
    fn default() -> Self {
        Self {
            api_servers: 1,
            controller_manager: false,
            audit_log: false,
            fsync: false,
            api_server_flags: Vec::new(),
            etcd_flags: Vec::new(),
        }
    }
}

impl ControlPlaneBuilder {
    /// How many kube-apiservers stand on the one etcd; at least one.
    #[must_use]
    pub fn api_servers(mut self, count: usize) -> Self {
        self.api_servers = count.max(1);
        self
    }

    /// Whether kube-controller-manager runs, with all its controllers. Pods then need a service account, which it makes
    /// for each namespace, and namespaces can be deleted for good.
    #[must_use]
    pub fn controller_manager(mut self, wanted: bool) -> Self {
        self.controller_manager = wanted;
        self
    }

    /// Whether each API server writes an audit log (metadata, with webhooks' annotations).
    #[must_use]
    pub fn audit_log(mut self, wanted: bool) -> Self {
        self.audit_log = wanted;
        self
    }

    /// Whether etcd syncs to disk, as it would in earnest: for benchmarks; tests are faster without.
    #[must_use]
    pub fn fsync(mut self, wanted: bool) -> Self {
        self.fsync = wanted;
        self
    }

    /// One more flag for each API server, such as `--request-timeout=5s`. It comes last, so it wins.
    #[must_use]
    pub fn api_server_flag(mut self, flag: impl Into<String>) -> Self {
        self.api_server_flags.push(flag.into());
        self
    }

    /// One more flag for etcd.
    #[must_use]
    pub fn etcd_flag(mut self, flag: impl Into<String>) -> Self {
        self.etcd_flags.push(flag.into());
        self
    }

    /// Builds the programs if they are not there, starts them, and returns when all of them are ready.
    ///
    /// # Errors
    /// If the programs cannot be built, or one of them is not ready in time: with the end of its log.
    pub async fn start(self) -> anyhow::Result<ControlPlane> {
        programs::directory().await?;
        let mut attempt = 1;
        loop {
            match self.start_once().await {
                Err(error) if attempt < ATTEMPTS && is_port_clash(&error) => attempt += 1,
                result => return result,
            }
        }
    }

    async fn start_once(&self) -> anyhow::Result<ControlPlane> {
        let bin = programs::directory().await?;
        let ports = free_ports(3 + self.api_servers)?;
        let [etcd_port, peer_port, manager_port, ref api_ports @ ..] = ports[..] else {
            bail!("too few ports")
        };
        let supervisor = Arc::new(Supervisor::start("plane", 0)?);
        let directory = supervisor.directory().to_owned();
        let layout = Layout {
            bin,
            directory: &directory,
            etcd_port,
        };

        let etcd = Process::start_new(
            &supervisor,
            "etcd",
            layout.etcd(peer_port, self.fsync, &self.etcd_flags),
        )?;
        let token = self.write_files(&layout)?;
        let mut api_servers = Vec::with_capacity(self.api_servers);
        for (index, &port) in api_ports.iter().enumerate() {
            let audit_log = self.audit_log.then(|| directory.join(format!("audit-{index}.log")));
            let words = layout.api_server(
                port,
                self.controller_manager,
                audit_log.as_deref(),
                &self.api_server_flags,
            );
            let process = Process::start_new(&supervisor, &format!("kube-apiserver-{index}"), words)?;
            let url = format!("https://127.0.0.1:{port}");
            let kubeconfig = directory.join(format!("kubeconfig-{index}"));
            let ca_file = directory.join("ca.crt");
            let access = Access {
                url: &url,
                ca_file: &ca_file,
                user: "admin",
                token: &token,
            };
            access.write_kubeconfig(&kubeconfig)?;
            let client = access.client()?;
            api_servers.push(ApiServer {
                process,
                url,
                kubeconfig,
                client,
                audit_log,
            });
        }
        let mut plane = ControlPlane {
            supervisor,
            bin: bin.to_owned(),
            etcd,
            etcd_url: format!("http://127.0.0.1:{etcd_port}"),
            api_servers,
            controller_manager: None,
        };
        for index in 0..self.api_servers {
            plane.wait_ready(index).await?;
        }
        if self.controller_manager {
            let words = layout.controller_manager(manager_port, plane.kubeconfig(0));
            let process = Process::start_new(&plane.supervisor, "kube-controller-manager", words)?;
            plane.controller_manager = Some(process);
            plane.wait_controller_manager().await?;
        }
        Ok(plane)
    }

    /// Writes certificates, tokens and policy; returns the admin's token.
    fn write_files(&self, layout: &Layout<'_>) -> anyhow::Result<String> {
        let directory = layout.directory;
        let pki = Pki::new("deployer-guard throw-away control plane")?;
        pki.write_ca(directory)?;
        pki.serving(&["127.0.0.1", "localhost"])?.write(directory, "tls")?;
        let (private, public) = pki::signing_key().context("making the key of service-account tokens")?;
        write(&directory.join("service-accounts.key"), &private)?;
        write(&directory.join("service-accounts.pub"), &public)?;
        let token = format!("{:016x}{:016x}", random(), random());
        write(
            &directory.join("tokens.csv"),
            &format!("{token},admin,admin,\"system:masters\"\n"),
        )?;
        if self.audit_log {
            write(&directory.join("audit-policy.yaml"), AUDIT_POLICY)?;
        }
        Ok(token)
    }
}

fn is_port_clash(error: &anyhow::Error) -> bool {
    format!("{error:#}").contains("address already in use")
}

/// How long a program may take to be ready: seconds on an idle machine, more while others build or start beside it.
pub(crate) const READY_LIMIT: Duration = Duration::from_mins(2);
