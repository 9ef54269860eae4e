//! Certificates that the guards make themselves, on a real API server, with the rights of `deploy/rbac.yaml` alone: from an empty
//! Secret to a refusal, through renewals, and whatever becomes of the Secret.

mod rooms;
mod stream;

use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, ensure};
use deployer_guard::guard::certificates::held::{BUNDLE, CA_KEY, CERTIFICATE, Data, Held, KEY, NEXT_CA_KEY};
use deployer_guard::tls::pair::now;
use deployer_guard::tls::trust::certificates;
use deployer_guard_testkit::objects::apply_yaml;
use deployer_guard_testkit::{ControlPlane, NAMESPACE, Pki, SECRET, Stage, http_get, until};
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::core::v1::Secret;
use kube::Client;
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use rustls::pki_types::CertificateDer;
use serde_json::{Value, json};
use tokio::time::sleep;

use self::stream::{Stream, shake_hands};
use crate::common::{PROGRAM, run};
use crate::creators::{BY_LABEL, assert_never_two, witness};

const SOON: Duration = Duration::from_secs(40);

fn secrets(client: &Client) -> Api<Secret> {
    Api::namespaced(client.clone(), NAMESPACE)
}

fn data_of(secret: Secret) -> Data {
    let data = secret.data.unwrap_or_default();
    data.into_iter().map(|(key, value)| (key, value.0)).collect()
}

async fn data(client: &Client) -> anyhow::Result<Data> {
    Ok(data_of(secrets(client).get(SECRET).await?))
}

/// What is in the Secret, if it is all that it has to be.
async fn good(client: &Client) -> anyhow::Result<Data> {
    let data = data(client).await?;
    let held = Held::read(&data, &["127.0.0.1".to_owned()], now());
    ensure!(held.is_good(now()), "{:?}", data.keys());
    Ok(data)
}

/// Changes keys of the Secret; `None` takes one away.
async fn harm(client: &Client, keys: &[(&str, Option<&[u8]>)]) -> anyhow::Result<()> {
    let data: serde_json::Map<String, Value> = keys
        .iter()
        .map(|(key, value)| ((*key).to_owned(), json!(value.map(|value| ByteString(value.to_vec())))))
        .collect();
    let patch = json!({ "data": data });
    secrets(client)
        .patch(SECRET, &PatchParams::default(), &Patch::Merge(&patch))
        .await?;
    Ok(())
}

async fn replica_metric(stage: &Stage, name: &str) -> anyhow::Result<u64> {
    let mut sum = 0;
    for replica in &stage.replicas {
        let (_, text) = http_get(&format!("http://{}/metrics", replica.health)).await?;
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        sum += value.with_context(|| format!("no {name}"))?.parse::<u64>()?;
    }
    Ok(sum)
}

/// How often a guard did something of this reason.
fn done(stage: &Stage, reason: &str) -> anyhow::Result<usize> {
    let mut count = 0;
    for guard in &stage.guards {
        let lines = guard.log_lines()?;
        count += lines
            .iter()
            .filter(|line| line.to_string().contains(&format!("\"{reason}\"")))
            .count();
    }
    Ok(count)
}

async fn stage(arguments: &[&str], guard_arguments: &[&str]) -> anyhow::Result<&'static Stage> {
    let mut builder = Stage::builder(PROGRAM)
        .plane(ControlPlane::builder().api_servers(2).audit_log(true))
        .guards(2)
        .self_managed();
    for argument in ["--tls-secret-interval=200ms", "--trust-delay=2s"]
        .iter()
        .chain(arguments)
    {
        builder = builder.argument(*argument);
    }
    for argument in ["--trust-delay=2s"].iter().chain(guard_arguments) {
        builder = builder.guard_argument(*argument);
    }
    let stage = builder.start().await?;
    stage.enforce(BY_LABEL).await?;
    // Tasks of a test go on in other threads; the stage ends with the process of the tests.
    Ok(Box::leak(Box::new(stage)))
}

#[test]
fn from_an_empty_secret_to_a_refusal_and_through_several_lives_no_create_fails() {
    run(async {
        let stage = stage(&[], &["--ca-lifetime=45s", "--certificate-lifetime=15s"]).await?;
        let client = stage.plane.client(0);
        let first = good(&client).await?;
        let stream = Stream::start(stage, "lives").await?;
        let watch = witness(&stage.plane, "lives").await?;
        until("three more authorities to issue", Duration::from_mins(4), async || {
            let (issued, renewed) = (done(stage, "AuthorityIssues")?, done(stage, "CertificateIssued")?);
            ensure!(
                issued >= 4 && renewed >= 3,
                "{issued} issued, {renewed} certificates were renewed"
            );
            Ok(())
        })
        .await?;
        let creates = stream.end().await?;
        assert_never_two(&watch.finish().await?);
        let last = good(&client).await?;
        ensure!(first.get(CA_KEY) != last.get(CA_KEY) && first.get(KEY) != last.get(KEY));
        println!(
            "{creates} creates over {} authorities and {} renewals",
            done(stage, "AuthorityIssues")?,
            done(stage, "CertificateIssued")?
        );
        rights(stage)
    });
}

