use super::*;
use proptest::prelude::*;
use serde_json::{Value as Json, json};

const POD: &[&str] = &["object", "oldObject"];

fn compiled(source: &str) -> Expression {
    Expression::compile("spec.test", source, POD).unwrap_or_else(|error| panic!("{source}: {error}"))
}

fn pod() -> Json {
    json!({
        "metadata": {
            "name": "cfg-1-deploy",
            "labels": {"app": "cfg", "version": "7", "a": "1", "b": "2"},
            "annotations": {"cancelled": "TRUE"},
        },
        "spec": {"priority": 3, "big": 18_446_744_073_709_551_615_u64, "half": 0.5},
    })
}

fn text(source: &str) -> String {
    let pod = pod();
    let scope = Scope::new(&[("object", Some(&pod)), ("oldObject", None)]);
    let expression = match Expression::compile("f", source, POD) {
        Ok(expression) => expression,
        Err(error) => return error.to_string(),
    };
    match expression.evaluate(&scope) {
        Ok(Value::String(text)) => format!("'{text}'"),
        Ok(Value::Int(number)) => number.to_string(),
        Ok(Value::Bool(value)) => value.to_string(),
        Ok(other) => other.type_of().to_string(),
        Err(error) => error.to_string(),
    }
}

#[test]
fn an_expression_yields_what_cel_says() {
    for (source, wanted) in [
        ("object.metadata.labels['app']", "'cfg'"),
        ("object.metadata.labels.app + '-1'", "'cfg-1'"),
        ("int(object.metadata.labels.version)", "7"),
        ("object.spec.priority + 1", "4"),
        ("type(object.spec.priority) == int", "true"),
        ("type(object.spec.big) == double", "true"),
        ("object.spec.half < 1.0", "true"),
        ("oldObject == null", "true"),
        ("object.metadata.annotations.cancelled.lowerAscii() == 'true'", "true"),
        ("object.metadata.annotations.cancelled.matches('(?i)^true$')", "true"),
        ("object.metadata.name.endsWith('-deploy')", "true"),
        ("object.metadata.name.split('-')[0]", "'cfg'"),
        ("object.metadata.name.substring(0, 3)", "'cfg'"),
        ("has(object.metadata.labels) && 'app' in object.metadata.labels", "true"),
        ("has(object.spec.nothing)", "false"),
        ("object.?metadata.?labels.?none.orValue('x')", "'x'"),
        ("object.metadata.labels[?'app'].orValue('x')", "'cfg'"),
        ("object.metadata.?labels['app'].value()", "'cfg'"),
        ("optional.of(1).hasValue()", "true"),
        ("object.metadata.labels.exists(k, k == 'app')", "true"),
        ("[1, 2, 3].map(x, x * 2).exists(x, x == 6)", "true"),
        ("[1, 2, 3].filter(x, x > 1).size()", "2"),
        ("[3].map(x, {'k': x})[0].k", "3"),
        ("['a', 'b'].all(x, x in ['a', 'b'])", "true"),
        ("true ? 'a' : 'b'", "'a'"),
        ("string(5) + string(true)", "'5true'"),
    ] {
        assert_eq!(text(source), wanted, "{source}");
    }
}

#[test]
fn a_fault_says_where_and_what() {
    for (source, fault, position) in [
        (
            "object.",
            "f: syntax error: no viable alternative at input '.'",
            Some((1, 8)),
        ),
        ("true &&\n  (", "f: syntax error", Some((2, 4))),
        ("", "f: syntax error", Some((1, 1))),
        (
            "true && pod.x",
            "f: unknown variable pod; this field may read object and oldObject",
            Some((1, 9)),
        ),
        ("request.operation == 'X'", "f: unknown variable request", Some((1, 1))),
        ("[1].all(x, y)", "f: unknown variable y", Some((1, 12))),
        (
            "true &&\n  quantity('1')",
            "f: unknown function quantity",
            Some((2, 11)),
        ),
        (
            "'a'.replace('a', 'b') == 'b'",
            "f: unknown function replace",
            Some((1, 12)),
        ),
        (
            "[1].existsOne(x, x == 1)",
            "f: unknown function existsOne",
            Some((1, 14)),
        ),
        ("[1].all(x)", "f: unknown function all", Some((1, 8))),
        ("timestamp('x')", "f: unknown function timestamp", Some((1, 10))),
        ("Foo{a: 1}", "f: unknown function Foo", Some((1, 4))),
        (
            "'a'.matches(object.x)",
            "f: the pattern of matches must be a string literal",
            Some((1, 12)),
        ),
        (
            "'a'.matches('(')",
            "f: the pattern of matches is not a regular expression",
            Some((1, 12)),
        ),
        (
            "'a'.matches('(((a{100}){100}){100})')",
            "f: the pattern of matches is not a regular expression, or is too large",
            Some((1, 12)),
        ),
    ] {
        let error = Expression::compile("f", source, POD).expect_err(source);
        assert!(error.to_string().starts_with(fault), "{source}: {error}");
        assert_eq!(error.position(), position, "{source}: {error}");
    }
}

