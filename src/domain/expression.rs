//! CEL expressions of a policy: compiled once, evaluated often, bounded always.
//!
//! The API server evaluates matchConditions itself; everything else is evaluated here, with the functions of CEL's
//! standard library and of its strings extension that both sides know.

mod error;
mod functions;
mod meter;
mod patterns;
mod reads;
mod scope;
mod tree;
mod typing;

pub use error::{ExpressionError, Fault};
pub use meter::{BUDGET, Metered, within};
pub use reads::{Keys, Reads};
pub use scope::Scope;

use cel::common::ast::SourceInfo;
use cel::parser::Parser;
use cel::{Env, IdedExpr, Value};
use typing::Type;

/// The longest source, in characters. The schema of a policy has the same limit.
pub const MAX_SOURCE: usize = 4096;

/// The stack of the thread that compiles. The parser recurses once for each operand of a sum, before anything can be
/// counted: 4,096 characters need some 6 MiB.
const COMPILER_STACK: usize = 64 << 20;

/// A compiled CEL expression.
///
/// # Guarantees
/// Evaluation ends after a bounded number of steps, holds a bounded amount of memory, and does not panic. The result
/// depends on the inputs alone: what would depend on the order of a map's keys is an error.
#[derive(Clone, Debug)]
pub struct Expression {
    field: String,
    source: String,
    tree: IdedExpr,
    reads: Reads,
    kind: Type,
}

impl Expression {
    /// Compiles `source`, which stands in `field` of the policy and may use `variables`.
    ///
    /// # Errors
    /// The first fault found, with its position where it has one.
    pub fn compile(field: &str, source: &str, variables: &[&str]) -> Result<Self, ExpressionError> {
        let fail = |fault| ExpressionError::new(field, fault);
        let length = source.chars().count();
        if length > MAX_SOURCE {
            return Err(fail(Fault::TooLong {
                length,
                limit: MAX_SOURCE,
            }));
        }
        let compiled = std::thread::scope(|scope| {
            let thread = std::thread::Builder::new()
                .name("cel".into())
                .stack_size(COMPILER_STACK);
            let compiler = thread.spawn_scoped(scope, || compile(source, variables));
            // A panic of the parser arrives here as the error of the join.
            compiler.ok().and_then(|compiler| compiler.join().ok())
        });
        let (tree, reads, kind) = compiled.unwrap_or(Err(Fault::Internal)).map_err(fail)?;
        Ok(Self {
            field: field.to_owned(),
            source: source.to_owned(),
            tree,
            reads,
            kind,
        })
    }

    /// The field of the policy that the expression stands in.
    #[must_use]
    pub fn field(&self) -> &str {
        &self.field
    }

    /// The expression as it was written.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The labels and annotations of the pod that the expression reads.
    #[must_use]
    pub fn reads(&self) -> &Reads {
        &self.reads
    }

    /// Whether it can yield this type, as far as that is known before it is evaluated.
    ///
    /// # Errors
    /// It yields another one, whatever it is evaluated on.
    pub fn check_yields(&self, wanted: &'static str) -> Result<(), ExpressionError> {
        if self.kind.may_be(wanted) {
            return Ok(());
        }
        let came = self.kind.to_string();
        Err(ExpressionError::new(&self.field, Fault::WrongType { wanted, came }))
    }

    /// That it takes too many steps.
    #[must_use]
    pub fn too_expensive(&self) -> ExpressionError {
        ExpressionError::new(&self.field, Fault::TooExpensive)
    }

    /// What the evaluation costs, whatever comes of it: about one for each byte that is looked at; [`BUDGET`] or a little more if it is
    /// stopped.
    #[must_use]
    pub fn cost(&self, scope: &Scope<'_>) -> u64 {
        within(u64::MAX, || self.evaluate(scope)).cost
    }

    /// The value, which must be a bool.
    ///
    /// # Errors
    /// The evaluation fails, or yields another type.
    pub fn bool(&self, scope: &Scope<'_>) -> Result<bool, ExpressionError> {
        match self.evaluate(scope)? {
            Value::Bool(value) => Ok(value),
            other => Err(self.wrong_type("bool", &other)),
        }
    }

    /// The value, which must be a string.
    ///
    /// # Errors
    /// The evaluation fails, or yields another type.
    pub fn string(&self, scope: &Scope<'_>) -> Result<String, ExpressionError> {
        match self.evaluate(scope)? {
            Value::String(value) => Ok(value.to_string()),
            other => Err(self.wrong_type("string", &other)),
        }
    }

    /// The value, which must be an int.
    ///
    /// # Errors
    /// The evaluation fails, or yields another type.
    pub fn int(&self, scope: &Scope<'_>) -> Result<i64, ExpressionError> {
        match self.evaluate(scope)? {
            Value::Int(value) => Ok(value),
            other => Err(self.wrong_type("int", &other)),
        }
    }

    fn evaluate(&self, scope: &Scope<'_>) -> Result<Value, ExpressionError> {
        meter::evaluate(&self.tree, scope.context()).map_err(|fault| ExpressionError::new(&self.field, fault))
    }

    fn wrong_type(&self, wanted: &'static str, came: &Value) -> ExpressionError {
        ExpressionError::new(
            &self.field,
            Fault::WrongType {
                wanted,
                came: came.type_of().to_string(),
            },
        )
    }
}

fn compile(source: &str, variables: &[&str]) -> Result<(IdedExpr, Reads, Type), Fault> {
    let parse = |parser: Parser| {
        parser
            .parse_with_source_info(source)
            .map_err(|errors| Fault::syntax(source, &errors))
    };
    // Before its macros are expanded, since the API server does not know all of them.
    let (written, info) = parse(Env::default().parser())?;
    if tree::is_deeper_than(&written, tree::MAX_DEPTH) {
        return Err(Fault::TooDeep);
    }
    functions::check_macros(&written, &info)?;
    let (mut tree, info) = parse(functions::ENVIRONMENT.parser())?;
    let kind = check(&tree, &info, variables)?;
    let reads = Reads::of(&tree);
    functions::translate_patterns(&mut tree);
    meter::install(&mut tree);
    Ok((tree, reads, kind))
}

/// Everything that can be known of an expression before it is evaluated, its type too.
fn check(tree: &IdedExpr, info: &SourceInfo, variables: &[&str]) -> Result<Type, Fault> {
    if tree::is_deeper_than(tree, tree::MAX_DEPTH) {
        return Err(Fault::TooDeep);
    }
    functions::check(tree, info)?;
    scope::check(tree, info, variables)?;
    typing::check(tree, info)
}

#[cfg(test)]
mod tests;
#[cfg(test)]
pub(in crate::domain) use tests::any_json;
