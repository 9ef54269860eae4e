//! The plain port.

use std::sync::Arc;
use std::time::Duration;

use deployer_guard::telemetry::health::{HealthArgs, HealthServer, Readiness};
use deployer_guard::telemetry::metrics::{DecisionLabels, EventResult, Metrics};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use crate::support::Answer;

#[tokio::test(flavor = "multi_thread")]
async fn ready_only_while_all_conditions_hold() {
    let (readiness, metrics) = (Readiness::new(), Arc::new(Metrics::new()));
    let policies = readiness.condition("policies", "not read yet");
    let certificate = readiness.condition("certificate", "not loaded");
    let args = HealthArgs {
        health_listen: "127.0.0.1:0".parse().unwrap(),
    };
    let server = HealthServer::bind(&args, readiness, Arc::clone(&metrics)).unwrap();
    let address = server.address();
    let running = tokio::spawn(server.run());
    let get = async |path: &str| {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream
            .write_all(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes())
            .await
            .unwrap();
        Answer::read(&mut stream).await.unwrap()
    };

    let answer = get("/readyz").await;
    assert_eq!(
        (answer.status, answer.body.as_str()),
        (503, "certificate: not loaded\npolicies: not read yet\n")
    );
    certificate.hold();
    policies.hold();
    let answer = get("/readyz").await;
    assert_eq!((answer.status, answer.body.as_str()), (200, "ok\n"));
    policies.fail("the watch is broken");
    assert_eq!(get("/readyz").await.body, "policies: the watch is broken\n");
    assert_eq!(get("/livez").await.status, 200);
    assert_eq!(get("/other").await.status, 404);

    let labels = DecisionLabels {
        policy: "dc".to_owned(),
        operation: "CREATE",
        verdict: "Refused",
        reason: "Held",
        dry_run: false,
    };
    metrics.decided(&labels, Duration::from_millis(3));
    metrics.event(EventResult::Dropped);
    metrics.api_request("get", "pods", "ok");
    let answer = get("/metrics").await;
    assert!(answer.head.contains("application/openmetrics-text"), "{}", answer.head);
    for line in [
        r#"deployer_guard_decisions_total{policy="dc",operation="CREATE",verdict="Refused",reason="Held",dry_run="false"} 1"#,
        r#"deployer_guard_decision_duration_seconds_count{verdict="Refused"} 1"#,
        r#"deployer_guard_events_total{result="dropped"} 1"#,
        r#"deployer_guard_api_requests_total{verb="get",resource="pods",result="ok"} 1"#,
        concat!(
            r#"deployer_guard_build_info{version=""#,
            env!("CARGO_PKG_VERSION"),
            r#""} 1"#
        ),
        "process_resident_memory_bytes ",
        "# EOF",
    ] {
        assert!(answer.body.contains(line), "{line} is not in\n{}", answer.body);
    }
    running.abort();
    let _ = running.await;
    assert!(TcpStream::connect(address).await.is_err(), "gone once it is dropped");
}
