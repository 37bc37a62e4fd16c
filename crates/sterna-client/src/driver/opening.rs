//! The content of a CONNECT, and the exchange by which client and server show that they know a
//! password.

use bytes::BytesMut;
use sterna_auth::{ClientFinish, MECHANISM, Nonce, ScramClient};
use sterna_mqtt::client::{Connection, ServerLimits};
use sterna_mqtt::packet::{Connect, Will};
use sterna_mqtt::{Property, PropertyContext};

use super::Driver;
use crate::error::Error;
use crate::options::{Login, Options, random_bytes};

/// The property by which MQTT 5's CONNECT requests messages as datagrams, and CONNACK agrees.
pub(super) const DATAGRAMS: Property<'static> = Property::UserProperty("datagrams", "1");

/// Where a SCRAM exchange stands.
pub(super) enum Exchange {
    Started(ScramClient),
    Proven(ClientFinish),
}

pub(super) fn start_exchange(user: &str, password: &str) -> Result<(Exchange, String), Error> {
    let mut random = [0; 18];
    random_bytes(&mut random);
    let (client, first) = ScramClient::start(user, password, &Nonce::from_random(random))?;
    Ok((Exchange::Started(client), first))
}

/// Answers the server's challenge.
pub(super) fn prove(exchange: &mut Option<Exchange>, challenge: &[u8]) -> Result<String, Error> {
    let Some(Exchange::Started(client)) = exchange.take() else {
        return Err(sterna_auth::ScramError::Syntax.into());
    };
    let (finish, proof) = client.challenge(challenge)?;
    *exchange = Some(Exchange::Proven(finish));
    Ok(proof)
}

/// Checks that the server knows the password, too, where an exchange was under way.
pub(super) fn finish_exchange(
    exchange: &mut Option<Exchange>,
    signature: Option<&[u8]>,
) -> Result<(), Error> {
    match exchange.take() {
        None => Ok(()),
        Some(Exchange::Proven(finish)) => Ok(finish.verify(signature.unwrap_or_default())?),
        // A server that accepts a client without an exchange has proven nothing.
        Some(Exchange::Started(_)) => Err(sterna_auth::ScramError::Signature.into()),
    }
}

/// Writes the CONNECT that these options and this session ask for.
pub(super) fn open_connection(
    driver: &mut Driver,
    over_quic: bool,
    out: &mut BytesMut,
) -> Result<(Connection, Option<Exchange>), Error> {
    let options = &driver.options;
    let mut properties = options.properties.clone();
    let mut exchange = None;
    let mut first_data = String::new();
    let (mut user_name, mut password) = (None, None);
    match &options.login {
        Login::Anonymous => {}
        Login::Password {
            user,
            password: secret,
        } => {
            user_name = user.as_deref();
            password = secret.as_deref();
        }
        Login::Scram { user, password } => {
            let (started, first) = start_exchange(user, password)?;
            exchange = Some(started);
            first_data = first;
        }
    }
    let mut set = |property| properties.push(property).map_err(crate::InvalidError::from);
    if options.version.is_v5() {
        if options.session_expiry_s > 0 {
            set(Property::SessionExpiryInterval(options.session_expiry_s))?;
        }
        set(Property::ReceiveMaximum(options.receive_maximum))?;
        set(Property::MaximumPacketSize(options.max_packet_bytes))?;
        if options.topic_alias_maximum > 0 {
            set(Property::TopicAliasMaximum(options.topic_alias_maximum))?;
        }
        if over_quic && options.datagrams {
            set(DATAGRAMS)?;
        }
        if exchange.is_some() {
            set(Property::AuthenticationMethod(MECHANISM))?;
            set(Property::AuthenticationData(first_data.as_bytes()))?;
        }
    } else {
        properties.clear();
    }
    let will = match &options.will {
        Some(will) => Some(Will {
            topic: &will.message.topic,
            payload: &will.message.payload,
            qos: will.message.qos,
            retain: will.message.retain,
            properties: will
                .properties
                .publish_properties(PropertyContext::Will)
                .map_err(|_| crate::InvalidError::Field)?,
        }),
        None => None,
    };
    let clean_start = options.clean_start_at(driver.connections);
    let connect = Connect {
        version: options.version,
        clean_start,
        keep_alive_s: options.keep_alive_s,
        client_id: &driver.client_id,
        will,
        user_name,
        password,
        properties: properties.properties(),
    };
    let now_ms = driver.clock.now_ms();
    let expected = driver.limits.unwrap_or(ServerLimits::EARLY);
    let mut connection = Connection::open(
        &connect,
        !clean_start,
        expected,
        &mut driver.session,
        now_ms,
        out,
    )
    .map_err(|error| Error::Send(error.into()))?;
    if over_quic && options.link.has_idle_timeout() {
        // The battery of a device that only sends is spared: its packets are acknowledged already.
        connection.leave_liveness_to_transport();
    }
    if !options.version.is_v5() {
        connection.limit_packets(options.max_packet_bytes as usize);
    }
    Ok((connection, exchange))
}

impl Options {
    /// Whether this connection starts anew. The first does so as the application says; later ones
    /// go on with the server's session, if it keeps one.
    pub(super) const fn clean_start_at(&self, connections: u64) -> bool {
        if connections == 0 {
            self.clean_start
        } else {
            !self.keeps_session()
        }
    }
}
