//! What the claims themselves show.

use anyhow::ensure;
use deployer_guard_testkit::until;
use kube::Resource;
use serde_json::json;

use super::held;
use crate::common::{OPENSHIFT_NAME, run};
use crate::scene::{SOON, Scene, openshift_policy};

#[test]
fn kubectl_get_deployerclaims_says_who_holds_what() {
    run(async {
        let (scene, _, second) = held("records-columns").await?;
        for _ in 0..3 {
            scene.refuses(&second, "DeployerActive").await?;
        }
        let printed = until("the claim's status to be written", SOON, async || {
            let (_, printed) = scene.kubectl(&["get", "deployerclaims"]).await?;
            let shown: Vec<_> = printed
                .split_whitespace()
                .filter(|word| ["Held", "3"].contains(word))
                .collect();
            ensure!(shown == ["Held", "3"], "{printed}");
            Ok(printed)
        })
        .await?;
        let mut lines = printed.lines();
        let columns: Vec<_> = lines.next().unwrap_or_default().split_whitespace().collect();
        assert_eq!(
            columns,
            [
                "NAME",
                "CONFIG",
                "GENERATION",
                "HOLDER",
                "PHASE",
                "SINCE",
                "REJECTIONS",
                "AGE"
            ]
        );
        let values: Vec<_> = lines.next().unwrap_or_default().split_whitespace().collect();
        assert_eq!(values[1..4], ["cfg", "cfg-1", "cfg-1-deploy"], "{printed}");
        let claim = scene.claim().await?;
        let kind = deployer_guard::api::DeployerClaim::kind(&());
        assert_eq!(
            (kind.as_ref(), Some(values[0])),
            ("DeployerClaim", claim.metadata.name.as_deref())
        );
        Ok(())
    });
}

#[test]
fn short_names_work_and_kubectl_explain_describes_each_field() {
    run(async {
        let (scene, _, _) = held("records-explain").await?;
        let (done, printed) = scene.kubectl(&["get", "dclaim"]).await?;
        ensure!(done && printed.contains("cfg-1-deploy"), "{printed}");
        let (done, printed) = scene.kubectl(&["get", "dpol"]).await?;
        ensure!(done && printed.contains(OPENSHIFT_NAME), "{printed}");
        for (path, says) in [
            ("deployerpolicy", "which pods are deployers"),
            ("deployerpolicy.spec.match", "It must narrow"),
            (
                "deployerpolicy.spec.match.objectSelector",
                "as in a webhook configuration",
            ),
            ("deployerpolicy.spec.match.matchConditions", "at most 56"),
            (
                "deployerpolicy.spec.config",
                "exactly one of label, annotation, expression",
            ),
            ("deployerpolicy.spec.generation.ordinal", "yields an int that grows"),
            ("deployerpolicy.spec.owner.expression", "yields a bool"),
            ("deployerpolicy.spec.reruns", "AfterFailure"),
            ("deployerpolicy.spec.leftovers", "cannot prevent or clean up"),
            ("deployerclaim", "which deployer pod holds a config"),
            (
                "deployerclaim.spec.holder",
                "The deployer pod that the claim was last given to",
            ),
            ("deployerclaim.spec.pending", "not yet seen in the store"),
        ] {
            let (done, printed) = scene.kubectl(&["explain", path]).await?;
            let one_line = printed.split_whitespace().collect::<Vec<_>>().join(" ");
            ensure!(done && one_line.contains(says), "{path}: {printed}");
        }
        let (_, printed) = scene
            .kubectl(&[
                "explain",
                "deployerpolicy",
                "--recursive",
                "--output",
                "plaintext-openapiv2",
            ])
            .await?;
        ensure!(!printed.contains("<no description>"), "{printed}");
        Ok(())
    });
}

#[test]
fn owners_that_are_kept_out_are_listed_as_waiting_until_a_deployer_of_theirs_is_admitted() {
    run(async {
        let name = "records-waiting";
        let policy = openshift_policy(name, (name, "yes"), &json!({ "owner": { "wake": "OnRelease" } }))?;
        let scene = Scene::under(&[policy], name).await?;
        let begun = async |version| {
            let (_, mut pod) = scene.begun("cfg", version).await?;
            pod["metadata"]["labels"][name] = json!("yes");
            anyhow::Ok(pod)
        };
        let waiting = async |expected: &[(&str, Option<i64>)]| {
            until("the claim's status to be written", SOON, async || {
                let status = scene.claim().await?.status.unwrap_or_default();
                let waiting = status.waiting.iter();
                let waiting: Vec<_> = waiting.map(|owner| (owner.name.as_str(), owner.ordinal)).collect();
                ensure!(waiting == expected, "{waiting:?}");
                Ok(status.waiting)
            })
            .await
        };
        scene.admits(&begun(2).await?).await?;
        let (older, newer) = (begun(1).await?, begun(3).await?);
        for _ in 0..2 {
            scene.refuses(&older, "DeployerActive").await?;
            scene.refuses(&newer, "DeployerActive").await?;
        }
        let owners = waiting(&[("cfg-3", Some(3)), ("cfg-1", Some(1))]).await?;
        assert_eq!(owners[0].uid, newer["metadata"]["ownerReferences"][0]["uid"]);
        assert_eq!(
            (&*owners[0].kind, &*owners[0].api_version),
            ("ReplicationController", "v1")
        );
        scene.set_phase("cfg-2-deploy", "Succeeded").await?;
        scene.admits(&newer).await?;
        waiting(&[("cfg-1", Some(1))]).await?;
        Ok(())
    });
}
