//! The machine and the programs that figures come from.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::time::Instant;

use anyhow::Context;
use deployer_guard_testkit::ControlPlane;
use serde::Serialize;
use tokio::process::Command;

use super::samples::Samples;

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Machine {
    pub(crate) cores: usize,
    pub(crate) processor: String,
    pub(crate) memory_gib: f64,
    pub(crate) kernel: String,
    /// One write of 4 KiB and fdatasync, at the median and at the 95th percentile.
    pub(crate) sync_ms: [f64; 2],
    pub(crate) kubernetes: String,
    pub(crate) etcd: String,
    pub(crate) deployer_guard: &'static str,
}

impl Machine {
    pub(crate) async fn of(plane: &ControlPlane) -> anyhow::Result<Self> {
        let kubectl = plane.kubectl_program();
        let etcd = kubectl.parent().context("no directory of programs")?.join("etcd");
        let version = Command::new(etcd).arg("--version").output().await?.stdout;
        let version = String::from_utf8_lossy(&version);
        let field = |file: &str, name: &str| {
            let text = fs::read_to_string(file).unwrap_or_default();
            let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
            line.split_once(':').map_or("", |(_, value)| value).trim().to_owned()
        };
        let memory = field("/proc/meminfo", "MemTotal");
        let kib: f64 = memory.split(' ').next().unwrap_or_default().parse().unwrap_or_default();
        Ok(Self {
            cores: std::thread::available_parallelism()?.get(),
            processor: field("/proc/cpuinfo", "model name"),
            memory_gib: kib / f64::from(1 << 20),
            kernel: fs::read_to_string("/proc/sys/kernel/osrelease")?.trim().to_owned(),
            sync_ms: sync(plane.directory())?,
            kubernetes: plane.client(0).apiserver_version().await?.git_version,
            etcd: version.lines().next().unwrap_or_default().replace("etcd Version: ", ""),
            deployer_guard: env!("CARGO_PKG_VERSION"),
        })
    }

    /// Prints it for people.
    pub(crate) fn print(&self) {
        println!(
            "{} cores ({}), {:.0} GiB, Linux {}; a synced write of 4 KiB takes {:.1} ms at p50, {:.1} ms at p95",
            self.cores, self.processor, self.memory_gib, self.kernel, self.sync_ms[0], self.sync_ms[1]
        );
        println!(
            "Kubernetes {}, etcd {} with fsync, deployer-guard {}; all of it and the clients on this machine",
            self.kubernetes, self.etcd, self.deployer_guard
        );
    }
}

fn sync(directory: &Path) -> anyhow::Result<[f64; 2]> {
    let path = directory.join("sync");
    let mut file = File::create(&path)?;
    let mut took = Samples::default();
    for _ in 0..100 {
        let begun = Instant::now();
        file.write_all(&[0; 4096])?;
        file.sync_data()?;
        took.push(begun.elapsed());
    }
    fs::remove_file(&path)?;
    let summary = took.summary();
    Ok([summary.p50_ms, summary.p95_ms])
}
