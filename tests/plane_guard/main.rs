//! The guard on a real control plane, with the rights of its `ServiceAccount`: its reconciliation alone, under policies that have no
//! entry in the webhook configuration, so that every pod is one that came in while the webhook was bypassed; and whole guard
//! processes, with policies in force, among faults.

#![allow(missing_docs, reason = "a test")]

mod churn;
mod cluster;
mod cut_off;
mod emptied;
mod fences;
mod ground;
mod held_back;
mod killed;
mod late;
mod leftovers;
mod old_lists;
mod outage;
mod predecessors;
mod proxy;
mod scene;
mod selection;
mod site;
mod stalled;
mod unguarded;
mod watches;
mod witness;
