//! Tests on a real control plane: kube-apiserver and etcd, and replicas of the webhook with the rights of their
//! `ServiceAccount`.

#![allow(missing_docs, reason = "a test")]

mod bad_input;
mod callers;
mod certificates;
mod check;
mod common;
mod configuration;
mod conformance;
mod creators;
mod evaluation;
mod holder;
mod kinds;
mod late;
mod leadership;
mod leaks;
mod modes;
mod openshift;
mod own_webhook;
mod pairs;
mod probe;
mod records;
mod refusal;
mod rights;
mod scene;
mod schema;
mod schema_walk;
mod site;
mod stock;
mod storm;
mod uninstall;
mod unreadable;
