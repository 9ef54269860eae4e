//! What can be wrong with an expression. The texts name no value of the pod and are the same each time for the same
//! cause.

use cel::common::ast::SourceInfo;
use cel::{ExecutionError, ParseErrors};

/// An expression that does not compile, or whose evaluation fails.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[error("{field}: {fault}")]
pub struct ExpressionError {
    /// The field of the policy, like `spec.match.matchConditions[0].expression`.
    pub field: String,
    /// What is wrong.
    pub fault: Fault,
}

impl ExpressionError {
    pub(super) fn new(field: &str, fault: Fault) -> Self {
        Self {
            field: field.to_owned(),
            fault,
        }
    }

    /// Line and column in the expression, both from 1, where they are known.
    #[must_use]
    pub fn position(&self) -> Option<(u32, u32)> {
        match &self.fault {
            Fault::Syntax { position, .. }
            | Fault::UnknownVariable { position, .. }
            | Fault::UnknownFunction { position, .. }
            | Fault::PatternNotLiteral { position }
            | Fault::Types { position, .. }
            | Fault::BadPattern { position, .. } => *position,
            _ => None,
        }
    }
}

/// What is wrong with an expression.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// It is too long.
    #[error("the expression has {length} characters, at most {limit} are allowed; shorten it")]
    TooLong {
        /// Its length, in characters.
        length: usize,
        /// The longest allowed.
        limit: usize,
    },
    /// It is nested too deeply.
    #[error("the expression is nested too deeply; split sums and chains of more than 64 parts")]
    TooDeep,
    /// It is not CEL.
    #[error("{message}")]
    Syntax {
        /// What the parser says.
        message: String,
        /// Line and column, from 1.
        position: Option<(u32, u32)>,
    },
    /// It reads a variable that this field may not read.
    #[error("unknown variable {name}; this field may read {}", .allowed.join(" and "))]
    UnknownVariable {
        /// The variable.
        name: String,
        /// The variables that this field may read.
        allowed: Vec<String>,
        /// Line and column, from 1.
        position: Option<(u32, u32)>,
    },
    /// It calls a function that does not exist here.
    #[error(
        "unknown function {name}; known are the functions of CEL's standard library and charAt, indexOf, lastIndexOf, lowerAscii, upperAscii, trim, split and substring of its strings extension"
    )]
    UnknownFunction {
        /// The function.
        name: String,
        /// Line and column, from 1.
        position: Option<(u32, u32)>,
    },
    /// `matches` gets a pattern that is computed.
    #[error("the pattern of matches must be a string literal of at most 256 characters")]
    PatternNotLiteral {
        /// Line and column, from 1.
        position: Option<(u32, u32)>,
    },
    /// `matches` gets a pattern that is no regular expression.
    #[error("the pattern of matches is not a regular expression, or is too large: {message}")]
    BadPattern {
        /// What is wrong with it.
        message: String,
        /// Line and column, from 1.
        position: Option<(u32, u32)>,
    },
    /// It does not pass the API server's check of types.
    #[error("{message}")]
    Types {
        /// What does not fit, and the remedy.
        message: String,
        /// Line and column, from 1.
        position: Option<(u32, u32)>,
    },
    /// The evaluation fails.
    #[error("the evaluation fails: {0}")]
    Evaluation(String),
    /// It takes too many steps on this object.
    #[error("the evaluation takes too many steps on this object; make the expression simpler")]
    TooExpensive,
    /// Its value would depend on the order of a map's keys.
    #[error("the expression makes a list of a map's keys, which have no order; use all, exists or exists_one instead")]
    Unordered,
    /// It yields another type than the field asks for.
    #[error("the expression must yield a {wanted}, but it yields a {came}")]
    WrongType {
        /// The type that the field asks for.
        wanted: &'static str,
        /// The type that came.
        came: String,
    },
    /// The evaluator failed in a way that it should not.
    #[error("the expression cannot be evaluated: the evaluator gave up")]
    Internal,
}

impl Fault {
    pub(super) fn syntax(source: &str, errors: &ParseErrors) -> Self {
        // The first in the source: later ones are mostly its consequences.
        let located = errors.errors.iter().filter(|error| error.pos.0 > 0 && error.pos.1 >= 0);
        let Some(error) = located.min_by_key(|error| error.pos) else {
            return Self::Syntax {
                message: "syntax error".into(),
                position: None,
            };
        };
        if errors.errors.iter().any(|error| error.msg.contains("Recursion limit")) {
            return Self::TooDeep;
        }
        let line = u32::try_from(error.pos.0).unwrap_or(1);
        let last = u32::try_from(source.lines().count()).unwrap_or(u32::MAX).max(1);
        let column = u32::try_from(error.pos.1).unwrap_or(0).max(1);
        let message = error.msg.lines().next().unwrap_or_default();
        let message = message.strip_prefix("Syntax error: ").unwrap_or(message);
        Self::Syntax {
            message: format!("syntax error: {}", cut(message, 200)),
            position: Some((line.min(last), column)),
        }
    }

    pub(super) fn evaluation(error: ExecutionError) -> Self {
        // Only what holds no value: values may be large, secret, or printed in another order each time.
        Self::Evaluation(match error {
            ExecutionError::NoSuchKey(key) => {
                format!("there is no {}; guard it with has() or in", cut(&key, 320))
            }
            ExecutionError::UndeclaredReference(name) => format!("{} is not known", cut(&name, 100)),
            ExecutionError::NoSuchOverload(overload) => format!(
                "{} cannot be applied to ({})",
                cut(overload.function(), 100),
                overload.argument_types().join(", ")
            ),
            ExecutionError::UnexpectedType { want, .. } => format!("a {want} was expected"),
            ExecutionError::DivisionByZero(_) | ExecutionError::RemainderByZero(_) => "division by zero".into(),
            ExecutionError::Overflow(..) => "a number is out of range".into(),
            ExecutionError::IndexOutOfBounds(_) => "an index is out of bounds".into(),
            ExecutionError::FunctionError { function, .. } => format!("{} fails", cut(&function, 100)),
            ExecutionError::InvalidArgumentCount { .. } | ExecutionError::MissingArgumentOrTarget => {
                "a function gets the wrong number of arguments".into()
            }
            ExecutionError::DuplicateKey(_) => "a map literal has a key twice".into(),
            ExecutionError::ValuesNotComparable(..) => "two values cannot be compared".into(),
            _ => "an operator or function gets a value of the wrong type".into(),
        })
    }
}

/// Line and column, from 1, of the node `id`.
pub(super) fn position(info: &SourceInfo, id: u64) -> Option<(u32, u32)> {
    let (start, _) = info.offset_for(id)?;
    let before: String = info.source.chars().take(start as usize).collect();
    let line = before.matches('\n').count() + 1;
    let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
    Some((u32::try_from(line).ok()?, u32::try_from(column).ok()?))
}

fn cut(text: &str, characters: usize) -> String {
    text.chars().take(characters).collect()
}
