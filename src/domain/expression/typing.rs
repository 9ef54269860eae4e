//! A check of types, as the API server makes it: what it would refuse is refused here, where the policy's author sees it,
//! and not when the whole webhook configuration is applied.
//!
//! Where a type is not certain the check passes; the server-side dry run of the configuration has the last word.

mod signatures;

use super::error::{Fault, position};
use super::functions::{ENVIRONMENT, is_optional};
use super::meter;
use cel::common::ast::{
    CallExpr, ComprehensionExpr, EntryExpr, Expr, ListExpr, LiteralValue, MapExpr, SelectExpr, SourceInfo, operators,
};
use cel::{Context, IdedExpr};
use std::fmt;
use std::sync::Arc;

/// What is known of an expression's type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Type {
    /// Nothing: unlike `dyn`, it may be any type for the API server too.
    Unknown,
    Dyn,
    Null,
    Bool,
    Int,
    Uint,
    Double,
    String,
    Bytes,
    Kind,
    List(Box<Type>),
    Map(Box<Type>, Box<Type>),
    Optional(Box<Type>),
}

impl Type {
    fn list(element: Self) -> Self {
        Self::List(Box::new(element))
    }

    fn optional(inner: Self) -> Self {
        Self::Optional(Box::new(inner))
    }

    /// Whether it may be the type of this name.
    pub(super) fn may_be(&self, name: &str) -> bool {
        self.is_open() || self.to_string() == name
    }

    /// Whether any value may have it.
    fn is_open(&self) -> bool {
        matches!(self, Self::Unknown | Self::Dyn)
    }

    /// The type of two expressions of which either may come, as the branches of a conditional. `None`: no such type.
    fn join(&self, other: &Self) -> Option<Self> {
        match (self, other) {
            (Self::Unknown, known) | (known, Self::Unknown) => Some(known.clone()),
            (Self::Dyn, _) | (_, Self::Dyn) => Some(Self::Dyn),
            (Self::List(one), Self::List(other)) => one.join(other).map(Self::list),
            (Self::Optional(one), Self::Optional(other)) => one.join(other).map(Self::optional),
            (Self::Optional(inner), Self::Null) | (Self::Null, Self::Optional(inner)) => {
                Some(Self::Optional(inner.clone()))
            }
            (Self::Map(key, value), Self::Map(other_key, other_value)) => Some(Self::Map(
                Box::new(key.join(other_key)?),
                Box::new(value.join(other_value)?),
            )),
            (one, other) => (one == other).then(|| one.clone()),
        }
    }

    /// Whether both stand for the same type: in a literal the API server takes no `dyn` beside an int.
    fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Unknown, _) | (_, Self::Unknown) => true,
            (Self::List(one), Self::List(other)) | (Self::Optional(one), Self::Optional(other)) => one.is_same(other),
            (Self::Map(key, value), Self::Map(other_key, other_value)) => {
                key.is_same(other_key) && value.is_same(other_value)
            }
            (one, other) => one == other,
        }
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown | Self::Dyn => f.write_str("dyn"),
            Self::Null => f.write_str("null"),
            Self::Bool => f.write_str("bool"),
            Self::Int => f.write_str("int"),
            Self::Uint => f.write_str("uint"),
            Self::Double => f.write_str("double"),
            Self::String => f.write_str("string"),
            Self::Bytes => f.write_str("bytes"),
            Self::Kind => f.write_str("type"),
            Self::List(element) => write!(f, "list({element})"),
            Self::Map(key, value) => write!(f, "map({key}, {value})"),
            Self::Optional(inner) => write!(f, "optional({inner})"),
        }
    }
}

/// Checks an expression whose macros are expanded, and gives its type.
pub(super) fn check(tree: &IdedExpr, info: &SourceInfo) -> Result<Type, Fault> {
    Checker {
        info,
        bound: Vec::new(),
    }
    .of(tree)
}

struct Checker<'e> {
    info: &'e SourceInfo,
    /// The variables of the loops around, the innermost last.
    bound: Vec<(&'e str, Type)>,
}

