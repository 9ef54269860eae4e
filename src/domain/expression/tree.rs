//! Walking an expression's syntax tree.

use cel::IdedExpr;
use cel::common::ast::{EntryExpr, Expr};

/// The deepest tree that is evaluated. A level costs some 2 KiB of stack.
pub(super) const MAX_DEPTH: usize = 96;

/// The parts of a node, in the order of the source where it matters.
pub(super) fn children(node: &IdedExpr) -> Vec<&IdedExpr> {
    match &node.expr {
        Expr::Unspecified | Expr::Ident(_) | Expr::Literal(_) => Vec::new(),
        Expr::Call(call) => call.target.iter().map(AsRef::as_ref).chain(&call.args).collect(),
        Expr::Comprehension(loop_) => {
            vec![
                &loop_.iter_range,
                &loop_.accu_init,
                &loop_.loop_cond,
                &loop_.loop_step,
                &loop_.result,
            ]
        }
        Expr::List(list) => list.elements.iter().collect(),
        Expr::Map(map) => map.entries.iter().flat_map(|entry| entry_parts(&entry.expr)).collect(),
        Expr::Struct(value) => value
            .entries
            .iter()
            .flat_map(|entry| entry_parts(&entry.expr))
            .collect(),
        Expr::Select(select) => vec![&select.operand],
    }
}

fn entry_parts(entry: &EntryExpr) -> Vec<&IdedExpr> {
    match entry {
        EntryExpr::StructField(field) => vec![&field.value],
        EntryExpr::MapEntry(entry) => vec![&entry.key, &entry.value],
    }
}

/// The same, to be changed.
pub(super) fn children_mut(node: &mut IdedExpr) -> Vec<&mut IdedExpr> {
    match &mut node.expr {
        Expr::Unspecified | Expr::Ident(_) | Expr::Literal(_) => Vec::new(),
        Expr::Call(call) => call
            .target
            .iter_mut()
            .map(AsMut::as_mut)
            .chain(&mut call.args)
            .collect(),
        Expr::Comprehension(loop_) => {
            vec![
                &mut loop_.iter_range,
                &mut loop_.accu_init,
                &mut loop_.loop_cond,
                &mut loop_.loop_step,
                &mut loop_.result,
            ]
        }
        Expr::List(list) => list.elements.iter_mut().collect(),
        Expr::Map(map) => map
            .entries
            .iter_mut()
            .flat_map(|entry| entry_parts_mut(&mut entry.expr))
            .collect(),
        Expr::Struct(value) => value
            .entries
            .iter_mut()
            .flat_map(|entry| entry_parts_mut(&mut entry.expr))
            .collect(),
        Expr::Select(select) => vec![&mut select.operand],
    }
}

fn entry_parts_mut(entry: &mut EntryExpr) -> Vec<&mut IdedExpr> {
    match entry {
        EntryExpr::StructField(field) => vec![&mut field.value],
        EntryExpr::MapEntry(entry) => vec![&mut entry.key, &mut entry.value],
    }
}

/// Whether the tree has more than `limit` levels. Does not recurse deeper than that itself.
pub(super) fn is_deeper_than(node: &IdedExpr, limit: usize) -> bool {
    limit == 0 || children(node).into_iter().any(|child| is_deeper_than(child, limit - 1))
}

/// The string that a node is, if it is a literal one.
pub(super) fn literal(node: &IdedExpr) -> Option<&str> {
    match &node.expr {
        Expr::Literal(cel::common::ast::LiteralValue::String(text)) => Some(text.inner()),
        _ => None,
    }
}
