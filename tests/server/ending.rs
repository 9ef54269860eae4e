//! How a server ends.

use std::sync::atomic::Ordering;
use std::time::Duration;

use deployer_guard::webhook::server::Ended;
use deployer_guard::webhook::signals::Signals;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::support::{Answer, Site, eventually, post};

const DRAIN: [&str; 4] = ["--drain-delay", "300ms", "--grace-period", "10s"];

#[tokio::test(flavor = "multi_thread")]
async fn idle_connections_do_not_delay_the_end() {
    let site = Site::start(&DRAIN);
    let mut used = site.connect().await;
    used.write_all(&post("/", b"{}")).await.unwrap();
    Answer::read(&mut used).await.unwrap();
    let mut unused = site.connect().await;

    site.trigger.fire();
    assert_eq!(site.end().await, Ended::Finished);
    let closed = tokio::time::timeout(Duration::from_secs(2), async {
        let _ = used.read(&mut [0]).await;
        let _ = unused.read(&mut [0]).await;
    });
    closed.await.expect("all connections are closed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_under_way_is_finished_and_new_ones_are_served_while_draining() {
    let site = Site::start(&DRAIN);
    let mut slow = site.connect().await;
    slow.write_all(&post("/slow", b"{}")).await.unwrap();
    let mut idle = site.connect().await;
    site.started(1).await;
    eventually("ready", || site.readiness.is_ready()).await;

    site.trigger.fire();
    eventually("unready", || !site.readiness.is_ready()).await;
    assert_eq!(site.readiness.failing(), ["serving: ending"]);
    let answer = site.post("/", b"{}").await;
    assert_eq!(answer.status, 200);
    assert!(answer.head.contains("connection: close"), "{}", answer.head);

    let _ = idle.read(&mut [0]).await;
    let address = site.addresses[0];
    assert!(
        site.connect_to(address).await.is_err(),
        "no new connection after the drain delay"
    );
    assert!(!site.running.is_finished());
    site.handler.release.notify_one();
    assert_eq!(Answer::read(&mut slow).await.unwrap().status, 200);
    assert_eq!(site.end().await, Ended::Finished);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decision_whose_client_hung_up_is_waited_for() {
    let site = Site::start(&DRAIN);
    let mut slow = site.connect().await;
    slow.write_all(&post("/slow", b"{}")).await.unwrap();
    site.started(1).await;
    drop(slow);
    site.trigger.fire();
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert!(!site.running.is_finished());
    site.handler.release.notify_one();
    let handler = site.handler.clone();
    assert_eq!(site.end().await, Ended::Finished);
    assert_eq!(handler.finished.load(Ordering::SeqCst), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_grace_period_is_not_exceeded() {
    let site = Site::start(&["--drain-delay", "100ms", "--grace-period", "800ms"]);
    let mut slow = site.connect().await;
    slow.write_all(&post("/slow", b"{}")).await.unwrap();
    site.started(1).await;
    site.trigger.fire();
    assert_eq!(site.end().await, Ended::GracePeriodOver { underway: 1 });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_ends_at_once() {
    let site = Site::start(&["--drain-delay", "10s", "--grace-period", "20s"]);
    let mut slow = site.connect().await;
    slow.write_all(&post("/slow", b"{}")).await.unwrap();
    site.started(1).await;
    site.trigger.fire();
    tokio::time::sleep(Duration::from_millis(100)).await;
    site.trigger.fire();
    assert_eq!(site.end().await, Ended::AtOnce);
}

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_is_the_first_signal() {
    let signals = Signals::install().unwrap();
    let kill = format!("kill -TERM {}", std::process::id());
    assert!(
        std::process::Command::new("sh")
            .args(["-c", &kill])
            .status()
            .unwrap()
            .success()
    );
    tokio::time::timeout(Duration::from_secs(5), signals.first())
        .await
        .expect("the signal");
}
