//! The webhook's HTTPS server on loopback sockets, with a handler of the tests. Needs sockets, no Kubernetes.

mod bad_input;
mod calls;
mod certificates;
mod clients;
mod ending;
mod health;
mod secret;
mod support;
