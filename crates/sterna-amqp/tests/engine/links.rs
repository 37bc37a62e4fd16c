//! Sessions and links between both ends, when everything goes well.

use sterna_amqp::link::{AttachOptions, OutgoingTransfer, Recovery};
use sterna_amqp::messaging::{DeliveryState, Outcome};
use sterna_amqp::performatives::{Error, ReceiverSettleMode, Role, SenderSettleMode};
use sterna_amqp::{CommandError, Condition, Event, Lane, Limits};

use crate::harness::{Pair, options};

fn small_frames() -> Limits {
    Limits {
        max_frame_bytes: 512,
        incoming_window: 8,
        ..Limits::default()
    }
}

/// Part 2, section 2.4.2: everything up to the attach goes out before anything has come back.
#[test]
fn the_whole_start_is_one_flight() {
    let mut pair = Pair::new(&Limits::default());
    let out = &mut pair.client.out;
    let client = &mut pair.client.connection;
    let session = client.begin(Lane(0), out).unwrap();
    let link = client
        .attach(session, "a", Role::Sender, &options("s", "t"), out)
        .unwrap();
    // With credit that is known from before the message goes along, too.
    client.assume_credit(link, 1).unwrap();
    let transfer = OutgoingTransfer::new(b"1", 1);
    client
        .transfer(link, &transfer, &[b"first"], false, out)
        .unwrap();
    // The server knows of the agreement: it gives the credit with its answer to the attach.
    assert!(out.0[&0].len() < 512);
    pair.run();
    assert_eq!(pair.payloads, [b"first"]);
    assert!(pair.server.violations.is_empty());
}

#[test]
fn channel_0_and_512_bytes_before_the_open() {
    let mut pair = Pair::new(&Limits::default());
    let client = &mut pair.client.connection;
    let out = &mut pair.client.out;
    let session = client.begin(Lane(0), out).unwrap();
    assert_eq!(client.begin(Lane(0), out), Err(CommandError::Limit));
    let name = "x".repeat(600);
    assert_eq!(
        client.attach(session, &name, Role::Sender, &options("s", "t"), out),
        Err(CommandError::FrameTooLarge)
    );
    client.assume_peer(65_536, 9);
    client.begin(Lane(4), out).unwrap();
    client
        .attach(session, &name, Role::Sender, &options("s", "t"), out)
        .unwrap();
    pair.run();
    assert!(pair.server_saw("Attach {"));
}

#[test]
fn a_large_message_goes_in_many_frames_as_the_window_allows() {
    let mut pair = Pair::new(&small_frames());
    let session = pair.session(4);
    let link = pair.link(session, "a", Role::Sender, &options("s", "t"));
    let message: Vec<u8> = (0..20_000_u32).map(|index| index as u8).collect();
    let transfer = OutgoingTransfer::new(b"1", 1);
    let sent = pair
        .client
        .connection
        .transfer(link, &transfer, &[&message], false, &mut pair.client.out)
        .unwrap();
    assert!(!sent.complete && sent.payload_bytes < message.len());
    let mut done = sent.payload_bytes;
    loop {
        pair.run();
        let sent = pair
            .client
            .connection
            .transfer_more(link, &[&message[done..]], false, &mut pair.client.out)
            .unwrap();
        done += sent.payload_bytes;
        if sent.complete {
            break;
        }
    }
    pair.run();
    assert_eq!(pair.payloads, [message]);
    assert!(pair.client_saw("Window {"));
}

/// Part 2, section 2.6.14: deliveries of several links may be interleaved.
#[test]
fn deliveries_of_several_links_end_in_any_order() {
    let mut pair = Pair::new(&small_frames());
    let session = pair.session(4);
    let slow = pair.link(session, "slow", Role::Sender, &options("s", "t"));
    let quick = pair.link(session, "quick", Role::Sender, &options("s", "t"));
    let client = &mut pair.client.connection;
    let out = &mut pair.client.out;
    let first = OutgoingTransfer::new(b"1", 1);
    client.transfer(slow, &first, &[b"ha"], true, out).unwrap();
    let second = OutgoingTransfer::new(b"2", 2);
    client
        .transfer(quick, &second, &[b"whole"], false, out)
        .unwrap();
    client.transfer_more(slow, &[b"lf"], false, out).unwrap();
    pair.run();
    assert_eq!(pair.payloads, [b"whole".to_vec(), b"half".to_vec()]);
    assert!(pair.server.violations.is_empty());
}

