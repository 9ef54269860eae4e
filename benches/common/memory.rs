//! A process's memory, seen from outside.

use std::fs;

use anyhow::Context;
use serde::Serialize;

/// Memory in MiB, from `/proc/PID/status`.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Memory {
    pub(crate) resident_mib: f64,
    /// The most that was ever resident.
    pub(crate) peak_mib: f64,
}

impl Memory {
    pub(crate) fn of(pid: u32) -> anyhow::Result<Self> {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).context("reading a process's status")?;
        let field = |name: &str| -> anyhow::Result<f64> {
            let line = status
                .lines()
                .find_map(|line| line.strip_prefix(name))
                .context("no memory")?;
            let kib: f64 = line.split_whitespace().next().context("no number")?.parse()?;
            Ok(kib / 1024.0)
        };
        Ok(Self {
            resident_mib: field("VmRSS:")?,
            peak_mib: field("VmHWM:")?,
        })
    }
}
