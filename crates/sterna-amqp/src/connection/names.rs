//! Links by their names. An attach looks for the link of its name on the whole connection, which may have very many.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{LinkId, SessionId};
use crate::link::Link;
use crate::performatives::Role;

/// The link of each name and own role that the peer has attached last. It may have ended since, without the peer's
/// answer.
#[derive(Debug, Default)]
pub(crate) struct Names {
    senders: BTreeMap<Arc<str>, LinkId>,
    receivers: BTreeMap<Arc<str>, LinkId>,
}

impl Names {
    pub(crate) fn find(&self, name: &str, role: Role) -> Option<LinkId> {
        let links = match role {
            Role::Sender => &self.senders,
            Role::Receiver => &self.receivers,
        };
        links.get(name).copied()
    }

    fn of(&mut self, role: Role) -> &mut BTreeMap<Arc<str>, LinkId> {
        match role {
            Role::Sender => &mut self.senders,
            Role::Receiver => &mut self.receivers,
        }
    }

    /// The peer has attached a link of a session.
    pub(crate) fn note(&mut self, session: SessionId, link: &Link) {
        let handle = link.handle;
        let id = LinkId { session, handle };
        self.of(link.role).insert(Arc::clone(&link.name), id);
    }

    /// A link of a session is gone. Its name may be another link's by now.
    pub(crate) fn forget(&mut self, session: SessionId, link: &Link) {
        let handle = link.handle;
        let links = self.of(link.role);
        if links.get(&*link.name) == Some(&LinkId { session, handle }) {
            links.remove(&*link.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;

    use super::*;
    use crate::connection::{Connection, ServerOptions};
    use crate::frame::{self, TYPE_AMQP};
    use crate::link::AttachOptions;
    use crate::performatives::{Attach, Begin, Detach, End, Open, Performative};
    use crate::types::Multiple;
    use crate::{Event, Framer, Lane, Limits};

    /// A server whose client is open.
    fn server() -> Connection {
        let options = ServerOptions {
            container_id: "server".to_owned(),
            mechanisms: Vec::new(),
            require_sasl: false,
        };
        let mut server = Connection::server(&options, &Limits::default(), 0);
        read(&mut server, b"AMQP\0\x01\0\0");
        send(&mut server, 0, &Performative::Open(Open::new("client")));
        let opened = server.open(&Open::new("server"), &mut BytesMut::new());
        opened.expect("an open is awaited");
        server
    }

    /// Accepts what is asked for. Returns whether a link was stolen.
    fn read(server: &mut Connection, mut input: &[u8]) -> bool {
        let mut framer = Framer::default();
        let out = &mut BytesMut::new();
        let unit = framer.next(&mut input, server.max_frame_bytes());
        let unit = unit.expect("a frame").expect("a whole one");
        let event = server.receive(Lane::CONTROL, &unit, 0, out);
        if let Some(Event::Attach { link, .. }) = event.expect("no violation") {
            let accepted = server.accept_attach(link, &AttachOptions::default(), out);
            accepted.expect("an answer is awaited");
        }
        let mut is_stolen = false;
        while let Some(event) = server.next_event() {
            is_stolen |= matches!(event, Event::Detached { error: Some(_), .. });
        }
        is_stolen
    }

    fn send(server: &mut Connection, channel: u16, performative: &Performative<'_>) -> bool {
        let mut out = BytesMut::new();
        frame::encode(&mut out, TYPE_AMQP, channel, |out| performative.encode(out));
        read(server, &out)
    }

    fn begin(server: &mut Connection, channel: u16) {
        let begin = Begin {
            remote_channel: None,
            next_outgoing_id: 0,
            incoming_window: 100,
            outgoing_window: 100,
            handle_max: u32::MAX,
            offered_capabilities: Multiple::None,
            desired_capabilities: Multiple::None,
            properties: None,
        };
        send(server, channel, &Performative::Begin(begin));
    }

    fn attach(server: &mut Connection, channel: u16, handle: u32, name: &str, role: Role) -> bool {
        let options = AttachOptions::default();
        let link = Link::new(name, role, handle, crate::link::LinkState::AttachSent);
        let attach = Attach {
            initial_delivery_count: Some(0),
            ..options.attach(&link, 0)
        };
        send(server, channel, &Performative::Attach(attach))
    }

    fn detach(server: &mut Connection, channel: u16, handle: u32) {
        let closed = true;
        let detach = Detach {
            handle,
            closed,
            error: None,
        };
        send(server, channel, &Performative::Detach(detach));
    }

    /// The peer's links that have not ended are found, and the others are not kept.
    fn check(server: &Connection) {
        let sessions = server.sessions.iter().flatten();
        let links = sessions.flat_map(|session| {
            let links = session.links.iter().flatten();
            links.map(|link| (session.id, link))
        });
        let mut count = 0;
        for (session, link) in links {
            count += 1;
            let handle = link.handle;
            if link.is_live() {
                let found = server.names.find(&link.name, link.role);
                assert_eq!(found, Some(LinkId { session, handle }));
            }
        }
        let names = &server.names;
        assert!(names.senders.len() + names.receivers.len() <= count);
    }

    #[test]
    fn each_link_is_found_whatever_comes_and_ends() {
        const SESSIONS: u16 = 3;
        const HANDLES: u32 = 6;
        let mut server = server();
        let mut attached = std::collections::BTreeSet::new();
        (0..SESSIONS).for_each(|channel| begin(&mut server, channel));
        let mut random = 1_u32;
        for _ in 0..20_000 {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let pick = |shift: u32, of: u32| (random >> shift) % of;
            let (channel, handle) = (pick(8, SESSIONS.into()) as u16, pick(12, HANDLES));
            if pick(24, 20) == 0 {
                send(
                    &mut server,
                    channel,
                    &Performative::End(End { error: None }),
                );
                begin(&mut server, channel);
                attached.retain(|(of, _)| *of != channel);
            } else if attached.remove(&(channel, handle)) {
                detach(&mut server, channel, handle);
            } else {
                let role = [Role::Sender, Role::Receiver][pick(16, 2) as usize];
                attach(&mut server, channel, handle, &pick(20, 4).to_string(), role);
                attached.insert((channel, handle));
            }
            check(&server);
        }
        server.transport_closed();
        assert!(server.names.senders.is_empty() && server.names.receivers.is_empty());
    }

    /// So an attach costs the same beside ten links and beside fifty thousand.
    #[test]
    fn an_attach_looks_at_no_link_of_another_name() {
        const LINKS: u32 = 200;
        let mut server = server();
        for channel in 0..3 {
            begin(&mut server, channel);
        }
        for channel in 0..2 {
            for handle in 0..LINKS {
                let name = format!("{channel}/{handle}");
                assert!(!attach(&mut server, channel, handle, &name, Role::Sender));
            }
        }
        assert!(attach(&mut server, 2, 0, "0/7", Role::Sender), "stolen");
        // Whoever looked at the links would find it all the same.
        server.names = Names::default();
        assert!(!attach(&mut server, 2, 1, "1/7", Role::Sender), "not found");
    }
}
