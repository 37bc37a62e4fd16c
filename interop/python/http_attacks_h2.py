"""Rows of http_attacks.py for HTTP/2, with prior knowledge and on TLS."""

from __future__ import annotations

import secrets
import time
from contextlib import ExitStack

from attacks import expect
from harness import Failure, Listener
from http_attacks import (
    CONTENT_BYTES, CONTENT_TIMEOUT_S, KIB, MIB, REQUESTS, SLACK_KIB, STALLED_S, grown, resident, row, topic,
)
from http_raw import (
    ACK, CONTINUATION, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PING, PREFACE, PRIORITY, PUSH_PROMISE,
    RST_STREAM, SETTINGS, WINDOW_UPDATE, Answer, Frame, RawHttp2, frame, head, hpack, prefixed,
)
from raw import PATIENCE_S, Closed

PROTOCOL_ERROR, FLOW_CONTROL, STREAM_CLOSED, FRAME_SIZE, REFUSED, CANCEL, COMPRESSION, CALM = 1, 3, 5, 6, 7, 8, 9, 11
CONNECTION_CODES = {PROTOCOL_ERROR, FLOW_CONTROL, STREAM_CLOSED, FRAME_SIZE, COMPRESSION, CALM, None}


def in_order(one: RawHttp2, stream: int) -> None:
    one.ask(stream, head("HEAD", topic("works")))
    got = one.outcome(stream)
    expect(isinstance(got, Answer) and got.status == 404, f"{got} for a request in order")


def flood(at: Listener, pieces: bytes, rounds: int, seconds: float = 4.0) -> tuple[bool, RawHttp2]:
    """Sends the same again and again without reading; whether the broker put an end to it."""
    one = RawHttp2(at)
    one.socket.settimeout(1.0)
    until = time.monotonic() + seconds
    try:
        for _ in range(rounds):
            one.socket.sendall(pieces)
            if time.monotonic() > until:
                return False, one
    except TimeoutError:
        return False, one  # it reads no more than it answers: that is an end, too
    except OSError:
        return True, one
    return False, one


@row("violations", "h2c", "h2")
def violations(at: Listener) -> None:
    get = hpack(head("HEAD", topic("v")))
    wrong = []
    for what, data in {
        "HEADERS on stream 0": frame(HEADERS, 5, 0, get),
        "HEADERS on a stream of the server": frame(HEADERS, 5, 2, get),
        "DATA on stream 0": frame(DATA, 1, 0, b"x"),
        "DATA on a stream that is idle": frame(DATA, 1, 7, b"x"),
        "a stream below the last": frame(HEADERS, 5, 9, get) + frame(HEADERS, 5, 3, get),
        "SETTINGS on a stream": frame(SETTINGS, 0, 1),
        "SETTINGS of five bytes": frame(SETTINGS, 0, 0, bytes(5)),
        "SETTINGS that acknowledge and say something": frame(SETTINGS, ACK, 0, bytes(6)),
        "a window of 2^31": frame(SETTINGS, 0, 0, b"\0\4\x80\0\0\0"),
        "frames of 100 bytes at most": frame(SETTINGS, 0, 0, b"\0\5\0\0\0\x64"),
        "push that is 2": frame(SETTINGS, 0, 0, b"\0\2\0\0\0\2"),
        "PING on a stream": frame(PING, 0, 1, bytes(8)),
        "PING of seven bytes": frame(PING, 0, 0, bytes(7)),
        "PUSH_PROMISE from a client": frame(HEADERS, 4, 1, get) + frame(PUSH_PROMISE, 4, 1, b"\0\0\0\2" + get),
        "CONTINUATION of nothing": frame(CONTINUATION, 4, 1, get),
        "a frame within a block of fields": frame(HEADERS, 1, 1, get) + frame(PING, 0, 0, bytes(8)),
        "RST_STREAM on a stream that is idle": frame(RST_STREAM, 0, 9, bytes(4)),
        "RST_STREAM on stream 0": frame(RST_STREAM, 0, 0, bytes(4)),
        "WINDOW_UPDATE of 0 for the connection": frame(WINDOW_UPDATE, 0, 0, bytes(4)),
        "a window that overflows": frame(WINDOW_UPDATE, 0, 0, b"\x7f\xff\xff\xff") * 2,
        "a frame above the limit": frame(DATA, 0, 1, b"x" * 100, claimed=(1 << 24) - 1),
        "GOAWAY on a stream": frame(GOAWAY, 0, 1, bytes(8)),
        "padding that is longer than the frame": frame(HEADERS, 0xD, 1, b"\xff" + get),
        "no HPACK": frame(HEADERS, 5, 1, b"\xff\xff\xff\xff\xff\xff\xff\xff"),
        "an index beyond the tables": frame(HEADERS, 5, 1, prefixed(4000, 7, 0x80)),
        "a table larger than was set": frame(HEADERS, 5, 1, prefixed(1 << 20, 5, 0x20) + get),
        "Huffman that ends wrongly": frame(HEADERS, 5, 1, b"\0\x81\xff\x81\xff"),
    }.items():
        try:
            with RawHttp2(at) as one:
                one.send(data)
                code = one.lost()
                if code not in CONNECTION_CODES:
                    wrong.append(f"{what}: GOAWAY with {code}")
        except Failure as why:
            wrong.append(f"{what}: {why}")
    expect(not wrong, "; ".join(wrong))