#[test]
fn an_evaluation_that_fails_names_no_value_of_the_pod() {
    for (source, wanted) in [
        (
            "object.metadata.labels.none == 'x'",
            "f: the evaluation fails: there is no none; guard it with has() or in",
        ),
        ("object.spec.priority / 0", "f: the evaluation fails: division by zero"),
        ("object.spec.priority % 0", "f: the evaluation fails: division by zero"),
        (
            "9223372036854775807 + object.spec.priority",
            "f: the evaluation fails: a number is out of range",
        ),
        (
            "(-9223372036854775807 - 1) / -1",
            "f: the evaluation fails: a number is out of range",
        ),
        (
            "-(-9223372036854775807 - 1)",
            "f: the evaluation fails: a number is out of range",
        ),
        ("[1][5]", "f: the evaluation fails: an index is out of bounds"),
        ("int(object.metadata.name)", "f: the evaluation fails: int fails"),
        (
            "object + 1",
            "f: the evaluation fails: an operator or function gets a value of the wrong type",
        ),
        (
            "oldObject.metadata",
            "f: the evaluation fails: _._ cannot be applied to (null_type, string)",
        ),
        (
            "object.metadata.labels.map(k, k)[0]",
            "f: the expression makes a list of a map's keys",
        ),
        ("true || object.metadata.labels.map(k, k)[0] == ''", "true"),
    ] {
        assert!(text(source).starts_with(wanted), "{source}: {}", text(source));
    }
}

#[test]
fn a_result_of_another_type_is_named() {
    let pod = pod();
    let scope = Scope::new(&[("object", Some(&pod))]);
    let error = compiled("object.spec.priority").bool(&scope).unwrap_err();
    assert_eq!(
        error.to_string(),
        "spec.test: the expression must yield a bool, but it yields a int"
    );
    let error = compiled("object.metadata").string(&scope).unwrap_err();
    assert_eq!(
        error.to_string(),
        "spec.test: the expression must yield a string, but it yields a map"
    );
    let error = compiled("'1'").int(&scope).unwrap_err();
    assert_eq!(
        error.to_string(),
        "spec.test: the expression must yield a int, but it yields a string"
    );
    assert_eq!(
        compiled("1u").int(&scope).unwrap_err().fault,
        Fault::WrongType {
            wanted: "int",
            came: "uint".into()
        }
    );
}

#[test]
fn what_is_too_long_or_too_deep_is_refused_and_overflows_no_stack() {
    let long = |source: String| Expression::compile("f", &source, POD).expect_err(&source).fault;
    assert!(matches!(long("x".repeat(5000)), Fault::TooLong { length: 5000, .. }));
    assert_eq!(long("1".to_owned() + &"+1".repeat(2000)), Fault::TooDeep);
    assert_eq!(long("(".repeat(2000) + "1" + &")".repeat(2000)), Fault::TooDeep);
    assert_eq!(long("[".repeat(2000) + &"]".repeat(2000)), Fault::TooDeep);
    assert_eq!(long("object".to_owned() + &".b".repeat(2000)), Fault::TooDeep);
    assert_eq!(long("object".to_owned() + &".?b".repeat(1300)), Fault::TooDeep);
    assert_eq!(long("object".to_owned() + &"[0]".repeat(1300)), Fault::TooDeep);
}

#[test]
fn the_deepest_tree_is_evaluated_on_a_small_stack() {
    let deep = "1".to_owned() + &"+1".repeat(94);
    let nested = "[".repeat(30) + &"]".repeat(30) + " == []";
    let evaluated = std::thread::Builder::new().stack_size(1 << 20).spawn(move || {
        let scope = Scope::new(&[]);
        (compiled(&deep).int(&scope), compiled(&nested).bool(&scope))
    });
    assert_eq!(evaluated.unwrap().join().unwrap(), (Ok(95), Ok(false)));
}

