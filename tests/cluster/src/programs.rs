//! The built programs of the control plane.

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
    BUILT.get_or_try_init(build).await.map(PathBuf::as_path)
}

async fn build() -> anyhow::Result<PathBuf> {
    let script = Path::new(HOME).join("build.sh");
    let output = Command::new(&script)
        .stderr(Stdio::inherit())
        .kill_on_drop(true)
        .output()
        .await
        .with_context(|| format!("running {}", script.display()))?;
    if !output.status.success() {
        bail!(
            "{} could not build the control plane: {}",
            script.display(),
            output.status
        );
    }
    Ok(PathBuf::from(String::from_utf8(output.stdout)?.trim_end()))
}
