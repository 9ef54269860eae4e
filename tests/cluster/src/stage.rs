//! Everything that an admission needs: a control plane, replicas of the webhook behind a balancer, and the configuration
//! that makes the API servers call them.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep_until, timeout};

use crate::balancer::Balancer;
use crate::builder::ControlPlaneBuilder;
use crate::enforced::{policies, wait_enforced};
use crate::guard::GuardProcess;
use crate::objects::{apply_file, apply_yaml, create_pod_with};
use crate::pki::Pki;
use crate::plane::{ControlPlane, LeftRunning};
use crate::ports::{free_ports, random};
use crate::programs::HOME;
use crate::wait::until;
use crate::webhook::WebhookProcess;

/// Where deployer-guard lives, and the name of its `ServiceAccount`.
pub const NAMESPACE: &str = "deployer-guard";
/// The lease of guards: short, and long enough for a busy machine.
const LEASE: &str = "6s";
/// How long the API servers may take to call a new configuration.
const LIMIT: Duration = Duration::from_secs(30);
/// Where the webhook's certificates are, in the control plane's directory: that one has an authority of its own.
const CERTIFICATES: &str = "webhook-certificates";
/// An API server holds each create of a custom resource for 2 s while its definition is younger than that.
const NEW_CRD: Duration = Duration::from_secs(2);
/// The Secret with the webhook's certificates, where a guard manages them.
pub const SECRET: &str = "deployer-guard-tls";
/// The label of pods that ask whether a configuration is called yet. Nothing else carries it.
const PROBE: &str = "stage.deployer-guard.io/probe";

/// Says what a [`Stage`] is to be like.
#[derive(Clone, Debug)]
pub struct StageBuilder {
    program: PathBuf,
    plane: ControlPlaneBuilder,
    replicas: usize,
    arguments: Vec<String>,
    guards: usize,
    guard_arguments: Vec<String>,
    certificates: Certificates,
}

/// Where the webhook's certificates are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Certificates {
    /// In files, of the stage's authority.
    Files,
    /// In a Secret, of the stage's authority.
    Secret,
    /// In a Secret, made by the guards.
    SelfManaged,
}

/// A control plane with deployer-guard in front of it.
#[derive(Debug)]
pub struct Stage {
    /// The control plane. The custom resources and the `ServiceAccount` with its rights are there.
    pub plane: ControlPlane,
    /// The replicas of the webhook; replica `i` talks to API server `i`, counted round.
    pub replicas: Vec<Replica>,
    /// What the API servers call.
    pub balancer: Balancer,
    /// The authority of the replicas' certificates.
    pub pki: Pki,
    /// The guards, if they fill the configuration; guard `i` talks to API server `i`, counted round.
    pub guards: Vec<GuardProcess>,
    program: PathBuf,
    guard_arguments: Vec<String>,
    certificates: Certificates,
    /// Held while the configuration is made: one that is made of an older list must not replace a newer one.
    enforcing: Mutex<()>,
}

/// One replica of the webhook, with the rights of its `ServiceAccount` alone.
#[derive(Debug)]
pub struct Replica {
    /// The process.
    pub webhook: WebhookProcess,
    /// Where it serves admission calls.
    pub address: SocketAddr,
    /// Where it serves `/readyz` and `/metrics`.
    pub health: SocketAddr,
}

impl StageBuilder {
    /// The control plane to stand on; one API server and etcd by default.
    #[must_use]
    pub fn plane(mut self, plane: ControlPlaneBuilder) -> Self {
        self.plane = plane;
        self
    }

    /// How many replicas of the webhook; two by default.
    #[must_use]
    pub fn replicas(mut self, count: usize) -> Self {
        self.replicas = count;
        self
    }

