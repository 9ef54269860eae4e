//! Deployers that run: what counts as active is a pod that exists and has neither succeeded nor failed.

use anyhow::{Context, ensure};
use deployer_guard_testkit::objects::set_phase;
use deployer_guard_testkit::until;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, PostParams};
use serde_json::{Value, json};

use crate::site::{SOON, Site};
use crate::work::{deployer, of_config, phase, template};

/// All of them side by side, each in a namespace of its own: most of the time is kubelet's.
pub(crate) async fn all(site: &Site) -> anyhow::Result<()> {
    site.usual().await?;
    let (retries, replacements, grace, memory, evicted, forced, gone) = tokio::join!(
        retries(site),
        replacements(site),
        grace(site),
        out_of_memory(site),
        evicted(site),
        forced(site),
        node_gone(site)
    );
    retries.context("a Job's next try")?;
    replacements.context("a Job's replacement of a pod that ends")?;
    grace.context("a deployer that takes 30 s to end")?;
    memory.context("one that is killed for its memory")?;
    evicted.context("one that is evicted")?;
    forced.context("one that is deleted by force")?;
    gone.context("one whose node went away")
}

/// A deployer that stays when it is told to end, for this long.
fn stubborn(config: &str, name: &str, grace: u32) -> Value {
    let mut pod = deployer(config, name, &["-ignore-term"]);
    pod["spec"]["terminationGracePeriodSeconds"] = json!(grace);
    pod
}

async fn delete(site: &Site, namespace: &str, name: &str, parameters: &DeleteParams) -> anyhow::Result<()> {
    Api::<Pod>::namespaced(site.client(), namespace)
        .delete(name, parameters)
        .await?;
    Ok(())
}

async fn make_job(site: &Site, namespace: &str, job: Value) -> anyhow::Result<()> {
    let job: Job = serde_json::from_value(job)?;
    Api::namespaced(site.client(), namespace)
        .create(&PostParams::default(), &job)
        .await?;
    Ok(())
}

/// A Job's first pod fails, and the Job makes another, which is admitted.
async fn retries(site: &Site) -> anyhow::Result<()> {
    let namespace = "retries";
    site.namespace(namespace).await?;
    let witness = site.witness(namespace).await?;
    let job = json!({ "metadata": { "name": "job" }, "spec": {
        "backoffLimit": 1, "template": template("job", &["-for=500ms", "-exit=1"]),
    } });
    make_job(site, namespace, job).await?;
    let jobs: Api<Job> = Api::namespaced(site.client(), namespace);
    until("the Job to have failed twice", SOON, async || {
        let status = jobs.get("job").await?.status.unwrap_or_default();
        ensure!(status.failed == Some(2), "it has {status:?}");
        Ok(())
    })
    .await?;
    let seen = witness.never_two().await?;
    ensure!(seen.pods["job"].len() == 2, "its pods were {:?}", seen.pods);
    site.delete_namespace(namespace).await
}

/// By default a Job replaces a pod that is told to end at once: the replacement is refused until the pod has ended. With
/// `podReplacementPolicy: Failed` nobody has to be refused.
async fn replacements(site: &Site) -> anyhow::Result<()> {
    let namespace = "replacements";
    site.namespace(namespace).await?;
    let witness = site.witness(namespace).await?;
    // A Job waits 10 s before it replaces a pod that it counts as failed: the first takes longer than that to end.
    for (policy, grace) in [("TerminatingOrFailed", 20), ("Failed", 4)] {
        let name = policy.to_lowercase();
        let mut template = template(&name, &["-ignore-term"]);
        template["spec"]["terminationGracePeriodSeconds"] = json!(grace);
        let job = json!({ "metadata": { "name": name }, "spec": {
            "backoffLimit": 3, "podReplacementPolicy": policy, "template": template,
        } });
        make_job(site, namespace, job).await?;
        let first = running(site, namespace, &name, None).await?;
        delete(site, namespace, &first.name_any(), &DeleteParams::default()).await?;
        let next = running(site, namespace, &name, first.metadata.uid.as_deref()).await?;
        println!("  {policy}: {} followed {}", next.name_any(), first.name_any());
    }
    let refused = site.kubectl(&["-n", namespace, "get", "events", "-o=json"]).await?;
    let refused: Value = serde_json::from_str(&refused)?;
    let events = refused["items"].as_array().cloned().unwrap_or_default();
    let of = |name: &str| {
        let by_us = |event: &&Value| {
            event["involvedObject"]["name"] == name
                && event["message"]
                    .as_str()
                    .is_some_and(|said| said.contains("DeployerPolicy"))
        };
        events.iter().filter(by_us).count()
    };
    ensure!(of("terminatingorfailed") > 0, "the replacement was not refused");
    ensure!(of("failed") == 0, "a replacement was refused that came after the end");
    witness.never_two().await?;
    site.delete_namespace(namespace).await
}

