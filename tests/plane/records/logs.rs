//! What clients are told, the decision log, and the API server's audit log.

use std::collections::BTreeMap;

use anyhow::{Context, ensure};
use deployer_guard_testkit::until;
use serde_json::json;

use super::{VERDICTS, held};
use crate::common::{OPENSHIFT_NAME, run};
use crate::scene::SOON;

#[test]
fn kubectl_prints_the_refusal_with_the_holder_and_the_way_out() {
    run(async {
        let (scene, _, second) = held("records-kubectl").await?;
        let file = scene.file("second", &second)?;
        let (done, printed) = scene.kubectl(&["create", "-f", &file]).await?;
        ensure!(!done, "it was created");
        assert_eq!(
            printed.trim_end(),
            format!(
                "Error from server (Forbidden): error when creating \"{file}\": admission webhook \"{VERDICTS}\" denied the request: \
                 DeployerPolicy \"{OPENSHIFT_NAME}\" refuses pod \"cfg-2-deploy\" for \"cfg\" (DeployerActive): deployer pod \"cfg-1-deploy\" (generation \
                 \"cfg-1\") is active, and only one deployer may work at once. Wait until it has finished, or end it: kubectl -n \
                 records-kubectl delete pod cfg-1-deploy"
            )
        );
        // What it says to do helps.
        let (done, printed) = scene.kubectl(&["delete", "pod", "cfg-1-deploy"]).await?;
        ensure!(done, "{printed}");
        let (done, printed) = scene.kubectl(&["create", "-f", &file]).await?;
        ensure!(done, "{printed}");
        Ok(())
    });
}

#[test]
fn the_same_cause_has_the_same_text_each_time_and_on_each_replica() {
    run(async {
        let (scene, _, second) = held("records-text").await?;
        let mut texts = Vec::new();
        for _ in 0..6 {
            texts.push(scene.refuses(&second, "DeployerActive").await?);
        }
        texts.dedup();
        assert_eq!(texts.len(), 1, "{texts:#?}");
        Ok(())
    });
}

#[test]
fn the_api_servers_audit_log_has_policy_verdict_key_and_holder() {
    run(async {
        let (scene, holder, second) = held("records-audit").await?;
        scene.refuses(&second, "DeployerActive").await?;
        let annotations = async |pod: &str| {
            until("the audit event", SOON, async || {
                let events = scene.stage.plane.audit_events()?;
                let of_it = events.into_iter().find(|event| {
                    let object = &event["objectRef"];
                    object["namespace"] == "records-audit" && object["name"] == pod && event["verb"] == "create"
                });
                let event = of_it.context("not there")?;
                let ours = event["annotations"].as_object().into_iter().flatten();
                Ok(ours
                    .filter_map(|(key, value)| {
                        let key = key.strip_prefix(VERDICTS)?.strip_prefix('/')?;
                        Some((key.to_owned(), value.as_str()?.to_owned()))
                    })
                    .collect::<BTreeMap<_, _>>())
            })
            .await
        };
        let of = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            pairs
                .iter()
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                .collect()
        };
        assert_eq!(
            annotations("cfg-1-deploy").await?,
            of(&[
                ("key", "records-audit/cfg"),
                ("policy", "openshift-deploymentconfig@1"),
                ("verdict", "Admitted: Free"),
            ])
        );
        assert_eq!(
            annotations("cfg-2-deploy").await?,
            of(&[
                ("holder", &format!("cfg-1-deploy {holder}")),
                ("key", "records-audit/cfg"),
                ("policy", "openshift-deploymentconfig@1"),
                ("verdict", "Refused: DeployerActive"),
            ])
        );
        Ok(())
    });
}

#[test]
fn each_decision_is_one_log_line_with_who_what_and_why() {
    run(async {
        let (scene, _, second) = held("records-log").await?;
        let message = scene.refuses(&second, "DeployerActive").await?;
        let claim = scene.claim().await?.metadata.name.context("a name")?;
        let lines = until("two log lines", SOON, async || {
            let lines = scene.decisions()?;
            ensure!(lines.len() == 2, "{} lines", lines.len());
            Ok(lines)
        })
        .await?;
        let mut line = lines
            .into_iter()
            .find(|line| line["pod"] == "cfg-2-deploy")
            .context("no line of the second")?;
        for (field, is_given) in [("request", 36), ("pod_uid", 36), ("timestamp", 20)] {
            let length = line[field].as_str().map_or(0, str::len);
            ensure!(length >= is_given, "{field}: {line}");
        }
        ensure!(line["took_ms"].as_f64().is_some_and(|took| took > 0.0), "{line}");
        for varying in ["request", "pod_uid", "timestamp", "took_ms"] {
            line.as_object_mut().context("an object")?.remove(varying);
        }
        assert_eq!(
            line,
            json!({
                "level": "INFO",
                "target": "deployer_guard::decision",
                "message": message,
                "policy": OPENSHIFT_NAME,
                "policy_generation": 1,
                "mode": "Enforce",
                "operation": "CREATE",
                "dry_run": false,
                "user": "admin",
                "namespace": "records-log",
                "pod": "cfg-2-deploy",
                "key": "records-log/cfg",
                "claim": claim,
                "verdict": "Refused",
                "reason": "DeployerActive",
                "allowed": false,
                "holder": "cfg-1-deploy",
            })
        );
        Ok(())
    });
}

#[test]
fn what_is_logged_by_default_is_ours_and_the_warnings_of_what_we_build_on() {
    run(async {
        let (scene, _, _) = held("records-log-default").await?;
        for replica in &scene.stage.replicas {
            for line in replica.webhook.log_lines()? {
                let target = line["target"].as_str().unwrap_or_default();
                ensure!(
                    line["level"] != "INFO" || target.starts_with("deployer_guard"),
                    "{line}"
                );
            }
        }
        Ok(())
    });
}
