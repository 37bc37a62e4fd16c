"""Rows of http_attacks.py for HTTP/3: frames and streams written by hand on aioquic's QUIC."""

from __future__ import annotations

import asyncio
import ssl
import time
from contextlib import AsyncExitStack, asynccontextmanager

from aioquic.asyncio import QuicConnectionProtocol, connect
from aioquic.quic import events
from aioquic.quic.configuration import QuicConfiguration
from pylsqpack import Decoder

from attacks import expect
from harness import Failure, Listener
from http_attacks import (
    CONTENT_BYTES, CONTENT_TIMEOUT_S, FIELDS_TIMEOUT_S, KIB, MIB, REQUESTS, SLACK_KIB, SUBSCRIPTIONS, grown, resident,
    row, topic,
)
from http_client import to_varint, varint
from http_raw import head, prefixed
from raw import PATIENCE_S

DATA, HEADERS, CANCEL_PUSH, SETTINGS, PUSH_PROMISE, GOAWAY, MAX_PUSH_ID = 0, 1, 3, 4, 5, 7, 13
(NO_ERROR, GENERAL, INTERNAL, CREATION, CRITICAL, UNEXPECTED, FRAME, LOAD, ID, SETTINGS_ERROR, MISSING, REJECTED,
 CANCELLED, INCOMPLETE, MESSAGE) = range(0x100, 0x10F)
DECOMPRESSION, ENCODER, DECODER = 0x200, 0x201, 0x202


def frame(kind: int, payload: bytes = b"", claimed: int | None = None) -> bytes:
    return to_varint(kind) + to_varint(len(payload) if claimed is None else claimed) + payload


def qpack(fields) -> bytes:
    """Fields as literals with literal names (RFC 9204, section 4.5.6), no dynamic table."""
    out = b"\0\0"
    for pair in fields:
        name, value = (text.encode("latin-1") if isinstance(text, str) else text for text in pair)
        out += prefixed(len(name), 3, 0x20) + name + prefixed(len(value), 7, 0) + value
    return out


def asking(method: str, target: str, *more, authority: str = "localhost") -> list:
    fields = head(method, target, *more, authority=authority)
    return [(name, "https" if name == ":scheme" else value) for name, value in fields]


def decode_status(block: bytes) -> int:
    """The status in the server's fields."""
    _, fields = Decoder(0, 0).feed_header(0, block)
    return int(dict(fields)[b":status"])


class Raw3(QuicConnectionProtocol):
    """A QUIC connection with ALPN h3 whose streams are bytes."""

    def __init__(self, *arguments, **keywords):
        super().__init__(*arguments, **keywords)
        self.arrived: dict[int, bytes] = {}
        self.finished: dict[int, int | None] = {}
        self.over: asyncio.Future = asyncio.get_event_loop().create_future()
        self.changed = asyncio.Event()

    def quic_event_received(self, event: events.QuicEvent) -> None:
        if isinstance(event, events.StreamDataReceived):
            self.arrived[event.stream_id] = self.arrived.get(event.stream_id, b"") + event.data
            if event.end_stream:
                self.finished.setdefault(event.stream_id, None)
        elif isinstance(event, (events.StreamReset, events.StopSendingReceived)):
            self.finished.setdefault(event.stream_id, event.error_code)
        elif isinstance(event, events.ConnectionTerminated):
            if not self.over.done():
                self.over.set_result(event)
            super().quic_event_received(event)
        self.changed.set()

    def write(self, stream: int, data: bytes, fin: bool = False) -> None:
        self._quic.send_stream_data(stream, data, fin)
        self.transmit()

    def unidirectional(self, kind: int, data: bytes = b"", fin: bool = False) -> int:
        stream = self._quic.get_next_available_stream_id(is_unidirectional=True)
        self.write(stream, to_varint(kind) + data, fin)
        return stream

    def control(self, settings: bytes = b"", more: bytes = b"") -> int:
        return self.unidirectional(0, frame(SETTINGS, settings) + more)

    def request(self, data: bytes, fin: bool = True) -> int:
        stream = self._quic.get_next_available_stream_id()
        self.write(stream, data, fin)
        return stream

    async def outcome(self, stream: int, timeout: float = PATIENCE_S) -> tuple[int | None, int | None]:
        """Status of the response, and the code of the stream's reset."""
        until = time.monotonic() + timeout
        while stream not in self.finished:
            if self.over.done():
                raise Failure(f"the connection ended with 0x{self.over.result().error_code:X}")
            if time.monotonic() > until:
                raise Failure(f"nothing on stream {stream} in time")
            self.changed.clear()
            try:
                await asyncio.wait_for(self.changed.wait(), 0.2)
            except TimeoutError:
                pass
        data, at, status = self.arrived.get(stream, b""), 0, None
        while (kind := varint(data, at)) and (size := varint(data, kind[1])):
            if kind[0] == HEADERS and status is None:
                status = decode_status(data[size[1] : size[1] + size[0]])
            at = size[1] + size[0]
        return status, self.finished[stream]

    async def lost(self, timeout: float = PATIENCE_S) -> int:
        try:
            return (await asyncio.wait_for(asyncio.shield(self.over), timeout)).error_code
        except TimeoutError:
            raise Failure(f"the connection is open after {timeout} s") from None

    async def in_order(self) -> None:
        status, code = await self.outcome(self.request(frame(HEADERS, qpack(asking("GET", topic("w") + "?last")))))
        expect(status == 404, f"status {status}, reset {code} for a request in order")