#[test]
fn an_expensive_evaluation_ends() {
    let numbers: Vec<u32> = (0..3000).collect();
    let text = "a".repeat(20_000);
    let pod = json!({"list": numbers, "text": text, "texts": vec![text.clone(); 200]});
    let scope = Scope::new(&[("object", Some(&pod))]);
    let doubling = "['aaaaaaaaaaaaaaaa']".to_owned() + &".map(a, a + a)".repeat(40) + ".size() == 1";
    let lists = "[[1]]".to_owned() + &".map(a, [a, a, a, a, a, a])".repeat(30) + ".all(a, a == a)";
    let sums = "[[1]]".to_owned() + &".map(a, a + a + a + a)".repeat(30) + ".all(a, a == a)";
    for source in [
        "object.list.all(a, object.list.all(b, object.list.all(c, a + b + c >= 0)))",
        "object.list.all(a, object.list.all(b, object == object))",
        "object.list.exists(a, object.text.matches('(a?){50}a{50}b'))",
        "object.texts.all(a, object.texts.all(b, a == b))",
        "true || object.list.map(a, object.list.map(b, [a, b])).size() == 0 || true",
        doubling.as_str(),
        lists.as_str(),
        sums.as_str(),
    ] {
        let result = compiled(source).bool(&scope);
        if !source.starts_with("true") {
            assert_eq!(result.unwrap_err().fault, Fault::TooExpensive, "{source}");
        }
    }
}

#[test]
fn the_budget_is_large_enough_for_the_largest_pod() {
    let pod = json!({"metadata": {"annotations": {"a": "x".repeat(1_400_000)}}});
    let scope = Scope::new(&[("object", Some(&pod)), ("oldObject", Some(&pod))]);
    assert_eq!(compiled("object == oldObject").bool(&scope), Ok(true));
}

#[test]
fn the_labels_and_annotations_read_are_found() {
    let keys = |keys: &Keys| match keys {
        Keys::All => "*".to_owned(),
        Keys::Some(keys) => keys.iter().cloned().collect::<Vec<_>>().join(","),
    };
    for (source, labels, annotations) in [
        ("object.metadata.labels['a/b'] == 'x'", "a/b", ""),
        ("object.metadata.labels.a == 'x'", "a", ""),
        ("object['metadata']['labels']['a'] == 'x'", "a", ""),
        ("has(object.metadata.labels.a)", "a", ""),
        ("has(object.metadata.labels)", "", ""),
        ("has(object.metadata.labels) && 'a' in object.metadata.labels", "a", ""),
        (
            "'a' in object.metadata.annotations || 'b' in oldObject.metadata.annotations",
            "",
            "a,b",
        ),
        ("object.?metadata.?labels.?a.orValue('') == 'x'", "a", ""),
        ("object.metadata.?labels[?'a'].hasValue()", "a", ""),
        ("object.metadata.?labels['a'].orValue('') == ''", "a", ""),
        ("object.metadata.?labels.orValue({})['a'] == ''", "a", ""),
        ("object.metadata.?labels.hasValue()", "", ""),
        ("oldObject == null || oldObject.metadata.labels.a == ''", "a", ""),
        (
            "object.metadata.labels['a'].startsWith(object.metadata.annotations.b)",
            "a",
            "b",
        ),
        ("object.metadata.labels[object.metadata.annotations.b] == ''", "*", "b"),
        ("object.metadata.name in object.metadata.labels", "*", ""),
        ("object.metadata.labels.exists(k, k == 'a')", "*", ""),
        ("object.metadata.labels == oldObject.metadata.labels", "*", ""),
        ("size(object.metadata.annotations) > 3", "", "*"),
        ("object.metadata == oldObject.metadata", "*", "*"),
        ("[object].exists(o, o.metadata.labels.a == '')", "*", "*"),
        ("object == oldObject", "*", "*"),
        ("object[object.metadata.name] == ''", "*", "*"),
        ("object.spec.nodeName == '' && object.metadata.name == 'x'", "", ""),
        ("object.metadata.ownerReferences.exists(r, r.kind == 'Job')", "", ""),
        (
            "object.spec.containers.all(c, c.name in object.metadata.labels)",
            "*",
            "",
        ),
        ("(true ? object : oldObject).metadata.labels.a == ''", "*", "*"),
    ] {
        let expression = compiled(source);
        let reads = expression.reads();
        assert_eq!(
            (keys(&reads.labels).as_str(), keys(&reads.annotations).as_str()),
            (labels, annotations),
            "{source}"
        );
    }
}