#[test]
fn whatever_becomes_of_the_secret_no_create_fails_and_it_is_put_right() {
    run(async {
        let stage = stage(&[], &[]).await?;
        let client = stage.plane.client(0);
        let first = good(&client).await?;
        let stream = Stream::start(stage, "harmed").await?;
        let other = Pki::new("other")?.serving(&["127.0.0.1"])?;
        for (what, keys) in [
            (
                "half a certificate",
                &[(CERTIFICATE, Some(&first[CERTIFICATE][..100]))][..],
            ),
            ("no key", &[(KEY, None)]),
            ("a wrong key", &[(KEY, Some(other.key.as_bytes()))]),
            (
                "a pair of somebody else",
                &[
                    (CERTIFICATE, Some(other.certificate.as_bytes())),
                    (KEY, Some(other.key.as_bytes())),
                ],
            ),
            ("no key of the authority", &[(CA_KEY, None)]),
            ("an authority that is none", &[(BUNDLE, Some(b"nonsense"))]),
        ] {
            let before = data(&client).await?;
            harm(&client, keys).await.context(what)?;
            until(&format!("after {what} the Secret to be good"), SOON, async || {
                let after = good(&client).await?;
                ensure!(after != before, "it is as before");
                Ok(())
            })
            .await?;
        }
        // With its key, the old authority issues on until the new one is trusted: what is put back is put back when that is over.
        let before = until("the exchange to be over", SOON, async || {
            let data = good(&client).await?;
            ensure!(!data.contains_key(NEXT_CA_KEY), "another authority waits");
            Ok(data)
        })
        .await?;
        for (what, empty) in [("emptied", true), ("deleted", false)] {
            if empty {
                let patch = json!({ "data": null });
                secrets(&client)
                    .patch(SECRET, &PatchParams::default(), &Patch::Merge(&patch))
                    .await?;
            } else {
                secrets(&client).delete(SECRET, &DeleteParams::default()).await?;
            }
            until(
                &format!("the Secret that was {what} to be as it was"),
                SOON,
                async || {
                    ensure!(good(&client).await? == before, "it is another");
                    Ok(())
                },
            )
            .await?;
        }
        ensure!(replica_metric(stage, "deployer_guard_certificate_reload_failures_total").await? > 0);

        // Nobody remembers it: guards and a replica are new.
        for guard in &stage.guards {
            guard.process().kill()?;
        }
        secrets(&client).delete(SECRET, &DeleteParams::default()).await?;
        for guard in &stage.guards {
            guard.process().restart()?;
        }
        let after = until("a new authority to issue", Duration::from_mins(2), async || {
            good(&client).await
        })
        .await?;
        ensure!(after.get(CA_KEY) != before.get(CA_KEY));
        println!("{} creates", stream.end().await?);
        stage.replicas[0].webhook.process().restart()?;
        stage.replicas[0].wait_ready().await?;
        until("every fault to be over", SOON, async || {
            let broken = replica_metric(stage, "deployer_guard_certificate_source_broken").await?;
            let held_back = replica_metric(stage, "deployer_guard_certificate_held_back").await?;
            ensure!((broken, held_back) == (0, 0), "{broken} {held_back}");
            Ok(())
        })
        .await?;
        rights(stage)?;
        for verb in ["get", "update", "create"] {
            ensure!(uses(stage, verb)? > 0, "nobody used {verb} on Secrets");
        }
        Ok(())
    });
}

