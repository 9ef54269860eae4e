//! A real control plane for deployer-guard's tests, demo and benchmarks.
//!
//! [`ControlPlane`] starts etcd, one or more kube-apiservers on it and, on request, kube-controller-manager, built from
//! their Go modules by `build.sh` on first use. [`Node`] is a cluster that runs pods. [`WebhookProcess`] runs a webhook binary, [`Balancer`] stands before
//! several of them as a Service would, [`GuardProcess`] runs a guard, [`ApiProxy`] shows it an old world, [`Pki`] makes their certificates, [`StoreWatch`] is the witness that never two
//! pods were active for one key, and [`objects`] has the small things that every test does.
//!
//! # Guarantees
//! - Whatever ends the owning process (a panic, an interrupt, SIGKILL), the programs end and their directory is removed
//!   within moments: they are children of a supervisor that ends them when its pipe to the owner closes.
//! - Several control planes run side by side: own ports, own directory, nothing shared but the built programs.
//! - Every wait has a limit, and its error names what was waited for, the last state seen and the end of the log of the
//!   program concerned.
//!
//! # Needs
//! Linux, bash, util-linux (`setsid`, `setpriv`, `flock`) and, for the first build, Go. No root, no network once built; a [`Node`]
//! needs root, and says so.

mod active;
mod api_proxy;
mod balancer;
mod builder;
mod churn;
mod commands;
mod enforced;
mod guard;
mod http_get;
mod kubeconfig;
mod node;
pub mod objects;
pub mod openshift;
mod pki;
mod plane;
mod ports;
mod process;
mod programs;
mod release;
mod stage;
mod store_watch;
mod stream;
mod supervisor;
mod wait;
mod webhook;

pub use active::{Life, PodRef, Report, Violation};
pub use api_proxy::{ApiProxy, Call, Held};
pub use balancer::{Balancer, Connection};
pub use builder::ControlPlaneBuilder;
pub use churn::Churn;
pub use guard::GuardProcess;
pub use http_get::http_get;
pub use node::{Daemon, Helm, Node};
pub use pki::{Issued, Pki};
pub use plane::{ControlPlane, LeftRunning, Program};
pub use ports::free_ports;
pub use process::{Process, State};
pub use release::{Release, chart};
pub use stage::{NAMESPACE, Replica, SECRET, Stage, StageBuilder};
pub use store_watch::StoreWatch;
pub use stream::{Flow, Stream};
pub use wait::until;
pub use webhook::{WebhookBuilder, WebhookProcess};
