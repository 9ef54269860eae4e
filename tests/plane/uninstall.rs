//! With all of our pods gone nothing but matched deployers is harder than before; and once the configuration is removed nothing is.

use std::time::Duration;

use anyhow::ensure;
use deployer_guard_testkit::objects::{create_pod, make_namespace};
use deployer_guard_testkit::{ControlPlane, NAMESPACE, Stage, until};
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::Client;
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use serde_json::json;

use crate::common::{OPENSHIFT, PROGRAM, Rollout, run};
use crate::scene::pod;

const LIMIT: Duration = Duration::from_secs(90);

async fn delete_namespace(client: &Client, name: &str) -> anyhow::Result<()> {
    let api: Api<Namespace> = Api::all(client.clone());
    api.delete(name, &DeleteParams::default()).await?;
    until(&format!("namespace {name} to be gone"), LIMIT, async || {
        let left = api.get_opt(name).await?;
        ensure!(left.is_none(), "{:?}", left.and_then(|left| left.status));
        Ok(())
    })
    .await
}

/// A namespace with a deployer, a Job with its pod, and a claim.
async fn furnish(client: &Client, name: &str, deployer: bool) -> anyhow::Result<()> {
    make_namespace(client, name, &[], true).await?;
    if deployer {
        let rollout = Rollout::new(name, "cfg", 1);
        let uid = rollout.begin(client, "New").await?;
        let answer = create_pod(client, name, &rollout.pod(&uid)).await?;
        ensure!(answer.is_created(), "{}", answer.message());
    }
    let template = pod("", &[("app", "job")]);
    let job = json!({ "metadata": { "name": "job" }, "spec": { "template": {
        "metadata": { "labels": { "app": "job" } }, "spec": template["spec"],
    } } });
    Api::<Job>::namespaced(client.clone(), name)
        .create(&PostParams::default(), &serde_json::from_value(job)?)
        .await?;
    until("the Job's pod", LIMIT, async || {
        let pods = Api::<Pod>::namespaced(client.clone(), name)
            .list(&ListParams::default().labels("app=job"))
            .await?;
        ensure!(!pods.items.is_empty(), "none");
        Ok(())
    })
    .await
}

#[test]
fn with_all_of_ours_gone_only_matched_deployers_are_refused_and_without_the_configuration_nothing_is() {
    run(async {
        let stage = Stage::builder(PROGRAM)
            .plane(ControlPlane::builder().controller_manager(true))
            .replicas(1)
            .guards(1)
            .start()
            .await?;
        let client = stage.plane.client(0);
        stage.enforce(OPENSHIFT).await?;
        furnish(&client, "before", true).await?;
        furnish(&client, "stays", true).await?;
        stage.replicas[0].webhook.process().kill()?;
        stage.guards[0].process().kill()?;

        // Bootstrap: our own pods, even ones that look like deployers, and everything that no policy matches.
        for (namespace, name) in [
            (NAMESPACE, "deployer-guard-0"),
            ("kube-system", "proxy"),
            ("stays", "app"),
        ] {
            let answer = create_pod(&client, namespace, &pod(name, &[("app", "deployer-guard")])).await?;
            ensure!(answer.is_created(), "{namespace}/{name}: {}", answer.message());
        }
        let ours = Rollout::new(NAMESPACE, "cfg", 1);
        let uid = ours.begin(&client, "New").await?;
        let answer = create_pod(&client, NAMESPACE, &ours.pod(&uid)).await?;
        ensure!(answer.is_created(), "{}", answer.message());
        furnish(&client, "after", false).await?;
        let refused = Rollout::new("after", "cfg", 1);
        let uid = refused.begin(&client, "New").await?;
        let answer = create_pod(&client, "after", &refused.pod(&uid)).await?;
        ensure!(
            answer.code == 500 && answer.message().contains("failed calling webhook"),
            "{}",
            answer.message()
        );
        delete_namespace(&client, "before").await?;
        delete_namespace(&client, "after").await?;

        // The configuration goes first, and nothing brings it back.
        Api::<ValidatingWebhookConfiguration>::all(client.clone())
            .delete("deployer-guard", &DeleteParams::default())
            .await?;
        let next = Rollout::new("stays", "cfg", 2);
        let uid = next.begin(&client, "New").await?;
        until("deployers to be admitted again", LIMIT, async || {
            let answer = create_pod(&client, "stays", &next.pod(&uid)).await?;
            ensure!(answer.is_created(), "{}", answer.message());
            Ok(())
        })
        .await?;
        delete_namespace(&client, "stays").await?;
        delete_namespace(&client, NAMESPACE).await
    });
}
