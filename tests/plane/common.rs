//! One stage for all tests that do it no harm.

use std::future::Future;
use std::sync::LazyLock;

use deployer_guard_testkit::objects::make_namespace;
pub(crate) use deployer_guard_testkit::openshift::Rollout;
use deployer_guard_testkit::{ControlPlane, Stage, StageBuilder};
use tokio::runtime::Runtime;
use tokio::sync::OnceCell;

/// The program under test.
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_deployer-guard");
/// The policy for `OpenShift` `DeploymentConfigs`, as users get it.
pub(crate) const OPENSHIFT: &str = include_str!("../../policies/openshift-deploymentconfig.yaml");
/// The name of that policy.
pub(crate) const OPENSHIFT_NAME: &str = "openshift-deploymentconfig";

/// Tests run on threads of their own; what they share lives on this runtime.
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().expect("a runtime"));
static STAGE: OnceCell<Stage> = OnceCell::const_new();

/// Runs a test to its end on the shared runtime.
pub(crate) fn run(test: impl Future<Output = anyhow::Result<()>>) {
    if let Err(error) = RUNTIME.block_on(test) {
        panic!("{error:?}");
    }
}

/// A stage with two API servers on one etcd and two replicas of the webhook.
pub(crate) fn two_by_two() -> StageBuilder {
    Stage::builder(PROGRAM).plane(ControlPlane::builder().api_servers(2).audit_log(true))
}

/// The stage that tests share, each in namespaces of its own. `OpenShift`'s policy is in force. It ends with this process.
pub(crate) async fn shared() -> anyhow::Result<&'static Stage> {
    STAGE
        .get_or_try_init(|| async {
            let stage = two_by_two().start().await?;
            stage.enforce(OPENSHIFT).await?;
            anyhow::Ok(stage)
        })
        .await
}

/// A namespace of the shared stage.
pub(crate) async fn namespace(name: &str) -> anyhow::Result<&'static Stage> {
    let stage = shared().await?;
    make_namespace(&stage.plane.client(0), name, &[], false).await?;
    Ok(stage)
}
