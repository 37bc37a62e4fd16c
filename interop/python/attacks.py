"""Attacks on the running broker, over raw sockets: `attacks.py [--only TEXT] [--transports tcp,tls,ws,wss]`.

Every row of the project's attack list, by its number, and the table of what a client must not send. While each runs,
another client's PINGREQ must be answered within a second, and after each row the broker's resident memory must come
back to within 20 % and a small slack of what it was. Environment, besides the runner's: STERNA_PID (the broker;
otherwise what its ready file says, or the owner of its first port) and STERNA_CONNECT_TIMEOUT_MS (as the option).
Standard library only.
"""

from __future__ import annotations

import argparse
import os
import secrets
import socket
import struct
import subprocess
import threading
import time
from contextlib import ExitStack

import violations
import wire
from harness import Failure, Listener, Report, listeners
from raw import (
    PATIENCE_S, Closed, Raw, Work, all_open, broker_pid, comes_to_rest, expect_work_below, resident_kib,
)

# Resident memory may keep this much of a row's work besides a fifth: allocators do not give everything back.
SLACK_KIB = 16 * 1024
# Rows whose tables are large keep more: room for a hundred thousand entries.
ROOM_KIB = {"10-retained-topics-100000": 40 * 1024}
# How long memory may take to come back: sessions end, queues are dropped.
SETTLE_S = 60.0
# The processors' time that the broker may spend on others while a neighbour's ping waits, in seconds.
PING_LIMIT_CPU_S = 1.0
PING_PAUSE_S = 0.05
MEBIBYTE = 1024 * 1024
# Held while a row looks whether the broker rests.
RESTING = threading.Lock()
ROWS: list[tuple[str, object, bool]] = []


class Skip(Exception):
    """The broker's advertised settings leave the row out."""


def row(name: str, everywhere: bool = False):
    """A row; `everywhere` runs it over every transport, the others run over TCP."""

    def add(function):
        ROWS.append((name, function, everywhere))
        return function

    return add


def expect(condition, why: str) -> None:
    if not condition:
        raise Failure(why)


class Bystander:
    """Another client that pings all the time, and remembers the most work that the broker put before an answer.

    Work is the broker's own processor time. The wall clock would count the machine's other programs, too.
    """

    def __init__(self, listener: Listener, pid: int | None):
        self.listener, self.pid, self.worst_cpu_s, self.trouble = listener, pid, 0.0, None
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Bystander:
        self.raw = Raw(self.listener)
        self.raw.connect()
        self.thread.start()
        return self

    def _run(self) -> None:
        try:
            while not self.stopping.wait(PING_PAUSE_S):
                work = Work(self.pid)
                self.raw.send(wire.pingreq())
                self.raw.expect(wire.PINGRESP)
                self.worst_cpu_s = max(self.worst_cpu_s, work.seconds())
        except (Failure, Closed) as why:
            self.trouble = str(why)

    def __exit__(self, *_) -> None:
        self.stopping.set()
        self.thread.join(2 * PATIENCE_S)
        self.raw.close()

    def judge(self) -> None:
        expect(not self.trouble, f"another client's ping: {self.trouble}")
        expect_work_below(self.worst_cpu_s, PING_LIMIT_CPU_S, "while another client's ping waited")


def subscriber(listener: Listener, *filters: str, options: int = 1, **connect) -> Raw:
    one = Raw(listener)
    one.connect(**connect)
    one.send(wire.subscribe(1, [(each, options) for each in filters]))
    one.expect(wire.SUBACK)
    return one


def alive(listener: Listener) -> None:
    """A new client can connect, subscribe and hear itself."""
    topic = "iop/alive/" + secrets.token_hex(4)
    with subscriber(listener, topic) as one:
        one.send(wire.publish(topic, b"alive"))
        expect(one.expect(wire.PUBLISH).payload == b"alive", "a new client hears something else")


def ended(one: Raw, timeout: float, what: str, codes: set[int] | None = None) -> None:
    """The broker ends the connection, with one of these codes if it sends one."""
    try:
        packets, _ = one.end(timeout)
    except Failure as why:
        raise Failure(f"{what}: {why}") from None
    for got in packets:
        if codes and got.kind in (wire.DISCONNECT, wire.CONNACK):
            expect(got.reason in codes, f"{what}: {got}")


# --------------------------------------------------------------------------- rows