impl<'e> Checker<'e> {
    fn of(&mut self, node: &'e IdedExpr) -> Result<Type, Fault> {
        match &node.expr {
            Expr::Unspecified | Expr::Struct(_) => Ok(Type::Unknown),
            Expr::Literal(literal) => Ok(of_literal(literal)),
            Expr::Ident(name) => Ok(self.of_name(name)),
            Expr::Call(call) => self.of_call(node, call),
            Expr::Comprehension(loop_) => self.of_loop(loop_),
            Expr::List(list) => self.of_list(node, list),
            Expr::Map(map) => self.of_map(node, map),
            Expr::Select(select) => self.of_select(node, select),
        }
    }

    fn of_name(&self, name: &str) -> Type {
        let bound = self.bound.iter().rev().find(|(bound, _)| *bound == name);
        match bound {
            Some((_, kind)) => kind.clone(),
            None if matches!(name, "object" | "oldObject" | "owner") => Type::Dyn,
            // All other names stand for types.
            None => Type::Kind,
        }
    }

    fn of_call(&mut self, node: &'e IdedExpr, call: &'e CallExpr) -> Result<Type, Fault> {
        let name = call.func_name.as_str();
        let target = match &call.target {
            Some(target) if !is_optional(call) => Some(self.of(target)?),
            _ => None,
        };
        let arguments = call
            .args
            .iter()
            .map(|argument| self.of(argument))
            .collect::<Result<Vec<_>, _>>()?;
        if let ("string", [Type::Double]) = (name, arguments.as_slice()) {
            let message = "the API server writes a double in another way; convert it with int() first, or compare the number itself";
            return Err(self.fault(node, message.into()));
        }
        if let Some(fault) = self.bad_conversion(node, call) {
            return Err(fault);
        }
        let result = if is_optional(call) {
            signatures::of_optional(name, &arguments)
        } else if let (operators::OPT_SELECT, [operand, _]) = (name, arguments.as_slice()) {
            // The second argument is the name of a field.
            field_of(operand).map(|field| match field {
                Type::Optional(_) => field,
                field => Type::optional(field),
            })
        } else {
            signatures::of_call(name, target.as_ref(), &arguments)
        };
        result.ok_or_else(|| self.mismatch(node, name, target.iter().chain(&arguments)))
    }

    /// The API server converts literals when it compiles, and refuses what cannot be converted.
    fn bad_conversion(&self, node: &IdedExpr, call: &CallExpr) -> Option<Fault> {
        let fails = || {
            let mut metered = node.clone();
            meter::install(&mut metered);
            meter::evaluate(&metered, &Context::with_env(Arc::clone(&ENVIRONMENT))).is_err()
        };
        let failed = is_constant(node) && fails();
        failed.then(|| {
            self.fault(
                node,
                format!("{} cannot convert this literal; correct it", call.func_name),
            )
        })
    }

    /// What a macro became.
    fn of_loop(&mut self, loop_: &'e ComprehensionExpr) -> Result<Type, Fault> {
        let range = self.of(&loop_.iter_range)?;
        let (first, second) = match &range {
            Type::List(element) if loop_.iter_var2.is_some() => (Type::Int, (**element).clone()),
            Type::List(element) => ((**element).clone(), Type::Unknown),
            Type::Map(key, value) => ((**key).clone(), (**value).clone()),
            Type::Dyn => (Type::Dyn, Type::Dyn),
            Type::Unknown => (Type::Unknown, Type::Unknown),
            other => {
                return Err(self.fault(
                    &loop_.iter_range,
                    format!("a macro goes over a {other}; give it a list or a map"),
                ));
            }
        };
        let start = self.of(&loop_.accu_init)?;
        let depth = self.bound.len();
        self.bound.push((&loop_.iter_var, first));
        self.bound.extend(loop_.iter_var2.as_deref().map(|name| (name, second)));
        self.bound.push((&loop_.accu_var, start.clone()));
        let result = self.of_steps(loop_, &start);
        self.bound.truncate(depth);
        result
    }

    fn of_steps(&mut self, loop_: &'e ComprehensionExpr, start: &Type) -> Result<Type, Fault> {
        self.of(&loop_.loop_cond)?;
        let step = self.of(&loop_.loop_step)?;
        let Some(accumulated) = start.join(&step) else {
            return Err(self.fault(
                &loop_.loop_step,
                format!("a macro is given a {step} where it takes a {start}; the API server does not take that"),
            ));
        };
        if let Some(last) = self.bound.last_mut() {
            last.1 = accumulated;
        }
        self.of(&loop_.result)
    }

