//! Deployers that come in while the webhook configuration is empty and no guard runs.

use std::time::Duration;

use anyhow::ensure;
use deployer_guard_testkit::{NAMESPACE, Stage, until};
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use kube::ResourceExt;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;
use tokio::time::sleep;

use crate::scene::{SOON, run};
use crate::site::{PROGRAM, Site};

/// The policy has been in force before, so these are no old friends: the guard that starts then removes them.
#[test]
fn what_came_in_past_an_empty_configuration_is_removed_by_the_next_guard() {
    run(async {
        let builder = Stage::builder(PROGRAM).replicas(1);
        let builder = builder.guard_argument("--lease-duration").guard_argument("3s");
        let mut site = Site::before(builder).await?;
        site.guard("guard-0", None).await?;
        site.begin().await?;
        let configurations: Api<ValidatingWebhookConfiguration> = Api::all(site.client.clone());
        for round in 0..4 {
            let config = format!("cfg{round}");
            let first = site.admit(&config, &format!("{config}-first")).await?;
            site.stage.guards[0].process().kill()?;
            let empty = json!({ "webhooks": [] });
            configurations
                .patch(NAMESPACE, &PatchParams::default(), &Patch::Merge(&empty))
                .await?;
            until("the API server to ask nobody", SOON, async || {
                let answer = site.create(&config, &format!("{config}-second")).await?;
                ensure!(answer.is_created(), "{}", answer.message());
                Ok(())
            })
            .await?;
            site.again().await?;
            let left = site.until_settled(&config).await?;
            ensure!(left.uid() == first.uid(), "{} is left", left.name_any());
            site.stage.wait_enforced("guarded").await?;
            sleep(Duration::from_secs(1)).await;
        }
        Ok(())
    });
}
