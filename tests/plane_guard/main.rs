//! The guard's reconciliation on a real control plane, with the rights of its `ServiceAccount`. The policies of these tests have no
//! entry in the webhook configuration: every pod is one that came in while the webhook was bypassed.

#![allow(missing_docs, reason = "a test")]

mod cluster;
mod leftovers;
mod scene;
