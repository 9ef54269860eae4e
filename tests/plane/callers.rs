//! Callers that have to show a client certificate: an API server that was given one, and one that was not.

use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use deployer_guard_testkit::objects::create_pod;
use deployer_guard_testkit::{ControlPlane, Pki, Stage, StageBuilder, http_get, until};

use crate::common::{PROGRAM, run};
use crate::creators::{BY_LABEL, deployer};
use crate::site::SOON;

/// A directory of this test, with an authority of clients and the files that give an API server a certificate of it.
fn directory() -> anyhow::Result<PathBuf> {
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("callers-{}", std::process::id()));
    std::fs::create_dir_all(&directory)?;
    let pki = Pki::client("callers")?;
    pki.write_ca(&directory)?;
    let (certificate, key) = pki.serving(&["kube-apiserver"])?.write(&directory, "caller")?;
    let kubeconfig = directory.join("kubeconfig.yaml");
    let users = format!(
        "apiVersion: v1\nkind: Config\nusers:\n- name: '*'\n  user:\n    client-certificate: {}\n    client-key: {}\n",
        certificate.display(),
        key.display()
    );
    std::fs::write(&kubeconfig, users)?;
    let admission = format!(
        "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins:\n- name: ValidatingAdmissionWebhook\n  \
         configuration:\n    apiVersion: apiserver.config.k8s.io/v1\n    kind: WebhookAdmissionConfiguration\n    \
         kubeConfigFile: {}\n",
        kubeconfig.display()
    );
    std::fs::write(directory.join("admission.yaml"), admission)?;
    Ok(directory)
}

fn checking(plane: deployer_guard_testkit::ControlPlaneBuilder, directory: &Path) -> StageBuilder {
    Stage::builder(PROGRAM)
        .plane(plane)
        .replicas(1)
        .argument(format!("--client-ca-file={}", directory.join("ca.crt").display()))
        .argument("--client-name=kube-apiserver")
}

async fn refusals(stage: &Stage) -> anyhow::Result<u64> {
    let (_, text) = http_get(&format!("http://{}/metrics", stage.replicas[0].health)).await?;
    let line = "deployer_guard_client_refusals_total{reason=\"no_certificate\"} ";
    let count = text.lines().find_map(|one| one.strip_prefix(line));
    Ok(count.with_context(|| format!("no {line}"))?.parse()?)
}

#[test]
fn an_api_server_with_a_client_certificate_is_served_and_one_without_is_not() {
    run(async {
        let directory = directory()?;
        let flag = format!(
            "--admission-control-config-file={}",
            directory.join("admission.yaml").display()
        );
        let stage = checking(ControlPlane::builder().api_server_flag(flag), &directory)
            .start()
            .await?;
        stage.enforce(BY_LABEL).await?;
        let client = stage.plane.client(0);
        let first = create_pod(&client, "default", &deployer("cfg", "1", "first")).await?;
        ensure!(first.code == 201, "{} {}", first.code, first.message());
        let second = create_pod(&client, "default", &deployer("cfg", "1", "second")).await?;
        ensure!(second.code == 403, "{} {}", second.code, second.message());
        ensure!(refusals(&stage).await? == 0);

        let other = checking(ControlPlane::builder(), &directory).start().await?;
        // It waits for an answer of the webhook, and there is none.
        let configured = other.plane.client(0);
        deployer_guard_testkit::objects::apply_yaml(&configured, BY_LABEL, "test").await?;
        let configuration = other.configuration(other.balancer.address()).await?;
        deployer_guard_testkit::objects::apply_yaml(&configured, &configuration, "test").await?;
        until("the API server to be refused", SOON, async || {
            let answer = create_pod(&configured, "default", &deployer("cfg", "1", "first")).await?;
            ensure!(
                answer.code == 500 && answer.message().contains("certificate required"),
                "{} {}",
                answer.code,
                answer.message()
            );
            Ok(())
        })
        .await?;
        ensure!(refusals(&other).await? > 0);
        std::fs::remove_dir_all(&directory)?;
        Ok(())
    });
}
