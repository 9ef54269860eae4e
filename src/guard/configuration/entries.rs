//! Which entries of a webhook configuration are ours, and which of them differ from what they are to be.

use std::collections::BTreeSet;

use k8s_openapi::api::admissionregistration::v1::ValidatingWebhook;
use serde_json::Value;

pub use crate::cluster::webhook_configuration::is_ours;
use crate::cluster::webhook_configuration::webhook_name;

/// The name of the policy whose entry has this name.
#[must_use]
pub fn policy_of(name: &str) -> Option<&str> {
    name.strip_suffix(&webhook_name("")).filter(|policy| !policy.is_empty())
}

/// Whether two entries mean the same to the API server: defaults that it leaves out, and the order of conditions, do not count.
#[must_use]
pub fn same(one: &ValidatingWebhook, other: &ValidatingWebhook) -> bool {
    fingerprint(one) == fingerprint(other)
}

/// Whether an entry is that of a version of a policy, whatever bundle its certificate is checked by.
#[must_use]
pub fn same_but_for_the_bundle(one: &ValidatingWebhook, other: &ValidatingWebhook) -> bool {
    let without = |entry: &ValidatingWebhook| {
        let mut entry = entry.clone();
        entry.client_config.ca_bundle = None;
        entry
    };
    same(&without(one), &without(other))
}

/// What an entry means, as a text.
#[must_use]
pub fn fingerprint(entry: &ValidatingWebhook) -> String {
    let mut entry = entry.clone();
    if let Some(conditions) = &mut entry.match_conditions {
        conditions.sort_by(|one, other| one.name.cmp(&other.name));
    }
    let mut value = serde_json::to_value(entry).unwrap_or_default();
    strip(&mut value);
    value.to_string()
}

/// Takes out nulls, empty lists and empty objects.
fn strip(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.values_mut().for_each(strip);
            fields.retain(|_, field| !is_empty(field));
        }
        Value::Array(items) => items.iter_mut().for_each(strip),
        _ => {}
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(fields) => fields.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}

/// The names of our entries that are not what is wanted: changed, missing, or not wanted at all.
#[must_use]
pub fn differences(stored: &[ValidatingWebhook], wanted: &[ValidatingWebhook]) -> BTreeSet<String> {
    let ours: Vec<_> = stored.iter().filter(|entry| is_ours(&entry.name)).collect();
    let surplus = ours
        .iter()
        .filter(|entry| wanted.iter().all(|other| other.name != entry.name))
        .map(|entry| entry.name.clone());
    let changed = wanted
        .iter()
        .filter(|entry| {
            ours.iter()
                .find(|other| other.name == entry.name)
                .is_none_or(|other| !same(other, entry))
        })
        .map(|entry| entry.name.clone());
    surplus.chain(changed).collect()
}

/// All entries as they are to be: those of others as they are, and ours as wanted.
#[must_use]
pub fn merged(stored: &[ValidatingWebhook], wanted: &[ValidatingWebhook]) -> Vec<ValidatingWebhook> {
    let others = stored.iter().filter(|entry| !is_ours(&entry.name));
    others.chain(wanted).cloned().collect()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::ByteString;
    use k8s_openapi::api::admissionregistration::v1::MatchCondition;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

    use super::*;

    fn entry(name: &str) -> ValidatingWebhook {
        ValidatingWebhook {
            name: name.into(),
            ..ValidatingWebhook::default()
        }
    }

    #[test]
    fn ours_are_those_of_policies_and_the_one_that_judges_them() {
        for (name, ours, policy) in [
            ("policies.deployer-guard.io", true, None),
            ("app.policies.deployer-guard.io", true, Some("app")),
            ("a.b.policies.deployer-guard.io", true, Some("a.b")),
            ("deployer-guard.io", false, None),
            ("xpolicies.deployer-guard.io", false, None),
            ("app.policies.deployer-guard.io.example.com", false, None),
        ] {
            assert_eq!((is_ours(name), policy_of(name)), (ours, policy), "{name}");
        }
    }

    #[test]
    fn what_the_api_server_writes_in_another_way_is_no_difference() {
        let condition = |name: &str| MatchCondition {
            name: name.into(),
            expression: "true".into(),
        };
        let mut one = entry("app.policies.deployer-guard.io");
        let mut other = one.clone();
        one.match_conditions = Some(vec![condition("a"), condition("b")]);
        other.match_conditions = Some(vec![condition("b"), condition("a")]);
        one.object_selector = Some(LabelSelector::default());
        assert!(same(&one, &other));
        other.match_conditions.as_mut().unwrap().push(condition("c"));
        assert!(!same(&one, &other));
        let mut rotated = one.clone();
        rotated.client_config.ca_bundle = Some(ByteString(b"other".to_vec()));
        assert!(!same(&one, &rotated));
        assert!(same_but_for_the_bundle(&one, &rotated));
    }

    #[test]
    fn differences_are_what_is_changed_missing_or_surplus_among_ours() {
        let (a, b, c) = (
            "a.policies.deployer-guard.io",
            "b.policies.deployer-guard.io",
            "c.policies.deployer-guard.io",
        );
        let mut changed = entry(a);
        changed.timeout_seconds = Some(1);
        let stored = [changed, entry(c), entry("somebody.else")];
        let wanted = [entry(a), entry(b)];
        let differing: Vec<_> = differences(&stored, &wanted).into_iter().collect();
        assert_eq!(differing, [a, b, c]);
        let all = merged(&stored, &wanted);
        let names: Vec<_> = all.iter().map(|entry| entry.name.as_str()).collect();
        assert_eq!(names, ["somebody.else", a, b]);
        assert!(differences(&all, &wanted).is_empty());
    }
}
