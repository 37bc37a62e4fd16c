//! Bytes that a peer sent before it went away, where a write to it fails first.
#![allow(clippy::unwrap_used, missing_docs)]

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use sterna_net::{
    CloseReason, ConnectionId, ListenerTransport, ShardConfig, StreamId, WebSocketConfig,
};

use crate::support::pki::{Authority, connect as connect_tls};
use crate::support::{Letter, Manner, PATIENCE, Seen, Server, Setup, pattern};
use crate::websocket::{BINARY, CLOSE, Client, FINAL, frame, tcp};

const WORDS: usize = 50_000;

fn setup(transport: ListenerTransport) -> Setup {
    let mut setup = Setup::new(transport);
    // Several turns read them, and each of these would write, too.
    setup.config.read_bytes_per_turn = 8 * 1024;
    setup.close_on_end = false;
    setup
}

fn websocket() -> ListenerTransport {
    ListenerTransport::WebSocket(Arc::new(WebSocketConfig::default()))
}

/// Drops what comes; each chunk is answered, so that every turn has something to write.
fn floods(server: &Server) {
    server.run(0, |echo, _| echo.manner = Manner::Flood(100));
}

/// Holds the shard while the client does `last` and goes, and then lets it write before it reads.
fn write_first(server: &Server, id: ConnectionId, last: impl FnOnce()) {
    let (is_busy, busy) = std::sync::mpsc::channel();
    let (go_on, goes_on) = std::sync::mpsc::channel::<()>();
    server.mailboxes[0].post(Letter::Run(Box::new(move |_, net| {
        is_busy.send(()).unwrap();
        goes_on.recv().unwrap();
        net.send(id, StreamId::FIRST, &pattern(1_000));
    })));
    busy.recv_timeout(PATIENCE).unwrap();
    last();
    go_on.send(()).unwrap();
}

fn reset_at_close(socket: &TcpStream) {
    let linger = Some(Duration::ZERO);
    (socket2::SockRef::from(socket).set_linger(linger)).unwrap();
}

fn received(server: &Server) -> usize {
    server.log.received_bytes.load(Ordering::Relaxed)
}

fn finished(server: &Server, id: ConnectionId) -> usize {
    let finished = Seen::Finished(id, StreamId::FIRST);
    server.log.count(|_, seen| *seen == finished)
}

#[test]
fn are_read_over_tcp_although_the_write_fails_first() {
    for is_end_told in [false, true] {
        let server = setup(ListenerTransport::Tcp).start();
        floods(&server);
        let mut client = tcp(server.address());
        let id = server.log.wait_opened();
        write_first(&server, id, move || {
            client.write_all(&pattern(WORDS)).unwrap();
            if is_end_told {
                client.shutdown(Shutdown::Write).unwrap();
            }
            reset_at_close(&client);
            drop(client);
        });
        let reason = server.log.wait_closed(id);
        assert!(matches!(reason, CloseReason::Failed(_)), "{reason:?}");
        assert_eq!(received(&server), WORDS);
        // A handler that asks whether there is room is told that there is none.
        let most = server.log.most_unsent_bytes.load(Ordering::Relaxed);
        assert_eq!(most, ShardConfig::default().high_watermark_bytes);
        // A reset is no end of the stream, and the end that came before it is one.
        assert_eq!(finished(&server, id), usize::from(is_end_told));
        server.stop();
    }
}

#[test]
fn are_read_after_a_pause_for_unsent_bytes() {
    let server = setup(ListenerTransport::Tcp).start();
    server.run(0, |echo, _| echo.manner = Manner::Echo);
    let mut client = tcp(server.address());
    client.write_all(b"hello").unwrap();
    let id = server.log.wait_opened();
    // More than the system takes: the handler pauses until there is room.
    server.run(0, move |_, net| {
        net.send_shared(id, StreamId::FIRST, vec![0; 64 << 20].into());
        net.pause(id, true);
    });
    client.read_exact(&mut [0; 5]).unwrap();
    client.write_all(&pattern(WORDS)).unwrap();
    reset_at_close(&client);
    drop(client);
    server.log.wait_closed(id);
    assert_eq!(received(&server), 5 + WORDS);
    server.stop();
}

#[test]
fn are_read_over_tls_and_its_end_counts() {
    for is_end_told in [false, true] {
        let authority = Authority::new();
        let config = authority.tls_config(&[]);
        let server = setup(ListenerTransport::Tls(Arc::new(config))).start();
        let versions = &[&rustls::version::TLS13];
        let mut client = connect_tls(server.address(), &authority.client(versions, None, &[]));
        client.write_all(b"hello").unwrap();
        client.flush().unwrap();
        client.read_exact(&mut [0; 5]).unwrap();
        let id = server.log.wait_opened();
        floods(&server);
        write_first(&server, id, move || {
            client.write_all(&pattern(WORDS)).unwrap();
            if is_end_told {
                client.conn.send_close_notify();
            }
            client.flush().unwrap();
            reset_at_close(&client.sock);
            drop(client);
        });
        let reason = server.log.wait_closed(id);
        assert!(matches!(reason, CloseReason::Failed(_)), "{reason:?}");
        assert_eq!(received(&server), 5 + WORDS);
        assert_eq!(finished(&server, id), usize::from(is_end_told));
        server.stop();
    }
}

#[test]
fn are_read_over_websocket_and_its_close_counts() {
    for is_end_told in [false, true] {
        let server = setup(websocket()).start();
        floods(&server);
        let mut client = Client::upgrade(tcp(server.address()));
        let id = server.log.wait_opened();
        write_first(&server, id, move || {
            let mut last = frame(FINAL | BINARY, &pattern(WORDS));
            if is_end_told {
                last.extend(frame(FINAL | CLOSE, &1000u16.to_be_bytes()));
            }
            client.stream.write_all(&last).unwrap();
            reset_at_close(&client.stream);
            drop(client);
        });
        let reason = server.log.wait_closed(id);
        if is_end_told {
            assert_eq!(reason, CloseReason::Peer { code: 0 });
        } else {
            assert!(matches!(reason, CloseReason::Failed(_)), "{reason:?}");
        }
        assert_eq!(received(&server), WORDS);
        assert_eq!(finished(&server, id), usize::from(is_end_told));
        server.stop();
    }
}

/// A handler that reads no more keeps a peer that is gone no longer than a pause may last.
#[test]
fn are_lost_where_the_handler_never_reads_on() {
    let mut setup = setup(ListenerTransport::Tcp);
    setup.config.half_closed_timeout_ms = 50;
    setup.config.paused_timeout_ms = 50;
    let server = setup.start();
    let mut client = tcp(server.address());
    let id = server.log.wait_opened();
    server.run(0, move |_, net| net.pause(id, true));
    write_first(&server, id, move || {
        client.write_all(&pattern(WORDS)).unwrap();
        reset_at_close(&client);
        drop(client);
    });
    let reason = server.log.wait_closed(id);
    assert!(matches!(reason, CloseReason::Failed(_)), "{reason:?}");
    assert_eq!(received(&server), 0);
    assert!(server.run(0, move |echo, _| echo.open.is_empty()));
    server.wait_rest(Duration::from_millis(20), 2);
    server.stop();
}
