//! Acts on the state as far as the peer allows: sessions begin, links attach, messages leave,
//! credit is given, deliveries are decided.

use std::task::{Context, Poll};

use sterna_amqp::connection::{LinkId, SessionId};
use sterna_amqp::link::AttachOptions;
use sterna_amqp::messaging::{Source, Target, TargetArchetype, descriptor};
use sterna_amqp::performatives::Role;
use sterna_amqp::transactions::{self, Coordinator};
use sterna_amqp::types::{Encoded, Multiple, Value as Wired};
use sterna_amqp::{CommandError, Framer, Lane};

use super::Driver;
use super::state::{Decision, DriverLink, Kind};
use super::wire::{Closing, Wire};
use crate::amqp::Error;
use crate::amqp::options::{ReceiverOptions, SenderOptions};
use crate::amqp::value::Value;
use crate::transport::quic::CONTROL_PRIORITY;

impl Wire {
    /// Does all work that is due.
    pub(super) fn pump(&mut self, driver: &mut Driver, cx: &mut Context<'_>) {
        if self.closing != Closing::No {
            self.pump_close();
            return;
        }
        for done in std::mem::take(&mut driver.path_requests) {
            let _ = done.send(
                self.path()
                    .ok_or(Error::Invalid("there is no QUIC connection")),
            );
        }
        self.begin_sessions(driver, cx);
        self.attach_links(driver);
        self.tell_decisions(driver);
        for key in driver.active.clone() {
            self.send_from(driver, key);
        }
        for key in std::mem::take(&mut driver.thirsty) {
            self.give_credit(driver, key);
        }
        self.detach_links(driver);
        self.end_sessions(driver);
        if driver.closing.is_some() && !driver.may_still_send() {
            self.begin_close();
        }
    }

    // ---- Ending ----------------------------------------------------------------------------

    /// The application wants to end. Sessions on streams of their own end first, so that the close
    /// on the control stream does not overtake their data.
    fn begin_close(&mut self) {
        self.closing = Closing::Sessions;
        if self.is_open {
            let sessions: Vec<SessionId> = (0..=self.engine.limits().channel_max)
                .map(SessionId)
                .filter(|id| matches!(self.engine.lane_of(*id), Some(lane) if !lane.is_control()))
                .collect();
            for session in sessions {
                let _ = self.engine.end(session, None, &mut self.carrier.lanes);
            }
        }
        self.pump_close();
    }

    fn pump_close(&mut self) {
        if self.closing != Closing::Sessions {
            return;
        }
        let waits = self.carrier.lanes.0.iter().skip(1).any(|io| !io.ended);
        if waits && self.is_open {
            return;
        }
        // Before the server's open there is nothing to close in order.
        if self.engine.close(None, &mut self.carrier.lanes).is_ok() || self.engine.is_closed() {
            self.closing = Closing::Connection;
        }
    }

    fn path(&self) -> Option<crate::path::PathStatistics> {
        let mut path = self.carrier.quic.as_ref()?.statistics();
        path.streams = self.carrier.lanes.0.len() as u64;
        Some(path)
    }

    // ---- Sessions --------------------------------------------------------------------------

    fn begin_sessions(&mut self, driver: &mut Driver, cx: &mut Context<'_>) {
        while let Some(key) = driver.unbegun.first().copied() {
            // Before the peer's open there is one session (section 2.4.1).
            if !self.open_sent || (self.begun_early && !self.is_open) {
                return;
            }
            let Some(lane) = self.lane(cx) else { return };
            match self.engine.begin(lane, &mut self.carrier.lanes) {
                Ok(id) => {
                    self.spare = None;
                    self.begun_early = true;
                    self.session_lanes.insert(id, lane);
                    driver.unbegun.remove(&key);
                    driver.session_keys.insert(id, key);
                    if let Some(session) = driver.sessions.get_mut(&key) {
                        session.id = Some(id);
                        session.end_sent = false;
                    }
                }
                Err(error) => driver.end_session(key, &error.into()),
            }
        }
    }

