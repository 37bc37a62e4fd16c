//! Why a topic or a filter is not served, in words.

use sterna_broker::Limits;
use sterna_mqtt::topic;

/// Why a topic name that is one is beyond the limits.
pub(crate) const TOO_DEEP: &str = "the topic has more levels than broker.maximum_topic_levels";

/// Why a topic name is not one within the limits.
pub(crate) fn fault_of_name(name: &str, limits: &Limits) -> &'static str {
    match topic::check_name(name) {
        Err(error) => error.detail(),
        Ok(()) if name.len() > limits.topic_bytes => "the topic is too long",
        Ok(()) if levels(name) > limits.topic_levels => TOO_DEEP,
        Ok(()) => "the message is too large to be kept",
    }
}

/// Why a filter, which may be that of a shared subscription, is not one within the limits.
pub(crate) fn fault_of_filter(filter: &str, limits: &Limits) -> &'static str {
    if let Err(error) = topic::check_any_filter(filter) {
        return error.detail();
    }
    let topics = topic::Filter::parse(filter).map_or(filter, |parsed| parsed.filter);
    if topics.len() > limits.topic_bytes {
        "the filter is too long"
    } else if levels(topics) > limits.topic_levels {
        "the filter has more levels than broker.maximum_topic_levels"
    } else {
        "the filter is not served"
    }
}

fn levels(text: &str) -> usize {
    text.split('/').count()
}
