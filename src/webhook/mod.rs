//! Admission calls in, answers out.

pub mod calls;
mod front;
mod limits;
pub mod options;
pub mod server;
pub mod signals;
pub mod timeout;