/// Waits until a deployer of the config runs that is another than this one.
async fn running(site: &Site, namespace: &str, config: &str, not: Option<&str>) -> anyhow::Result<Pod> {
    until(&format!("a deployer of {config} to run"), 2 * SOON, async || {
        let pods = of_config(&site.client(), namespace, config).await?;
        let states: Vec<_> = pods.iter().map(|pod| (pod.name_any(), phase(pod).to_owned())).collect();
        let mut found = pods.into_iter().filter(|pod| {
            phase(pod) == "Running" && pod.metadata.deletion_timestamp.is_none() && pod.metadata.uid.as_deref() != not
        });
        found.next().with_context(|| format!("there are {states:?}"))
    })
    .await
}

/// A deployer that is deleted and takes its whole grace period is active until it has ended.
async fn grace(site: &Site) -> anyhow::Result<()> {
    let namespace = "grace";
    site.namespace(namespace).await?;
    let witness = site.witness(namespace).await?;
    site.admitted(namespace, &stubborn("cfg", "first", 30)).await?;
    site.wait_phase(namespace, "first", "Running").await?;
    delete(site, namespace, "first", &DeleteParams::default()).await?;
    let next = deployer("cfg", "next", &["-for=1s"]);
    let refused = site.refused(namespace, &next).await?;
    ensure!(refused.message().contains("first"), "{}", refused.message());
    site.admitted_soon(namespace, &next).await?;
    let left = Api::<Pod>::namespaced(site.client(), namespace)
        .get_opt("first")
        .await?;
    ensure!(
        left.is_none_or(|pod| phase(&pod) == "Failed"),
        "the first is there still"
    );
    witness.never_two().await?;
    site.delete_namespace(namespace).await
}

/// A container that is killed for its memory: the pod has failed and holds nothing, unless its container is started again.
async fn out_of_memory(site: &Site) -> anyhow::Result<()> {
    let namespace = "memory";
    site.namespace(namespace).await?;
    let witness = site.witness(namespace).await?;
    let hungry = |config: &str, restart: &str| {
        let mut pod = deployer(config, &format!("{config}-1"), &["-eat-mib=256"]);
        pod["spec"]["containers"][0]["resources"]["limits"]["memory"] = json!("64Mi");
        pod["spec"]["restartPolicy"] = json!(restart);
        pod
    };
    site.admitted(namespace, &hungry("once", "Never")).await?;
    let failed = site.wait_phase(namespace, "once-1", "Failed").await?;
    ensure!(
        reasons(&failed).contains(&"OOMKilled".to_owned()),
        "{:?}",
        failed.status
    );
    site.admitted(namespace, &deployer("once", "once-2", &["-for=1s"]))
        .await?;

    site.admitted(namespace, &hungry("again", "OnFailure")).await?;
    site.wait_pod(namespace, "again-1", "killed and started again", |pod| {
        let statuses = pod
            .status
            .iter()
            .flat_map(|status| status.container_statuses.iter().flatten());
        statuses.into_iter().any(|status| status.restart_count > 0)
    })
    .await?;
    site.refused(namespace, &deployer("again", "again-2", &["-for=1s"]))
        .await?;
    witness.never_two().await?;
    site.delete_namespace(namespace).await
}

