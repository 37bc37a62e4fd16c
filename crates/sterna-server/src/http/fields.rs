//! The fields of a request.

use sterna_http::Head;
use sterna_mapping::{FieldSource, field};

use crate::config::nearest;
use crate::repeats::brief;

/// The beginning of the names of fields that are ours.
const PREFIX: &str = "sterna-";

/// Those that a request may have.
const KNOWN: [&str; 7] = [
    field::QOS,
    field::RETAIN,
    field::EXPIRY,
    field::RESPONSE_TOPIC,
    field::CORRELATION_DATA,
    field::USER_PROPERTY,
    field::PAYLOAD_FORMAT,
];

/// Those that mean nothing here: of responses, which a client may copy, and of the admin API.
const HARMLESS: [&str; 3] = ["sterna-topic", "sterna-session", "sterna-request"];

/// The fields of a request that publishes, for the mapping of messages.
pub(crate) struct Fields<'a>(pub(crate) &'a Head);

impl FieldSource for Fields<'_> {
    fn each(&self, name: &str, each: &mut dyn FnMut(&[u8])) {
        self.0.each_field(name, each);
    }
}

/// The sentence about a field of ours that nobody knows: a wrong letter would otherwise lose an option in silence.
pub(crate) fn unknown_field(head: &Head) -> Option<String> {
    let is_known = |name: &str| KNOWN.contains(&name) || HARMLESS.contains(&name);
    let name = brief(head.find_name(|name| name.starts_with(PREFIX) && !is_known(name))?);
    Some(match nearest(name, KNOWN) {
        Some(known) => format!("there is no field {name}: {known} is the nearest"),
        None => format!("there is no field {name}: there are {}", KNOWN.join(", ")),
    })
}
