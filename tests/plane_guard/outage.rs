//! `failurePolicy: Ignore` with every replica of the webhook down.

use anyhow::ensure;
use serde_json::json;

use crate::ground::{Ground, bound, pod, policy, stage};
use crate::scene::run;

const DELETES: &str = "deletes";
const REPORTS: &str = "reports";

#[test]
fn who_came_in_while_every_replica_was_down_is_dealt_with_as_the_policy_says() {
    run(async {
        let ground = Ground::new(stage().replicas(2).guards(2), "outage").await?;
        let reporting = json!({ "leftovers": { "duplicates": "Report" } });
        ground
            .enforce(&[policy(DELETES, &json!({})), policy(REPORTS, &reporting)])
            .await?;
        let mut holders = Vec::new();
        for (policy, config) in [(DELETES, "a"), (DELETES, "b"), (DELETES, "c"), (REPORTS, "a")] {
            let name = format!("{policy}-{config}-1");
            let uid = ground.create(&pod(&name, policy, config)).await?;
            ground.until_held((policy, config), &name).await?;
            holders.push((name, uid));
        }
        ground.refuses(&pod("deletes-a-2", DELETES, "a")).await?;

        ground.end_webhook()?;
        ground.lets_in(&pod("deletes-a-2", DELETES, "a")).await?;
        // What comes in while its holder is there: not started, started, and where it is only to be reported.
        ground.create(&pod("deletes-a-2", DELETES, "a")).await?;
        ground.create(&bound(pod("deletes-b-2", DELETES, "b"))).await?;
        ground.create(&pod("reports-a-2", REPORTS, "a")).await?;
        // And after it.
        ground.set_phase("deletes-c-1", "Failed").await?;
        ground.create(&pod("deletes-c-2", DELETES, "c")).await?;
        ground.return_webhook().await?;

        ground.until_gone("deletes-a-2").await?;
        ground.until_held((DELETES, "c"), "deletes-c-2").await?;
        for (name, policy, config) in [("deletes-b-2", DELETES, "b"), ("reports-a-2", REPORTS, "a")] {
            ground.until_logged("DuplicateDeployer", name).await?;
            ground
                .until_claim((policy, config), "one that names the duplicate", |claim| {
                    claim.spec.spared.iter().any(|pod| pod.name == name)
                })
                .await?;
        }
        for (policy, config) in [(DELETES, "a"), (DELETES, "b"), (DELETES, "c"), (REPORTS, "a")] {
            ground.refuses(&pod("late", policy, config)).await?;
        }
        for (name, uid) in &holders {
            ensure!(ground.uid(name).await? == *uid, "{name} was replaced");
        }
        for name in ["deletes-b-2", "reports-a-2"] {
            ground.uid(name).await?;
        }
        // The holder's end does not open the door: the duplicate works still.
        ground.set_phase("deletes-b-1", "Succeeded").await?;
        ground.refuses(&pod("late", DELETES, "b")).await?;
        ground
            .end_with(&["deletes-a-2", "deletes-b-2", "reports-a-2"])
            .await
            .map(drop)
    });
}
