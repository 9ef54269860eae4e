//! The main job on a real API server, told on two pages: many deployers at once, one admitted, the others refused with
//! their reasons, and the records of it; then what the guard does about a deployer that came in while nobody looked.
//!
//! `make demo` builds and runs it: on a real node if it is given an image, else on a control plane alone. With `KEEP=1` the cluster
//! is left running.

mod ground;
mod guards;
mod real;
mod scenes;
mod show;
mod story;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("demo: {}", deployer_guard::cli::explain(&error));
            ExitCode::FAILURE
        }
    }
}

async fn run() -> anyhow::Result<()> {
    let keep = std::env::var("KEEP").is_ok_and(|keep| !matches!(keep.as_str(), "" | "0" | "no"));
    let image = std::env::args_os().nth(1).map(PathBuf::from);
    let told = async {
        match &image {
            Some(image) => real::tell(image, keep).await,
            None => story::tell(program()?, keep).await,
        }
    };
    tokio::select! {
        told = told => told,
        _ = tokio::signal::ctrl_c() => Err(anyhow::anyhow!("interrupted")),
    }
}

/// The `deployer-guard` binary that was built beside this one.
fn program() -> anyhow::Result<PathBuf> {
    let this = std::env::current_exe()?;
    let target = this
        .parent()
        .and_then(|examples| examples.parent())
        .context("no target directory")?;
    let program = target.join("deployer-guard");
    anyhow::ensure!(program.exists(), "{} is not built: run `make demo`", program.display());
    Ok(program)
}