@asynccontextmanager
async def opened(at: Listener, control: bool = True, **settings):
    made = QuicConfiguration(is_client=True, alpn_protocols=["h3"], server_name=at.host, idle_timeout=20, **settings)
    made.verify_mode = ssl.CERT_REQUIRED
    made.load_verify_locations(at.certificate)
    async with connect(at.host, at.port, configuration=made, create_protocol=Raw3, wait_connected=False) as quic:
        quic.transmit()
        await asyncio.wait_for(quic.wait_connected(), PATIENCE_S)
        if control:
            quic.control()
        yield quic


def quic_row(name: str, waits: bool = False):
    """A row that is a coroutine."""

    def add(function):
        row(name, "h3", waits=waits)(lambda at: asyncio.run(function(at)))
        return function

    return add


@quic_row("violations")
async def violations(at: Listener) -> None:
    get = frame(HEADERS, qpack(asking("GET", topic("v") + "?last")))
    wrong = []

    async def one(what: str, doing, codes: set[int], control: bool = True) -> None:
        try:
            async with opened(at, control) as quic:
                doing(quic)
                got = await quic.lost()
                if got not in codes:
                    wrong.append(f"{what}: 0x{got:X}, not {' or '.join(f'0x{each:X}' for each in sorted(codes))}")
        except Failure as why:
            wrong.append(f"{what}: {why}")

    await asyncio.gather(*(one(*each) for each in [
        ("DATA before HEADERS", lambda q: q.request(frame(DATA, b"x") + get), {UNEXPECTED}),
        ("SETTINGS on a request", lambda q: q.request(frame(SETTINGS)), {UNEXPECTED}),
        ("GOAWAY on a request", lambda q: q.request(frame(GOAWAY, b"\0")), {UNEXPECTED}),
        ("MAX_PUSH_ID on a request", lambda q: q.request(frame(MAX_PUSH_ID, b"\0")), {UNEXPECTED}),
        ("PUSH_PROMISE from a client", lambda q: q.request(frame(PUSH_PROMISE, b"\0" + qpack([]))), {UNEXPECTED}),
        ("a frame of HTTP/2", lambda q: q.request(frame(6, bytes(8))), {UNEXPECTED}),
        ("no SETTINGS first", lambda q: q.unidirectional(0, frame(GOAWAY, b"\0")), {MISSING}, False),
        ("SETTINGS twice", lambda q: q.control(more=frame(SETTINGS)), {UNEXPECTED}, False),
        ("a setting twice", lambda q: q.control(to_varint(6) + to_varint(1) + to_varint(6) + to_varint(1)),
         {SETTINGS_ERROR}, False),
        ("a setting of HTTP/2", lambda q: q.control(to_varint(2) + to_varint(0)), {SETTINGS_ERROR}, False),
        ("SETTINGS that end within one", lambda q: q.control(to_varint(6)), {FRAME, SETTINGS_ERROR}, False),
        ("DATA on the control stream", lambda q: q.control(more=frame(DATA, b"x")), {UNEXPECTED}, False),
        ("HEADERS on the control stream", lambda q: q.control(more=get), {UNEXPECTED}, False),
        ("two control streams", lambda q: q.control(), {CREATION}),
        ("two encoder streams", lambda q: (q.unidirectional(2), q.unidirectional(2)), {CREATION}),
        ("two decoder streams", lambda q: (q.unidirectional(3), q.unidirectional(3)), {CREATION}),
        ("a push stream from a client", lambda q: q.unidirectional(1, b"\0"), {CREATION}),
        ("the control stream ends", lambda q: q.unidirectional(0, frame(SETTINGS), True), {CRITICAL}, False),
        ("the encoder stream ends", lambda q: q.unidirectional(2, b"", True), {CRITICAL}),
        ("the decoder stream ends", lambda q: q.unidirectional(3, b"", True), {CRITICAL}),
        ("GOAWAY that grows", lambda q: q.control(more=frame(GOAWAY, b"\0") + frame(GOAWAY, b"\x04")), {ID}, False),
        ("MAX_PUSH_ID that shrinks", lambda q: q.control(more=frame(MAX_PUSH_ID, b"\5") + frame(MAX_PUSH_ID, b"\4")),
         {ID}, False),
        ("CANCEL_PUSH of what was not promised", lambda q: q.control(more=frame(CANCEL_PUSH, b"\5")), {ID}, False),
        ("GOAWAY with too much in it", lambda q: q.control(more=frame(GOAWAY, b"\0\0")), {FRAME}, False),
        ("a frame that the stream's end cuts", lambda q: q.request(get[:-3]), {FRAME, INCOMPLETE}),
        ("a dynamic table that is not allowed", lambda q: q.unidirectional(2, prefixed(4096, 5, 0x20)), {ENCODER}),
        ("an insertion that is not allowed", lambda q: q.unidirectional(2, b"\x41x\1y"), {ENCODER}),
        ("an acknowledgement of nothing", lambda q: q.unidirectional(3, b"\x81"), {DECODER}),
        ("an increment of nothing", lambda q: q.unidirectional(3, b"\0"), {DECODER}),
        ("a reference to the dynamic table", lambda q: q.request(frame(HEADERS, b"\2\0\x80")), {DECOMPRESSION}),
        ("an index beyond the static table", lambda q: q.request(frame(HEADERS, b"\0\0" + prefixed(99, 6, 0xC0))),
         {DECOMPRESSION}),
        ("Huffman that ends wrongly", lambda q: q.request(frame(HEADERS, b"\0\0\x29\xff\x81\xff")), {DECOMPRESSION}),
        ("fields that end within one", lambda q: q.request(frame(HEADERS, b"\0\0\x27")), {DECOMPRESSION}),
    ]))
    expect(not wrong, "; ".join(wrong))


