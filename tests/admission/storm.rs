//! Many creates at once over two replicas that share a store.

use std::sync::Arc;

use futures::future::join_all;
use serde_json::Value;

use crate::faulty::FaultyStore;
use crate::world::{Answer, Replica, runner};

/// Creates a pod as an API server does: admission first, then the store, which lets one pod of a name in.
async fn create(replica: Arc<Replica>, review: Value) -> Answer {
    let answer = replica.ask("runners", &review).await;
    if answer.is_allowed() {
        replica.store_pod(&review, "Running");
    }
    answer
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_sixteen_at_once_over_two_replicas_one_is_admitted() {
    let store: Arc<FaultyStore> = Arc::default();
    let replicas = [0; 2].map(|_| Arc::new(Replica::over(Arc::clone(&store))));
    for round in 0..200 {
        let app = format!("app-{round}");
        let creates = (0..16).map(|number| {
            // One name that four ask for, and twelve others.
            let name = if number < 4 {
                format!("{app}-fixed")
            } else {
                format!("{app}-{number}")
            };
            let review = runner(&name, &format!("{app}-uid-{number}"), &app);
            tokio::spawn(create(Arc::clone(&replicas[number % 2]), review))
        });
        let answers: Vec<Answer> = join_all(creates).await.into_iter().map(Result::unwrap).collect();
        let admitted = answers.iter().filter(|answer| answer.is_allowed()).count();
        assert_eq!(admitted, 1, "round {round}: {answers:#?}");
        for answer in answers.iter().filter(|answer| !answer.is_allowed()) {
            assert!([403, 409].contains(&answer.code()), "round {round}: {}", answer.0);
        }
    }
    assert_eq!(replicas[0].claims().len(), 200);
    replicas[0].settled().await;
    // Both replicas met the entries, and neither keeps following what is settled.
    while replicas.iter().any(|replica| replica.followed() > 0) {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    let confirmed: f64 = replicas
        .iter()
        .map(|replica| replica.metric("pending_confirmed_total", ""))
        .sum();
    assert!((confirmed - 200.0).abs() < 0.1, "{confirmed}");
}
