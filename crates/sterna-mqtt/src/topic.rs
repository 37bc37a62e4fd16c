//! Topic Names, Topic Filters and shared subscriptions (MQTT 5.0 sections 4.7 and 4.8.2).
//!
//! Lengths are limited by their encoding to 65,535 bytes ([MQTT-4.7.3-3]); nothing here normalises
//! or changes a character ([MQTT-4.7.3-4]).

use crate::DecodeError;
use crate::text::has_any;

pub use sterna_topic::matches;

/// Most bytes that a Topic Name or Topic Filter can have.
pub const MAX_TOPIC_BYTES: usize = 65_535;

/// Prefix of the Topic Filter of a shared subscription.
pub const SHARE_PREFIX: &str = "$share/";

/// Fault of a topic.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TopicError {
    /// The topic is empty.
    Empty,
    /// The topic has more than [`MAX_TOPIC_BYTES`].
    TooLong,
    /// The topic contains U+0000.
    Null,
    /// A Topic Name contains a wildcard.
    WildcardInName,
    /// `#` is not alone in the last level.
    MultiLevelWildcard,
    /// `+` is not alone in its level.
    SingleLevelWildcard,
    /// The ShareName of a shared subscription is empty or contains a wildcard, or no filter
    /// follows it.
    Share,
}

impl TopicError {
    /// The fault, for logs and the Reason String.
    #[must_use]
    pub const fn detail(self) -> &'static str {
        match self {
            Self::Empty => "topic without a character",
            Self::TooLong => "topic longer than 65,535 bytes",
            Self::Null => "topic contains U+0000",
            Self::WildcardInName => "Topic Name contains a wildcard",
            Self::MultiLevelWildcard => "# is not alone in the last level of a Topic Filter",
            Self::SingleLevelWildcard => "+ is not alone in its level of a Topic Filter",
            Self::Share => "shared subscription is not $share/NAME/FILTER",
        }
    }
}

impl std::fmt::Display for TopicError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.detail())
    }
}

impl std::error::Error for TopicError {}

/// A packet with an ill-formed topic is malformed. Topic Name invalid and Topic Filter invalid are
/// for correctly formed topics that are not accepted (MQTT 5.0 sections 2.4 and 4.13).
impl From<TopicError> for DecodeError {
    fn from(error: TopicError) -> Self {
        Self::malformed(error.detail())
    }
}

/// Checks a Topic Name: not empty, no wildcard, no U+0000.
///
/// # Errors
///
/// Tells the first rule that is broken.
pub fn check_name(name: &str) -> Result<(), TopicError> {
    check_common(name)?;
    // [MQTT-3.3.2-2] [MQTT-4.7.0-1] [MQTT311-3.3.2-2] [MQTT311-4.7.0-1] [MQTT311-4.7.1-1]
    if has_wildcard(name) {
        Err(TopicError::WildcardInName)
    } else {
        Ok(())
    }
}

/// Checks a Topic Filter that is not shared: wildcards only where they may stand.
///
/// # Errors
///
/// Tells the first rule that is broken.
pub fn check_filter(filter: &str) -> Result<(), TopicError> {
    check_common(filter)?;
    if !has_wildcard(filter) {
        return Ok(());
    }
    let mut levels = filter.split('/').peekable();
    while let Some(level) = levels.next() {
        // [MQTT-4.7.1-1] [MQTT311-4.7.1-2]
        if has_any(level.as_bytes(), [b'#']) && (level != "#" || levels.peek().is_some()) {
            return Err(TopicError::MultiLevelWildcard);
        }
        // [MQTT-4.7.1-2] [MQTT311-4.7.1-3]
        if has_any(level.as_bytes(), [b'+']) && level != "+" {
            return Err(TopicError::SingleLevelWildcard);
        }
    }
    Ok(())
}

/// Checks a Topic Filter that may be shared.
///
/// # Errors
///
/// The first broken rule. [`TopicError::Share`] for a filter that begins with [`SHARE_PREFIX`] (or
/// is `$share` itself) and does not have the form `$share/NAME/FILTER`.
pub fn check_any_filter(filter: &str) -> Result<(), TopicError> {
    check_filter(Filter::parse(filter)?.filter)
}

/// A Topic Filter, taken apart.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Filter<'a> {
    /// The ShareName of a shared subscription.
    pub share: Option<&'a str>,
    /// The filter that topics are matched with.
    pub filter: &'a str,
}

impl<'a> Filter<'a> {
    /// Takes a Topic Filter of a SUBSCRIBE or UNSUBSCRIBE apart. The wildcards are not checked.
    ///
    /// # Errors
    ///
    /// [`TopicError::Share`] if it begins as a shared subscription and is not one.
    pub fn parse(filter: &'a str) -> Result<Self, TopicError> {
        let Some(rest) = filter.strip_prefix(SHARE_PREFIX) else {
            return Ok(Self {
                share: None,
                filter,
            });
        };
        // [MQTT-4.8.2-1] a ShareName of at least one character, a "/", and a filter
        let (name, filter) = rest.split_once('/').ok_or(TopicError::Share)?;
        // [MQTT-4.8.2-2]
        if name.is_empty() || filter.is_empty() || has_wildcard(name) {
            return Err(TopicError::Share);
        }
        Ok(Self {
            share: Some(name),
            filter,
        })
    }
}

/// Whether a Topic Filter names a shared subscription.
#[must_use]
pub fn is_shared(filter: &str) -> bool {
    filter.starts_with(SHARE_PREFIX)
}

/// Whether a topic contains a wildcard character.
#[must_use]
pub fn has_wildcard(topic: &str) -> bool {
    has_any(topic.as_bytes(), [b'+', b'#'])
}

/// Number of levels of a topic: one more than it has separators.
#[must_use]
pub fn levels(topic: &str) -> usize {
    1 + topic.bytes().map(|b| usize::from(b == b'/')).sum::<usize>()
}

fn check_common(topic: &str) -> Result<(), TopicError> {
    // [MQTT-4.7.3-1] [MQTT311-4.7.3-1]
    if topic.is_empty() {
        return Err(TopicError::Empty);
    }
    // [MQTT-4.7.3-3]
    if topic.len() > MAX_TOPIC_BYTES {
        return Err(TopicError::TooLong);
    }
    // [MQTT-4.7.3-2] [MQTT311-4.7.3-2]
    if has_any(topic.as_bytes(), [0]) {
        return Err(TopicError::Null);
    }
    Ok(())
}
