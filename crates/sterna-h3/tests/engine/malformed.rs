//! Messages that are malformed (RFC 9114, section 4), and such that only look it.

use sterna_h3::{ErrorCode, Features, Limits, RequestLine, Scope, StreamId};

use crate::harness::{ALL, End, connected, frame, headers};

type List<'a> = &'a [(&'a str, &'a str)];

/// What a request lacks for itself.
const REST: List<'_> = &[(":scheme", "https"), (":authority", "a"), (":path", "/")];

/// What is told of a request, or the error of its stream.
fn request(fields: List<'_>, features: Features) -> Result<Vec<String>, ErrorCode> {
    let mut server = End::server(&Limits::default(), features);
    server.feed(2, &[0, 4, 0], false);
    server.log.take();
    server.feed(0, &headers(fields), true);
    let told = judge(&mut server);
    if let Err(code) = told {
        // All of it has come: there is nothing to stop.
        assert_eq!(server.out.ended(0), (Some(code), None));
    }
    told
}

/// The same of a response.
fn response(method: &str, content: &[u8]) -> Result<Vec<String>, ErrorCode> {
    let (mut client, _) = connected(&Limits::default(), Features::default());
    let line = RequestLine::https(method, "a", "/");
    let sent = client
        .connection
        .request(&line, &[], sterna_h3::Content::Empty, &mut client.out);
    sent.unwrap();
    client.feed(0, content, true);
    judge(&mut client)
}

fn judge(end: &mut End) -> Result<Vec<String>, ErrorCode> {
    match end.violations.pop() {
        None => Ok(end.log.take()),
        Some(violation) => {
            // Section 4.1.2: the stream ends, and nothing else.
            assert_eq!(violation.scope, Scope::Stream(StreamId(0)), "{violation}");
            assert!(!end.connection.is_closed());
            assert_eq!(end.connection.open_requests(), 0);
            Err(violation.code)
        }
    }
}

fn with(
    first: (&'static str, &'static str),
    rest: List<'static>,
) -> Vec<(&'static str, &'static str)> {
    [&[first][..], rest].concat()
}

#[test]
fn requests_that_are_right() {
    let m = |method| (":method", method);
    let right: &[Vec<(&str, &str)>] = &[
        with(m("GET"), REST),
        with(m("get"), REST),
        with(m("X-!#$%&'*+.^_`|~9"), REST),
        // In any order, as long as they come first.
        vec![
            (":path", "/"),
            m("GET"),
            (":authority", "a"),
            (":scheme", "http"),
            ("a", "b"),
        ],
        // The field host does as well.
        vec![
            m("GET"),
            (":scheme", "https"),
            (":path", "/"),
            ("host", "a:1"),
        ],
        vec![
            m("GET"),
            (":scheme", "https"),
            (":path", "/"),
            (":authority", "a"),
            ("host", "a"),
        ],
        vec![
            m("OPTIONS"),
            (":scheme", "https"),
            (":path", "*"),
            (":authority", "a"),
        ],
        // Other schemes need no authority.
        vec![m("GET"), (":scheme", "urn"), (":path", "x:y")],
        vec![m("CONNECT"), (":authority", "a:443")],
        [
            &with(m("GET"), REST)[..],
            &[("te", "trailers"), ("te", "Trailers")],
        ]
        .concat(),
        [
            &with(m("GET"), REST)[..],
            &[("x", ""), ("x", "\u{e9}\t~"), ("x", "a b")],
        ]
        .concat(),
        [
            &with(m("GET"), REST)[..],
            &[("content-length", "0"), ("content-length", "0")],
        ]
        .concat(),
        [
            &with(m("GET"), REST)[..],
            &[("priority", "\u{ff}nonsense"), ("x-odd.name!", "1")],
        ]
        .concat(),
    ];
    for fields in right {
        let told = request(fields, Features::default());
        let told = told.unwrap_or_else(|code| panic!("{fields:?}: {code}"));
        assert!(told[0].starts_with("s0 request") && told[1] == "s0 end");
    }
    let tunnel = with(m("CONNECT"), REST);
    let tunnel = [&tunnel[..], &[(":protocol", "websocket")]].concat();
    assert!(request(&tunnel, ALL).is_ok());
    // RFC 9220, section 3: it is undefined where it was not announced.
    let refused = request(&tunnel, Features::default());
    assert_eq!(refused, Err(ErrorCode::H3_MESSAGE_ERROR));
}

