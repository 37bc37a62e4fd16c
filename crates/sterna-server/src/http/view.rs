//! What operators see of HTTP clients.

use sterna_broker::{Broker, ConsumerId};
use sterna_net::ConnectionId;

use super::Door;
use crate::inspect::ClientView;
use crate::session::SessionState;

impl Door {
    /// What there is to see of a client.
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
            paused_until_ms: client.peer.sips.paused_until_ms(0),
            ..ClientView::default()
        };
        for session in client.peer.sessions() {
            view.subscriptions += broker.filters(session).count();
            view.add_queue(broker.queue(session));
        }
        Some(view)
    }

    /// The connection of a consumer.
    pub(crate) fn connection_of(&self, consumer: ConsumerId) -> Option<ConnectionId> {
        self.service.api.connection_of(consumer)
    }
}
