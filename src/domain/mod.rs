//! Decisions over plain data. Nothing here talks to a cluster, reads a clock, waits or logs.

pub mod expression;
pub mod policy;
