//! The node that the tests share, with the image on it, and what is installed there.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, ensure};
use deployer_guard_testkit::objects::{create_pod_with, make_namespace};
use deployer_guard_testkit::{Helm, NAMESPACE, Node, Process, Release, Report, StoreWatch, until};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::{Api, DeleteParams};
use kube::{Client, ResourceExt};
use serde_json::Value;
use tokio::process::Command;
use tokio::sync::OnceCell;

use crate::work::{BY_LABEL, config_of, deployer};

/// How long anything may take on a machine that does much else.
pub(crate) const SOON: Duration = Duration::from_mins(1);
/// The tag of the image that is built.
const TAG: &str = env!("CARGO_PKG_VERSION");
/// Another tag of the same image.
pub(crate) const NEXT: &str = "next";

/// The variable that names an archive of an image to be tried in place of the one that is built.
const IMAGE: &str = "DEPLOYER_GUARD_TEST_IMAGE";

static SITE: OnceCell<Site> = OnceCell::const_new();

/// A node.
pub(crate) struct Site {
    pub(crate) node: Node,
    others: OnceCell<Process>,
}

impl Site {
    /// The node of these tests. It ends with this process.
    pub(crate) async fn shared() -> anyhow::Result<&'static Self> {
        SITE.get_or_try_init(Self::start).await
    }

    async fn start() -> anyhow::Result<Self> {
        let image = image().await?;
        let node = Node::start(&[]).await?;
        node.load(&image).await?;
        node.load(&node.image("deployer")?).await?;
        let name = "localhost/deployer-guard";
        node.tag(&format!("{name}:{TAG}"), &format!("{name}:{NEXT}")).await?;
        Ok(Self {
            node,
            others: OnceCell::new(),
        })
    }

    pub(crate) fn client(&self) -> Client {
        self.node.client()
    }

    /// The kinds of others are there, and cert-manager runs from now on.
    pub(crate) async fn others(&self) -> anyhow::Result<&Process> {
        let started = self.others.get_or_try_init(async || {
            self.node.define_kinds_of_others().await?;
            self.node.start_cert_manager()
        });
        started.await
    }

    /// The chart, with these values and no others, installed or upgraded; its pods are ready.
    pub(crate) async fn with(&self, values: &[&str]) -> anyhow::Result<Release<'_>> {
        let release = Release::upgrade_or_install(&self.node, Helm::Four, values).await?;
        release.wait_ready(2).await?;
        Ok(release)
    }

    /// The chart as it is without values, and the policy of these tests in force.
    pub(crate) async fn usual(&self) -> anyhow::Result<Release<'_>> {
        let release = self.with(&[]).await?;
        release.enforce(BY_LABEL).await?;
        self.in_force().await?;
        Ok(release)
    }

    /// Waits until the API server asks the webhook: a pod that does not say what it works for is refused. The status of a policy may be from
    /// before an uninstall.
    pub(crate) async fn in_force(&self) -> anyhow::Result<()> {
        let nameless = deployer("", "in-force", &[]);
        until("the policy to be in force", SOON, async || {
            let answer = create_pod_with(&self.client(), "default", &nameless, "dryRun=All").await?;
            ensure!(answer.code == 403, "{} {}", answer.code, answer.message());
            Ok(())
        })
        .await
    }

    /// A namespace of one test.
    pub(crate) async fn namespace(&self, name: &str) -> anyhow::Result<()> {
        make_namespace(&self.client(), name, &[], true).await
    }

    /// Watches that never two deployers of a config are active.
    pub(crate) async fn witness(&self, namespace: &str) -> anyhow::Result<Witness> {
        let watch = StoreWatch::start(vec![self.client()], Some(namespace), config_of).await?;
        Ok(Witness(watch))
    }

    /// Deletes a namespace, and waits until it is gone.
    pub(crate) async fn delete_namespace(&self, name: &str) -> anyhow::Result<()> {
        let api: Api<Namespace> = Api::all(self.client());
        api.delete(name, &DeleteParams::default()).await?;
        until(&format!("namespace {name} to be gone"), 2 * SOON, async || {
            let left = api.get_opt(name).await?;
            ensure!(left.is_none(), "{:?}", left.and_then(|left| left.status));
            Ok(())
        })
        .await
    }

    /// Runs kubectl, which has to succeed; what it printed.
    pub(crate) async fn kubectl(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let output = self.node.kubectl(arguments).await?;
        let complaint = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "kubectl {}: {complaint}", arguments.join(" "));
        Ok(String::from_utf8(output.stdout)?)
    }

    /// The sum of a metric's samples over our pods that run, from the port of that name.
    pub(crate) async fn metric(&self, pod: &Pod, port: u16, name: &str) -> anyhow::Result<f64> {
        let path = format!(
            "/api/v1/namespaces/{NAMESPACE}/pods/{}:{port}/proxy/metrics",
            pod.name_any()
        );
        let request = http1::Request::get(path).body(Vec::new())?;
        let text = self.client().request_text(request).await?;
        let samples = text.lines().filter_map(|line| {
            let rest = line.strip_prefix(name)?;
            rest.starts_with([' ', '{'])
                .then(|| rest.rsplit(' ').next()?.parse::<f64>().ok())?
        });
        let samples: Vec<f64> = samples.collect();
        ensure!(!samples.is_empty(), "no {name} in the metrics of {}", pod.name_any());
        Ok(samples.into_iter().sum())
    }
}

/// Sees every change of the pods of a namespace.
pub(crate) struct Witness(StoreWatch);

impl Witness {
    /// What it saw, in which never two deployers of one config were active.
    pub(crate) async fn never_two(self) -> anyhow::Result<Report> {
        let seen = self.0.finish().await?;
        ensure!(seen.violations.is_empty(), "two were active: {:?}", seen.violations);
        Ok(seen)
    }
}

/// Builds the image, unless it is there, or another is named.
async fn image() -> anyhow::Result<PathBuf> {
    if let Some(image) = std::env::var_os(IMAGE) {
        return Ok(image.into());
    }
    let home = Path::new(env!("CARGO_MANIFEST_DIR"));
    let output = Command::new(home.join("scripts/image"))
        .arg("--quiet")
        .stderr(Stdio::inherit())
        .kill_on_drop(true)
        .output()
        .await
        .context("running scripts/image")?;
    ensure!(output.status.success(), "scripts/image: {}", output.status);
    Ok(home.join(String::from_utf8(output.stdout)?.trim_end()))
}

/// A field of an object, as text.
pub(crate) fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}