@quic_row("malformed-requests")
async def malformed(at: Listener) -> None:
    # RFC 9114, section 4.1.2: an error of the stream; the connection goes on.
    wrong, where = [], topic("m")
    put = [(":method", "PUT"), (":scheme", "https"), (":authority", "localhost")]
    async with opened(at) as quic:
        for what, fields, content in [
            ("no path", put, None), ("an empty path", [*put, (":path", "")], None),
            ("no method", [*put[1:], (":path", where)], None), ("no scheme", [put[0], put[2], (":path", where)], None),
            ("two methods", [*put, (":method", "GET"), (":path", where)], None),
            ("an unknown pseudo-field", [*put, (":path", where), (":x", "y")], None),
            ("a pseudo-field of responses", [*put, (":path", where), (":status", "200")], None),
            ("a pseudo-field after fields", [*put, ("x", "y"), (":path", where)], None),
            ("a name in upper case", [*put, (":path", where), ("X-Y", "z")], None),
            ("connection", [*put, (":path", where), ("connection", "close")], None),
            ("transfer-encoding", [*put, (":path", where), ("transfer-encoding", "chunked")], None),
            ("te", [*put, (":path", where), ("te", "gzip")], None),
            ("another request in a value", [*put, (":path", where), ("x", "y\r\n\r\nPUT / HTTP/1.1")], None),
            ("another request in the path", [*put, (":path", f"{where} HTTP/1.1\r\nHost: x\r\n\r\n")], None),
            ("U+0000 in a value", [*put, (":path", where), ("x", "a\0b")], None),
            ("an empty name", [*put, (":path", where), ("", "z")], None),
            ("less than was said", [*put, (":path", where), ("content-length", "10")], b"x"),
            ("more than was said", [*put, (":path", where), ("content-length", "1")], b"xyz"),
            ("a length that is none", [*put, (":path", where), ("content-length", "1x")], b"x"),
            ("a host that is another", [*put, (":path", where), ("host", "evil.example")], None),
            ("no authority", [put[0], put[1], (":path", where)], None),
            ("another authority", [*put[:2], (":authority", "evil.example"), (":path", where)], None),
            ("a path without slash", [*put, (":path", "v1/topics/a")], None),
            ("a protocol without CONNECT", [*put, (":path", where), (":protocol", "webtransport")], None),
            ("an unknown protocol", [(":method", "CONNECT"), *put[1:], (":path", where), (":protocol", "x")], None),
            ("CONNECT", [(":method", "CONNECT"), (":authority", "evil.example:443")], None),
            ("no fields", [], None),
        ]:
            data = frame(HEADERS, qpack(fields)) + (frame(DATA, content) if content is not None else b"")
            try:
                status, code = await quic.outcome(quic.request(data))
                if not (code == MESSAGE or status in (400, 404, 405, 421, 501)):
                    wrong.append(f"{what}: status {status}, reset with {code}")
            except Failure as why:
                wrong.append(f"{what}: {why}")
                break
        expect(not wrong, "; ".join(wrong))
        await quic.in_order()
        status, _ = await quic.outcome(quic.request(frame(HEADERS, qpack(asking("HEAD", where)))))
        expect(status == 404, "what was malformed was done")