@row("no-preface", "h2")
def no_preface(at: Listener) -> None:
    for data in (PREFACE[:10] + b"XXXX" * 20, b"\0" * 100, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 3):
        one = RawHttp2.__new__(RawHttp2)
        super(RawHttp2, one).__init__(at)
        with one:
            one.send(data)
            one.ending()


@row("malformed-requests", "h2c", "h2")
def malformed(at: Listener) -> None:
    # RFC 9113, section 8: whatever was wrong with it, it is not done.
    wrong, where = [], topic("m")
    post = [(":method", "PUT"), (":scheme", "http"), (":authority", "localhost")]
    for what, fields, content in [
        ("no path", post, None), ("an empty path", [*post, (":path", "")], None),
        ("no method", [*post[1:], (":path", where)], None),
        ("two methods", [*post, (":method", "GET"), (":path", where)], None),
        ("an unknown pseudo-field", [*post, (":path", where), (":x", "y")], None),
        ("a pseudo-field of responses", [*post, (":path", where), (":status", "200")], None),
        ("a pseudo-field after fields", [*post, ("x", "y"), (":path", where)], None),
        ("a name in upper case", [*post, (":path", where), ("X-Y", "z")], None),
        ("connection", [*post, (":path", where), ("connection", "close")], None),
        ("transfer-encoding", [*post, (":path", where), ("transfer-encoding", "chunked")], None),
        ("te", [*post, (":path", where), ("te", "gzip")], None),
        ("another request in a value", [*post, (":path", where), ("x", "y\r\n\r\nPUT / HTTP/1.1")], None),
        ("another request in the path", [*post, (":path", f"{where} HTTP/1.1\r\nHost: x\r\n\r\n")], None),
        ("a line end in a name", [*post, (":path", where), ("x\r\ny", "z")], None),
        ("U+0000 in a value", [*post, (":path", where), ("x", "a\0b")], None),
        ("an empty name", [*post, (":path", where), ("", "z")], None),
        ("less than was said", [*post, (":path", where), ("content-length", "10")], b""),
        ("more than was said", [*post, (":path", where), ("content-length", "0")], b"x"),
        ("a host that is another", [*post, (":path", where), ("host", "evil.example")], None),
        ("no authority", [post[0], post[1], (":path", where)], None),
        ("another authority", [*post[:2], (":authority", "evil.example"), (":path", where)], None),
        ("a path without slash", [*post, (":path", "v1/topics/a")], None),
        ("CONNECT", [(":method", "CONNECT"), (":authority", "evil.example:443")], None),
    ]:
        # One that is malformed may cost the whole connection (RFC 9113, section 5.4.1).
        with RawHttp2(at) as one:
            one.ask(1, fields, content)
            try:
                got = one.outcome(1)
                if isinstance(got, Answer) and got.status not in (400, 404, 405, 421, 501):
                    wrong.append(f"{what}: {got}")
                if isinstance(got, Frame) and got.kind == RST_STREAM:
                    in_order(one, 3)
            except Closed:
                pass
            except Failure as why:
                wrong.append(f"{what}: {why}")
    expect(not wrong, "; ".join(wrong))
    with RawHttp2(at) as one:
        one.ask(1, head("HEAD", where))
        expect(one.outcome(1).status == 404, "what was malformed was done")