    /// One more argument for `deployer-guard webhook`.
    #[must_use]
    pub fn argument(mut self, argument: impl Into<String>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    /// So many guards fill the configuration, in place of [`Stage::enforce`] itself; none by default.
    #[must_use]
    pub fn guards(mut self, count: usize) -> Self {
        self.guards = count;
        self
    }

    /// The guards make the certificates, in a Secret that is empty at first; there has to be one.
    #[must_use]
    pub fn self_managed(mut self) -> Self {
        self.certificates = Certificates::SelfManaged;
        let flags = ["--tls-secret", SECRET, "--self-managed-tls"];
        self.guard_arguments.extend(flags.map(str::to_owned));
        self
    }

    /// The certificates are in a Secret, as those of cert-manager; guards are told so by their arguments.
    #[must_use]
    pub fn certificates_in_secret(mut self) -> Self {
        self.certificates = Certificates::Secret;
        self
    }

    /// One more argument for `deployer-guard guard`.
    #[must_use]
    pub fn guard_argument(mut self, argument: impl Into<String>) -> Self {
        self.guard_arguments.push(argument.into());
        self
    }

    /// Starts everything; no policy is in force yet ([`Stage::enforce`]).
    ///
    /// # Errors
    /// If something does not start, with the end of its log.
    pub async fn start(self) -> anyhow::Result<Stage> {
        let plane = self.plane.start().await?;
        let client = plane.client(0);
        let crds = output(&self.program, &["crds"], "").await?;
        apply_yaml(&client, &crds, "stage").await?;
        let established = Instant::now();
        apply_file(&client, &Path::new(HOME).join("../../deploy/rbac.yaml"), "stage").await?;
        let pki = Pki::new("stage")?;
        let certificates = plane.directory().join(CERTIFICATES);
        std::fs::create_dir(&certificates).with_context(|| format!("making {}", certificates.display()))?;
        let (certificate, key) = pki
            .serving(&["127.0.0.1", "localhost"])?
            .write(&certificates, "webhook")?;
        let tls = if self.certificates == Certificates::Files {
            let [certificate, key] = [certificate, key].map(|path| path.display().to_string());
            let [of_certificate, of_key] = ["--tls-cert-file", "--tls-key-file"].map(str::to_owned);
            vec![of_certificate, certificate, of_key, key]
        } else {
            apply_yaml(&client, &self.certificates.secret(&pki)?, "stage").await?;
            vec!["--tls-secret".to_owned(), SECRET.to_owned()]
        };
        let ports = free_ports(2 * self.replicas)?;
        let mut replicas = Vec::new();
        for (i, ports) in ports.chunks_exact(2).enumerate() {
            let kubeconfig = plane
                .service_account_kubeconfig(i % plane.api_servers(), NAMESPACE, NAMESPACE)
                .await?;
            let address = SocketAddr::from(([127, 0, 0, 1], ports[0]));
            let health = SocketAddr::from(([127, 0, 0, 1], ports[1]));
            let name = format!("webhook-{i}");
            let webhook = WebhookProcess::builder(&name, &self.program)
                .args(["webhook", "--instance", &name])
                .args(tls.clone())
                .args([
                    "--listen".to_owned(),
                    address.to_string(),
                    "--health-listen".to_owned(),
                    health.to_string(),
                ])
                .args(["--kubeconfig".to_owned(), kubeconfig.display().to_string()])
                .args(self.arguments.clone())
                .under(&plane)
                .start()?;
            replicas.push(Replica {
                webhook,
                address,
                health,
            });
        }
        if self.certificates != Certificates::SelfManaged {
            for replica in &replicas {
                replica.wait_ready().await?;
            }
        }
        sleep_until(established + NEW_CRD).await;
        let balancer = Balancer::start(replicas.iter().map(|replica| replica.address)).await?;
        let mut stage = Stage {
            plane,
            replicas,
            balancer,
            pki,
            guards: Vec::new(),
            program: self.program,
            guard_arguments: self.guard_arguments,
            certificates: self.certificates,
            enforcing: Mutex::default(),
        };
        stage.pki.write_ca(&stage.plane.directory().join(CERTIFICATES))?;
        if self.guards > 0 {
            stage.apply_configuration().await?;
        }
        for i in 0..self.guards {
            let guard = stage.start_guard(&format!("guard-{i}"), &[]).await?;
            stage.guards.push(guard);
        }
        for replica in &stage.replicas {
            replica.wait_ready().await?;
        }
        Ok(stage)
    }
}

impl Certificates {
    /// The Secret as a manifest. Where guards fill it, it has no data, so that applying it again takes away nothing.
    fn secret(self, pki: &Pki) -> anyhow::Result<String> {
        let metadata = json!({ "name": SECRET, "namespace": NAMESPACE });
        let mut secret = json!({ "apiVersion": "v1", "kind": "Secret", "type": "Opaque", "metadata": metadata });
        if self == Self::Secret {
            let pair = pki.serving(&["127.0.0.1", "localhost"])?;
            secret["type"] = json!("kubernetes.io/tls");
            secret["stringData"] = json!({ "tls.crt": pair.certificate, "tls.key": pair.key, "ca.crt": pki.ca() });
        }
        Ok(secret.to_string())
    }
}

impl Replica {
    /// Waits until it is ready for traffic.
    ///
    /// # Errors
    /// After 30 s, or when it has ended: with the end of its log.
    pub async fn wait_ready(&self) -> anyhow::Result<()> {
        self.webhook.wait_ready(&format!("http://{}/readyz", self.health)).await
    }
}

impl Stage {
    /// Begins to say what the stage is like; `program` is the `deployer-guard` binary.
    pub fn builder(program: impl Into<PathBuf>) -> StageBuilder {
        StageBuilder {
            program: program.into(),
            plane: ControlPlane::builder(),
            replicas: 2,
            arguments: Vec::new(),
            guards: 0,
            guard_arguments: Vec::new(),
            certificates: Certificates::Files,
        }
    }

