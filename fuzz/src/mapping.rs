//! Texts that MQTT and HTTP clients say are values of AMQP, and fields of HTTP.

use bytes::BytesMut;
use sterna_amqp::messaging::{Header, MessageView};
use sterna_mapping::{ToAmqp, from_amqp, from_fields, to_amqp, topic_of_address};
use sterna_mqtt::{Property, PropertyBuf, PropertyContext};

/// Takes bytes as name of a User Property, its value and a payload, with line ends between them.
///
/// Checks that what becomes of them is a message of AMQP, and that whatever that is to MQTT stays the same from then on.
/// The value is read as fields of HTTP, too.
///
/// # Panics
///
/// Where this does not hold.
pub fn texts(bytes: &[u8]) {
    let mut parts = bytes.splitn(3, |byte| *byte == b'\n');
    let mut part = || parts.next().unwrap_or_default();
    let (name, value, payload) = (part(), part(), part());
    for field in [
        "sterna-user-property",
        "sterna-response-topic",
        "sterna-expiry",
    ] {
        let _ = from_fields(&[(field, value)][..]);
    }
    let (Ok(name), Ok(value)) = (std::str::from_utf8(name), std::str::from_utf8(value)) else {
        return;
    };
    let mut block = PropertyBuf::new();
    let name = ["amqp-", name].concat();
    if block.push(Property::UserProperty(&name, value)).is_err() {
        return;
    }
    let Some(once) = through_amqp(&block, payload) else {
        return;
    };
    let twice = through_amqp(&once.0, &once.1).expect("it is valid");
    assert_eq!(
        (once.0.properties().raw(), &once.1),
        (twice.0.properties().raw(), &twice.1)
    );
}

/// A message of MQTT that has been one of AMQP; `None` for properties that are none.
fn through_amqp(block: &PropertyBuf, payload: &[u8]) -> Option<(PropertyBuf, Vec<u8>)> {
    let properties = block.publish_properties(PropertyContext::Publish).ok()?;
    let form = ToAmqp {
        topic: "a/b",
        header: Header::default(),
        retain: false,
        annotations: None,
    };
    let mut out = BytesMut::new();
    let rest = to_amqp(&properties, payload, &form, &mut out);
    out.extend_from_slice(rest);
    let view = MessageView::parse(&out).expect("a message");
    view.validate().expect("a valid one");
    let mapped =
        from_amqp(&view, |address, _| topic_of_address(address)).expect("it came from there");
    Some((mapped.properties, mapped.payload.into_owned()))
}
