//! What operators and functions take and give. `None`: they take no such arguments.

use super::Type::{self, Bool, Bytes, Double, Dyn, Int, List, Map, Null, Optional, String as Text, Uint, Unknown};
use cel::common::ast::operators;

/// The type of a call of an operator, a function (no target), or a method.
pub(super) fn of_call(name: &str, target: Option<&Type>, arguments: &[Type]) -> Option<Type> {
    match (target, arguments) {
        (None, [one]) => of_one(name, one),
        (None, [one, other]) => of_two(name, one, other),
        (None, [condition, one, other]) if name == operators::CONDITIONAL => {
            takes(condition, &[Bool]).then(|| one.join(other))?
        }
        (Some(target), arguments) => of_method(name, target, arguments),
        _ => None,
    }
}

/// The type of `optional.of` and the like.
pub(super) fn of_optional(name: &str, arguments: &[Type]) -> Option<Type> {
    match (name, arguments) {
        ("none", []) => Some(Type::optional(Unknown)),
        ("of" | "ofNonZeroValue", [inner]) => Some(Type::optional(inner.clone())),
        _ => None,
    }
}

fn of_one(name: &str, one: &Type) -> Option<Type> {
    match name {
        operators::LOGICAL_NOT | operators::NOT_STRICTLY_FALSE => takes(one, &[Bool]).then_some(Bool),
        operators::NEGATE => takes(one, &[Int, Double]).then(|| one.clone()),
        "bool" => takes(one, &[Bool, Text]).then_some(Bool),
        "bytes" => takes(one, &[Bytes, Text]).then_some(Bytes),
        "double" => takes(one, &[Double, Int, Text, Uint]).then_some(Double),
        "dyn" => Some(Dyn),
        "int" => takes(one, &[Double, Int, Text, Uint]).then_some(Int),
        "size" => is_sized(one).then_some(Int),
        "string" => takes(one, &[Bool, Bytes, Double, Int, Text, Uint]).then_some(Text),
        "type" => Some(Type::Kind),
        "uint" => takes(one, &[Double, Int, Text, Uint]).then_some(Uint),
        _ => None,
    }
}

fn of_two(name: &str, one: &Type, other: &Type) -> Option<Type> {
    match name {
        operators::LOGICAL_AND | operators::LOGICAL_OR => {
            (takes(one, &[Bool]) && takes(other, &[Bool])).then_some(Bool)
        }
        operators::EQUALS | operators::NOT_EQUALS => one.join(other).map(|_| Bool),
        operators::LESS | operators::LESS_EQUALS | operators::GREATER | operators::GREATER_EQUALS => {
            is_ordered(one, other).then_some(Bool)
        }
        operators::ADD => match (one, other) {
            (List(_), List(_)) => one.join(other),
            (List(_), open) | (open, List(_)) if open.is_open() => either(one, other),
            _ => arithmetic(one, other, &[Bytes, Double, Int, Text, Uint]),
        },
        operators::SUBSTRACT | operators::MULTIPLY | operators::DIVIDE => arithmetic(one, other, &[Double, Int, Uint]),
        operators::MODULO => arithmetic(one, other, &[Int, Uint]),
        operators::IN => match other {
            List(element) => one.join(element).map(|_| Bool),
            Map(key, _) => one.join(key).map(|_| Bool),
            other => other.is_open().then_some(Bool),
        },
        operators::INDEX => index(one, other),
        operators::OPT_INDEX => index(one, other).map(|inner| match inner {
            Optional(_) => inner,
            inner => Type::optional(inner),
        }),
        "matches" => (takes(one, &[Text]) && takes(other, &[Text])).then_some(Bool),
        _ => None,
    }
}

fn of_method(name: &str, target: &Type, arguments: &[Type]) -> Option<Type> {
    if let "hasValue" | "or" | "orValue" | "value" = name {
        return of_optional_method(name, target, arguments);
    }
    if (name, arguments) == ("size", &[]) {
        return is_sized(target).then_some(Int);
    }
    let (wanted, least, result): (&[Type], usize, Type) = match name {
        "charAt" => (&[Int], 1, Text),
        "contains" | "endsWith" | "matches" | "startsWith" => (&[Text], 1, Bool),
        "indexOf" | "lastIndexOf" => (&[Text, Int], 1, Int),
        "lowerAscii" | "trim" | "upperAscii" => (&[], 0, Text),
        "split" => (&[Text, Int], 1, Type::list(Text)),
        "substring" => (&[Int, Int], 1, Text),
        _ => return None,
    };
    let fits = (least..=wanted.len()).contains(&arguments.len())
        && arguments
            .iter()
            .zip(wanted)
            .all(|(argument, wanted)| takes(argument, std::slice::from_ref(wanted)));
    (takes(target, &[Text]) && fits).then_some(result)
}

fn of_optional_method(name: &str, target: &Type, arguments: &[Type]) -> Option<Type> {
    let inner = match target {
        Optional(inner) => inner,
        open if open.is_open() => &Unknown,
        _ => return None,
    };
    match (name, arguments) {
        ("hasValue", []) => Some(Bool),
        ("value", []) if *inner == Unknown => Some(Dyn),
        ("value", []) => Some(inner.clone()),
        ("orValue", [other]) => inner.join(other),
        ("or", [Optional(other)]) => inner.join(other).map(Type::optional),
        ("or", [other]) if other.is_open() => Some(Type::optional(inner.clone())),
        _ => None,
    }
}

/// Whether a value of this type may be one of those.
fn takes(given: &Type, wanted: &[Type]) -> bool {
    given.is_open() || wanted.contains(given)
}

fn is_sized(given: &Type) -> bool {
    takes(given, &[Bytes, Text]) || matches!(given, List(_) | Map(..))
}

/// Two operands of one type out of those.
fn arithmetic(one: &Type, other: &Type, of: &[Type]) -> Option<Type> {
    (takes(one, of) && takes(other, of)).then(|| either(one, other))?
}

/// The one type of two operands, where either may be open.
fn either(one: &Type, other: &Type) -> Option<Type> {
    match (one, other) {
        (open, known) | (known, open) if open.is_open() && !known.is_open() => Some(known.clone()),
        _ => one.join(other),
    }
}

fn is_ordered(one: &Type, other: &Type) -> bool {
    const NUMBERS: &[Type] = &[Double, Int, Uint];
    let ordered = &[Bool, Bytes, Double, Int, Text, Uint];
    takes(one, ordered)
        && takes(other, ordered)
        && (one.join(other).is_some() || (NUMBERS.contains(one) && NUMBERS.contains(other)))
}

fn index(container: &Type, key: &Type) -> Option<Type> {
    match container {
        List(element) => takes(key, &[Int]).then(|| (**element).clone()),
        Map(own, value) => own.join(key).map(|_| (**value).clone()),
        Optional(inner) => index(inner, key).map(Type::optional),
        Null => None,
        open => open.is_open().then(|| open.clone()),
    }
}