    /// The lane for another session: the control stream if it has none yet, else over QUIC a stream
    /// of its own. A connection with one session needs one stream. On one stream, the close cannot
    /// overtake earlier data and waits for no answer.
    fn lane(&mut self, cx: &mut Context<'_>) -> Option<Lane> {
        if self.spare.is_some() {
            return self.spare;
        }
        let is_taken = self.session_lanes.values().any(|lane| lane.is_control());
        if !is_taken || self.carrier.quic.is_none() {
            return Some(Lane::CONTROL);
        }
        // As the control stream, which has a session too.
        match self
            .carrier
            .poll_open(CONTROL_PRIORITY, Framer::default(), cx)
        {
            Poll::Ready(id) => {
                self.spare = id.map(Lane);
                self.spare
            }
            // A server without room for another stream serves the session on the control stream.
            Poll::Pending => self.is_open.then_some(Lane::CONTROL),
        }
    }

    fn end_sessions(&mut self, driver: &mut Driver) {
        for key in driver.ending.clone() {
            let Some(session) = driver.sessions.get_mut(&key) else {
                driver.ending.remove(&key);
                continue;
            };
            if session.end_sent {
                continue;
            }
            match session.id {
                // It was never begun.
                None => driver.end_session(key, &Error::Ended),
                Some(id) => {
                    session.end_sent = true;
                    if self.engine.end(id, None, &mut self.carrier.lanes).is_err() {
                        driver.end_session(key, &Error::Ended);
                    }
                }
            }
        }
    }

    // ---- Links -----------------------------------------------------------------------------

    fn attach_links(&mut self, driver: &mut Driver) {
        for key in driver.unattached.clone() {
            let Some(link) = driver.links.get_mut(&key) else {
                driver.unattached.remove(&key);
                continue;
            };
            let session = driver.sessions.get(&link.session);
            let Some(session) = session.filter(|one| !one.end_sent).and_then(|one| one.id) else {
                continue;
            };
            match self.attach(session, link) {
                Ok(id) => {
                    link.id = Some(id);
                    link.attached_with.clone_from(&link.unsettled);
                    driver.link_keys.insert(id, key);
                    driver.unattached.remove(&key);
                    match &link.kind {
                        Kind::Sender(_) => driver.active.insert(key),
                        Kind::Receiver(_) => driver.thirsty.insert(key),
                    };
                }
                // The answer to an earlier detach or end is still to come, or the server's open that
                // allows larger frames.
                Err(Error::Command(
                    CommandError::State | CommandError::NoSession | CommandError::NotOpen,
                )) => {}
                Err(Error::Command(CommandError::FrameTooLarge)) if !self.is_open => {}
                Err(error) => driver.end_link(key, &error),
            }
        }
    }