@row("rapid-reset", "h2c", "h2")
def rapid_reset(at: Listener) -> None:
    # CVE-2023-44487: opened and given up at once, again and again.
    pid, before = resident(at)
    with RawHttp2(at) as one:
        block = hpack(head("GET", topic("r")))
        one.socket.settimeout(PATIENCE_S)
        sent = 0
        try:
            while sent < 20_000:
                one.socket.sendall(b"".join(
                    frame(HEADERS, END_HEADERS | END_STREAM, 1 + 2 * number, block) +
                    frame(RST_STREAM, 0, 1 + 2 * number, CANCEL.to_bytes(4, "big"))
                    for number in range(sent, sent + 100)))
                sent += 100
        except OSError:
            pass
        code = one.lost()
        expect(code in (CALM, None), f"GOAWAY with {code}")
        expect(sent < 20_000 or code == CALM, "20,000 requests that were given up at once are served")
        grown(pid, before, SLACK_KIB, "requests that were given up")


@row("reset-by-violation", "h2c")
def reset_by_violation(at: Listener) -> None:
    # CVE-2025-8671: the client makes the server give the streams up.
    pid, before = resident(at)
    with RawHttp2(at) as one:
        block = hpack(head("GET", topic("r")))
        one.socket.settimeout(PATIENCE_S)
        sent = 0
        try:
            while sent < 10_000:
                one.socket.sendall(b"".join(
                    frame(HEADERS, END_HEADERS, 1 + 2 * number, block) +
                    frame(WINDOW_UPDATE, 0, 1 + 2 * number, bytes(4))
                    for number in range(sent, sent + 100)))
                sent += 100
        except OSError:
            pass
        try:
            code = one.lost()
        except Failure:
            raise Failure("10,000 streams that the server had to give up are served") from None
        expect(code in (CALM, PROTOCOL_ERROR, None), f"GOAWAY with {code}")
        grown(pid, before, SLACK_KIB, "streams that the server gave up")


@row("continuation-flood", "h2c", "h2")
def continuation_flood(at: Listener) -> None:
    # CVE-2024-27316: a block of fields that never ends.
    pid, before = resident(at)
    for what, piece in (("fields", hpack([("x", "y" * 1000)]) * 15), ("nothing", b"")):
        with RawHttp2(at) as one:
            one.socket.settimeout(2.0)
            sent = 0
            try:
                one.socket.sendall(frame(HEADERS, END_STREAM, 1, hpack(head("GET", topic("c")))))
                while sent < 32 * MIB and sent < 100_000 * max(1, len(piece)):
                    pieces = frame(CONTINUATION, 0, 1, piece) * 50
                    one.socket.sendall(pieces)
                    sent += len(pieces)
                    if not piece and sent > 900_000:
                        break
            except OSError:
                pass
            # What still comes after GOAWAY may be read and dropped.
            code = one.lost()
            expect(code in (CALM, PROTOCOL_ERROR, None), f"GOAWAY with {code}")
            grown(pid, before, SLACK_KIB, f"CONTINUATION with {what}")