#[test]
fn an_aborted_delivery_is_never_seen() {
    let mut pair = Pair::new(&small_frames());
    let session = pair.session(4);
    let link = pair.link(session, "a", Role::Sender, &options("s", "t"));
    let client = &mut pair.client.connection;
    let out = &mut pair.client.out;
    let transfer = OutgoingTransfer::new(b"1", 1);
    client
        .transfer(link, &transfer, &[b"half"], true, out)
        .unwrap();
    assert_eq!(
        client.transfer(link, &transfer, &[b"x"], false, out),
        Err(CommandError::State),
        "one after the other on a link"
    );
    client.abort(link, out).unwrap();
    let transfer = OutgoingTransfer::new(b"2", 2);
    client
        .transfer(link, &transfer, &[b"whole"], false, out)
        .unwrap();
    assert_eq!(client.unsettled(session).0, 1);
    pair.run();
    assert_eq!(pair.payloads, [b"whole"]);
    assert!(pair.server_saw("Aborted"));
}

/// A peer may settle what it has only a part of. Then there is nothing to forget when the rest is given up.
#[test]
fn what_was_settled_before_its_end_counts_once() {
    let mut pair = Pair::new(&small_frames());
    let session = pair.session(4);
    let link = pair.link(session, "a", Role::Sender, &options("s", "t"));
    let (client, out) = (&mut pair.client.connection, &mut pair.client.out);
    let whole = OutgoingTransfer::new(b"1", 1);
    client
        .transfer(link, &whole, &[b"whole"], false, out)
        .unwrap();
    let half = OutgoingTransfer::new(b"2", 2);
    let sent = client.transfer(link, &half, &[b"half"], true, out).unwrap();
    pair.run();
    let at_server = pair.accepted[0];
    let range = (sent.delivery_id, sent.delivery_id);
    let (server, out) = (&mut pair.server.connection, &mut pair.server.out);
    let released = DeliveryState::Outcome(Outcome::Released);
    server
        .dispose(at_server.session, range, Some(&released), true, out)
        .unwrap();
    pair.run();
    let (client, out) = (&mut pair.client.connection, &mut pair.client.out);
    client.abort(link, out).unwrap();
    assert_eq!(client.unsettled_on(link), 1, "the whole one");
    assert_eq!(client.unsettled(session).0, 1);
}

#[test]
fn credit_is_kept_and_drained() {
    let mut pair = Pair::new(&Limits::default());
    pair.credit = 2;
    let session = pair.session(0);
    let link = pair.link(session, "a", Role::Sender, &options("s", "t"));
    let at_server = pair.accepted[0];
    for tag in 0..2_u8 {
        let transfer = OutgoingTransfer {
            settled: true,
            ..OutgoingTransfer::new(std::slice::from_ref(&tag), 0)
        };
        let client = &mut pair.client.connection;
        client
            .transfer(link, &transfer, &[b"m"], false, &mut pair.client.out)
            .unwrap();
    }
    let transfer = OutgoingTransfer::new(b"3", 3);
    assert!(!pair.client.connection.can_send(link));
    assert_eq!(
        pair.client
            .connection
            .transfer(link, &transfer, &[b"m"], false, &mut pair.client.out),
        Err(CommandError::NoCredit)
    );
    pair.run();
    let server = &mut pair.server.connection;
    server
        .set_credit(at_server, 10, true, false, &mut pair.server.out)
        .unwrap();
    pair.run();
    assert!(pair.client_saw("credit: 10, drain: true"));
    pair.client
        .connection
        .drained(link, 0, &mut pair.client.out)
        .unwrap();
    pair.run();
    assert!(pair.server_saw("SenderFlow"));
    assert_eq!(pair.server.connection.credit(at_server), 0);
    assert_eq!(pair.client.connection.credit(link), 0);
    // Echo: the answer tells the sender's state.
    let seen = pair.server_events.len();
    pair.server
        .connection
        .set_credit(at_server, 5, false, true, &mut pair.server.out)
        .unwrap();
    pair.run();
    assert!(
        pair.server_events[seen..]
            .iter()
            .any(|event| event.contains("SenderFlow") && event.contains("credit: 5"))
    );
}

