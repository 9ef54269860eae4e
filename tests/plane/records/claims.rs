//! What the claims themselves show.

use anyhow::ensure;
use deployer_guard_testkit::until;
use kube::Resource;

use super::held;
use crate::common::{OPENSHIFT_NAME, run};
use crate::scene::SOON;

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