    fn attach(&mut self, session: SessionId, link: &DriverLink) -> Result<LinkId, Error> {
        let recover = link.attached > 0;
        match &link.kind {
            Kind::Sender(sender) => {
                let options = &sender.options;
                let capabilities = texts(&options.capabilities);
                let target = if sender.coordinator {
                    TargetArchetype::Coordinator(Coordinator {
                        capabilities: Multiple::Slice(&[
                            transactions::capability::LOCAL_TRANSACTIONS,
                        ]),
                    })
                } else {
                    TargetArchetype::Target(target(options, &capabilities))
                };
                let attach = AttachOptions {
                    snd_settle_mode: options.sender_settles,
                    rcv_settle_mode: options.receiver_settles,
                    source: Some(Source::new(&link.name)),
                    target: Some(target),
                    unsettled: &link.unsettled,
                    recover,
                    ..AttachOptions::default()
                };
                let id = self.engine.attach(
                    session,
                    &link.name,
                    Role::Sender,
                    &attach,
                    &mut self.carrier.lanes,
                )?;
                if self.credit > 0 && !sender.coordinator && link.unsettled.is_empty() {
                    self.engine.assume_credit(id, self.credit)?;
                }
                Ok(id)
            }
            Kind::Receiver(receiver) => {
                let options = &receiver.options;
                let capabilities = texts(&options.capabilities);
                let filters = filters(options)?;
                let filter = match filters.as_ref().map(Encoded::value) {
                    Some(Wired::Map(map)) => Some(map),
                    _ => None,
                };
                let source = Source {
                    address: options.address.as_deref().map(Wired::String),
                    durable: options.durability,
                    expiry_policy: options.expiry_policy,
                    timeout: options.timeout_s,
                    dynamic: options.dynamic,
                    distribution_mode: options.distribution_mode,
                    filter,
                    outcomes: Multiple::Slice(&[
                        "amqp:accepted:list",
                        "amqp:rejected:list",
                        "amqp:released:list",
                        "amqp:modified:list",
                    ]),
                    capabilities: multiple(&capabilities),
                    ..Source::default()
                };
                let target = TargetArchetype::Target(Target::new(&link.name));
                let attach = AttachOptions {
                    snd_settle_mode: options.sender_settles,
                    rcv_settle_mode: options.receiver_settles,
                    source: Some(source),
                    target: Some(target),
                    max_message_size: options.max_message_bytes,
                    unsettled: &link.unsettled,
                    recover,
                    ..AttachOptions::default()
                };
                Ok(self.engine.attach(
                    session,
                    &link.name,
                    Role::Receiver,
                    &attach,
                    &mut self.carrier.lanes,
                )?)
            }
        }
    }

    fn detach_links(&mut self, driver: &mut Driver) {
        for key in driver.leaving.clone() {
            let Some(link) = driver.links.get_mut(&key) else {
                driver.leaving.remove(&key);
                continue;
            };
            let Some((closed, done)) = &link.detaching else {
                continue;
            };
            let (closed, is_abandoned) = (*closed, done.is_none());
            if link.detach_sent {
                continue;
            }
            // Messages that were handed over before are sent first, if the peer allows. A dropped
            // sender lasts until all is settled.
            if let Kind::Sender(sender) = &link.kind {
                let leaves = !sender.waiting.is_empty() && driver.active.contains(&key);
                let is_owed = !sender.waiting.is_empty() || !sender.sent.is_empty();
                if sender.sending.is_some()
                    || (link.id.is_some() && leaves)
                    || (is_abandoned && is_owed)
                {
                    continue;
                }
            }
            match link.id {
                None if link.attached == 0 || !closed => driver.end_link(key, &Error::Ended),
                // A link that is suspended is attached once more to be closed.
                None => {}
                Some(id) => {
                    link.detach_sent = true;
                    if self
                        .engine
                        .detach(id, closed, None, &mut self.carrier.lanes)
                        .is_err()
                    {
                        driver.end_link(key, &Error::Ended);
                    }
                }
            }
        }
    }

    // ---- Receiving -------------------------------------------------------------------------

    fn give_credit(&mut self, driver: &mut Driver, key: u64) {
        let Some(link) = driver.links.get_mut(&key) else {
            return;
        };
        let (Some(id), false, Kind::Receiver(receiver)) =
            (link.id, link.detach_sent, &mut link.kind)
        else {
            return;
        };
        let now = self.engine.credit(id);
        let drain = receiver.drain.is_some();
        // It is asked for once, and with a window it is not made longer by more credit.
        let asks = drain && !receiver.drain_sent;
        let wanted = match receiver.window() {
            Some(_) if drain && !asks => return,
            Some(window) => {
                let wanted = window.saturating_sub(receiver.outstanding);
                // Half a window at a time, so that not every message costs a flow.
                if !asks && wanted.saturating_sub(now) < window.div_ceil(2).max(1) {
                    return;
                }
                wanted
            }
            None if receiver.granted == now && !asks => return,
            None => receiver.granted,
        };
        let told = self
            .engine
            .set_credit(id, wanted, drain, false, &mut self.carrier.lanes);
        receiver.drain_sent = drain && told.is_ok();
    }