    /// Applies policies (YAML) and makes every API server call the webhook for all that are stored; waits until they do.
    /// Tests that share a stage may do so side by side.
    ///
    /// # Errors
    /// If a policy is refused, or an API server does not call the webhook within 30 s.
    pub async fn enforce(&self, policies: &str) -> anyhow::Result<()> {
        let client = self.plane.client(0);
        let _enforcing = self.enforcing.lock().await;
        let applied = apply_yaml(&client, policies, "stage").await?;
        if self.guards.is_empty() {
            let configuration = self.configuration(self.balancer.address()).await?;
            apply_yaml(&client, &configuration, "stage").await?;
        } else {
            for policy in &applied {
                self.wait_enforced(&policy.name_any()).await?;
            }
        }
        self.wait_called().await
    }

    /// Waits until the status of a policy says that its present generation is in force.
    ///
    /// # Errors
    /// If it does not within 30 s: with the status.
    pub async fn wait_enforced(&self, policy: &str) -> anyhow::Result<()> {
        let enforced = wait_enforced(&self.plane.client(0), policy, LIMIT).await;
        enforced.map_err(|error| match self.guards.first() {
            Some(guard) => guard.blame(error),
            None => error,
        })
    }

    /// Makes the object that guards fill, as an admin does; what is in it stays.
    ///
    /// # Errors
    /// If the API server refuses.
    pub async fn apply_configuration(&self) -> anyhow::Result<()> {
        let manifest = Path::new(HOME).join("../../deploy/webhook-configuration.yaml");
        apply_file(&self.plane.client(0), &manifest, "stage").await.map(drop)
    }

