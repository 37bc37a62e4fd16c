"""What a client must not send, as a table: bytes, and what the broker may answer before it closes.

Each entry is one row of the attack list (its number) or a normative statement; the runner in `attacks.py` sends it over
every transport. The broker must end the connection (or refuse the one packet, where 5.0 lets it), name the reason to a
client of 5.0 that was connected, and live.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import wire
from harness import Failure
from raw import PATIENCE_S, Closed, Raw

MALFORMED, PROTOCOL = 0x81, 0x82
BOTH = {MALFORMED, PROTOCOL}
HUGE = b"\xff\xff\xff\x7f"
ANSWERS = (wire.SUBACK, wire.UNSUBACK, wire.PUBACK, wire.PUBREC)


@dataclass
class Violation:
    """`data` is sent on a connection that is new, or connected with `connect` when that is not None."""

    name: str
    data: bytes | Callable[[wire.Packet], bytes]
    codes: set[int]
    level: int = 5
    connect: dict | None = field(default_factory=dict)
    # Codes with which an acknowledgement may refuse instead, the connection staying open.
    soft: set[int] = field(default_factory=set)

    def run(self, listener) -> None:
        with Raw(listener, self.level) as one:
            connack = None if self.connect is None else one.connect(**self.connect)
            one.send(self.data(connack) if callable(self.data) else self.data)
            packets, closed = [], False
            try:
                while (got := one.packet(PATIENCE_S)) is not None:
                    packets.append(got)
                    if got.kind in ANSWERS and self._softly_refused(got):
                        return
            except Closed:
                closed = True
            self._judge(packets, closed)

    def _softly_refused(self, got: wire.Packet) -> bool:
        codes = got.codes if got.kind in (wire.SUBACK, wire.UNSUBACK) else [got.reason]
        return bool(codes) and all(code in self.soft for code in codes)

    def _judge(self, packets: list[wire.Packet], closed: bool) -> None:
        shown = ", ".join(map(str, packets)) or "nothing"
        if not closed:
            raise Failure(f"the connection is still open after {PATIENCE_S} s; the broker sent {shown}")
        last = packets[-1] if packets else None
        wanted = " or ".join(f"0x{code:02X}" for code in sorted(self.codes))
        if self.connect is None:
            # [MQTT-3.14.0-1]: no DISCONNECT before a successful CONNACK; silence is allowed.
            if any(got.kind == wire.DISCONNECT for got in packets):
                raise Failure(f"DISCONNECT before CONNACK: {shown}")
            # [MQTT-3.2.2-6]
            if last and last.kind == wire.CONNACK and (last.reason not in self.codes or last.session_present):
                raise Failure(f"{shown} before the end, expected CONNACK with {wanted} or none")
        elif self.level >= 5:
            if last is None or last.kind != wire.DISCONNECT:
                raise Failure(f"{shown} before the end, expected DISCONNECT with {wanted}")
            if last.reason not in self.codes:
                raise Failure(f"DISCONNECT with 0x{last.reason:02X}, expected {wanted}")
        elif any(got.kind == wire.DISCONNECT for got in packets):
            raise Failure("DISCONNECT from the server in MQTT 3.1.1")


def first(name, data, codes, level=5) -> Violation:
    return Violation(name, data, codes, level, None)


def connect_with(**options) -> bytes:
    options.setdefault("client_id", "violation")
    return wire.connect(**options)


def cut(data: bytes, count: int) -> bytes:
    """The packet with `count` bytes less than it needs, and a remaining length that says so."""
    kind, body = data[0], data[1:]
    at = 1
    while body[at - 1] & 0x80:
        at += 1
    body = body[at : len(body) - count]
    return bytes([kind]) + wire.varint(len(body)) + body


def with_body(first_byte: int, body: bytes) -> bytes:
    return bytes([first_byte]) + wire.varint(len(body)) + body


def first_packets() -> list[Violation]:
    """Row 1 [MQTT-3.1.0-1] and what is wrong with a CONNECT."""
    found = [
        first(f"01-first-packet/{wire.NAMES.get(kind, f'type-{kind}')}", bytes([kind << 4]) + HUGE, BOTH)
        for kind in range(16) if kind != wire.CONNECT
    ]
    plain = connect_with()
    return found + [
        # Row 2: five bytes of remaining length.
        first("02-remaining-length/connect-5-bytes", b"\x10\xff\xff\xff\xff\x7f", {MALFORMED}),
        first("02-remaining-length/connect-smuggled", b"\x10\x80\x80\x80\x80\x01" + plain, {MALFORMED}),
        # [MQTT-3.1.2-1]; servers may name the unsupported version instead.
        first("connect/name", connect_with(name="MQTX"), BOTH | {0x84}),
        first("connect/name-empty", connect_with(name=""), BOTH | {0x84}),
        # [MQTT-3.1.2-2] [MQTT311-3.1.2-2]: 0x84 in 5.0, 0x01 in the form of 3.1.1
        *(first(f"connect/level-{level}", with_level(level), {0x84, 0x01}) for level in (0, 1, 2, 6, 0x7F)),
        # [MQTT-3.1.2-12] [MQTT-2.1.3-1]
        first("connect/fixed-flags", bytes([0x11]) + plain[1:], BOTH),
        # [MQTT-3.1.2-3] [MQTT311-3.1.2-3]
        first("connect/reserved-flag", connect_with(flags=0x03), BOTH),
        first("connect/reserved-flag-3.1.1", connect_with(level=4, flags=0x03), BOTH, 4),
        # [MQTT-3.1.2-7] [MQTT-3.1.2-8] [MQTT-3.1.2-13]
        first("connect/will-qos-without-will", connect_with(flags=0x0A), BOTH),
        first("connect/will-retain-without-will", connect_with(flags=0x22), BOTH),
        first("connect/will-qos-3", connect_with(will={"topic": "w", "qos": 3}), BOTH),
        # [MQTT-3.1.2-6] [MQTT-3.1.2-9] [MQTT-3.1.2-17] [MQTT-3.1.2-19]
        first("connect/will-missing", connect_with(flags=0x06), BOTH),
        first("connect/user-name-missing", connect_with(flags=0x82), BOTH),
        first("connect/password-missing", connect_with(flags=0x42), BOTH),
        # [MQTT-3.1.2-16] [MQTT-3.1.2-18]: fields without their flags are too much
        first("connect/user-name-without-flag", connect_with(username="u", flags=0x02), BOTH),
        # 3.1.1 section 3.1.2.9: no password without a user name
        first("connect/password-alone-3.1.1", connect_with(level=4, password=b"p"), BOTH, 4),
        first("connect/will-topic-wildcard", connect_with(will={"topic": "a/#"}), BOTH | {0x90}),
        # [MQTT311-3.1.3-7] [MQTT311-3.1.3-8]
        first("connect/empty-id-no-clean-3.1.1", wire.connect(level=4, client_id="", clean=False), {0x02}, 4),
        # Row 3: contents and length disagree. [MQTT-3.1.4-1]
        *(first(f"03-lengths/connect-cut-{count}", cut(plain, count), BOTH) for count in (1, 5, 11, 14)),
        first("03-lengths/connect-longer", with_body(0x10, body_of(plain) + b"xx"), BOTH),
        first("03-lengths/connect-empty", b"\x10\x00", BOTH),
        # Row 6.
        first("06-properties/connect-twice", connect_with(props=b"\x11\0\0\0\1\x11\0\0\0\1"), {PROTOCOL}),
        first("06-properties/connect-unknown", connect_with(props=b"\x7f\0"), BOTH),
        first("06-properties/connect-not-for-it", connect_with(props=b"\x23\0\1"), BOTH),
        first("06-properties/connect-receive-maximum-0", connect_with(props=b"\x21\0\0"), {PROTOCOL}),
        first("06-properties/connect-maximum-packet-size-0", connect_with(props=b"\x27\0\0\0\0"), {PROTOCOL}),
        first("06-properties/connect-request-problem-2", connect_with(props=b"\x17\2"), {PROTOCOL}),
        first("06-properties/connect-length-beyond", with_body(0x10, body_of(plain)[:10] + b"\x7f" + b"\0\1x"), BOTH),
        first("06-properties/connect-value-cut", connect_with(props=b"\x11\0\0"), BOTH),
        first("06-properties/connect-authentication-data-alone", connect_with(props=b"\x16\0\1x"), {PROTOCOL}),
        first("06-properties/will-twice", connect_with(will={"topic": "w", "properties": b"\x01\1\x01\1"}), {PROTOCOL}),
    ]


def body_of(data: bytes) -> bytes:
    at = 1
    while data[at] & 0x80:
        at += 1
    return data[at + 1 :]


def with_level(level: int) -> bytes:
    body = bytearray(body_of(wire.connect(level=4, client_id="violation")))
    body[6] = level
    return with_body(0x10, bytes(body))


def above_alias_maximum(connack: wire.Packet) -> bytes:
    alias = connack.properties.get("topic_alias_maximum", 0) + 1
    return wire.publish("t", b"x", props={"topic_alias": alias})


def unknown_alias(connack: wire.Packet) -> bytes:
    return wire.publish("", b"x", props={"topic_alias": max(1, connack.properties.get("topic_alias_maximum", 0))})


def packets() -> list[Violation]:
    """What is wrong with later packets, for a client of 5.0."""
    sub, unsub = wire.subscribe(1, [("a/b", 0)]), wire.unsubscribe(1, ["a/b"])
    publish = wire.publish("topic", b"payload", 1, 7)
    found = [
        # Row 2.
        Violation("02-remaining-length/publish-5-bytes", b"\x30\xff\xff\xff\xff\x7f", {MALFORMED}),
        # Row 3. [MQTT-4.13.1-1]
        Violation("03-lengths/publish-topic-beyond", with_body(0x30, b"\x00\x10abc"), BOTH),
        Violation("03-lengths/publish-1-byte", with_body(0x30, b"\x00"), BOTH),
        Violation("03-lengths/publish-no-identifier", with_body(0x32, b"\x00\x01t"), BOTH),
        Violation("03-lengths/publish-no-properties", with_body(0x30, b"\x00\x01t"), BOTH),
        Violation("03-lengths/publish-identifier-0", wire.publish("t", b"", 1, 0), BOTH),
        Violation("03-lengths/puback-1-byte", with_body(0x40, b"\x00"), BOTH),
        Violation("03-lengths/puback-empty", b"\x40\x00", BOTH),
        Violation("03-lengths/pubrel-longer", with_body(0x62, b"\0\1\0\0xx"), BOTH),
        Violation("03-lengths/pingreq-1-byte", with_body(0xC0, b"\x00"), BOTH),
        Violation("03-lengths/disconnect-longer", with_body(0xE0, b"\x00\x00xx"), BOTH),
        # Row 4. [MQTT-3.8.3-2] [MQTT-3.10.3-2]
        Violation("04-truncated/subscribe-no-filter", with_body(0x82, b"\0\1\0"), BOTH),
        Violation("04-truncated/subscribe-empty", b"\x82\x00", BOTH),
        Violation("04-truncated/subscribe-identifier-only", with_body(0x82, b"\0\1"), BOTH),
        Violation("04-truncated/subscribe-filter-beyond", with_body(0x82, b"\0\1\0\xff\xffa"), BOTH),
        *(Violation(f"04-truncated/subscribe-cut-{count}", cut(sub, count), BOTH) for count in (1, 2, 4)),
        Violation("04-truncated/subscribe-identifier-0", wire.subscribe(0, [("a", 0)]), BOTH),
        Violation("04-truncated/subscribe-filter-empty", wire.subscribe(1, [("", 0)]), BOTH | {0x8F}, soft={0x8F}),
        Violation("04-truncated/unsubscribe-no-filter", with_body(0xA2, b"\0\1\0"), BOTH),
        Violation("04-truncated/unsubscribe-empty", b"\xa2\x00", BOTH),
        Violation("04-truncated/unsubscribe-filter-beyond", with_body(0xA2, b"\0\1\0\xff\xffa"), BOTH),
        *(Violation(f"04-truncated/unsubscribe-cut-{count}", cut(unsub, count), BOTH) for count in (1, 2)),
        # Row 6. [MQTT-3.3.4-6]
        Violation("06-properties/publish-twice", wire.publish("t", props=b"\x02\0\0\0\1\x02\0\0\0\1"), {PROTOCOL}),
        Violation("06-properties/publish-unknown", wire.publish("t", props=b"\x05\0"), BOTH),
        Violation("06-properties/publish-not-for-it", wire.publish("t", props=b"\x11\0\0\0\1"), BOTH),
        Violation("06-properties/publish-format-2", wire.publish("t", props=b"\x01\2"), BOTH),
        Violation("06-properties/publish-length-beyond", with_body(0x30, b"\0\1t\x7f\x01\0"), BOTH),
        Violation("06-properties/publish-identifier-by-client", wire.publish("t", props=b"\x0b\1"), BOTH),
        Violation("06-properties/publish-response-topic-empty", wire.publish("t", props=b"\x08\0\0"), BOTH | {0x90}),
        Violation("06-properties/publish-response-topic-wildcard", wire.publish("t", props=b"\x08\0\3a/#"), BOTH | {0x90}),
        Violation("06-properties/subscribe-identifier-0", wire.subscribe(1, [("a", 0)], props=b"\x0b\0"), {PROTOCOL}),
        Violation("06-properties/subscribe-identifier-twice", wire.subscribe(1, [("a", 0)], props=b"\x0b\1\x0b\2"), BOTH),
        Violation("06-properties/disconnect-expiry-after-0", wire.disconnect(props={"session_expiry": 5}), {PROTOCOL}),
        # Row 7. [MQTT-3.3.2-7] [MQTT-3.3.2-8] [MQTT-3.3.2-9] [MQTT-4.7.3-1] [MQTT-3.3.2-2]
        Violation("07-topic/empty", wire.publish("", b"x"), BOTH | {0x90}),
        Violation("07-topic/alias-0", wire.publish("t", props=b"\x23\0\0"), {0x94, PROTOCOL}),
        Violation("07-topic/alias-above-maximum", above_alias_maximum, {0x94}),
        Violation("07-topic/alias-unknown", unknown_alias, {PROTOCOL, 0x94}),
        Violation("07-topic/wildcard-plus", wire.publish("a/+", b"x"), BOTH | {0x90}),
        Violation("07-topic/wildcard-hash", wire.publish("#", b"x", 1, 9), BOTH | {0x90}, soft={0x90}),
        # Row 11. [MQTT-3.1.0-2] [MQTT-4.12.0-7]
        Violation("11-direction/second-connect", connect_with(), {PROTOCOL}),
        Violation("11-direction/connack", b"\x20\x03\x00\x00\x00", BOTH),
        Violation("11-direction/suback", with_body(0x90, b"\0\1\0\0"), BOTH),
        Violation("11-direction/unsuback", with_body(0xB0, b"\0\1\0\0"), BOTH),
        Violation("11-direction/pingresp", b"\xd0\x00", BOTH),
        Violation("11-direction/type-0", b"\x00\x00", BOTH),
        Violation("11-direction/auth-without-method", b"\xf0\x00", BOTH),
        # Flags and options.
        Violation("flags/publish-qos-3", bytes([0x36]) + publish[1:], BOTH),  # [MQTT-3.3.1-4]
        Violation("flags/publish-dup-qos-0", wire.publish("t", dup=True), BOTH),  # [MQTT-3.3.1-2]
        Violation("flags/subscribe", bytes([0x80]) + sub[1:], BOTH),  # [MQTT-3.8.1-1]
        Violation("flags/unsubscribe", bytes([0xA0]) + unsub[1:], BOTH),  # [MQTT-3.10.1-1]
        Violation("flags/pubrel", bytes([0x60]) + wire.ack(wire.PUBREL, 1)[1:], BOTH),  # [MQTT-3.6.1-1]
        Violation("flags/pingreq", b"\xc1\x00", BOTH),  # [MQTT-2.1.3-1]
        Violation("flags/disconnect", b"\xe1\x00", BOTH),  # [MQTT-3.14.1-1]
        Violation("options/qos-3", wire.subscribe(1, [("a", 3)]), BOTH),
        Violation("options/retain-handling-3", wire.subscribe(1, [("a", 0x30)]), BOTH),
        Violation("options/reserved", wire.subscribe(1, [("a", 0x40)]), BOTH),  # [MQTT-3.8.3-5]
        Violation("options/no-local-on-shared", wire.subscribe(1, [("$share/g/a", 0x04)]), {PROTOCOL}),  # [MQTT-3.8.3-4]
    ]
    # [MQTT-4.7.1-1] [MQTT-4.7.1-2] [MQTT-4.8.2-1] [MQTT-4.8.2-2]: a filter may be refused by its code alone
    for bad in ("a/#/b", "a#", "a/b+", "+a/b", "#/", "$share/g", "$share//a", "$share/g/", "$share/a+b/c", "$share/#/c"):
        found.append(Violation(f"filters/{bad}", wire.subscribe(1, [(bad, 1)]), BOTH | {0x8F}, soft={0x8F}))
    return found


# Row 8. Strings that are no strings: [MQTT-1.5.4-1] [MQTT-1.5.4-2] [MQTT-1.5.7-1] [MQTT-4.7.3-2] [MQTT311-1.5.3-1]
BAD_TEXT = {
    "byte-ff": b"a\xff", "overlong": b"a\xc0\x80", "surrogate": b"\xed\xa0\x80", "surrogate-pair": b"\xed\xa0\x80\xed\xb0\x80",
    "null": b"a\x00b", "five-bytes": b"\xf8\x88\x80\x80\x80", "beyond": b"\xf4\x90\x80\x80", "cut": b"\xe2\x82",
    "lone-continuation": b"\x80",
}


def strings() -> list[Violation]:
    found = []
    for name, bad in BAD_TEXT.items():
        pair = b"\x26" + wire.text(b"k") + wire.text(bad)
        codes = BOTH | {0x90, 0x8F, 0x85, 0x99}
        found += [
            first(f"08-utf8/client-id/{name}", connect_with(client_id=bad), codes),
            first(f"08-utf8/client-id-3.1.1/{name}", connect_with(level=4, client_id=bad), codes | {0x02}, 4),
            # [MQTT-3.1.3-11] [MQTT-3.1.3-12]
            first(f"08-utf8/will-topic/{name}", connect_with(will={"topic": bad}), codes),
            first(f"08-utf8/user-name/{name}", connect_with(username=bad), codes | {0x86}),
            first(f"08-utf8/connect-user-property/{name}", connect_with(props=pair), codes),
            first(f"08-utf8/authentication-method/{name}", connect_with(props=b"\x15" + wire.text(bad)), codes | {0x8C}),
            Violation(f"08-utf8/topic/{name}", wire.publish(bad, b"x"), codes),
            Violation(f"08-utf8/topic-3.1.1/{name}", wire.publish(bad, b"x", level=4), codes, 4),
            Violation(f"08-utf8/filter/{name}", wire.subscribe(1, [(bad, 0)]), codes, soft={0x8F}),
            Violation(f"08-utf8/unsubscribe/{name}", wire.unsubscribe(1, [bad]), codes, soft={0x8F}),
            # [MQTT-3.3.2-13] [MQTT-3.3.2-19]
            Violation(f"08-utf8/response-topic/{name}", wire.publish("t", props=b"\x08" + wire.text(bad)), codes),
            Violation(f"08-utf8/content-type/{name}", wire.publish("t", props=b"\x03" + wire.text(bad)), codes),
            Violation(f"08-utf8/user-property/{name}", wire.publish("t", props=pair), codes),
            Violation(f"08-utf8/reason-string/{name}", wire.disconnect(props=b"\x1f" + wire.text(bad)), codes),
        ]
    return found


def version_3() -> list[Violation]:
    """The same for 3.1.1, where the broker can only close: [MQTT311-4.8.0-1]."""
    sub = wire.subscribe(1, [("a/b", 0)], 4)
    table = {
        "03-lengths/publish-topic-beyond": with_body(0x30, b"\x00\x10abc"),
        "04-truncated/subscribe-no-filter": with_body(0x82, b"\0\1"),  # [MQTT311-3.8.3-3]
        "04-truncated/subscribe-filter-beyond": with_body(0x82, b"\0\1\xff\xffa"),
        "04-truncated/subscribe-cut": cut(sub, 2),
        "04-truncated/unsubscribe-no-filter": with_body(0xA2, b"\0\1"),  # [MQTT311-3.10.3-2]
        "07-topic/empty": wire.publish("", b"x", level=4),  # [MQTT311-4.7.3-1]
        "07-topic/wildcard": wire.publish("a/#", b"x", level=4),  # [MQTT311-3.3.2-2]
        "11-direction/second-connect": connect_with(level=4),  # [MQTT311-3.1.0-2]
        "11-direction/connack": b"\x20\x02\x00\x00",
        "11-direction/suback": with_body(0x90, b"\0\1\0"),
        "11-direction/auth": b"\xf0\x00",
        "11-direction/pingresp": b"\xd0\x00",
        "flags/publish-qos-3": b"\x36" + wire.publish("t", b"x", 1, 7, level=4)[1:],  # [MQTT311-3.3.1-4]
        "flags/subscribe": b"\x80" + sub[1:],  # [MQTT311-3.8.1-1]
        "flags/unsubscribe": b"\xa0" + wire.unsubscribe(1, ["a"], 4)[1:],  # [MQTT311-3.10.1-1]
        "flags/pubrel": b"\x60\x02\x00\x01",  # [MQTT311-3.6.1-1]
        "options/reserved": wire.subscribe(1, [("a", 0x04)], 4),  # [MQTT311-3.8.3-4]
        "options/qos-3": wire.subscribe(1, [("a", 3)], 4),
    }
    return [Violation(f"{name}-3.1.1", data, set(), 4) for name, data in table.items()]


def every() -> list[Violation]:
    return first_packets() + packets() + strings() + version_3()
