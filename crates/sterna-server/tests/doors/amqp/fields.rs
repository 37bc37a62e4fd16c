//! Each field of an answer to `attach` and `open`: it says what is done, or it is left out.
//!
//! The tables have a row for each field of the types. A field that is added has none, and does not compile.

use sterna_amqp::connection::{LinkId, SessionId};
use sterna_amqp::link::AttachOptions;
use sterna_amqp::messaging::capability::DELAYED_DELIVERY;
use sterna_amqp::messaging::{
    DeliveryState, DistributionMode, LifetimePolicy, Outcome, Source, Target, TargetArchetype,
    TerminusDurability, TerminusExpiryPolicy, capability,
};
use sterna_amqp::performatives::{Attach, Open, ReceiverSettleMode, Role, SenderSettleMode};
use sterna_amqp::types::{Composite as _, Encoded, MapWriter, Multiple, Symbol, Value};
use sterna_server::config::Config;

use super::links::{map, selector};
use crate::amqp_client::{Client, Happened, Start, message_to};
use crate::fixture::Broker;

/// Pairs each field of a type with its check. Without a check for one, the pattern is not whole.
macro_rules! table {
    ($type:ident: $($field:ident => $check:expr),* $(,)?) => {{
        #[allow(dead_code, reason = "it only has to compile")]
        fn whole(one: $type<'_>) {
            let $type { $($field: _),* } = one;
        }
        [$((stringify!($field), $check as fn())),*]
    }};
}

fn run(rows: &[(&str, fn())]) {
    for (field, check) in rows {
        println!("{field}"); // the row that fails is the last one
        check();
    }
}

/// A client with a session.
struct One {
    broker: Broker,
    client: Client,
    session: SessionId,
}

impl One {
    fn new() -> Self {
        Self::with(&Config::default())
    }

    fn with(config: &Config) -> Self {
        let mut broker = Broker::with(config, 1);
        let mut client = Client::connect(&mut broker, "c");
        let session = client.begin(&mut broker);
        Self {
            broker,
            client,
            session,
        }
    }

    fn attach(&mut self, name: &str, role: Role, options: &AttachOptions<'_>) -> LinkId {
        let (client, session) = (&mut self.client, self.session);
        client.attach(&mut self.broker, session, name, role, options)
    }

    fn source(&mut self, name: &str, source: Source<'_>) -> LinkId {
        let options = AttachOptions {
            source: Some(source),
            target: Some(TargetArchetype::Target(Target::default())),
            ..AttachOptions::default()
        };
        let link = self.attach(name, Role::Receiver, &options);
        self.client.credit(&mut self.broker, link, 10);
        link
    }

    fn target(&mut self, name: &str, target: Target<'_>) -> LinkId {
        let options = AttachOptions {
            source: Some(Source::default()),
            target: Some(TargetArchetype::Target(target)),
            ..AttachOptions::default()
        };
        self.attach(name, Role::Sender, &options)
    }

    fn send(&mut self, address: &str, text: &str) {
        let link = self.client.anonymous_sender(&mut self.broker, self.session);
        let message = message_to(address, text);
        let client = &mut self.client;
        client.send_message(&mut self.broker, link, 1, &message, false, None);
        client.detach(&mut self.broker, link, true);
    }

    fn came(&mut self) -> Vec<String> {
        self.client.turn(&mut self.broker);
        self.client.texts()
    }

