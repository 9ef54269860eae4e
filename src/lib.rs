//! deployer-guard keeps two deployers from ever working on one application at once.

pub mod api;
mod aside;
pub mod cli;
pub mod cluster;
pub mod domain;
mod flags;
pub mod guard;
pub mod observer;
pub mod statuses;
pub mod telemetry;
pub mod tls;
pub mod webhook;
