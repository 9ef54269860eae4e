//! What holds a key, what does not, and what becomes of an admitted pod that does not arrive, or arrives late.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use deployer_guard::api::claim::{DeployerClaim, Outcome};
use deployer_guard_testkit::objects::{Answer, create_pod, create_pod_with, make_namespace, set_phase};
use deployer_guard_testkit::{ControlPlane, Process, Program, Stage, StageBuilder, http_get, until};
use futures::future::{join_all, try_join_all};
use k8s_openapi::api::core::v1::{Pod, ResourceQuota};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use tokio::sync::{OnceCell, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::common::run;
use crate::creators::{
    BY_LABEL, CONFIG, GIVEN_UP, LATE, assert_never_two, cause, claim, claims, deployer, own_client, settled, unrelated,
    with_short_window, witness,
};
use crate::own_webhook::{OwnWebhook, call_for};

/// A pod with this label is held by a gate of that name, after deployer-guard has answered, until the gate is opened.
const GATE: &str = "test/gate";
/// How long a claim may take to show what was just done.
const SOON: Duration = Duration::from_secs(4);

static SITE: OnceCell<Site> = OnceCell::const_new();

/// A stage on which lost creates are given up after 16 s, with a second validating webhook that holds pods back.
struct Site {
    stage: Stage,
    open: Arc<watch::Sender<HashSet<String>>>,
    _gates: OwnWebhook,
}

impl Site {
    async fn start(stage: StageBuilder) -> anyhow::Result<Self> {
        let stage = stage.start().await?;
        stage.enforce(BY_LABEL).await?;
        let open = Arc::new(watch::Sender::new(HashSet::from(["probe".to_owned()])));
        let gates = Arc::clone(&open);
        let webhook = OwnWebhook::start(&stage.pki, stage.plane.directory(), move |request| {
            let mut gates = gates.subscribe();
            Box::pin(async move {
                let gate = request["object"]["metadata"]["labels"][GATE]
                    .as_str()
                    .unwrap_or_default();
                gates.wait_for(|open| open.contains(gate)).await?;
                Ok(true)
            })
        })?;
        let probe = gated(unrelated("probe"), "probe");
        call_for(&stage.plane, &stage.pki, webhook.address, GATE, &probe, || {
            webhook.calls()
        })
        .await?;
        Ok(Self {
            stage,
            open,
            _gates: webhook,
        })
    }

    fn open(&self, gate: &str) {
        self.open.send_modify(|open| {
            open.insert(gate.to_owned());
        });
    }
}

/// A pod that the gate of this name holds.
fn gated(mut pod: Value, gate: &str) -> Value {
    pod["metadata"]["labels"][GATE] = json!(gate);
    pod
}

/// A pod that stays Terminating when it is deleted: the kubelet of its node, which is not there, would have to end it.
fn on_a_lost_node(mut pod: Value) -> Value {
    pod["spec"]["nodeName"] = json!("lost");
    pod
}

/// A namespace of a site, seen through both of its API servers.
struct Scene<'a> {
    site: &'a Site,
    namespace: &'static str,
    client: Client,
}

impl Scene<'static> {
    /// A namespace of the site that these tests share.
    async fn shared(namespace: &'static str) -> anyhow::Result<Self> {
        Scene::of(
            SITE.get_or_try_init(|| Site::start(with_short_window())).await?,
            namespace,
        )
        .await
    }
}

impl<'a> Scene<'a> {
    async fn of(site: &'a Site, namespace: &'static str) -> anyhow::Result<Self> {
        let client = site.stage.plane.client(0);
        make_namespace(&client, namespace, &[], false).await?;
        let scene = Self {
            site,
            namespace,
            client,
        };
        scene.both_answer(201, "").await?;
        Ok(scene)
    }

    /// Waits until a pod of no policy is answered like this by both API servers.
    async fn both_answer(&self, code: u16, text: &str) -> anyhow::Result<()> {
        for client in self.site.stage.plane.clients() {
            until("both API servers to know", Duration::from_secs(20), async || {
                let answer = create_pod_with(&client, self.namespace, &unrelated("known"), "dryRun=All").await?;
                ensure!(
                    answer.code == code && answer.message().contains(text),
                    "{} {}",
                    answer.code,
                    answer.message()
                );
                Ok(())
            })
            .await?;
        }
        Ok(())
    }

    async fn create(&self, pod: &Value) -> anyhow::Result<Answer> {
        create_pod(&self.client, self.namespace, pod).await
    }

    /// Creates a deployer of that name and generation; it must be admitted and seen.
    async fn admitted(&self, config: &str, name: &str) -> anyhow::Result<Pod> {
        self.admitted_pod(config, &deployer(config, name, name)).await
    }

