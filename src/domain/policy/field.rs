//! What is wrong with a policy.

use crate::domain::expression::ExpressionError;
use std::fmt;

/// A field of a policy that is wrong, and the remedy.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FieldError {
    /// The field, like `spec.match.matchConditions[0].expression`.
    pub field: String,
    /// What is wrong with it and what to do.
    pub message: String,
    /// Line and column in the field's value, both from 1, where they are known.
    pub position: Option<(u32, u32)>,
}

impl FieldError {
    /// An error without a position.
    #[must_use]
    pub fn new(field: &str, message: impl Into<String>) -> Self {
        Self {
            field: field.to_owned(),
            message: message.into(),
            position: None,
        }
    }
}

impl From<ExpressionError> for FieldError {
    fn from(error: ExpressionError) -> Self {
        Self {
            position: error.position(),
            message: error.fault.to_string(),
            field: error.field,
        }
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.field)?;
        if let Some((line, column)) = self.position {
            write!(f, "line {line}, column {column}: ")?;
        }
        f.write_str(&self.message)
    }
}

impl std::error::Error for FieldError {}
