//! `deployer-guard probe`

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use tokio::time::{Instant, sleep};

use super::kubernetes::KubernetesArgs;
use super::serve_to_the_end;
use crate::cluster::policy_statuses::PolicyStatuses;
use crate::cluster::trial::{Outcome, Trial};
use crate::cluster::webhook_configuration::webhook_name;
use crate::webhook::timeout::parse_go_duration;

/// The label of pods that the policy is to match.
const LABEL: &str = "deployer-guard.io/probe";
/// The annotation from which the policy is to read the config.
const CONFIG: &str = "deployer-guard.io/probe-config";
/// How often something is looked at again.
const AGAIN: Duration = Duration::from_millis(500);

/// Options of `probe`.
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "The policy is one for this purpose: its objectSelector asks for label deployer-guard.io/probe (Exists), and its \
    config.annotation is deployer-guard.io/probe-config. Three pods are created in a dry run, so nothing is stored and no claim is \
    taken: one of the policy without a config, which has to be refused by the webhook; one with a config, which has to be admitted; \
    and one that no policy matches. The exit code is 0 if all three are as they have to be. Who runs this needs get on \
    deployerpolicies, and create on pods in the namespace."
)]
pub(super) struct ProbeArgs {
    /// The name of the policy
    #[arg(long, env = "DEPLOYER_GUARD_POLICY", value_name = "NAME")]
    policy: String,
    /// The namespace in which pods are created in a dry run; not that of deployer-guard, which no policy matches
    #[arg(
        long,
        env = "DEPLOYER_GUARD_POD_NAMESPACE",
        value_name = "NAMESPACE",
        default_value = "default"
    )]
    namespace: String,
    /// How long it may take until all is as it has to be
    #[arg(long, env = "DEPLOYER_GUARD_TIMEOUT", value_name = "DURATION", default_value = "60s",
          value_parser = parse_go_duration)]
    timeout: Duration,
    #[command(flatten)]
    kubernetes: KubernetesArgs,
}

/// What has to become of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    Refused,
    Admitted,
}

/// One pod to try.
struct Case {
    what: &'static str,
    name: &'static str,
    labels: &'static [(&'static str, &'static str)],
    annotations: &'static [(&'static str, &'static str)],
    expected: Expected,
}

const CASES: [Case; 3] = [
    Case {
        what: "a deployer pod without a config",
        name: "deployer-guard-probe-refused",
        labels: &[(LABEL, "")],
        annotations: &[],
        expected: Expected::Refused,
    },
    Case {
        what: "a deployer pod with a config",
        name: "deployer-guard-probe-admitted",
        labels: &[(LABEL, "")],
        annotations: &[(CONFIG, "probe")],
        expected: Expected::Admitted,
    },
    Case {
        what: "a pod that no policy matches",
        name: "deployer-guard-probe-plain",
        labels: &[],
        annotations: &[],
        expected: Expected::Admitted,
    },
];

pub(super) fn run(args: &ProbeArgs) -> anyhow::Result<()> {
    serve_to_the_end(probe(args))
}

async fn probe(args: &ProbeArgs) -> anyhow::Result<()> {
    let client = args.kubernetes.client().await?;
    let statuses = PolicyStatuses::new(client.clone());
    let trial = Trial::new(client, &args.namespace);
    let until = Instant::now() + args.timeout;
    tried(until, async || enforced(&statuses, &args.policy).await)
        .await
        .with_context(|| format!("DeployerPolicy {:?} is not in force", args.policy))?;
    println!("in force: DeployerPolicy {:?}", args.policy);
    for case in &CASES {
        let said = tried(until, async || case.hold(&trial, &args.policy).await)
            .await
            .with_context(|| format!("{} is not treated as it has to be", case.what))?;
        println!("{said}");
    }
    Ok(())
}

/// Tries until it is as it has to be: what is stored takes API servers a moment to heed. The last error, when time is over.
async fn tried<T>(until: Instant, mut attempt: impl AsyncFnMut() -> anyhow::Result<T>) -> anyhow::Result<T> {
    loop {
        match attempt().await {
            Ok(done) => return Ok(done),
            Err(error) if Instant::now() + AGAIN > until => {
                return Err(error.context("it is not so within --timeout"));
            }
            Err(_not_yet) => sleep(AGAIN).await,
        }
    }
}

async fn enforced(statuses: &PolicyStatuses, name: &str) -> anyhow::Result<()> {
    let policy = statuses.read(name).await?;
    let policy = policy.context("there is no such DeployerPolicy: apply it, or name another with --policy")?;
    let conditions = policy.status.unwrap_or_default().conditions;
    let enforced = conditions.iter().find(|condition| condition.type_ == "Enforced");
    let enforced = enforced.context("it has no condition Enforced: does a guard lead?")?;
    if enforced.observed_generation != policy.metadata.generation {
        bail!("its condition Enforced is about an older generation");
    }
    if enforced.status != "True" || enforced.reason != "InForce" {
        bail!("{}: {}", enforced.reason, enforced.message);
    }
    Ok(())
}

impl Case {
    async fn hold(&self, trial: &Trial, policy: &str) -> anyhow::Result<String> {
        let pairs = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
            pairs.iter().map(owned).collect()
        };
        let outcome = trial
            .create(self.name, &pairs(self.labels), &pairs(self.annotations))
            .await?;
        self.judge(&outcome, policy)
    }

    /// What to say of an outcome that is as it has to be.
    fn judge(&self, outcome: &Outcome, policy: &str) -> anyhow::Result<String> {
        let what = self.what;
        match (self.expected, outcome) {
            (Expected::Admitted, Outcome::Created) => Ok(format!("admitted: {what}")),
            (Expected::Refused, Outcome::Created) => Err(anyhow!("it was admitted: the webhook was not asked")),
            (
                Expected::Refused,
                Outcome::Refused {
                    code: 403,
                    cause,
                    message,
                },
            ) if cause == "IdentityInvalid" && message.contains(&webhook_name(policy)) => {
                Ok(format!("refused: {what}: {cause}: {message}"))
            }
            (_, Outcome::Refused { code, cause, message }) => Err(anyhow!("it was answered {code} {cause}: {message}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(code: u16, cause: &str, webhook: &str) -> Outcome {
        Outcome::Refused {
            code,
            cause: cause.to_owned(),
            message: format!("admission webhook {webhook:?} denied the request: no config"),
        }
    }

    #[test]
    fn only_a_refusal_of_ours_for_the_missing_config_is_the_one_that_is_looked_for() {
        let [without, with, plain] = &CASES;
        let ours = "p.policies.deployer-guard.io";
        for (case, outcome, holds) in [
            (without, refused(403, "IdentityInvalid", ours), true),
            (without, refused(403, "IdentityInvalid", "another.example"), false),
            (without, refused(403, "", ours), false),
            (without, refused(500, "", ours), false),
            (without, Outcome::Created, false),
            (with, Outcome::Created, true),
            (with, refused(403, "DeployerActive", ours), false),
            (plain, Outcome::Created, true),
            (plain, refused(403, "", "quota"), false),
        ] {
            assert_eq!(case.judge(&outcome, "p").is_ok(), holds, "{} {outcome:?}", case.what);
        }
    }
}
