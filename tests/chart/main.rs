//! The Helm chart: what it renders, and that the program, the API server and the documentation agree with it.
//!
//! Needs helm (built on first use), and one control plane for the dry runs.

mod agreement;
mod helm;
mod refusals;
mod renders;
mod server;