@row("01-no-connect-huge-length", everywhere=True)
def huge_first_length(at: Listener) -> None:
    # [MQTT-3.1.0-1]: 200 connections that claim 256 MiB in a first packet that is no CONNECT
    with ExitStack() as stack:
        many = [stack.enter_context(Raw(at)) for _ in range(200)]
        for one in many:
            one.send(b"\x30\xff\xff\xff\x7f" + b"x" * 100)
        for one in many:
            ended(one, PATIENCE_S, "PUBLISH before CONNECT")


@row("01-first-byte", everywhere=True)
def first_byte(at: Listener) -> None:
    with Raw(at) as one:
        one.send(b"\xe0")
        ended(one, PATIENCE_S, "the first byte of a DISCONNECT before CONNECT")


@row("02-claimed-length-then-silence", everywhere=True)
def claimed_length(at: Listener) -> None:
    # 100 clients that claim 256 MiB each: at most the broker's own limit may ever be set aside, and only as it comes.
    pid, before = broker_pid(at), None
    with ExitStack() as stack:
        many, limits = [], set()
        for _ in range(100):
            # One after the other: a broker gives a connection that says nothing little time.
            one = stack.enter_context(Raw(at))
            limits.add(one.connect().properties.get("maximum_packet_size"))
            many.append(one)
        before = resident_kib(pid) if pid else 0
        for one in many:
            one.send(b"\x30\xff\xff\xff\x7f\x00\x01t\x00")
        time.sleep(0.5)
        if pid:
            grown = resident_kib(pid) - before
            expect(grown < 64 * 1024, f"100 claims of 256 MiB took {grown} KiB of memory")
        if limits != {None}:
            for one in many:
                ended(one, PATIENCE_S, "a packet above the maximum packet size", {0x95})


@row("02-connect-claims-256-mib", everywhere=True)
def connect_claims(at: Listener) -> None:
    with ExitStack() as stack:
        for _ in range(100):
            stack.enter_context(Raw(at)).send(b"\x10\xff\xff\xff\x7f\x00\x04MQTT\x05\x02\x00\x00")
        time.sleep(0.5)


@row("02-above-maximum-packet-size", everywhere=True)
def above_maximum(at: Listener) -> None:
    # [MQTT-3.2.2-15]
    with Raw(at) as one:
        limit = one.connect().properties.get("maximum_packet_size")
        if limit is None or limit > 300 * MEBIBYTE:
            raise Skip("the broker names no maximum packet size")
        claimed = limit + 1
        one.send(b"\x30" + wire.varint(min(claimed, 268_435_455)) + b"\x00\x01t\x00" + b"x" * 1000)
        packets, _ = one.end()
        expect(packets and packets[-1].reason == 0x95, f"{[str(p) for p in packets]} instead of DISCONNECT 0x95")


@row("03-split-and-joined", everywhere=True)
def split_and_joined(at: Listener) -> None:
    # [MQTT-6.0.0-2]: byte by byte, and all at once
    topic = "iop/split/" + secrets.token_hex(4)
    stream = (wire.connect(client_id="s" + secrets.token_hex(6)) + wire.subscribe(1, [(topic, 0)])
              + wire.publish(topic, b"x" * 300, 1, 2) + wire.pingreq())
    for size in (1, 7, len(stream)):
        with Raw(at) as one:
            for start in range(0, len(stream), size):
                one.send(stream[start : start + size])
            kinds = sorted(one.packet().kind for _ in range(5))
            expect(kinds == [wire.CONNACK, wire.PUBLISH, wire.PUBACK, wire.SUBACK, wire.PINGRESP],
                   f"in pieces of {size} bytes: {kinds}")


