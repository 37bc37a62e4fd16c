//! From an expression and fields to a value, in three-valued logic.

use std::borrow::Cow;
use std::cmp::Ordering;

use super::fields::Fields;
use super::parser::{Arithmetic, Comparison, Expression};
use super::steps::Steps;

/// A value of an expression.
#[derive(Clone, PartialEq, Debug)]
pub enum Operand<'v> {
    /// There is none; of a condition: neither true nor false is known.
    Null,
    /// True or false.
    Boolean(bool),
    /// An exact number.
    Integer(i64),
    /// An approximate number.
    Float(f64),
    /// Text.
    String(Cow<'v, str>),
}

impl Operand<'_> {
    /// The truth of a condition; `None` is unknown, and so is a value that is not a condition.
    const fn truth(&self) -> Option<bool> {
        match self {
            Self::Boolean(truth) => Some(*truth),
            _ => None,
        }
    }

    const fn as_float(&self) -> Option<f64> {
        match self {
            Self::Integer(value) => Some(*value as f64),
            Self::Float(value) => Some(*value),
            _ => None,
        }
    }
}

fn known(truth: Option<bool>) -> Operand<'static> {
    truth.map_or(Operand::Null, Operand::Boolean)
}

/// The value of an expression, as far as there are steps for it; any value without.
pub(super) fn evaluate<'v>(
    expression: &'v Expression,
    fields: &'v impl Fields,
    steps: &mut Steps,
) -> Operand<'v> {
    if !steps.take(1) {
        return Operand::Null;
    }
    match expression {
        Expression::Null => Operand::Null,
        Expression::Boolean(value) => Operand::Boolean(*value),
        Expression::Integer(value) => Operand::Integer(*value),
        Expression::Float(value) => Operand::Float(*value),
        Expression::String(text) => Operand::String(Cow::Borrowed(text)),
        Expression::Identifier(name) => {
            if steps.take(fields.lookup_steps()) {
                fields.field(name)
            } else {
                Operand::Null
            }
        }
        // Unknown, unless one term settles it.
        Expression::And(terms) => {
            let truths = (terms.iter()).map(|term| evaluate(term, fields, steps).truth());
            known(settled_by(false, truths))
        }
        Expression::Or(terms) => {
            let truths = (terms.iter()).map(|term| evaluate(term, fields, steps).truth());
            known(settled_by(true, truths))
        }
        Expression::Not(inner) => {
            known((evaluate(inner, fields, steps).truth()).map(|truth| !truth))
        }
        Expression::Negate(inner) => match evaluate(inner, fields, steps) {
            Operand::Integer(value) => value.checked_neg().map_or(Operand::Null, Operand::Integer),
            Operand::Float(value) => Operand::Float(-value),
            _ => Operand::Null,
        },
        Expression::Arithmetic(operator, operands) => arithmetic(
            *operator,
            &evaluate(&operands.0, fields, steps),
            &evaluate(&operands.1, fields, steps),
        ),
        Expression::Compare(comparison, operands) => {
            let left = evaluate(&operands.0, fields, steps);
            let right = evaluate(&operands.1, fields, steps);
            known(compare(*comparison, &left, &right, steps))
        }
        Expression::Between(operands) => {
            let (value, lower, upper) = &**operands;
            let value = evaluate(value, fields, steps);
            let lower = evaluate(lower, fields, steps);
            let upper = evaluate(upper, fields, steps);
            let bounds = [
                compare(Comparison::GreaterOrEqual, &value, &lower, steps),
                compare(Comparison::LessOrEqual, &value, &upper, steps),
            ];
            known(settled_by(false, bounds.into_iter()))
        }
        Expression::In(value, choices) => {
            let value = evaluate(value, fields, steps);
            let equal = choices.iter().map(|choice| {
                let choice = evaluate(choice, fields, steps);
                compare(Comparison::Equal, &value, &choice, steps)
            });
            known(settled_by(true, equal))
        }
        Expression::Like(value, pattern) => match evaluate(value, fields, steps) {
            Operand::Null => Operand::Null,
            Operand::String(text) => Operand::Boolean(pattern.matches(&text, steps)),
            _ => Operand::Boolean(false),
        },
        Expression::IsNull(value) => {
            Operand::Boolean(evaluate(value, fields, steps) == Operand::Null)
        }
    }
}

