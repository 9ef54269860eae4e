//! Claims of pods that are never stored: what refuses them after admission, and how the key becomes free without anybody's help.

use std::cell::Cell;
use std::collections::HashSet;
use std::time::Duration;

use anyhow::{Context, ensure};
use deployer_guard_testkit::objects::create_pod;
use deployer_guard_testkit::{Process, until};
use futures::future::{join_all, try_join_all};
use k8s_openapi::api::core::v1::ResourceQuota;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::json;
use tokio::time::Instant;

use crate::common::run;
use crate::creators::{
    CONFIG, GIVEN_UP, LATE, assert_never_two, cause, claims, deployer, own_client, settled, unrelated,
    with_short_window, witness,
};
use crate::site::{SOON, Scene, Site, gated, with_unreachable};

#[test]
fn an_admitted_pod_whose_name_was_taken_meanwhile_is_given_up_after_the_window() {
    run(async {
        let scene = Scene::shared("taken").await?;
        let begun = Instant::now();
        let sent = scene.on_its_way("cfg", "one", "taken").await?;
        ensure!(scene.create(&unrelated("one")).await?.is_created());
        scene.site.open("taken");
        assert_eq!(sent.await??.code, 409);
        scene.refused("cfg", "two", "DeployerPending", "one").await?;
        scene.exists("cfg", "one").await?;
        let took = scene.admitted_in_the_end("cfg", "two", begun).await?;
        println!("the key was free after {took:.1?}");
        ensure!(took >= GIVEN_UP, "it was free after {took:?} already");
        Ok(())
    });
}

/// Whether it never arrived or went at once looks the same, so it is believed to be on its way: other names wait, its own
/// name does not, and no outcome is remembered.
#[test]
fn a_pod_that_is_gone_before_a_replica_saw_it_costs_other_names_the_window() {
    run(async {
        let scene = Scene::shared("unseen").await?;
        let begun = Instant::now();
        for config in ["same", "other"] {
            let name = format!("{config}-one");
            let sent = scene.on_its_way(config, &name, config).await?;
            let replicas = || {
                scene
                    .site
                    .stage
                    .replicas
                    .iter()
                    .map(|replica| replica.webhook.process())
            };
            replicas().try_for_each(Process::pause)?;
            scene.site.open(config);
            let answer = sent.await;
            let deleted = scene.delete(&name).await;
            replicas().try_for_each(Process::resume)?;
            assert_eq!(answer??.code, 201);
            deleted?;
            scene.refused(config, "two", "DeployerPending", &name).await?;
        }
        scene
            .create(&deployer("same", "same-one", "same-one"))
            .await?
            .result
            .map_err(|status| anyhow::anyhow!(status.message))?;
        let took = scene.admitted_in_the_end("other", "two", begun).await?;
        println!("another name was admitted after {took:.1?}");
        ensure!(took >= GIVEN_UP, "it was admitted after {took:?} already");
        assert_eq!(scene.claim("other").await?.spec.outcomes, []);
        Ok(())
    });
}

/// The quota refuses after the webhook has admitted, and nobody tells the webhook.
#[test]
fn a_create_that_a_quota_refuses_costs_its_own_name_nothing_and_other_names_the_window() {
    run(async {
        let site = Site::start(with_short_window()).await?;
        let scene = Scene::of(&site, "quota").await?;
        let watch = witness(&site.stage.plane, "quota").await?;
        let quotas: Api<ResourceQuota> = Api::namespaced(scene.client.clone(), "quota");
        let none = json!({ "metadata": { "name": "none" }, "spec": { "hard": { "pods": "0" } } });
        quotas
            .create(&PostParams::default(), &serde_json::from_value(none)?)
            .await?;
        let status = json!({ "status": { "hard": { "pods": "0" }, "used": { "pods": "0" } } });
        quotas
            .patch_status("none", &PatchParams::default(), &Patch::Merge(&status))
            .await?;
        scene.both_answer(403, "exceeded quota").await?;

        let begun = Instant::now();
        for (config, name) in [("same", "one"), ("other", "two")] {
            let answer = scene.create(&deployer(config, name, name)).await?;
            ensure!(
                answer.code == 403 && answer.message().contains("exceeded quota"),
                "{}",
                answer.message()
            );
        }
        quotas.delete("none", &DeleteParams::default()).await?;
        scene.both_answer(201, "").await?;

        scene.refused("same", "three", "DeployerPending", "one").await?;
        scene.refused("other", "four", "DeployerPending", "two").await?;
        let asked = Instant::now();
        let answer = scene.create(&deployer("same", "one", "one")).await?;
        ensure!(answer.is_created(), "{} {}", answer.code, answer.message());
        let (at_once, took) = (
            asked.elapsed(),
            scene.admitted_in_the_end("other", "four", begun).await?,
        );
        println!("after a quota's refusal: the same name after {at_once:.1?}, another name after {took:.1?}");
        ensure!(
            at_once < Duration::from_secs(2),
            "the same name was admitted after {at_once:?}"
        );
        ensure!(took >= GIVEN_UP, "another name was admitted after {took:?} already");

        let same = settled(&scene.client, "quota", "same", LATE).await?;
        assert_eq!(
            same.spec.holder.context("a holder")?.uid,
            answer.result.unwrap().metadata.uid.unwrap()
        );
        settled(&scene.client, "quota", "other", SOON).await?;
        // Both replicas followed both of them.
        assert_eq!(scene.counted("deployer_guard_pending_dropped_total").await?, 2);
        until("nothing to be followed any more", LATE, async || {
            ensure!(scene.counted("deployer_guard_pending_followed").await? == 0);
            Ok(())
        })
        .await?;
        assert_never_two(&watch.finish().await?);
        Ok(())
    });
}

