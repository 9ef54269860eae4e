//! Leadership on a real API server: two candidates, whatever happens to them, to the Lease and to their clocks.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use deployer_guard::guard::board::Leads;
use deployer_guard::guard::leadership::lease::{LENGTHS, released, taken};
use deployer_guard::guard::leadership::{Leadership, LeaseParams, identity};
use deployer_guard::telemetry::metrics::GuardMetrics;
use deployer_guard_testkit::{Balancer, NAMESPACE, Stage, until};
use http1::{Method, Request, Response};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::client::Body;
use kube::{Client, Error};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::common::{PROGRAM, namespace, run};

const LEASE: Duration = Duration::from_secs(6);
const LIMIT: Duration = Duration::from_mins(1);
const HOUR: SignedDuration = SignedDuration::from_hours(1);

/// A candidate in this process. Dropping it is as killing it.
struct Candidate {
    leadership: Arc<Leadership>,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Drop for Candidate {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Candidate {
    fn start(client: Client, namespace: &str, name: &str) -> Self {
        let params = LeaseParams {
            namespace: namespace.into(),
            name: name.into(),
            length: LEASE,
        };
        let metrics = Arc::new(GuardMetrics::default());
        let leadership = Arc::new(Leadership::new(client, &params, identity("test"), metrics));
        let (stop, stopped) = watch::channel(false);
        let running = Arc::clone(&leadership);
        let task = tokio::spawn(async move { running.run(stopped).await });
        Self { leadership, stop, task }
    }

    fn leads(&self) -> bool {
        self.leadership.leads()
    }
}

/// Waits until one of them leads, for as long as two leases and some, and looks all the time whether two do.
async fn one_leads(candidates: &[&Candidate]) -> anyhow::Result<usize> {
    let looking = async {
        loop {
            if let Some(leader) = only_leader(candidates)? {
                return Ok(leader);
            }
            sleep(Duration::from_millis(2)).await;
        }
    };
    timeout(LIMIT, looking).await.context("nobody leads")?
}

fn only_leader(candidates: &[&Candidate]) -> anyhow::Result<Option<usize>> {
    let leaders: Vec<_> = (0..candidates.len()).filter(|i| candidates[*i].leads()).collect();
    ensure!(leaders.len() < 2, "both lead");
    Ok(leaders.first().copied())
}

/// For so long, nobody but this one leads.
async fn stays(candidates: &[&Candidate], leader: usize, time: Duration) -> anyhow::Result<()> {
    let end = Instant::now() + time;
    while Instant::now() < end {
        if let Some(other) = only_leader(candidates)? {
            ensure!(other == leader, "another leads");
        }
        sleep(Duration::from_millis(2)).await;
    }
    Ok(())
}

/// A client whose requests and answers pass through this.
fn through<F, Fut>(pass: F) -> Client
where
    F: Fn(Request<Body>) -> Fut + Send + Sync + Clone + 'static,
    Fut: Future<Output = Result<Response<Body>, Error>> + Send + 'static,
{
    Client::new(
        tower::service_fn(move |request: Request<Body>| {
            let answer = pass(request);
            async move { answer.await.map_err(Box::new) }
        }),
        "default",
    )
}

/// The client of a machine whose clock is off: all times that it writes are shifted, and those that it reads are shifted back,
/// which is the same to it as a shifted clock of its own.
fn with_clock(client: &Client, off: SignedDuration) -> Client {
    let client = client.clone();
    through(move |request| {
        let client = client.clone();
        async move {
            let (parts, body) = request.into_parts();
            let body = shifted(&body.collect_bytes().await?, off);
            let (mut parts, body) = client
                .send(Request::from_parts(parts, Body::from(body)))
                .await?
                .into_parts();
            parts.headers.remove("content-length");
            let body = shifted(&body.collect_bytes().await?, -off);
            Ok(Response::from_parts(parts, Body::from(body)))
        }
    })
}

fn shifted(body: &[u8], by: SignedDuration) -> Vec<u8> {
    let Ok(mut object) = serde_json::from_slice::<Value>(body) else {
        return body.to_vec();
    };
    for field in ["renewTime", "acquireTime"] {
        let time = object["spec"][field]
            .as_str()
            .and_then(|time| time.parse::<Timestamp>().ok());
        if let Some(time) = time {
            object["spec"][field] = json!(format!("{:.6}", time + by));
        }
    }
    object.to_string().into_bytes()
}

/// Holds writes back until it is opened.
#[derive(Clone)]
struct Gate {
    open: watch::Sender<bool>,
    waiting: Arc<AtomicUsize>,
}

impl Gate {
    fn closed() -> Self {
        Self {
            open: watch::Sender::new(false),
            waiting: Arc::default(),
        }
    }

    fn before(&self, client: &Client) -> Client {
        let (gate, client) = (self.clone(), client.clone());
        through(move |request| {
            let (gate, client) = (gate.clone(), client.clone());
            async move {
                if request.method() == Method::GET {
                    return client.send(request).await;
                }
                // As a proxy would: what it took is delivered, whether the client still waits or not.
                let sending = tokio::spawn(async move {
                    gate.waiting.fetch_add(1, Ordering::Relaxed);
                    let mut open = gate.open.subscribe();
                    drop(open.wait_for(|open| *open).await);
                    client.send(request).await
                });
                sending.await.map_err(|error| Error::Service(Box::new(error)))?
            }
        })
    }
}

fn leases(client: &Client, namespace: &str) -> Api<Lease> {
    Api::namespaced(client.clone(), namespace)
}

fn lease(name: &str, spec: &Value) -> Lease {
    serde_json::from_value(json!({ "metadata": { "name": name }, "spec": spec })).expect("a Lease")
}

fn dead() -> Value {
    json!({
        "holderIdentity": "dead", "leaseDurationSeconds": 6, "leaseTransitions": 3,
        "acquireTime": "2026-01-02T03:04:05.000000Z", "renewTime": "2026-01-02T03:04:05.000000Z",
    })
}

#[test]
fn of_two_that_write_to_an_expired_lease_at_once_one_leads() {
    run(async {
        let client = namespace("lease-race").await?.plane.client(0);
        for round in 0..3 {
            let name = format!("race-{round}");
            leases(&client, "lease-race")
                .create(&PostParams::default(), &lease(&name, &dead()))
                .await?;
            let gate = Gate::closed();
            let [one, other] = [(); 2].map(|()| Candidate::start(gate.before(&client), "lease-race", &name));
            until("both to write", LIMIT, async || {
                let waiting = gate.waiting.load(Ordering::Relaxed);
                ensure!(waiting >= 2, "{waiting} do");
                Ok(())
            })
            .await?;
            gate.open.send_replace(true);
            let leader = one_leads(&[&one, &other]).await?;
            stays(&[&one, &other], leader, LEASE).await?;
        }
        Ok(())
    });
}

#[test]
fn with_clocks_an_hour_apart_nobody_leads_wrongly_and_somebody_leads_at_last() {
    run(async {
        let client = namespace("lease-clocks").await?.plane.client(0);
        let [ahead, behind] = [HOUR, -HOUR].map(|off| with_clock(&client, off));
        let mut one = Candidate::start(ahead.clone(), "lease-clocks", "clocks");
        let first = one_leads(&[&one]).await?;
        ensure!(first == 0);
        for clock in [&behind, &ahead] {
            // The other's clock is an hour off the leader's, first behind it, then ahead of it.
            let other = Candidate::start(clock.clone(), "lease-clocks", "clocks");
            stays(&[&one, &other], 0, LEASE * 2).await?;
            ensure!(one.leads(), "the leader lost it");
            one.task.abort();
            let leader = until("the other to lead", LIMIT, async || {
                only_leader(&[&one, &other])?
                    .filter(|leader| *leader == 1)
                    .context("not yet")
            });
            leader.await?;
            one = other;
        }
        Ok(())
    });
}

#[test]
fn who_is_cut_off_while_its_last_write_is_on_its_way_does_not_lead_beside_the_next() {
    run(async {
        let client = namespace("lease-late").await?.plane.client(0);
        let gate = Gate::closed();
        gate.open.send_replace(true);
        let one = Candidate::start(gate.before(&client), "lease-late", "late");
        one_leads(&[&one]).await?;
        for _ in 0..2 {
            gate.open.send_replace(false);
            let other = Candidate::start(client.clone(), "lease-late", "late");
            until("the other to lead", LIMIT, async || {
                only_leader(&[&one, &other])?
                    .filter(|leader| *leader == 1)
                    .context("not yet")
            })
            .await?;
            // The renewals of the first land on the Lease of the other.
            gate.open.send_replace(true);
            stays(&[&one, &other], 1, LEASE * 2).await?;
            ensure!(other.leads(), "late renewals of another took it away");
            other.stop.send_replace(true);
            sleep(Duration::from_millis(500)).await;
            other.leadership.release().await;
            one_leads(&[&one]).await?;
        }
        Ok(())
    });
}

#[test]
fn a_lease_that_makes_no_sense_is_taken_over() {
    run(async {
        let client = namespace("lease-absurd").await?.plane.client(0);
        let with = |fields: Value| {
            let mut spec = dead();
            crate::scene::merge(&mut spec, &fields);
            spec
        };
        let ahead = format!("{:.6}", Timestamp::now() + HOUR);
        let mut candidates = Vec::new();
        for (name, spec) in [
            ("empty", json!({})),
            ("foreign", json!({ "holderIdentity": "kubectl" })),
            ("ahead", with(json!({ "renewTime": ahead, "acquireTime": ahead }))),
            ("epoch", with(json!({ "renewTime": "1970-01-01T00:00:00.000000Z" }))),
            ("huge", with(json!({ "leaseDurationSeconds": i32::MAX }))),
            ("no-duration", with(json!({ "leaseDurationSeconds": null }))),
            ("no-transitions", with(json!({ "leaseTransitions": null }))),
            ("no-time", with(json!({ "renewTime": null, "acquireTime": null }))),
            ("last-transition", with(json!({ "leaseTransitions": i32::MAX }))),
            ("no-holder", with(json!({ "holderIdentity": null }))),
        ] {
            leases(&client, "lease-absurd")
                .create(&PostParams::default(), &lease(name, &spec))
                .await
                .with_context(|| name.to_owned())?;
            candidates.push((name, Candidate::start(client.clone(), "lease-absurd", name)));
        }
        for (name, candidate) in &candidates {
            one_leads(&[candidate]).await.with_context(|| (*name).to_owned())?;
            let lease = leases(&client, "lease-absurd").get(name).await?;
            let spec = lease.spec.context("a spec")?;
            ensure!(
                spec.holder_identity.as_deref() == Some(candidate.leadership.identity()),
                "{spec:?}"
            );
            ensure!(spec.lease_transitions.is_some_and(|term| term > 0), "{spec:?}");
        }
        Ok(())
    });
}

/// Whatever an admin writes into the Lease of a leader: in the end it leads again, and never two do.
#[test]
fn a_leader_whose_lease_is_changed_or_deleted_leads_again() {
    run(async {
        let client = namespace("lease-changed").await?.plane.client(0);
        let api = leases(&client, "lease-changed");
        let one = Candidate::start(client.clone(), "lease-changed", "changed");
        one_leads(&[&one]).await?;
        let other = Candidate::start(client.clone(), "lease-changed", "changed");
        for change in [
            json!({ "holderIdentity": "kubectl" }),
            json!({ "holderIdentity": null }),
            json!({ "leaseTransitions": null, "renewTime": null }),
            json!({ "leaseTransitions": 0 }),
            json!({ "holderIdentity": other.leadership.identity() }),
        ] {
            let patch = json!({ "spec": change });
            api.patch("changed", &PatchParams::default(), &Patch::Merge(&patch))
                .await?;
            stays_one(&[&one, &other], LEASE).await?;
            one_leads(&[&one, &other]).await.with_context(|| change.to_string())?;
        }
        let labels = json!({ "metadata": { "labels": { "app.kubernetes.io/managed-by": "Helm" } } });
        api.patch("changed", &PatchParams::default(), &Patch::Merge(&labels))
            .await?;
        stays_one(&[&one, &other], LEASE).await?;
        let before = api.get("changed").await?;
        api.delete("changed", &kube::api::DeleteParams::default()).await?;
        // An uninstall takes the guards away as well, within this time or so: nothing of them is to be left.
        let end = Instant::now() + LEASE * 3 / 4;
        while Instant::now() < end {
            ensure!(api.get_opt("changed").await?.is_none(), "it was made anew at once");
            sleep(Duration::from_millis(50)).await;
        }
        stays_one(&[&one, &other], LEASE).await?;
        one_leads(&[&one, &other]).await.context("deleted")?;
        until(
            "the Lease to have the labels of the one before",
            LEASE * 3,
            async || {
                let now = api.get("changed").await?;
                ensure!(
                    now.metadata.labels == before.metadata.labels,
                    "{:?}",
                    now.metadata.labels
                );
                Ok(())
            },
        )
        .await
    });
}

/// For so long, never two lead.
async fn stays_one(candidates: &[&Candidate], time: Duration) -> anyhow::Result<()> {
    let end = Instant::now() + time;
    while Instant::now() < end {
        only_leader(candidates)?;
        sleep(Duration::from_millis(2)).await;
    }
    Ok(())
}

/// What a release looks like does not depend on who reads it.
#[test]
fn a_release_is_told_from_a_lease_that_lost_its_holder() {
    run(async {
        let client = namespace("lease-release").await?.plane.client(0);
        let api = leases(&client, "lease-release");
        let read = api.create(&PostParams::default(), &lease("release", &dead())).await?;
        let ours = taken(&read, "us", LENGTHS.1, 4, Timestamp::now());
        let ours = api.replace("release", &PostParams::default(), &ours).await?;
        api.replace("release", &PostParams::default(), &released(&ours, Timestamp::now()))
            .await?;
        let candidate = Candidate::start(client.clone(), "lease-release", "release");
        one_leads(&[&candidate]).await?;
        let lease = api.get("release").await?;
        ensure!(lease.spec.and_then(|spec| spec.lease_transitions) == Some(5));
        Ok(())
    });
}

/// Whether a guard leads by its own word; one that does not answer does not say so.
async fn says_so(stage: &Stage, i: usize) -> bool {
    matches!(
        timeout(Duration::from_secs(2), stage.guards[i].leads()).await,
        Ok(Ok(true))
    )
}

async fn guards(lease: &str) -> anyhow::Result<Stage> {
    Stage::builder(PROGRAM)
        .replicas(1)
        .guard_argument("--lease-duration")
        .guard_argument(lease)
        .guards(2)
        .start()
        .await
}

#[test]
fn a_leader_that_is_killed_or_paused_is_followed_and_does_not_lead_when_it_goes_on() {
    run(async {
        let stage = guards("6s").await?;
        let first = stage.wait_leader().await?;
        let second = 1 - first;
        stage.guards[first].process().pause()?;
        until("the other to lead", LIMIT, async || {
            ensure!(says_so(&stage, second).await, "it does not");
            Ok(())
        })
        .await?;
        sleep(LEASE).await;
        stage.guards[first].process().resume()?;
        for _ in 0..40 {
            // The second leads without a break, so whenever the first says that it leads, two do.
            ensure!(
                !says_so(&stage, first).await,
                "the one that was paused says that it leads"
            );
            sleep(Duration::from_millis(50)).await;
        }
        ensure!(says_so(&stage, second).await, "the second lost it");

        stage.guards[second].process().kill()?;
        until("the first to lead again", LIMIT, async || {
            ensure!(says_so(&stage, first).await, "it does not");
            Ok(())
        })
        .await?;
        let term = stage.guards[first].metric("deployer_guard_leader_term").await?;
        let lease = leases(&stage.plane.client(0), NAMESPACE).get("deployer-guard").await?;
        let stored = lease.spec.and_then(|spec| spec.lease_transitions).unwrap_or_default();
        ensure!(
            term >= 2.0 && (term - f64::from(stored)).abs() < 0.5,
            "{term}, and {stored} is stored"
        );
        Ok(())
    });
}

/// With a lease of a minute, the other would wait for a minute if the Lease were not released.
#[test]
fn a_leader_that_is_asked_to_end_hands_over_long_before_its_lease_is_over() {
    run(async {
        let stage = guards("60s").await?;
        // One that is named without knowing who was before waits for two thirds of a lease: spare the test that.
        let api = leases(&stage.plane.client(0), NAMESPACE);
        let free = lease(
            "deployer-guard",
            &json!({ "holderIdentity": "", "leaseDurationSeconds": 1 }),
        );
        let free = serde_json::to_value(free)?;
        // The guards make the Lease.
        until("the Lease to be freed", LIMIT, async || {
            api.patch("deployer-guard", &PatchParams::default(), &Patch::Merge(&free))
                .await?;
            Ok(())
        })
        .await?;
        let first = stage.wait_leader().await?;
        stage.guards[first].process().terminate()?;
        let second = 1 - first;
        until("the other to lead", Duration::from_secs(30), async || {
            ensure!(says_so(&stage, second).await, "it does not");
            Ok(())
        })
        .await?;
        let code = stage.guards[first].process().wait_end(LIMIT).await?;
        ensure!(code == 0, "it ended with {code}");
        let lines = stage.guards[first].log_lines()?;
        let said: Vec<_> = lines.iter().filter_map(|line| line["message"].as_str()).collect();
        let place = |text: &str| {
            said.iter()
                .position(|line| line.starts_with(text))
                .context(text.to_owned())
        };
        ensure!(place("ending: work first")? < place("leading no more")?, "{said:?}");
        ensure!(place("leading no more")? < place("released the Lease")?, "{said:?}");
        Ok(())
    });
}

#[test]
fn a_leader_whose_api_server_is_cut_off_leads_no_more_and_leads_again_each_time() {
    run(async {
        let stage = Stage::builder(PROGRAM).replicas(1).start().await?;
        let api_server = stage.plane.url(0).trim_start_matches("https://").parse()?;
        let between = Balancer::start([api_server]).await?;
        let url = format!("https://{}", between.address());
        let kubeconfig = stage
            .plane
            .service_account_kubeconfig_at(&url, NAMESPACE, NAMESPACE)
            .await?;
        let kubeconfig = kubeconfig.display().to_string();
        let guard = stage.start_guard("guard-cut", &["--kubeconfig", &kubeconfig]).await?;
        for _ in 0..3 {
            until("the guard to lead", LIMIT, async || {
                ensure!(guard.leads().await?, "it does not");
                Ok(())
            })
            .await
            .map_err(|error| guard.blame(error))?;
            between.hold();
            until("the guard to lead no more", LIMIT, async || {
                if guard.leads().await? {
                    bail!("it does")
                }
                Ok(())
            })
            .await?;
            sleep(LEASE * 2).await;
            between.release();
        }
        Ok(())
    });
}
