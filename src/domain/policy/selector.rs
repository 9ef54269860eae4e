//! Label selectors, as the API server judges them.

use super::field::FieldError;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// A label selector. One without requirements matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Selector(Vec<Requirement>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Requirement {
    key: String,
    operator: Operator,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Operator {
    In(BTreeSet<String>),
    /// Absent counts too.
    NotIn(BTreeSet<String>),
    Exists,
    DoesNotExist,
}

impl Selector {
    /// Reads a selector that stands in `field`.
    pub(super) fn new(field: &str, selector: Option<&LabelSelector>) -> Result<Self, Vec<FieldError>> {
        let Some(selector) = selector else {
            return Ok(Self::default());
        };
        let labels = selector.match_labels.iter().flatten().map(|(key, value)| Requirement {
            key: key.clone(),
            operator: Operator::In(BTreeSet::from([value.clone()])),
        });
        let mut requirements: Vec<_> = labels.collect();
        let mut errors = Vec::new();
        let keys = requirements.iter().map(|requirement| &requirement.key);
        errors.extend(keys.filter_map(|key| bad_key(&format!("{field}.matchLabels"), key)));
        for (index, expression) in selector.match_expressions.iter().flatten().enumerate() {
            match requirement(&format!("{field}.matchExpressions[{index}]"), expression) {
                Ok(requirement) => requirements.push(requirement),
                Err(error) => errors.push(error),
            }
        }
        if errors.is_empty() {
            Ok(Self(requirements))
        } else {
            Err(errors)
        }
    }

    /// Whether an object with these labels is selected.
    pub(super) fn matches(&self, labels: &BTreeMap<&str, &str>) -> bool {
        self.0.iter().all(|requirement| {
            let value = labels.get(requirement.key.as_str());
            match &requirement.operator {
                Operator::In(values) => value.is_some_and(|value| values.contains(*value)),
                Operator::NotIn(values) => value.is_none_or(|value| !values.contains(*value)),
                Operator::Exists => value.is_some(),
                Operator::DoesNotExist => value.is_none(),
            }
        })
    }

    /// The keys of the labels that are compared.
    pub(super) fn keys(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|requirement| requirement.key.as_str())
    }
}

/// As the `labelSelector` parameter of a list.
impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, Requirement { key, operator }) in self.0.iter().enumerate() {
            f.write_str(if index > 0 { "," } else { "" })?;
            match operator {
                Operator::In(values) => write!(f, "{key} in ({})", joined(values))?,
                Operator::NotIn(values) => write!(f, "{key} notin ({})", joined(values))?,
                Operator::Exists => f.write_str(key)?,
                Operator::DoesNotExist => write!(f, "!{key}")?,
            }
        }
        Ok(())
    }
}

fn joined(values: &BTreeSet<String>) -> String {
    values.iter().map(String::as_str).collect::<Vec<_>>().join(",")
}

/// A key that the API server takes for no label's: it would refuse the webhook configuration.
fn bad_key(field: &str, key: &str) -> Option<FieldError> {
    let (prefix, name) = key
        .split_once('/')
        .map_or((None, key), |(prefix, name)| (Some(prefix), name));
    let good_name = is_made_of(name, 63, |byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    let good_prefix = prefix.is_none_or(|prefix| {
        let is_part = |part: &str| {
            is_made_of(part, 253, |byte| {
                byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-'
            })
        };
        prefix.len() <= 253 && prefix.split('.').all(is_part)
    });
    let message = format!(
        "{key:?} is no key of a label; give it a name of at most 63 letters, digits, -, _ and ., after a DNS name and a slash if it has a prefix"
    );
    (!good_name || !good_prefix).then(|| FieldError::new(field, message))
}

/// Whether a text of these characters begins and ends with a letter or digit.
fn is_made_of(text: &str, longest: usize, good: impl Fn(u8) -> bool) -> bool {
    let ends = [text.bytes().next(), text.bytes().last()];
    let ends = ends
        .into_iter()
        .all(|end| end.is_some_and(|byte| byte.is_ascii_alphanumeric()));
    ends && text.len() <= longest && text.bytes().all(good)
}

fn requirement(field: &str, expression: &LabelSelectorRequirement) -> Result<Requirement, FieldError> {
    if let Some(error) = bad_key(&format!("{field}.key"), &expression.key) {
        return Err(error);
    }
    let values: BTreeSet<String> = expression.values.iter().flatten().cloned().collect();
    let operator = match (expression.operator.as_str(), values.is_empty()) {
        ("In", false) => Operator::In(values),
        ("NotIn", false) => Operator::NotIn(values),
        ("Exists", true) => Operator::Exists,
        ("DoesNotExist", true) => Operator::DoesNotExist,
        ("In" | "NotIn", true) => {
            return Err(FieldError::new(
                &format!("{field}.values"),
                "In and NotIn need at least one value; give one",
            ));
        }
        ("Exists" | "DoesNotExist", false) => {
            return Err(FieldError::new(
                &format!("{field}.values"),
                "Exists and DoesNotExist take no values; remove them",
            ));
        }
        _ => {
            return Err(FieldError::new(
                &format!("{field}.operator"),
                "the operator must be In, NotIn, Exists or DoesNotExist",
            ));
        }
    };
    Ok(Requirement {
        key: expression.key.clone(),
        operator,
    })
}
