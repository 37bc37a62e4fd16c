"""AMQP 1.0 on the wire, as much as it takes to break it: values, performatives and frames, written by hand."""

from __future__ import annotations

import struct
from dataclasses import dataclass

OPEN, BEGIN, ATTACH, FLOW, TRANSFER, DISPOSITION, DETACH, END, CLOSE = range(0x10, 0x19)
ERROR, ACCEPTED, REJECTED, RELEASED, MODIFIED, SOURCE, TARGET, COORDINATOR = 0x1D, 0x24, 0x25, 0x26, 0x27, 0x28, 0x29, 0x30
DECLARE, DISCHARGE, DECLARED, TRANSACTIONAL = 0x31, 0x32, 0x33, 0x34
SASL_MECHANISMS, SASL_INIT, SASL_CHALLENGE, SASL_RESPONSE, SASL_OUTCOME = range(0x40, 0x45)
NAMES = {OPEN: "open", BEGIN: "begin", ATTACH: "attach", FLOW: "flow", TRANSFER: "transfer",
         DISPOSITION: "disposition", DETACH: "detach", END: "end", CLOSE: "close", SASL_MECHANISMS: "sasl-mechanisms",
         SASL_CHALLENGE: "sasl-challenge", SASL_OUTCOME: "sasl-outcome"}
HEADER, SASL_HEADER = b"AMQP\0\1\0\0", b"AMQP\3\1\0\0"


class Symbol(str):
    """A symbol: a str alone is a string."""


@dataclass
class Typed:
    """An encoding as it is: constructor and bytes."""

    raw: bytes


@dataclass
class Described:
    descriptor: object
    value: object


def ubyte(value: int) -> Typed:
    return Typed(bytes([0x50, value]))


def ushort(value: int) -> Typed:
    return Typed(b"\x60" + struct.pack(">H", value))


def ulong(value: int) -> Typed:
    return Typed(b"\x80" + struct.pack(">Q", value))


def integer(value: int) -> Typed:
    return Typed(b"\x71" + struct.pack(">i", value))


def timestamp(value: int) -> Typed:
    return Typed(b"\x83" + struct.pack(">q", value))


def sized(short: int, long: int, raw: bytes) -> bytes:
    if len(raw) < 256:
        return bytes([short, len(raw)]) + raw
    return bytes([long]) + struct.pack(">I", len(raw)) + raw


def counted(code: int, items: list[bytes]) -> bytes:
    raw = b"".join(items)
    return bytes([code]) + struct.pack(">II", len(raw) + 4, len(items)) + raw


def encode(value) -> bytes:
    """A value: int is uint, str string, bytes binary, list list, dict map."""
    if isinstance(value, Typed):
        return value.raw
    if value is None:
        return b"\x40"
    if isinstance(value, bool):
        return b"\x41" if value else b"\x42"
    if isinstance(value, int):
        return b"\x70" + struct.pack(">I", value)
    if isinstance(value, Symbol):
        return sized(0xA3, 0xB3, value.encode())
    if isinstance(value, str):
        return sized(0xA1, 0xB1, value.encode())
    if isinstance(value, bytes):
        return sized(0xA0, 0xB0, value)
    if isinstance(value, Described):
        return b"\0" + encode(value.descriptor) + encode(value.value)
    if isinstance(value, list):
        return counted(0xD0, [encode(one) for one in value])
    if isinstance(value, dict):
        return counted(0xD1, [encode(one) for pair in value.items() for one in pair])
    raise TypeError(f"{value!r}")


def composite(code: int, *fields) -> Typed:
    return Typed(b"\0\x53" + bytes([code]) + encode(list(fields)))


def frame(body: bytes, channel: int = 0, kind: int = 0) -> bytes:
    return struct.pack(">IBBH", 8 + len(body), 2, kind, channel) + body


def performative(code: int, *fields, channel: int = 0, payload: bytes = b"") -> bytes:
    return frame(composite(code, *fields).raw + payload, channel)


def sasl(code: int, *fields) -> bytes:
    return frame(composite(code, *fields).raw, 0, 1)


# --------------------------------------------------------------------------- performatives with the usual fields


def open_(container: str = "raw", hostname=None, max_frame: int | None = None, channel_max=None, idle=None) -> bytes:
    return performative(OPEN, container, hostname, max_frame, channel_max, idle)


def begin(channel: int = 0, remote=None, next_id: int = 0, incoming: int = 2048, outgoing: int = 2048,
          handle_max: int = 4_294_967_295) -> bytes:
    return performative(BEGIN, remote, next_id, incoming, outgoing, handle_max, channel=channel)


def source(address=None, **more) -> Typed:
    names = ["durable", "expiry", "timeout", "dynamic", "node", "distribution", "filter", "default", "outcomes",
             "capabilities"]
    return composite(SOURCE, address, *[more.get(name) for name in names])


def target(address=None) -> Typed:
    return composite(TARGET, address)


def attach_sender(name: str, handle: int, to, channel: int = 0, snd=None, rcv=None) -> bytes:
    return performative(ATTACH, name, handle, False, snd, rcv, source(name), to, None, None, 0, channel=channel)