#[test]
fn requests_that_are_malformed() {
    let m = |method| (":method", method);
    let get = with(m("GET"), REST);
    let and = |more: List<'static>| [&get[..], more].concat();
    let wrong: &[Vec<(&str, &str)>] = &[
        vec![],
        REST.to_vec(),
        vec![m("GET")],
        vec![m("GET"), (":scheme", "https"), (":authority", "a")],
        vec![m("GET"), (":authority", "a"), (":path", "/")],
        vec![m("GET"), (":scheme", "https"), (":path", "/")],
        vec![m("GET"), (":scheme", "https"), (":path", "/"), ("host", "")],
        vec![
            m("GET"),
            (":scheme", "https"),
            (":path", "/"),
            (":authority", ""),
        ],
        vec![
            m("GET"),
            (":scheme", "https"),
            (":path", ""),
            (":authority", "a"),
        ],
        vec![
            m("GET"),
            (":scheme", "https"),
            (":path", "*"),
            (":authority", "a"),
        ],
        vec![
            m("GET"),
            (":scheme", "https"),
            (":path", "x"),
            (":authority", "a"),
        ],
        vec![
            m("GET"),
            (":scheme", "https"),
            (":path", "/ x"),
            (":authority", "a"),
        ],
        vec![
            m("GET"),
            (":scheme", "https"),
            (":path", "/#x"),
            (":authority", "a"),
        ],
        vec![
            m("GET"),
            (":scheme", "https"),
            (":path", "/\u{e9}"),
            (":authority", "a"),
        ],
        vec![
            m("GET"),
            (":scheme", "https"),
            (":path", "/"),
            (":authority", "u@a"),
        ],
        vec![
            m("GET"),
            (":scheme", "https"),
            (":path", "/"),
            (":authority", "a/b"),
        ],
        vec![
            m("GET"),
            (":scheme", "ht tp"),
            (":path", "/"),
            (":authority", "a"),
        ],
        vec![
            m("GET"),
            (":scheme", ""),
            (":path", "/"),
            (":authority", "a"),
        ],
        with(m(""), REST),
        with(m("G T"), REST),
        // Section 4.3: undefined, those of responses, twice, and after others.
        and(&[(":status", "200")]),
        and(&[(":x", "1")]),
        and(&[(":path", "/")]),
        and(&[("a", "b"), (":protocol", "x")]),
        vec![
            ("a", "b"),
            m("GET"),
            (":scheme", "https"),
            (":path", "/"),
            (":authority", "a"),
        ],
        // Section 4.2.
        and(&[("Upper", "1")]),
        and(&[("a b", "1")]),
        and(&[("", "1")]),
        and(&[("a:b", "1")]),
        and(&[("\u{e9}", "1")]),
        and(&[("a", "\0")]),
        and(&[("a", "b\r")]),
        and(&[("a", "b\nc")]),
        and(&[("a", "\u{7f}")]),
        and(&[("a", " b")]),
        and(&[("a", "b\t")]),
        and(&[("connection", "keep-alive")]),
        and(&[("keep-alive", "1")]),
        and(&[("proxy-connection", "close")]),
        and(&[("transfer-encoding", "chunked")]),
        and(&[("upgrade", "h2c")]),
        and(&[("te", "gzip")]),
        and(&[("te", "trailers, gzip")]),
        // Section 4.3.1.
        and(&[("host", "b")]),
        and(&[("host", "a"), ("host", "a")]),
        and(&[(":protocol", "websocket")]),
        // RFC 9110, section 8.6.
        and(&[("content-length", "")]),
        and(&[("content-length", "-1")]),
        and(&[("content-length", "+1")]),
        and(&[("content-length", "1, 1")]),
        and(&[("content-length", "0"), ("content-length", "1")]),
        and(&[("content-length", "18446744073709551616")]),
        and(&[("content-length", "1")]),
        // Section 4.4.
        vec![m("CONNECT")],
        with(m("CONNECT"), REST),
        vec![m("CONNECT"), (":authority", "a"), (":path", "/")],
        vec![m("CONNECT"), (":authority", "a"), (":scheme", "https")],
        vec![m("CONNECT"), (":authority", "a"), (":protocol", "x")],
        vec![
            m("CONNECT"),
            (":scheme", "https"),
            (":path", "/"),
            (":protocol", "x"),
        ],
        with(
            m("CONNECT"),
            &[
                (":scheme", "https"),
                (":authority", "a"),
                (":path", "/"),
                (":protocol", ""),
            ],
        ),
    ];
    for fields in wrong {
        let told = request(fields, ALL);
        assert_eq!(told, Err(ErrorCode::H3_MESSAGE_ERROR), "{fields:?}");
    }
}