/// `decisive` if any of the terms is that; unknown if any is unknown; else the opposite.
fn settled_by(decisive: bool, terms: impl Iterator<Item = Option<bool>>) -> Option<bool> {
    let mut result = Some(!decisive);
    for term in terms {
        if term == Some(decisive) {
            return term;
        }
        if term.is_none() {
            result = None;
        }
    }
    result
}

/// Values of different kinds are never equal, nor unequal, nor in any order; null makes a
/// comparison unknown. Only numbers have an order.
fn compare(
    comparison: Comparison,
    left: &Operand<'_>,
    right: &Operand<'_>,
    steps: &mut Steps,
) -> Option<bool> {
    if let (Operand::String(a), Operand::String(b)) = (left, right)
        && !steps.take_for(a.len().min(b.len()))
    {
        return None;
    }
    let (is_ordered, ordering) = match (left, right) {
        (Operand::Null, _) | (_, Operand::Null) => return None,
        (Operand::Boolean(a), Operand::Boolean(b)) => (false, Some(a.cmp(b))),
        (Operand::String(a), Operand::String(b)) => (false, Some(a.cmp(b))),
        (Operand::Integer(a), Operand::Integer(b)) => (true, Some(a.cmp(b))),
        (Operand::Float(a), Operand::Float(b)) => (true, a.partial_cmp(b)),
        (Operand::Integer(a), Operand::Float(b)) => (true, compare_mixed(*a, *b)),
        (Operand::Float(a), Operand::Integer(b)) => {
            (true, compare_mixed(*b, *a).map(Ordering::reverse))
        }
        _ => return Some(false),
    };
    Some(match comparison {
        Comparison::Equal => ordering == Some(Ordering::Equal),
        Comparison::NotEqual => ordering != Some(Ordering::Equal),
        _ if !is_ordered => false,
        Comparison::Less => ordering == Some(Ordering::Less),
        Comparison::LessOrEqual => ordering.is_some_and(Ordering::is_le),
        Comparison::Greater => ordering == Some(Ordering::Greater),
        Comparison::GreaterOrEqual => ordering.is_some_and(Ordering::is_ge),
    })
}

/// Without the loss that turning a large integer into a float would bring.
fn compare_mixed(integer: i64, float: f64) -> Option<Ordering> {
    /// Two to the power of 63.
    const LIMIT: f64 = 9_223_372_036_854_775_808.0;
    if float.is_nan() {
        return None;
    }
    if float >= LIMIT {
        return Some(Ordering::Less);
    }
    if float < -LIMIT {
        return Some(Ordering::Greater);
    }
    let whole = float.trunc();
    Some(
        integer
            .cmp(&(whole as i64))
            .then_with(|| 0.0_f64.total_cmp(&(float - whole + 0.0))),
    )
}

fn arithmetic(operator: Arithmetic, left: &Operand<'_>, right: &Operand<'_>) -> Operand<'static> {
    if let (Operand::Integer(a), Operand::Integer(b)) = (left, right) {
        let result = match operator {
            Arithmetic::Add => a.checked_add(*b),
            Arithmetic::Subtract => a.checked_sub(*b),
            Arithmetic::Multiply => a.checked_mul(*b),
            Arithmetic::Divide => a.checked_div(*b),
        };
        return result.map_or(Operand::Null, Operand::Integer);
    }
    let (Some(a), Some(b)) = (left.as_float(), right.as_float()) else {
        return Operand::Null;
    };
    Operand::Float(match operator {
        Arithmetic::Add => a + b,
        Arithmetic::Subtract => a - b,
        Arithmetic::Multiply => a * b,
        Arithmetic::Divide => a / b,
    })
}
