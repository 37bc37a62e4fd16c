//! A shard's report: its counts, for `$SYS`, metrics and administrators.

use sterna_broker::{Message, MessageHeader, Publication};
use sterna_net::Network;

use super::Shard;
use crate::admin;
use crate::mail::admin::{Answer, Ask, Body, Query};
use crate::mail::{AdminLetter, Mail};
use crate::metrics::Figures;
use crate::sys::Counts;

impl Shard {
    /// The shard's counts, for `$SYS`.
    fn counts(&self) -> Counts {
        let counters = self.broker.counters();
        let mut door = self.mqtt.counts();
        door.add(&self.amqp.counts());
        door.add(&self.http.counts());
        let (links, amqp_clients) = self.amqp.links_and_clients();
        let (subscriptions, http_clients) = self.http.subscriptions_and_clients();
        Counts {
            // Each link on which an AMQP client receives, and each subscription of HTTP, is a session of its own.
            // So is, in a cluster, a link on which a client sends exactly once.
            clients_connected: (counters.sessions_connected + (amqp_clients + http_clients) as u64)
                .saturating_sub((links + subscriptions) as u64),
            sessions_away: counters
                .sessions
                .saturating_sub(counters.sessions_connected),
            queues: self.amqp.queues(),
            clients_expired: counters.sessions_expired,
            sockets: self.sys.sockets,
            publish_dropped: self.meters.drops.table(counters.refused_messages).total(),
            queued_messages: counters.stored_messages + counters.logged_messages,
            queued_bytes: counters.stored_bytes,
            subscriptions: counters.subscriptions,
            shared_subscriptions: counters.shared_subscriptions,
            ..door
        }
    }

    /// Answers a question of the shard `from`.
    pub(super) fn answer(&mut self, net: &mut dyn Network, from: usize, number: u64, ask: Ask) {
        let answer = match ask {
            Ask::Presence => Answer::Present,
            Ask::Scrape => {
                self.survey.wanted(net.now_ms());
                Answer::Figures(Box::new(self.figures()))
            }
            Ask::Figures => Answer::Figures(Box::new(self.figures())),
            Ask::Query(query) => {
                let doors = &mut self.doors(net);
                let mut floor = admin::Floor {
                    mqtt: doors.mqtt,
                    amqp: doors.amqp,
                    http: doors.http,
                    cx: &mut doors.cx,
                    listeners: doors.admin.service.sources.listeners(),
                    node: doors.admin.service.sources.node(),
                };
                match floor.answer(query) {
                    Ok(found) => Answer::Found(found),
                    Err(query) => {
                        self.unanswered.push((from, number, query));
                        return;
                    }
                }
            }
        };
        let letter = AdminLetter(Body::Answer {
            number,
            shard: self.number,
            answer,
        });
        self.outbox.post(from, Mail::Admin(Box::new(letter)));
    }

    /// Whether it is ending sessions of a user, and goes on in the next turn.
    pub(super) fn has_more_to_end(&self) -> bool {
        let is_ending = |query: &Query| matches!(query, Query::EndSessionsOf { append: None, .. });
        self.unanswered.iter().any(|(.., query)| is_ending(query))
    }

    /// Answers the queries that wait for the store.
    pub(super) fn answer_anew(&mut self, net: &mut dyn Network) {
        for (from, number, query) in std::mem::take(&mut self.unanswered) {
            self.answer(net, from, number, Ask::Query(query));
        }
    }

    fn figures(&self) -> Figures {
        let broker = self.broker.counters();
        Figures {
            doors: [self.mqtt.counts(), self.amqp.counts(), self.http.counts()],
            sys: self.counts(),
            broker,
            drops: self.meters.drops.table(broker.refused_messages),
            letters: self.outbox.backlog(self.number) as u64,
            holding: self.holding.figures(),
        }
    }

    pub(super) fn report_sys(&mut self, now_ms: u64) {
        let counts = self.counts();
        self.sys.board.post(self.number, counts);
        let Some(reporter) = &mut self.sys.reporter else {
            return;
        };
        let (messages, bytes) = self.sys.retained.retained_of_clients();
        let total = self.sys.board.total();
        for (topic, value) in reporter.report(now_ms, &total, (messages as u64, bytes as u64)) {
            let header = MessageHeader {
                retain: true,
                published_ms: now_ms,
                ..MessageHeader::default()
            };
            let topic = format!("$SYS/broker/{topic}");
            if let Ok(message) = Message::copy(&topic, &[], value.as_bytes(), header) {
                self.broker.publish(now_ms, Publication::new(None, message));
            }
        }
    }
}