    fn answer<R>(&self, link: LinkId, look: impl FnOnce(&Attach<'_>) -> R) -> R {
        let whole = &self.client.answers[&link].attach;
        look(&Attach::from_value(whole.value()).expect("an attach"))
    }

    fn answered_source<R>(&self, link: LinkId, look: impl FnOnce(&Source<'_>) -> R) -> R {
        self.answer(link, |attach| {
            look(attach.source.as_ref().expect("a source"))
        })
    }

    fn answered_target<R>(&self, link: LinkId, look: impl FnOnce(&Target<'_>) -> R) -> R {
        self.answer(link, |attach| {
            let target = attach.target.as_ref().and_then(TargetArchetype::node);
            look(target.expect("a target"))
        })
    }

    fn sessions(&self) -> usize {
        self.broker.sessions(0).0.len()
    }
}

fn names(of: Multiple<'_>) -> Vec<String> {
    of.iter().map(str::to_owned).collect()
}

/// A map that asks for a lifetime, and for something that nobody knows.
fn properties() -> Encoded {
    Encoded::build(|out| {
        let mut map = MapWriter::new(out);
        let entry = map.entry(&Value::Symbol(LifetimePolicy::PROPERTY));
        entry.extend_from_slice(LifetimePolicy::DeleteOnNoLinks.encoded().bytes());
        map.push(&Value::Symbol("color"), &Value::String("red"));
        map.finish();
    })
}

#[test]
fn each_field_of_an_attach_acts_or_is_left_out() {
    run(&table! { Attach:
        name => || {
            let mut one = One::new();
            let link = one.source("a name", Source::new("a"));
            assert_eq!(one.answer(link, |attach| attach.name.to_owned()), "a name");
            // It is the same link elsewhere.
            let mut other = Client::connect(&mut one.broker, "c");
            let session = other.begin(&mut one.broker);
            other.receiver(&mut one.broker, session, "a name", Source::new("a"), 1);
            one.client.turn(&mut one.broker);
            assert_eq!(one.client.condition().as_deref(), Some("amqp:link:stolen"));
        },
        handle => || {
            let mut one = One::new();
            let links = ["x", "y"].map(|name| one.source(name, Source::new(name)));
            one.send("y", "m");
            one.client.turn(&mut one.broker);
            assert_eq!(one.client.received[0].link, links[1]);
        },
        role => || {
            let mut one = One::new();
            let link = one.source("r", Source::new("a"));
            assert_eq!(one.answer(link, |attach| attach.role), Role::Sender);
            let link = one.target("s", Target::new("a"));
            assert_eq!(one.answer(link, |attach| attach.role), Role::Receiver);
        },
        snd_settle_mode => || {
            for mode in [SenderSettleMode::Settled, SenderSettleMode::Unsettled] {
                let mut one = One::new();
                let options = AttachOptions {
                    snd_settle_mode: mode,
                    source: Some(Source::new("a")),
                    target: Some(TargetArchetype::Target(Target::default())),
                    ..AttachOptions::default()
                };
                let link = one.attach("r", Role::Receiver, &options);
                one.client.credit(&mut one.broker, link, 1);
                assert_eq!(one.answer(link, |attach| attach.snd_settle_mode), mode);
                one.send("a", "m");
                one.client.turn(&mut one.broker);
                let is_settled = mode == SenderSettleMode::Settled;
                assert_eq!(one.client.received[0].settled, is_settled);
            }
        },
        rcv_settle_mode => || {
            for mode in [ReceiverSettleMode::First, ReceiverSettleMode::Second] {
                let mut one = One::new();
                let options = AttachOptions {
                    rcv_settle_mode: mode,
                    source: Some(Source::default()),
                    target: Some(TargetArchetype::Target(Target::new("a"))),
                    ..AttachOptions::default()
                };
                let link = one.attach("s", Role::Sender, &options);
                assert_eq!(one.answer(link, |attach| attach.rcv_settle_mode), mode);
                one.client.send(&mut one.broker, link, 1, "m");
                let settled = one.client.happened.iter().find_map(|one| match one {
                    Happened::Disposed { settled, .. } => Some(*settled),
                    _ => None,
                });
                assert_eq!(settled, Some(mode == ReceiverSettleMode::First));
            }
        },
        source => || {
            let mut one = One::new();
            let link = one.target("s", Target::new("a"));
            assert!(one.answer(link, |attach| attach.source.is_some()));
        },
        target => || {
            let mut one = One::new();
            let link = one.source("r", Source::new("a"));
            assert!(one.answer(link, |attach| attach.target.is_some()));
        },
        unsettled => || {
            let mut one = One::new();
            for (name, recover) in [("x", false), ("y", true)] {
                let options = AttachOptions {
                    recover,
                    source: Some(Source::default()),
                    target: Some(TargetArchetype::Target(Target::new("a"))),
                    ..AttachOptions::default()
                };
                let link = one.attach(name, Role::Sender, &options);
                let is_told = one.answer(link, |attach| attach.unsettled.is_some());
                assert_eq!(is_told, recover);
            }
        },
        incomplete_unsettled => || {
            let mut one = One::new();
            let link = one.source("r", Source::new("a"));
            assert!(!one.answer(link, |attach| attach.incomplete_unsettled));
        },
        initial_delivery_count => || {
            let mut one = One::new();
            let link = one.source("r", Source::new("a"));
            let count = |attach: &Attach<'_>| attach.initial_delivery_count;
            assert_eq!(one.answer(link, count), Some(0));
            let link = one.target("s", Target::new("a"));
            assert_eq!(one.answer(link, count), None, "a receiver has none");
        },
        max_message_size => || {
            let mut config = Config::default();
            config.amqp.maximum_message_bytes = 100;
            let mut one = One::with(&config);
            let most = |attach: &Attach<'_>| attach.max_message_size;
            let link = one.source("r", Source::new("a"));
            assert_eq!(one.answer(link, most), None, "a sender takes none");
            let mut broker = Broker::with(&config, 1);
            let limits = sterna_amqp::Limits::default();
            let mut client = Client::start(&mut broker, Start { limits, ..Start::new("d") });
            let session = client.begin(&mut broker);
            let link = client.sender(&mut broker, session, "a");
            let whole = client.answers[&link].attach.clone();
            let attach = Attach::from_value(whole.value()).expect("an attach");
            assert_eq!(attach.max_message_size, Some(100));
            let tag = 1_u64.to_be_bytes();
            let transfer = sterna_amqp::link::OutgoingTransfer::new(&tag, 1);
            let sent = client.engine.transfer(link, &transfer, &[&[0; 200]], false, &mut client.out);
            assert!(sent.is_err(), "the client keeps to it");
        },
        offered_capabilities => || {
            left_out(|attach| attach.offered_capabilities.is_empty());
            // A topic delivers at once. The anonymous node has both.
            for (seconds, target, offers) in [
                (60, Target::new("queue/q"), true),
                (60, Target::default(), true),
                (60, Target::new("a"), false),
                (0, Target::new("queue/q"), false),
            ] {
                let mut config = Config::default();
                config.amqp.queue_maximum_delay_s = seconds;
                let mut one = One::with(&config);
                let link = one.target("s", target);
                let is_offered = |attach: &Attach<'_>| attach.offered_capabilities.contains(DELAYED_DELIVERY);
                assert_eq!(one.answer(link, is_offered), offers);
            }
        },
        desired_capabilities => || left_out(|attach| attach.desired_capabilities.is_empty()),
        properties => || left_out(|attach| attach.properties.is_none()),
    });
}

/// A field of an attach for which nothing is done.
fn left_out(is_absent: fn(&Attach<'_>) -> bool) {
    let (mut one, asked) = (One::new(), properties());
    for role in [Role::Sender, Role::Receiver] {
        let options = AttachOptions {
            source: Some(Source::new("a")),
            target: Some(TargetArchetype::Target(Target::new("a"))),
            offered_capabilities: Multiple::One(Symbol("flying")),
            desired_capabilities: Multiple::One(Symbol("flying")),
            properties: map(&asked),
            ..AttachOptions::default()
        };
        let link = one.attach("l", role, &options);
        assert!(one.answer(link, is_absent), "{role:?}");
    }
}

/// Outcomes of which each is what its name says.
fn comes_again(outcome: &DeliveryState<'_>) -> bool {
    let mut one = One::new();
    let link = one.source("r", Source::new("queue/q"));
    one.send("queue/q", "m");
    one.client.turn(&mut one.broker);
    let id = one.client.received[0].id;
    one.client.received.clear();
    let session = one.session;
    (one.client).dispose(&mut one.broker, session, (id, id), outcome, true);
    one.client.credit(&mut one.broker, link, 10);
    one.came() == ["m"]
}

#[test]
fn each_field_of_a_source_acts_or_is_left_out() {
    run(&table! { Source:
        address => || {
            let mut one = One::new();
            let link = one.source("r", Source::new("a/+"));
            let address = one.answered_source(link, |source| source.address().map(str::to_owned));
            assert_eq!(address.as_deref(), Some("a/+"));
            one.send("a/b", "m");
            assert_eq!(one.came(), ["m"]);
        },
        durable => || {
            // Nothing is kept without a store, whatever is asked. With one: `durability/amqp.rs`.
            let mut one = One::new();
            let source = Source {
                durable: TerminusDurability::UnsettledState,
                expiry_policy: TerminusExpiryPolicy::Never,
                ..Source::new("a")
            };
            let link = one.source("r", source);
            let durable = one.answered_source(link, |source| source.durable);
            assert_eq!(durable, TerminusDurability::None);
        },
        expiry_policy => || {
            for (policy, left) in [
                (TerminusExpiryPolicy::LinkDetach, [0, 0, 0]),
                (TerminusExpiryPolicy::SessionEnd, [1, 0, 0]),
                (TerminusExpiryPolicy::ConnectionClose, [1, 1, 0]),
                (TerminusExpiryPolicy::Never, [1, 1, 1]),
            ] {
                let mut one = One::new();
                let source = Source {
                    expiry_policy: policy,
                    ..Source::new("a")
                };
                let link = one.source("r", source);
                assert_eq!(one.answered_source(link, |source| source.expiry_policy), policy);
                one.client.detach(&mut one.broker, link, false);
                let detached = one.sessions();
                let (engine, out) = (&mut one.client.engine, &mut one.client.out);
                engine.end(one.session, None, out).expect("a session");
                one.client.turn(&mut one.broker);
                let ended = one.sessions();
                let (engine, out) = (&mut one.client.engine, &mut one.client.out);
                engine.close(None, out).expect("a connection");
                one.client.turn(&mut one.broker);
                assert_eq!([detached, ended, one.sessions()], left, "{policy:?}");
            }
        },
        timeout => || {
            for policy in [
                TerminusExpiryPolicy::LinkDetach,
                TerminusExpiryPolicy::SessionEnd,
                TerminusExpiryPolicy::ConnectionClose,
            ] {
                let mut config = Config::default();
                config.amqp.maximum_source_timeout_s = 20;
                for (asked, answered) in [(10, 10), (30, 20)] {
                    let mut one = One::with(&config);
                    let source = Source {
                        expiry_policy: policy,
                        timeout: asked,
                        ..Source::new("a")
                    };
                    let link = one.source("r", source);
                    assert_eq!(one.answered_source(link, |source| source.timeout), answered);
                    one.broker.cut(one.client.peer);
                    one.broker.advance(u64::from(answered) * 1000 - 1);
                    assert_eq!(one.sessions(), 1, "{policy:?}");
                    one.broker.advance(2_000);
                    assert_eq!(one.sessions(), 0, "{policy:?}");
                }
            }
        },
        dynamic => || {
            let mut one = One::new();
            let source = Source { dynamic: true, ..Source::default() };
            let link = one.source("r", source);
            assert!(one.answered_source(link, |source| source.dynamic));
            let address = one.client.answers[&link].address.clone().expect("an address");
            one.send(&address, "m");
            assert_eq!(one.came(), ["m"]);
        },
        dynamic_node_properties => || {
            // `nodes.rs` has those of nodes that are made.
            let (mut one, asked) = (One::new(), properties());
            for dynamic in [false, true] {
                let source = Source {
                    dynamic,
                    address: (!dynamic).then_some(Value::String("a")),
                    dynamic_node_properties: map(&asked),
                    ..Source::default()
                };
                let link = one.source(if dynamic { "d" } else { "r" }, source);
                one.answered_source(link, |source| {
                    let answered = source.dynamic_node_properties;
                    assert_eq!(answered.is_some(), dynamic);
                    assert!(answered.and_then(|map| map.get("color")).is_none());
                });
            }
        },
        distribution_mode => || {
            let mode = |source: &Source<'_>| source.distribution_mode;
            for (address, asked, answered, stays) in [
                ("queue/q", DistributionMode::Move, DistributionMode::Move, false),
                ("queue/q", DistributionMode::Copy, DistributionMode::Copy, true),
                // Every receiver of a topic gets a copy.
                ("a", DistributionMode::Move, DistributionMode::Copy, true),
            ] {
                let mut one = One::new();
                let others = one.source("other", Source::new("a"));
                let sender = one.target("s", Target::new(address));
                one.client.send(&mut one.broker, sender, 1, "m");
                let source = Source {
                    distribution_mode: Some(asked),
                    ..Source::new(address)
                };
                let link = one.source("r", source);
                assert_eq!(one.answered_source(link, mode), Some(answered));
                one.client.send(&mut one.broker, sender, 2, "n");
                one.client.turn(&mut one.broker);
                let (broker, client) = (&mut one.broker, &mut one.client);
                client.accept_all(broker);
                client.detach(broker, link, true);
                one.send("a", "still here");
                let again = if address == "a" { others } else {
                    one.source("again", Source::new(address))
                };
                one.client.turn(&mut one.broker);
                let came = one.client.received.iter().any(|one| one.link == again);
                assert_eq!(came, stays, "{address} {asked:?}");
            }
        },
        filter => || {
            let mut one = One::new();
            let known = selector("color = 'red'");
            let link = one.source("r", Source { filter: map(&known), ..Source::new("a") });
            assert_eq!(one.client.answers[&link].filters, 1);
            one.send("a", "m");
            assert_eq!(one.came(), [""; 0], "it does not match");
            let unknown = properties();
            let link = one.source("u", Source { filter: map(&unknown), ..Source::new("a") });
            assert_eq!(one.client.answers[&link].filters, 0);
            one.send("a", "m");
            assert_eq!(one.came(), ["m"]);
        },
        default_outcome => || {
            // `nodes.rs` has what each of them does.
            let mut one = One::new();
            let source = Source {
                default_outcome: Some(Outcome::Released),
                ..Source::new("queue/q")
            };
            let link = one.source("r", source);
            let outcome = one.answered_source(link, |source| {
                source.default_outcome.as_ref().map(Outcome::symbol)
            });
            assert_eq!(outcome, Some(Outcome::Released.symbol()));
            let link = one.source("n", Source::new("queue/q"));
            assert!(one.answered_source(link, |source| source.default_outcome.is_none()));
        },
        outcomes => || {
            let mut one = One::new();
            let asked = ["amqp:accepted:list", "amqp:unheard-of:list"];
            let source = Source {
                outcomes: Multiple::Slice(&asked),
                ..Source::new("queue/q")
            };
            let link = one.source("r", source);
            let answered = one.answered_source(link, |source| names(source.outcomes));
            let modified = Outcome::Modified(sterna_amqp::messaging::Modified {
                delivery_failed: false,
                undeliverable_here: false,
                message_annotations: None,
            });
            let rejected = Outcome::Rejected(sterna_amqp::messaging::Rejected { error: None });
            let each = [
                (Outcome::Accepted, false),
                (rejected, false),
                (Outcome::Released, true),
                (modified, true),
            ];
            let known: Vec<_> = each.iter().map(|(outcome, _)| outcome.symbol()).collect();
            assert_eq!(answered, known);
            for (outcome, again) in each {
                let symbol = outcome.symbol();
                assert_eq!(comes_again(&DeliveryState::Outcome(outcome)), again, "{symbol}");
            }
        },
        capabilities => || {
            let mut one = One::new();
            let asked = [capability::QUEUE, "flying", capability::SHARED];
            let source = Source {
                capabilities: Multiple::Slice(&asked),
                ..Source::new("q")
            };
            let link = one.source("r", source);
            let answered = one.answered_source(link, |source| names(source.capabilities));
            assert_eq!(answered, ["queue"], "a queue is shared without asking");
            one.send("queue/q", "m");
            assert_eq!(one.came(), ["m"]);
            let asked = [capability::SHARED, capability::GLOBAL, "flying"];
            let source = Source {
                capabilities: Multiple::Slice(&asked),
                ..Source::new("a")
            };
            for name in ["shared|1", "shared|2"] {
                let link = one.source(name, source.clone());
                let answered = one.answered_source(link, |source| names(source.capabilities));
                assert_eq!(answered, ["shared", "global"]);
            }
            one.send("a", "m");
            assert_eq!(one.came(), ["m"], "one of both");
        },
    });
}

#[test]
fn each_field_of_a_target_acts_or_is_left_out() {
    run(&table! { Target:
        address => || {
            let mut one = One::new();
            one.source("r", Source::new("a"));
            let link = one.target("s", Target::new("a"));
            let address = one.answered_target(link, |target| target.address().map(str::to_owned));
            assert_eq!(address.as_deref(), Some("a"));
            one.client.send(&mut one.broker, link, 1, "m");
            assert_eq!(one.came(), ["m"]);
        },
        durable => || {
            // Nothing is kept without a store, whatever is asked. With one: `durability/amqp_exact.rs`.
            let mut one = One::new();
            let target = Target {
                durable: TerminusDurability::UnsettledState,
                ..Target::new("a")
            };
            let link = one.target("s", target);
            let durable = one.answered_target(link, |target| target.durable);
            assert_eq!(durable, TerminusDurability::None);
        },
        expiry_policy => || is_remembered(0),
        timeout => || is_remembered(1_000),
        dynamic => || {
            let mut one = One::new();
            let target = Target { dynamic: true, ..Target::default() };
            let link = one.target("s", target);
            assert!(one.answered_target(link, |target| target.dynamic));
            let address = one.client.answers[&link].address.clone().expect("an address");
            one.source("r", Source::new(&address));
            one.client.send(&mut one.broker, link, 1, "m");
            assert_eq!(one.came(), ["m"]);
        },
        dynamic_node_properties => || {
            let (mut one, asked) = (One::new(), properties());
            for dynamic in [false, true] {
                let target = Target {
                    dynamic,
                    address: (!dynamic).then_some(Value::String("a")),
                    dynamic_node_properties: map(&asked),
                    ..Target::default()
                };
                let link = one.target(if dynamic { "d" } else { "s" }, target);
                one.answered_target(link, |target| {
                    let answered = target.dynamic_node_properties;
                    assert_eq!(answered.is_some(), dynamic);
                    assert!(answered.and_then(|map| map.get("color")).is_none());
                });
            }
        },
        capabilities => || {
            let mut one = One::new();
            let asked = [capability::QUEUE, "flying", capability::SHARED];
            let target = Target {
                capabilities: Multiple::Slice(&asked),
                ..Target::new("q")
            };
            let link = one.target("s", target);
            let answered = one.answered_target(link, |target| names(target.capabilities));
            assert_eq!(answered, ["queue"]);
            one.source("r", Source::new("queue/q"));
            one.client.send(&mut one.broker, link, 1, "m");
            assert_eq!(one.came(), ["m"]);
        },
    });
}

/// Deliveries of a target that are not settled are remembered as long as the answer says, `beyond_ms` longer or not.
fn is_remembered(beyond_ms: u64) {
    for asked in [
        TerminusExpiryPolicy::SessionEnd,
        TerminusExpiryPolicy::Never,
    ] {
        let mut config = Config::default();
        config.amqp.suspended_link_timeout_s = 7;
        let mut one = One::with(&config);
        let options = AttachOptions {
            rcv_settle_mode: ReceiverSettleMode::Second,
            source: Some(Source::default()),
            target: Some(TargetArchetype::Target(Target {
                expiry_policy: asked,
                timeout: 99,
                ..Target::new("a")
            })),
            ..AttachOptions::default()
        };
        let link = one.attach("s", Role::Sender, &options);
        let expiry = one.answered_target(link, |target| (target.expiry_policy, target.timeout));
        assert_eq!(expiry, (TerminusExpiryPolicy::LinkDetach, 7));
        let message = message_to("a", "m");
        let client = &mut one.client;
        client.send_message(&mut one.broker, link, 1, &message, false, None);
        client.detach(&mut one.broker, link, false);
        one.broker.advance(7_000 - 1 + beyond_ms);
        let again = AttachOptions {
            recover: true,
            ..options
        };
        let link = one.attach("s", Role::Sender, &again);
        let told = one.answer(link, |attach| attach.unsettled.map_or(0, |map| map.len()));
        assert_eq!(told, usize::from(beyond_ms == 0), "{asked:?}");
    }
}

/// The client's open and the broker's answer to it.
fn open(config: &Config, look: impl FnOnce(&Open<'_>, &mut Broker, &mut Client)) {
    let mut broker = Broker::with(config, 1);
    let mut client = Client::start(&mut broker, Start::new("c"));
    let whole = client.open.clone().expect("an open");
    let open = Open::from_value(whole.value()).expect("an open");
    look(&open, &mut broker, &mut client);
}

#[test]
fn each_field_of_an_open_acts_or_is_left_out() {
    run(&table! { Open:
        container_id => || {
            let mut config = Config::default();
            config.amqp.container_id = "the broker".to_owned();
            open(&config, |open, _, _| assert_eq!(open.container_id, "the broker"));
        },
        hostname => || open(&Config::default(), |open, _, _| assert_eq!(open.hostname, None)),
        max_frame_size => || {
            let mut config = Config::default();
            config.amqp.maximum_frame_bytes = 1024;
            open(&config, |open, broker, client| {
                assert_eq!(open.max_frame_size, 1024);
                let mut frame = vec![0; 1025];
                frame[..8].copy_from_slice(&[0, 0, 4, 1, 2, 0, 0, 0]);
                broker.send(client.peer, &frame);
                client.read(broker);
                let condition = client.condition();
                assert_eq!(condition.as_deref(), Some("amqp:connection:framing-error"));
            });
        },
        channel_max => || {
            let mut config = Config::default();
            config.amqp.maximum_sessions_per_connection = 2;
            open(&config, |open, broker, client| {
                assert_eq!(open.channel_max, 1);
                // A begin on channel 2.
                let begin = [
                    0, 0, 0, 19, 2, 0, 0, 2, 0, 0x53, 0x11, 0xc0, 6, 4, 0x40, 0x43, 0x52, 9, 0x43,
                ];
                broker.send(client.peer, &begin);
                client.read(broker);
                assert!(client.condition().is_some() && broker.is_closed(client.peer));
            });
        },
        idle_time_out => || {
            let mut config = Config::default();
            config.amqp.idle_timeout_ms = 20_000;
            open(&config, |open, broker, client| {
                let idle_ms = open.idle_time_out.expect("a time");
                broker.advance(u64::from(idle_ms) - 1);
                assert!(!broker.is_closed(client.peer));
                broker.advance(u64::from(idle_ms) * 2);
                assert!(broker.is_closed(client.peer), "it was silent for longer than that");
            });
        },
        outgoing_locales => || open(&Config::default(), |open, _, _| {
            assert!(open.outgoing_locales.is_empty(), "all words are of en-US");
        }),
        incoming_locales => || open(&Config::default(), |open, _, _| {
            assert!(open.incoming_locales.is_empty());
        }),
        offered_capabilities => || open(&Config::default(), |open, broker, client| {
            assert_eq!(names(open.offered_capabilities), ["ANONYMOUS-RELAY", "SHARED-SUBS"]);
            let session = client.begin(broker);
            client.receiver(broker, session, "r", Source::new("a"), 10);
            let relay = client.anonymous_sender(broker, session);
            let message = message_to("a", "m");
            client.send_message(broker, relay, 1, &message, false, None);
            assert_eq!(client.texts(), ["m"]);
            // Shared subscriptions: the row of a source's capabilities.
        }),
        desired_capabilities => || open(&Config::default(), |open, _, _| {
            assert!(open.desired_capabilities.is_empty());
        }),
        properties => || open(&Config::default(), |open, broker, client| {
            let properties = open.properties.expect("a map");
            let Some(Value::Uint(credit)) = properties.get("sterna:initial-credit") else {
                panic!("no credit is announced");
            };
            let session = client.begin(broker);
            let link = client.sender(broker, session, "a");
            assert!(client.engine.credit(link) >= credit, "the first credit of a link");
        }),
    });
}
