//! The webhook's HTTPS server on loopback sockets, with a handler of the tests. Needs sockets, no Kubernetes.

mod bad_input;
mod calls;
mod certificates;
mod ending;
mod health;
mod support;