#[test]
fn both_settle_in_either_mode() {
    let mut pair = Pair::new(&Limits::default());
    let session = pair.session(0);
    for (name, mode) in [
        ("first", ReceiverSettleMode::First),
        ("second", ReceiverSettleMode::Second),
    ] {
        let link = pair.link(
            session,
            name,
            Role::Sender,
            &AttachOptions {
                rcv_settle_mode: mode,
                ..options("s", "t")
            },
        );
        let transfer = OutgoingTransfer::new(b"1", 77);
        let sent = pair
            .client
            .connection
            .transfer(link, &transfer, &[b"m"], false, &mut pair.client.out)
            .unwrap();
        pair.run();
        let at_server = pair.accepted[pair.accepted.len() - 1];
        let range = (sent.delivery_id, sent.delivery_id);
        let accepted = DeliveryState::ACCEPTED;
        let server = &mut pair.server.connection;
        let out = &mut pair.server.out;
        if mode == ReceiverSettleMode::Second {
            assert_eq!(
                server.dispose(at_server.session, range, Some(&accepted), true, out),
                Err(CommandError::Argument),
                "the sender settles first"
            );
        }
        let settled = mode == ReceiverSettleMode::First;
        server
            .dispose(at_server.session, range, Some(&accepted), settled, out)
            .unwrap();
        pair.run();
        assert!(pair.client_saw(&format!(
            "token: 77, state: Some(Accepted), settled: {settled}"
        )));
        if !settled {
            let client = &mut pair.client.connection;
            client
                .settle(session, range, Some(&accepted), &mut pair.client.out)
                .unwrap();
            pair.run();
            assert!(pair.server_saw("settled: true }"));
        }
        assert_eq!(pair.client.connection.unsettled(session), (0, 0));
        assert_eq!(pair.server.connection.unsettled(at_server.session), (0, 0));
    }
}

#[test]
fn a_disposition_covers_a_range_over_several_links() {
    let mut pair = Pair::new(&Limits::default());
    let session = pair.session(0);
    let a = pair.link(session, "a", Role::Sender, &options("s", "t"));
    let b = pair.link(session, "b", Role::Sender, &options("s", "t"));
    for (tag, link) in [(0_u8, a), (1, b), (2, a), (3, b)] {
        let transfer = OutgoingTransfer::new(std::slice::from_ref(&tag), u64::from(tag));
        let client = &mut pair.client.connection;
        client
            .transfer(link, &transfer, &[b"m"], false, &mut pair.client.out)
            .unwrap();
    }
    pair.run();
    let at_server = pair.accepted[0].session;
    pair.server
        .connection
        .dispose(
            at_server,
            (1, 2),
            Some(&DeliveryState::RELEASED),
            true,
            &mut pair.server.out,
        )
        .unwrap();
    pair.run();
    let is_disposition = |event: &&String| event.contains("Disposition");
    assert_eq!(pair.client_events.iter().filter(is_disposition).count(), 2);
    assert_eq!(pair.client.connection.unsettled(session).0, 2);
}

#[test]
fn sender_settle_modes_are_kept() {
    let mut pair = Pair::new(&Limits::default());
    let session = pair.session(0);
    for (mode, settled) in [
        (SenderSettleMode::Settled, false),
        (SenderSettleMode::Unsettled, true),
    ] {
        let options = AttachOptions {
            snd_settle_mode: mode,
            ..options("s", "t")
        };
        let link = pair.link(session, &format!("{mode:?}"), Role::Sender, &options);
        let transfer = OutgoingTransfer {
            settled,
            ..OutgoingTransfer::new(b"1", 1)
        };
        let client = &mut pair.client.connection;
        assert_eq!(
            client.transfer(link, &transfer, &[b"m"], false, &mut pair.client.out),
            Err(CommandError::Argument)
        );
    }
}