@row("03-websocket-frames", everywhere=True)
def websocket_frames(at: Listener) -> None:
    if at.scheme not in ("ws", "wss"):
        return
    connect = wire.connect(client_id="w" + secrets.token_hex(6))
    cases = {
        # [MQTT-6.0.0-1]
        "a text frame": Raw.websocket_frame(b"text", opcode=1),
        "a reserved opcode": Raw.websocket_frame(b"x", opcode=3),
        "reserved bits": bytes([0xF2]) + Raw.websocket_frame(b"x")[1:],
        "an unmasked frame": b"\x82\x02\xc0\x00",
        "a frame of 2^63 bytes": b"\x82\xff" + struct.pack(">Q", 1 << 63) + bytes(4),
        "a frame of 2^40 bytes": b"\x82\xff" + struct.pack(">Q", 1 << 40) + bytes(4) + b"\x30" * 10,
        "a long control frame": Raw.websocket_frame(b"p" * 126, opcode=9),
        "a fragmented ping": Raw.websocket_frame(b"p", opcode=9, final=False),
        "a continuation of nothing": Raw.websocket_frame(b"x", opcode=0),
        "a packet longer than its frame, then a close": Raw.websocket_frame(b"\x30\x20\x00") + Raw.websocket_frame(b"\x03\xe8", opcode=8),
    }
    for what, data in cases.items():
        with Raw(at) as one:
            one.send(connect)
            one.expect(wire.CONNACK)
            one.send_raw(data)
            if "2^40" in what:
                # It may be read as it comes; what it must not do is take memory (which the row watches).
                continue
            ended(one, PATIENCE_S, what)
    with Raw(at) as one:  # fragments and pings between them are in order
        half = len(connect) // 2
        one.send_raw(Raw.websocket_frame(connect[:half], final=False) + Raw.websocket_frame(b"p", opcode=9)
                     + Raw.websocket_frame(connect[half:], opcode=0))
        one.expect(wire.CONNACK)


@row("03-websocket-handshakes", everywhere=True)
def websocket_handshakes(at: Listener) -> None:
    if at.scheme not in ("ws", "wss"):
        return
    good = (f"GET {at.path} HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
            "Sec-WebSocket-Protocol: mqtt\r\n")
    plain = Listener(at.url.replace("wss://", "mqtts://").replace("ws://", "mqtt://"), at.certificate)
    for what, data in {
        "no request": b"\x10\x10" + b"\x00" * 200 + b"\r\n\r\n",
        "a header of 1 MiB": good.encode() + b"X: " + b"a" * MEBIBYTE,
        "100,000 headers": good.encode() + b"X: y\r\n" * 100_000,
        # [MQTT-6.0.0-3]
        "another subprotocol": good.replace(": mqtt", ": chat").encode() + b"\r\n",
        "version 7": good.replace("13", "7").encode() + b"\r\n",
        "no key": good.replace("Sec-WebSocket-Key", "X-Key").encode() + b"\r\n",
    }.items():
        with Raw(plain) as one:
            one.frames = None
            one.send_raw(data)
            answer = b""
            try:
                until = time.monotonic() + PATIENCE_S
                while time.monotonic() < until:
                    answer += one.receive(PATIENCE_S)
                raise Failure(f"{what}: still open after {PATIENCE_S} s, answer {answer[:40]!r}")
            except Closed:
                expect(b" 101 " not in answer, f"{what}: accepted with {answer[:40]!r}")


