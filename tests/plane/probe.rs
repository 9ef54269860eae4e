//! `deployer-guard crds apply` and `deployer-guard probe`, as a chart's hooks run them.

use std::process::Output;

use anyhow::{Context, ensure};
use deployer_guard_testkit::{ControlPlane, Stage};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;
use tokio::process::Command;

use crate::common::{PROGRAM, run};

const POLICY: &str = "
apiVersion: deployer-guard.io/v1alpha1
kind: DeployerPolicy
metadata: {name: probe}
spec:
  match: {objectSelector: {matchExpressions: [{key: deployer-guard.io/probe, operator: Exists}]}}
  config: {annotation: deployer-guard.io/probe-config}
";

async fn program(plane: &ControlPlane, arguments: &[&str]) -> anyhow::Result<Output> {
    Command::new(PROGRAM)
        .args(arguments)
        .arg("--kubeconfig")
        .arg(plane.kubeconfig(0))
        .kill_on_drop(true)
        .output()
        .await
        .context("running the program")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[test]
fn a_policy_that_is_in_force_passes_the_probe_and_leaves_nothing_behind() {
    run(async {
        let stage = Stage::builder(PROGRAM).guards(1).start().await?;
        let missing = program(&stage.plane, &["probe", "--policy", "probe"]).await?;
        ensure!(
            !missing.status.success() && said(&missing).contains("no such DeployerPolicy"),
            "{}",
            said(&missing)
        );
        stage.enforce(POLICY).await?;
        let probe = program(&stage.plane, &["probe", "--policy", "probe"]).await?;
        let text = said(&probe);
        ensure!(probe.status.success(), "{text}");
        for line in [
            "in force:",
            "refused: a deployer pod",
            "admitted: a deployer pod",
            "admitted: a pod that no",
        ] {
            ensure!(text.contains(line), "{text}");
        }
        let left = stage
            .plane
            .kubectl(&["get", "pods,deployerclaims", "-A", "-o", "name"])
            .await?;
        ensure!(left.stdout.is_empty(), "{}", said(&left));

        // What waiting does not help is said at once.
        stage
            .enforce(
                &POLICY
                    .replace("name: probe", "name: other")
                    .replace("probe-config", "config"),
            )
            .await?;
        for (arguments, words) in [
            (["--policy", "other", "--namespace", "default"], "spec.config must be"),
            (["--policy", "probe", "--namespace", "nowhere"], "--namespace"),
        ] {
            let unfit = program(&stage.plane, &[&["probe", "--timeout", "1h"][..], &arguments].concat()).await?;
            ensure!(
                !unfit.status.success() && said(&unfit).contains(words),
                "{}",
                said(&unfit)
            );
        }

        // The replicas are gone: the API server itself says so, which is no refusal of ours.
        for replica in &stage.replicas {
            replica.webhook.process().kill()?;
        }
        let unanswered = program(&stage.plane, &["probe", "--policy", "probe", "--timeout", "2s"]).await?;
        ensure!(!unanswered.status.success(), "{}", said(&unanswered));
        Ok(())
    });
}

#[test]
fn definitions_are_made_brought_up_to_date_and_left_alone() {
    run(async {
        let plane = ControlPlane::builder().start().await?;
        let apply = async || {
            let output = program(&plane, &["crds", "apply"]).await?;
            ensure!(output.status.success(), "{}", said(&output));
            anyhow::Ok(said(&output))
        };
        ensure!(apply().await?.matches(" created").count() == 2);
        ensure!(apply().await?.matches(" unchanged").count() == 2);
        let api: Api<CustomResourceDefinition> = Api::all(plane.client(0));
        let name = "deployerpolicies.deployer-guard.io";
        let wanted = api.get(name).await?.spec;
        let old = json!({ "spec": { "names": { "shortNames": ["old"] } } });
        let params = PatchParams {
            field_manager: Some("helm".into()),
            ..PatchParams::default()
        };
        api.patch(name, &params, &Patch::Merge(&old)).await?;
        ensure!(apply().await?.contains(&format!("{name} changed")));
        ensure!(api.get(name).await?.spec == wanted);

        // Who cannot reach the cluster is told what to give.
        let as_nobody = ["crds", "apply", "--timeout", "5s", "--kubeconfig", "/dev/null"];
        let refused = Command::new(PROGRAM).args(as_nobody).output().await?;
        ensure!(
            !refused.status.success() && said(&refused).contains("--kubeconfig"),
            "{}",
            said(&refused)
        );
        Ok(())
    });
}
