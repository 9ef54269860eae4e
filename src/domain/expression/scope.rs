//! The variables that an expression is evaluated with.

use super::error::{Fault, position};
use super::functions::{ENVIRONMENT, is_optional};
use super::tree;
use cel::common::ast::{Expr, SourceInfo};
use cel::common::types::{CelBool, CelDouble, CelInt, CelList, CelMap, CelMapKey, CelNull, CelString};
use cel::common::value::Val;
use cel::{Context, IdedExpr};
use serde_json::Value;
use std::collections::HashMap;
use std::sync::Arc;

/// Names that stand for types, as in `type(x) == string`.
const TYPES: &[&str] = &[
    "bool",
    "bytes",
    "double",
    "int",
    "list",
    "map",
    "null_type",
    "optional_type",
    "string",
    "type",
    "uint",
];

/// The variables that expressions are evaluated with, converted once for all of them.
pub struct Scope<'v>(Context<'v, 'v>);

impl<'v> Scope<'v> {
    /// A scope in which each name has the given value; `None` is null.
    #[must_use]
    pub fn new(variables: &[(&str, Option<&'v Value>)]) -> Self {
        let mut context = Context::with_env(Arc::clone(&ENVIRONMENT));
        for (name, value) in variables {
            context.add_variable_as_val(
                *name,
                value.map_or_else(|| Box::new(CelNull) as Box<dyn Val + 'v>, convert),
            );
        }
        Self(context)
    }

    pub(super) fn context(&self) -> &Context<'v, 'v> {
        &self.0
    }
}

/// As the API server's CEL sees JSON: whole numbers are int.
fn convert(value: &Value) -> Box<dyn Val + '_> {
    match value {
        Value::Null => Box::new(CelNull),
        Value::Bool(value) => Box::new(CelBool::from(*value)),
        Value::Number(number) => match number.as_i64() {
            Some(value) => Box::new(CelInt::from(value)),
            None => Box::new(CelDouble::from(number.as_f64().unwrap_or(f64::NAN))),
        },
        Value::String(text) => Box::new(CelString::from(text.as_str())),
        Value::Array(elements) => Box::new(CelList::from(elements.iter().map(convert).collect::<Vec<_>>())),
        Value::Object(entries) => {
            let entries = entries
                .iter()
                .map(|(key, value)| (CelMapKey::from(key.as_str()), convert(value)));
            Box::new(CelMap::from(entries.collect::<HashMap<_, _>>()))
        }
    }
}

/// Checks that the expression reads none but the given variables.
pub(super) fn check(node: &IdedExpr, info: &SourceInfo, variables: &[&str]) -> Result<(), Fault> {
    let mut bound = Vec::new();
    match free_variable(node, variables, &mut bound) {
        None => Ok(()),
        Some((name, id)) => Err(Fault::UnknownVariable {
            name: name.trim_start_matches('.').to_owned(),
            allowed: variables.iter().map(|&name| name.to_owned()).collect(),
            position: position(info, id),
        }),
    }
}

fn free_variable<'e>(node: &'e IdedExpr, variables: &[&str], bound: &mut Vec<&'e str>) -> Option<(&'e str, u64)> {
    match &node.expr {
        Expr::Ident(name) => {
            let name = name.as_str();
            let known = variables.contains(&name) || bound.contains(&name) || TYPES.contains(&name);
            (!known).then_some((name, node.id))
        }
        Expr::Call(call) if is_optional(call) => call
            .args
            .iter()
            .find_map(|argument| free_variable(argument, variables, bound)),
        Expr::Comprehension(loop_) => {
            let outside = [&loop_.iter_range, &loop_.accu_init];
            if let Some(found) = outside
                .into_iter()
                .find_map(|part| free_variable(part, variables, bound))
            {
                return Some(found);
            }
            let depth = bound.len();
            bound.push(&loop_.iter_var);
            bound.push(&loop_.accu_var);
            bound.extend(loop_.iter_var2.as_deref());
            let inside = [&loop_.loop_cond, &loop_.loop_step, &loop_.result];
            let found = inside
                .into_iter()
                .find_map(|part| free_variable(part, variables, bound));
            bound.truncate(depth);
            found
        }
        _ => tree::children(node)
            .into_iter()
            .find_map(|child| free_variable(child, variables, bound)),
    }
}
