//! Clients' sending links that are attached anew on another connection (AMQP 1.0, part 2, section 2.6.1).
//!
//! A link has one place, by its user, container and name. One that comes back elsewhere is answered when the
//! one before has ended, so that nothing is taken from both. Receiving links are sessions of the broker, which
//! does the same with them.

use sterna_amqp::Condition;
use sterna_amqp::connection::LinkId;
use sterna_amqp::performatives::Error;

use super::Door;
use super::client::Client;
use crate::context::Context;
use crate::mail::Mail;
use crate::mail::amqp::{AmqpLetter, Body, Place};

impl Door {
    /// Notes where a client's sending link is. True if it was elsewhere: then it is attached when that has ended.
    pub(super) fn takes_place(
        &self,
        cx: &mut Context<'_>,
        client: &Client,
        link: LinkId,
        name: &str,
    ) -> bool {
        let to = place(cx, client, link);
        let before = (self.service.registry).occupy(client.link_key(name), to);
        // Within a connection the engine has ended it.
        let before =
            before.filter(|from| from.connection != to.connection || from.shard != to.shard);
        if let Some(from) = before {
            let name = name.into();
            post(cx, from.shard, Body::Steal { name, from, to });
        }
        before.is_some()
    }

    /// A client's sending link has ended.
    pub(super) fn leaves_place(&self, cx: &Context<'_>, client: &Client, link: LinkId, name: &str) {
        let place = place(cx, client, link);
        (self.service.registry).vacate(&client.link_key(name), place);
    }

    /// A letter about a link.
    pub(crate) fn mail(&mut self, cx: &mut Context<'_>, AmqpLetter(body): AmqpLetter) {
        match body {
            Body::Steal { name, from, to } => {
                self.with_client(cx, from.connection, |door, cx, client| {
                    door.steal_target(cx, client, from.link, &name);
                });
                // Also if it was gone.
                post(cx, to.shard, Body::Stolen { name, to });
            }
            Body::Stolen { name, to } => {
                self.with_client(cx, to.connection, |door, cx, client| {
                    let target = client.targets.get_mut(to.link);
                    let waiting = target
                        .filter(|target| target.name == name)
                        .and_then(|target| target.waiting.take());
                    if let Some(attaching) = waiting {
                        door.finish_target(cx, client, to.link, attaching);
                    }
                });
            }
            Body::LookAtNode { topic } => self.look_at_queue(cx, &topic),
            Body::NodeGone { connection, number } => self.node_gone(cx, connection, number),
            Body::EndQueue { name } => {
                self.end_dynamic_queue(cx, &name);
            }
        }
    }

    fn steal_target(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut Client,
        link: LinkId,
        name: &str,
    ) {
        self.write_accepted(cx, client);
        let target = client.targets.get_mut(link);
        let Some(target) = target.filter(|target| *target.name == *name) else {
            return;
        };
        target.is_stolen = true;
        let error = Error::new(Condition::STOLEN, "the link was attached elsewhere");
        let (engine, out) = (&mut client.engine, &mut self.out);
        // One whose attach is not answered is refused, and one that is gone needs no word.
        if engine.detach(link, true, Some(error.clone()), out).is_err() {
            let target = client.targets.remove(link);
            let _ = engine.refuse_attach(link, error, out);
            if let Some(claim) = target.and_then(|target| target.claim) {
                self.release_claim(cx, claim, true);
            }
        }
        self.handle_rest(cx, client);
    }
}

fn place(cx: &Context<'_>, client: &Client, link: LinkId) -> Place {
    Place {
        shard: cx.shard,
        connection: client.id,
        link,
    }
}

fn post(cx: &mut Context<'_>, shard: usize, body: Body) {
    (cx.outbox).post(shard, Mail::Amqp(Box::new(AmqpLetter(body))));
}