@quic_row("rapid-reset")
async def rapid_reset(at: Listener) -> None:
    pid, before = resident(at)
    data = frame(HEADERS, qpack(asking("GET", topic("r"))))
    async with opened(at) as quic:
        sent, until = 0, time.monotonic() + 6
        while not quic.over.done() and sent < 5000 and time.monotonic() < until:
            # As many as the server lets a client open; each is given up in the same packets.
            for _ in range(20):
                stream = quic._quic.get_next_available_stream_id()
                if stream // 4 >= quic._quic._remote_max_streams_bidi:
                    break
                quic._quic.send_stream_data(stream, data, False)
                quic._quic.reset_stream(stream, CANCELLED)
                quic._quic.stop_stream(stream, CANCELLED)
                sent += 1
            quic.transmit()
            await asyncio.sleep(0.002)
        code = await quic.lost()
        expect(code == LOAD, f"0x{code:X} after {sent} requests that were given up")
        grown(pid, before, SLACK_KIB, "requests that were given up")


@quic_row("fields-too-large")
async def fields_too_large(at: Listener) -> None:
    pid, before = resident(at)
    async with opened(at) as quic:
        many = qpack([*asking("GET", topic("f")), *((f"x-{number}", "y" * 1000) for number in range(30))])
        status, code = await quic.outcome(quic.request(frame(HEADERS, many)))
        expect(status == 431 or code in (LOAD, MESSAGE, REJECTED), f"30 KB of fields: status {status}, reset {code}")
        await quic.in_order()
    for what, data in (("a block of 1 MiB", frame(HEADERS, bytes(MIB))),
                       ("a claim of 1 GiB", frame(HEADERS, b"\0\0", claimed=1 << 30)),
                       ("a field of 1 MiB", frame(HEADERS, qpack([("x", "y" * MIB)]))),
                       ("a million static entries", frame(HEADERS, b"\0\0" + b"\xd1" * MIB))):
        async with opened(at) as quic:
            stream = quic.request(data, fin="claim" not in what)
            try:
                status, code = await quic.outcome(stream)
                expect(status in (400, 431) or code is not None, f"{what}: status {status}")
            except Failure:
                expect(quic.over.done(), f"{what} is still open")
        grown(pid, before, SLACK_KIB, what)


@quic_row("claims")
async def claims(at: Listener) -> None:
    # Memory grows with what has come, not with what was claimed.
    pid, before = resident(at)
    async with opened(at) as quic:
        for _ in range(REQUESTS - 2):
            quic.request(frame(HEADERS, qpack(asking("POST", topic("c")))) + frame(DATA, b"x", claimed=CONTENT_BYTES), False)
        await asyncio.sleep(0.4)
        grown(pid, before, 8 * KIB, "62 claims of 256 KiB")


@quic_row("content-of-many")
async def content_of_many(at: Listener) -> None:
    pid, before = resident(at)
    async with opened(at) as quic:
        piece = frame(DATA, bytes(CONTENT_BYTES - 100))
        for _ in range(REQUESTS - 2):
            quic.request(frame(HEADERS, qpack(asking("POST", topic("c")))) + piece, False)
        await asyncio.sleep(2)
        grown(pid, before, SLACK_KIB, "62 contents that are not complete")


@quic_row("content-too-large")
async def content_too_large(at: Listener) -> None:
    async with opened(at) as quic:
        data = frame(HEADERS, qpack(asking("POST", topic("c")))) + frame(DATA, bytes(CONTENT_BYTES + 1))
        status, code = await quic.outcome(quic.request(data))
        expect(status is None or status == 413, f"status {status}, reset {code}")
        expect(status == 413 or code is not None, f"status {status}, reset {code}")
        await quic.in_order()