    async fn admitted_pod(&self, config: &str, pod: &Value) -> anyhow::Result<Pod> {
        let answer = self.create(pod).await?;
        let stored = answer
            .result
            .map_err(|status| anyhow::anyhow!("{} {}", answer.code, status.message))?;
        let claim = settled(&self.client, self.namespace, config, SOON).await?;
        ensure!(claim.spec.holder.as_ref().map(|holder| &holder.uid) == stored.metadata.uid.as_ref());
        Ok(*stored)
    }

    /// A deployer of that name must be refused at both API servers for this cause, by a text that names `by`.
    async fn refused(&self, config: &str, name: &str, why: &str, by: &str) -> anyhow::Result<()> {
        for client in self.site.stage.plane.clients() {
            let answer = create_pod(&client, self.namespace, &deployer(config, name, name)).await?;
            ensure!(
                answer.code == 403
                    && cause(&answer) == why
                    && answer.message().contains(&format!("deployer pod {by:?}")),
                "{} {}",
                answer.code,
                answer.message()
            );
        }
        Ok(())
    }

    /// A deployer of that name must be answered `AlreadyExists`, and the claim be left as it is.
    async fn exists(&self, config: &str, name: &str) -> anyhow::Result<()> {
        let before = self.claim(config).await?;
        let answer = self.create(&deployer(config, name, name)).await?;
        ensure!(answer.code == 409, "{} {}", answer.code, answer.message());
        ensure!(answer.result.is_err_and(|status| status.reason == "AlreadyExists"));
        ensure!(self.claim(config).await?.spec == before.spec, "the claim changed");
        Ok(())
    }

    async fn claim(&self, config: &str) -> anyhow::Result<DeployerClaim> {
        claim(&self.client, self.namespace, config).await
    }

    async fn delete_claim(&self, config: &str) -> anyhow::Result<()> {
        let name = self.claim(config).await?.name_any();
        let claims: Api<DeployerClaim> = Api::namespaced(self.client.clone(), self.namespace);
        claims.delete(&name, &DeleteParams::default()).await?;
        Ok(())
    }

    async fn phase(&self, name: &str, phase: &str) -> anyhow::Result<()> {
        set_phase(&self.client, self.namespace, name, phase).await.map(drop)
    }

    async fn delete(&self, name: &str) -> anyhow::Result<()> {
        self.pods().delete(name, &DeleteParams::default()).await?;
        Ok(())
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), self.namespace)
    }

    /// Sends a create that a gate holds, and waits until the claim is given to it.
    async fn on_its_way(
        &self,
        config: &str,
        name: &str,
        gate: &str,
    ) -> anyhow::Result<JoinHandle<anyhow::Result<Answer>>> {
        let pod = gated(deployer(config, name, name), gate);
        let (client, namespace) = (self.client.clone(), self.namespace);
        let sent = tokio::spawn(async move { create_pod(&client, namespace, &pod).await });
        until("the create to be admitted", SOON, async || {
            let pending = self.claim(config).await?.spec.pending;
            ensure!(pending.iter().any(|entry| entry.name == name), "pending: {pending:?}");
            Ok(())
        })
        .await?;
        Ok(sent)
    }

    /// Tries another deployer until it is admitted; how long after `since` that was. It may only be refused as long as
    /// something is pending.
    async fn admitted_in_the_end(&self, config: &str, name: &str, since: Instant) -> anyhow::Result<Duration> {
        until("the key to be free", GIVEN_UP + LATE, async || {
            let answer = self.create(&deployer(config, name, name)).await?;
            ensure!(answer.is_created(), "{} {}", answer.code, answer.message());
            Ok(since.elapsed())
        })
        .await
    }

    /// The sum of a counter over the replicas.
    async fn counted(&self, counter: &str) -> anyhow::Result<u64> {
        let mut sum = 0;
        for replica in &self.site.stage.replicas {
            let (_, text) = http_get(&format!("http://{}/metrics", replica.health)).await?;
            let value = text
                .lines()
                .find_map(|line| line.strip_prefix(counter)?.strip_prefix(' '));
            sum += value
                .with_context(|| format!("no {counter} in {text}"))?
                .parse::<u64>()?;
        }
        Ok(sum)
    }
}

#[test]
fn a_terminating_holder_counts_until_it_is_gone_and_a_failed_one_that_terminates_does_not() {
    run(async {
        let scene = Scene::shared("terminating").await?;
        let watch = witness(&scene.site.stage.plane, "terminating").await?;
        scene
            .admitted_pod("cfg", &on_a_lost_node(deployer("cfg", "one", "one")))
            .await?;
        scene.delete("one").await?;
        ensure!(scene.pods().get("one").await?.metadata.deletion_timestamp.is_some());
        scene.refused("cfg", "two", "DeployerActive", "one").await?;
        scene.exists("cfg", "one").await?;
        scene
            .pods()
            .delete("one", &DeleteParams::default().grace_period(0))
            .await?;
        scene
            .admitted_pod("cfg", &on_a_lost_node(deployer("cfg", "two", "two")))
            .await?;

        scene.delete("two").await?;
        scene.refused("cfg", "three", "DeployerActive", "two").await?;
        scene.phase("two", "Failed").await?;
        ensure!(scene.pods().get("two").await?.metadata.deletion_timestamp.is_some());
        scene.admitted("cfg", "three").await?;
        assert_never_two(&watch.finish().await?);
        Ok(())
    });
}

