"""Raw HTTP connections: bytes of HTTP/1.1 and frames of HTTP/2, with nothing between that would correct them."""

from __future__ import annotations

import json
import socket
import ssl
import time
from dataclasses import dataclass

from hpack import Decoder

from harness import Failure, Listener
from raw import BLOCKED_S, PATIENCE_S, Closed, Raw

# Frames and flags of HTTP/2 (RFC 9113, section 6).
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, ACK, END_HEADERS = 1, 1, 4
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


@dataclass
class Answer:
    """A response, as far as it has come."""

    status: int
    fields: dict[str, str]
    content: bytes

    def problem(self) -> str:
        """The type of the problem that it carries, without what all have in common."""
        try:
            return json.loads(self.content)["type"].removeprefix("urn:sterna:problem:")
        except (ValueError, KeyError, TypeError):
            return f"no problem: {self.content[:100]!r}"


class RawHttp(Raw):
    """HTTP/1.1. `send` writes bytes as they are."""

    alpn = "http/1.1"

    def __init__(self, listener: Listener, timeout: float = PATIENCE_S):
        self.listener, self.frames, self.rest = listener, None, b""
        self.socket = socket.create_connection((listener.host, listener.port), timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if listener.secure:
            context = ssl.create_default_context(cafile=listener.certificate)
            context.set_alpn_protocols([self.alpn])
            self.socket = context.wrap_socket(self.socket, server_hostname=listener.host)
        self.socket.settimeout(BLOCKED_S)

    def _more(self, until: float, what: str) -> None:
        left = until - time.monotonic()
        data = self.receive(max(left, 0.01))
        if not data and left <= 0:
            raise Failure(f"no {what} in time: {self.rest[:100]!r}")
        self.rest += data

    def answer(self, timeout: float = PATIENCE_S, head: bool = False) -> Answer:
        """The next response, complete. Raises Closed where the connection ends before."""
        until = time.monotonic() + timeout
        while b"\r\n\r\n" not in self.rest:
            self._more(until, "response")
        raw, _, self.rest = self.rest.partition(b"\r\n\r\n")
        first, *lines = raw.decode("latin-1").split("\r\n")
        if not first.startswith("HTTP/1.1 "):
            raise Failure(f"a response that begins with {first!r}")
        status = int(first.split()[1])
        fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if 100 <= status < 200:
            return self.answer(until - time.monotonic(), head)
        content = b""
        if head or status in (204, 304):
            pass
        elif "content-length" in fields:
            length = int(fields["content-length"])
            while len(self.rest) < length:
                self._more(until, "content")
            content, self.rest = self.rest[:length], self.rest[length:]
        elif fields.get("transfer-encoding") == "chunked":
            content = self._chunks(until)
        return Answer(status, fields, content)

    def _chunks(self, until: float) -> bytes:
        content = b""
        while True:
            while b"\r\n" not in self.rest:
                self._more(until, "chunk")
            size, _, self.rest = self.rest.partition(b"\r\n")
            length = int(size.partition(b";")[0], 16)
            while len(self.rest) < length + 2:
                self._more(until, "chunk")
            content, self.rest = content + self.rest[:length], self.rest[length + 2 :]
            if not length:
                return content

    def ending(self, timeout: float = PATIENCE_S) -> bytes:
        """What comes until the broker closes."""
        until = time.monotonic() + timeout
        while True:
            try:
                self._more(until, "end of the connection")
            except Closed:
                return self.rest


def request(method: str, target: str, fields: dict[str, str] | None = None, content: bytes | None = None) -> bytes:
    """A request in order."""
    every = {"Host": "localhost", **(fields or {})}
    if content is not None:
        every["Content-Length"] = str(len(content))
    lines = "".join(f"{name}: {value}\r\n" for name, value in every.items())
    return f"{method} {target} HTTP/1.1\r\n{lines}\r\n".encode("latin-1") + (content or b"")


# --------------------------------------------------------------------------- HTTP/2


def frame(kind: int, flags: int, stream: int, payload: bytes = b"", claimed: int | None = None) -> bytes:
    length = len(payload) if claimed is None else claimed
    return length.to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def prefixed(value: int, bits: int, pattern: int) -> bytes:
    """An integer of HPACK or QPACK (RFC 7541, section 5.1)."""
    full = (1 << bits) - 1
    if value < full:
        return bytes([pattern | value])
    out, value = bytearray([pattern | full]), value - full
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def hpack(fields: list[tuple[str | bytes, str | bytes]]) -> bytes:
    """Fields as literals without indexing (RFC 7541, section 6.2.2)."""
    out = b""
    for pair in fields:
        out += b"\0"
        for text in pair:
            raw = text.encode("latin-1") if isinstance(text, str) else text
            out += prefixed(len(raw), 7, 0) + raw
    return out


def head(method: str, target: str, *more: tuple[str, str], authority: str = "localhost") -> list[tuple[str, str]]:
    return [(":method", method), (":scheme", "http"), (":authority", authority), (":path", target), *more]


@dataclass
class Frame:
    kind: int
    flags: int
    stream: int
    payload: bytes

    def code(self) -> int:
        """The error code of RST_STREAM and GOAWAY."""
        return int.from_bytes(self.payload[4:8] if self.kind == GOAWAY else self.payload[:4], "big")


class RawHttp2(RawHttp):
    """HTTP/2: with prior knowledge on TCP, by ALPN on TLS."""

    alpn = "h2"

    def __init__(self, listener: Listener, settings: dict[int, int] | None = None, timeout: float = PATIENCE_S):
        super().__init__(listener, timeout)
        payload = b"".join(key.to_bytes(2, "big") + value.to_bytes(4, "big") for key, value in (settings or {}).items())
        self.decoder = Decoder()
        self.send(PREFACE + frame(SETTINGS, 0, 0, payload))
        self.contents: dict[int, bytes] = {}
        self.heads: dict[int, dict[str, str]] = {}

    def frame(self, timeout: float = PATIENCE_S) -> Frame | None:
        """The next frame; None where none comes in time."""
        until = time.monotonic() + timeout
        while len(self.rest) < 9 or len(self.rest) < 9 + int.from_bytes(self.rest[:3], "big"):
            left = until - time.monotonic()
            data = self.receive(max(left, 0.001))
            if not data and left <= 0:
                return None
            self.rest += data
        length = int.from_bytes(self.rest[:3], "big")
        got = Frame(self.rest[3], self.rest[4], int.from_bytes(self.rest[5:9], "big"), self.rest[9 : 9 + length])
        self.rest = self.rest[9 + length :]
        if got.kind == SETTINGS and not got.flags & ACK:
            self.send(frame(SETTINGS, ACK, 0))
        if got.kind == HEADERS:
            self.heads[got.stream] = dict(self.decoder.decode(got.payload))
        elif got.kind == DATA:
            self.contents[got.stream] = self.contents.get(got.stream, b"") + got.payload
        return got

    def ask(self, stream: int, fields: list, content: bytes | None = None) -> None:
        self.send(frame(HEADERS, END_HEADERS | (END_STREAM if content is None else 0), stream, hpack(fields)))
        if content is not None:
            self.send(frame(DATA, END_STREAM, stream, content))

    def outcome(self, stream: int, timeout: float = PATIENCE_S) -> Answer | Frame:
        """The response on a stream, or the RST_STREAM or GOAWAY that came instead."""
        until = time.monotonic() + timeout
        while True:
            got = self.frame(max(0.01, until - time.monotonic()))
            if got is None:
                raise Failure(f"nothing on stream {stream} in time")
            if got.kind == GOAWAY and got.code():
                return got
            if got.stream != stream:
                continue
            if got.kind == RST_STREAM:
                if stream not in self.heads:
                    return got
                break
            if got.flags & END_STREAM and got.kind in (HEADERS, DATA):
                break
        fields = self.heads[stream]
        return Answer(int(fields[":status"]), fields, self.contents.get(stream, b""))

    def lost(self, timeout: float = PATIENCE_S) -> int | None:
        """Reads until the broker ends the connection: the code of its GOAWAY, where it sent one."""
        until, code = time.monotonic() + timeout, None
        while True:
            try:
                got = self.frame(max(0.01, until - time.monotonic()))
            except Closed:
                return code
            if got is None:
                raise Failure(f"the connection is still open after {timeout} s"
                              f"{'' if code is None else f', though GOAWAY said {code}'}")
            if got.kind == GOAWAY:
                code = got.code()