@quic_row("slow-head-and-content", waits=True)
async def slow(at: Listener) -> None:
    async with opened(at) as quic:
        get = frame(HEADERS, qpack(asking("GET", topic("s") + "?last")))
        heads = [quic.request(get[:2], False) for _ in range(10)]
        post = frame(HEADERS, qpack(asking("POST", topic("s")))) + frame(DATA, b"x", claimed=100)
        contents = [quic.request(post, False) for _ in range(10)]
        for at_byte in range(int(max(FIELDS_TIMEOUT_S, CONTENT_TIMEOUT_S) * 10) + 6):
            for stream in heads + contents:
                if stream not in quic.finished:
                    byte = get[2 + at_byte : 3 + at_byte] if stream in heads else b"x"
                    quic._quic.send_stream_data(stream, byte, False)
            quic.transmit()
            await asyncio.sleep(0.1)
        for stream in heads:
            status, code = await quic.outcome(stream)
            expect(status == 408 or code is not None, f"a slow head: status {status}")
        for stream in contents:
            status, code = await quic.outcome(stream)
            expect(status == 408, f"slow content: status {status}, reset {code}")
        await quic.in_order()


@quic_row("silent")
async def silent(at: Listener) -> None:
    # A connection that asks nothing holds nothing; QUIC's own idle timeout ends it.
    pid, before = resident(at)
    async with AsyncExitStack() as stack:
        for number in range(40):
            await stack.enter_async_context(opened(at, number % 2 == 0))
        await asyncio.sleep(0.5)
        grown(pid, before, SLACK_KIB, "40 silent connections")


@quic_row("unknown")
async def unknown(at: Listener) -> None:
    # RFC 9114, section 9: unknown frames, settings and streams are left alone; a flood of them is a load.
    pid, before = resident(at)
    async with opened(at, False) as quic:
        quic.control(to_varint(0x1F * 7 + 0x21) + to_varint(9), frame(0x1F * 5 + 0x21, b"x" * 1000))
        for number in range(20):
            quic.unidirectional(0x1F * number + 0x21, b"x" * 100, fin=number % 2 == 0)
        grease = frame(0x1F * 3 + 0x21, b"x" * 500)
        stream = quic.request(grease * 20 + frame(HEADERS, qpack(asking("GET", topic("u") + "?last"))) + grease)
        status, code = await quic.outcome(stream)
        expect(status == 404, f"status {status}, reset {code} for a request among unknown frames")
        await quic.in_order()
    async with opened(at) as quic:
        quic.request(frame(0x1F * 3 + 0x21, b"x" * 10_000) * 300, False)
        code = await quic.lost()
        expect(code == LOAD, f"0x{code:X} after 3 MB of unknown frames")
    grown(pid, before, SLACK_KIB, "unknown frames and streams")


@quic_row("datagrams-of-nothing")
async def datagrams(at: Listener) -> None:
    pid, before = resident(at)
    async with opened(at, max_datagram_frame_size=65536) as quic:
        try:
            for number in range(2000):
                quic._quic.send_datagram_frame(to_varint(number % 50) + b"x" * 500)
                if number % 50 == 0:
                    quic.transmit()
                    await asyncio.sleep(0)
            await asyncio.sleep(0.3)
        except ValueError:
            pass  # the server takes none
        grown(pid, before, SLACK_KIB, "datagrams of no session")
        if not quic.over.done():
            await quic.in_order()


@quic_row("too-many-subscriptions")
async def too_many_subscriptions(at: Listener) -> None:
    async with opened(at) as quic:
        streams = [quic.request(frame(HEADERS, qpack(asking("GET", topic(f"s{number}")))))
                   for number in range(SUBSCRIPTIONS + 1)]
        status, code = await quic.outcome(streams[-1])
        expect(status == 429, f"status {status}, reset {code} for a subscription too many")


@quic_row("cut")
async def cut(at: Listener) -> None:
    pid, before = resident(at)
    for _ in range(30):
        async with opened(at) as quic:
            quic.request(frame(HEADERS, qpack(asking("GET", topic("c")))))
            quic.request(frame(HEADERS, qpack(asking("POST", topic("c")))) + frame(DATA, b"x" * 50)[:30], False)
    grown(pid, before, SLACK_KIB, "30 connections that ended within requests")