#[test]
fn content_has_the_length_that_was_promised() {
    let head = |length| {
        headers(&[
            (":method", "POST"),
            (":scheme", "https"),
            (":authority", "a"),
            (":path", "/"),
            ("content-length", length),
        ])
    };
    let post = |length, content: &[&[u8]]| {
        let mut server = End::server(&Limits::default(), Features::default());
        let frames: Vec<_> = content.iter().map(|bytes| frame(0, bytes)).collect();
        server.feed(0, &[head(length), frames.concat()].concat(), true);
        judge(&mut server).map(|told| told.join("; "))
    };
    let wrong = Err(ErrorCode::H3_MESSAGE_ERROR);
    let right = "s0 request POST / [content-length: 3]; s0 content abc; s0 end";
    assert_eq!(post("3", &[b"abc"]).as_deref(), Ok(right));
    assert_eq!(post("3", &[b"a", b"", b"bc"]).as_deref(), Ok(right));
    assert_eq!(post("3", &[b"ab"]), wrong);
    assert_eq!(post("3", &[]), wrong);
    assert_eq!(post("3", &[b"abc", b"d"]), wrong);
    assert_eq!(post("0", &[b"a"]), wrong);
    // Too much is refused when its frame begins, before it has come.
    let mut server = End::server(&Limits::default(), Features::default());
    server.feed(0, &[head("3"), vec![0, 4]].concat(), false);
    assert_eq!(judge(&mut server).unwrap_err(), ErrorCode::H3_MESSAGE_ERROR);
    assert_eq!(
        server.out.ended(0),
        (
            Some(ErrorCode::H3_MESSAGE_ERROR),
            Some(ErrorCode::H3_MESSAGE_ERROR)
        )
    );
}

#[test]
fn trailers_are_fields_and_nothing_else() {
    let trailers = |fields: List<'_>| {
        let mut server = End::server(&Limits::default(), Features::default());
        let get = headers(&with((":method", "GET"), REST));
        server.feed(0, &[get, headers(fields)].concat(), true);
        judge(&mut server)
    };
    assert!(trailers(&[("a", "b")]).is_ok());
    assert!(trailers(&[]).is_ok());
    for fields in [
        [("a", "b"), (":path", "/")],
        [(":status", "200"), ("a", "b")],
        [("A", "b"), ("a", "b")],
        [("upgrade", "x"), ("a", "b")],
    ] {
        assert_eq!(trailers(&fields), Err(ErrorCode::H3_MESSAGE_ERROR));
    }
}

#[test]
fn responses() {
    let head = |fields: List<'_>| response("GET", &headers(fields));
    let status = |status| head(&[(":status", status)]);
    for right in ["200", "204", "304", "418", "599", "999"] {
        assert!(status(right).is_ok(), "{right}");
    }
    let wrong = Err(ErrorCode::H3_MESSAGE_ERROR);
    for status_text in ["", "20", "2000", "2x0", "099", "+20", "101", "20 "] {
        assert_eq!(status(status_text), wrong, "{status_text}");
    }
    assert_eq!(head(&[]), wrong);
    assert_eq!(head(&[("a", "b")]), wrong);
    assert_eq!(head(&[("a", "b"), (":status", "200")]), wrong);
    assert_eq!(head(&[(":status", "200"), (":status", "200")]), wrong);
    assert_eq!(head(&[(":status", "200"), (":path", "/")]), wrong);
    assert_eq!(head(&[(":status", "200"), ("connection", "close")]), wrong);
    assert_eq!(head(&[(":status", "200"), ("content-length", "1")]), wrong);
    // A response needs a final head.
    assert_eq!(response("GET", b""), wrong);
    assert_eq!(status("100"), wrong);
}

#[test]
fn responses_without_content_may_name_its_length() {
    let head = |status| headers(&[(":status", status), ("content-length", "7")]);
    let wrong = Err(ErrorCode::H3_MESSAGE_ERROR);
    assert!(response("HEAD", &head("200")).is_ok());
    assert!(response("GET", &head("304")).is_ok());
    assert_eq!(response("GET", &head("200")), wrong);
    let content = frame(0, b"content");
    assert!(response("GET", &[head("200"), content.clone()].concat()).is_ok());
    assert_eq!(
        response("HEAD", &[head("200"), content.clone()].concat()),
        wrong
    );
    assert_eq!(response("GET", &[head("304"), content].concat()), wrong);
}