@row("05-user-properties-1-mib", everywhere=True)
def user_properties(at: Listener) -> None:
    # [MQTT-3.3.2-17]: 150,000 pairs; whatever the broker does with them, it does it soon
    one_pair = b"\x26" + wire.text(b"a") + wire.text(b"b")
    flood = one_pair * (MEBIBYTE // len(one_pair))
    with Raw(at) as one:
        work = Work(broker_pid(at))
        one.send(wire.connect(client_id="p" + secrets.token_hex(6), props=flood))
        answer = _answer(one)
        expect(answer is None or answer.kind == wire.CONNACK, f"{answer} to a CONNECT with 1 MiB of properties")
        work.expect_below(1.0, "a CONNECT with 1 MiB of user properties")
    will = {"topic": "w", "properties": flood}
    with Raw(at) as one:
        one.send(wire.connect(client_id="p" + secrets.token_hex(6), will=will))
        _answer(one)
    with Raw(at) as one:
        one.connect()
        work = Work(broker_pid(at))
        one.send(wire.publish("iop/props", b"", 1, 1, props=flood))
        answer = _answer(one)
        work.expect_below(1.0, "a PUBLISH with 1 MiB of user properties")
        expect(answer is None or answer.kind in (wire.PUBACK, wire.DISCONNECT), f"{answer} to a PUBLISH")


def _answer(one: Raw) -> wire.Packet | None:
    try:
        return one.packet()
    except Closed:
        return None


@row("09-deep-topics", everywhere=True)
def deep_topics(at: Listener) -> None:
    # [MQTT-4.7.3-3]
    for what, name in {"65,535 slashes": "/" * 65_535, "32,000 levels": "a/" * 32_000,
                       "32,000 pluses": "+/" * 32_000 + "#", "65,535 letters": "a" * 65_535}.items():
        with Raw(at) as one:
            one.connect()
            work = Work(broker_pid(at))
            one.send(wire.subscribe(1, [(name, 1)]))
            answer = _answer(one)
            if answer is None or answer.kind == wire.DISCONNECT:
                continue
            expect(answer.kind == wire.SUBACK and answer.codes[0] in (0, 1, 2, 0x80, 0x8F, 0x97), f"{what}: {answer}")
            topic = name.replace("+", "a").replace("#", "a")
            one.send(wire.publish(topic, b"deep", 1, 2, retain=True))
            answer = _answer(one)
            while answer is not None and answer.kind == wire.PUBLISH:
                one.send(wire.ack(wire.PUBACK, answer.pid))
                answer = _answer(one)
            one.send(wire.publish(topic, b"", 1, 3, retain=True) + wire.unsubscribe(4, [name]) + wire.pingreq())
            while (answer := _answer(one)) is not None and answer.kind != wire.PINGRESP:
                pass
            work.expect_below(2.0, what)


@row("09-wildcards-that-multiply")
def wildcard_explosion(at: Listener) -> None:
    # Every level matches both its name and +: a walk that forks at each is 2^14 steps for one message.
    depth, filters = 14, []
    for number in range(400):
        bits = (number * 2654435761) & ((1 << depth) - 1)
        filters.append("/".join("+" if bits >> level & 1 else "a" for level in range(depth)))
    with subscriber(at, *dict.fromkeys(filters), options=0), Raw(at) as publisher:
        publisher.connect()
        work = Work(broker_pid(at))
        for number in range(200):
            publisher.send(wire.publish("/".join("a" * depth), b"x", 1, number + 1))
        for _ in range(200):
            publisher.expect(wire.PUBACK)
        work.expect_below(2.0, "200 messages against 400 crossing filters")


def windowed(one: Raw, packets, kinds: tuple[int, ...], window: int) -> list[wire.Packet]:
    """Sends packets, never more than `window` unanswered, and returns the answers; stops when the broker closes."""
    answers, sent = [], 0
    batch = bytearray()
    try:
        for data in packets:
            batch += data
            sent += 1
            if sent - len(answers) >= window:
                one.send(bytes(batch))
                batch.clear()
                while sent - len(answers) > window // 2:
                    got = one.packet()
                    expect(got is not None, f"{sent - len(answers)} packets are not answered after {PATIENCE_S} s")
                    if got.kind in kinds:
                        answers.append(got)
        one.send(bytes(batch))
        while len(answers) < sent:
            got = one.packet()
            expect(got is not None, f"{sent - len(answers)} packets are not answered after {PATIENCE_S} s")
            if got.kind in kinds:
                answers.append(got)
    except Closed:
        pass
    return answers


@row("10-retained-topics-100000")
def many_retained(at: Listener) -> None:
    # [MQTT-3.3.1-5]: accepted within a quota, then refused with 0x97 (or the connection ended with it)
    root, pid = "iop/flood/" + secrets.token_hex(4), broker_pid(at)

    def flood(payload: bytes, count: int = 100_000) -> list[int]:
        with Raw(at) as one:
            window = min(one.connect().properties.get("receive_maximum", 65_535), 1000)
            answers = windowed(one, (wire.publish(f"{root}/{n}", payload, 1, n % 60_000 + 1, retain=True)
                                     for n in range(count)), (wire.PUBACK,), window)
            return [got.reason for got in answers]

    try:
        codes = flood(b"x")
        strange = {code for code in codes if code not in (0, 0x10, 0x97)}
        expect(not strange, f"codes {strange} for retained messages")
        expect(codes, "nothing was answered")
        # A lookup does not walk all of them.
        with Raw(at) as one:
            one.connect()
            work = Work(pid)
            one.send(wire.subscribe(1, [(f"{root}/7", 0)]))
            expect(one.expect(wire.SUBACK).codes == [0], "the subscription was refused")
            work.expect_below(0.5, f"a subscription beside {len(codes)} retained messages")
    finally:
        flood(b"")
    # Tables and the allocator may keep room for as many again, but another round needs no more (than what another
    # shard may keep, which has not seen them yet).
    if pid:
        left = []
        for _ in range(3):
            before = resident_kib(pid)
            flood(b"x", 30_000)
            flood(b"", 30_000)
            left.append(resident_kib(pid) - before)
            # What leaks does so in each round; the allocator grows now and then.
            if left[-1] < 8192:
                break
        grown = min(left)
        expect(grown < 8192, f"a further round of retained messages, set and cleared, left {grown} KiB more")


@row("10-subscriptions-100000")
def many_subscriptions(at: Listener) -> None:
    root, count, each = "iop/subs/" + secrets.token_hex(4), 100_000, 200
    with Raw(at) as one:
        one.connect()
        answers = windowed(one, (wire.subscribe(n % 60_000 + 1, [(f"{root}/{n}/{k}/+", 0) for k in range(each)])
                                 for n in range(count // each)), (wire.SUBACK,), 20)
        codes = [code for got in answers for code in got.codes]
        strange = {code for code in codes if code not in (0, 0x97, 0x80)}
        expect(not strange, f"codes {strange} for subscriptions")
        expect(codes, "nothing was answered")
    with Raw(at) as other:
        other.connect()
        work = Work(broker_pid(at))
        other.send(wire.publish(f"{root}/3/4/x", b"x", 1, 1))
        other.expect(wire.PUBACK)
        work.expect_below(0.5, f"a message beside {len(codes)} subscriptions")


@row("12-receive-maximum-exceeded", everywhere=True)
def receive_maximum(at: Listener) -> None:
    # [MQTT-3.3.4-8]: ever-new identifiers of quality of service 2, and never PUBREL
    with Raw(at) as one:
        limit = one.connect().properties.get("receive_maximum", 65_535)
        one.send(b"".join(wire.publish("iop/rm", b"x", 2, pid) for pid in range(1, min(limit + 2, 65_536))))
        if limit == 65_535:
            return  # there are no more identifiers; what it took is watched
        packets, _ = one.end()
        expect(packets[-1].kind == wire.DISCONNECT and packets[-1].reason == 0x93,
               f"{packets[-1]} instead of DISCONNECT 0x93 after {limit + 1} messages")


@row("12-qos2-same-identifier")
def same_identifier(at: Listener) -> None:
    # [MQTT-4.3.3-10]: the repeated message is acknowledged and delivered once
    topic = "iop/again/" + secrets.token_hex(4)
    with subscriber(at, topic, options=2) as receiver, Raw(at) as one:
        one.connect()
        for number in range(50):
            one.send(wire.publish(topic, b"once", 2, 9, dup=number > 0))
        # Copies that come before the message is safe have one answer: that of the message.
        expect(one.expect(wire.PUBREC).reason in (0, 0x10), "PUBREC")
        one.send(wire.pingreq())
        while (answer := one.packet()) is not None and answer.kind != wire.PINGRESP:
            expect(answer.kind == wire.PUBREC and answer.reason in (0, 0x10), f"{answer} instead of PUBREC")
        expect(answer is not None, "no PINGRESP")
        one.send(wire.ack(wire.PUBREL, 9))
        one.expect(wire.PUBCOMP)
        # [MQTT-4.3.3-12]: after PUBCOMP the identifier is a new message
        one.send(wire.publish(topic, b"new", 2, 9))
        one.expect(wire.PUBREC)
        one.send(wire.ack(wire.PUBREL, 9))
        one.expect(wire.PUBCOMP)
        got = [receiver.expect(wire.PUBLISH).payload for _ in range(2)]
        expect(got == [b"once", b"new"], f"delivered {got}")
        expect(receiver.packet(0.3) is None, "delivered again")


@row("12-never-acknowledged")
def never_acknowledged(at: Listener) -> None:
    # A subscriber with a session that takes nothing, and 20 MiB for it: queues have a limit.
    topic, name = "iop/stuck/" + secrets.token_hex(4), "stuck" + secrets.token_hex(5)
    with subscriber(at, topic, client_id=name, clean=False, props={"session_expiry": 600}), Raw(at) as one:
        window = min(one.connect().properties.get("receive_maximum", 65_535), 100)
        payload = b"x" * 1024
        windowed(one, (wire.publish(topic, payload, 1, n % 60_000 + 1) for n in range(20_000)), (wire.PUBACK,), window)
    with Raw(at) as last:  # the session ends, and its queue with it
        last.connect(client_id=name, clean=True)


def lost_its_session(one: Raw, timeout: float = 0.05) -> bool:
    """Whether the broker has ended a connection because another client came with its session."""
    try:
        while (got := one.packet(timeout)) is not None:
            expect(got.kind == wire.DISCONNECT and got.reason == 0x8E, f"a loser got {got}")
    except Closed:
        return True
    return False


@row("13-session-races")
def session_races(at: Listener) -> None:
    # [MQTT-3.1.4-3]: forty clients fight for one session; one has it in the end
    name, topic = "race" + secrets.token_hex(5), "iop/race/" + secrets.token_hex(4)
    winners: list[Raw] = []
    lock = threading.Lock()

    def fight() -> None:
        try:
            one = Raw(at)
            one.send(wire.connect(client_id=name, clean=False, props={"session_expiry": 30}))
            if one.packet() is not None:
                with lock:
                    winners.append(one)
        except (Closed, Failure, OSError):
            pass

    threads = [threading.Thread(target=fight) for _ in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    left, until = winners, time.monotonic() + PATIENCE_S
    while len(left) > 1 and time.monotonic() < until:
        left = [one for one in left if not lost_its_session(one)]
    expect(len(left) == 1, f"{len(left)} of 40 connections hold the session")
    expect(not lost_its_session(left[0], 0.3), "the last one has lost the session, too")
    left[0].send(wire.subscribe(1, [(topic, 1)]))
    left[0].expect(wire.SUBACK)
    for one in winners:
        one.close()
    with Raw(at) as last:
        last.connect(client_id=name, clean=True)


@row("13-sessions-that-never-expire")
def many_sessions(at: Listener) -> None:
    # A quota, or a small price each: 3,000 sessions for ever, then ended one by one.
    root, count = "n" + secrets.token_hex(4), 3000
    pid = broker_pid(at)
    before, refused = resident_kib(pid) if pid else 0, set()

    def one_after_the_other(clean: bool, props: dict) -> None:
        for number in range(count):
            with Raw(at) as one:
                one.send(wire.connect(client_id=f"{root}{number}", clean=clean, props=props))
                got = one.expect(wire.CONNACK)
                if got.reason:
                    refused.add(got.reason)
                one.send(wire.disconnect())

    one_after_the_other(False, {"session_expiry": 0xFFFFFFFF})
    grown = resident_kib(pid) - before if pid else 0
    one_after_the_other(True, {})
    expect(refused <= {0x97, 0x89, 0x9F}, f"sessions were refused with {refused}")
    expect(grown < 8 * count, f"{count} empty sessions take {grown} KiB")


@row("13-will-delay-beyond-session", everywhere=True)
def will_delay(at: Listener) -> None:
    # [MQTT-3.1.3-9] and 3.1.3.2.2: the will goes out when the session ends, if that comes first
    topic = "iop/late/" + secrets.token_hex(4)
    with subscriber(at, topic) as watcher:
        dying = Raw(at)
        dying.connect(props={"session_expiry": 1}, clean=False,
                      will={"topic": topic, "payload": b"late", "qos": 1, "properties": {"will_delay": 0xFFFFFFFF}})
        dying.abort()
        got = watcher.packet()
        expect(got is not None and got.payload == b"late", "the will did not come with the end of the session")


@row("14-after-disconnect", everywhere=True)
def after_disconnect(at: Listener) -> None:
    # [MQTT-3.14.4-1] [MQTT311-3.14.4-2]: what follows a DISCONNECT is not read
    for level in (4, 5):
        topic = "iop/after/" + secrets.token_hex(4)
        with subscriber(at, topic) as watcher:
            for _ in range(20):
                with Raw(at, level) as one:
                    one.connect()
                    one.send(wire.disconnect(level) + wire.publish(topic, b"late", 1, 1, level=level)
                             + wire.subscribe(2, [("a", 0)], level) + wire.unsubscribe(3, ["a"], level)
                             + wire.publish(topic, b"late", retain=True, level=level))
                    packets, _ = one.end()
                    expect(not packets, f"after DISCONNECT the broker sent {', '.join(map(str, packets))}")
            expect(watcher.packet(0.3) is None, "a PUBLISH after DISCONNECT was delivered")


@row("14-rejected-connect", everywhere=True)
def rejected_connect(at: Listener) -> None:
    # [MQTT-3.1.4-6] [MQTT311-3.1.4-5]: nothing behind a CONNECT that is refused
    topic = "iop/rejected/" + secrets.token_hex(4)
    with subscriber(at, topic) as watcher:
        with Raw(at) as one:
            one.send(violations.with_level(6) + wire.publish(topic, b"x") + wire.publish(topic, b"x", level=4))
            ended(one, PATIENCE_S, "a refused CONNECT")
        expect(watcher.packet(0.3) is None, "a PUBLISH behind a refused CONNECT was delivered")


@row("15-keep-alive", everywhere=True)
def keep_alive(at: Listener) -> None:
    # [MQTT-3.1.2-11] [MQTT-3.1.2-22] [MQTT311-3.1.2-24]: silence for one and a half times the keep alive of 1 s
    for level in (4, 5):
        with Raw(at, level) as one:
            # The broker counts from what it reads, which is no earlier than this.
            start = time.monotonic()
            given = one.connect(keep_alive=1).properties.get("server_keep_alive", 1)
            if given > 5:
                raise Skip(f"the broker sets a keep alive of {given} s")
            packets, _ = one.end(given * 1.5 + PATIENCE_S)
            took = time.monotonic() - start
            expect(took >= given * 1.4, f"closed after {took:.2f} s with a keep alive of {given} s")
            codes = [got.reason for got in packets]
            wanted = [0x8D] if level >= 5 else []
            expect(codes == wanted, f"{[str(p) for p in packets]} before the end, level {level}")


def silent_connections(at: Listener) -> list[tuple[str, socket.socket]]:
    """Connections that stop at each stage before CONNECT."""
    found = []

    def tcp(what: str, data: bytes = b"") -> None:
        one = socket.create_connection((at.host, at.port), PATIENCE_S)
        one.sendall(data)
        found.append((what, one))

    tcp("no byte")
    if at.secure:
        tcp("the start of a ClientHello", b"\x16\x03\x01\x02\x00\x01\x00")
    if at.scheme == "ws":
        tcp("the start of a request", b"GET /mqtt HTTP/1.1\r\nHost: x\r\n")
    if at.scheme == "mqtt":
        tcp("the start of a CONNECT", b"\x10\x20\x00\x04MQ")
    if at.scheme != "mqtt":
        found.append(("a handshake and no CONNECT", Raw(at).socket))
    return found


def rests_beside_silence(at: Listener, pid: int) -> None:
    """The broker has nothing to do with silent connections, once it has them."""
    until = time.monotonic() + PATIENCE_S
    while True:
        with ExitStack() as stack:
            sockets = [stack.enter_context(one) for _ in range(25) for _, one in silent_connections(at)]
            # It closes them after a while, maybe before a slow machine is done with their handshakes.
            if comes_to_rest(pid, lambda: all_open(sockets)):
                return
        expect(time.monotonic() < until,
               f"as long as {len(sockets)} silent connections are open, the broker always has something to do")


@row("15-half-open", everywhere=True)
def half_open(at: Listener, connect_timeout_s: float = 30) -> None:
    # All stages at once, and one that drips; counted from accept. The broker must not spin on them.
    if pid := broker_pid(at):
        # The handshakes of another transport are work, too.
        with RESTING:
            rests_beside_silence(at, pid)
    start = time.monotonic()
    waiting = [item for _ in range(25) for item in silent_connections(at)]
    dripping = Raw(Listener(at.url.replace("ws", "mqtt", 1), at.certificate)) if at.scheme in ("ws", "wss") else Raw(at)
    mqtt, http = wire.connect(client_id="drip" + "p" * 1000), b"GET /mqtt HTTP/1.1\r\nX: " + b"y" * 1000
    drops = iter(mqtt if at.scheme.startswith("mqtt") else http)
    # The broker closes them after the first. The rest is for a slow machine.
    limit = connect_timeout_s + PATIENCE_S
    try:
        while time.monotonic() - start < limit:
            dripping.send_raw(bytes([next(drops)]))
            try:
                dripping.receive(0.2)
            except Closed:
                break
        else:
            raise Failure(f"a byte every 0.2 s keeps a connection open for more than {limit:.0f} s")
        for what, one in waiting:
            one.settimeout(max(1.0, start + limit - time.monotonic()))
            try:
                while one.recv(4096):
                    pass
            except TimeoutError:
                raise Failure(f"{what}: still open after {limit:.0f} s") from None
            except OSError:
                pass
    finally:
        dripping.close()
        for _, one in waiting:
            one.close()


def measures(report: Report, only: str) -> None:
    """A program that spins never rests, whatever else runs, and one that sleeps does: else no row would find a spin."""
    for name, script, rests in (("a-spin-is-seen", "while :; do :; done", False), ("rest-is-seen", "read line", True)):
        if only not in f"measures/{name}":
            continue
        looks = iter(range(4))
        with subprocess.Popen(["sh", "-c", script], stdin=subprocess.PIPE) as program:
            try:
                seen = comes_to_rest(program.pid, lambda: next(looks, None) is not None)
            finally:
                program.kill()
        if seen == rests:
            report.ok(f"measures/{name}")
        else:
            report.not_ok(f"measures/{name}", f"`{script}` {'rests' if seen else 'does not rest'}")


# --------------------------------------------------------------------------- running them


class Runner:
    def __init__(self, report: Report, places: dict[str, Listener]):
        self.report, self.plain = report, next(iter(places.values()))
        self.pid = broker_pid(self.plain)

    def _settled(self, before: int, label: str) -> None:
        limit = before * 1.2 + ROOM_KIB.get(label.partition("/")[2], SLACK_KIB)
        until = time.monotonic() + SETTLE_S
        while (now := resident_kib(self.pid)) > limit:
            expect(time.monotonic() < until,
                   f"{now} KiB are resident {SETTLE_S:.0f} s later, {before} KiB were before")
            time.sleep(0.1)

    def guarded(self, label: str, work) -> None:
        """Runs one row with a bystander, and checks the memory and that the broker still serves."""
        try:
            before = resident_kib(self.pid) if self.pid else 0
            with Bystander(self.plain, self.pid) as bystander:
                work()
            bystander.judge()
            alive(self.plain)
            if self.pid:
                self._settled(before, label)
            self.report.ok(label)
        except Skip as why:
            self.report.nothing(label, str(why))
        except Failure as why:
            self.report.not_ok(label, str(why))
        except Closed as why:
            self.report.not_ok(label, f"closed: {why}")
        except Exception as error:  # a broker that is gone, or a fault of the suite: both must be named
            self.report.not_ok(label, f"{type(error).__name__}: {error}")

    def table(self, transport: str, at: Listener, only: str) -> None:
        """The table of violations, with one bystander and one look at the memory for all of it."""
        chosen = [one for one in violations.every() if only in f"{transport}/{one.name}"]
        if not chosen:
            return

        def work() -> None:
            for one in chosen:
                label = f"{transport}/{one.name}"
                try:
                    one.run(at)
                    self.report.ok(label)
                except Failure as why:
                    self.report.not_ok(label, str(why))
                except (Closed, OSError, wire.WireError) as why:
                    self.report.not_ok(label, f"{type(why).__name__}: {why}")

        self.guarded(f"{transport}/table-memory-and-bystander", work)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="only rows whose transport/name contains this")
    parser.add_argument("--transports", default="tcp,tls,ws,wss", help="separated by commas")
    parser.add_argument("--connect-timeout-ms", type=int,
                        default=int(os.environ.get("STERNA_CONNECT_TIMEOUT_MS", "30000")),
                        help="how long the broker lets a connection be without CONNECT")
    parser.add_argument("--timings", action="store_true", help="print how long each row took")
    arguments = parser.parse_args()
    report = Report()
    places = {name: one for name, one in listeners().items() if name in arguments.transports.split(",")}
    if not places:
        report.not_ok("attacks", "the broker has none of the transports")
        report.exit()
    runner = Runner(report, places)
    if not runner.pid:
        report.skip("memory", "the broker's process is not known; set STERNA_PID")
    measures(report, arguments.only)
    # The slow row runs over all transports at once, beside nothing else.
    slow = [(transport, at) for transport, at in places.items() if arguments.only in f"{transport}/15-half-open"]
    patience_s = arguments.connect_timeout_ms / 1000
    threads = [threading.Thread(target=runner.guarded,
                                args=(f"{transport}/15-half-open", lambda at=at: half_open(at, patience_s)))
               for transport, at in slow]
    for transport, at in places.items():
        runner.table(transport, at, arguments.only)
        for name, function, everywhere in ROWS:
            label = f"{transport}/{name}"
            if function is half_open or arguments.only not in label or not (everywhere or transport == "tcp"):
                continue
            start = time.monotonic()
            runner.guarded(label, lambda function=function, at=at: function(at))
            if arguments.timings:
                print(f"# {time.monotonic() - start:.2f} s {label}", flush=True)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    report.exit()


if __name__ == "__main__":
    main()
