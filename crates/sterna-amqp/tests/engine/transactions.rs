//! Transactions over a link to a coordinator (part 4).

use bytes::BytesMut;
use sterna_amqp::link::{AttachOptions, OutgoingTransfer};
use sterna_amqp::messaging::{DeliveryState, Outcome, Source, TargetArchetype};
use sterna_amqp::performatives::Role;
use sterna_amqp::transactions::{
    Coordinator, Declare, Declared, Discharge, Request, TransactionalState, capability,
};
use sterna_amqp::types::Multiple;
use sterna_amqp::{Event, Limits};

use crate::harness::{Pair, options};

const TXN: &[u8] = b"txn-1";

#[test]
fn declare_post_retire_and_discharge() {
    let mut pair = Pair::new(&Limits::default());
    let session = pair.session(0);
    let options_of_control = AttachOptions {
        source: Some(Source::default()),
        target: Some(TargetArchetype::Coordinator(Coordinator {
            capabilities: Multiple::Slice(&[capability::LOCAL_TRANSACTIONS]),
        })),
        ..AttachOptions::default()
    };
    let control = pair.link(session, "txn", Role::Sender, &options_of_control);
    assert!(pair.server_saw("Coordinator"));
    let at_server = pair.accepted[0].session;

    // Declare: the outcome is the transaction.
    let mut request = BytesMut::new();
    Request::Declare(Declare { global_id: None }).encode(&mut request);
    let client = &mut pair.client.connection;
    let out = &mut pair.client.out;
    let declare = OutgoingTransfer::new(b"declare", 1);
    client
        .transfer(control, &declare, &[&request], false, out)
        .unwrap();
    pair.run();
    let declare = Request::decode(&pair.payloads[0]).unwrap();
    assert!(matches!(declare, Request::Declare(_)));
    let declared = DeliveryState::Declared(Declared { txn_id: TXN });
    let server = &mut pair.server.connection;
    server
        .dispose(
            at_server,
            (0, 0),
            Some(&declared),
            true,
            &mut pair.server.out,
        )
        .unwrap();
    let mut state = None;
    pair.client
        .read(&mut pair.server.out, 0, usize::MAX, |_, _, event| {
            if let Event::Disposition { state: told, .. } = event {
                state = told;
            }
        });
    assert_eq!(state.unwrap().view(), declared);

    // Posting: a message that counts when the transaction does.
    let posted = DeliveryState::Transactional(TransactionalState {
        txn_id: TXN,
        outcome: None,
    });
    let link = pair.link(session, "post", Role::Sender, &options("s", "t"));
    let transfer = OutgoingTransfer {
        state: Some(posted.clone()),
        ..OutgoingTransfer::new(b"posted", 2)
    };
    pair.client
        .connection
        .transfer(link, &transfer, &[b"m"], false, &mut pair.client.out)
        .unwrap();
    let mut at_receiver = None;
    pair.server
        .read(&mut pair.client.out, 0, usize::MAX, |_, _, event| {
            if let Event::Delivery(delivery) = event {
                at_receiver = delivery.state;
            }
        });
    assert_eq!(at_receiver.unwrap().view(), posted);
    // Retirement: an outcome that counts when the transaction does.
    let retired = DeliveryState::Transactional(TransactionalState {
        txn_id: TXN,
        outcome: Some(Outcome::Accepted),
    });
    assert!(!retired.is_terminal());
    pair.server
        .connection
        .dispose(
            at_server,
            (1, 1),
            Some(&retired),
            true,
            &mut pair.server.out,
        )
        .unwrap();
    // Acquisition: credit that belongs to the transaction.
    pair.run();
    let acquire = pair.link(session, "get", Role::Receiver, &options("s", "t"));
    pair.client
        .connection
        .acquire(acquire, 5, TXN, &mut pair.client.out)
        .unwrap();
    let mut acquired = None;
    pair.server
        .read(&mut pair.client.out, 0, usize::MAX, |_, _, event| {
            if let Event::Credit {
                credit: 5, txn_id, ..
            } = event
            {
                acquired = txn_id.map(<[u8]>::to_vec);
            }
        });
    assert_eq!(acquired.as_deref(), Some(TXN));

    // Discharge.
    let mut request = BytesMut::new();
    let discharge = Request::Discharge(Discharge {
        txn_id: TXN,
        fail: false,
    });
    discharge.encode(&mut request);
    let transfer = OutgoingTransfer::new(b"discharge", 3);
    pair.client
        .connection
        .transfer(control, &transfer, &[&request], false, &mut pair.client.out)
        .unwrap();
    pair.run();
    assert_eq!(Request::decode(&pair.payloads[1]), Ok(discharge));
}
