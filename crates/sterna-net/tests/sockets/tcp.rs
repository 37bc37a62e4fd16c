//! TCP: the loop, its limits and its mailboxes, on loopback.
#![allow(clippy::unwrap_used, missing_docs)]

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use sterna_net::{
    CloseReason, ConnectionId, ListenerTransport, Network, RefusedConnection, RefusedPeers,
    StreamId, TransportKind,
};

use crate::support::{Letter, Manner, PATIENCE, Seen, Server, Setup, pattern};

fn setup() -> Setup {
    Setup::new(ListenerTransport::Tcp)
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("connected");
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

fn exchange(stream: &mut (impl Read + Write), bytes: &[u8]) {
    stream.write_all(bytes).unwrap();
    let mut answer = vec![0; bytes.len()];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(answer, bytes);
}

fn server(manner: Manner) -> Server {
    Setup { manner, ..setup() }.start()
}

#[test]
fn bytes_come_back_and_the_end_of_the_stream_ends_the_connection() {
    let server = setup().start();
    let mut client = connect(server.address());
    for length in [1, 64, 2_048, 100_000] {
        exchange(&mut client, &pattern(length));
    }
    let id = server.log.wait_opened();
    let info = server.info(id);
    assert_eq!(info.transport, TransportKind::Tcp);
    assert_eq!(info.peer, client.local_addr().unwrap());
    let path = server.run(0, move |_, net| net.path(id));
    assert_eq!(path.received_bytes, path.sent_bytes);
    assert!(path.received_bytes > 100_000 && path.rtt_us > 0);
    assert_eq!(path.received_payload_bytes, path.received_bytes);
    assert!((1..=path.rtt_us).contains(&path.min_rtt_us), "{path:?}");
    assert!(
        path.rtt_variance_us > 0 && path.mtu_bytes >= 1_280,
        "{path:?}"
    );
    assert!(
        path.received_datagrams > 1 && path.sent_datagrams > 1,
        "{path:?}"
    );
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(
        client.read(&mut [0; 8]).unwrap(),
        0,
        "the server closes too"
    );
    assert_eq!(server.log.wait_closed(id), CloseReason::Local);
    let finished = Seen::Finished(id, StreamId::FIRST);
    assert_eq!(server.log.count(|_, seen| *seen == finished), 1);
    assert!(server.run(0, move |_, net| net.info(id).is_none()));
    let figures = server.wait_figures(|figures| figures.connections == 0);
    assert_eq!((figures.accepted, figures.refused), (1, 0));
    assert_eq!(figures.received_bytes, figures.sent_bytes);
    assert_eq!(figures.received_bytes, 1 + 64 + 2_048 + 100_000);
    assert!(figures.turns > 4);
    server.stop();
}

#[test]
fn a_dual_stack_listener_takes_both_families() {
    let mut setup = setup();
    setup.shards = 2;
    setup.listeners[0].address = "[::]:0".parse().unwrap();
    let server = setup.start();
    let port = server.address().port();
    assert_ne!(port, 0);
    for host in ["127.0.0.1", "::1"] {
        let address = SocketAddr::new(host.parse().unwrap(), port);
        let mut client = connect(address);
        exchange(&mut client, b"hello");
        let peer = client.local_addr().unwrap();
        let found = (0..2).any(|shard| {
            server.run(shard, move |echo, net| {
                let peers = echo.open.iter().filter_map(|id| net.info(*id));
                peers.map(|info| info.peer).any(|known| known == peer)
            })
        });
        assert!(found, "IPv4 peers appear with their IPv4 address");
    }
    server.stop();
}

#[test]
fn large_transfers_go_both_ways_under_backpressure() {
    const BYTES: usize = 24 << 20;
    let server = setup().start();
    let mut client = connect(server.address());
    let mut writer = client.try_clone().unwrap();
    let sent = pattern(BYTES);
    let thread = std::thread::spawn({
        let sent = sent.clone();
        move || {
            writer.write_all(&sent).unwrap();
            writer.shutdown(Shutdown::Write).unwrap();
        }
    });
    // The echo blocks until somebody reads: the queue must stay bounded meanwhile.
    std::thread::sleep(Duration::from_millis(300));
    let mut received = Vec::new();
    client.read_to_end(&mut received).unwrap();
    thread.join().unwrap();
    assert!(received == sent, "the bytes differ");
    let most = server.log.most_unsent_bytes.load(Ordering::Relaxed);
    let limits = sterna_net::ShardConfig::default();
    assert!(most <= limits.high_watermark_bytes + limits.read_bytes_per_turn);
    assert!(
        server
            .log
            .count(|_, seen| matches!(seen, Seen::Writable(_)))
            > 0
    );
    server.stop();
}

#[test]
fn turns_end_unseen_where_more_follows_and_nothing_is_sent() {
    let unseen_turns = |manner| {
        let mut setup = setup();
        setup.manner = manner;
        let server = setup.start();
        let mut client = connect(server.address());
        client.write_all(&pattern(8 << 20)).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        client.read_to_end(&mut Vec::new()).unwrap();
        let turns = &server.log.unseen_turns;
        let turns = [0, 1].map(|sends| turns[sends].load(Ordering::Relaxed));
        server.stop();
        turns
    };
    let [silent, sending] = unseen_turns(Manner::Drop);
    assert!(silent > 0);
    assert_eq!(sending, 0);
    // A byte for each chunk: there is one for each read, which the kernel takes.
    assert_eq!(unseen_turns(Manner::Flood(1))[1], 0);
}

#[test]
fn a_peer_that_never_reads_is_cut_off() {
    let mut setup = setup();
    setup.manner = Manner::Flood(64 * 1024);
    setup.config.copied_bytes = 1 << 20;
    let server = setup.start();
    let mut client = connect(server.address());
    // Every byte asks for 64 KiB that are never read.
    let id = loop {
        if client.write_all(b"x").is_err() {
            break server.log.wait_opened();
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    assert!(matches!(server.log.wait_closed(id), CloseReason::Failed(_)));
    let most = server.log.most_unsent_bytes.load(Ordering::Relaxed);
    assert!(most <= (1 << 20) + 128 * 1024, "{most}");
    server.stop();
}

#[test]
fn a_close_passes_on_what_was_queued_although_input_is_unread() {
    let server = server(Manner::Drop);
    let mut client = connect(server.address());
    client.write_all(b"hello").unwrap();
    let id = server.log.wait_opened();
    let farewell = pattern(3 << 20);
    server.run(0, {
        let farewell = farewell.clone();
        move |_, net| {
            net.send_shared(id, StreamId::FIRST, farewell.into());
            net.close(id, 0);
            net.send(id, StreamId::FIRST, b"too late");
        }
    });
    // Unread input at close must not make the system reset the connection.
    client.write_all(&pattern(20_000)).unwrap();
    let mut received = Vec::new();
    client.read_to_end(&mut received).unwrap();
    assert!(received == farewell, "{} bytes", received.len());
    assert_eq!(server.log.wait_closed(id), CloseReason::Local);
    server.stop();
}

#[test]
fn a_close_does_not_wait_for_ever() {
    let mut setup = setup();
    setup.manner = Manner::Drop;
    setup.config.linger_ms = 200;
    let server = setup.start();
    let client = connect(server.address());
    let id = server.log.wait_opened();
    let started = Instant::now();
    server.run(0, move |_, net| {
        net.send_shared(id, StreamId::FIRST, vec![0; 64 << 20].into());
        net.close(id, 0);
    });
    assert_eq!(server.log.wait_closed(id), CloseReason::Local);
    assert!(started.elapsed() >= Duration::from_millis(190));
    drop(client);
    server.stop();
}

#[test]
fn each_side_can_end_its_stream_alone() {
    let mut setup = setup();
    setup.close_on_end = false;
    // Longer than the client needs to speak once more.
    setup.config.half_closed_timeout_ms = 3_000;
    let server = setup.start();
    // The server's side first.
    let mut client = connect(server.address());
    let id = server.log.wait_opened();
    server.run(0, move |echo, net| {
        echo.manner = Manner::Drop;
        net.send(id, StreamId::FIRST, b"bye");
        net.finish(id, StreamId::FIRST);
    });
    let mut received = Vec::new();
    client.read_to_end(&mut received).unwrap();
    assert_eq!(received, b"bye");
    client.write_all(b"still heard").unwrap();
    server.log.wait("bytes after the end", |seen| match seen {
        Seen::Received(who, _, 11) if *who == id => Some(()),
        _ => None,
    });
    drop(client);
    // The handler does not close it: the time-out does.
    assert_eq!(server.log.wait_closed(id), CloseReason::TimedOut);

    // The client's side first: the server may still send.
    server.log.forget();
    let mut client = connect(server.address());
    let id = server.log.wait_opened();
    client.shutdown(Shutdown::Write).unwrap();
    server.log.wait("the end", |seen| {
        (*seen == Seen::Finished(id, StreamId::FIRST)).then_some(())
    });
    server.run(0, move |_, net| {
        net.send(id, StreamId::FIRST, b"late");
        net.close(id, 0);
    });
    let mut received = Vec::new();
    client.read_to_end(&mut received).unwrap();
    assert_eq!(received, b"late");
    server.stop();
}

#[test]
fn an_abort_is_at_once_and_calls_for_the_dead_do_nothing() {
    let server = server(Manner::Drop);
    let mut client = connect(server.address());
    let id = server.log.wait_opened();
    server.run(0, move |_, net| {
        net.send_shared(id, StreamId::FIRST, vec![0; 64 << 20].into());
        net.abort(id, StreamId::FIRST, 7);
        net.send(id, StreamId::FIRST, b"x");
    });
    assert_eq!(server.log.wait_closed(id), CloseReason::Local);
    let mut received = Vec::new();
    let _ = client.read_to_end(&mut received); // The system may or may not reset it.
    assert!(received.len() < 64 << 20);
    let second = connect(server.address());
    server.log.forget();
    server.run(0, move |_, net| {
        for call in 0..2 {
            net.send(id, StreamId::FIRST, b"x");
            net.close(id, call);
            net.pause(id, true);
            net.finish(id, StreamId::FIRST);
            net.abort(id, StreamId::FIRST, 0);
            assert!(net.info(id).is_none() && net.unsent_bytes(id) == 0);
            assert!(!net.send_datagram(id, bytes::Bytes::from_static(b"x")));
        }
    });
    let mut second = second;
    second.write_all(b"abc").unwrap();
    server.log.wait("the second connection's bytes", |seen| {
        matches!(seen, Seen::Received(_, _, 3)).then_some(())
    });
    server.stop();
}

#[test]
fn a_paused_connection_is_not_read() {
    let server = server(Manner::Drop);
    let mut client = connect(server.address());
    let id = server.log.wait_opened();
    server.run(0, move |_, net| net.pause(id, true));
    client.write_all(&pattern(1_000)).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(server.log.received_bytes.load(Ordering::Relaxed), 0);
    server.run(0, move |_, net| net.pause(id, false));
    server.log.wait("the bytes", |seen| {
        matches!(seen, Seen::Received(_, _, 1_000)).then_some(())
    });
    server.stop();
}

#[test]
fn a_panic_of_the_handler_ends_the_shard() {
    let server = server(Manner::Fragile);
    let mut honest = connect(server.address());
    exchange(&mut honest, b"before");
    let mut guilty = connect(server.address());
    guilty.write_all(b"!").unwrap();
    for mut gone in [guilty, honest] {
        assert!(matches!(gone.read(&mut [0; 8]), Ok(0) | Err(_)));
    }
    assert!(server.has_panicked());
}

#[test]
fn a_reset_is_reported() {
    let server = server(Manner::Drop);
    let client = connect(server.address());
    let id = server.log.wait_opened();
    socket2::SockRef::from(&client)
        .set_linger(Some(Duration::ZERO))
        .unwrap();
    drop(client);
    assert!(matches!(server.log.wait_closed(id), CloseReason::Failed(_)));
    server.stop();
}

#[test]
fn what_came_before_a_reset_is_handed_up() {
    let server = server(Manner::Drop);
    let mut client = connect(server.address());
    let id = server.log.wait_opened();
    // Something that the client never reads turns its close into a reset.
    server.run(0, move |_, net| net.send(id, StreamId::FIRST, b"unread"));
    assert!(client.peek(&mut [0; 6]).unwrap() > 0);
    server.run(0, move |_, net| net.pause(id, true));
    client.write_all(b"last words").unwrap();
    drop(client);
    std::thread::sleep(Duration::from_millis(50));
    server.run(0, move |_, net| net.pause(id, false));
    server.log.wait("the last words", |seen| {
        matches!(seen, Seen::Received(_, _, 10)).then_some(())
    });
    server.log.wait_closed(id);
    server.stop();
}

/// The client's end or its reset comes before the pause, or in it. Nothing is read, and the end shows all the same.
#[test]
fn a_pause_does_not_hide_for_ever_that_the_peer_is_gone() {
    for (is_reset, is_early) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut setup = setup();
        setup.config.half_closed_timeout_ms = 50;
        setup.config.paused_timeout_ms = 50;
        let server = setup.start();
        let mut client = connect(server.address());
        let id = server.log.wait_opened();
        server.run(0, |echo, _| echo.manner = Manner::Drop);
        let (go_on, goes_on) = std::sync::mpsc::channel::<()>();
        let pause = move |net: &mut dyn Network| net.pause(id, true);
        if is_early {
            // Bytes and the end are there when the shard looks again. The letter comes after that look.
            let (is_busy, busy) = std::sync::mpsc::channel();
            server.mailboxes[0].post(Letter::Run(Box::new(move |_, _| {
                is_busy.send(()).unwrap();
                goes_on.recv().unwrap();
            })));
            busy.recv_timeout(PATIENCE).unwrap();
            server.mailboxes[0].post(Letter::Run(Box::new(move |_, net| pause(net))));
        } else {
            server.run(0, move |_, net| pause(net));
        }
        client.write_all(&pattern(100_000)).unwrap();
        if is_reset {
            (socket2::SockRef::from(&client).set_linger(Some(Duration::ZERO))).unwrap();
        }
        drop(client);
        let _ = go_on.send(());
        let reason = server.log.wait_closed(id);
        if is_reset {
            assert!(matches!(reason, CloseReason::Failed(_)), "{reason:?}");
        } else {
            assert_eq!(reason, CloseReason::Peer { code: 0 });
        }
        let read_bytes = server.log.received_bytes.load(Ordering::Relaxed);
        assert!(read_bytes < 100_000, "{read_bytes} bytes");
        server.stop();
    }
}

/// A publisher that is held, or paused for another reason, may have ended in order long before it is looked at.
#[test]
fn a_connection_that_has_ended_is_kept_while_it_is_paused() {
    for is_end_read in [false, true] {
        let mut setup = setup();
        setup.close_on_end = false;
        setup.config.half_closed_timeout_ms = 50;
        setup.config.paused_timeout_ms = u64::MAX;
        let server = setup.start();
        server.run(0, |echo, _| echo.manner = Manner::DropAndPause);
        let mut client = connect(server.address());
        let id = server.log.wait_opened();
        let pause = |paused| server.run(0, move |_, net| net.pause(id, paused));
        if !is_end_read {
            pause(true);
        }
        client.write_all(&pattern(100_000)).unwrap();
        drop(client);
        if is_end_read {
            server.log.wait("its end", |seen| {
                (*seen == Seen::Finished(id, StreamId::FIRST)).then_some(())
            });
        }
        server.run(0, |echo, _| echo.manner = Manner::Drop);
        // Deadlines pass in their order, so those of the first have passed when a later one's have.
        for _ in 0..3 {
            server.log.forget();
            drop(connect(server.address()));
            let later = server.log.wait_opened();
            assert_eq!(server.log.wait_closed(later), CloseReason::TimedOut);
        }
        assert!(server.run(0, move |_, net| net.info(id).is_some()));
        pause(false);
        assert_eq!(server.log.wait_closed(id), CloseReason::TimedOut);
        let read_bytes = server.log.received_bytes.load(Ordering::Relaxed);
        assert_eq!(read_bytes, 100_000);
        server.stop();
    }
}

/// A handler with an answer that takes longer keeps the connection. That the peer has closed both sides shows when something is sent.
#[test]
fn a_connection_that_is_kept_half_closed_lasts_as_long_as_its_peer() {
    let mut setup = setup();
    setup.close_on_end = false;
    setup.config.half_closed_timeout_ms = 50;
    let server = setup.start();
    let mut client = connect(server.address());
    let id = server.log.wait_opened();
    client.shutdown(Shutdown::Write).unwrap();
    server.log.wait("the end", |seen| {
        (*seen == Seen::Finished(id, StreamId::FIRST)).then_some(())
    });
    server.run(0, move |_, net| net.keep_half_closed(id));
    // Deadlines pass in their order, so those of the first have passed when a later one's have.
    for _ in 0..3 {
        server.log.forget();
        drop(connect(server.address()));
        let later = server.log.wait_opened();
        assert_eq!(server.log.wait_closed(later), CloseReason::TimedOut);
    }
    server.run(0, move |_, net| net.send(id, StreamId::FIRST, b"late"));
    let mut received = [0; 4];
    client.read_exact(&mut received).unwrap();
    assert_eq!(&received, b"late");
    assert!(server.run(0, move |_, net| net.info(id).is_some()));
    // The first bytes are answered by a reset, which nobody reads.
    drop(client);
    server.log.forget();
    server.run(0, move |_, net| net.send(id, StreamId::FIRST, b"to nobody"));
    server.log.wait_closed(id);
    server.stop();
}

#[test]
fn letters_come_in_batches_and_across_shards() {
    const LETTERS: u64 = 1_000;
    let mut setup = setup();
    setup.shards = 2;
    let server = setup.start();
    server.run(0, |echo, _| {
        for _ in 0..LETTERS {
            echo.courier.post(1, Letter::Count(1));
            echo.courier.post(0, Letter::Count(2));
        }
    });
    let mut batch: Vec<Letter> = (0..LETTERS).map(|_| Letter::Count(10)).collect();
    server.mailboxes[1].post_all(&mut batch);
    assert!(batch.is_empty());
    let wait_for = |shard: usize, wanted: u64| {
        let started = Instant::now();
        while server.run(shard, |echo, _| echo.counted) < wanted {
            assert!(started.elapsed() < PATIENCE);
        }
    };
    wait_for(0, 2 * LETTERS);
    wait_for(1, 11 * LETTERS);
    let largest = server
        .log
        .count(|_, seen| matches!(seen, Seen::Mail(n) if *n as u64 >= LETTERS));
    assert!(largest >= 2, "each courier's bag arrives as one batch");
    server.stop();
}

/// Whoever was told something by another shard, and then speaks here, finds what that shard has posted before.
#[test]
fn letters_go_before_bytes_that_were_sent_after_them() {
    let server = server(Manner::Drop);
    let mut client = connect(server.address());
    server.log.wait_opened();
    server.log.forget();
    let (is_busy, busy) = std::sync::mpsc::channel();
    let (go_on, goes_on) = std::sync::mpsc::channel::<()>();
    server.mailboxes[0].post(Letter::Run(Box::new(move |_, _| {
        is_busy.send(()).unwrap();
        goes_on.recv().unwrap();
    })));
    busy.recv_timeout(PATIENCE).unwrap();
    // Both are there when the shard looks again.
    server.mailboxes[0].post(Letter::Count(1));
    client.write_all(b"x").unwrap();
    go_on.send(()).unwrap();
    (server.log).wait("bytes", |seen| {
        matches!(seen, Seen::Received(..)).then_some(())
    });
    let mut order = Vec::new();
    server.log.count(|_, seen| {
        match seen {
            Seen::Mail(_) => order.push("mail"),
            Seen::Received(..) => order.push("bytes"),
            _ => {}
        }
        false
    });
    assert_eq!(order, ["mail", "mail", "bytes"]);
    server.stop();
}

#[test]
fn a_handler_that_takes_nothing_is_asked_again_and_letters_come() {
    let server = server(Manner::Drop);
    let mut client = connect(server.address());
    server.log.wait_opened();
    server.run(0, |echo, _| echo.is_full = true);
    client.write_all(&pattern(100_000)).unwrap();
    // Once the bytes have arrived, it is asked once a millisecond: a hundred turns need no less than half of theirs.
    let started = Instant::now();
    loop {
        let (begun, before) = (Instant::now(), server.turns.load(Ordering::Relaxed));
        while server.turns.load(Ordering::Relaxed) < before + 100 {
            assert!(started.elapsed() < PATIENCE, "it is not asked");
            std::thread::sleep(Duration::from_millis(1));
        }
        if begun.elapsed() >= Duration::from_millis(50) {
            break;
        }
        assert!(started.elapsed() < PATIENCE, "it is asked all the time");
    }
    assert_eq!(server.log.received_bytes.load(Ordering::Relaxed), 0);
    server.run(0, |echo, _| echo.is_full = false);
    let started = Instant::now();
    while server.log.received_bytes.load(Ordering::Relaxed) < 100_000 {
        assert!(started.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(1));
    }
    server.stop();
}

fn wait_open(server: &Server, clients: usize) {
    let started = Instant::now();
    while server.log.count(|_, seen| matches!(seen, Seen::Opened(_))) < clients {
        assert!(started.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Where a handler takes little in each turn, those that had none are the first in the next one.
#[test]
fn a_handler_that_takes_little_hears_everybody() {
    const CLIENTS: usize = 10;
    let mut setup = setup();
    setup.manner = Manner::Drop;
    setup.config.receive_buffer_bytes = Some(1 << 20);
    let server = setup.start();
    let mut clients: Vec<_> = (0..CLIENTS).map(|_| connect(server.address())).collect();
    wait_open(&server, CLIENTS);
    server.run(0, |echo, _| {
        echo.is_full = true;
        echo.reads_per_turn = Some(3);
    });
    for client in &mut clients {
        // More than one read has, so that each has something to say after its turn.
        client.write_all(&pattern(200_000)).unwrap();
    }
    server.run(0, |echo, _| echo.is_full = false);
    let mut heard = std::collections::HashSet::new();
    server.log.wait("all", |seen| {
        if let Seen::Received(id, ..) = seen {
            heard.insert(*id);
        }
        (heard.len() == CLIENTS).then_some(())
    });
    let mut order = Vec::new();
    server.log.count(|_, seen| {
        if let Seen::Received(id, ..) = seen
            && order.last() != Some(id)
        {
            order.push(*id);
        }
        false
    });
    let first: std::collections::HashSet<_> = order.iter().take(CLIENTS).collect();
    assert_eq!(
        first.len(),
        CLIENTS,
        "each has its turn before one has its second"
    );
    server.stop();
}

#[test]
fn ends_of_many_are_told_in_turns() {
    const CLIENTS: usize = 100;
    let server = server(Manner::Drop);
    let clients: Vec<_> = (0..CLIENTS).map(|_| connect(server.address())).collect();
    wait_open(&server, CLIENTS);
    server.run(0, |echo, net| {
        echo.is_deaf_to_ends = true;
        for id in echo.open.clone() {
            net.close(id, 0);
        }
    });
    let closed = |_: usize, seen: &Seen| matches!(seen, Seen::Closed(..));
    let started = Instant::now();
    while server.log.count(closed) < CLIENTS {
        assert!(started.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(1));
    }
    let most = server.log.most_ends.load(Ordering::Relaxed);
    assert_eq!(most, 1, "in one turn");
    drop(clients);
    server.stop();
}

#[test]
fn an_idle_shard_sleeps_and_deadlines_are_kept() {
    let server = setup().start();
    let _idle = connect(server.address());
    server.log.wait_opened();
    // Nothing happens, nothing is done.
    let rest = Duration::from_millis(300);
    server.wait_rest(rest, 0);
    let started = Instant::now();
    server.run(0, |echo, net| echo.deadline_ms = Some(net.now_ms() + 100));
    while server.timeouts.load(Ordering::Relaxed) == 0 {
        assert!(started.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(5));
    }
    // Its clock counts whole milliseconds.
    assert!(started.elapsed() >= Duration::from_millis(99));
    server.wait_rest(rest, 0);
    assert_eq!(server.timeouts.load(Ordering::Relaxed), 1);
    server.stop();
}

#[test]
fn a_flood_of_one_does_not_starve_another() {
    let most_bytes = setup().config.read_bytes_per_turn;
    floods_leave_turns(usize::MAX, most_bytes);
}

/// The more have something to say, the less is read from each.
#[test]
fn floods_of_many_share_what_is_read_in_a_turn() {
    floods_leave_turns(FLOODS * 8_192, 8_192);
}

const FLOODS: usize = 2;

/// The bytes of others that the server reads before those which a client sends while the shard is busy.
fn bytes_before(server: &Server, client: &mut TcpStream, me: ConnectionId) -> usize {
    let (is_busy, busy) = std::sync::mpsc::channel();
    let (go_on, goes_on) = std::sync::mpsc::channel::<()>();
    let log = Arc::clone(&server.log);
    server.mailboxes[0].post(Letter::Run(Box::new(move |_, _| {
        log.forget();
        is_busy.send(()).unwrap();
        goes_on.recv().unwrap();
    })));
    busy.recv_timeout(PATIENCE).unwrap();
    // It is there when the shard looks again, with what the floods have sent meanwhile.
    client.write_all(&[7; 64]).unwrap();
    go_on.send(()).unwrap();
    server.log.wait("the client's bytes", |seen| {
        matches!(seen, Seen::Received(id, _, 64) if *id == me).then_some(())
    });
    let (mut before, mut is_served) = (0, false);
    server.log.count(|_, seen| {
        if let Seen::Received(id, _, bytes) = seen {
            is_served |= *id == me;
            before += if is_served { 0 } else { *bytes };
        }
        false
    });
    before
}

/// A client is heard while others flood the server, after no more than this from each of them in a turn.
fn floods_leave_turns(streams_bytes_per_turn: usize, most_each_bytes: usize) {
    let mut setup = setup();
    setup.config.streams_bytes_per_turn = streams_bytes_per_turn;
    setup.manner = Manner::Drop;
    // More than a turn's worth waits in the kernel whatever its defaults are.
    setup.config.receive_buffer_bytes = Some(1 << 20);
    let most_bytes = FLOODS * most_each_bytes;
    let server = setup.start();
    let floods: Vec<_> = (0..FLOODS)
        .map(|_| {
            let mut flood = connect(server.address());
            std::thread::spawn(move || {
                let bytes = pattern(1 << 20);
                while flood.write_all(&bytes).is_ok() {}
            })
        })
        .collect();
    let mut client = connect(server.address());
    client.write_all(b"I am here").unwrap();
    let me = server.log.wait("the client", |seen| match seen {
        Seen::Received(id, _, 9) => Some(*id),
        _ => None,
    });
    for _ in 0..50 {
        let before = bytes_before(&server, &mut client, me);
        // Each flood's turn may have been under way, and each has one more at most.
        assert!(before <= 2 * most_bytes, "{before} bytes of others first");
        // The flood goes on.
        server.log.wait("bytes of a flood", |seen| {
            matches!(seen, Seen::Received(id, ..) if *id != me).then_some(())
        });
    }
    server.stop();
    for flood in floods {
        flood.join().unwrap();
    }
}

/// A client at another address than those that flood waits for one of them, not for all.
#[test]
fn each_address_has_its_turn() {
    const FLOODS: usize = 8;
    let mut setup = setup();
    // One read in each turn.
    setup.config.reading_per_turn_ms = 0;
    setup.manner = Manner::Drop;
    let read_bytes = setup.config.read_bytes_per_turn;
    let server = setup.start();
    let floods: Vec<_> = (0..FLOODS)
        .map(|_| {
            let mut flood = connect(server.address());
            std::thread::spawn(move || {
                let bytes = vec![b'f'; 1 << 16];
                while flood.write_all(&bytes).is_ok() {}
            })
        })
        .collect();
    let own = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    own.bind(&"127.0.0.2:0".parse::<SocketAddr>().unwrap().into())
        .unwrap();
    own.connect(&server.address().into()).unwrap();
    let mut client = TcpStream::from(own);
    client.write_all(b"I am here").unwrap();
    let me = server.log.wait("the client", |seen| match seen {
        Seen::Received(id, _, 9) => Some(*id),
        _ => None,
    });
    let mut flooding = std::collections::HashSet::new();
    server.log.wait("bytes of all floods", |seen| {
        if let Seen::Received(id, ..) = seen {
            flooding.insert(*id);
        }
        (flooding.len() > FLOODS).then_some(())
    });
    for _ in 0..20 {
        // All of them have more to say than is read of them in a turn.
        let before = bytes_before(&server, &mut client, me);
        // One may have been under way, and the first turn may not know of the client yet.
        assert!(before <= 3 * read_bytes, "{before} bytes of others first");
    }
    server.stop();
    for flood in floods {
        flood.join().unwrap();
    }
}

#[test]
fn limits_and_the_gate_turn_newcomers_away() {
    let mut setup = setup();
    setup.config.connections = 2;
    let server = setup.start();
    let mut first = connect(server.address());
    exchange(&mut first, b"one");
    let mut second = connect(server.address());
    exchange(&mut second, b"two");
    let mut third = connect(server.address());
    let refused = third.read(&mut [0; 1]);
    assert!(matches!(refused, Ok(0) | Err(_)), "{refused:?}");
    server.wait_figures(|figures| figures.refused > 0);
    let listener = server.counters[0].listeners()[0];
    assert_eq!(listener.refused[RefusedConnection::Connections as usize], 1);
    assert_eq!((listener.accepted, listener.connections), (2, 2));
    drop(second);
    let started = Instant::now();
    loop {
        let mut client = connect(server.address());
        let _ = client.write_all(b"x");
        if matches!(client.read(&mut [0; 1]), Ok(1)) {
            break;
        }
        assert!(started.elapsed() < PATIENCE, "room was made");
    }
    server.gate.shut();
    let started = Instant::now();
    while TcpStream::connect(server.address()).is_ok() {
        assert!(started.elapsed() < PATIENCE, "the socket is closed");
        std::thread::sleep(Duration::from_millis(10));
    }
    exchange(&mut first, b"goes on");
    server.stop();
}

#[test]
fn newcomers_are_refused_for_as_long_as_the_handler_says() {
    use RefusedConnection::{Refused, RefusedNetwork};
    let server = setup().start();
    let mut first = connect(server.address());
    exchange(&mut first, b"one");
    let network = |text: &str| RefusedPeers::Of(vec![text.parse().expect("a network")]);
    let refused = [
        (RefusedPeers::All, Refused),
        (network("127.0.0.0/8"), RefusedNetwork),
    ];
    for (count, (peers, reason)) in (1..).zip(refused) {
        server.run(0, move |_, net| net.refuse_newcomers(&[0], &peers));
        let mut second = connect(server.address());
        let end = second.read(&mut [0; 1]);
        assert!(matches!(end, Ok(0) | Err(_)), "{end:?}");
        server.wait_figures(|figures| figures.refused == count);
        let listener = server.counters[0].listeners()[0];
        assert_eq!(listener.refused[reason as usize], 1);
        exchange(&mut first, b"goes on");
    }
    // Another listener's number concerns nobody here, and neither does another network.
    let others = [(1, RefusedPeers::All), (0, network("10.0.0.0/8"))];
    for (listener, peers) in others {
        server.run(0, move |_, net| net.refuse_newcomers(&[listener], &peers));
        exchange(&mut connect(server.address()), b"two");
    }
    server.stop();
}

#[test]
fn copies_that_wait_to_be_sent_are_counted_until_they_are_gone() {
    let mut setup = setup();
    setup.manner = Manner::Flood(64 * 1024);
    let server = setup.start();
    let mut client = connect(server.address());
    let started = Instant::now();
    // Every chunk asks for 64 KiB that are not read.
    while server.counters[0].held_bytes() <= 1 << 20 {
        assert!(started.elapsed() < PATIENCE, "{:?}", server.counters[0]);
        client.write_all(b"x").unwrap();
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(client);
    while server.counters[0].held_bytes() > 0 {
        assert!(started.elapsed() < PATIENCE, "{:?}", server.counters[0]);
        std::thread::sleep(Duration::from_millis(5));
        // Counts are of the end of a turn.
        server.run(0, |_, _| ());
    }
    server.stop();
}

#[test]
fn a_stop_closes_what_is_open() {
    let server = setup().start();
    let mut client = connect(server.address());
    exchange(&mut client, b"hello");
    let id = server.log.wait_opened();
    let log = server.log.clone();
    let handlers = server.stop();
    assert!(handlers[0].open.is_empty());
    assert_eq!(log.wait_closed(id), CloseReason::Shutdown);
    assert_eq!(client.read(&mut [0; 1]).unwrap(), 0);
}

#[test]
fn shards_share_a_port_and_all_of_them_get_connections() {
    let mut setup = setup();
    setup.shards = 3;
    let server = setup.start();
    let mut clients: Vec<_> = (0..60).map(|_| connect(server.address())).collect();
    for client in &mut clients {
        exchange(client, b"hello");
    }
    for shard in 0..3 {
        let count = server
            .log
            .count(|who, seen| who == shard && matches!(seen, Seen::Opened(_)));
        assert!(count > 0, "shard {shard} got none of 60");
    }
    server.stop();
}
