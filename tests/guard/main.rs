//! The guard's reconciliation, in process: whole guards over a store in memory that fails as it is told. Needs nothing.

mod churn;
mod costly;
mod duplicates;
mod faults;
mod faulty;
mod freeing;
mod leading;
mod missed;
mod scene;
mod stock;
mod waking;
