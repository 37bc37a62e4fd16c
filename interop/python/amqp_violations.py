"""What an AMQP client must not send, what it has to be told, and how much it loses by it.

Written from the specification. Where it leaves the choice, every condition that fits is taken; where it says how much is
lost (part 2, sections 2.4.6, 2.5.8 and 2.6.5), a broker that ends less than it has to is wrong, too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import amqp_wire as wire
from amqp_raw import RawAmqp
from amqp_wire import Symbol, Typed, composite, frame, performative, ubyte

CONNECTION, SESSION, LINK = "close", "end", "detach"
FRAMING, DECODE, INVALID = "amqp:connection:framing-error", "amqp:decode-error", "amqp:invalid-field"
NOT_ALLOWED, STATE, LIMIT = "amqp:not-allowed", "amqp:illegal-state", "amqp:resource-limit-exceeded"
NOT_IMPLEMENTED, TOO_LARGE = "amqp:not-implemented", "amqp:link:message-size-exceeded"
UNATTACHED, IN_USE = "amqp:session:unattached-handle", "amqp:session:handle-in-use"
NO_CREDIT, ERRANT = "amqp:link:transfer-limit-exceeded", "amqp:session:errant-link"
ADDRESS = "iop/violations"


@dataclass
class Violation:
    name: str
    # What is lost: the connection, the session or the link.
    lost: str
    conditions: set[str]
    # How far a client comes in order.
    before: Callable[[RawAmqp], object]
    data: bytes


def nothing(_: RawAmqp) -> None:
    pass


def header(one: RawAmqp) -> None:
    one.header()


def opened(one: RawAmqp) -> None:
    one.opened()


def begun(one: RawAmqp) -> None:
    one.begun()


def sending(one: RawAmqp) -> None:
    one.begun()
    one.sending(ADDRESS)


def sending_settled(one: RawAmqp) -> None:
    one.begun()
    one.sending(ADDRESS, snd=ubyte(1))


def sending_unsettled(one: RawAmqp) -> None:
    one.begun()
    one.sending(ADDRESS, snd=ubyte(0))


def sending_second(one: RawAmqp) -> None:
    one.begun()
    one.sending(ADDRESS, snd=ubyte(0), rcv=ubyte(1))


def receiving(one: RawAmqp) -> None:
    one.begun()
    one.receiving(wire.source(ADDRESS + "/in"), 10)


def detached(one: RawAmqp) -> None:
    sending(one)
    one.send(wire.detach(0))
    one.next(wire.DETACH)


def body(raw: bytes, channel: int = 0) -> bytes:
    return frame(raw, channel)


def with_source(*fields) -> bytes:
    return performative(wire.ATTACH, "x", 0, True, None, None, composite(wire.SOURCE, *fields), wire.target("x"))


def every() -> list[Violation]:
    found = []

    def row(name: str, lost: str, conditions, before, data: bytes) -> None:
        wanted = {conditions} if isinstance(conditions, str) else set(conditions)
        found.append(Violation(name, lost, wanted, before, data))

    message = wire.data(b"m")
    # Framing: part 2, section 2.3.
    row("framing/header-twice", CONNECTION, FRAMING, header, wire.HEADER)
    row("framing/header-after-open", CONNECTION, FRAMING, opened, wire.HEADER)
    row("framing/size-7", CONNECTION, FRAMING, opened, bytes([0, 0, 0, 7, 2, 0, 0, 0]))
    row("framing/size-0", CONNECTION, FRAMING, opened, bytes(8))
    row("framing/doff-1", CONNECTION, FRAMING, opened, bytes([0, 0, 0, 8, 1, 0, 0, 0]))
    row("framing/doff-beyond", CONNECTION, FRAMING, opened, bytes([0, 0, 0, 8, 3, 0, 0, 0]))
    row("framing/above-max-frame-size", CONNECTION, FRAMING, opened, b"\x7f\xff\xff\xff\2\0\0\0")
    row("framing/sasl-frame-after-open", CONNECTION, FRAMING, opened, bytes([0, 0, 0, 8, 2, 1, 0, 0]))
    row("framing/unknown-type", CONNECTION, FRAMING, opened, bytes([0, 0, 0, 8, 2, 9, 0, 0]))
    # Bodies: part 1, and part 2, section 2.3.1.
    row("body/no-described-type", CONNECTION, DECODE, opened, body(b"\x45"))
    row("body/unknown-performative", CONNECTION, DECODE, opened, performative(0x7F))
    row("body/string-descriptor", CONNECTION, DECODE, opened, body(b"\0\xa1\1x\x45"))
    row("body/map-for-list", CONNECTION, DECODE, opened, body(b"\0\x53\x18\xc1\1\0"))
    row("body/cut", CONNECTION, DECODE, opened, body(b"\0\x53\x18\xc0\x09\1"))
    row("body/fewer-than-counted", CONNECTION, DECODE, opened, body(b"\0\x53\x11\xc0\2\4\x40"))
    row("body/count-of-millions", CONNECTION, DECODE, opened, body(b"\0\x53\x11\xd0\0\0\0\4\x7f\xff\xff\xff"))
    row("body/sasl-in-amqp", CONNECTION, DECODE, opened, performative(wire.SASL_INIT, Symbol("PLAIN")))
    row("body/section", CONNECTION, DECODE, opened, body(message))
    row("body/deep-nesting", CONNECTION, {DECODE, LIMIT}, opened, body(b"\0" * 4000))
    row("body/unknown-constructor", CONNECTION, DECODE, opened, body(b"\0\x53\x11\xc0\2\1\x3f"))
    # Open: section 2.7.1.
    row("open/begin-before", CONNECTION, {STATE, NOT_ALLOWED, FRAMING}, header, wire.begin())
    row("open/close-before", CONNECTION, {STATE, NOT_ALLOWED, FRAMING}, header, performative(wire.CLOSE))
    row("open/without-container-id", CONNECTION, {DECODE, INVALID}, header, performative(wire.OPEN))
    row("open/container-id-symbol", CONNECTION, {DECODE, INVALID}, header, performative(wire.OPEN, Symbol("me")))
    row("open/max-frame-size-511", CONNECTION, INVALID, header, wire.open_(max_frame=511))
    row("open/twice", CONNECTION, {STATE, NOT_ALLOWED}, opened, wire.open_())
    row("open/bytes-after", CONNECTION, {DECODE, FRAMING}, header, frame(composite(wire.OPEN, "me").raw + b"x"))
    row("open/container-id-64-kib", CONNECTION, {INVALID, LIMIT, FRAMING, NOT_ALLOWED}, header,
        wire.open_("c" * 60_000))
    # Sessions: sections 2.5.1 and 2.7.2.
    row("begin/channel-in-use", CONNECTION, {NOT_ALLOWED, STATE, FRAMING}, begun, wire.begin())
    row("begin/answer-to-nothing", CONNECTION, {INVALID, NOT_ALLOWED, STATE}, opened,
        wire.begin(remote=wire.ushort(7)))
    row("begin/channel-above-max", CONNECTION, {FRAMING, NOT_ALLOWED, LIMIT}, opened, wire.begin(65_535))
    row("begin/without-window", CONNECTION, DECODE, opened, performative(wire.BEGIN, None, 0, None, 1))
    row("begin/negative-window", CONNECTION, DECODE, opened, performative(wire.BEGIN, None, 0, wire.integer(-1), 1))
    for name, data in {"attach": wire.attach_sender("x", 0, wire.target("a")), "flow": wire.flow(),
                       "transfer": wire.transfer(0, 0, message), "disposition": wire.disposition(True, 0),
                       "detach": wire.detach(0), "end": performative(wire.END)}.items():
        row(f"session/{name}-without", CONNECTION, {NOT_ALLOWED, STATE, FRAMING}, opened, data)
    # Attach: section 2.7.3.
    row("attach/handle-above-max", CONNECTION, FRAMING, begun, wire.attach_sender("x", 70_000, wire.target("a")))
    row("attach/handle-in-use", SESSION, IN_USE, sending, wire.attach_sender("other", 0, wire.target("a")))
    row("attach/without-name", CONNECTION, DECODE, begun, performative(wire.ATTACH, None, 0, True))
    row("attach/without-role", CONNECTION, DECODE, begun, performative(wire.ATTACH, "x", 0))
    row("attach/snd-settle-mode-3", CONNECTION, {INVALID, DECODE}, begun,
        performative(wire.ATTACH, "x", 0, True, ubyte(3)))
    row("attach/rcv-settle-mode-2", CONNECTION, {INVALID, DECODE}, begun,
        performative(wire.ATTACH, "x", 0, True, None, ubyte(2)))
    row("attach/no-initial-delivery-count", LINK, INVALID, begun,
        performative(wire.ATTACH, "x", 0, False, None, None, wire.source("x"), wire.target(ADDRESS)))
    row("attach/name-of-8-kib", SESSION, {LIMIT, INVALID}, begun,
        wire.attach_sender("n" * 8192, 0, wire.target(ADDRESS)))
    row("attach/unknown-source", CONNECTION, {DECODE, INVALID}, begun,
        performative(wire.ATTACH, "x", 0, True, None, None, composite(0x7F), wire.target("x")))
    row("attach/durability-3", CONNECTION, {INVALID, DECODE}, begun, with_source("a", 3))
    row("attach/expiry-policy", CONNECTION, {INVALID, DECODE}, begun, with_source("a", None, Symbol("sometimes")))
    row("attach/timeout-ulong", CONNECTION, DECODE, begun, with_source("a", None, None, wire.ulong(1)))
    row("attach/address-uint", LINK, {INVALID, DECODE, NOT_ALLOWED, NOT_IMPLEMENTED}, begun, with_source(5))
    # Flow: section 2.7.4.
    row("flow/next-incoming-ahead", SESSION, INVALID, begun, wire.flow(next_incoming=9))
    row("flow/credit-without-handle", SESSION, INVALID, begun, wire.flow(credit=1))
    row("flow/unattached", SESSION, UNATTACHED, begun, wire.flow(5, 1, 0))
    row("flow/without-window", CONNECTION, DECODE, begun, performative(wire.FLOW, 0, None, 0, 0))
    # Transfer: section 2.7.5.
    row("transfer/unattached", SESSION, UNATTACHED, begun, wire.transfer(0, 0, message))
    row("transfer/without-delivery-id", LINK, INVALID, sending, wire.transfer(0, None, message))
    row("transfer/without-tag", LINK, INVALID, sending, wire.transfer(0, 0, message, tag=None))
    row("transfer/tag-of-33-bytes", LINK, INVALID, sending, wire.transfer(0, 0, message, tag=bytes(33)))
    row("transfer/delivery-id-again", SESSION, INVALID, sending,
        wire.transfer(0, 3, message) + wire.transfer(0, 3, message))
    row("transfer/id-changes-within", LINK, INVALID, sending,
        wire.transfer(0, 0, b"\0\x53\x75", more=True) + wire.transfer(0, 1, b"\xa0\0"))
    row("transfer/tag-changes-within", LINK, INVALID, sending,
        wire.transfer(0, 0, b"\0\x53\x75", more=True) + wire.transfer(0, 0, b"\xa0\0", tag=b"other"))
    row("transfer/unsettled-on-settled", LINK, NOT_ALLOWED, sending_settled, wire.transfer(0, 0, message))
    row("transfer/settled-on-unsettled", LINK, NOT_ALLOWED, sending_unsettled,
        wire.transfer(0, 0, message, settled=True))
    row("transfer/second-on-first", LINK, INVALID, sending, wire.transfer(0, 0, message, rcv=ubyte(1)))
    row("transfer/from-a-receiver", LINK, {NOT_ALLOWED, STATE}, receiving, wire.transfer(0, 0, message))
    row("transfer/after-detach", SESSION, UNATTACHED, detached, wire.transfer(0, 0, message))
    row("transfer/without-handle", CONNECTION, DECODE, sending, performative(wire.TRANSFER, None, 0))
    row("transfer/unknown-state", CONNECTION, {INVALID, DECODE}, sending,
        wire.transfer(0, 0, message, state=composite(0x7F)))
    # Deliveries that are never settled: credit for more must come to an end.
    row("transfer/beyond-credit", LINK, {NO_CREDIT, LIMIT}, sending_second,
        b"".join(wire.transfer(0, each, message, tag=bytes([each])) for each in range(200)))
    # Disposition: section 2.7.6.
    row("disposition/last-before-first", SESSION, INVALID, begun, wire.disposition(True, 5, 4))
    row("disposition/without-role", CONNECTION, DECODE, begun, performative(wire.DISPOSITION, None, 0))
    row("disposition/state-string", CONNECTION, {DECODE, INVALID}, begun, wire.disposition(True, 0, state="accepted"))
    row("disposition/rejected-without-condition", CONNECTION, DECODE, begun,
        wire.disposition(True, 0, state=composite(wire.REJECTED, composite(wire.ERROR))))
    # Detach: section 2.7.7.
    row("detach/unattached", SESSION, UNATTACHED, begun, wire.detach(4))
    row("detach/twice", SESSION, UNATTACHED, detached, wire.detach(0))
    row("detach/without-handle", CONNECTION, DECODE, sending, performative(wire.DETACH))
    # Types: part 1, section 1.6.
    row("types/string-no-utf-8", CONNECTION, DECODE, header, performative(wire.OPEN, Typed(b"\xa1\2\xc0\x80")))
    row("types/symbol-no-ascii", CONNECTION, DECODE, begun,
        with_source("a", None, Typed(b"\xa3\2\xc3\xa4")))
    row("types/odd-map", CONNECTION, DECODE, header, performative(
        wire.OPEN, "me", None, None, None, None, None, None, None, None, Typed(b"\xc1\3\1\x40\x40")))
    row("types/boolean-2", CONNECTION, DECODE, begun, performative(wire.ATTACH, "x", 0, Typed(b"\x56\2")))
    row("types/array-size-beyond", CONNECTION, DECODE, header, performative(
        wire.OPEN, "me", None, None, None, None, Typed(b"\xf0\0\0\xff\xff\0\0\0\1\xa3")))
    row("types/array-of-4-billion-nulls", CONNECTION, {DECODE, LIMIT}, header, performative(
        wire.OPEN, "me", None, None, None, None, Typed(b"\xf0\0\0\0\5\xff\xff\xff\xff\x40")))
    row("types/described-without-value", CONNECTION, DECODE, begun, body(b"\0\x53\x12\xc0\4\1\0\xa3\1x"))
    return found
