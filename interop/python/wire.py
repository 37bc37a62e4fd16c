"""MQTT packets as bytes: a small codec of the project's own for suites that must say exactly what is sent.

It encodes what a client may send (and, on purpose, what it may not) and decodes what a server may send, for
MQTT 3.1 (level 3), 3.1.1 (level 4) and 5.0 (level 5). It checks what it decodes strictly, because a test that
forgives the broker shows nothing. Standard library only.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

CONNECT, CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP = 1, 2, 3, 4, 5, 6, 7
SUBSCRIBE, SUBACK, UNSUBSCRIBE, UNSUBACK = 8, 9, 10, 11
PINGREQ, PINGRESP, DISCONNECT, AUTH = 12, 13, 14, 15

NAMES = {
    1: "CONNECT", 2: "CONNACK", 3: "PUBLISH", 4: "PUBACK", 5: "PUBREC", 6: "PUBREL", 7: "PUBCOMP",
    8: "SUBSCRIBE", 9: "SUBACK", 10: "UNSUBSCRIBE", 11: "UNSUBACK", 12: "PINGREQ", 13: "PINGRESP",
    14: "DISCONNECT", 15: "AUTH",
}

# Property identifier -> (name used by the scenario, kind), MQTT 5.0 section 2.2.2.2.
PROPERTIES = {
    0x01: ("payload_format", "byte"),
    0x02: ("message_expiry", "u32"),
    0x03: ("content_type", "text"),
    0x08: ("response_topic", "text"),
    0x09: ("correlation_data", "bytes"),
    0x0B: ("subscription_identifiers", "varint*"),
    0x11: ("session_expiry", "u32"),
    0x12: ("assigned_client_id", "text"),
    0x13: ("server_keep_alive", "u16"),
    0x15: ("authentication_method", "text"),
    0x16: ("authentication_data", "bytes"),
    0x17: ("request_problem_information", "byte"),
    0x18: ("will_delay", "u32"),
    0x19: ("request_response_information", "byte"),
    0x1A: ("response_information", "text"),
    0x1C: ("server_reference", "text"),
    0x1F: ("reason_string", "text"),
    0x21: ("receive_maximum", "u16"),
    0x22: ("topic_alias_maximum", "u16"),
    0x23: ("topic_alias", "u16"),
    0x24: ("maximum_qos", "byte"),
    0x25: ("retain_available", "byte"),
    0x26: ("user_properties", "pair*"),
    0x27: ("maximum_packet_size", "u32"),
    0x28: ("wildcard_subscription_available", "byte"),
    0x29: ("subscription_identifiers_available", "byte"),
    0x2A: ("shared_subscription_available", "byte"),
}
PROPERTY_IDS = {name: (number, kind) for number, (name, kind) in PROPERTIES.items()}


class WireError(Exception):
    """Bytes from the broker that are no valid MQTT packet."""


# --------------------------------------------------------------------------- encoding


def varint(value: int) -> bytes:
    """A variable byte integer in its shortest form, section 1.5.5."""
    out = bytearray()
    while True:
        value, low = value >> 7, value & 0x7F
        out.append(low | (0x80 if value else 0))
        if not value:
            return bytes(out)


def text(value: str | bytes) -> bytes:
    raw = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else bytes(value)
    return struct.pack(">H", len(raw)) + raw


def _property(number: int, kind: str, value) -> bytes:
    head = varint(number)
    if kind == "byte":
        return head + bytes([value])
    if kind == "u16":
        return head + struct.pack(">H", value)
    if kind == "u32":
        return head + struct.pack(">I", value)
    if kind in ("text", "bytes"):
        return head + text(value)
    if kind == "varint*":
        return b"".join(head + varint(one) for one in value)
    return b"".join(head + text(key) + text(item) for key, item in value)


def properties(values: dict | bytes | None) -> bytes:
    """Property length and properties; `bytes` are taken as the raw properties."""
    if isinstance(values, (bytes, bytearray)):
        return varint(len(values)) + bytes(values)
    raw = b""
    for name, value in (values or {}).items():
        number, kind = PROPERTY_IDS[name]
        raw += _property(number, kind, value)
    return varint(len(raw)) + raw


def packet(kind: int, flags: int, body: bytes) -> bytes:
    return bytes([kind << 4 | flags]) + varint(len(body)) + body


def connect(
    level=5, client_id="", clean=True, keep_alive=60, props=None, will=None, username=None, password=None,
    name=None, flags=None,
) -> bytes:
    """CONNECT. `will` is a dict with topic, payload, qos, retain, properties; `flags` overrides the flag byte."""
    bits = 0x02 if clean else 0
    if will:
        bits |= 0x04 | will.get("qos", 0) << 3 | (0x20 if will.get("retain") else 0)
    bits |= (0x80 if username is not None else 0) | (0x40 if password is not None else 0)
    body = text(name if name is not None else ("MQIsdp" if level == 3 else "MQTT"))
    body += bytes([level, bits if flags is None else flags]) + struct.pack(">H", keep_alive)
    if level >= 5:
        body += properties(props)
    body += text(client_id)
    if will:
        if level >= 5:
            body += properties(will.get("properties"))
        body += text(will["topic"]) + text(will.get("payload", b""))
    if username is not None:
        body += text(username)
    if password is not None:
        body += text(password)
    return packet(CONNECT, 0, body)


def publish(topic, payload=b"", qos=0, pid=None, retain=False, dup=False, level=5, props=None) -> bytes:
    body = text(topic)
    if pid is not None:
        body += struct.pack(">H", pid)
    if level >= 5:
        body += properties(props)
    return packet(PUBLISH, (8 if dup else 0) | qos << 1 | (1 if retain else 0), body + bytes(payload))


def ack(kind: int, pid: int, level=5, reason=0) -> bytes:
    """PUBACK, PUBREC, PUBREL or PUBCOMP."""
    body = struct.pack(">H", pid)
    if level >= 5 and reason:
        body += bytes([reason])
    return packet(kind, 2 if kind == PUBREL else 0, body)


def subscribe(pid: int, filters, level=5, props=None) -> bytes:
    """`filters` is a list of (filter, options byte)."""
    body = struct.pack(">H", pid)
    if level >= 5:
        body += properties(props)
    for name, options in filters:
        body += text(name) + bytes([options])
    return packet(SUBSCRIBE, 2, body)


def unsubscribe(pid: int, filters, level=5, props=None) -> bytes:
    body = struct.pack(">H", pid)
    if level >= 5:
        body += properties(props)
    for name in filters:
        body += text(name)
    return packet(UNSUBSCRIBE, 2, body)


def disconnect(level=5, reason=0, props=None) -> bytes:
    if level >= 5 and (reason or props):
        body = bytes([reason]) + (properties(props) if props else b"")
        return packet(DISCONNECT, 0, body)
    return packet(DISCONNECT, 0, b"")


def pingreq() -> bytes:
    return packet(PINGREQ, 0, b"")


# --------------------------------------------------------------------------- decoding


@dataclass
class Packet:
    """A packet from the server. Only the fields that its kind has are meaningful."""

    kind: int
    flags: int
    size: int
    pid: int | None = None
    reason: int | None = None
    codes: list = field(default_factory=list)
    session_present: bool = False
    topic: str = ""
    payload: bytes = b""
    qos: int = 0
    retain: bool = False
    dup: bool = False
    properties: dict = field(default_factory=dict)

    @property
    def name(self) -> str:
        return NAMES.get(self.kind, f"type {self.kind}")

    def __str__(self) -> str:
        out = self.name
        if self.reason is not None:
            out += f" 0x{self.reason:02X}"
        if self.kind == PUBLISH:
            out += f" {self.topic!r} qos {self.qos} {len(self.payload)} bytes"
        return out


class _Reader:
    def __init__(self, data: bytes):
        self.data, self.at = data, 0

    def take(self, count: int) -> bytes:
        if self.at + count > len(self.data):
            raise WireError(f"a field of {count} bytes ends after the packet")
        self.at += count
        return self.data[self.at - count : self.at]

    def byte(self) -> int:
        return self.take(1)[0]

    def u16(self) -> int:
        return struct.unpack(">H", self.take(2))[0]

    def u32(self) -> int:
        return struct.unpack(">I", self.take(4))[0]

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            if not byte & 0x80:
                if shift and not byte:
                    raise WireError("a variable byte integer is longer than needed")  # [MQTT-1.5.5-1]
                return value
            shift += 7
            if shift > 21:
                raise WireError("a variable byte integer of more than four bytes")

    def bytes(self) -> bytes:
        return self.take(self.u16())

    def text(self) -> str:
        try:
            value = self.bytes().decode("utf-8")
        except UnicodeDecodeError as error:
            raise WireError(f"ill-formed UTF-8: {error}") from error
        if "\0" in value:
            raise WireError("U+0000 in a string")
        return value

    def rest(self) -> bytes:
        return self.take(len(self.data) - self.at)

    def done(self) -> bool:
        return self.at == len(self.data)


def _read_properties(reader: _Reader) -> dict:
    inner = _Reader(reader.take(reader.varint()))
    found: dict = {}
    while not inner.done():
        number = inner.varint()
        if number not in PROPERTIES:
            raise WireError(f"unknown property 0x{number:02X}")
        name, kind = PROPERTIES[number]
        if kind == "pair*":
            found.setdefault(name, []).append([inner.text(), inner.text()])
            continue
        if kind == "varint*":
            found.setdefault(name, []).append(inner.varint())
            continue
        if name in found:
            raise WireError(f"property {name} is there twice")
        found[name] = {"byte": inner.byte, "u16": inner.u16, "u32": inner.u32, "text": inner.text,
                       "bytes": inner.bytes}[kind]()
    return found


def raw_properties(raw: bytes) -> dict:
    """Properties whose length stands elsewhere."""
    return _read_properties(_Reader(varint(len(raw)) + raw))


def decode(kind: int, flags: int, body: bytes, level: int, size: int) -> Packet:
    """One packet from the server; raises WireError when the broker sent nonsense."""
    out, reader = Packet(kind, flags, size), _Reader(body)
    if kind != PUBLISH and flags != (2 if kind == PUBREL else 0):
        raise WireError(f"{out.name} with reserved flags 0x{flags:X}")  # [MQTT-2.1.3-1]
    if kind == CONNACK:
        acknowledge = reader.byte()
        if acknowledge & 0xFE:
            raise WireError("CONNACK with reserved acknowledge flags")  # [MQTT-3.2.2-1]
        out.session_present, out.reason = bool(acknowledge), reader.byte()
        # A server that does not speak the version asked may answer in the old form.
        if level >= 5 and not reader.done():
            out.properties = _read_properties(reader)
    elif kind == PUBLISH:
        out.qos, out.retain, out.dup = flags >> 1 & 3, bool(flags & 1), bool(flags & 8)
        if out.qos == 3:
            raise WireError("PUBLISH with quality of service 3")  # [MQTT-3.3.1-4]
        out.topic = reader.text()
        if out.qos:
            out.pid = reader.u16()
            if not out.pid:
                raise WireError("PUBLISH with packet identifier 0")  # [MQTT-2.2.1-4]
        if level >= 5:
            out.properties = _read_properties(reader)
        out.payload = reader.rest()
    elif kind in (PUBACK, PUBREC, PUBREL, PUBCOMP):
        out.pid, out.reason = reader.u16(), 0
        if level >= 5 and not reader.done():
            out.reason = reader.byte()
            if not reader.done():
                out.properties = _read_properties(reader)
    elif kind in (SUBACK, UNSUBACK):
        out.pid = reader.u16()
        if level >= 5:
            out.properties = _read_properties(reader)
        if kind == SUBACK or level >= 5:
            out.codes = list(reader.rest())
    elif kind in (DISCONNECT, AUTH):
        if level < 5:
            raise WireError(f"{out.name} from a server to a client of MQTT {level}")
        out.reason = 0
        if not reader.done():
            out.reason = reader.byte()
            if not reader.done():
                out.properties = _read_properties(reader)
    elif kind != PINGRESP:
        raise WireError(f"{out.name} from a server")
    if not reader.done():
        raise WireError(f"{out.name} with {len(body) - reader.at} bytes too many")
    return out


class Parser:
    """Packets out of a stream of bytes."""

    def __init__(self, level: int):
        self.level, self.buffer = level, bytearray()

    def feed(self, data: bytes) -> list[Packet]:
        self.buffer += data
        found = []
        while True:
            one = self._one()
            if one is None:
                return found
            found.append(one)

    def _one(self) -> Packet | None:
        length = shift = 0
        for at in range(1, 5):
            if at >= len(self.buffer):
                return None
            length |= (self.buffer[at] & 0x7F) << shift
            shift += 7
            if not self.buffer[at] & 0x80:
                break
        else:
            raise WireError("a remaining length of more than four bytes")
        end = at + 1 + length
        if len(self.buffer) < end:
            return None
        first, body = self.buffer[0], bytes(self.buffer[at + 1 : end])
        del self.buffer[:end]
        return decode(first >> 4, first & 15, body, self.level, end)