/// Every function that is let through exists: a call with the wrong types fails for another reason than its name.
#[test]
fn every_known_function_exists() {
    for call in [
        "bool([])",
        "bytes([])",
        "''.charAt([])",
        "''.contains([])",
        "double([])",
        "dyn([]) == 1",
        "''.endsWith([])",
        "optional.of(1).hasValue() == 1",
        "''.indexOf([])",
        "int([])",
        "''.lastIndexOf([])",
        "1.lowerAscii()",
        "optional.none().or(optional.of(1)) == 1",
        "optional.none().orValue(1) == 2",
        "size(1)",
        "1.split('')",
        "''.startsWith(1)",
        "string([])",
        "''.substring('')",
        "1.trim()",
        "type(1) == 1",
        "uint([])",
        "1.upperAscii()",
        "optional.ofNonZeroValue(0).hasValue()",
        "optional.of(1).value() == 2",
    ] {
        let text = text(call);
        assert!(
            !text.contains("is not known") && !text.contains("unknown"),
            "{call}: {text}"
        );
    }
}

pub(in crate::domain) fn any_json() -> impl Strategy<Value = Json> {
    let leaf = prop_oneof![
        Just(Json::Null),
        any::<bool>().prop_map(Json::from),
        any::<i64>().prop_map(Json::from),
        any::<u64>().prop_map(Json::from),
        any::<f64>().prop_map(Json::from),
        ".{0,8}".prop_map(Json::from),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        let key = prop_oneof![
            Just("metadata".to_owned()),
            Just("labels".to_owned()),
            Just("annotations".to_owned()),
            Just("name".to_owned()),
            Just("app".to_owned()),
            Just("spec".to_owned()),
            ".{0,4}",
        ];
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Json::from),
            proptest::collection::btree_map(key, inner, 0..4).prop_map(|map| Json::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn compiling_any_text_does_not_panic(source in "\\PC{0,80}") {
        if let Ok(expression) = Expression::compile("f", &source, POD) {
            let _ = expression.evaluate(&Scope::new(&[("object", None), ("oldObject", None)]));
        }
    }

    #[test]
    fn no_token_soup_makes_the_evaluator_give_up(
        tokens in proptest::collection::vec(proptest::sample::select(vec![
            "object", "oldObject", ".metadata", ".?labels", "['app']", "[?'app']", "[0]", "(", ")", "[", "]", "{", "}", ":", ",",
            "+", "-", "*", "/", "%", "==", "<", " in ", "&&", "||", "!", "?", "1", "-9223372036854775808", "1u", "0.0", "'a'",
            "b'a'", "null", "true", ".all(x, ", ".map(x, ", ".size()", ".matches('a')", "int(", "string(", "has(object.a)",
            ".substring(", ".split('')", ".charAt(1)", "type(", "x", ".orValue(", "optional.of(", ".value()",
        ]), 0..14),
        object in any_json(),
    ) {
        match Expression::compile("f", &tokens.concat(), POD) {
            Err(error) => prop_assert_ne!(error.fault, Fault::Internal),
            Ok(expression) => {
                let scope = Scope::new(&[("object", Some(&object)), ("oldObject", None)]);
                if let Err(error) = expression.evaluate(&scope) {
                    prop_assert_ne!(error.fault, Fault::Internal);
                }
            }
        }
    }

    #[test]
    fn evaluating_over_any_object_does_not_panic(object in any_json(), old in any_json()) {
        let scope = Scope::new(&[("object", Some(&object)), ("oldObject", Some(&old))]);
        for source in [
            "object.metadata.labels['app']", "has(object.metadata.labels) && 'app' in object.metadata.labels", "object == oldObject",
            "object.?metadata.?labels.?app.orValue('')", "object.spec + oldObject.spec", "object.all(x, x == oldObject)",
            "int(object.metadata) + 1", "string(object.metadata)", "object < oldObject", "size(object)", "-object.metadata",
            "object.metadata[oldObject.metadata]", "object.metadata.name.substring(1)", "[object, oldObject].map(x, [x])[1]",
        ] {
            if let Err(error) = compiled(source).evaluate(&scope) {
                prop_assert_ne!(error.fault, Fault::Internal);
            }
        }
    }
}
