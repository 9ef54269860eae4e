//! Admission calls in, answers out.
//!
//! - [`server`]: the HTTPS server, its bounds and its end; [`calls`] is what it hands on
//! - [`handler`]: a call, from its body to its answer; [`review`] is the wire format
//! - [`judge`]: what a review asks of a policy, and what comes of it
//! - [`policies`]: which policy a call is about
//! - [`desk`]: the queue of one key, a round of which is one read and at most one write
//! - [`records`]: what is on record of a decision: log, metrics, Events

pub mod calls;
pub mod desk;
mod front;
mod guess;
pub mod handler;
pub mod judge;
mod limits;
pub mod options;
pub mod policies;
mod reading;
pub mod records;
pub mod review;
mod round;
pub mod server;
pub mod signals;
mod swap;
pub mod ticket;
pub mod timeout;
mod validation;