def attach_receiver(name: str, handle: int, of, channel: int = 0, snd=None, rcv=None) -> bytes:
    return performative(ATTACH, name, handle, True, snd, rcv, of, target(name), channel=channel)


def flow(handle=None, credit=None, count=None, channel: int = 0, next_incoming=0, incoming: int = 2048,
         next_outgoing: int = 0, drain=None, echo=None) -> bytes:
    return performative(FLOW, next_incoming, incoming, next_outgoing, 2048, handle, count, credit, None, drain, echo,
                        channel=channel)


def transfer(handle: int, delivery: int | None, payload: bytes = b"", tag: bytes | None = b"t", settled=None,
             more=None, channel: int = 0, state=None, aborted=None, message_format=0, rcv=None, resume=None) -> bytes:
    return performative(TRANSFER, handle, delivery, tag, message_format, settled, more, rcv, state, resume, aborted,
                        channel=channel, payload=payload)


def disposition(role: bool, first: int, last=None, settled=True, state=None, channel: int = 0) -> bytes:
    return performative(DISPOSITION, role, first, last, settled, state, channel=channel)


def detach(handle: int, closed: bool = True, channel: int = 0) -> bytes:
    return performative(DETACH, handle, closed, channel=channel)


def data(payload: bytes) -> bytes:
    """A message of one data section."""
    return b"\0\x53\x75" + encode(payload)


# --------------------------------------------------------------------------- reading


class Malformed(Exception):
    """What the broker sent is no AMQP."""


def decode(raw: bytes, at: int = 0) -> tuple[object, int]:
    """A value and where the next begins. Numbers lose their types, which nothing here needs."""
    code = raw[at]
    at += 1
    if code == 0:
        descriptor, at = decode(raw, at)
        value, at = decode(raw, at)
        return Described(descriptor, value), at
    kind = code >> 4
    if kind == 4:
        return {0x40: None, 0x41: True, 0x42: False, 0x43: 0, 0x44: 0, 0x45: []}[code], at
    if kind in (5, 6, 7, 8, 9):
        width = {5: 1, 6: 2, 7: 4, 8: 8, 9: 16}[kind]
        body = raw[at : at + width]
        if code == 0x56:
            return bool(body[0]), at + width
        return int.from_bytes(body, "big", signed=code in (0x51, 0x54, 0x55, 0x61, 0x71, 0x81, 0x83)), at + width
    width = 1 if kind in (0xA, 0xC, 0xE) else 4
    size = int.from_bytes(raw[at : at + width], "big")
    at += width
    end = at + size
    if end > len(raw):
        raise Malformed(f"a value of {size} bytes beyond its frame")
    if kind in (0xA, 0xB):
        body = raw[at:end]
        if code & 15 == 0:
            return body, end
        return (Symbol(body.decode()) if code & 15 == 3 else body.decode()), end
    count = int.from_bytes(raw[at : at + width], "big")
    at += width
    if kind in (0xC, 0xD):
        items = []
        for _ in range(count):
            item, at = decode(raw, at)
            items.append(item)
        return (dict(zip(items[::2], items[1::2])) if code & 15 == 1 else items), end
    items, constructor = [], raw[at : at + 1]
    at += 1
    for _ in range(count):
        item, after = decode(constructor + raw[at:end])
        items.append(item)
        at += after - 1
    return items, end


@dataclass
class Frame:
    """A frame, or a protocol header (code None, fields its bytes)."""

    kind: int
    channel: int
    code: int | None
    fields: list
    payload: bytes = b""

    def __str__(self) -> str:
        if self.code is None:
            return "empty frame" if self.kind >= 0 else f"header {self.payload!r}"
        return f"{NAMES.get(self.code, hex(self.code))} {self.fields}"

    def field(self, index: int):
        return self.fields[index] if index < len(self.fields) else None

    @property
    def error(self) -> str | None:
        """The condition in a detach, end or close."""
        index = {DETACH: 2, END: 0, CLOSE: 0}.get(self.code)
        found = self.field(index) if index is not None else None
        return str(found.value[0]) if isinstance(found, Described) else None


class Parser:
    def __init__(self):
        self.rest = bytearray()

    def feed(self, raw: bytes) -> list[Frame]:
        self.rest += raw
        found = []
        while len(self.rest) >= 8:
            if self.rest[:4] == b"AMQP":
                found.append(Frame(-1, 0, None, [], bytes(self.rest[:8])))
                del self.rest[:8]
                continue
            size = struct.unpack(">I", self.rest[:4])[0]
            if not 8 <= size <= 1 << 24:
                raise Malformed(f"a frame of {size} bytes: {bytes(self.rest[:16])!r}")
            if len(self.rest) < size:
                break
            unit = bytes(self.rest[:size])
            del self.rest[:size]
            body, channel = unit[unit[4] * 4 :], struct.unpack(">H", unit[6:8])[0]
            if not body:
                found.append(Frame(unit[5], channel, None, []))
                continue
            value, end = decode(body)
            found.append(Frame(unit[5], channel, value.descriptor, value.value, body[end:]))
        return found
