//! The only place that talks to the API server: live reads, preconditioned writes, Events, the webhook configuration.
//!
//! - [`store`]: what a decision needs of a cluster, as a trait, and the errors of reads and writes
//! - [`upkeep`]: what only the guard needs: watches, lists that tell where to look, fenced deletes
//! - [`request`]: the bound on each call of the guard
//! - [`live`]: the real one, over `kube`; [`memory`]: one without an API server
//! - `complaint`: what is said of a watch that does not work
//! - [`events`]: Events about refusals
//! - [`configurations`]: the one webhook configuration that is ours to fill; [`policy_statuses`]: what policies say of themselves
//! - [`secrets`]: the Secret with the serving certificate
//! - [`webhook_configuration`]: which calls the API server makes, generated from policies

pub(crate) mod complaint;
pub mod configurations;
pub mod definitions;
pub mod events;
pub mod live;
pub mod memory;
pub mod policy_statuses;
pub mod request;
pub mod secrets;
pub mod store;
pub mod trial;
pub mod upkeep;
pub mod webhook_configuration;
