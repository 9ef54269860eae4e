//! A real control plane for deployer-guard's tests, demo and benchmarks.
