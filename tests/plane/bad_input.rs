//! Identities as an API server lets them through: what cannot be one is refused, what can has a claim of its own.

use anyhow::ensure;
use serde_json::{Value, json};

use crate::common::run;
use crate::scene::{Scene, pod, policy};

fn of_config(name: &str, config: Option<&str>) -> Value {
    let mut pod = pod(name, &[("scene", "bad-input")]);
    if let Some(config) = config {
        pod["metadata"]["annotations"] = json!({ "config": config });
    }
    pod
}

#[test]
fn an_identity_is_refused_with_the_remedy_or_has_a_claim_of_its_own() {
    run(async {
        let annotation = json!({ "config": { "label": null, "annotation": "config" } });
        let scene = Scene::under(&[policy("bad-input", &annotation)], "bad-input").await?;
        let long = "x".repeat(500);
        let (one, other) = (format!("{long}a"), format!("{long}b"));
        let mut good = vec![
            one.as_str(),
            &other,
            "a/b",
            "a-b",
            "A-b",
            "../a b?c=d#e",
            "Käse 🧀",
            "ä",
            "a\u{308}",
        ];
        for (place, config) in good.iter().enumerate() {
            scene.admits(&of_config(&format!("good-{place}"), Some(config))).await?;
        }
        let large = "x".repeat(65_536);
        for (place, (config, text)) in [
            (None, "the pod has no annotation config, which spec.config.annotation of the policy reads; set it on the pod"),
            (Some(""), "annotation config is empty, and spec.config.annotation of the policy reads it; give it a value"),
            (Some(large.as_str()), "annotation config has 65536 bytes, and spec.config.annotation of the policy reads at most 512; give it a shorter value"),
            (Some("a\nb"), "annotation config holds control characters, and spec.config.annotation of the policy reads it; give it a value without them"),
        ]
        .into_iter()
        .enumerate()
        {
            let message = scene.refuses(&of_config(&format!("bad-{place}"), config), "IdentityInvalid").await?;
            ensure!(message.contains(text), "{message}");
        }
        let claims = scene.claims().await?;
        let mut configs: Vec<_> = claims.iter().map(|claim| claim.spec.config.as_str()).collect();
        configs.sort_unstable();
        good.sort_unstable();
        assert_eq!(configs, good);
        Ok(())
    });
}
