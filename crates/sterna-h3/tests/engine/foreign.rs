//! What another implementation writes: streams of aioquic 1.7.2, recorded where it talked to this
//! engine's settings, in any pieces.

use sterna_h3::{Chunk, Content, Field, Limits, RequestLine, StreamId};

use crate::harness::{ALL, End};

/// A stream, its bytes and whether they end it.
type Recorded = (u64, &'static str, bool);

const CLIENT: [Recorded; 7] = [
    (2, "0004100150000710080121013301ab603742010d0108", false),
    (6, "02", false),
    (10, "03", false),
    (
        0,
        "01220000d4d75086a0e41d139d09518963b85849eb3110c0fff55f4587ba51d85b141c64000568656c6c6f\
         010b00002e24e527545b4f0135",
        true,
    ),
    (
        4,
        "01290000cfd75086a0e41d139d09518863b8584150831eaf2f00b95d8749c87a3f89f058d360ea4567b13f",
        false,
    ),
    (8, "40410474776f20776179", false),
    (14, "4054046f6e6520776179", true),
];
const CLIENT_DATAGRAM: &str = "01646174616772616d";

const SERVER: [Recorded; 6] = [
    (3, "0004100150000710080121013301ab60374201", false),
    (7, "02", false),
    (11, "03", false),
    (
        0,
        "01090000d85b043c2f783e01270000d95f4d85198fdad3135401355697dd6d5f4a01c5349fba817df69403\
         d71a7ee32ea98b46ff000568656c6c6f",
        true,
    ),
    (
        4,
        "011f0000d92f0d4148b782c69b07522b3d895a74a6b65692c1ca9f8592c1ca900b",
        false,
    ),
    (1, "40410466726f6d20736572766572", true),
];

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<_> = hex.chars().filter_map(|digit| digit.to_digit(16)).collect();
    digits
        .chunks(2)
        .map(|pair| (pair[0] << 4 | pair[1]) as u8)
        .collect()
}

fn play(end: &mut End, recorded: &[Recorded], piece_bytes: usize) {
    for (stream, hex, fin) in recorded {
        let bytes = bytes(hex);
        let pieces = bytes.chunks(piece_bytes);
        let last = pieces.len() - 1;
        for (nth, piece) in pieces.enumerate() {
            let chunk = Chunk {
                fin: *fin && nth == last,
                ..Chunk::new(StreamId(*stream), piece)
            };
            end.receive(chunk, &mut |connection, out, event| {
                if let sterna_h3::Event::Request { stream, head, .. } = event
                    && head.is_connect()
                {
                    connection.accept_session(*stream, &[], out).unwrap();
                }
            });
        }
    }
    assert_eq!(end.violations, []);
}

#[test]
fn a_client_of_others() {
    for piece_bytes in [1, 2, 7, 1_000] {
        let mut server = End::server(&Limits::default(), ALL);
        play(&mut server, &CLIENT, piece_bytes);
        server.datagram(&bytes(CLIENT_DATAGRAM));
        assert_eq!(
            server.log.take(),
            [
                "settings",
                "s0 request POST /v1/topics/a [content-type: text/plain] [authorization: Bearer abc]",
                "s0 content hello",
                "s0 trailers [checksum: 5]",
                "s0 end",
                "s4 request CONNECT /v1/session",
                "s4 stream s8",
                "s8 content two way",
                "s4 stream s14",
                "s14 content one way",
                "s14 end",
                "s4 datagram datagram"
            ]
        );
        assert!(server.connection.peer_settings().unwrap().datagrams);
    }
}

#[test]
fn a_server_of_others() {
    for piece_bytes in [1, 2, 7, 1_000] {
        let mut client = End::client(&Limits::default(), ALL);
        let (control, rest) = SERVER.split_at(3);
        play(&mut client, control, piece_bytes);
        let (connection, out) = (&mut client.connection, &mut client.out);
        let line = RequestLine::https("POST", "localhost", "/v1/topics/a");
        connection.request(&line, &[], Content::Empty, out).unwrap();
        let session = connection.connect_session("localhost", "/v1/session", &[], out);
        assert_eq!(session, Ok(StreamId(4)));
        play(&mut client, rest, piece_bytes);
        assert_eq!(
            client.log.take(),
            [
                "settings",
                "s0 response 103 [link: </x>]",
                "s0 response 200 [server: aioquic] [content-length: 5] [date: Sun, 06 Nov 1994 \
                 08:49:37 GMT]",
                "s0 content hello",
                "s0 end",
                "s4 response 200 [sec-webtransport-http3-draft: draft02]",
                "s4 stream s1",
                "s1 content from server",
                "s1 end"
            ]
        );
    }
}

/// The same request is written with the same bytes, but for the mark of a secret.
#[test]
fn others_write_the_same() {
    let mut client = End::client(&Limits::default(), ALL);
    let fields = [
        Field::new("content-type", b"text/plain"),
        Field::new("authorization", b"Bearer abc"),
    ];
    let (connection, out) = (&mut client.connection, &mut client.out);
    let line = RequestLine::https("POST", "localhost", "/v1/topics/a");
    let stream = connection
        .request(&line, &fields, Content::Streamed, out)
        .unwrap();
    connection.send(stream, b"hello", out).unwrap();
    let trailers = [Field::new("checksum", b"5")];
    connection.send_trailers(stream, &trailers, out).unwrap();
    assert_eq!(out.take(0), bytes(CLIENT[3].1));
}