/// Other webhooks are asked side by side with ours, and one of them refuses, or must be asked and cannot be reached.
#[test]
fn a_create_that_another_webhook_refuses_or_fails_costs_its_own_name_nothing_and_other_names_the_window() {
    run(async {
        let scene = Scene::shared("others").await?;
        let watch = witness(&scene.site.stage.plane, "others").await?;
        scene.site.open("deny-others");
        let begun = Instant::now();
        let refuses = |pod| gated(pod, "deny-others");
        for (why, code, text) in [
            ("refuses", 403, "refused by the test's webhook"),
            ("fails", 500, "failed calling webhook"),
        ] {
            for whose in ["same", "other"] {
                let config = format!("{whose}-{why}");
                let pod = deployer(&config, "one", &format!("{config}-one"));
                let pod = if code == 403 {
                    refuses(pod)
                } else {
                    with_unreachable(pod)
                };
                let answer = scene.create(&pod).await?;
                ensure!(
                    answer.code == code && answer.message().contains(text),
                    "{config}: {} {}",
                    answer.code,
                    answer.message()
                );
                let first = format!("{config}-one");
                scene
                    .refused(&config, &format!("{config}-two"), "DeployerPending", &first)
                    .await?;
            }
            let config = format!("same-{why}");
            let answer = scene
                .create(&deployer(&config, "one", &format!("{config}-one")))
                .await?;
            ensure!(answer.is_created(), "{} {}", answer.code, answer.message());
        }
        for why in ["refuses", "fails"] {
            let config = format!("other-{why}");
            let took = scene
                .admitted_in_the_end(&config, &format!("{config}-two"), begun)
                .await?;
            println!("after a webhook that {why}: another name after {took:.1?}");
            ensure!(took >= GIVEN_UP, "another name was admitted after {took:?} already");
            let config = format!("same-{why}");
            let held = settled(&scene.client, "others", &config, LATE).await?;
            let holder = held.spec.holder.context("a holder")?;
            assert_eq!(
                Some(holder.uid),
                scene.pods().get(&format!("{config}-one")).await?.metadata.uid
            );
        }
        assert_never_two(&watch.finish().await?);
        Ok(())
    });
}

/// Creates that are sent when the replicas are stopped in the middle of them.
const INTERRUPTED: usize = 48;

/// The replicas stop between the write of a claim and its answer, for longer than the API servers wait: the answers are late.
/// Then both are killed, so that nobody remembers since when a pod has been on its way: replicas that start afterwards give it up
/// by themselves, W + 10 s after the first of them met it.
#[test]
fn answers_that_come_too_late_leak_keys_that_replicas_started_afterwards_give_up() {
    run(async {
        let site = Site::start(with_short_window()).await?;
        let scene = Scene::of(&site, "too-late").await?;
        let watch = witness(&site.stage.plane, "too-late").await?;
        let leaked = too_late(&scene).await?;
        let (same, others) = leaked.split_first().context("a leak")?;
        let answer = scene.create(&deployer(same, "one", &format!("{same}-one"))).await?;
        ensure!(answer.is_created(), "{} {}", answer.code, answer.message());

        for replica in &site.stage.replicas {
            replica.webhook.process().restart()?;
        }
        for replica in &site.stage.replicas {
            replica.wait_ready().await?;
        }
        let begun = Instant::now();
        let waited = try_join_all(others.iter().take(8).map(async |config| {
            let pending = Cell::new(false);
            until("the key to be free", GIVEN_UP + LATE, async || {
                let next = deployer(config, "two", &format!("{config}-two"));
                let answer = scene.create(&next).await?;
                pending.set(pending.get() || cause(&answer) == "DeployerPending");
                ensure!(answer.is_created(), "{} {}", answer.code, answer.message());
                Ok(())
            })
            .await?;
            anyhow::Ok((pending.get(), begun.elapsed()))
        }))
        .await?;
        println!(
            "{} leaks by late answers; another name, at replicas that started since: {waited:.1?}",
            leaked.len()
        );
        let early = waited.iter().filter(|(pending, took)| *pending && *took < GIVEN_UP);
        assert_eq!(early.count(), 0, "{waited:?}");
        ensure!(
            waited.iter().any(|(pending, _)| *pending),
            "no leak was met: {waited:?}"
        );
        assert_never_two(&watch.finish().await?);
        Ok(())
    });
}

