//! A running control plane.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::Arc;
use std::{fmt, fs};

use anyhow::Context;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use kube::api::PostParams;
use kube::{Api, Client, Config};
use serde_json::{Value, json};
use tokio::process::Command;

use crate::builder::{ControlPlaneBuilder, READY_LIMIT};
use crate::kubeconfig::Access;
use crate::process::Process;
use crate::programs::HOME;
use crate::supervisor::Supervisor;
use crate::wait::until;

/// How long a service account's token is good for.
const TOKEN_SECONDS: i64 = 24 * 3600;

/// A program of a control plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Program {
    /// etcd.
    Etcd,
    /// The kube-apiserver of this number, from 0.
    ApiServer(usize),
    /// kube-controller-manager.
    ControllerManager,
}

/// etcd, kube-apiservers and perhaps kube-controller-manager, on loopback, with RBAC on.
///
/// Dropping it ends the programs at once and removes their directory; so does the end of this process, whatever ends it.
pub struct ControlPlane {
    pub(crate) supervisor: Arc<Supervisor>,
    pub(crate) bin: PathBuf,
    pub(crate) etcd: Process,
    pub(crate) etcd_url: String,
    pub(crate) api_servers: Vec<ApiServer>,
    pub(crate) controller_manager: Option<Process>,
}

/// One kube-apiserver and what an admin needs to speak to it.
pub(crate) struct ApiServer {
    pub(crate) process: Process,
    pub(crate) url: String,
    pub(crate) kubeconfig: PathBuf,
    pub(crate) client: Client,
    pub(crate) audit_log: Option<PathBuf>,
}

/// A control plane that outlives this process.
#[derive(Debug, Clone)]
pub struct LeftRunning {
    /// Where its files are; `kubeconfig-0` among them.
    pub directory: PathBuf,
    /// The shell command that ends it and removes the directory.
    pub end_command: String,
}

impl ControlPlane {
    /// Begins to say what a control plane is to be.
    #[must_use]
    pub fn builder() -> ControlPlaneBuilder {
        ControlPlaneBuilder::default()
    }

    /// How many API servers there are.
    #[must_use]
    pub fn api_servers(&self) -> usize {
        self.api_servers.len()
    }

    /// An admin's client of API server `i`. It repeats no request by itself.
    ///
    /// # Panics
    /// If there is no such API server, as all methods that take a number.
    #[must_use]
    pub fn client(&self, i: usize) -> Client {
        self.api_servers[i].client.clone()
    }

    /// An admin's client of each API server.
    #[must_use]
    pub fn clients(&self) -> Vec<Client> {
        self.api_servers.iter().map(|server| server.client.clone()).collect()
    }

    /// The address of API server `i`, such as `https://127.0.0.1:20443`.
    #[must_use]
    pub fn url(&self, i: usize) -> &str {
        &self.api_servers[i].url
    }

    /// An admin's kubeconfig file for API server `i`.
    #[must_use]
    pub fn kubeconfig(&self, i: usize) -> &Path {
        &self.api_servers[i].kubeconfig
    }

    /// The certificate authority of the API servers, a PEM file.
    #[must_use]
    pub fn ca_file(&self) -> PathBuf {
        self.directory().join("ca.crt")
    }

