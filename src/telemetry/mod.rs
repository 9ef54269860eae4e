//! What the program tells about itself: logs, metrics and health.

pub mod health;
pub mod logs;
pub mod metrics;
