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

use std::fmt;

pub use eval::Operand;
pub use fields::{Fields, MessageFields};

use crate::messaging::MessageView;

/// Limits of one selector.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SelectorLimits {
    /// Longest text, in bytes.
    pub max_bytes: usize,
    /// Deepest nesting of parentheses and operators. A row of the same `AND` or `OR` counts once.
    pub max_depth: u8,
}

impl Default for SelectorLimits {
    fn default() -> Self {
        Self {
            max_bytes: 8_192,
            max_depth: 64,
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
        parser::parse(text, limits.max_depth).map(|expression| Self { expression })
    }

    /// Whether a message is selected: whether the expression is true, and neither false nor
    /// unknown.
    #[must_use]
    pub fn matches(&self, message: &MessageView<'_>) -> bool {
        self.matches_fields(&MessageFields::new(message))
    }

    /// Whether something with these fields is selected.
    #[must_use]
    pub fn matches_fields(&self, fields: &impl Fields) -> bool {
        eval::evaluate(&self.expression, fields) == Operand::Boolean(true)
    }
}
