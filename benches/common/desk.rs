//! Parameters, progress and the file for machines.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::Serialize;

/// The program that is measured: the one that was built with this one, or another build, `BENCH_PROGRAM`.
pub(crate) fn program() -> PathBuf {
    let other = std::env::var_os("BENCH_PROGRAM").filter(|path| !path.is_empty());
    other.map_or_else(|| env!("CARGO_BIN_EXE_deployer-guard").into(), PathBuf::from)
}

/// Progress goes to standard error, the table alone to standard output.
pub(crate) fn say(text: &str) {
    eprintln!("bench: {text}");
}

/// A count from the environment.
pub(crate) fn from_environment(name: &str, default: usize) -> anyhow::Result<usize> {
    match std::env::var(name) {
        Ok(text) if !text.is_empty() => text.parse().with_context(|| format!("{name}={text} is no count")),
        _ => Ok(default),
    }
}

/// Writes `target/NAME`, and says so.
pub(crate) fn write_json(name: &str, document: &impl Serialize, seconds: f64) -> anyhow::Result<()> {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name(name);
    fs::write(&file, serde_json::to_vec_pretty(document)?).with_context(|| format!("writing {}", file.display()))?;
    say(&format!(
        "{seconds:.0} s; figures for machines are in {}",
        file.display()
    ));
    Ok(())
}