/// As cert-manager does it: a new authority, a new pair, and not a word of the old ones, in one write.
#[test]
fn a_secret_of_somebody_else_is_reported_while_it_has_no_authority_and_exchanging_all_of_it_fails_no_create() {
    run(async {
        let stage = Stage::builder(PROGRAM)
            .certificates_in_secret()
            .argument("--tls-secret-interval=200ms")
            .argument("--trust-delay=2s")
            .start()
            .await?;
        let stage: &'static mut Stage = Box::leak(Box::new(stage));
        let client = stage.plane.client(0);
        let authority = data(&client).await?.remove(BUNDLE).context("an authority")?;
        harm(&client, &[(BUNDLE, None)]).await?;
        stage.apply_configuration().await?;
        let guard = stage.start_guard("guard-0", &["--tls-secret", SECRET]).await?;
        stage.guards.push(guard);
        apply_yaml(&client, BY_LABEL, "test").await?;
        until("the policy to say that there is no CA bundle", SOON, async || {
            let asked = [
                "get",
                "dpol",
                "by-label",
                "-o",
                "jsonpath={.status.conditions[*].reason}",
            ];
            let said = String::from_utf8(stage.plane.kubectl(&asked).await?.stdout)?;
            ensure!(said.contains("CABundleMissing"), "{said}");
            Ok(())
        })
        .await?;
        harm(&client, &[(BUNDLE, Some(&authority))]).await?;
        let stage: &'static Stage = stage;
        stage.enforce(BY_LABEL).await?;

        let stream = Stream::start(stage, "exchanged").await?;
        let next = Pki::new("next")?;
        let pair = next.serving(&["127.0.0.1"])?;
        let (certificate, key, ca) = (pair.certificate.as_bytes(), pair.key.as_bytes(), next.ca());
        let all = [
            (CERTIFICATE, Some(certificate)),
            (KEY, Some(key)),
            (BUNDLE, Some(ca.as_bytes())),
        ];
        harm(&client, &all).await?;
        until("every replica to serve with the new pair", SOON, async || {
            for replica in &stage.replicas {
                shake_hands(replica.address, ca.as_bytes()).await?;
            }
            Ok(())
        })
        .await?;
        // New connections of the API server come with the new bundle; the stream goes on with them for a while.
        let so_far = stream.creates.load(Ordering::Relaxed);
        until("more creates", SOON, async || {
            let creates = stream.creates.load(Ordering::Relaxed);
            ensure!(creates > so_far + 50, "{creates}");
            Ok(())
        })
        .await?;
        stream.end().await?;
        let stored = certificates(&stage.ca_bundle().await?).map_err(anyhow::Error::msg)?;
        ensure!(
            stored.len() == 2,
            "the old authority stays for a while: {}",
            stored.len()
        );
        Ok(())
    });
}

#[test]
fn a_guard_that_goes_by_another_source_is_trusted_while_the_other_leads_and_takes_no_trust_away() {
    run(async {
        let stage = Stage::builder(PROGRAM).guards(1).start().await?;
        stage.enforce(BY_LABEL).await?;
        let client = stage.plane.client(0);
        let other = Pki::new("other")?.ca();
        let file = stage.plane.directory().join("other.pem");
        std::fs::write(&file, &other)?;
        let file = file.display().to_string();
        let other = certificates(other.as_bytes()).map_err(anyhow::Error::msg)?;
        let before = authorities(&client).await?.remove(0);
        ensure!(!before.contains(&other[0]));
        let trusted = async || {
            for bundle in authorities(&client).await? {
                ensure!(
                    bundle.contains(&before[0]) && bundle.contains(&other[0]),
                    "{}",
                    bundle.len()
                );
            }
            Ok(())
        };
        let follower = stage.start_guard("guard-1", &["--ca-bundle-file", &file]).await?;
        until("both to be trusted by every entry", SOON, trusted).await?;
        stage.wait_enforced("by-label").await?;
        // The guard that leads may have an order of its own.
        sleep(Duration::from_secs(1)).await;
        let settled = configuration(&client).await?.metadata.generation;
        // Longer than either waits before it writes again.
        sleep(Duration::from_secs(12)).await;
        let now = configuration(&client).await?.metadata.generation;
        ensure!(now == settled, "they write one against the other: {settled:?}, {now:?}");

        stage.guards[0].end(SOON).await?;
        until("the other to lead", SOON, async || {
            ensure!(follower.leads().await?);
            Ok(())
        })
        .await?;
        sleep(Duration::from_secs(2)).await;
        trusted().await
    });
}

/// The configuration as it is stored.
async fn configuration(client: &Client) -> anyhow::Result<ValidatingWebhookConfiguration> {
    Ok(Api::all(client.clone()).get("deployer-guard").await?)
}

/// What each entry trusts.
async fn authorities(client: &Client) -> anyhow::Result<Vec<Vec<CertificateDer<'static>>>> {
    let entries = configuration(client).await?.webhooks.unwrap_or_default();
    ensure!(entries.len() > 1, "{} entries", entries.len());
    let bundles = entries
        .into_iter()
        .map(|entry| entry.client_config.ca_bundle.unwrap_or_default());
    bundles
        .map(|bundle| certificates(&bundle.0).map_err(anyhow::Error::msg))
        .collect()
}

/// How often our `ServiceAccount` used a verb on Secrets.
fn uses(stage: &Stage, verb: &str) -> anyhow::Result<usize> {
    let events = stage.plane.audit_events()?;
    let ours = events.iter().filter(|event| {
        event["user"]["username"] == "system:serviceaccount:deployer-guard:deployer-guard"
            && event["objectRef"]["resource"] == "secrets"
            && event["verb"] == verb
    });
    Ok(ours.count())
}

/// Nothing was refused for want of a right.
fn rights(stage: &Stage) -> anyhow::Result<()> {
    let events = stage.plane.audit_events()?;
    let refused: Vec<_> = events
        .iter()
        .filter(|event| {
            event["user"]["username"] == "system:serviceaccount:deployer-guard:deployer-guard"
                && event["annotations"]["authorization.k8s.io/decision"] == "forbid"
        })
        .collect();
    ensure!(refused.is_empty(), "{refused:#?}");
    Ok(())
}