    /// Starts a guard with the rights of the `ServiceAccount`; does not wait for anything. Its number, where its name ends in one,
    /// says which API server it talks to. Later arguments win where clap lets them: these come last.
    ///
    /// # Errors
    /// If it cannot be started.
    pub async fn start_guard(&self, name: &str, arguments: &[&str]) -> anyhow::Result<GuardProcess> {
        let number: usize = name
            .rsplit('-')
            .next()
            .and_then(|end| end.parse().ok())
            .unwrap_or_default();
        let kubeconfig = self
            .plane
            .service_account_kubeconfig(number % self.plane.api_servers(), NAMESPACE, NAMESPACE)
            .await?;
        let all = self
            .guard_arguments
            .iter()
            .map(String::as_str)
            .chain(arguments.iter().copied());
        let mut all: Vec<String> = all.map(str::to_owned).collect();
        for (flag, value) in [
            ("--kubeconfig", kubeconfig.display().to_string()),
            ("--url", format!("https://{}", self.balancer.address())),
            ("--ca-bundle-file", self.ca_file().display().to_string()),
            ("--lease-duration", LEASE.to_owned()),
        ] {
            let is_given = |flag: &str| all.iter().any(|argument| argument == flag);
            let from_secret = flag == "--ca-bundle-file" && is_given("--tls-secret");
            if !is_given(flag) && !from_secret {
                all.extend([flag.to_owned(), value]);
            }
        }
        GuardProcess::start(&self.plane, &self.program, name, all)
    }

    /// The file of the CA bundle that guards are given.
    #[must_use]
    pub fn ca_file(&self) -> PathBuf {
        self.plane.directory().join(CERTIFICATES).join("ca.crt")
    }

    /// Waits until one of the stage's guards leads; its number.
    ///
    /// # Errors
    /// If none does within 30 s.
    pub async fn wait_leader(&self) -> anyhow::Result<usize> {
        until("a guard to lead", LIMIT, async || {
            for (i, guard) in self.guards.iter().enumerate() {
                // One that was killed or paused does not answer.
                let leads = timeout(Duration::from_secs(1), guard.leads()).await;
                if matches!(leads, Ok(Ok(true))) {
                    return Ok(i);
                }
            }
            bail!("none does")
        })
        .await
    }

    /// Leaves the control plane, the webhook and the guards running when this process ends: without the balancer, so the API
    /// servers call the first replica.
    ///
    /// # Errors
    /// If the configuration cannot be changed, or something has ended already.
    pub async fn leave_running(mut self) -> anyhow::Result<LeftRunning> {
        let webhook = self.replicas[0].address;
        if self.guards.is_empty() {
            let configuration = self.configuration(webhook).await?;
            apply_yaml(&self.plane.client(0), &configuration, "stage").await?;
        } else {
            self.replace_guards(webhook).await?;
        }
        for guard in self.guards {
            guard.leave_running()?;
        }
        for replica in self.replicas {
            replica.webhook.leave_running()?;
        }
        self.plane.leave_running()
    }

    /// Ends the guards, and starts as many that say that the webhook is at this address; waits until the configuration says so.
    async fn replace_guards(&mut self, webhook: SocketAddr) -> anyhow::Result<()> {
        let count = self.guards.len();
        // A handle ends the program of its name when it is dropped: all are, before others get the names.
        for guard in self.guards.drain(..) {
            guard.end(LIMIT).await?;
        }
        let url = format!("https://{webhook}");
        for i in 0..count {
            let guard = self.start_guard(&format!("guard-{i}"), &["--url", &url]).await?;
            self.guards.push(guard);
        }
        let api: Api<ValidatingWebhookConfiguration> = Api::all(self.plane.client(0));
        let said = until("the configuration to name the webhook's address", LIMIT, async || {
            let entries = api.get(NAMESPACE).await?.webhooks.unwrap_or_default();
            let urls: Vec<_> = entries.into_iter().map(|entry| entry.client_config.url).collect();
            let here = |named: &Option<String>| named.as_ref().is_some_and(|named| named.starts_with(&url));
            ensure!(!urls.is_empty() && urls.iter().all(here), "it names {urls:?}");
            Ok(())
        });
        said.await.map_err(|error| self.guards[0].blame(error))
    }

