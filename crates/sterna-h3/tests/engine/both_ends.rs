//! Client and server against each other, with the bytes of each stream cut and mixed at will.

use std::collections::BTreeMap;

use proptest::prelude::*;
use sterna_h3::{Connection, Content, Event, Features, Field, Limits, RequestLine, StreamId};

use crate::harness::{ALL, End, Wire};

/// A message beside its head.
#[derive(Clone, Debug)]
struct Body {
    pieces: Vec<Vec<u8>>,
    trailers: bool,
}

/// A request, and what is answered.
#[derive(Clone, Debug)]
struct Plan {
    method: &'static str,
    value: Vec<u8>,
    request: Body,
    interim: u8,
    status: u16,
    response: Body,
    /// The server holds the request back for a while.
    held: bool,
    /// The server answers before the request is complete.
    at_once: bool,
}

fn body() -> impl Strategy<Value = Body> {
    let piece = prop_oneof![
        4 => prop::collection::vec(any::<u8>(), 0..20),
        1 => prop::collection::vec(any::<u8>(), 2_000..3_000),
    ];
    (prop::collection::vec(piece, 0..4), any::<bool>())
        .prop_map(|(pieces, trailers)| Body { pieces, trailers })
}

fn plan() -> impl Strategy<Value = Plan> {
    (
        prop::sample::select(vec!["GET", "POST", "PUT", "DELETE", "X-ANY"]),
        "[a-zA-Z0-9/=]{1,30}",
        body(),
        0..3_u8,
        prop::sample::select(vec![200_u16, 201, 400, 404, 503, 599]),
        body(),
        any::<[bool; 2]>(),
    )
        .prop_map(
            |(method, value, request, interim, status, response, [held, at_once])| Plan {
                method,
                value: value.into_bytes(),
                request,
                interim,
                status,
                response,
                held,
                at_once,
            },
        )
}

/// Sends what follows a head.
fn send_body(connection: &mut Connection, stream: StreamId, body: &Body, out: &mut Wire) {
    for (nth, piece) in body.pieces.iter().enumerate() {
        if nth % 2 == 0 {
            connection.send(stream, piece, out).unwrap();
        } else {
            let piece = piece.clone().into();
            connection.send_shared(stream, piece, out).unwrap();
        }
    }
    if body.trailers {
        let trailers = [Field::new("checksum", b"7")];
        connection.send_trailers(stream, &trailers, out).unwrap();
    } else {
        connection.finish(stream, out).unwrap();
    }
}

fn answer(connection: &mut Connection, stream: StreamId, plan: &Plan, out: &mut Wire) {
    for _ in 0..plan.interim {
        connection.inform(stream, 103, &[], out).unwrap();
    }
    let fields = [Field::new("etag", &plan.value)];
    if plan.response.pieces.is_empty() && !plan.response.trailers {
        connection
            .respond(stream, plan.status, &fields, Content::Empty, out)
            .unwrap();
        return;
    }
    connection
        .respond(stream, plan.status, &fields, Content::Streamed, out)
        .unwrap();
    send_body(connection, stream, &plan.response, out);
}

/// What one end is told of a message after its head.
fn body_lines(stream: StreamId, body: &Body) -> Vec<String> {
    let mut lines = Vec::new();
    let content = body.pieces.concat();
    if !content.is_empty() {
        lines.push(format!("{stream:?} content {}", content.escape_ascii()));
    }
    if body.trailers {
        lines.push(format!("{stream:?} trailers [checksum: 7]"));
    }
    lines.push(format!("{stream:?} end"));
    lines
}

