//! The `ValidatingWebhookConfiguration` that policies call for: narrow by construction, so that a pod that no policy
//! matches never leaves the API server, and with CEL that fails on no pod.

use crate::api::policy::FailurePolicy;
use crate::api::{self, DeployerPolicy};
use crate::domain::expression::Keys;
use crate::domain::policy::{MIRROR_ANNOTATION, Policy};
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::{
    MatchCondition, RuleWithOperations, ServiceReference, ValidatingWebhook, ValidatingWebhookConfiguration,
    WebhookClientConfig,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement, ObjectMeta};

/// Where the webhook listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backend {
    /// Behind a Service.
    Service {
        /// The namespace of the Service.
        namespace: String,
        /// The name of the Service.
        name: String,
        /// The port of the Service.
        port: i32,
    },
    /// At a URL without a path, like `https://127.0.0.1:8443`.
    Url(String),
}

/// The label by which every namespace carries its own name.
pub const NAMESPACE_NAME: &str = "kubernetes.io/metadata.name";

/// How long the API server waits for the verdict on a policy, in seconds.
const POLICY_TIMEOUT: i32 = 5;

/// The webhook that judges policies; those of single policies are named below it.
const POLICY_WEBHOOK: &str = "policies.deployer-guard.io";

/// The namespaces that no policy matches, whatever its selector: kube-system, and that of deployer-guard.
#[must_use]
pub fn never_matched(own_namespace: &str) -> [&str; 2] {
    ["kube-system", own_namespace]
}

/// What the webhook says of a dry run of a policy's status, in a warning: that it was asked.
pub const ANSWERS: &str = "deployer-guard answers for DeployerPolicy";

/// The end of the path under a version of a policy under which stock was taken.
pub const STOCKED: &str = "stocked";

/// The name of a policy's entry.
#[must_use]
pub fn webhook_name(policy: &str) -> String {
    format!("{policy}.{POLICY_WEBHOOK}")
}

/// Whether an entry of this name is ours: that of a policy, or the one that judges policies.
#[must_use]
pub fn is_ours(name: &str) -> bool {
    // `.policies.deployer-guard.io` and what stands for a policy before it.
    name.strip_suffix(POLICY_WEBHOOK)
        .is_some_and(|policy| policy.is_empty() || policy.ends_with('.'))
}

/// The path that requests under a policy go to: it says which version of the policy the API server knows. It does not say that
/// stock was taken; see [`stocked`].
#[must_use]
pub fn admit_path(policy: &Policy) -> String {
    let Policy {
        name, uid, generation, ..
    } = policy;
    if uid.is_empty() {
        format!("/admit/{name}")
    } else {
        format!("/admit/{name}/{uid}/{generation}")
    }
}

/// The configuration named `name` with one entry for each policy that compiles, in order of their names, and one that
/// judges policies. Without a CA bundle the API server trusts its system's roots.
#[must_use]
pub fn generate(
    policies: &[DeployerPolicy],
    backend: &Backend,
    ca_bundle: Option<&[u8]>,
    own_namespace: &str,
    name: &str,
) -> ValidatingWebhookConfiguration {
    let client = |path: &str| client_config(backend, ca_bundle, path);
    let mut webhooks: Vec<_> = policies
        .iter()
        .filter_map(|policy| Some((policy, Policy::compile(policy).ok()?)))
        .filter(|(_, compiled)| !compiled.name.is_empty())
        .map(|(policy, compiled)| entry(policy, &compiled, client(&admit_path(&compiled)), own_namespace))
        .collect();
    webhooks.sort_by(|one, other| one.name.cmp(&other.name));
    webhooks.insert(0, policy_entry(client("/validate/deployerpolicies")));
    ValidatingWebhookConfiguration {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            ..ObjectMeta::default()
        },
        webhooks: Some(webhooks),
    }
}

/// The same entry, which says in its URL that stock was taken under this version of the policy, and that the entry has stood in the
/// stored configuration without a break since before that. So this truth goes with the entry, in one write, whoever changes it.
#[must_use]
pub fn stocked(plain: &ValidatingWebhook) -> ValidatingWebhook {
    let mut entry = plain.clone();
    let client = &mut entry.client_config;
    let service = client.service.as_mut().and_then(|service| service.path.as_mut());
    for path in client.url.iter_mut().chain(service) {
        path.push('/');
        path.push_str(STOCKED);
    }
    entry
}

/// An entry that does not say that stock was taken, whatever it said before.
#[must_use]
pub fn unstocked(entry: &ValidatingWebhook) -> ValidatingWebhook {
    let mut entry = entry.clone();
    let client = &mut entry.client_config;
    let service = client.service.as_mut().and_then(|service| service.path.as_mut());
    for path in client.url.iter_mut().chain(service) {
        if let Some(plain) = path.strip_suffix(STOCKED).and_then(|path| path.strip_suffix('/')) {
            *path = plain.to_owned();
        }
    }
    entry
}

fn client_config(backend: &Backend, ca_bundle: Option<&[u8]>, path: &str) -> WebhookClientConfig {
    let ca_bundle = ca_bundle.map(|bundle| ByteString(bundle.to_vec()));
    match backend {
        Backend::Url(url) => WebhookClientConfig {
            ca_bundle,
            url: Some(format!("{}{path}", url.trim_end_matches('/'))),
            service: None,
        },
        Backend::Service { namespace, name, port } => {
            let service = ServiceReference {
                namespace: namespace.clone(),
                name: name.clone(),
                port: Some(*port),
                path: Some(path.to_owned()),
            };
            WebhookClientConfig {
                ca_bundle,
                url: None,
                service: Some(service),
            }
        }
    }
}