    fn of_list(&mut self, node: &'e IdedExpr, list: &'e ListExpr) -> Result<Type, Fault> {
        let mut element = Type::Unknown;
        for (index, item) in list.elements.iter().enumerate() {
            let mut kind = self.of(item)?;
            if list.optional_indices.contains(&index) {
                kind = unwrapped(kind);
            }
            self.same(node, "list literal", &mut element, kind)?;
        }
        Ok(Type::list(element))
    }

    fn of_map(&mut self, node: &'e IdedExpr, map: &'e MapExpr) -> Result<Type, Fault> {
        let (mut key, mut value) = (Type::Unknown, Type::Unknown);
        for entry in &map.entries {
            let EntryExpr::MapEntry(entry) = &entry.expr else {
                return Ok(Type::Unknown);
            };
            let key_kind = self.of(&entry.key)?;
            self.same(node, "map literal's keys", &mut key, key_kind)?;
            let mut kind = self.of(&entry.value)?;
            if entry.optional {
                kind = unwrapped(kind);
            }
            self.same(node, "map literal's values", &mut value, kind)?;
        }
        Ok(Type::Map(Box::new(key), Box::new(value)))
    }

    /// Takes one more part of a literal, whose parts must all be of one type.
    fn same(&self, node: &IdedExpr, what: &str, all: &mut Type, one: Type) -> Result<(), Fault> {
        if !all.is_same(&one) {
            let message = format!(
                "a {what} mix {all} and {one}, and the API server takes one type alone; wrap each in dyn(), or convert them"
            )
            .replace("literal mix", "literal mixes");
            return Err(self.fault(node, message));
        }
        *all = all.join(&one).unwrap_or(one);
        Ok(())
    }

    fn of_select(&mut self, node: &'e IdedExpr, select: &'e SelectExpr) -> Result<Type, Fault> {
        let operand = self.of(&select.operand)?;
        match field_of(&operand) {
            Some(_) if select.test => Ok(Type::Bool),
            Some(field) => Ok(field),
            None => Err(self.fault(
                node,
                format!("a {operand} has no fields, so it has no {}", select.field),
            )),
        }
    }

    fn mismatch<'t>(&self, node: &IdedExpr, name: &str, kinds: impl Iterator<Item = &'t Type>) -> Fault {
        let kinds = kinds.map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let name = name
            .trim_matches('_')
            .trim_start_matches('@')
            .replace("_[_]", "[]")
            .replace("?_:", "?:");
        self.fault(
            node,
            format!(
                "{name} cannot be applied to ({kinds}), and the API server does not take that; convert what is of another type, as with int() or string()"
            ),
        )
    }

    fn fault(&self, node: &IdedExpr, message: String) -> Fault {
        Fault::Types {
            message,
            position: position(self.info, node.id),
        }
    }
}

/// Whether it is a conversion of a literal, or of such a conversion.
fn is_constant(node: &IdedExpr) -> bool {
    match &node.expr {
        Expr::Call(call) => match (call.func_name.as_str(), call.target.is_none(), call.args.as_slice()) {
            ("bool" | "bytes" | "double" | "int" | "string" | "uint", true, [argument]) => {
                matches!(argument.expr, Expr::Literal(_)) || is_constant(argument)
            }
            _ => false,
        },
        _ => false,
    }
}

fn of_literal(literal: &LiteralValue) -> Type {
    match literal {
        LiteralValue::Boolean(_) => Type::Bool,
        LiteralValue::Bytes(_) => Type::Bytes,
        LiteralValue::Double(_) => Type::Double,
        LiteralValue::Int(_) => Type::Int,
        LiteralValue::Null => Type::Null,
        LiteralValue::String(_) => Type::String,
        LiteralValue::UInt(_) => Type::Uint,
    }
}

/// The type of a field; `None` for what has no fields.
fn field_of(operand: &Type) -> Option<Type> {
    match operand {
        Type::Unknown => Some(Type::Unknown),
        Type::Dyn => Some(Type::Dyn),
        Type::Map(key, value) if key.join(&Type::String).is_some() => Some((**value).clone()),
        Type::Optional(inner) => field_of(inner).map(Type::optional),
        _ => None,
    }
}

fn unwrapped(kind: Type) -> Type {
    match kind {
        Type::Optional(inner) => *inner,
        _ => Type::Unknown,
    }
}
