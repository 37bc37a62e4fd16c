//! The part of a shard that bans need: their records, and the end of clients that are banned.

use std::net::IpAddr;

use sterna_net::{ConnectionId, Network};

use super::{Doors, Shard};
use crate::bans::Newcomer;
use crate::config::Protocol;

impl Shard {
    /// Writes the records of bans that have changed. One shard does, since records have no owner.
    pub(super) fn keep_bans(&mut self) {
        if self.number != 0 {
            return;
        }
        for (key, value) in self.bans.take_changed() {
            match value {
                Some(value) => self.broker.keep_node(&key, &value),
                None => self.broker.forget_node(&key),
            }
        }
    }

    /// Ends the connections of clients that are banned, if that is due.
    pub(super) fn end_banned(&mut self, net: &mut dyn Network) {
        let now_ms = net.now_ms();
        if self.bans_due_ms.is_none_or(|due_ms| due_ms > now_ms) {
            return;
        }
        self.bans_due_ms = None;
        self.bans_looked_at_ms = now_ms;
        let mut doors = self.doors(net);
        let ids = (doors.mqtt.clients.ids()).chain(doors.amqp.clients.ids());
        let banned: Vec<ConnectionId> = ids
            .filter(|id| doors.is_banned(*id, doors.address(*id)))
            .collect();
        for id in banned {
            let _ = doors.mqtt.dismiss(&mut doors.cx, id) || doors.amqp.dismiss(&mut doors.cx, id);
        }
        // A connection of HTTP can be of more than one user.
        let ids: Vec<ConnectionId> = doors.http.clients.ids().collect();
        for id in ids {
            let address = doors.address(id);
            doors.http.end_banned(&mut doors.cx, id, address);
        }
    }
}

impl Doors<'_> {
    /// Whether a client of MQTT or AMQP is banned.
    fn is_banned(&self, id: ConnectionId, address: Option<IpAddr>) -> bool {
        let broker = &*self.cx.broker;
        let view = (self.mqtt.view(broker, id)).or_else(|| self.amqp.view(broker, id));
        let view = view.unwrap_or_default();
        let who = Newcomer {
            user: view.user,
            client: self.mqtt.admitted_name(id).or(view.name),
            address,
        };
        self.cx.bans.find(self.cx.net.now_ms(), who).is_some()
    }

    fn address(&self, id: ConnectionId) -> Option<IpAddr> {
        self.cx.net.info(id).map(|info| info.peer.ip())
    }

    /// Ends a connection whose client has moved to this address, if that is banned.
    pub(super) fn end_if_banned(&mut self, id: ConnectionId, address: Option<IpAddr>) {
        match self.of_connection(id) {
            Protocol::Http => self.http.end_banned(&mut self.cx, id, address),
            Protocol::Mqtt if self.is_banned(id, address) => {
                let _ = self.mqtt.dismiss(&mut self.cx, id);
            }
            Protocol::Amqp if self.is_banned(id, address) => {
                let _ = self.amqp.dismiss(&mut self.cx, id);
            }
            Protocol::Mqtt | Protocol::Amqp | Protocol::Admin => {}
        }
    }
}