    /// Tells what the application has decided, neighbours together.
    fn tell_decisions(&mut self, driver: &mut Driver) {
        let mut decisions = std::mem::take(&mut driver.decisions).into_iter().peekable();
        while let Some(first) = decisions.next() {
            let Some(id) = driver.links.get(&first.link).and_then(|link| link.id) else {
                let _ = first.done.send(Err(Error::Stale));
                continue;
            };
            let mut run = vec![first];
            while let Some(next) = decisions.next_if(|next| follows(run.last(), next)) {
                run.push(next);
            }
            let (first, last) = (run[0].delivery_id, run[run.len() - 1].delivery_id);
            let state = run[0].state.view();
            let second = run[0].second;
            let told = self.engine.dispose(
                id.session,
                (first, last),
                Some(&state),
                !second,
                &mut self.carrier.lanes,
            );
            for decision in run {
                match told {
                    Err(error) => {
                        let _ = decision.done.send(Err(error.into()));
                    }
                    Ok(()) if second => {
                        if let Some(receiver) = driver.receiver(decision.link) {
                            let known = (decision.tag, decision.done);
                            receiver.decided.insert(decision.delivery_id, known);
                        }
                    }
                    Ok(()) => {
                        let _ = decision.done.send(Ok(()));
                    }
                }
            }
        }
    }
}

impl Driver {
    /// Whether messages that were handed over before the end can still go out.
    fn may_still_send(&self) -> bool {
        let busy = |link: &DriverLink| match &link.kind {
            Kind::Sender(sender) => sender.sending.is_some(),
            Kind::Receiver(_) => false,
        };
        !self.active.is_empty() || self.links.values().any(busy)
    }
}

/// Whether a decision can be told together with the one before it.
fn follows(last: Option<&Decision>, next: &Decision) -> bool {
    last.is_some_and(|last| {
        last.link == next.link
            && last.delivery_id.wrapping_add(1) == next.delivery_id
            && last.second == next.second
            && last.state == next.state
    })
}

fn texts(capabilities: &[String]) -> Vec<&str> {
    capabilities.iter().map(String::as_str).collect()
}

const fn multiple<'a>(symbols: &'a [&'a str]) -> Multiple<'a> {
    if symbols.is_empty() {
        Multiple::None
    } else {
        Multiple::Slice(symbols)
    }
}

fn target<'a>(options: &'a SenderOptions, capabilities: &'a [&'a str]) -> Target<'a> {
    Target {
        address: options.address.as_deref().map(Wired::String),
        durable: options.durability,
        expiry_policy: options.expiry_policy,
        timeout: options.timeout_s,
        capabilities: multiple(capabilities),
        ..Target::default()
    }
}

/// The filters of a receiver, by name.
fn filters(options: &ReceiverOptions) -> Result<Option<Encoded>, Error> {
    let described = |(code, _): (u64, &str), value: Value| {
        Value::Described(Box::new((Value::Ulong(code), value)))
    };
    let mut filters = Vec::new();
    if let Some(selector) = &options.selector {
        let filter = described(descriptor::SELECTOR, Value::from(selector.as_str()));
        filters.push((Value::symbol("jms-selector"), filter));
    }
    if options.no_local {
        let filter = described(descriptor::NO_LOCAL, Value::List(Vec::new()));
        filters.push((Value::symbol("no-local"), filter));
    }
    for (name, filter) in &options.filters {
        filters.push((Value::symbol(name.as_str()), filter.clone()));
    }
    if filters.is_empty() {
        return Ok(None);
    }
    Value::Map(filters).encoded().map(Some)
}
