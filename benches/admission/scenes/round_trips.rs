//! What single requests cost: an admission waits for a claim's GET, a pod's GET and a claim's write, one after another,
//! beside the call of the webhook itself. That is its floor.

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, PostParams};
use serde_json::json;
use tokio::time::Instant;

use super::{Row, rows};
use crate::common::samples::Samples;
use crate::side::{Place, Side, fresh};

/// Each kind of request in turn, one at a time.
pub(crate) async fn round_trips(condition: &'static str, place: &Place, samples: usize) -> anyhow::Result<Vec<Row>> {
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("deployer-guard.io", "v1alpha1", "DeployerClaim"));
    let claims: Api<DynamicObject> = Api::namespaced_with(place.client.clone(), &place.namespace, &kind);
    let pods: Api<Pod> = Api::namespaced(place.client.clone(), &place.namespace);
    let spec = |config: usize| json!({ "protocol": 1, "config": config.to_string(), "policy": { "name": "none", "uid": "none" } });
    let claim = DynamicObject::new("round-trips", &kind).data(json!({ "spec": spec(0) }));
    claims.create(&PostParams::default(), &claim).await?;
    let mut taken =
        ["create a pod", "get a pod", "get a claim", "replace a claim"].map(|name| (name, Samples::default()));
    let plainly = PostParams::default();
    for number in 0..samples {
        let pod = place.pod(Side::None, &format!("round-trips-{}", fresh()), 1).await?;
        place.create_all(std::slice::from_ref(&pod), 1, &mut taken[0].1).await?;
        let name = pod["metadata"]["name"].as_str().unwrap_or_default();
        timed(&mut taken[1].1, pods.get(name)).await?;
        let mut claim = timed(&mut taken[2].1, claims.get("round-trips")).await?;
        claim.data["spec"] = spec(number);
        let replaced = claims.replace("round-trips", &plainly, &claim);
        timed(&mut taken[3].1, replaced).await?;
        place.delete_all(&[pod]).await?;
    }
    Ok(rows(condition, "single requests, no webhook", &taken))
}

async fn timed<T>(took: &mut Samples, request: impl Future<Output = kube::Result<T>>) -> kube::Result<T> {
    let begun = Instant::now();
    let answer = request.await?;
    took.push(begun.elapsed());
    took.spend(begun.elapsed());
    Ok(answer)
}
