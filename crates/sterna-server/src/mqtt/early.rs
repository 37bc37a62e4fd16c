//! Packets that are handled before the handshake is complete.
//!
//! Until then a first flight can be a replay, it can have been held back on its way, and its source address can be
//! forged. So a packet is handled early only if it takes nothing from anybody, even if its client has come by another
//! connection in the meantime: `docs/quic.md`, "Early data".

use sterna_mqtt::packet::{Connect, Publish, Subscribe};
use sterna_mqtt::{Frame, Packet, PacketType, topic};

use super::admission::Admission;
use super::client::Client;
use super::connect::claim_of;
use crate::authorization::MessageKind;
use crate::config::EarlyData;
use crate::context::Context;
use crate::judge::{session_of, waits_for_proof};

/// Whether a packet may be handled although the handshake is not complete.
pub(super) fn may_be_early(cx: &Context<'_>, client: &Client, frame: &Frame<'_>) -> bool {
    let is_all = match cx.policy.listener(client.listener).early_data {
        EarlyData::Off => return false,
        EarlyData::Idempotent => false,
        EarlyData::All => true,
    };
    let may_be = matches!(
        frame.packet_type(),
        Some(
            PacketType::Connect | PacketType::Subscribe | PacketType::PingReq | PacketType::Publish
        )
    );
    if !may_be {
        return is_all;
    }
    match Packet::decode(frame, client.engine.version()) {
        Ok(Packet::Connect(connect)) => may_connect(cx, client, &connect, is_all),
        Ok(Packet::Subscribe(subscribe)) => is_all || may_subscribe(client, &subscribe),
        Ok(Packet::Publish(publish)) => may_publish(cx, client, &publish, is_all),
        Ok(_) => true,
        // The client is told, and the log has it, when its address is known.
        Err(_) => is_all,
    }
}

/// A CONNECT whose client is known to be right, whatever its address. It must not take a session over, nor end one or
/// its will.
fn may_connect(cx: &Context<'_>, client: &Client, connect: &Connect<'_>, is_all: bool) -> bool {
    let Ok(claim) = claim_of(connect) else {
        return false;
    };
    if waits_for_proof(cx, client.id, claim) {
        return false;
    }
    if is_all || connect.client_id.is_empty() {
        return true;
    }
    let Some(name) = session_of(cx, client.id, claim, connect.client_id) else {
        return false;
    };
    let expiry_s = Admission::expiry_s(connect, &cx.policy.mqtt);
    (cx.broker).takes_nothing(&name, connect.clean_start, expiry_s)
}

/// A subscription in a session that is new, which it shares with nobody. In another session it could replace one, or
/// bring one back that the client has ended.
fn may_subscribe(client: &Client, subscribe: &Subscribe<'_>) -> bool {
    !client.is_resumed && !(subscribe.filters()).any(|(filter, _)| topic::is_shared(filter))
}

/// A message that is known if it comes again, or that the rules let come twice.
fn may_publish(cx: &Context<'_>, client: &Client, publish: &Publish<'_>, is_all: bool) -> bool {
    let rules = &cx.policy.rules;
    let kind = MessageKind::new(publish.qos as u8, publish.retain, true);
    let is_allowed = || {
        !rules.look_at_early_data() || rules.may_publish(client.subject(cx), publish.topic, kind)
    };
    // A topic that an alias stands for is known to the engine alone.
    let has_topic = !publish.topic.is_empty();
    if is_all {
        return !rules.look_at_early_data() || (has_topic && is_allowed());
    }
    match publish.packet_id {
        None => rules.is_idempotent(client.subject(cx), publish.topic, kind),
        // Nobody comes back under a name that the broker has made up.
        Some(_) => has_topic && client.is_named && client.session().is_some() && is_allowed(),
    }
}
