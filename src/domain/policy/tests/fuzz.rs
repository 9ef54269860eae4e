//! Identities at random: never an empty one, never one claim for two, always a name that an API server takes.

use super::*;
use crate::domain::expression::{Expression, within};
use crate::domain::key::{Key, Subject};
use std::collections::BTreeMap;

/// Texts that names are made of, and such as are no names.
fn any_text() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => ".{0,40}",
        2 => "[a-z0-9./_-]{1,40}",
        1 => "\\PC{0,3}[\\x00-\\x1f\\x7f\u{85}\u{200b}\u{202e}]\\PC{0,3}",
        1 => "[xä🧀]{120,600}",
        1 => proptest::sample::select(vec!["", " ", "a", "A", "a-", "-a", "a/b", "a.b", "..", "a\u{308}", "ä", "null", "0"]).prop_map(str::to_owned),
    ]
}

fn any_policy_name() -> impl Strategy<Value = String> {
    "[a-z0-9]([-a-z0-9]{0,20}[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]{0,18}[a-z0-9])?)?"
}

fn any_key() -> impl Strategy<Value = Key> {
    (any_policy_name(), any_text(), any::<bool>()).prop_map(|(policy, name, generation)| Key {
        policy,
        namespace: "shop".into(),
        subject: if generation {
            Subject::Generation(name)
        } else {
            Subject::Config(name)
        },
    })
}

fn is_object_name(name: &str) -> bool {
    let is_part = |part: &str| {
        let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        !part.is_empty() && !part.starts_with('-') && !part.ends_with('-') && part.bytes().all(inner)
    };
    name.len() <= 253 && name.split('.').all(is_part)
}

