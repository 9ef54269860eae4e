//! Admission calls in, answers out.

pub mod timeout;