/// Stops both replicas in the middle of many creates until the API servers have given up; the configs whose claims name a
/// pod that nobody stored. It takes a moment between two steps of a replica, so it is tried until there are two.
async fn too_late(scene: &Scene<'_>) -> anyhow::Result<Vec<String>> {
    let stage = &scene.site.stage;
    for round in 0..10 {
        let sent = (0..INTERRUPTED).map(|i| {
            let config = format!("cfg{round}-{i}");
            let pod = deployer(&config, "one", &format!("{config}-one"));
            let (client, namespace) = (stage.plane.client(i % 2), scene.namespace);
            tokio::spawn(async move { (config, create_pod(&client, namespace, &pod).await) })
        });
        let sent: Vec<_> = sent.collect();
        let first = format!("cfg{round}-");
        while !claims(&scene.client, scene.namespace)
            .await?
            .keys()
            .any(|config| config.starts_with(&first))
        {}
        let replicas = || stage.replicas.iter().map(|replica| replica.webhook.process());
        replicas().try_for_each(Process::pause)?;
        let answers = join_all(sent).await;
        replicas().try_for_each(Process::resume)?;
        for replica in &stage.replicas {
            replica.wait_ready().await?;
        }
        let mut unanswered = HashSet::new();
        for answer in answers {
            let (config, answer) = answer?;
            if !answer.is_ok_and(|answer| answer.is_created()) {
                unanswered.insert(config);
            }
        }
        let mut leaked: Vec<String> = Vec::new();
        for (config, claim) in claims(&scene.client, scene.namespace).await? {
            if !claim.spec.pending.is_empty() && unanswered.contains(&config) {
                leaked.push(config);
            }
        }
        if leaked.len() >= 2 {
            return Ok(leaked);
        }
    }
    anyhow::bail!("no answer was late in ten rounds")
}

/// Whatever was done for a client that hung up: the pod is there and holds, or it is not and the key is free again after
/// the window at the latest.
#[test]
fn a_client_that_hangs_up_in_the_middle_leaves_a_pod_that_holds_or_a_key_that_becomes_free() {
    const CONFIGS: u64 = 40;
    run(async {
        let scene = Scene::shared("hangup").await?;
        let plane = &scene.site.stage.plane;
        let watch = witness(plane, "hangup").await?;
        let mut admitted = 0;
        for i in 0..CONFIGS {
            let (config, api_server) = (format!("cfg{i}"), usize::from(i % 2 == 1));
            let client = own_client(plane, api_server).await?;
            client.apiserver_version().await?;
            let pod = deployer(&config, "one", &format!("{config}-one"));
            let create = create_pod(&client, "hangup", &pod);
            // Dropped with its connection.
            let _gone = tokio::time::timeout(Duration::from_millis(i / 2), create).await;
            drop(client);
            let next = deployer(&config, "two", &format!("{config}-two"));
            let answer = create_pod(&plane.client(1 - api_server), "hangup", &next).await?;
            ensure!(
                answer.is_created() || matches!(cause(&answer), "DeployerActive" | "DeployerPending"),
                "{} {}",
                answer.code,
                answer.message()
            );
            admitted += usize::from(answer.is_created());
        }
        let begun = Instant::now();
        until("nothing to be pending", GIVEN_UP + LATE, async || {
            let claims = claims(&scene.client, "hangup").await?;
            let pending = claims.values().filter(|claim| !claim.spec.pending.is_empty()).count();
            ensure!(pending == 0, "{pending} claims have something pending");
            Ok(())
        })
        .await?;
        let (stored, waited) = (
            scene.pods().list(&ListParams::default().labels(CONFIG)).await?,
            begun.elapsed(),
        );
        let held: HashSet<&str> = stored
            .items
            .iter()
            .filter_map(|pod| pod.labels().get(CONFIG))
            .map(String::as_str)
            .collect();
        println!(
            "{CONFIGS} clients hung up: {} pods stored, {admitted} next ones admitted at once, nothing pending after {waited:.1?}",
            stored.items.len()
        );
        for i in 0..CONFIGS {
            let config = format!("cfg{i}");
            let answer = scene
                .create(&deployer(&config, "three", &format!("{config}-three")))
                .await?;
            assert_eq!(
                answer.is_created(),
                !held.contains(&*config),
                "{config}: {}",
                answer.message()
            );
        }
        assert_never_two(&watch.finish().await?);
        Ok(())
    });
}
