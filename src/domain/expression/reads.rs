//! Which labels and annotations of the pod an expression reads.

use super::tree;
use cel::IdedExpr;
use cel::common::ast::{CallExpr, Expr, operators};
use std::collections::BTreeSet;

/// Keys of labels, or of annotations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Keys {
    /// These alone.
    Some(BTreeSet<String>),
    /// Any: they are read as a whole, or by a computed key.
    All,
}

impl Default for Keys {
    fn default() -> Self {
        Self::Some(BTreeSet::new())
    }
}

impl Keys {
    /// Adds a key.
    pub fn insert(&mut self, key: &str) {
        if let Self::Some(keys) = self {
            keys.insert(key.to_owned());
        }
    }

    /// Adds the keys of another set.
    pub fn extend(&mut self, other: &Self) {
        match (&mut *self, other) {
            (Self::Some(keys), Self::Some(others)) => keys.extend(others.iter().cloned()),
            _ => *self = Self::All,
        }
    }

    /// Whether no key is in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        matches!(self, Self::Some(keys) if keys.is_empty())
    }
}

/// The labels and annotations of `object` and `oldObject` that an expression reads. Asking whether a pod has any at
/// all (`has(object.metadata.labels)`) reads none of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reads {
    /// Keys of labels.
    pub labels: Keys,
    /// Keys of annotations.
    pub annotations: Keys,
}

/// What a node stands for, as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Object,
    Metadata,
    Labels,
    Annotations,
    /// Something else of the pod, or a single label.
    Leaf,
}

impl Reads {
    pub(super) fn of(tree: &IdedExpr) -> Self {
        let mut reads = Self::default();
        reads.visit(tree);
        reads
    }

    /// Adds what another expression reads.
    pub fn extend(&mut self, other: &Self) {
        self.labels.extend(&other.labels);
        self.annotations.extend(&other.annotations);
    }

    /// A node whose value is used as it is.
    fn visit(&mut self, node: &IdedExpr) {
        match self.place(node) {
            Some(Place::Object | Place::Metadata) => {
                self.labels = Keys::All;
                self.annotations = Keys::All;
            }
            Some(Place::Labels) => self.labels = Keys::All,
            Some(Place::Annotations) => self.annotations = Keys::All,
            Some(Place::Leaf) => {}
            None => match &node.expr {
                Expr::Call(call) if self.is_presence(call) => {}
                _ => tree::children(node).into_iter().for_each(|child| self.visit(child)),
            },
        }
    }

    /// What the node stands for, and notes the keys on the way; `None` for what is no path into the pod.
    fn place(&mut self, node: &IdedExpr) -> Option<Place> {
        match &node.expr {
            Expr::Ident(name) => {
                matches!(name.trim_start_matches('.'), "object" | "oldObject").then_some(Place::Object)
            }
            Expr::Select(select) => {
                let parent = self.place(&select.operand)?;
                let place = self.step(parent, &select.field);
                // has(object.metadata.labels) asks for the map, not for what is in it.
                Some(if select.test { Place::Leaf } else { place })
            }
            Expr::Call(call) => self.place_of_call(call),
            _ => None,
        }
    }

    fn place_of_call(&mut self, call: &CallExpr) -> Option<Place> {
        let name = call.func_name.as_str();
        match (name, call.target.as_deref(), call.args.as_slice()) {
            (operators::INDEX | operators::OPT_INDEX | operators::OPT_SELECT, None, [parent, key]) => {
                let parent = self.place(parent)?;
                Some(self.step_by(parent, key))
            }
            (operators::IN, None, [key, container]) => {
                let container = self.place(container)?;
                self.step_by(container, key);
                Some(Place::Leaf)
            }
            // object.?metadata.?labels.orValue({}) is still the labels.
            ("orValue" | "value", Some(target), arguments) => {
                let target = self.place(target)?;
                for argument in arguments {
                    self.visit(argument);
                }
                Some(target)
            }
            _ => None,
        }
    }

    /// Goes from a place to what a field or key of it names.
    fn step(&mut self, parent: Place, key: &str) -> Place {
        match (parent, key) {
            (Place::Object, "metadata") => Place::Metadata,
            (Place::Metadata, "labels") => Place::Labels,
            (Place::Metadata, "annotations") => Place::Annotations,
            (Place::Labels, key) => {
                self.labels.insert(key);
                Place::Leaf
            }
            (Place::Annotations, key) => {
                self.annotations.insert(key);
                Place::Leaf
            }
            (Place::Object | Place::Metadata | Place::Leaf, _) => Place::Leaf,
        }
    }

    /// Goes from a place to what a literal or computed key names.
    fn step_by(&mut self, parent: Place, key: &IdedExpr) -> Place {
        if let Some(key) = tree::literal(key) {
            return self.step(parent, key);
        }
        self.visit(key);
        if matches!(parent, Place::Object | Place::Metadata | Place::Labels) {
            self.labels = Keys::All;
        }
        if matches!(parent, Place::Object | Place::Metadata | Place::Annotations) {
            self.annotations = Keys::All;
        }
        Place::Leaf
    }

    /// `object.?metadata.?labels.hasValue()`, and comparing with null: neither asks what is in it.
    fn is_presence(&mut self, call: &CallExpr) -> bool {
        match (call.func_name.as_str(), call.target.as_deref(), call.args.as_slice()) {
            ("hasValue", Some(target), []) => self.place(target).is_some(),
            (operators::EQUALS | operators::NOT_EQUALS, None, [one, other]) => {
                (is_null(one) && self.place(other).is_some()) || (is_null(other) && self.place(one).is_some())
            }
            _ => false,
        }
    }
}

fn is_null(node: &IdedExpr) -> bool {
    node.expr == Expr::Literal(cel::common::ast::LiteralValue::Null)
}
