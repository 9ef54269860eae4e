//! A namespace that a policy does not select for a while.

use anyhow::ensure;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;
use std::time::Duration;
use tokio::time::sleep;

use crate::ground::{Ground, bound, pod, policy, stage};
use crate::scene::run;

const P: &str = "selection";

async fn label(ground: &Ground, value: Option<&str>) -> anyhow::Result<()> {
    let namespaces: Api<Namespace> = Api::all(ground.client.clone());
    let patch = json!({ "metadata": { "labels": { "deployers": value } } });
    namespaces
        .patch(ground.namespace, &PatchParams::default(), &Patch::Merge(patch))
        .await?;
    Ok(())
}

#[test]
fn a_namespace_that_was_labelled_out_is_left_alone_and_put_in_order_when_it_is_in_again() {
    run(async {
        let ground = Ground::new(stage().guards(2), P).await?;
        let chosen = json!({ "match": {
            "objectSelector": { "matchLabels": { "scene": P } },
            "namespaceSelector": { "matchLabels": { "deployers": "one" } },
        }, "failurePolicy": "Fail" });
        label(&ground, Some("one")).await?;
        ground.enforce(&[policy(P, &chosen)]).await?;
        let mut holders = Vec::new();
        for config in ["a", "b"] {
            let name = format!("{config}-1");
            let uid = ground.create(&pod(&name, P, config)).await?;
            ground.until_held((P, config), &name).await?;
            holders.push((name, uid));
        }
        ground.refuses(&pod("a-2", P, "a")).await?;

        label(&ground, None).await?;
        ground.lets_in(&pod("a-2", P, "a")).await?;
        let outside = ground.create(&pod("a-2", P, "a")).await?;
        ground.create(&bound(pod("b-2", P, "b"))).await?;
        // Longer than guards go without looking.
        sleep(Duration::from_secs(7)).await;
        ensure!(
            ground.uid("a-2").await? == outside,
            "one of a namespace that no policy speaks of was replaced"
        );

        label(&ground, Some("one")).await?;
        ground.until_gone("a-2").await?;
        ground.until_logged("DuplicateDeployer", "b-2").await?;
        for config in ["a", "b"] {
            ground.refuses(&pod("late", P, config)).await?;
        }
        for (name, uid) in &holders {
            ensure!(ground.uid(name).await? == *uid, "{name} was replaced");
        }
        ground.uid("b-2").await?;
        ground.end_with(&["a-2", "b-2"]).await.map(drop)
    });
}