@row("table-bomb", "h2c", "h2")
def table_bomb(at: Listener) -> None:
    # One large entry of the table, named again and again by one byte each.
    pid, before = resident(at)
    with RawHttp2(at) as one:
        entry = b"\x40" + prefixed(1, 7, 0) + b"x" + prefixed(4000, 7, 0) + b"y" * 4000
        for number in range(20):
            block = hpack(head("GET", topic("b"))) + entry + b"\xbe" * 10_000
            one.send(frame(HEADERS, END_HEADERS | END_STREAM, 1 + 2 * number, block))
        try:
            got = one.outcome(1)
            expect(not isinstance(got, Answer) or got.status in (400, 431), f"{got}")
        except Closed:
            pass
        grown(pid, before, SLACK_KIB, "40 MB of fields in 280 KB")


@row("floods", "h2c", "h2")
def floods(at: Listener) -> None:
    # Frames that cost the server an answer, or nothing but time, from one who does not read.
    pid, before = resident(at)
    reset = hpack(head("HEAD", topic("f")))
    for what, piece, rounds in (
        ("PING", frame(PING, 0, 0, bytes(8)) * 1000, 200), ("SETTINGS", frame(SETTINGS, 0, 0) * 1000, 200),
        ("SETTINGS with tables", frame(SETTINGS, 0, 0, b"\0\1\0\0\x10\0\0\1\0\0\0\0") * 500, 200),
        ("PRIORITY", frame(PRIORITY, 0, 1, bytes(3) + b"\5\x10") * 1000, 200),
        ("WINDOW_UPDATE", frame(WINDOW_UPDATE, 0, 0, b"\0\0\0\1") * 1000, 200),
        ("unknown frames", frame(0x77, 0, 0, b"x" * 1000) * 50, 400),
        ("empty DATA", frame(HEADERS, END_HEADERS, 1, reset) + frame(DATA, 0, 1) * 1000, 200),
    ):
        _, one = flood(at, piece, rounds)
        with one:
            grown(pid, before, SLACK_KIB, f"a flood of {what}")


@row("goaway", "h2c", "h2")
def goaway(at: Listener) -> None:
    # After a client's GOAWAY what it asked for is answered, and then the connection ends.
    with RawHttp2(at) as one:
        one.ask(1, head("HEAD", topic("g")))
        one.send(frame(GOAWAY, 0, 0, bytes(8)))
        got = one.outcome(1)
        expect(isinstance(got, Answer) and got.status == 404, f"{got} for what was asked before GOAWAY")
    with RawHttp2(at) as one:
        one.send(frame(GOAWAY, 0, 0, bytes(4) + PROTOCOL_ERROR.to_bytes(4, "big") + b"x" * 10_000))
        one.lost()
    for pieces in (frame(GOAWAY, 0, 0, bytes(8)) * 10_000,
                   b"".join(frame(GOAWAY, 0, 0, number.to_bytes(4, "big") + bytes(4)) for number in range(100))):
        with RawHttp2(at) as one:
            one.send(pieces)
            try:
                one.ask(1, head("HEAD", topic("g")))
                one.outcome(1, 2)
            except (Failure, Closed):
                pass


@row("too-many-requests", "h2c", "h2")
def too_many(at: Listener) -> None:
    # More than the server says it takes at a time: each is refused, or the connection is.
    with RawHttp2(at) as one:
        for number in range(REQUESTS * 2 + 50):
            one.send(frame(HEADERS, END_HEADERS, 1 + 2 * number, hpack(head("POST", topic("n")))))
        refused = 0
        until = time.monotonic() + PATIENCE_S

        def all_refused() -> int:
            return refused + sum(fields[":status"] == "429" for fields in one.heads.values())

        try:
            while all_refused() < REQUESTS and time.monotonic() < until:
                got = one.frame(0.3)
                if got is None:
                    continue
                if got.kind == RST_STREAM:
                    expect(got.code() in (REFUSED, PROTOCOL_ERROR, CALM), f"RST_STREAM with {got.code()}")
                    refused += 1
                elif got.kind == GOAWAY:
                    refused = 1 << 20
        except Closed:
            refused = 1 << 20
        refused = all_refused()
        expect(refused >= REQUESTS, f"{refused} of {REQUESTS * 2 + 50} requests were refused, set are {REQUESTS}")


