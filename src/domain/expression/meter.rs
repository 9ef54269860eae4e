//! The bound on what an evaluation costs.
//!
//! cel has no such bound. Before an expression is evaluated, every argument of an operator or function that may take
//! time or memory by its size is wrapped in a call that weighs it; when the budget is spent, that call fails. A wrong
//! guess of a cost makes the bound a little wider, never absent.

use super::error::Fault;
use super::functions::is_optional;
use cel::common::ast::{CallExpr, ComprehensionExpr, EntryExpr, Expr, operators};
use cel::common::types::{CelString, DYN_TYPE, Kind};
use cel::common::value::{CowVal, Val};
use cel::{Context, DeclarationError, Env, ExecutionError, IdedExpr, Value};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What an evaluation may cost: 12 steps for each value looked at, and one for each byte of a string. A pod of the largest size that
/// the store takes (1.5 MB) can be compared with another twice.
pub const BUDGET: u64 = 8_000_000;

/// What looking at a value costs, in bytes that are compared in that time: an evaluation holds a thread for a few tenths of a second
/// at the most.
const STEP: u64 = 12;

/// What one use of a regular expression costs beside its text: it is compiled each time.
const PATTERN_COST: u64 = 20_000;

/// Names that no expression can spell.
const WEIGH: &str = "@weigh";
const WEIGH_TEXT: &str = "@weigh_text";
const WEIGH_CONTAINER: &str = "@weigh_container";
const ORDERED: &str = "@ordered";
/// For `string()`: the API server writes a double in another way.
const NO_DOUBLE: &str = "@no_double";
/// For `uint()`: the API server takes no text with a plus sign.
const NO_PLUS: &str = "@no_plus";

thread_local! {
    /// What is left of the budget of the evaluation under way on this thread.
    static LEFT: Cell<u64> = const { Cell::new(0) };
    /// Whether that evaluation made a list of a map's keys.
    static UNORDERED: Cell<bool> = const { Cell::new(false) };
    /// What the evaluations of [`within`] may still cost together.
    static ALLOWANCE: Cell<u64> = const { Cell::new(u64::MAX) };
}

/// What came of work that evaluates expressions, and what they cost: about one for each byte that was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metered<T> {
    /// `None`: they cost more than was allowed, and what came of the work is not to be used.
    pub value: Option<T>,
    /// What they cost together.
    pub cost: u64,
}

/// Does work whose expressions may cost so much together. They are evaluated on this thread; work within work has an allowance
/// of its own.
pub fn within<T>(allowance: u64, work: impl FnOnce() -> T) -> Metered<T> {
    /// However the work ends.
    struct Restore(u64);
    impl Drop for Restore {
        fn drop(&mut self) {
            ALLOWANCE.set(self.0);
        }
    }
    let _before = Restore(ALLOWANCE.replace(allowance));
    let value = work();
    let left = ALLOWANCE.get();
    Metered {
        value: (left > 0).then_some(value),
        cost: allowance - left,
    }
}

/// Evaluates a metered tree.
pub(super) fn evaluate(tree: &IdedExpr, context: &Context<'_, '_>) -> Result<Value, Fault> {
    let allowance = ALLOWANCE.get();
    let budget = BUDGET.min(allowance);
    LEFT.set(budget);
    UNORDERED.set(false);
    // No panic is known; should cel have one, it costs a refusal and not the process.
    let result = catch_unwind(AssertUnwindSafe(|| Value::resolve(tree, context)));
    ALLOWANCE.set(allowance - (budget - LEFT.get()));
    // `true || failure` is true, so the result does not tell that the meter stopped it.
    if LEFT.get() == 0 {
        Err(Fault::TooExpensive)
    } else if UNORDERED.get() {
        Err(Fault::Unordered)
    } else {
        result.map_err(|_| Fault::Internal)?.map_err(Fault::evaluation)
    }
}

/// Declares the weighing functions.
pub(super) fn declare(environment: &mut Env) -> Result<(), DeclarationError> {
    environment.add_overload(WEIGH, WEIGH, vec![DYN_TYPE], |arguments| pass(arguments, weigh))?;
    environment.add_overload(WEIGH_TEXT, WEIGH_TEXT, vec![DYN_TYPE], |arguments| {
        pass(arguments, |value| spend(PATTERN_COST) && (0..32).all(|_| weigh(value)))
    })?;
    environment.add_overload(WEIGH_CONTAINER, WEIGH_CONTAINER, vec![DYN_TYPE], |arguments| {
        pass(arguments, |value| value.get_type().kind() == Kind::Map || weigh(value))
    })?;
    environment.add_overload(NO_DOUBLE, NO_DOUBLE, vec![DYN_TYPE], |arguments| {
        pass(arguments, |value| {
            value.get_type().kind() != Kind::Double && weigh(value)
        })
    })?;
    environment.add_overload(NO_PLUS, NO_PLUS, vec![DYN_TYPE], |arguments| {
        pass(arguments, |value| {
            let text = value.downcast_ref::<CelString<'_>>();
            !text.is_some_and(|text| text.inner().starts_with('+')) && weigh(value)
        })
    })?;
    environment.add_overload(ORDERED, ORDERED, vec![DYN_TYPE], |arguments| {
        pass(arguments, |value| {
            let entries = value.as_sizer().map_or(0, |sizer| *sizer.size().inner());
            let unordered = value.get_type().kind() == Kind::Map && entries > 1;
            UNORDERED.set(UNORDERED.get() || unordered);
            !unordered && weigh(value)
        })
    })
}