/// Why the containers of a pod ended.
fn reasons(pod: &Pod) -> Vec<String> {
    let statuses = pod
        .status
        .iter()
        .flat_map(|status| status.container_statuses.iter().flatten());
    let ended = statuses.filter_map(|status| status.state.as_ref()?.terminated.clone());
    ended.filter_map(|ended| ended.reason).collect()
}

/// kubelet evicts a pod that fills its disk: it has failed, and holds nothing.
async fn evicted(site: &Site) -> anyhow::Result<()> {
    let namespace = "evicted";
    site.namespace(namespace).await?;
    let witness = site.witness(namespace).await?;
    let mut pod = deployer("cfg", "first", &["-fill-mib=8", "-fill-file=/scratch/file"]);
    pod["spec"]["volumes"] = json!([{ "name": "scratch", "emptyDir": { "sizeLimit": "1Mi" } }]);
    pod["spec"]["containers"][0]["volumeMounts"] = json!([{ "name": "scratch", "mountPath": "/scratch" }]);
    site.admitted(namespace, &pod).await?;
    let failed = site.wait_phase(namespace, "first", "Failed").await?;
    let reason = failed.status.and_then(|status| status.reason);
    ensure!(reason.as_deref() == Some("Evicted"), "it failed because of {reason:?}");
    site.admitted(namespace, &deployer("cfg", "next", &["-for=1s"])).await?;
    witness.never_two().await?;
    site.delete_namespace(namespace).await
}

/// A pod object that is removed by force is gone for us, whether its process runs or not: the README says so.
async fn forced(site: &Site) -> anyhow::Result<()> {
    let namespace = "forced";
    site.namespace(namespace).await?;
    let witness = site.witness(namespace).await?;
    site.admitted(namespace, &stubborn("cfg", "first", 30)).await?;
    site.wait_phase(namespace, "first", "Running").await?;
    site.refused(namespace, &deployer("cfg", "next", &["-for=1s"])).await?;
    delete(site, namespace, "first", &DeleteParams::default().grace_period(0)).await?;
    site.wait_gone(namespace, "first").await?;
    site.admitted(namespace, &deployer("cfg", "next", &["-for=1s"])).await?;
    witness.never_two().await?;
    site.delete_namespace(namespace).await
}

/// The kubelet of its node is not there any more: the deployer is active, deleted or not, until somebody says by force that it is not.
async fn node_gone(site: &Site) -> anyhow::Result<()> {
    let namespace = "gone";
    site.namespace(namespace).await?;
    let nodes: Api<Node> = Api::all(site.client());
    let lost = serde_json::from_value(json!({ "metadata": { "name": "lost" } }))?;
    nodes.create(&PostParams::default(), &lost).await?;
    let witness = site.witness(namespace).await?;
    let mut first = deployer("cfg", "first", &[]);
    first["spec"]["nodeName"] = json!("lost");
    site.admitted(namespace, &first).await?;
    set_phase(&site.client(), namespace, "first", "Running").await?;
    let next = deployer("cfg", "next", &["-for=1s"]);
    site.refused(namespace, &next).await?;
    delete(site, namespace, "first", &DeleteParams::default()).await?;
    site.wait_pod(namespace, "first", "told to end", |pod| {
        pod.metadata.deletion_timestamp.is_some()
    })
    .await?;
    site.refused(namespace, &next).await?;
    delete(site, namespace, "first", &DeleteParams::default().grace_period(0)).await?;
    site.admitted(namespace, &next).await?;
    witness.never_two().await?;
    nodes.delete("lost", &DeleteParams::default()).await?;
    site.delete_namespace(namespace).await
}
