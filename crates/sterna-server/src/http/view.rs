//! The operators' view of HTTP clients.

use std::net::IpAddr;

use sterna_broker::{Broker, ConsumerId, EndCause};
use sterna_net::ConnectionId;

use super::Door;
use crate::bans::Newcomer;
use crate::context::Context;
use crate::inspect::ClientView;
use crate::session::SessionState;

impl Door {
    /// The operators' view of a client; `None` where the client is gone.
    pub(crate) fn view(
        &self,
        broker: &Broker<SessionState>,
        id: ConnectionId,
    ) -> Option<ClientView<'_>> {
        let client = self.clients.get(id)?;
        let mut view = ClientView {
            protocol: "http",
            name: client.peer.name(),
            user: client.peer.name(),
            since_ms: client.peer.sips.since_ms(),
            tally: client.peer.sips.tally,
            paused_until_ms: client.peer.sips.paused_until_ms(0),
            ..ClientView::default()
        };
        for session in client.peer.sessions() {
            view.subscriptions += broker.filters(session).count();
            view.add_queue(broker.queue(session));
        }
        Some(view)
    }

    /// Ends everything that banned users have open on a connection. The connection ends too, where it is of no
    /// other user.
    pub(crate) fn end_banned(
        &mut self,
        cx: &mut Context<'_>,
        id: ConnectionId,
        address: Option<IpAddr>,
    ) {
        let Some(client) = self.clients.get(id) else {
            return;
        };
        let is_banned = |user| {
            // HTTP has no names of clients.
            let who = Newcomer {
                user,
                client: None,
                address,
            };
            cx.bans.find(cx.now_ms, who).is_some()
        };
        if client.peer.users().all(is_banned) {
            let _ = self.dismiss(cx, id, EndCause::Banned);
        } else if client.peer.users().any(is_banned) {
            self.on_peer(cx, id, |api, cx, peer, out| api.end_banned(cx, peer, out));
        }
    }

    /// The connection of a consumer.
    pub(crate) fn connection_of(&self, consumer: ConsumerId) -> Option<ConnectionId> {
        self.service.api.connection_of(consumer)
    }
}
