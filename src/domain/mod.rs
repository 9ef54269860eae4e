//! The rules, as pure functions over plain data: no client, no runtime, no clock, no log.
//!
//! - [`key`]: what at most one deployer may be active for, and its claim's name
//! - [`sighting`]: what a live read of a pod found; the one notion of *active*
//! - [`claim`]: the transitions of a claim
//! - [`admission`]: the decision on one CREATE
//! - [`pursuit`]: how long an admitted pod is believed to be on its way
//! - [`refusal`]: every reason, with its text

pub mod admission;
pub mod claim;
pub mod key;
pub mod pursuit;
pub mod refusal;
pub mod sighting;
