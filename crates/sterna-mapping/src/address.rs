//! Topics as addresses of AMQP.

/// Prefix of an address that names a topic, with any topic.
pub const TOPIC_PREFIX: &str = "topic://";

/// Before an address that names a queue.
const QUEUE_PREFIX: &str = "queue://";

/// The address of a topic: the topic itself, unless an address that begins so means something else.
#[must_use]
pub fn address_of_topic(topic: &str) -> String {
    if topic.starts_with('/') || topic.starts_with(TOPIC_PREFIX) || topic.starts_with(QUEUE_PREFIX)
    {
        format!("{TOPIC_PREFIX}{topic}")
    } else {
        topic.to_owned()
    }
}

/// The topic that an address names by its own form; `None` for an address without a topic for
/// publishing. A broker knows more forms, by its configuration.
#[must_use]
pub fn topic_of_address(address: &str) -> Option<String> {
    let topic = if let Some(topic) = address.strip_prefix(TOPIC_PREFIX) {
        topic.to_owned()
    } else if let Some(queue) = address.strip_prefix(QUEUE_PREFIX) {
        format!("queue/{queue}")
    } else {
        address.to_owned()
    };
    sterna_mqtt::topic::check_name(&topic)
        .is_ok()
        .then_some(topic)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_comes_back_from_its_address() {
        for topic in ["a/b", "/a", "//", "topic://a", "queue://a", "é"] {
            assert_eq!(
                topic_of_address(&address_of_topic(topic)).as_deref(),
                Some(topic)
            );
        }
        assert_eq!(topic_of_address("queue://q").as_deref(), Some("queue/q"));
        assert_eq!(topic_of_address("a/+"), None);
        assert_eq!(topic_of_address(""), None);
    }
}
