//! The rules, as pure functions over plain data: no client, no runtime, no clock, no log.
//!
//! - [`expression`]: CEL, bounded, with the keys that an expression reads
//! - [`policy`]: a compiled policy: what it matches, whom a pod works for, what its owner must be like
//! - [`key`]: what at most one deployer may be active for, and its claim's name
//! - [`sighting`]: what a live read of a pod found; the one notion of *active*
//! - [`claim`]: the transitions of a claim
//! - [`claim_status`]: what a claim's status shows to people
//! - [`waiting`]: owners that wait for a key
//! - [`admission`]: the decision on one CREATE
//! - [`leftovers`]: what a guard does about a key beside admission
//! - [`standpoint`]: what an owner says of its deployer
//! - [`pursuit`]: how long an admitted pod is believed to be on its way
//! - [`refusal`]: every reason, with its text
//! - [`answer`]: what the API server is told, by mode and failure policy

pub mod admission;
pub mod answer;
pub mod claim;
pub mod claim_status;
pub mod expression;
pub mod key;
pub mod leftovers;
pub mod policy;
pub mod pursuit;
pub mod refusal;
pub mod sighting;
pub mod standpoint;
pub mod waiting;
