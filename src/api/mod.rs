//! The two custom resources of the group `deployer-guard.io`: [`DeployerPolicy`], which admins write, and
//! [`DeployerClaim`], which deployer-guard alone writes.

#![allow(
    clippy::doc_markdown,
    reason = "doc comments are what `kubectl explain` shows, where backticks are noise"
)]
#![allow(
    unreachable_pub,
    reason = "the KubeSchema derive declares a public copy of each struct inside a function"
)]

pub mod claim;
pub mod crd;
pub mod policy;

pub use claim::{DeployerClaim, DeployerClaimSpec, DeployerClaimStatus};
pub use policy::{DeployerPolicy, DeployerPolicySpec, DeployerPolicyStatus};

/// The API group of both resources.
pub const GROUP: &str = "deployer-guard.io";

/// The served and stored version of both resources.
pub const VERSION: &str = "v1alpha1";