/// Two keys, often nearly the same.
fn any_pair() -> impl Strategy<Value = (Key, Key)> {
    let changed = (any_key(), any_text(), 0..5).prop_map(|(key, text, change)| {
        let mut other = key.clone();
        let name = key.subject.name().to_owned();
        match change {
            0 => other.subject = Subject::Config(format!("{name}{text}")),
            1 => other.subject = Subject::Config(name.to_uppercase()),
            2 => other.subject = Subject::Generation(name),
            3 => other.policy.push('a'),
            _ => other.subject = Subject::Config(name.replace(['.', '/', ' '], "-")),
        }
        (key, other)
    });
    prop_oneof![changed, (any_key(), any_key())]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn claim_names_are_good_and_tell_keys_apart((one, other) in any_pair()) {
        for key in [&one, &other] {
            prop_assert!(is_object_name(&key.claim_name()), "{}", key.claim_name());
            prop_assert_eq!(key.claim_name(), key.clone().claim_name());
        }
        prop_assert_eq!(one == other, one.claim_name() == other.claim_name());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn an_identity_is_the_text_or_a_refusal_that_names_the_field(text in any_text(), other in any_text()) {
        let good = !text.is_empty() && text.len() <= MAX_IDENTITY && !text.chars().any(char::is_control);
        for (config, field) in [
            (json!({"label": "app"}), "spec.config.label"),
            (json!({"annotation": "app"}), "spec.config.annotation"),
            (json!({"expression": "object.metadata.annotations.app"}), "spec.config.expression"),
        ] {
            let policy = with(json!({"config": config, "generation": {"annotation": "generation"}})).unwrap();
            let pod = pod(json!({"app": text}), json!({"app": text, "generation": other}));
            match policy.identity(&pod) {
                Ok(identity) => {
                    prop_assert!(good, "{text:?}");
                    prop_assert_eq!(&identity.config, &text);
                    prop_assert_eq!(identity.generation.as_deref(), Some(other.as_str()));
                }
                Err(error) => {
                    let said = error.to_string();
                    prop_assert!(!good && said.contains(field) || said.contains("spec.generation.annotation"), "{said}");
                    // No text of the pod's is repeated: it may be long, or secret.
                    prop_assert!(said.len() < 300, "{said}");
                }
            }
        }
    }

    #[test]
    fn any_text_is_refused_as_a_policy_or_gives_one_that_can_be_used(
        texts in proptest::collection::vec(any_text(), 5), pod in any_json(),
    ) {
        let policy = policy(json!({
            "match": {
                "objectSelector": {"matchLabels": {texts[0].clone(): texts[1]}},
                "matchConditions": [{"name": texts[1], "expression": format!("has(object.metadata) && {}", texts[2])}],
            },
            "config": {"label": texts[0]},
            "generation": {"expression": texts[3], "ordinal": texts[4]},
            "owner": {"apiVersion": texts[1], "kind": texts[2], "expression": texts[3]},
        }));
        match policy {
            Err(errors) => {
                prop_assert!(!errors.is_empty());
                prop_assert!(errors.iter().all(|error| error.field.starts_with("spec.") && !error.message.is_empty()));
            }
            Ok(policy) => {
                let _ = (policy.matches(&pod, None), policy.identity(&pod), policy.owner_reference(&pod), policy.costs());
            }
        }
    }
}

/// Expressions that parse: what the token soup seldom gives.
fn any_expression() -> impl Strategy<Value = String> {
    let leaf = proptest::sample::select(vec![
        "object",
        "oldObject",
        "object.metadata",
        "object.metadata.labels",
        "object.metadata.labels['app']",
        "object.spec",
        "object.?metadata.?labels",
        "true",
        "false",
        "null",
        "0",
        "1",
        "-1",
        "9223372036854775807",
        "-9223372036854775808",
        "1u",
        "18446744073709551615u",
        "1.5",
        "1e308",
        "''",
        "'a'",
        "'ä🧀'",
        "b'a'",
        "[]",
        "{}",
        "dyn(1)",
        "dyn('a')",
        "x",
        "optional.none()",
        "type(1)",
    ])
    .prop_map(str::to_owned);
    leaf.prop_recursive(6, 40, 3, |inner| {
        let operator = proptest::sample::select(vec!["+", "-", "*", "/", "%", "==", "!=", "<", ">=", "&&", "||", "in"]);
        let call = proptest::sample::select(vec![
            "size",
            "string",
            "int",
            "uint",
            "double",
            "bool",
            "bytes",
            "type",
            "dyn",
            "!",
            "-",
            "optional.of",
        ]);
        let method = proptest::sample::select(vec![
            ".size()",
            ".trim()",
            ".lowerAscii()",
            ".hasValue()",
            ".value()",
            ".charAt(0)",
            ".split('')",
            ".split('a', 2)",
            ".substring(1)",
            ".matches('^a?\\\\d*$')",
            ".orValue('a')",
            ".orValue(1)",
            ".a",
            ".?a",
            "[0]",
            "['a']",
            "[?0]",
            ".contains('')",
            ".indexOf('a')",
            ".lastIndexOf('', 1)",
        ]);
        let a_macro = proptest::sample::select(vec!["all", "exists", "exists_one", "map", "filter"]);
        prop_oneof![
            (inner.clone(), operator, inner.clone())
                .prop_map(|(one, operator, other)| format!("({one} {operator} {other})")),
            (call, inner.clone()).prop_map(|(call, one)| format!("{call}({one})")),
            (inner.clone(), method).prop_map(|(one, method)| format!("({one}){method}")),
            (inner.clone(), a_macro, inner.clone())
                .prop_map(|(one, a_macro, other)| format!("({one}).{a_macro}(x, {other})")),
            (inner.clone(), inner.clone(), inner.clone())
                .prop_map(|(one, two, three)| format!("({one} ? {two} : {three})")),
            proptest::collection::vec(inner.clone(), 0..3).prop_map(|items| format!("[{}]", items.join(", "))),
            (inner.clone(), inner).prop_map(|(one, other)| format!("{{{one}: {other}}}")),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn a_well_formed_expression_ends_within_its_allowance(source in any_expression(), object in any_json()) {
        // On a small stack, as that of a thread which answers calls.
        let Ok(expression) = Expression::compile("f", &format!("[0].exists(x, dyn({source}) == 0)"), &["object", "oldObject"]) else {
            return Ok(());
        };
        let scope = Scope::new(&[("object", Some(&object)), ("oldObject", None)]);
        for allowance in [50, 5000, u64::MAX] {
            let done = within(allowance, || expression.bool(&scope));
            prop_assert!(done.cost <= allowance);
            if let Some(Err(error)) = done.value {
                prop_assert!(error.fault != crate::domain::expression::Fault::Internal, "{source}: {error}");
            }
        }
        // The same value each time.
        prop_assert_eq!(expression.bool(&scope), expression.bool(&scope));
    }
}

/// The table that the API server's verdicts are kept in, as a corpus: each row cut and joined with another.
#[test]
fn rows_of_the_conformance_table_cut_anywhere_do_no_harm() {
    let table: BTreeMap<String, Vec<String>> =
        serde_saphyr::from_str(include_str!("../../../../tests/data/cel/expressions.yaml")).unwrap();
    let rows: Vec<String> = table.into_values().flatten().collect();
    let pod = pod(json!({"app": "a"}), json!({}));
    let scope = Scope::new(&[("object", Some(&pod)), ("oldObject", None)]);
    let pair = (any::<proptest::sample::Index>(), any::<proptest::sample::Index>());
    proptest!(ProptestConfig::with_cases(1500), |(one in pair.clone(), other in pair)| {
        let cut = |(row, place): (proptest::sample::Index, proptest::sample::Index), before: bool| {
            let characters: Vec<char> = row.get(&rows).chars().collect();
            let place = place.index(characters.len() + 1);
            let part = if before { &characters[..place] } else { &characters[place..] };
            part.iter().collect::<String>()
        };
        let source = cut(one, true) + &cut(other, false);
        if let Ok(expression) = Expression::compile("f", &source, &["object", "oldObject"])
            && let Err(error) = expression.bool(&scope)
        {
            prop_assert!(error.fault != crate::domain::expression::Fault::Internal, "{source}: {error}");
        }
    });
}
