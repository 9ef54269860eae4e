//! The guard's reconciliation on a real control plane, with the rights of its `ServiceAccount`. The policies of a [`scene`] have no
//! entry in the webhook configuration: every pod is one that came in while the webhook was bypassed. On a [`ground`] whole guards run
//! beside the webhook, each as a process of its own, and a witness counts the active pods of each key.

#![allow(missing_docs, reason = "a test")]

mod cluster;
mod fences;
mod ground;
mod leftovers;
mod old_lists;
mod outage;
mod predecessors;
mod scene;
mod selection;
mod unguarded;
mod watches;
