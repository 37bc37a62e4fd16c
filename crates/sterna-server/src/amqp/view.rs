//! The operators' view of AMQP clients, and the end of a client by an operator.

use sterna_amqp::Condition;
use sterna_amqp::performatives::Error;
use sterna_broker::{Broker, ConsumerId, EndCause};
use sterna_net::ConnectionId;

use super::Door;
use super::client::{Client, State};
use crate::context::Context;
use crate::identity::Identity;
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
        let is_open = matches!(client.state, State::Open);
        let identity = client.identity.as_ref();
        let mut view = ClientView {
            protocol: "amqp",
            version: Some("1.0"),
            name: is_open.then_some(&*client.container),
            user: identity.and_then(Identity::user),
            proof: identity.filter(|_| is_open).map(Identity::proof),
            subscriptions: client.sources.len(),
            since_ms: client.sips.since_ms(),
            tally: client.sips.tally,
            paused_until_ms: client.sips.paused_until_ms(0),
            ..ClientView::default()
        };
        for source in client.sources.values() {
            view.add_queue(broker.queue(source.session));
        }
        Some(view)
    }

    /// The user and the container-id of a client, as bans name it; `None` where the client is gone.
    pub(crate) fn names(&self, id: ConnectionId) -> Option<(Option<&str>, Option<&str>)> {
        let client = self.clients.get(id)?;
        let is_open = matches!(client.state, State::Open);
        let user = client.identity.as_ref().and_then(Identity::user);
        Some((user, is_open.then_some(&*client.container)))
    }

    /// The connection of a consumer.
    pub(crate) fn connection_of(&self, consumer: ConsumerId) -> Option<ConnectionId> {
        self.place_of(consumer).map(|(connection, _)| connection)
    }

    /// An administrator or a ban ends a client's connection.
    pub(super) fn dismissed(&mut self, cx: &mut Context<'_>, client: &mut Client, cause: EndCause) {
        let detail = "an administrator ended the connection";
        let error = Error::new(Condition::CONNECTION_FORCED, detail);
        // Before its open a client is told nothing.
        let _ = client.engine.close(Some(error), &mut self.out);
        self.lost(cx, client, cause);
    }
}
