//! The counters of the replicas.

use std::collections::BTreeMap;

use anyhow::ensure;
use serde_json::json;

use super::scrape::Scrape;
use crate::common::run;
use crate::scene::{Scene, pod, policy};

#[test]
fn the_counters_of_the_replicas_add_up_to_what_clients_saw() {
    run(async {
        let name = "counted";
        let spec = json!({ "generation": { "label": "version" }, "reruns": "Never" });
        let scene = Scene::under(&[policy(name, &spec)], name).await?;
        let of =
            |pod_name: &str, config: &str| pod(pod_name, &[("scene", name), ("config", config), ("version", config)]);
        for config in ["a", "b", "c"] {
            scene.admits(&of(&format!("{config}-1"), config)).await?;
        }
        for _ in 0..4 {
            scene.refuses(&of("a-2", "a"), "DeployerActive").await?;
        }
        for _ in 0..2 {
            assert_eq!(scene.create(&of("b-1", "b")).await?.code, 409);
        }
        scene.set_phase("c-1", "Failed").await?;
        scene.refuses(&of("c-2", "c"), "GenerationAlreadyRun").await?;
        scene
            .refuses(&pod("d-1", &[("scene", name)]), "IdentityInvalid")
            .await?;
        let changed = json!({ "metadata": { "labels": { "config": "z" } } });
        ensure!(scene.patch("a-1", &changed).await.is_err(), "it was changed");

        let mut counted = BTreeMap::new();
        for replica in &scene.stage.replicas {
            let scrape = Scrape::of(replica).await?;
            for (labels, count) in scrape.samples("deployer_guard_decisions_total") {
                if labels.contains("policy=\"counted\"") {
                    *counted.entry(labels).or_insert(0) += count;
                }
            }
        }
        let labels = |operation: &str, verdict: &str, reason: &str| {
            format!(
                "policy=\"counted\",operation=\"{operation}\",verdict=\"{verdict}\",reason=\"{reason}\",dry_run=\"false\""
            )
        };
        assert_eq!(
            counted,
            BTreeMap::from([
                (labels("CREATE", "Admitted", "Free"), 3),
                (labels("CREATE", "Refused", "DeployerActive"), 4),
                (labels("CREATE", "NameExists", "AlreadyExists"), 2),
                (labels("CREATE", "Refused", "GenerationAlreadyRun"), 1),
                (labels("CREATE", "Refused", "IdentityInvalid"), 1),
                (labels("UPDATE", "Refused", "IdentityChanged"), 1),
            ])
        );
        Ok(())
    });
}