#[test]
fn the_server_sends_too() {
    let mut pair = Pair::new(&Limits::default());
    let session = pair.session(8);
    let link = pair.link(session, "a", Role::Receiver, &options("s", "t"));
    pair.client
        .connection
        .set_credit(link, 3, false, false, &mut pair.client.out)
        .unwrap();
    pair.run();
    assert!(pair.server_saw("Credit {"));
    let at_server = pair.accepted[0];
    assert_eq!(
        pair.server.connection.lane_of(at_server.session),
        Some(Lane(8)),
        "answers go where the begin came from"
    );
    let transfer = OutgoingTransfer::new(b"1", 1);
    pair.server
        .connection
        .transfer(
            at_server,
            &transfer,
            &[b"he", b"llo"],
            false,
            &mut pair.server.out,
        )
        .unwrap();
    assert!(pair.server.out.0[&0].is_empty());
    pair.run();
    assert_eq!(pair.payloads, [b"hello"]);
}

#[test]
fn messages_have_a_largest_size() {
    let limits = Limits {
        max_message_bytes: 1_000,
        ..Limits::default()
    };
    let mut pair = Pair::new(&limits);
    let session = pair.session(0);
    let link = pair.link(session, "a", Role::Sender, &options("s", "t"));
    let transfer = OutgoingTransfer::new(b"1", 1);
    assert_eq!(
        pair.client.connection.transfer(
            link,
            &transfer,
            &[&[0; 1_001]],
            false,
            &mut pair.client.out
        ),
        Err(CommandError::MessageTooLarge)
    );
    pair.client
        .connection
        .transfer(link, &transfer, &[&[0; 1_000]], false, &mut pair.client.out)
        .unwrap();
    pair.run();
    assert_eq!(pair.payloads[0].len(), 1_000);
}

#[test]
fn links_detach_close_and_are_refused() {
    let mut pair = Pair::new(&Limits::default());
    let session = pair.session(0);
    let link = pair.link(session, "a", Role::Sender, &options("s", "t"));
    let transfer = OutgoingTransfer::new(b"tag", 5);
    let client = &mut pair.client.connection;
    let out = &mut pair.client.out;
    client
        .transfer(link, &transfer, &[b"m"], false, out)
        .unwrap();
    client.detach(link, false, None, out).unwrap();
    assert_eq!(
        client.detach(link, false, None, out),
        Err(CommandError::NoLink)
    );
    pair.run();
    // Both ends keep what is unsettled.
    assert!(pair.client_saw(
        "closed: false, error: None, unsettled: [Unsettled { tag: DeliveryTag(tag), token: 5"
    ));
    assert!(pair.server_saw("unsettled: [Unsettled { tag: DeliveryTag(tag), token: 0"));
    let again = pair.link(session, "a", Role::Sender, &options("s", "t"));
    let client = &mut pair.client.connection;
    client
        .detach(
            again,
            true,
            Some(Error::new(Condition::INTERNAL_ERROR, "why not")),
            &mut pair.client.out,
        )
        .unwrap();
    pair.run();
    assert!(
        pair.server_saw("closed: true, error: Some(ErrorBuf { condition: \"amqp:internal-error\"")
    );
    let third = pair.link(session, "a", Role::Sender, &options("s", "t"));
    assert_eq!(third, again, "the handle is free again");
    pair.client
        .connection
        .end(session, None, &mut pair.client.out)
        .unwrap();
    pair.run();
    assert!(pair.server_saw("Ended"));
    assert!(pair.client_saw("Ended"));
    assert_eq!(pair.session(0), session, "the channel is free again");
    pair.client
        .connection
        .close(None, &mut pair.client.out)
        .unwrap();
    pair.run();
    assert!(pair.server_saw("Closed") && pair.client_saw("Closed"));
    assert!(pair.client.connection.is_closed() && pair.server.connection.is_closed());
}

