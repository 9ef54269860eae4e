//! Pausing, killing and restarting programs. Needs: the built programs.

use std::time::Duration;

use deployer_guard_testkit::{ControlPlane, Program, State, WebhookProcess, free_ports};
use k8s_openapi::api::core::v1::Namespace;
use kube::Api;
use serde_json::json;
use tokio::time::timeout;

const PATIENCE: Duration = Duration::from_millis(700);

#[tokio::test]
async fn a_paused_api_server_is_silent_until_it_is_resumed() -> anyhow::Result<()> {
    let plane = ControlPlane::builder().api_servers(2).start().await?;
    let [first, second] = [0, 1].map(|i| Api::<Namespace>::all(plane.client(i)));
    let process = plane.process(Program::ApiServer(0));
    process.pause()?;
    assert!(timeout(PATIENCE, first.get("default")).await.is_err());
    second.get("default").await?;
    assert!(matches!(process.state()?, State::Running { .. }));
    process.resume()?;
    timeout(Duration::from_secs(10), first.get("default")).await??;
    Ok(())
}

#[tokio::test]
async fn killed_programs_come_back_on_their_ports_with_what_was_stored() -> anyhow::Result<()> {
    let plane = ControlPlane::builder().start().await?;
    let api = Api::<Namespace>::all(plane.client(0));
    let uid = api.get("default").await?.metadata.uid;
    for program in [Program::ApiServer(0), Program::Etcd] {
        let process = plane.process(program);
        process.kill()?;
        assert_eq!(process.state()?, State::Ended { code: 137 });
        let error = process.pause().expect_err("it does not run").to_string();
        assert!(error.contains(process.name()), "{error}");
        plane.restart(program).await?;
        assert_eq!(api.get("default").await?.metadata.uid, uid);
    }
    Ok(())
}

#[tokio::test]
async fn a_start_that_cannot_be_ends_in_the_words_of_the_program() {
    let error = ControlPlane::builder()
        .api_server_flag("--no-such-flag")
        .start()
        .await
        .expect_err("no such flag");
    let text = format!("{error:#}");
    assert!(
        text.contains("kube-apiserver-0") && text.contains("unknown flag: --no-such-flag"),
        "{text}"
    );
}

#[tokio::test]
async fn a_webhooks_log_is_read_as_json_and_its_end_is_told() -> anyhow::Result<()> {
    let script = r#"echo '{"verdict":"allow"}'; echo plain; printf half; echo "$WORD" >&2; exit 7"#;
    let webhook = WebhookProcess::builder("talker", "/bin/sh")
        .args(["-c", script])
        .env("WORD", "alas")
        .start()?;
    assert_eq!(webhook.process().wait_end(Duration::from_secs(5)).await?, 7);
    assert_eq!(webhook.log_lines()?, [json!({"verdict": "allow"}), json!("plain")]);
    let port = free_ports(1)?[0];
    let error = webhook
        .wait_ready(&format!("https://127.0.0.1:{port}/readyz"))
        .await
        .expect_err("it has ended");
    let text = format!("{error:#}");
    assert!(text.contains("ended with code 7") && text.contains("alas"), "{text}");
    Ok(())
}

#[tokio::test]
async fn a_port_that_stays_taken_is_told_after_other_tries() -> anyhow::Result<()> {
    let taken = std::net::TcpListener::bind("127.0.0.1:0")?;
    let port = taken.local_addr()?.port();
    let clash = format!("127.0.0.1:{port}: bind: address already in use");
    let server = ControlPlane::builder().api_server_flag(format!("--secure-port={port}"));
    let etcd = ControlPlane::builder().etcd_flag(format!("--listen-client-urls=http://127.0.0.1:{port}"));
    for builder in [server, etcd] {
        let text = format!("{:#}", builder.start().await.expect_err("the port is taken"));
        assert!(text.contains(&clash), "{text}");
    }
    Ok(())
}