/// Wraps what must be weighed.
pub(super) fn install(node: &mut IdedExpr) {
    match &mut node.expr {
        Expr::Unspecified | Expr::Ident(_) | Expr::Literal(_) => {}
        Expr::Call(call) => install_in_call(call),
        Expr::Comprehension(loop_) => install_in_loop(loop_),
        Expr::List(list) => list
            .elements
            .iter_mut()
            .for_each(|element| install_and_wrap(element, WEIGH)),
        Expr::Map(map) => map
            .entries
            .iter_mut()
            .for_each(|entry| install_in_entry(&mut entry.expr)),
        Expr::Struct(value) => value
            .entries
            .iter_mut()
            .for_each(|entry| install_in_entry(&mut entry.expr)),
        Expr::Select(select) => install(&mut select.operand),
    }
}

fn install_in_entry(entry: &mut EntryExpr) {
    match entry {
        EntryExpr::StructField(field) => install_and_wrap(&mut field.value, WEIGH),
        EntryExpr::MapEntry(entry) => {
            install_and_wrap(&mut entry.key, WEIGH);
            install_and_wrap(&mut entry.value, WEIGH);
        }
    }
}

fn install_in_call(call: &mut CallExpr) {
    let free = matches!(
        call.func_name.as_str(),
        operators::LOGICAL_AND
            | operators::LOGICAL_OR
            | operators::LOGICAL_NOT
            | operators::CONDITIONAL
            | operators::NOT_STRICTLY_FALSE
            | operators::INDEX
    );
    // The accumulator of a loop: cel appends to it in place if the step looks as it was made.
    let accumulates = call
        .args
        .first()
        .is_some_and(|first| matches!(&first.expr, Expr::Ident(name) if name.starts_with('@')));
    if free || accumulates {
        call.target.iter_mut().for_each(|target| install(target));
        call.args.iter_mut().for_each(install);
        return;
    }
    let subject = match call.func_name.as_str() {
        "matches" => WEIGH_TEXT,
        "string" => NO_DOUBLE,
        "uint" => NO_PLUS,
        _ => WEIGH,
    };
    if !is_optional(call)
        && let Some(target) = &mut call.target
    {
        install_and_wrap(target, subject);
    }
    let container = call.func_name == operators::IN;
    for (index, argument) in call.args.iter_mut().enumerate() {
        let wrapper = match index {
            0 if call.target.is_none() => subject,
            1 if container => WEIGH_CONTAINER,
            _ => WEIGH,
        };
        // A literal name of a field; cel asks for the literal itself.
        if call.func_name == operators::OPT_SELECT && index == 1 {
            continue;
        }
        install_and_wrap(argument, wrapper);
    }
}

fn install_in_loop(loop_: &mut ComprehensionExpr) {
    let makes_list = matches!(loop_.accu_init.expr, Expr::List(_));
    install_and_wrap(&mut loop_.iter_range, if makes_list { ORDERED } else { WEIGH });
    install(&mut loop_.accu_init);
    install(&mut loop_.loop_cond);
    install(&mut loop_.loop_step);
    install(&mut loop_.result);
}

fn install_and_wrap(node: &mut IdedExpr, function: &str) {
    install(node);
    let inner = std::mem::take(node);
    let id = inner.id;
    let call = CallExpr {
        func_name: function.to_owned(),
        target: None,
        args: vec![inner],
    };
    *node = IdedExpr {
        id,
        expr: Expr::Call(call),
    };
}

/// Hands the one argument back if it could be paid for.
fn pass<'b, 'v>(
    mut arguments: Vec<CowVal<'b, 'v>>,
    pay: impl Fn(&dyn Val) -> bool,
) -> Result<CowVal<'b, 'v>, ExecutionError> {
    let value = arguments.pop().ok_or(ExecutionError::MissingArgumentOrTarget)?;
    if pay(value.as_ref()) {
        Ok(value)
    } else {
        Err(ExecutionError::function_error("meter", "stopped"))
    }
}

/// Pays for a value and all that is in it; false when the budget is spent.
fn weigh(value: &dyn Val) -> bool {
    if !spend(STEP) {
        return false;
    }
    if let Some(text) = value.downcast_ref::<CelString<'_>>() {
        return spend(text.inner().len() as u64);
    }
    let Some(container) = value.as_iterable() else {
        return true;
    };
    let mut items = container.iter();
    while let Some(item) = items.next() {
        // A map's items are its keys.
        let entry = value.as_indexer().filter(|_| value.get_type().kind() == Kind::Map);
        let paid = weigh(item) && entry.is_none_or(|map| map.get(item).is_ok_and(|value| weigh(value.as_ref())));
        if !paid {
            return false;
        }
    }
    true
}

fn spend(cost: u64) -> bool {
    LEFT.set(LEFT.get().saturating_sub(cost));
    LEFT.get() > 0
}