#[test]
fn a_link_is_refused_with_an_attach_and_a_detach() {
    let mut pair = Pair::new(&Limits::default());
    let session = pair.session(0);
    let client = &mut pair.client.connection;
    client
        .attach(
            session,
            "a",
            Role::Receiver,
            &options("nowhere", "t"),
            &mut pair.client.out,
        )
        .unwrap();
    let (out, from) = (&mut pair.server, &mut pair.client.out);
    out.read(from, 0, usize::MAX, |connection, out, event| {
        if let Event::Attach { link, .. } = event {
            let error = Error::new(Condition::NOT_FOUND, "no such node");
            connection.refuse_attach(link, error, out).unwrap();
        }
    });
    pair.run();
    assert!(pair.client_saw("source: None"));
    assert!(pair.client_saw("condition: \"amqp:not-found\""));
}

#[test]
fn a_link_is_stolen_within_a_connection() {
    let mut pair = Pair::new(&Limits::default());
    let first = pair.session(4);
    let second = pair.session(8);
    pair.link(first, "a", Role::Receiver, &options("s", "t"));
    pair.link(second, "a", Role::Receiver, &options("s", "t"));
    assert!(pair.client_saw("condition: \"amqp:link:stolen\""));
    assert!(pair.server_saw("condition: \"amqp:link:stolen\""));
    // The other direction of the same name is another link.
    let third = pair.link(first, "a", Role::Sender, &options("s", "t"));
    assert!(pair.client.connection.can_send(third));
}

#[test]
fn a_lane_that_is_gone_ends_its_sessions() {
    let mut pair = Pair::new(&Limits::default());
    let first = pair.session(4);
    pair.session(8);
    pair.link(first, "a", Role::Receiver, &options("s", "t"));
    pair.server.connection.lane_closed(Lane(4));
    pair.client.connection.lane_closed(Lane(4));
    pair.run();
    assert!(pair.server_saw("Detached") && pair.server_saw("Ended"));
    assert!(pair.client_saw("Detached") && pair.client_saw("Ended"));
    let again = pair.session(12);
    assert_eq!(again, first);
    pair.link(again, "a", Role::Receiver, &options("s", "t"));
    assert!(pair.server.violations.is_empty() && pair.client.violations.is_empty());
}

#[test]
fn links_and_unsettled_deliveries_are_limited() {
    let limits = Limits {
        links_per_session: 2,
        unsettled_per_link: 2,
        ..Limits::default()
    };
    let mut pair = Pair::new(&limits);
    let session = pair.session(0);
    let link = pair.link(session, "a", Role::Sender, &options("s", "t"));
    pair.link(session, "b", Role::Sender, &options("s", "t"));
    let out = &mut pair.client.out;
    let client = &mut pair.client.connection;
    assert_eq!(
        client.attach(session, "c", Role::Sender, &options("s", "t"), out),
        Err(CommandError::Limit)
    );
    for tag in 0..2_u8 {
        let transfer = OutgoingTransfer::new(std::slice::from_ref(&tag), 1);
        client
            .transfer(link, &transfer, &[b"m"], false, out)
            .unwrap();
    }
    let transfer = OutgoingTransfer::new(b"3", 1);
    assert_eq!(
        client.transfer(link, &transfer, &[b"m"], false, out),
        Err(CommandError::Limit)
    );
    assert_eq!(
        client.transfer(link, &OutgoingTransfer::new(&[0; 33], 1), &[], false, out),
        Err(CommandError::Argument)
    );
}