fn entry(
    policy: &DeployerPolicy,
    compiled: &Policy,
    client_config: WebhookClientConfig,
    own_namespace: &str,
) -> ValidatingWebhook {
    let failure_policy = match compiled.failure_policy {
        FailurePolicy::Fail => "Fail",
        FailurePolicy::Ignore => "Ignore",
    };
    let match_ = &policy.spec.match_;
    ValidatingWebhook {
        name: webhook_name(&compiled.name),
        admission_review_versions: vec!["v1".into()],
        client_config,
        failure_policy: Some(failure_policy.into()),
        match_conditions: Some(conditions(policy, compiled)),
        match_policy: Some("Equivalent".into()),
        namespace_selector: Some(namespaces(
            match_.namespace_selector.clone().unwrap_or_default(),
            own_namespace,
        )),
        object_selector: Some(match_.object_selector.clone().unwrap_or_default()),
        rules: Some(vec![rule("", "v1", &["pods"], "Namespaced")]),
        side_effects: "NoneOnDryRun".into(),
        timeout_seconds: Some(policy.spec.timeout_seconds),
    }
}

/// The entry that judges policies. It is ignored when nobody answers: the guard judges them too. A dry run of a policy's status
/// reaches it as well, so that the guard can see that an API server calls the webhook; real writes of it never do.
fn policy_entry(client_config: WebhookClientConfig) -> ValidatingWebhook {
    ValidatingWebhook {
        name: POLICY_WEBHOOK.into(),
        admission_review_versions: vec!["v1".into()],
        client_config,
        failure_policy: Some("Ignore".into()),
        match_conditions: Some(vec![MatchCondition {
            name: "deployer-guard.io/policy-or-dry-run".into(),
            expression:
                "!has(request.subResource) || request.subResource != 'status' || (has(request.dryRun) && request.dryRun)"
                    .into(),
        }]),
        match_policy: Some("Equivalent".into()),
        namespace_selector: Some(LabelSelector::default()),
        object_selector: Some(LabelSelector::default()),
        rules: Some(vec![rule(
            api::GROUP,
            api::VERSION,
            &["deployerpolicies", "deployerpolicies/status"],
            "Cluster",
        )]),
        side_effects: "None".into(),
        timeout_seconds: Some(POLICY_TIMEOUT),
    }
}

fn rule(group: &str, version: &str, resources: &[&str], scope: &str) -> RuleWithOperations {
    RuleWithOperations {
        api_groups: Some(vec![group.into()]),
        api_versions: Some(vec![version.into()]),
        operations: Some(vec!["CREATE".into(), "UPDATE".into()]),
        resources: Some(resources.iter().map(ToString::to_string).collect()),
        scope: Some(scope.into()),
    }
}

fn namespaces(mut selector: LabelSelector, own_namespace: &str) -> LabelSelector {
    selector
        .match_expressions
        .get_or_insert_default()
        .push(LabelSelectorRequirement {
            key: NAMESPACE_NAME.into(),
            operator: "NotIn".into(),
            values: Some(never_matched(own_namespace).map(str::to_owned).into()),
        });
    selector
}

fn conditions(policy: &DeployerPolicy, compiled: &Policy) -> Vec<MatchCondition> {
    let condition = |name: &str, expression| MatchCondition {
        name: name.to_owned(),
        expression,
    };
    let users = policy.spec.match_.match_conditions.iter();
    let mut conditions = vec![
        condition("deployer-guard.io/not-mirror", not_mirror()),
        condition("deployer-guard.io/identity-changed", identity_changed(compiled)),
    ];
    conditions.extend(users.map(|user| condition(&user.name, before_or_after(&user.expression))));
    conditions
}

fn not_mirror() -> String {
    format!(
        "!object.metadata.?annotations[?{}].hasValue()",
        literal(MIRROR_ANNOTATION)
    )
}

/// On an update the condition may hold for the pod before instead: what takes a pod out of the match must be judged
/// too. The expression stands on lines of its own, since it may end in a comment.
fn before_or_after(expression: &str) -> String {
    format!("(\n{expression}\n) || (request.operation == 'UPDATE' && [oldObject].exists(object, (\n{expression}\n)))")
}

/// An update is of interest only where something differs that the policy matches or reads: everything else, such as a
/// finalizer that goes, must never wait for us.
fn identity_changed(policy: &Policy) -> String {
    let mut differs = vec!["request.operation != 'UPDATE'".to_owned()];
    let watched = policy.watched();
    for (field, keys) in [("labels", &watched.labels), ("annotations", &watched.annotations)] {
        match keys {
            Keys::All => differs.push(format!("object.metadata.?{field} != oldObject.metadata.?{field}")),
            Keys::Some(keys) => differs.extend(keys.iter().map(|key| {
                let key = literal(key);
                format!("object.metadata.?{field}[?{key}] != oldObject.metadata.?{field}[?{key}]")
            })),
        }
    }
    differs.join(" || ")
}

/// A CEL string literal.
fn literal(text: &str) -> String {
    let escaped: String = text.chars().map(escape).collect();
    format!("'{escaped}'")
}

fn escape(character: char) -> String {
    match character {
        '\'' | '\\' => format!("\\{character}"),
        character if character.is_control() => format!("\\u{:04x}", u32::from(character)),
        character => character.to_string(),
    }
}

#[cfg(test)]
mod tests;
