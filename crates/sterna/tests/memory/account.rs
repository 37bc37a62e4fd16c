//! The account against the system's figures.

use std::io::{Read as _, Write as _};
use std::thread;
use std::time::Duration;

use crate::process::{AMQP, Broker, HTTP, MIB, PATIENCE, await_that};
use crate::wire::{POST, amqp_sender, amqp_transfer, client, publish, publish_all, subscribe};

/// The account without the program itself, by kind.
fn accounted_kinds(broker: &Broker) -> Vec<(String, u64)> {
    let kinds = broker.metric("sterna_memory_bytes").into_iter();
    kinds
        .filter(|(kind, _)| kind != "program" && kind != "unaccounted")
        .collect()
}

/// The account's sum, without the program itself, is what a load has made resident, within a tenth.
#[test]
fn the_account_is_what_a_load_makes_resident() {
    let broker = Broker::start("[broker]\nmemory_ceiling = \"8 GiB\"\n");
    // What is made once, whatever the load.
    drop(client(&broker, "first", true));
    let _ = broker.get("/metrics");
    let before_bytes = broker.resident_bytes();
    let sum = |kinds: &[(String, u64)]| kinds.iter().map(|(_, bytes)| bytes).sum::<u64>();
    let accounted_before = sum(&accounted_kinds(&broker));
    let mut streams = Vec::new();
    // Readers that never acknowledge, each with a queue of its own.
    for reader in 0..60 {
        let mut stream = client(&broker, &format!("reader-{reader}"), true);
        stream
            .write_all(&subscribe(&format!("load/{reader}")))
            .unwrap();
        stream.read_exact(&mut [0; 5]).unwrap();
        streams.push(stream);
    }
    let mut publisher = client(&broker, "publisher", true);
    let messages = (0..60_000).map(|n| {
        let bytes = if n % 2 == 0 { 200 } else { 1_200 };
        (format!("load/{}", n % 60), vec![b'x'; bytes])
    });
    publish_all(&mut publisher, messages, false);
    let retained = (0..30_000).map(|n| (format!("kept/{n}/state"), vec![b'r'; 100]));
    publish_all(&mut publisher, retained, true);
    for n in 0..2_000 {
        let mut stream = client(&broker, &format!("session-{n}"), true);
        for filter in 0..3 {
            stream
                .write_all(&subscribe(&format!("device/{n}/{filter}/+")))
                .unwrap();
            stream.read_exact(&mut [0; 5]).unwrap();
        }
        streams.push(stream);
    }
    for n in 0..30 {
        let mut stream = client(&broker, &format!("partial-{n}"), true);
        let whole = publish("partial", 1, &vec![b'p'; 2_000_000], false);
        stream.write_all(&whole[..1_000_000]).unwrap();
        streams.push(stream);
    }
    for n in 0..10 {
        let mut stream = broker.connect(AMQP).unwrap();
        stream
            .write_all(&amqp_sender(&format!("transfer-{n}")))
            .unwrap();
        for part in 0..16 {
            stream.write_all(&amqp_transfer(part == 0, 30_000)).unwrap();
        }
        streams.push(stream);
        let mut stream = broker.connect(HTTP).unwrap();
        stream.write_all(POST.as_bytes()).unwrap();
        stream.write_all(&vec![b'x'; 500_000]).unwrap();
        streams.push(stream);
    }
    await_that("the account has come to rest", || {
        let sums = [(); 2].map(|()| {
            thread::sleep(Duration::from_millis(600));
            sum(&accounted_kinds(&broker))
        });
        sums[0].abs_diff(sums[1]) < MIB
    });
    let kinds = accounted_kinds(&broker);
    let accounted = sum(&kinds) - accounted_before;
    let resident = broker.resident_bytes() - before_bytes;
    println!("resident {resident}, accounted {accounted}: {kinds:?}");
    assert!(resident > 100 * MIB, "{resident} bytes are no load");
    let (_, partial) = kinds.iter().find(|(kind, _)| kind == "partial").unwrap();
    let parts = 30 * 1_000_000 + 10 * (16 * 30_000 + 500_000) - 1_000_000;
    assert!(*partial >= parts, "{partial} of all doors");
    let error = resident.abs_diff(accounted);
    assert!(
        error <= resident / 10,
        "{accounted} accounted of {resident}: {kinds:?}"
    );
    // And it is given back.
    drop(streams);
    await_that("nothing has partly arrived, and nothing waits", || {
        let kinds = accounted_kinds(&broker).into_iter();
        let mut of_peers =
            kinds.filter(|(kind, _)| ["partial", "queues", "send"].contains(&&**kind));
        of_peers.all(|(_, bytes)| bytes == 0)
    });
}

/// They stay when their publisher goes, and after a restart: without a bound below the first stage's beginning,
/// nobody could publish any more.
#[test]
fn retained_messages_leave_memory_for_what_others_publish() {
    let broker = Broker::start("[broker]\nmemory_ceiling = \"256 MiB\"\n");
    let mut keeper = client(&broker, "keeper", true);
    keeper.set_write_timeout(Some(PATIENCE)).unwrap();
    let messages = (0..1_200).map(|number| (format!("keep/{number}"), vec![b'r'; 200_000]));
    publish_all(&mut keeper, messages, true);
    await_that("no stage is left", || {
        broker.get("/readyz") == (200, "ready\n".to_owned())
    });
    let mut other = client(&broker, "other", true);
    let messages = (0..10).map(|number| (format!("other/{number}"), vec![b'x'; 1_000]));
    publish_all(&mut other, messages, false);
}
