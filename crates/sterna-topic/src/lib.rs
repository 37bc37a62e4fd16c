//! Matching of topic filters (MQTT 5.0, section 4.7): the definition that every crate uses.
//!
//! A filter is read level by level ([`split`]), so nothing here allocates or recurses. The levels
//! may also come from elsewhere: the broker's rules have levels that stand for a client's name.
//! All filters are those of section 4.7.1; the prefix of a shared subscription is no part of them.

/// One level of a filter. `T` is how its text is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Level<T> {
    /// `#`: the levels that follow, and the level before it. It is the last.
    Rest,
    /// `+`: any one level.
    Any,
    /// A level with exactly this text.
    Text(T),
}

/// The text of a level, however it is kept.
pub trait LevelText {
    /// Whether it is exactly this.
    fn equals(&self, text: &str) -> bool;

    /// Whether it begins with `$`.
    fn is_reserved(&self) -> bool;
}

impl LevelText for &str {
    fn equals(&self, text: &str) -> bool {
        *self == text
    }

    fn is_reserved(&self) -> bool {
        is_reserved(self)
    }
}

/// The levels of a filter, in order.
pub fn split(filter: &str) -> impl Iterator<Item = Level<&str>> + Clone {
    filter.split('/').map(level)
}

/// One level of a filter, by its text.
#[must_use]
pub fn level(text: &str) -> Level<&str> {
    match text {
        "#" => Level::Rest,
        "+" => Level::Any,
        _ => Level::Text(text),
    }
}

/// Whether the filter begins with a wildcard, which does not stand for a level that begins with `$`
/// (section 4.7.2).
#[must_use]
pub fn begins_wild(filter: &str) -> bool {
    filter.starts_with(['+', '#'])
}

/// Whether a topic name or filter begins with `$`: a topic of the server (section 4.7.2).
#[must_use]
pub fn is_reserved(topic: &str) -> bool {
    topic.starts_with('$')
}

/// Whether a valid topic name matches a valid filter.
#[must_use]
pub fn matches(filter: &str, name: &str) -> bool {
    // [MQTT-4.7.2-1] [MQTT311-4.7.2-1] a leading wildcard does not match a leading $
    !(is_reserved(name) && begins_wild(filter)) && covers(split(filter), name)
}

/// Whether the levels of a filter match every topic that `inner`, a filter or a name, matches.
///
/// A wildcard of the levels stands here for any level, also for a first one that begins with `$`.
pub fn covers<T: LevelText>(levels: impl Iterator<Item = Level<T>>, inner: &str) -> bool {
    let mut inner = inner.split('/');
    for level in levels {
        match (level, inner.next()) {
            // "sport/#" also covers "sport".
            (Level::Rest, _) => return true,
            (Level::Any, Some(text)) if text != "#" => {}
            // [MQTT-4.7.3-4] [MQTT311-4.7.3-1] character by character, nothing normalised
            (Level::Text(outer), Some(inner)) if outer.equals(inner) => {}
            _ => return false,
        }
    }
    inner.next().is_none()
}

/// Whether some topic is matched both by the levels of one filter and by another filter.
///
/// A wildcard of the levels matches any level, also a first one that begins with `$`. A wildcard of
/// `other` does not match that one.
pub fn overlaps<T: LevelText>(levels: impl Iterator<Item = Level<T>>, other: &str) -> bool {
    let mut other = split(other);
    let mut is_first = true;
    for level in levels {
        let is_hidden = matches!(&level, Level::Text(text) if is_first && text.is_reserved());
        is_first = false;
        match (level, other.next()) {
            (_, Some(Level::Rest | Level::Any)) if is_hidden => return false,
            (Level::Rest, _) | (_, Some(Level::Rest)) => return true,
            (Level::Any, Some(_)) | (Level::Text(_), Some(Level::Any)) => {}
            (Level::Text(one), Some(Level::Text(other))) if one.equals(other) => {}
            _ => return false,
        }
    }
    // "sport" overlaps "sport/#".
    matches!(other.next(), None | Some(Level::Rest))
}