/// Lines by what they begin with: the stream. Content that others came in between of is put
/// together again.
fn by_stream(lines: Vec<String>) -> BTreeMap<String, Vec<String>> {
    let mut streams: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for line in lines {
        let (stream, rest) = line.split_once(' ').unwrap_or((&line, ""));
        let told = streams.entry(stream.to_owned()).or_default();
        if let (Some(more), Some(last)) = (rest.strip_prefix("content "), told.last_mut())
            && last.contains(" content ")
        {
            last.push_str(more);
        } else {
            told.push(line.clone());
        }
    }
    streams
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 200,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn messages_arrive_as_they_were_sent(
        plans in prop::collection::vec(plan(), 1..5),
        cuts in prop::collection::vec((any::<prop::sample::Index>(), 1..400_usize, any::<bool>()), 1..60),
    ) {
        let limits = Limits::default();
        let mut client = End::client(&limits, ALL);
        let mut server = End::server(&limits, Features::default());
        for plan in &plans {
            let line = RequestLine::https(plan.method, "example.org", "/v1/topics/t");
            let fields = [Field::secret("authorization", &plan.value)];
            let stream = client
                .connection
                .request(&line, &fields, Content::Streamed, &mut client.out)
                .unwrap();
            send_body(&mut client.connection, stream, &plan.request, &mut client.out);
        }
        let plan_of = |stream: StreamId| &plans[stream.0 as usize / 4];
        let serve = &mut |connection: &mut Connection, out: &mut Wire, event: &Event<'_>| {
            match event {
                Event::Request { stream, .. } => {
                    let plan = plan_of(*stream);
                    if plan.held {
                        connection.hold(*stream).unwrap();
                    }
                    if plan.at_once {
                        answer(connection, *stream, plan, out);
                    }
                }
                Event::End { stream } if !plan_of(*stream).at_once => {
                    answer(connection, *stream, plan_of(*stream), out);
                }
                _ => {}
            }
        };
        let mut cuts = cuts.iter().cycle();
        loop {
            let (up, down) = (client.out.readable(), server.out.readable());
            if up.is_empty() && down.is_empty() {
                let held: Vec<_> = (0..plans.len() as u64)
                    .map(|nth| StreamId(4 * nth))
                    .filter(|stream| server.connection.is_held(*stream))
                    .collect();
                if held.is_empty() {
                    break;
                }
                for stream in held {
                    server.connection.resume(stream).unwrap();
                    server.drain(serve);
                }
                continue;
            }
            let Some((which, bytes, to_server)) = cuts.next() else {
                break;
            };
            if (*to_server && !up.is_empty()) || down.is_empty() {
                server.read(&mut client.out, up[which.index(up.len())], *bytes, serve);
            } else {
                let stream = down[which.index(down.len())];
                client.read(&mut server.out, stream, *bytes, &mut |_, _, _| {});
            }
        }
        prop_assert_eq!(&client.violations, &[]);
        prop_assert_eq!(&server.violations, &[]);
        let mut at_server = by_stream(server.log.take());
        let mut at_client = by_stream(client.log.take());
        prop_assert!(at_server.remove("settings").is_some());
        prop_assert!(at_client.remove("settings").is_some());
        for (nth, plan) in plans.iter().enumerate() {
            let stream = StreamId(4 * nth as u64);
            let mut wanted = vec![format!(
                "{stream:?} request {} /v1/topics/t [authorization: (secret)]",
                plan.method
            )];
            wanted.extend(body_lines(stream, &plan.request));
            let name = format!("{stream:?}");
            prop_assert_eq!(at_server.remove(&name), Some(wanted));
            let mut wanted = vec![format!("{stream:?} response 103"); plan.interim.into()];
            wanted.push(format!(
                "{stream:?} response {} [etag: {}]",
                plan.status,
                plan.value.escape_ascii()
            ));
            wanted.extend(body_lines(stream, &plan.response));
            prop_assert_eq!(at_client.remove(&name), Some(wanted));
        }
        prop_assert!(at_server.is_empty() && at_client.is_empty());
        prop_assert_eq!(client.connection.open_requests(), 0);
        prop_assert_eq!(server.connection.open_requests(), 0);
    }
}
