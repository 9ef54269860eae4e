//! The guard: it reconciles what admission alone cannot, and programs the webhook configuration.
//!
//! Two guards may both believe that they lead, and each may be paused anywhere or see an old world. So whatever one of them
//! writes carries a precondition that was read live, and leadership only keeps two of them from doing one work twice.

pub mod board;
pub mod configuration;
pub mod leadership;
pub mod policy_standing;
pub mod policy_status;
pub mod run;
pub mod tasks;
