//! `deployer-guard probe`

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, anyhow};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelectorRequirement;
use serde::Deserialize;
use tokio::time::{Instant, sleep};

use super::kubernetes::KubernetesArgs;
use super::serve_to_the_end;
use crate::api::DeployerPolicySpec;
use crate::api::policy::Mode;
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
    #[arg(long, env = "DEPLOYER_GUARD_POLICY", value_name = "NAME", value_parser = crate::flags::policy)]
    policy: String,
    /// The namespace in which pods are created in a dry run; not that of deployer-guard, which no policy matches
    #[arg(
        long,
        env = "DEPLOYER_GUARD_POD_NAMESPACE",
        value_name = "NAMESPACE",
        default_value = "default",
        value_parser = crate::flags::label
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
        .with_context(|| format!("DeployerPolicy {:?} is not known to be in force", args.policy))?;
    println!("in force: DeployerPolicy {:?}", args.policy);
    for case in &CASES {
        let said = tried(until, async || case.hold(&trial, &args.policy).await)
            .await
            .with_context(|| format!("{} is not treated as it has to be", case.what))?;
        println!("{said}");
    }
    Ok(())
}

/// Why it is not as it has to be.
enum Why {
    /// It may be in a moment.
    NotYet(anyhow::Error),
    /// It stays so until somebody changes something.
    Never(anyhow::Error),
}

impl<E: Into<anyhow::Error>> From<E> for Why {
    fn from(error: E) -> Self {
        Self::NotYet(error.into())
    }
}

/// Tries until it is as it has to be: what is stored takes API servers a moment to heed. The last error, when time is over.
async fn tried<T>(until: Instant, mut attempt: impl AsyncFnMut() -> Result<T, Why>) -> anyhow::Result<T> {
    loop {
        match attempt().await {
            Ok(done) => return Ok(done),
            Err(Why::Never(error)) => return Err(error),
            Err(Why::NotYet(error)) if Instant::now() + AGAIN > until => {
                return Err(error.context("it is not so within --timeout"));
            }
            Err(Why::NotYet(_)) => sleep(AGAIN).await,
        }
    }
}

/// What keeps a policy from being one that the pods of [`CASES`] are made for, and how it has to be; the first thing.
fn unfit(spec: &DeployerPolicySpec) -> Option<String> {
    let selector = spec.match_.object_selector.clone().unwrap_or_default();
    let asks =
        |asked: &LabelSelectorRequirement| asked.key == LABEL && asked.operator == "Exists" && asked.values.is_none();
    let selects = selector.match_labels.is_none_or(|labels| labels.is_empty())
        && matches!(selector.match_expressions.as_deref(), Some([asked]) if asks(asked));
    let faults = [
        (
            selects,
            format!("spec.match.objectSelector must be matchExpressions: [{{key: {LABEL}, operator: Exists}}]"),
        ),
        (
            spec.match_.match_conditions.is_empty(),
            "spec.match.matchConditions must be left out".to_owned(),
        ),
        (
            spec.config.annotation.as_deref() == Some(CONFIG) && spec.config.uid.is_none(),
            format!("spec.config must be annotation: {CONFIG}"),
        ),
        (spec.generation.is_none(), "spec.generation must be left out".to_owned()),
        (spec.owner.is_none(), "spec.owner must be left out".to_owned()),
        (
            spec.mode == Mode::Enforce,
            "spec.mode must be Enforce: in another nothing is refused".to_owned(),
        ),
    ];
    faults.into_iter().find(|(holds, _)| !holds).map(|(_, fault)| fault)
}

