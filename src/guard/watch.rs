//! Watches: they tell where to look, and feed what is remembered. Nothing is decided from them.

mod claims;
mod pods;
mod policies;

pub(super) use claims::watch_claims;
pub(super) use policies::watch_policies;
