//! Two rollouts of one `DeploymentConfig` whose deployers are sent in the same millisecond, to two API servers.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::ensure;
use deployer_guard_testkit::objects::{Answer, make_namespace, set_phase};
use deployer_guard_testkit::{Balancer, ControlPlane, Pki, StoreWatch};
use kube::api::{Api, ApiResource, DynamicObject, ListParams};
use kube::{Client, ResourceExt};
use serde_json::Value;
use tokio::time::Instant;

use crate::common::{Rollout, namespace, run};
use crate::creators::{Creators, assert_never_two, cause};
use crate::own_webhook::{OwnWebhook, call_for};

/// Pairs of deployers.
const PAIRS: u32 = 90;
/// Pairs of one config, one after the other: for the first one the key has no claim yet.
const PAIRS_PER_CONFIG: u32 = 3;
const LABEL: &str = "openshift.io/deployer-pod-for.name";
const DC: &str = "openshift.io/deployment-config.name";

#[test]
fn of_90_pairs_of_rollouts_in_the_same_millisecond_one_of_each_is_admitted_and_never_two_are_active() {
    run(async {
        let stage = namespace("pairs").await?;
        let client = stage.plane.client(0);
        let creators = Creators::new(&stage.plane, 2).await?;
        let watch = witness(&stage.plane, "pairs").await?;
        let (begun, mut spread, mut together) = (Instant::now(), Duration::ZERO, 0);
        let mut seen: BTreeMap<(&str, String), usize> = BTreeMap::new();
        for pair in 0..PAIRS {
            let (older, newer) = pair_of(pair, "pairs");
            let pods = [
                older.pod(&older.begin(&client, "New").await?),
                newer.pod(&newer.begin(&client, "New").await?),
            ];
            let volley = creators.volley("pairs", in_turn(pair, pods)).await?;
            spread = spread.max(volley.spread);
            together += u32::from(volley.spread < Duration::from_millis(1));
            let [to_older, to_newer]: [Answer; 2] = in_turn(pair, volley.answers).try_into().expect("two answers");
            let (winner, loser, name, refused) = match (to_older.code, to_newer.code) {
                (201, 403) => (&older, &newer, "older", &to_newer),
                (403, 201) => (&newer, &older, "newer", &to_older),
                codes => anyhow::bail!("pair {pair}: {codes:?} {} {}", to_older.message(), to_newer.message()),
            };
            let why = cause(refused);
            // Pending: the winner was not in the store yet when the other one was judged.
            let legal =
                matches!(why, "DeployerActive" | "DeployerPending") || (name == "newer" && why == "OlderGeneration");
            ensure!(
                legal,
                "pair {pair}: the {name} one won, and the other was refused by {}",
                refused.message()
            );
            *seen.entry((name, why.to_owned())).or_default() += 1;
            set_phase(&client, "pairs", &winner.deployer(), "Succeeded").await?;
            winner.set_phase(&client, "Complete").await?;
            loser.set_phase(&client, "Failed").await?;
        }
        println!(
            "{PAIRS} pairs, {together} sent within a millisecond and all within {spread:.1?}: {seen:?} (winner, refusal of \
             the other), {:.1?}",
            begun.elapsed()
        );
        assert_never_two(&watch.finish().await?);
        Ok(())
    });
}

/// What the test above would see if the product only looked: two servers that list the pods live and allow where none is
/// active. Of 90 pairs it let 80 in whole (two cores, etcd
/// without fsync). Here the first pair that gets in whole is enough.
#[test]
fn a_webhook_that_only_lists_lets_both_of_a_pair_in() {
    run(async {
        let plane = ControlPlane::builder().api_servers(2).start().await?;
        make_namespace(&plane.client(0), "lists", &[], false).await?;
        let pki = Pki::new("a webhook that lists")?;
        let servers = [plane.client(0), plane.client(1)].map(|client| {
            OwnWebhook::start(&pki, plane.directory(), move |request| {
                let client = client.clone();
                Box::pin(async move { Ok(active_others(&client, &request).await? == 0) })
            })
        });
        let servers: Vec<OwnWebhook> = servers.into_iter().collect::<Result<_, _>>()?;
        let balancer = Balancer::start(servers.iter().map(|server| server.address)).await?;
        let probe = Rollout::new("default", "probe", 1).pod("none");
        let calls = || servers.iter().map(OwnWebhook::calls).sum();
        call_for(&plane, &pki, balancer.address(), LABEL, &probe, calls).await?;

        let creators = Creators::new(&plane, 2).await?;
        let watch = witness(&plane, "lists").await?;
        let (mut tried, mut doubles) = (0, 0);
        while tried < PAIRS && doubles == 0 {
            let (older, newer) = pair_of(tried, "lists");
            let volley = creators
                .volley("lists", vec![older.pod("none"), newer.pod("none")])
                .await?;
            let admitted: Vec<String> = volley
                .answers
                .iter()
                .filter_map(|answer| Some(answer.result.as_ref().ok()?.name_any()))
                .collect();
            doubles += u32::from(admitted.len() == 2);
            for pod in admitted {
                set_phase(&plane.client(0), "lists", &pod, "Succeeded").await?;
            }
            tried += 1;
        }
        println!("a webhook that lists let both in in {doubles} of {tried} pairs");
        let violations = watch.finish().await?.violations;
        assert!(doubles > 0 && !violations.is_empty(), "{tried} pairs, and never two");
        Ok(())
    });
}

/// The two rollouts of a pair: new ones of a config that goes on.
fn pair_of(pair: u32, namespace: &str) -> (Rollout, Rollout) {
    let config = format!("dc{}", pair / PAIRS_PER_CONFIG);
    let version = 1 + 2 * (pair % PAIRS_PER_CONFIG);
    (
        Rollout::new(namespace, &config, version),
        Rollout::new(namespace, &config, version + 1),
    )
}

/// The older one goes to either API server in turn; undone by doing it again.
fn in_turn<T>(pair: u32, both: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut both: Vec<T> = both.into_iter().collect();
    if pair % 2 == 1 {
        both.reverse();
    }
    both
}

/// Watches who is active for which `DeploymentConfig`.
async fn witness(plane: &ControlPlane, namespace: &str) -> anyhow::Result<StoreWatch> {
    StoreWatch::start(plane.clients(), Some(namespace), |pod| {
        pod["metadata"]["labels"][LABEL].as_str()?;
        pod["metadata"]["annotations"][DC].as_str().map(ToOwned::to_owned)
    })
    .await
}

/// How many pods of other names a live list shows as active for the config of the pod in a review.
async fn active_others(client: &Client, request: &Value) -> anyhow::Result<usize> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let config = text(&request["object"]["metadata"]["annotations"][DC]);
    let kind = ApiResource::erase::<k8s_openapi::api::core::v1::Pod>(&());
    let pods: Api<DynamicObject> = Api::namespaced_with(client.clone(), &text(&request["namespace"]), &kind);
    let listed = pods.list(&ListParams::default().labels(LABEL)).await?;
    let in_the_way = listed.items.iter().filter(|pod| {
        let phase = pod.data["status"]["phase"].as_str().unwrap_or_default();
        pod.annotations().get(DC) == Some(&config) && !matches!(phase, "Succeeded" | "Failed")
    });
    Ok(in_the_way.count())
}
