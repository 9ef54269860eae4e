//! The witness of the store. Needs: the built programs.

use std::time::Duration;

use deployer_guard_testkit::{ControlPlane, Program, StoreWatch, objects};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::DeleteParams;
use serde_json::{Value, json};

#[tokio::test]
async fn two_active_at_once_are_seen_however_short() -> anyhow::Result<()> {
    let plane = ControlPlane::builder().api_servers(2).start().await?;
    let client = plane.client(0);
    objects::make_namespace(&client, "seen", &[], false).await?;
    objects::create_pod(&client, "seen", &pod("before", "other")).await?;
    let watch = StoreWatch::start(plane.clients(), Some("seen"), key).await?;
    // One after the other for `fine`, both at once for `torn`, and others that are nobody's concern.
    for name in ["fine-1", "fine-2"] {
        objects::create_pod(&client, "seen", &pod(name, "fine")).await?;
        objects::set_phase(&client, "seen", name, "Succeeded").await?;
    }
    for name in ["torn-1", "torn-2"] {
        objects::create_pod(&plane.client(1), "seen", &pod(name, "torn")).await?;
    }
    for name in ["torn-1", "torn-2"] {
        Api::<Pod>::namespaced(client.clone(), "seen")
            .delete(name, &DeleteParams::default())
            .await?;
    }
    objects::create_pod(&client, "default", &pod("elsewhere-1", "fine")).await?;
    objects::create_pod(&client, "default", &pod("elsewhere-2", "fine")).await?;

    let report = watch.finish().await?;
    assert_eq!(
        report
            .max_active
            .iter()
            .map(|(key, most)| (&**key, *most))
            .collect::<Vec<_>>(),
        [("fine", 1), ("other", 1), ("torn", 2)]
    );
    assert_eq!(report.pods["fine"].len(), 2);
    let [violation] = &report.violations[..] else {
        panic!("{:?}", report.violations)
    };
    let names: Vec<&str> = violation.pods.iter().map(|pod| &*pod.name).collect();
    assert_eq!((&*violation.key, names), ("torn", vec!["torn-1", "torn-2"]));
    Ok(())
}

#[tokio::test]
async fn nothing_is_missed_while_its_api_server_is_paused_and_another_killed() -> anyhow::Result<()> {
    let plane = ControlPlane::builder().api_servers(2).start().await?;
    let watch = StoreWatch::start(plane.clients(), None, key).await?;
    plane.process(Program::ApiServer(0)).pause()?;
    for number in 0..20 {
        objects::create_pod(
            &plane.client(1),
            "default",
            &pod(&format!("p-{number}"), &format!("k-{number}")),
        )
        .await?;
    }
    // Long enough for the watch to be taken up at the other API server.
    tokio::time::sleep(Duration::from_secs(4)).await;
    plane.process(Program::ApiServer(0)).resume()?;
    plane.process(Program::ApiServer(1)).kill()?;
    for number in 20..40 {
        objects::create_pod(
            &plane.client(0),
            "default",
            &pod(&format!("p-{number}"), &format!("k-{number}")),
        )
        .await?;
    }
    let report = watch.finish().await?;
    assert_eq!((report.pods.len(), report.max(), report.events), (40, 1, 40));
    Ok(())
}

/// Deployers are told by a label.
fn key(pod: &Value) -> Option<String> {
    pod["metadata"]["labels"]["config"].as_str().map(str::to_owned)
}

fn pod(name: &str, config: &str) -> Value {
    json!({
        "metadata": {"name": name, "labels": {"config": config}},
        "spec": {"containers": [{"name": "c", "image": "none"}]},
    })
}
