//! The guard: it reconciles what admission alone cannot, and programs the webhook configuration.
//!
//! Two guards may both believe that they lead, and each may be paused anywhere or see an old world. So whatever one of them
//! writes carries a precondition that was read live, and leadership only keeps two of them from doing one work twice.

mod apply;
pub mod board;
pub mod certificates;
mod claims;
pub mod condition;
pub mod configuration;
mod duty;
mod examine;
mod facts;
pub mod leadership;
mod lookout;
mod namespaces;
mod pods;
pub mod policy_standing;
pub mod policy_status;
mod queue;
mod reading;
pub mod reason;
pub mod reconciler;
mod records;
mod relist;
pub mod run;
mod spot;
mod standing;
mod stock;
pub mod tasks;
mod tend;
mod watch;
