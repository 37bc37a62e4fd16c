//! Which messages a receiver wants, beyond its address: the filters of its source.

use bytes::BytesMut;
use sterna_amqp::Condition;
use sterna_amqp::messaging::{Filter, MessageView, Source};
use sterna_amqp::selector::{Selector, SelectorLimits};
use sterna_amqp::types::{Encoded, MapWriter};
use sterna_broker::{Message, Origin, Qos};

use super::address::{End, topic_of_key};
use super::attach::{Refusal, refused_field};
use crate::config::Amqp;
use crate::mapping::{AmqpForm, amqp_form};

/// The filters of a source that are applied.
#[derive(Debug, Default)]
pub(super) struct Selection {
    selectors: Vec<Selector>,
    /// Filters that the subject, as a topic, must match.
    subjects: Vec<String>,
    /// Nothing of this publisher.
    not_from: Option<Origin>,
    /// Steps that the selectors may take for one message.
    most_steps: u64,
}

/// Bytes of a message that are brought into AMQP's form in one step.
const FORM_BYTES_PER_STEP: usize = 64;
/// Bytes of a message for which a selector may take `amqp.maximum_selector_steps`; as many again for each such part.
const LIMITED_BYTES: usize = 64 << 10;

/// Bytes of a subject that are matched with a filter in one step.
const SUBJECT_BYTES_PER_STEP: usize = 4;

impl Selection {
    /// Reads the filters of a source. The second value is the map of those that are applied, for the
    /// answer; `None` without any.
    pub(super) fn read(
        source: &Source<'_>,
        origin: Origin,
        config: &Amqp,
    ) -> Result<(Option<Self>, Option<Encoded>), Refusal> {
        let limits = SelectorLimits {
            max_bytes: config.maximum_selector_bytes as usize,
            max_pattern_bytes: config.maximum_selector_pattern_bytes as usize,
            ..SelectorLimits::default()
        };
        let mut this = Self {
            most_steps: config.maximum_selector_steps.into(),
            ..Self::default()
        };
        let mut applied = Vec::new();
        for (name, filter) in source.filters() {
            match filter {
                Filter::Selector(text) => this.selectors.push(
                    Selector::parse(text, &limits)
                        .map_err(|error| (Condition::INVALID_FIELD, error.to_string()))?,
                ),
                Filter::Topic(pattern) => this.subjects.push(topic_of_pattern(pattern)),
                Filter::Direct(subject) => this.subjects.push(topic_of_pattern(subject)),
                Filter::NoLocal => this.not_from = Some(origin),
                Filter::Other(_) => continue,
            }
            applied.push(name);
        }
        if applied.is_empty() {
            return Ok((None, None));
        }
        let mut out = BytesMut::new();
        let mut map = MapWriter::new(&mut out);
        for (key, value) in source.filter.into_iter().flatten() {
            if key.as_text().is_some_and(|name| applied.contains(&name)) {
                map.push(&key, &value);
            }
        }
        map.finish();
        let encoded = Encoded::from_bytes(out.freeze());
        Ok((Some(this), Some(encoded.map_err(refused_field)?)))
    }
}

/// Bytes of the filters of a source that are applied.
pub(super) fn filter_bytes(source: &Source<'_>) -> usize {
    let texts = source.filters().map(|(_, filter)| match filter {
        Filter::Selector(text) | Filter::Topic(text) | Filter::Direct(text) => text.len(),
        Filter::NoLocal | Filter::Other(_) => 0,
    });
    texts.sum()
}

/// Patterns come with dots between their levels, as AMQP 0-10 has them, or with slashes.
fn topic_of_pattern(pattern: &str) -> String {
    if pattern.contains('/') {
        pattern.to_owned()
    } else {
        topic_of_key(pattern, End::Source)
    }
}

impl sterna_broker::Selector for Selection {
    fn selects(&self, message: &Message, steps: &mut u64) -> Option<bool> {
        if self
            .not_from
            .is_some_and(|origin| message.origin() == origin)
        {
            return Some(false);
        }
        if self.selectors.is_empty() && self.subjects.is_empty() {
            return Some(true);
        }
        let mut bytes = BytesMut::new();
        let form = AmqpForm {
            message,
            qos: Qos::AtLeastOnce,
            retain: message.retain(),
            redelivered: false,
            failures: 0,
            now_ms: message.published_ms(),
            source: "",
        };
        let tail = amqp_form(&form, &mut bytes);
        bytes.extend_from_slice(tail);
        // A large message is not the selector's fault.
        *steps += (bytes.len() / FORM_BYTES_PER_STEP) as u64;
        let Ok(view) = MessageView::parse(&bytes) else {
            return Some(false);
        };
        // Nor are its many properties: the limit is for so much of a message.
        let parts = (bytes.len() / LIMITED_BYTES) as u64 + 1;
        let most_steps = self.most_steps.saturating_mul(parts);
        let mut left = most_steps;
        let is_selected = self.judge(&view, message, &mut left);
        *steps += most_steps - left;
        is_selected
    }
}

impl Selection {
    /// Whether a message is selected; `None` where the steps that are left were not enough.
    fn judge(&self, view: &MessageView<'_>, message: &Message, left: &mut u64) -> Option<bool> {
        for selector in &self.selectors {
            if !selector.matches_within(view, left)? {
                return Some(false);
            }
        }
        self.fits_subject(view, message, left)
    }

    fn fits_subject(
        &self,
        view: &MessageView<'_>,
        message: &Message,
        left: &mut u64,
    ) -> Option<bool> {
        if self.subjects.is_empty() {
            return Some(true);
        }
        let properties = view.properties().ok().flatten();
        let subject = properties.and_then(|properties| properties.subject);
        let topic = subject.map_or_else(
            || message.topic().to_owned(),
            |subject| topic_of_key(subject, End::Target),
        );
        for filter in &self.subjects {
            let bytes = topic.len().min(filter.len());
            *left = left.checked_sub((bytes / SUBJECT_BYTES_PER_STEP) as u64 + 1)?;
            if !sterna_mqtt::topic::matches(filter, &topic) {
                return Some(false);
            }
        }
        Some(true)
    }
}

#[cfg(test)]
mod tests {
    use sterna_broker::{MessageHeader, Selector as _};

    use super::*;

    /// A publisher could end every link that has a selector.
    #[test]
    fn a_message_with_many_properties_ends_no_link() {
        let mut properties = Vec::new();
        for number in 0..300_000 {
            // A user property of MQTT.
            properties.extend_from_slice(&[0x26, 0, 6]);
            properties.extend_from_slice(format!("{number:06}").as_bytes());
            properties.extend_from_slice(&[0, 0]);
        }
        let header = MessageHeader::default();
        let message = Message::copy("t", &properties, b"", header).expect("it fits");
        let selector = Selector::parse("device = 'x'", &SelectorLimits::default());
        let selection = Selection {
            selectors: vec![selector.expect("a selector")],
            most_steps: Amqp::default().maximum_selector_steps.into(),
            ..Selection::default()
        };
        let mut steps = 0;
        assert_eq!(selection.selects(&message, &mut steps), Some(false));
        assert!(steps > selection.most_steps, "the turn pays for it");
    }
}