    /// The configuration that the stored policies call for, as `deployer-guard webhook-config` prints it, with the webhook
    /// at this address.
    ///
    /// # Errors
    /// If the policies cannot be listed, or there is none.
    pub async fn configuration(&self, webhook: SocketAddr) -> anyhow::Result<String> {
        let api = policies(&self.plane.client(0));
        let stored = api.list(&ListParams::default()).await.context("listing the policies")?;
        let list = json!({ "apiVersion": "v1", "kind": "List", "items": stored.items }).to_string();
        let ca = self.ca_file().display().to_string();
        let url = format!("https://{webhook}");
        output(
            &self.program,
            &["webhook-config", "-", "--url", &url, "--ca-bundle-file", &ca],
            &list,
        )
        .await
    }

    /// What the API servers trust: where certificates are in a Secret, it is in the configuration alone.
    ///
    /// # Errors
    /// If there is no bundle in it.
    pub async fn ca_bundle(&self) -> anyhow::Result<Vec<u8>> {
        if self.certificates == Certificates::Files {
            return Ok(self.pki.ca().into_bytes());
        }
        let api: Api<ValidatingWebhookConfiguration> = Api::all(self.plane.client(0));
        let entries = api.get(NAMESPACE).await?.webhooks.unwrap_or_default();
        let bundle = entries
            .into_iter()
            .next()
            .and_then(|entry| entry.client_config.ca_bundle);
        Ok(bundle.context("the configuration has no CA bundle")?.0)
    }

    /// An API server takes up configurations in the order of their versions: one that calls a probe, made after all
    /// others, calls those too.
    async fn wait_called(&self) -> anyhow::Result<()> {
        let api: Api<ValidatingWebhookConfiguration> = Api::all(self.plane.client(0));
        let probe = format!("probe-{:016x}", random());
        let configuration = json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingWebhookConfiguration",
            "metadata": { "name": probe },
            "webhooks": [{
                "name": format!("{probe}.deployer-guard.io"),
                "admissionReviewVersions": ["v1"],
                "sideEffects": "None",
                "clientConfig": {
                    "url": format!("https://{}/admit/{probe}/none/1", self.balancer.address()),
                    "caBundle": base64(&self.ca_bundle().await?),
                },
                "objectSelector": { "matchLabels": { PROBE: probe } },
                "rules": [{ "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"] }],
            }],
        });
        api.patch(&probe, &PatchParams::apply("stage"), &Patch::Apply(&configuration))
            .await?;
        let pod = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": { "name": probe, "labels": { PROBE: probe } },
            "spec": { "containers": [{ "name": "none", "image": "none" }], "automountServiceAccountToken": false },
        });
        for client in self.plane.clients() {
            until("the API server to call the webhook", LIMIT, async || {
                let answer = create_pod_with(&client, "default", &pod, "dryRun=All").await?;
                let called = answer.warnings.iter().any(|warning| warning.contains(&probe));
                ensure!(
                    called,
                    "it answered {} without asking: {:?} {}",
                    answer.code,
                    answer.warnings,
                    answer.message()
                );
                Ok(())
            })
            .await?;
        }
        api.delete(&probe, &DeleteParams::default()).await?;
        Ok(())
    }

    /// Every decision that the replicas logged so far.
    ///
    /// # Errors
    /// If a log cannot be read.
    pub fn decisions(&self) -> anyhow::Result<Vec<Value>> {
        let mut decisions = Vec::new();
        for replica in &self.replicas {
            let lines = replica.webhook.log_lines()?;
            decisions.extend(
                lines
                    .into_iter()
                    .filter(|line| line["target"] == "deployer_guard::decision"),
            );
        }
        Ok(decisions)
    }
}

/// Runs the program with this on its standard input, and gives what it printed.
async fn output(program: &Path, arguments: &[&str], input: &str) -> anyhow::Result<String> {
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("running {}", program.display()))?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(input.as_bytes()).await?;
    }
    let output = child.wait_with_output().await?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "{} {}: {complaint}",
        program.display(),
        arguments.join(" ")
    );
    Ok(String::from_utf8(output.stdout)?)
}

/// As JSON holds bytes.
fn base64(bytes: &[u8]) -> Value {
    serde_json::to_value(k8s_openapi::ByteString(bytes.to_vec())).unwrap_or_default()
}
