//! The guard: it reconciles what admission alone cannot, and programs the webhook configuration.
//!
//! Two guards may both believe that they lead, and each may be paused anywhere or see an old world. So whatever one of them
//! writes carries a precondition that was read live, and leadership only keeps two of them from doing one work twice.

mod apply;
pub mod board;
mod claims;
pub mod condition;
mod duty;
mod examine;
mod facts;
mod lookout;
mod pods;
mod queue;
mod reading;
pub mod reason;
pub mod reconciler;
mod records;
mod relist;
mod spot;
mod standing;
mod stock;
mod tend;
mod watch;
