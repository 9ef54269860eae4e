//! The functions that an expression may call.

use super::error::{Fault, position};
use super::{meter, patterns, tree};
use cel::common::ast::{CallExpr, Expr, LiteralValue, SourceInfo};
use cel::{Context, Env, IdedExpr, Program, extensions};
use std::sync::{Arc, LazyLock};

/// Functions and methods known to cel and to the API server alike, whose cost the meter can tell from their arguments.
const KNOWN: &[&str] = &[
    "bool",
    "bytes",
    "charAt",
    "contains",
    "double",
    "dyn",
    "endsWith",
    "hasValue",
    "indexOf",
    "int",
    "lastIndexOf",
    "lowerAscii",
    "matches",
    "or",
    "orValue",
    "size",
    "split",
    "startsWith",
    "string",
    "substring",
    "trim",
    "type",
    "uint",
    "upperAscii",
    "value",
];

/// Macros known to cel and to the API server alike.
const MACROS: &[&str] = &["all", "exists", "exists_one", "filter", "has", "map"];

/// The functions of the namespace `optional`.
const OPTIONAL: &[&str] = &["of", "ofNonZeroValue", "none"];

/// The longest pattern of `matches`, in characters.
const MAX_PATTERN: usize = 256;

/// What expressions are parsed and evaluated with.
pub(super) static ENVIRONMENT: LazyLock<Arc<Env>> = LazyLock::new(|| {
    let mut environment = Env::stdlib();
    // Both can only fail on a name that is taken, which the tests would show.
    let declared = extensions::strings(&mut environment).and_then(|()| meter::declare(&mut environment));
    debug_assert!(declared.is_ok());
    Arc::new(environment)
});

/// Checks, before macros are expanded, that every call is to a known function or macro.
pub(super) fn check_macros(node: &IdedExpr, info: &SourceInfo) -> Result<(), Fault> {
    if let Expr::Call(call) = &node.expr {
        let name = call.func_name.as_str();
        if !is_operator(name) && !is_optional(call) && !KNOWN.contains(&name) && !MACROS.contains(&name) {
            return Err(Fault::UnknownFunction {
                name: name.to_owned(),
                position: position(info, node.id),
            });
        }
    }
    tree::children(node)
        .into_iter()
        .try_for_each(|child| check_macros(child, info))
}

fn is_operator(name: &str) -> bool {
    !name.starts_with(|character: char| character.is_ascii_alphabetic())
}

/// Checks that every call is to a known function, and that patterns are good.
pub(super) fn check(node: &IdedExpr, info: &SourceInfo) -> Result<(), Fault> {
    match &node.expr {
        Expr::Call(call) => check_call(call, position(info, node.id))?,
        Expr::Struct(value) => {
            return Err(Fault::UnknownFunction {
                name: value.type_name.clone(),
                position: position(info, node.id),
            });
        }
        _ => {}
    }
    tree::children(node)
        .into_iter()
        .try_for_each(|child| check(child, info))
}

fn check_call(call: &CallExpr, position: Option<(u32, u32)>) -> Result<(), Fault> {
    let name = call.func_name.as_str();
    if is_operator(name) || is_optional(call) {
        return Ok(());
    }
    if !KNOWN.contains(&name) {
        return Err(Fault::UnknownFunction {
            name: name.to_owned(),
            position,
        });
    }
    if name == "matches" {
        check_pattern(call, position)
    } else {
        Ok(())
    }
}

/// Whether the call is to `optional.of` and the like, whose target is a namespace and no value.
pub(super) fn is_optional(call: &CallExpr) -> bool {
    let namespace = call
        .target
        .as_ref()
        .is_some_and(|target| target.expr == Expr::Ident("optional".into()));
    namespace && OPTIONAL.contains(&call.func_name.as_str())
}

fn check_pattern(call: &CallExpr, position: Option<(u32, u32)>) -> Result<(), Fault> {
    let pattern = call.args.last().and_then(tree::literal);
    let Some(pattern) = pattern.filter(|pattern| pattern.chars().count() <= MAX_PATTERN) else {
        return Err(Fault::PatternNotLiteral { position });
    };
    let translated = patterns::translate(pattern).map_err(|message| Fault::BadPattern { message, position })?;
    let mut context = Context::with_env(Arc::clone(&ENVIRONMENT));
    context.add_variable_from_value("pattern", translated);
    let program = Program::compile("''.matches(pattern)").map_err(|_| Fault::Internal)?;
    match program.execute(&context) {
        Ok(_) => Ok(()),
        Err(error) => {
            let message = error.to_string();
            let message = message.lines().last().unwrap_or_default().trim().to_owned();
            Err(Fault::BadPattern { message, position })
        }
    }
}

/// Gives every pattern the meaning that it has for the API server. They were checked before.
pub(super) fn translate_patterns(node: &mut IdedExpr) {
    if let Expr::Call(call) = &mut node.expr
        && call.func_name == "matches"
        && let Some(pattern) = call.args.last_mut()
        && let Some(Ok(translated)) = tree::literal(pattern).map(patterns::translate)
    {
        pattern.expr = Expr::Literal(LiteralValue::String(translated.into()));
    }
    tree::children_mut(node).into_iter().for_each(translate_patterns);
}