/// Section 2.6.13: when the unsettled deliveries do not fit into an attach, both ends reduce what
/// they can and attach again until they do.
#[test]
fn unsettled_maps_that_are_incomplete() {
    let limits = small_frames();
    let mut pair = Pair::new(&limits);
    let session = pair.session(0);
    let link = pair.link(session, "a", Role::Sender, &options("s", "t"));
    for token in 0..40_u8 {
        let transfer = OutgoingTransfer::new(std::slice::from_ref(&token), token.into());
        pair.client
            .connection
            .transfer(link, &transfer, &[b"m"], false, &mut pair.client.out)
            .unwrap();
        pair.run();
    }
    // All of them arrive and are decided, but the client never hears of it.
    let at_server = pair.accepted[0].session;
    let mut unsettled_at_server = Vec::new();
    let accepted = DeliveryState::ACCEPTED;
    pair.server
        .connection
        .dispose(
            at_server,
            (0, 39),
            Some(&accepted),
            false,
            &mut pair.server.out,
        )
        .unwrap();
    pair.server.connection.transport_closed();
    pair.server.drain_events(|_, _, event| {
        if let Event::Detached { unsettled, .. } = event {
            unsettled_at_server = unsettled;
        }
    });
    pair.client.connection.transport_closed();
    let mut unsettled = Vec::new();
    pair.client.drain_events(|_, _, event| {
        if let Event::Detached {
            unsettled: mine, ..
        } = event
        {
            unsettled = mine;
        }
    });
    assert_eq!((unsettled.len(), unsettled_at_server.len()), (40, 40));
    let mut rounds = 0;
    let mut settled = 0;
    let mut settled_at_server = 0;
    while !unsettled.is_empty() {
        rounds += 1;
        assert!(rounds < 10);
        let mut pair = Pair::new(&limits);
        let session = pair.session(0);
        let again = AttachOptions {
            unsettled: &unsettled,
            recover: true,
            ..options("s", "t")
        };
        let link = pair
            .client
            .connection
            .attach(session, "a", Role::Sender, &again, &mut pair.client.out)
            .unwrap();
        let mut resuming = Vec::new();
        for _ in 0..4 {
            pair.server.read(
                &mut pair.client.out,
                0,
                usize::MAX,
                |connection, out, event| match event {
                    Event::Attach { link, attach } => {
                        let options = AttachOptions {
                            unsettled: &unsettled_at_server,
                            recover: true,
                            source: attach.source.clone(),
                            target: attach.target.clone(),
                            ..AttachOptions::default()
                        };
                        connection.accept_attach(link, &options, out).unwrap();
                        connection.set_credit(link, 100, false, false, out).unwrap();
                    }
                    Event::Recover {
                        recovery: Recovery::Settled(_),
                        delivery,
                        ..
                    } => {
                        settled_at_server += 1;
                        unsettled_at_server.retain(|one| one.tag != delivery.tag);
                    }
                    _ => {}
                },
            );
            pair.client
                .read(&mut pair.server.out, 0, usize::MAX, |_, _, event| {
                    if let Event::Recover {
                        delivery, recovery, ..
                    } = event
                    {
                        resuming.push((delivery, recovery));
                    }
                });
            let client = &mut pair.client.connection;
            let out = &mut pair.client.out;
            resuming.retain(|(delivery, recovery)| {
                let Recovery::Settle(state) = recovery else {
                    return true;
                };
                if !client.can_send(link) {
                    return true;
                }
                let transfer = OutgoingTransfer {
                    settled: true,
                    resume: true,
                    state: Some(state.view()),
                    ..OutgoingTransfer::new(delivery.tag.as_bytes(), delivery.token)
                };
                client.transfer(link, &transfer, &[], false, out).unwrap();
                unsettled.retain(|one| one.tag != delivery.tag);
                settled += 1;
                false
            });
            if client.is_incomplete(link) {
                let transfer = OutgoingTransfer::new(b"new", 99);
                assert!(
                    client
                        .transfer(link, &transfer, &[b"m"], false, out)
                        .is_err()
                );
            }
        }
        assert!(
            resuming
                .iter()
                .all(|(_, recovery)| *recovery == Recovery::Wait)
        );
        assert_eq!(pair.server.violations, []);
    }
    assert!(rounds > 1, "one attach could not hold them all");
    assert_eq!((settled, settled_at_server), (40, 40));
    assert!(unsettled_at_server.is_empty());
}