    /// Where the files of this control plane are. It is removed at the end; tests may put files of their own there.
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.supervisor.directory()
    }

    /// The built kubectl.
    #[must_use]
    pub fn kubectl_program(&self) -> PathBuf {
        self.bin.join("kubectl")
    }

    /// Runs kubectl as admin against API server 0. Whether it succeeded is in the output's status.
    ///
    /// # Errors
    /// If kubectl cannot be run.
    pub async fn kubectl<S: AsRef<OsStr>>(&self, args: &[S]) -> anyhow::Result<Output> {
        self.kubectl_as(self.kubeconfig(0), args).await
    }

    /// Runs kubectl with the given kubeconfig file.
    ///
    /// # Errors
    /// If kubectl cannot be run.
    pub async fn kubectl_as<S: AsRef<OsStr>>(&self, kubeconfig: &Path, args: &[S]) -> anyhow::Result<Output> {
        Command::new(self.kubectl_program())
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .arg("--cache-dir")
            .arg(self.directory().join("kubectl-cache"))
            .args(args)
            .kill_on_drop(true)
            .output()
            .await
            .context("running kubectl")
    }

    /// The audit log of API server `i`, a JSON event on each line; `None` unless the builder was told `audit_log(true)`.
    #[must_use]
    pub fn audit_log(&self, i: usize) -> Option<&Path> {
        self.api_servers[i].audit_log.as_deref()
    }

    /// The audit events of all API servers so far, each server's in order.
    ///
    /// # Errors
    /// If a log cannot be read.
    pub fn audit_events(&self) -> anyhow::Result<Vec<Value>> {
        let mut events = Vec::new();
        for path in self.api_servers.iter().filter_map(|server| server.audit_log.as_deref()) {
            let text = fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
            // The last line may be half written at this moment.
            events.extend(text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()));
        }
        Ok(events)
    }

    /// A kubeconfig file for API server `i` with a fresh token of a service account, which must exist. The token is good
    /// for a day, as long as the service account is there.
    ///
    /// # Errors
    /// If the token is not given, or the file cannot be written.
    pub async fn service_account_kubeconfig(&self, i: usize, namespace: &str, name: &str) -> anyhow::Result<PathBuf> {
        self.service_account_kubeconfig_at(self.url(i), namespace, name).await
    }

    /// The same for another address at which an API server is reached, such as that of a
    /// [`Balancer`](crate::Balancer): `https://127.0.0.1:PORT`.
    ///
    /// # Errors
    /// If the token is not given, or the file cannot be written.
    pub async fn service_account_kubeconfig_at(
        &self,
        url: &str,
        namespace: &str,
        name: &str,
    ) -> anyhow::Result<PathBuf> {
        let request = TokenRequest {
            spec: Some(TokenRequestSpec {
                expiration_seconds: Some(TOKEN_SECONDS),
                ..TokenRequestSpec::default()
            }),
            ..TokenRequest::default()
        };
        let token = Api::<ServiceAccount>::namespaced(self.client(0), namespace)
            .create_token_request(name, &PostParams::default(), &request)
            .await
            .with_context(|| format!("asking for a token of ServiceAccount {namespace}/{name}"))?
            .status
            .and_then(|status| status.token)
            .context("a token request without a token")?;
        let port = url.rsplit(':').next().unwrap_or_default().trim_end_matches('/');
        let path = self.directory().join(format!("kubeconfig-{namespace}-{name}-{port}"));
        let ca_file = self.ca_file();
        Access {
            url,
            ca_file: &ca_file,
            user: name,
            token: &token,
        }
        .write_kubeconfig(&path)?;
        Ok(path)
    }

    /// A handle to one of the programs: to pause, kill and restart it.
    ///
    /// # Panics
    /// If this control plane has no such program.
    #[must_use]
    pub fn process(&self, program: Program) -> Process {
        match program {
            Program::Etcd => self.etcd.clone(),
            Program::ApiServer(i) => self.api_servers[i].process.clone(),
            Program::ControllerManager => self
                .controller_manager
                .clone()
                .expect("no kube-controller-manager here"),
        }
    }

    /// Starts a program again, after killing it if it runs, and waits until it is ready.
    ///
    /// # Errors
    /// If it is not ready in time.
    pub async fn restart(&self, program: Program) -> anyhow::Result<()> {
        self.process(program).restart()?;
        match program {
            Program::ApiServer(i) => self.wait_ready(i).await,
            // Ready again is what can be seen through an API server.
            Program::Etcd => self.wait_ready(0).await,
            Program::ControllerManager => self.wait_controller_manager().await,
        }
    }

    /// Makes etcd forget all history before this moment, as an API server does every few minutes: who asks for older events gets 410,
    /// unless an API server still has them in memory.
    ///
    /// # Errors
    /// If etcd does not answer, or refuses.
    pub async fn compact(&self) -> anyhow::Result<()> {
        let mut config = Config::new(self.etcd_url.parse().context("etcd's address")?);
        config.default_retry = false;
        let client = Client::try_from(config)?;
        let ask = async |path: &str, body: Value| {
            let request = http::Request::post(path).body(serde_json::to_vec(&body)?)?;
            anyhow::Ok(client.request::<Value>(request).await?)
        };
        // Base64 of a key that need not be there: every answer names the revision.
        let read = ask("/v3/kv/range", json!({ "key": "Lw==" })).await?;
        let revision = &read["header"]["revision"];
        ask("/v3/kv/compaction", json!({ "revision": revision, "physical": true }))
            .await
            .with_context(|| format!("compacting etcd at {revision}"))?;
        Ok(())
    }

    /// Waits until API server `i` says that it is ready, which needs etcd, and namespace `default` is there.
    ///
    /// # Errors
    /// If it is not ready in time: with the end of its log.
    pub async fn wait_ready(&self, i: usize) -> anyhow::Result<()> {
        let server = &self.api_servers[i];
        let what = format!("{} to be ready", server.process.name());
        let ready = until(&what, READY_LIMIT, async || {
            let ready = http::Request::get("/readyz").body(Vec::new())?;
            server.client.request_text(ready).await?;
            Api::<Namespace>::all(server.client.clone()).get("default").await?;
            Ok(())
        });
        // etcd outside: if it has ended, that is why the API server is not ready.
        self.etcd.while_running(server.process.while_running(ready)).await
    }

    /// Waits until kube-controller-manager does its work: it has made the default service account.
    pub(crate) async fn wait_controller_manager(&self) -> anyhow::Result<()> {
        let process = self.process(Program::ControllerManager);
        let what = "kube-controller-manager to make the ServiceAccount default/default";
        let ready = until(what, READY_LIMIT, async || {
            Api::<ServiceAccount>::namespaced(self.client(0), "default")
                .get("default")
                .await?;
            Ok(())
        });
        process.while_running(ready).await
    }

    /// Leaves it running when this process ends; says how to end it.
    ///
    /// # Errors
    /// If it has ended already.
    pub fn leave_running(self) -> anyhow::Result<LeftRunning> {
        self.supervisor.leave_running()?;
        Ok(left_running(self.directory()))
    }

    /// Ends the programs at once and removes their directory, as dropping does.
    pub fn stop(self) {
        drop(self);
    }
}

impl fmt::Debug for ControlPlane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ControlPlane")
            .field("directory", &self.directory())
            .finish_non_exhaustive()
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        // Not left to the last handle: a Process may be held longer.
        self.supervisor.end();
    }
}

/// What ends the programs in `directory`.
pub(crate) fn left_running(directory: &Path) -> LeftRunning {
    let script = Path::new(HOME).join("down.sh");
    LeftRunning {
        directory: directory.to_owned(),
        end_command: format!("{} {}", script.display(), directory.display()),
    }
}
