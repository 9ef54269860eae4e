//! From nothing to the first refusal.

use std::time::Instant;

use anyhow::{Context, ensure};
use deployer_guard_testkit::objects::create_pod;
use deployer_guard_testkit::openshift::Rollout;
use deployer_guard_testkit::{Helm, Release, until};
use kube::ResourceExt;

use crate::site::{SOON, Site};

const NAMESPACE: &str = "fresh";

/// Installed as the README says, a second deployer is refused, within a minute of `helm install`.
pub(crate) async fn refusal(site: &Site) -> anyhow::Result<()> {
    site.namespace(NAMESPACE).await?;
    let client = site.client();
    let (first, second) = (Rollout::new(NAMESPACE, "cfg", 1), Rollout::new(NAMESPACE, "cfg", 2));
    let other = site.node.real(second.pod(&second.begin(&client, "New").await?), &[]);
    let pod = site.node.real(first.pod(&first.begin(&client, "New").await?), &[]);
    let begun = Instant::now();
    let release = Release::install(&site.node, Helm::Four, &["policies.openshift.enabled=true"]).await?;
    let installed = begun.elapsed();
    release.wait_enforced("openshift-deploymentconfig").await?;
    site.admitted(NAMESPACE, &pod).await?;
    let answer = until("a second deployer to be refused", SOON, async || {
        let answer = create_pod(&client, NAMESPACE, &other).await?;
        ensure!(answer.code == 403, "{} {}", answer.code, answer.message());
        Ok(answer)
    })
    .await?;
    println!(
        "  helm install --wait: {:.1} s; from there to the first refusal: {:.1} s in all",
        installed.as_secs_f64(),
        begun.elapsed().as_secs_f64()
    );
    ensure!(answer.message().contains(&first.deployer()), "{}", answer.message());
    let said = release.test().await?;
    ensure!(said.contains("Succeeded"), "helm test said {said}");
    site.delete_namespace(NAMESPACE).await
}

/// The containers run as the chart says: nobody's user, nothing written, nothing to run but the program.
pub(crate) async fn hardened(site: &Site) -> anyhow::Result<()> {
    let release = site.usual().await?;
    for pod in release.pods().await? {
        let name = pod.name_any();
        for container in ["webhook", "guard"] {
            let exec = [
                "-n",
                "deployer-guard",
                "exec",
                &name,
                "-c",
                container,
                "--",
                "/bin/sh",
                "-c",
                "true",
            ];
            let output = site.node.kubectl(&exec).await?;
            ensure!(!output.status.success(), "there is a shell in {container}");
            let id = container_id(&pod, container).with_context(|| format!("no id of {container}"))?;
            let info = site
                .node
                .exec(&["ctr", "-n", "k8s.io", "tasks", "metrics", &id])
                .await?;
            ensure!(info.status.success(), "{container} does not run");
        }
        let spec = pod.spec.context("a spec")?;
        let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
        for container in containers {
            let context = container.security_context.clone().context("a security context")?;
            ensure!(
                context.read_only_root_filesystem == Some(true),
                "{} may write",
                container.name
            );
            ensure!(
                context.allow_privilege_escalation == Some(false),
                "{} may rise",
                container.name
            );
            let dropped = context.capabilities.and_then(|capabilities| capabilities.drop);
            ensure!(
                dropped == Some(vec!["ALL".to_owned()]),
                "{} keeps capabilities",
                container.name
            );
        }
    }
    Ok(())
}

fn container_id(pod: &k8s_openapi::api::core::v1::Pod, container: &str) -> Option<String> {
    let status = pod.status.as_ref()?;
    let lists = [&status.container_statuses, &status.init_container_statuses];
    let mut statuses = lists.into_iter().flatten().flatten();
    let id = statuses.find(|status| status.name == container)?.container_id.clone()?;
    id.rsplit('/').next().map(str::to_owned)
}