#[test]
fn a_finished_holder_that_runs_again_holds_as_long_as_it_is_the_holder_and_changes_no_claim() {
    run(async {
        let scene = Scene::shared("again").await?;
        scene.admitted("cfg", "one").await?;
        let first = scene.claim("cfg").await?;
        scene.phase("one", "Succeeded").await?;
        scene.phase("one", "Running").await?;
        scene.refused("cfg", "two", "DeployerActive", "one").await?;
        assert_eq!(scene.claim("cfg").await?.spec, first.spec, "the claim changed");

        scene.phase("one", "Succeeded").await?;
        scene.admitted("cfg", "two").await?;
        let second = scene.claim("cfg").await?;
        assert_eq!(second.spec.outcome(None, "one"), Some(Outcome::Completed));
        scene.phase("one", "Running").await?;
        // Two are active now: a known limit, for the guard to report. The claim still names who was admitted.
        scene.refused("cfg", "three", "DeployerActive", "two").await?;
        sleep(Duration::from_secs(1)).await;
        assert_eq!(scene.claim("cfg").await?.spec, second.spec, "the claim changed");
        scene.phase("two", "Succeeded").await?;
        scene.admitted("cfg", "three").await?;
        Ok(())
    });
}

#[test]
fn a_finished_holder_that_still_exists_lets_the_next_one_in_and_its_name_answers_409() {
    run(async {
        let scene = Scene::shared("finished").await?;
        let watch = witness(&scene.site.stage.plane, "finished").await?;
        for (last, next, phase) in [("one", "two", "Succeeded"), ("two", "three", "Failed")] {
            if last == "one" {
                scene.admitted("cfg", last).await?;
            }
            scene.phase(last, phase).await?;
            scene.exists("cfg", last).await?;
            scene.admitted("cfg", next).await?;
            // Both are true of the name now; who works is what a user has to know.
            scene.refused("cfg", last, "DeployerActive", next).await?;
        }
        assert_never_two(&watch.finish().await?);
        Ok(())
    });
}

#[test]
fn the_holders_name_with_another_uid_is_another_pod() {
    run(async {
        let scene = Scene::shared("namesake").await?;
        let first = scene.admitted("cfg", "one").await?;
        scene.delete("one").await?;
        ensure!(scene.create(&unrelated("one")).await?.is_created());
        // The namesake holds nothing: another deployer gets in. But its name is taken.
        scene.exists("cfg", "one").await?;
        scene.admitted("cfg", "two").await?;
        scene.phase("two", "Succeeded").await?;
        scene.exists("cfg", "one").await?;
        scene.delete("one").await?;
        let again = scene.admitted("cfg", "one").await?;
        assert_ne!(first.metadata.uid, again.metadata.uid);
        scene.refused("cfg", "three", "DeployerActive", "one").await?;
        Ok(())
    });
}

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

