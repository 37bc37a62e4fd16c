//! Selectors: the language of `apache.org:selector-filter:string`, over header, properties and
//! application properties of a message. It is that of JMS (JMS 2.0, section 3.8.1).
//!
//! A name is an application property, with two exceptions. They are JMS's headers (`JMSPriority`,
//! `JMSMessageID`, …), and names that begin with `amqp.` (`amqp.priority`, `amqp.subject`, …). See
//! [`MessageFields`].

mod eval;
mod fields;
mod lexer;
mod like;
mod parser;
mod steps;
mod wild;

use std::fmt;

pub use eval::Operand;
pub use fields::{Fields, MessageFields};

use crate::messaging::MessageView;
use steps::Steps;

/// Limits of one selector.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SelectorLimits {
    /// Longest text, in bytes.
    pub max_bytes: usize,
    /// Deepest nesting of parentheses and operators. A row of the same `AND` or `OR` counts once.
    pub max_depth: u8,
    /// Bytes of all patterns of `LIKE`.
    pub max_pattern_bytes: usize,
}

impl Default for SelectorLimits {
    fn default() -> Self {
        Self {
            max_bytes: 8_192,
            max_depth: 64,
            max_pattern_bytes: 1_024,
        }
    }
}

/// Why a text is not a selector.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SelectorError {
    /// Position in the text, in bytes.
    pub position: usize,
    /// Text for people.
    pub detail: &'static str,
}

impl fmt::Display for SelectorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at byte {}", self.detail, self.position)
    }
}

impl std::error::Error for SelectorError {}

/// A selector that has been read.
#[derive(Clone, Debug)]
pub struct Selector {
    expression: parser::Expression,
}

impl Selector {
    /// Reads a selector. An empty one matches everything.
    ///
    /// # Errors
    ///
    /// Where and why the text is not a selector, or exceeds a limit.
    pub fn parse(text: &str, limits: &SelectorLimits) -> Result<Self, SelectorError> {
        if text.len() > limits.max_bytes {
            return Err(SelectorError {
                position: limits.max_bytes,
                detail: "selector is too long",
            });
        }
        parser::parse(text, limits).map(|expression| Self { expression })
    }

    /// Whether a message is selected: whether the expression is true, and neither false nor
    /// unknown. It takes as much work as it takes.
    #[must_use]
    pub fn matches(&self, message: &MessageView<'_>) -> bool {
        self.matches_fields(&MessageFields::new(message))
    }

    /// Whether something with these fields is selected.
    #[must_use]
    pub fn matches_fields(&self, fields: &impl Fields) -> bool {
        let mut steps = Steps::new(u64::MAX);
        eval::evaluate(&self.expression, fields, &mut steps) == Operand::Boolean(true)
    }

    /// As [`matches`](Self::matches), with no more work than `steps`, each of which is some nanoseconds: a part of the
    /// expression, or four bytes of a text. The steps that are left are written back. `None` where they were not enough.
    #[must_use]
    pub fn matches_within(&self, message: &MessageView<'_>, steps: &mut u64) -> Option<bool> {
        let mut left = Steps::new(*steps);
        let fields = MessageFields::new(message);
        let is_true =
            eval::evaluate(&self.expression, &fields, &mut left) == Operand::Boolean(true);
        *steps = left.left();
        (!left.is_over()).then_some(is_true)
    }
}