@row("no-window", "h2c")
def no_window(at: Listener) -> None:
    # CVE-2019-9511 and its like: answers that the client never lets go.
    pid, before = resident(at)
    with ExitStack() as stack:
        many = [stack.enter_context(RawHttp2(at, {4: 0})) for _ in range(20)]
        for one in many:
            for number in range(REQUESTS // 2):
                one.ask(1 + 2 * number, head("GET", "/v1/openapi.json"))
        time.sleep(1)
        grown(pid, before, 48 * KIB, f"{20 * REQUESTS // 2} answers that nobody takes")
        time.sleep(STALLED_S + 1)
        one = many[0]
        try:
            got = one.outcome(1, 3)
            expect(not isinstance(got, Answer) or not got.content, f"content without a window: {got}")
        except (Closed, Failure):
            pass


@row("slow-content", "h2c", "h2", waits=True)
def slow_content(at: Listener) -> None:
    with RawHttp2(at) as one:
        for number in range(20):
            one.send(frame(HEADERS, END_HEADERS, 1 + 2 * number, hpack(head("POST", topic("s")))))
        for _ in range(int(CONTENT_TIMEOUT_S * 10) + 6):
            for number in range(20):
                one.send(frame(DATA, 0, 1 + 2 * number, b"x"))
            time.sleep(0.1)
        for number in range(20):
            got = one.outcome(1 + 2 * number, CONTENT_TIMEOUT_S + PATIENCE_S)
            expect(isinstance(got, Answer) and got.status == 408 and got.problem() == "timeout", f"{got}")
        in_order(one, 101)


@row("content-of-many", "h2c", "h2")
def content_of_many(at: Listener) -> None:
    # Contents that are not complete: a budget of the connection, not of each.
    pid, before = resident(at)
    with RawHttp2(at) as one:
        one.socket.settimeout(1.0)
        try:
            for number in range(REQUESTS - 1):
                one.socket.sendall(frame(HEADERS, END_HEADERS, 1 + 2 * number, hpack(head("POST", topic("s")))))
            for _ in range(CONTENT_BYTES // 16_000):
                for number in range(REQUESTS - 1):
                    one.socket.sendall(frame(DATA, 0, 1 + 2 * number, bytes(16_000)))
        except OSError:
            pass
        grown(pid, before, SLACK_KIB, "63 contents that are not complete")


@row("content-too-large", "h2c", "h2")
def content_too_large(at: Listener) -> None:
    with RawHttp2(at) as one:
        one.ask(1, head("POST", topic("l"), ("content-length", str(CONTENT_BYTES + 1))), b"x" * 100)
        got = one.outcome(1)
        expect(isinstance(got, Answer) and got.status == 413 or isinstance(got, Frame), f"{got}")
        in_order(one, 3)


@row("fields-too-large", "h2c", "h2")
def fields_too_large(at: Listener) -> None:
    with RawHttp2(at) as one:
        block = hpack([*head("GET", topic("l")), *((f"x-{number}", "y" * 1000) for number in range(30))])
        pieces = [block[start : start + 16_000] for start in range(0, len(block), 16_000)]
        one.send(frame(HEADERS, END_STREAM, 1, pieces[0]))
        for piece in pieces[1:-1]:
            one.send(frame(CONTINUATION, 0, 1, piece))
        one.send(frame(CONTINUATION, END_HEADERS, 1, pieces[-1]))
        try:
            got = one.outcome(1)
        except Closed:
            return
        expect(isinstance(got, Frame) or got.status == 431, f"{got}")


@row("cut", "h2c", "h2")
def cut(at: Listener) -> None:
    for _ in range(30):
        one = RawHttp2(at)
        one.send(frame(HEADERS, END_HEADERS | END_STREAM, 1, hpack(head("GET", topic(secrets.token_hex(4))))))
        one.send(frame(HEADERS, END_HEADERS, 3, hpack(head("POST", topic("c")))) + frame(DATA, 0, 3, b"x" * 50)[:30])
        one.abort()
