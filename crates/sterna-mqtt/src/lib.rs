//! MQTT 3.1, 3.1.1 and 5.0 packets and session state, sans-IO.

mod error;
mod framer;
mod lane;
pub mod packet;
pub mod property;
mod reason;
pub mod topic;
mod types;
mod wire;

pub use error::{Answer, DecodeError, EncodeError, Scope, Violation};
pub use framer::{Frame, Framer};
pub use lane::{Lane, LaneWriter};
pub use packet::Packet;
pub use property::{
    Forward, Properties, Property, PropertyBuf, PropertyContext, PropertyId, PublishProperties,
};
pub use reason::ReasonCode;
pub use types::{MAX_PACKET_BYTES, MAX_REMAINING_BYTES, PacketId, PacketType, QoS, Version};
