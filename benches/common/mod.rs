//! What the benches share: the machine, a process's memory, latencies, targets, and where figures go.

pub(crate) mod desk;
pub(crate) mod machine;
pub(crate) mod memory;
pub(crate) mod samples;
pub(crate) mod target;
