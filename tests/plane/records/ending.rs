//! A replica that ends takes no record with it.

use std::time::Duration;

use anyhow::{Context, ensure};
use deployer_guard::api::DeployerClaim;
use deployer_guard_testkit::Stage;
use deployer_guard_testkit::objects::{create_pod, make_namespace};
use k8s_openapi::api::events::v1::Event;
use kube::api::{Api, ListParams};
use serde_json::json;

use crate::common::{PROGRAM, run};
use crate::scene::{pod, policy};

#[test]
fn what_was_refused_just_before_a_replica_ends_is_on_record() {
    run(async {
        let stage = Stage::builder(PROGRAM)
            .replicas(1)
            .argument("--drain-delay=0s")
            .start()
            .await?;
        let client = stage.plane.client(0);
        make_namespace(&client, "ending", &[], false).await?;
        stage.enforce(&policy("ending", &json!({})).to_string()).await?;
        let deployer = |name| pod(name, &[("scene", "ending"), ("config", "cfg")]);
        let first = create_pod(&client, "ending", &deployer("first")).await?;
        ensure!(first.is_created(), "{}", first.message());
        let claims: Api<DeployerClaim> = Api::namespaced(client.clone(), "ending");
        let mut refused = 0;
        for round in 0..20 {
            let second = create_pod(&client, "ending", &deployer("second")).await?;
            ensure!(second.code == 403, "round {round}: {}", second.message());
            refused += 1;
        }
        // The last one, whose Event nobody had the time to publish.
        let late = |name| pod(name, &[("scene", "ending"), ("config", "late")]);
        let first = create_pod(&client, "ending", &late("late-1")).await?;
        ensure!(first.is_created(), "{}", first.message());
        let second = create_pod(&client, "ending", &late("late-2")).await?;
        ensure!(second.code == 403, "{}", second.message());
        let webhook = stage.replicas[0].webhook.process();
        webhook.terminate()?;
        ensure!(webhook.wait_end(Duration::from_secs(10)).await? == 0);

        let all = claims.list(&ListParams::default()).await?.items;
        let claim = all.into_iter().find(|claim| claim.spec.config == "cfg");
        let claim = claim.context("a claim")?;
        let recorded = claim
            .status
            .and_then(|status| status.rejections)
            .map(|rejections| rejections.count);
        ensure!(recorded == Some(refused), "{recorded:?} of {refused} are in the claim");
        let events: Api<Event> = Api::namespaced(client, "ending");
        let events = events.list(&ListParams::default()).await?;
        ensure!(
            events
                .iter()
                .any(|event| event.note.as_deref().is_some_and(|note| note.contains("late-2"))),
            "no Event tells of the last one"
        );
        Ok(())
    });
}
