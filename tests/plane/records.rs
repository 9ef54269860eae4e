//! What is on record of a decision, and how people find it.

use std::collections::BTreeMap;

use anyhow::{Context, ensure};
use deployer_guard_testkit::{http_get, until};
use k8s_openapi::api::events::v1::Event;
use kube::Resource;
use kube::api::{Api, ListParams};
use serde_json::{Value, json};

use crate::common::{OPENSHIFT_NAME, run};
use crate::scene::{SOON, Scene, pod, policy, uid_of};

const VERDICTS: &str = "openshift-deploymentconfig.policies.deployer-guard.io";

/// Config `cfg` with `cfg-1-deploy` active, whose uid is given, and `cfg-2-deploy` to be refused.
async fn held(namespace: &str) -> anyhow::Result<(Scene, String, Value)> {
    let scene = Scene::openshift(namespace).await?;
    let (_, first) = scene.begun("cfg", 1).await?;
    let admitted = scene.create(&first).await?;
    ensure!(admitted.is_created(), "{}", admitted.message());
    scene.confirmed().await?;
    let (_, second) = scene.begun("cfg", 2).await?;
    Ok((scene, uid_of(&admitted), second))
}

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
                 DeployerPolicy \"{OPENSHIFT_NAME}\" refuses pod \"cfg-2-deploy\" for \"cfg\": deployer pod \"cfg-1-deploy\" (generation \
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
            let (code, text) = http_get(&format!("http://{}/metrics", replica.health)).await?;
            assert_eq!(code, 200);
            for (labels, count) in samples(&text, "deployer_guard_decisions_total") {
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

/// The samples of one metric: labels and value.
fn samples(text: &str, metric: &str) -> Vec<(String, u64)> {
    let lines = text
        .lines()
        .filter_map(|line| line.strip_prefix(metric)?.strip_prefix('{'));
    lines
        .filter_map(|line| {
            let (labels, value) = line.split_once("} ")?;
            Some((labels.to_owned(), value.parse().ok()?))
        })
        .collect()
}

/// Waits for so many observations of refusals of a kind of object; gives their Events.
async fn rejections(scene: &Scene, kind: &str, observed: i32) -> anyhow::Result<Vec<Event>> {
    let api: Api<Event> = Api::namespaced(scene.client.clone(), &scene.namespace);
    until(&format!("{observed} refusals on a {kind}"), SOON, async || {
        let events = api.list(&ListParams::default()).await?.items;
        let of_it: Vec<Event> = events
            .into_iter()
            .filter(|event| event.regarding.as_ref().and_then(|it| it.kind.as_deref()) == Some(kind))
            .collect();
        let count: i32 = of_it
            .iter()
            .map(|event| event.series.as_ref().map_or(1, |series| series.count))
            .sum();
        ensure!(count == observed, "{count} so far");
        Ok(of_it)
    })
    .await
}

#[test]
fn a_refusal_is_an_event_on_the_controller_and_on_the_claim_with_the_holder_beside_it() {
    run(async {
        let (scene, holder, second) = held("records-event").await?;
        let message = scene.refuses(&second, "DeployerActive").await?;
        let claim = scene.claim().await?;
        for (kind, name) in [
            ("ReplicationController", "cfg-2".to_owned()),
            ("DeployerClaim", claim.metadata.name.clone().context("a name")?),
        ] {
            let event = rejections(&scene, kind, 1).await?.remove(0);
            let regarding = event.regarding.context("regarding")?;
            assert_eq!(regarding.name, Some(name));
            ensure!(regarding.uid.is_some(), "no uid");
            let related = event.related.context("related")?;
            assert_eq!(
                (related.kind.as_deref(), related.name.as_deref(), related.uid.as_deref()),
                (Some("Pod"), Some("cfg-1-deploy"), Some(holder.as_str()))
            );
            assert_eq!(event.reason.as_deref(), Some("DeployerRejected"));
            assert_eq!(event.type_.as_deref(), Some("Warning"));
            assert_eq!(event.reporting_controller.as_deref(), Some("deployer-guard.io/webhook"));
            assert_eq!(event.note.as_ref(), Some(&message));
        }
        let (_, described) = scene.kubectl(&["describe", "rc", "cfg-2"]).await?;
        ensure!(
            described.contains("DeployerRejected")
                && described.contains("deployer pod \"cfg-1-deploy\" (generation \"cfg-1\") is active"),
            "{described}"
        );
        let (_, described) = scene.kubectl(&["describe", "dclaim"]).await?;
        ensure!(described.contains("DeployerRejected"), "{described}");
        let (_, listed) = scene.kubectl(&["get", "events"]).await?;
        ensure!(
            listed.contains("DeployerRejected") && listed.contains("replicationcontroller/cfg-2"),
            "{listed}"
        );
        Ok(())
    });
}

#[test]
fn a_refusal_for_the_pod_alone_is_an_event_on_its_owner() {
    run(async {
        let (scene, _, mut second) = held("records-pod-alone").await?;
        second["metadata"]["annotations"] = json!({});
        let message = scene.refuses(&second, "IdentityInvalid").await?;
        let event = rejections(&scene, "ReplicationController", 1).await?.remove(0);
        assert_eq!(event.regarding.and_then(|owner| owner.name).as_deref(), Some("cfg-2"));
        assert_eq!(event.note, Some(message));

        let out = json!({ "metadata": { "annotations": { "openshift.io/deployment-config.name": "x" } } });
        ensure!(scene.patch("cfg-1-deploy", &out).await.is_err(), "it was changed");
        let events = rejections(&scene, "ReplicationController", 2).await?;
        let owners = events
            .iter()
            .filter_map(|event| event.regarding.as_ref()?.name.as_deref());
        assert_eq!(owners.collect::<std::collections::BTreeSet<_>>().len(), 2);
        Ok(())
    });
}

#[test]
fn a_refusal_that_repeats_is_one_event_of_each_replica_with_a_count() {
    run(async {
        let (scene, _, second) = held("records-series").await?;
        for _ in 0..6 {
            scene.refuses(&second, "DeployerActive").await?;
        }
        let events = rejections(&scene, "ReplicationController", 6).await?;
        ensure!(events.len() <= scene.stage.replicas.len(), "{} Events", events.len());
        let listed = scene.kubectl(&["get", "events", "-o", "wide"]).await?.1;
        ensure!(listed.contains("DeployerRejected"), "{listed}");
        Ok(())
    });
}

#[test]
fn refusals_of_different_pods_by_one_holder_are_different_events() {
    run(async {
        let (scene, _, second) = held("records-notes").await?;
        let (_, third) = scene.begun("cfg", 3).await?;
        for _ in 0..4 {
            scene.refuses(&second, "DeployerActive").await?;
            scene.refuses(&third, "DeployerActive").await?;
        }
        let events = rejections(&scene, "DeployerClaim", 8).await?;
        for pod in ["cfg-2-deploy", "cfg-3-deploy"] {
            let of_it = events
                .iter()
                .filter(|event| event.note.as_ref().is_some_and(|note| note.contains(pod)));
            let count: i32 = of_it
                .map(|event| event.series.as_ref().map_or(1, |series| series.count))
                .sum();
            assert_eq!(count, 4, "{pod}");
        }
        Ok(())
    });
}

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
