//! What is read from and written to a cluster.

pub mod webhook_configuration;