/// Deleting a claim by hand forgets all that it held, and this is what that means:
/// - an active pod still refuses, since a key without a claim is decided with a list; nothing is written by that refusal;
/// - a pod that is on its way is forgotten: another one is admitted, and when the first one arrives two are active.
///   Once there is a claim again nobody lists any more, so the one that was forgotten holds nothing.
#[test]
fn deleting_a_claim_by_hand_forgets_who_is_on_its_way_and_not_who_is_active() {
    run(async {
        let scene = Scene::shared("forgotten").await?;
        let watch = witness(&scene.site.stage.plane, "forgotten").await?;
        scene.admitted("active", "one").await?;
        scene.delete_claim("active").await?;
        scene.refused("active", "two", "DeployerActive", "one").await?;
        ensure!(scene.claim("active").await.is_err(), "a refusal wrote a claim");
        scene.phase("one", "Succeeded").await?;
        scene.admitted("active", "two").await?;

        let sent = scene.on_its_way("pending", "early", "forgotten").await?;
        scene.refused("pending", "late", "DeployerPending", "early").await?;
        scene.delete_claim("pending").await?;
        scene.admitted("pending", "late").await?;
        scene.site.open("forgotten");
        assert_eq!(sent.await??.code, 201);
        scene.refused("pending", "third", "DeployerActive", "late").await?;
        scene.phase("late", "Succeeded").await?;
        scene.admitted("pending", "third").await?;

        let report = watch.finish().await?;
        assert_eq!((report.max_active["active"], report.max_active["pending"]), (1, 2));
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

/// etcd stands still when the pods are written, and the API servers give up (504). Some of the pods are stored when it goes
/// on, seconds after that answer: each of them holds its key, and the other keys become free.
#[test]
fn pods_that_are_stored_when_a_stalled_etcd_goes_on_never_meet_another_one() {
    run(async {
        let site = Site::start(with_short_window()).await?;
        let codes = stall(&site, Program::Etcd, Duration::from_secs(6)).await?;
        ensure!(codes.contains_key(&504), "etcd did not stall: {codes:?}");
        Ok(())
    });
}

/// An API server is stopped between the webhook's answer and the store, for longer than W and less than W + 10 s, while
/// others try at the other API server. It keeps creates for longer than the webhook was told, so all of them are stored then.
#[test]
fn pods_that_a_stopped_api_server_stores_after_the_window_and_before_the_second_look_never_meet_another_one() {
    run(async {
        let patient = ControlPlane::builder().api_servers(2);
        let site = Site::start(with_short_window().plane(patient)).await?;
        // The first replica knows the cluster through the API server that will be stopped.
        let first = site.stage.replicas[0].address;
        site.stage.balancer.remove(first);
        site.stage.balancer.cut(first);
        sleep(Duration::from_millis(200)).await;
        let codes = stall(&site, Program::ApiServer(0), Duration::from_secs(10)).await?;
        // Most arrive when it goes on; a create whose call to a webhook was still under way is given up by the API server.
        assert!(codes.contains_key(&201), "none arrived late: {codes:?}");
        assert!(codes.keys().all(|code| [201, 500, 504].contains(code)), "{codes:?}");
        Ok(())
    });
}

/// Creates that are under way at a time.
const STALLED: usize = 32;

/// Stops a program when creates at the first API server were admitted and none is written yet, for that long; others try at the
/// second API server all the time, until each key is held. Two must never be active. Gives the answers to the first ones.
async fn stall(site: &Site, program: Program, pause: Duration) -> anyhow::Result<BTreeMap<u16, usize>> {
    Scene::of(site, "stall").await?;
    let plane = &site.stage.plane;
    let watch = witness(plane, "stall").await?;
    let begun = Instant::now();
    let sent = (0..STALLED).map(|i| {
        let client = plane.client(0);
        let pod = gated(deployer(&format!("cfg{i}"), "early", &format!("cfg{i}-early")), "stall");
        tokio::spawn(async move { create_pod(&client, "stall", &pod).await })
    });
    let sent: Vec<_> = sent.collect();
    until("all creates to be admitted", SOON, async || {
        let claims = claims(&plane.client(1), "stall").await?;
        let pending = claims.values().filter(|claim| claim.spec.pending.len() == 1).count();
        ensure!(pending == STALLED, "{pending} are");
        Ok(())
    })
    .await?;
    let admitted = begun.elapsed();
    let process = plane.process(program);
    process.pause()?;
    site.open("stall");
    let (paused, going_on) = (Instant::now(), sleep(pause));
    let resume = async {
        going_on.await;
        process.resume()?;
        anyhow::Ok(paused.elapsed())
    };
    let first = async {
        let mut codes: BTreeMap<u16, usize> = BTreeMap::new();
        for answer in join_all(sent).await {
            // An API server that gives up may also close the connection.
            *codes.entry(answer?.map_or(0, |answer| answer.code)).or_default() += 1;
        }
        anyhow::Ok(codes)
    };
    let others = try_join_all((0..STALLED).map(async |i| {
        let next = deployer(&format!("cfg{i}"), "late", &format!("cfg{i}-late"));
        until("the key to be held", pause + GIVEN_UP + LATE, async || {
            // While nothing moves, a try may fail in any way.
            let answer = create_pod(&plane.client(1), "stall", &next).await?;
            let held = answer.is_created() || cause(&answer) == "DeployerActive";
            ensure!(held, "{} {}", answer.code, answer.message());
            Ok(answer.is_created())
        })
        .await
    }));
    let (resumed, codes, others) = tokio::join!(resume, first, others);
    let (resumed, codes, others) = (resumed?, codes?, others?);
    let free = others.iter().filter(|admitted| **admitted).count();
    println!(
        "{STALLED} creates, admitted in {admitted:.1?}, then {program:?} stopped for {resumed:.1?}: answered {codes:?}, {} were \
         stored, {free} keys became free, {:.1?}",
        STALLED - free,
        begun.elapsed()
    );
    let report = watch.finish().await?;
    assert_eq!(report.pods.len(), STALLED);
    assert_never_two(&report);
    Ok(codes)
}
