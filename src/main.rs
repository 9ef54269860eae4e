//! The `deployer-guard` program.
fn main() {}
