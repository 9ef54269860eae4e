//! deployer-guard keeps two deployers from ever working on one application at once.

pub mod api;
pub mod cluster;
pub mod domain;