async fn enforced(statuses: &PolicyStatuses, name: &str) -> Result<(), Why> {
    let policy = statuses.read(name).await.context("it could not be read")?;
    let policy = policy
        .context("there is no such DeployerPolicy: apply it, or name another with --policy")
        .map_err(Why::Never)?;
    let spec = DeployerPolicySpec::deserialize(&policy.spec);
    let spec = spec
        .context("it holds what this version does not know")
        .map_err(Why::Never)?;
    if let Some(fault) = unfit(&spec) {
        return Err(Why::Never(anyhow!("it is not one for a probe: {fault} (see --help)")));
    }
    let conditions = policy.status.unwrap_or_default().conditions;
    let enforced = conditions.iter().find(|condition| condition.type_ == "Enforced");
    let enforced = enforced.context("it has no condition Enforced: does a guard lead?")?;
    if enforced.observed_generation != policy.metadata.generation {
        return Err(anyhow!("its condition Enforced is about an older generation").into());
    }
    if enforced.status != "True" || enforced.reason != "InForce" {
        return Err(anyhow!("{}: {}", enforced.reason, enforced.message).into());
    }
    Ok(())
}

impl Case {
    async fn hold(&self, trial: &Trial, policy: &str) -> Result<String, Why> {
        let pairs = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
            pairs.iter().map(owned).collect()
        };
        let outcome = trial
            .create(self.name, &pairs(self.labels), &pairs(self.annotations))
            .await?;
        if let Outcome::Refused { code: 404, message, .. } = &outcome {
            return Err(Why::Never(anyhow!(
                "{message}: name a namespace that exists with --namespace"
            )));
        }
        Ok(self.judge(&outcome, policy)?)
    }

    /// What to say of an outcome that is as it has to be.
    fn judge(&self, outcome: &Outcome, policy: &str) -> anyhow::Result<String> {
        let what = self.what;
        match (self.expected, outcome) {
            (Expected::Admitted, Outcome::Created) => Ok(format!("admitted: {what}")),
            (Expected::Refused, Outcome::Created) => Err(anyhow!(
                "it was admitted: the webhook was not asked; does spec.match.namespaceSelector select this namespace?"
            )),
            (_, Outcome::Refused { code: 403, message, .. }) if message.contains("cannot create resource") => {
                Err(anyhow!(
                    "{message}: let the one who runs this create pods there, or name another namespace with --namespace"
                ))
            }
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
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_policy_that_the_pods_are_not_made_for_is_told_apart_by_its_field() {
        let good = json!({
            "match": { "objectSelector": { "matchExpressions": [{ "key": LABEL, "operator": "Exists" }] } },
            "config": { "annotation": CONFIG },
            "reruns": "Always",
        });
        let unfit = |changes: Value| {
            let mut spec = good.clone();
            for (key, value) in changes.as_object().unwrap() {
                spec[key] = value.clone();
            }
            super::unfit(&serde_json::from_value(spec).unwrap())
        };
        assert_eq!(unfit(json!({})), None);
        let namespaces = json!({ "matchLabels": { "a": "b" } });
        let mut matching = good["match"].clone();
        matching["namespaceSelector"] = namespaces;
        assert_eq!(
            unfit(json!({ "match": matching })),
            None,
            "the namespace is one's own affair"
        );
        let mut narrower = good["match"].clone();
        narrower["objectSelector"]["matchLabels"] = json!({ "a": "b" });
        let mut conditional = good["match"].clone();
        conditional["matchConditions"] = json!([{ "name": "a", "expression": "true" }]);
        for (changes, field) in [
            (json!({ "match": {} }), "objectSelector"),
            (json!({ "match": narrower }), "objectSelector"),
            (json!({ "match": conditional }), "matchConditions"),
            (json!({ "config": { "label": "a" } }), "spec.config"),
            (json!({ "config": { "annotation": "other" } }), "spec.config"),
            (json!({ "generation": { "label": "a" } }), "spec.generation"),
            (
                json!({ "owner": { "apiVersion": "v1", "kind": "Secret" } }),
                "spec.owner",
            ),
            (json!({ "mode": "Audit" }), "spec.mode"),
        ] {
            assert!(
                unfit(changes.clone()).is_some_and(|fault| fault.contains(field)),
                "{changes}"
            );
        }
    }

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
