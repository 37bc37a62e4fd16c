//! The operators' view of MQTT clients, and the end of a client by an operator.

use sterna_broker::{Broker, ConsumerId, EndCause, SessionName};
use sterna_net::ConnectionId;

use super::Door;
use super::client::{Client, State, connection};
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
            protocol: "mqtt",
            version: Some(match client.engine.version() {
                sterna_mqtt::Version::V31 => "3.1",
                sterna_mqtt::Version::V311 => "3.1.1",
                sterna_mqtt::Version::V5 => "5.0",
            }),
            name: client.live_name(),
            user: client.identity.user(),
            proof: client.live_name().map(|_| client.identity.proof()),
            since_ms: client.sips.since_ms(),
            tally: client.sips.tally,
            paused_until_ms: client.sips.paused_until_ms(0),
            ..ClientView::default()
        };
        if let Some(session) = client.session() {
            view.subscriptions = broker.filters(session).count();
            view.add_queue(broker.queue(session));
        }
        Some(view)
    }

    /// The user and the identifier of a client, as bans name it; `None` where the client is gone. The identifier
    /// is known as soon as the client has been let in, also before its CONNACK.
    pub(crate) fn names(&self, id: ConnectionId) -> Option<(Option<&str>, Option<&str>)> {
        let client = self.clients.get(id)?;
        let is_admitted = matches!(
            client.state,
            State::Opening(..) | State::Opened(_) | State::Live(_)
        );
        let name = is_admitted.then_some(&*client.name);
        Some((client.identity.user(), name))
    }

    /// The connection of a consumer.
    pub(crate) fn connection_of(&self, consumer: ConsumerId) -> Option<ConnectionId> {
        Some(connection(consumer)).filter(|id| self.clients.has(*id))
    }

    /// An administrator or a ban ends a client's connection: its will is published.
    pub(super) fn dismissed(cx: &mut Context<'_>, client: &mut Client, cause: EndCause) {
        if let Some(name) = client.live_name() {
            let now_ms = cx.now_ms;
            let session = SessionName::new(client.identity.user(), name);
            // The broker's event then tells the client.
            cx.broker.evict_for(now_ms, &session, false, cause);
        } else {
            Self::lost(cx, client, cause);
        }
    }
}
