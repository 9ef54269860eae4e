//! The built programs of the control plane and of a node.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, bail};
use tokio::process::Command;
use tokio::sync::OnceCell;

/// The directory of this crate, where the scripts are.
pub(crate) const HOME: &str = env!("CARGO_MANIFEST_DIR");

/// The directory with etcd, kube-apiserver, kube-controller-manager and kubectl, which are built on first use.
///
/// # Errors
/// If they are not there and cannot be built; `build.sh` has said why on standard error.
pub(crate) async fn directory() -> anyhow::Result<&'static Path> {
    static BUILT: OnceCell<PathBuf> = OnceCell::const_new();
    let built = BUILT.get_or_try_init(async || build(&[]).await.map(PathBuf::from));
    built.await.map(PathBuf::as_path)
}

/// All that a node and its tests run, built and installed on first use.
///
/// # Errors
/// If something is not there and cannot be had; `build.sh` has said why on standard error.
pub(crate) async fn node() -> anyhow::Result<&'static NodePrograms> {
    static BUILT: OnceCell<NodePrograms> = OnceCell::const_new();
    let built = BUILT.get_or_try_init(async || {
        let directories = build(&["node"]).await?;
        Ok(NodePrograms(directories.split(':').map(PathBuf::from).collect()))
    });
    built.await
}

/// Where the programs of a node are.
#[derive(Debug)]
pub(crate) struct NodePrograms(Vec<PathBuf>);

impl NodePrograms {
    /// The path of one that `build.sh node` builds.
    ///
    /// # Errors
    /// If it is none of them.
    pub(crate) fn path(&self, name: &str) -> anyhow::Result<PathBuf> {
        let mut candidates = self.0.iter().map(|directory| directory.join(name));
        let found = candidates.find(|candidate| candidate.exists());
        found.with_context(|| format!("build.sh node built no {name}"))
    }
}

/// Runs `build.sh`; what it prints.
async fn build(arguments: &[&str]) -> anyhow::Result<String> {
    let script = Path::new(HOME).join("build.sh");
    let output = Command::new(&script)
        .args(arguments)
        .stderr(Stdio::inherit())
        .kill_on_drop(true)
        .output()
        .await
        .with_context(|| format!("running {}", script.display()))?;
    if !output.status.success() {
        bail!("{} {}: {}", script.display(), arguments.join(" "), output.status);
    }
    Ok(String::from_utf8(output.stdout)?.trim_end().to_owned())
}
