"""Attacks on the broker's AMQP, over raw sockets: `amqp_attacks.py [--only TEXT] [--transports tcp,tls,ws,wss]`.

The table of what a client must not send (amqp_violations.py), and what it must not be able to make the broker hold. As in
attacks.py, another client is answered within a second meanwhile, and the broker's memory comes back after each row. The
broker has the settings of amqp-attacked.toml. Standard library only.
"""

from __future__ import annotations

import argparse
import secrets
import socket
import threading
import time
from contextlib import ExitStack

import amqp_violations
import amqp_wire as wire
from amqp_raw import RawAmqp
from amqp_wire import Described, Symbol, composite, performative, ubyte
from attacks import Runner, expect
from harness import AMQP_SCHEMES, Failure, Listener, Report, all_listeners
from raw import PATIENCE_S, Closed, Work, broker_pid, resident_kib

# As amqp-attacked.toml has them.
OPEN_TIMEOUT_S, IDLE_TIMEOUT_S = 2.0, 3.0
# Twice what is announced at most, and some time to notice.
IDLE_TOTAL_S = IDLE_TIMEOUT_S * 2 + 2
SESSIONS, LINKS, UNSETTLED, CREDIT, QUEUES, TRANSACTIONS = 16, 16, 64, 32, 20, 4
MESSAGE_BYTES, ASSEMBLING_BYTES, FRAME_BYTES = 1 << 20, 2 << 20, 65_536
KIB, MIB = 1024, 1 << 20
# What the broker may hold of a row, in KiB, beside what its limits say.
SLACK_KIB = 16 * KIB
LIMIT = "amqp:resource-limit-exceeded"
LINK, SESSION, CONNECTION = wire.DETACH, wire.END, wire.CLOSE
ROWS: list[tuple[str, object, bool]] = []


def row(name: str, everywhere: bool = False):
    """A row; `everywhere` runs it over every transport, the others run over TCP."""

    def add(function):
        ROWS.append((name, function, everywhere))
        return function

    return add


def address(what: str) -> str:
    return f"iop/attack/{secrets.token_hex(4)}/{what}"


def lost(one: RawAmqp, kind: int, *conditions: str, timeout: float = PATIENCE_S) -> wire.Frame:
    """The detach, end or close that has to come, whatever comes before it."""
    until = time.monotonic() + timeout
    while True:
        try:
            got = one.frame(max(0.01, until - time.monotonic()))
        except Closed as why:
            raise Failure(f"closed ({why}) without {wire.NAMES[kind]}") from None
        if got is None:
            raise Failure(f"no {wire.NAMES[kind]} within {timeout} s")
        if got.code in (LINK, SESSION, CONNECTION):
            expect(got.code == kind, f"{got} instead of {wire.NAMES[kind]} with {' or '.join(conditions)}")
            expect(got.error in conditions, f"{got.error} instead of {' or '.join(conditions)}")
            return got


def violates(one: amqp_violations.Violation, at: Listener) -> None:
    """Sends what must not be sent, and sees that as much as has to be is lost, and no more."""
    kind = {"detach": LINK, "end": SESSION, "close": CONNECTION}[one.lost]
    with RawAmqp(at) as raw:
        one.before(raw)
        raw.send(one.data)
        lost(raw, kind, *sorted(one.conditions))
        if kind == CONNECTION:
            raw.ending()
            return
        # Another session of the same connection goes on.
        raw.send(wire.begin(3) + wire.attach_sender("on", 0, wire.target(amqp_violations.ADDRESS), 3))
        while True:
            got = raw.frame()
            expect(got is not None, "another session is not served any more")
            expect(got.code not in (CONNECTION,), f"the connection is lost, too: {got}")
            if got.code == wire.ATTACH and got.field(0) == "on":
                break


def closes(at: Listener, data: bytes, what: str, timeout: float = PATIENCE_S, answer: bytes | None = None) -> None:
    """The broker ends the connection."""
    with RawAmqp(at) as one:
        one.send(data)
        frames, _ = one.ending(timeout)
        if answer is not None:
            expect(frames and frames[0].kind < 0 and frames[0].payload == answer,
                   f"{what}: {[str(each) for each in frames]} instead of the header {answer!r}")


# --------------------------------------------------------------------------- the start


@row("headers", everywhere=True)
def headers(at: Listener) -> None:
    # Part 2, section 2.2: the header that would have been right, and the end.
    for what, data in {"another minor": b"AMQP\0\1\1\0", "AMQP 0-9-1": b"AMQP\0\0\x09\1",
                       "TLS within": b"AMQP\2\1\0\0", "an unknown layer": b"AMQP\7\1\0\0",
                       "HTTP": b"GET / HTTP/1.1\r\n\r\n",
                       "MQTT": b"\x10\x10\0\4MQTT\5\2\0\0\0\0\3abc"}.items():
        with RawAmqp(at) as one:
            one.send(data)
            frames, _ = one.ending()
            expect(not frames or frames[0].kind < 0 and frames[0].payload in (wire.HEADER, wire.SASL_HEADER),
                   f"{what}: {[str(each) for each in frames]}")


@row("byte-by-byte", everywhere=True)
def byte_by_byte(at: Listener) -> None:
    to = address("split")
    stream = (wire.HEADER + wire.open_() + wire.begin() + wire.attach_sender("out", 0, wire.target(to))
              + wire.frame(b"") + performative(wire.DETACH, 0, True) + performative(wire.CLOSE))
    for size in (1, 7, len(stream)):
        with RawAmqp(at) as one:
            for start in range(0, len(stream), size):
                one.send(stream[start : start + size])
            frames, _ = one.ending()
            codes = [each.code for each in frames if each.code not in (None, wire.FLOW)]
            expect(codes == [wire.OPEN, wire.BEGIN, wire.ATTACH, wire.DETACH, wire.CLOSE],
                   f"in pieces of {size} bytes: {[str(each) for each in frames]}")


@row("sasl-violations", everywhere=True)
def sasl_violations(at: Listener) -> None:
    init = wire.sasl(wire.SASL_INIT, Symbol("ANONYMOUS"), b"me")
    for what, data in {
        "an unknown mechanism": wire.sasl(wire.SASL_INIT, Symbol("MAGIC"), b""),
        "a response before the init": wire.sasl(wire.SASL_RESPONSE, b"x"),
        "an init without a mechanism": wire.sasl(wire.SASL_INIT),
        "an outcome from the client": wire.sasl(wire.SASL_OUTCOME, ubyte(0)),
        "an AMQP frame within SASL": wire.open_(),
        "a frame above 512 bytes": wire.sasl(wire.SASL_INIT, Symbol("ANONYMOUS"), bytes(100_000)),
        "a claim of 2 GiB": b"\x7f\xff\xff\xff\2\1\0\0",
        "no SASL after all": wire.HEADER + wire.open_(),
        "PLAIN without its parts": wire.sasl(wire.SASL_INIT, Symbol("PLAIN"), b"nothing"),
        "PLAIN that is no text": wire.sasl(wire.SASL_INIT, Symbol("PLAIN"), b"\0\xff\xfe\0\xff"),
    }.items():
        with RawAmqp(at) as one:
            one.send(wire.SASL_HEADER + data)
            frames, _ = one.ending()
            outcomes = [each for each in frames if each.code == wire.SASL_OUTCOME]
            expect(all(each.field(0) != 0 for each in outcomes), f"{what}: admitted")
            expect(not any(each.code == wire.OPEN for each in frames), f"{what}: {[str(each) for each in frames]}")
    with RawAmqp(at) as one:  # the same client in order
        one.header(wire.SASL_HEADER)
        one.send(init + wire.HEADER + wire.open_())
        one.next(wire.SASL_MECHANISMS)
        expect(one.next(wire.SASL_OUTCOME).field(0) == 0, "ANONYMOUS was refused")


@row("silent-connections", everywhere=True)
def silent(at: Listener) -> None:
    # Nothing, half a header, a header, SASL without an init, a header without an open, a frame that never ends.
    starts = [b"", b"AMQP", wire.HEADER, wire.SASL_HEADER, wire.HEADER + b"\0\0\1",
              wire.SASL_HEADER + wire.sasl(wire.SASL_INIT, Symbol("ANONYMOUS"))]
    with ExitStack() as stack:
        waiting = [(data, stack.enter_context(RawAmqp(at))) for data in starts * 5]
        for data, one in waiting:
            one.send(data)
        dripping = stack.enter_context(RawAmqp(at))
        for byte in (wire.HEADER + wire.open_("c" * 200))[: int(OPEN_TIMEOUT_S * 10) + 10]:
            dripping.send(bytes([byte]))
            time.sleep(0.1)
        for data, one in [*waiting, (b"a byte at a time", dripping)]:
            try:
                one.ending(OPEN_TIMEOUT_S + PATIENCE_S)
            except Failure as why:
                raise Failure(f"after {data!r}: {why}") from None


@row("idle", everywhere=True)
def idle(at: Listener) -> None:
    # Part 2, section 2.4.5: silence for longer than was announced ends the connection; empty frames are no silence.
    with RawAmqp(at) as quiet, RawAmqp(at) as beating:
        announced = quiet.opened().field(4)
        expect(announced, "the broker announces no idle-time-out")
        beating.opened()
        began = time.monotonic()
        while time.monotonic() - began < IDLE_TOTAL_S:
            beating.send(wire.frame(b""))
            time.sleep(IDLE_TIMEOUT_S / 4)
        quiet.ending()
        beating.send(wire.begin())
        beating.next(wire.BEGIN)


@row("claimed-frames-then-silence")
def claimed(at: Listener) -> None:
    # Memory grows with what has come, not with what was claimed.
    pid = broker_pid(at)
    with ExitStack() as stack:
        many = [stack.enter_context(RawAmqp(at)) for _ in range(200)]
        for one in many:
            one.opened()
        before = resident_kib(pid) if pid else 0
        for one in many:
            one.send((FRAME_BYTES).to_bytes(4, "big") + b"\2\0\0\0" + b"x" * 100)
        time.sleep(0.3)
        if pid:
            grown = resident_kib(pid) - before
            expect(grown < 8 * KIB, f"200 claims of 64 KiB took {grown} KiB")


# --------------------------------------------------------------------------- what may be held


@row("sessions")
def sessions(at: Listener) -> None:
    with RawAmqp(at) as one:
        answer = one.opened()
        highest = answer.field(3)
        expect(highest == SESSIONS - 1, f"channel-max {highest}, set are {SESSIONS} sessions")
        for channel in range(SESSIONS):
            one.send(wire.begin(channel))
            one.next(wire.BEGIN)
        one.send(wire.begin(SESSIONS))
        lost(one, CONNECTION, "amqp:connection:framing-error", "amqp:not-allowed", LIMIT)
        one.ending()


@row("links")
def links(at: Listener) -> None:
    with RawAmqp(at) as one:
        highest = one.begun().field(4)
        expect(highest == LINKS - 1, f"handle-max {highest}, set are {LINKS} links")
        for handle in range(LINKS):
            one.sending(address("l"), f"l{handle}", handle)
        one.send(wire.attach_sender("more", LINKS, wire.target(address("l"))))
        lost(one, CONNECTION, "amqp:connection:framing-error")
        one.ending()


@row("message-size", everywhere=True)
def message_size(at: Listener) -> None:
    for pieces in (1, 64):
        with RawAmqp(at) as one:
            one.begun()
            one.sending(address("big"))
            chunk = bytes(60_000) if pieces > 1 else bytes(FRAME_BYTES - 100)
            total = 0
            while total <= MESSAGE_BYTES:
                one.send(wire.transfer(0, 0, chunk, more=True))
                total += len(chunk)
            lost(one, LINK, "amqp:link:message-size-exceeded")


@row("partial-messages")
def partial(at: Listener) -> None:
    # Many links with a message each that never ends: the connection's budget is the limit.
    with RawAmqp(at) as one:
        one.begun()
        for handle in range(8):
            one.sending(address("p"), f"p{handle}", handle)
        chunk = bytes(60_000)
        for round_ in range(ASSEMBLING_BYTES // 60_000 // 8 + 2):
            for handle in range(8):
                one.send(wire.transfer(handle, handle, chunk, more=True, tag=bytes([handle])))
        lost(one, SESSION, LIMIT)


@row("partial-messages-of-many")
def partial_of_many(at: Listener) -> None:
    pid = broker_pid(at)
    before = resident_kib(pid) if pid else 0
    with ExitStack() as stack:
        many = [stack.enter_context(RawAmqp(at)) for _ in range(20)]
        for one in many:
            one.begun()
            one.sending(address("p"))
            for _ in range(10):
                one.send(wire.transfer(0, 0, bytes(60_000), more=True))
        time.sleep(0.3)
        if pid:
            grown, sent = resident_kib(pid) - before, 20 * 600_000 // KIB
            expect(grown < sent * 2 + SLACK_KIB, f"{sent} KiB of partial messages took {grown} KiB")


@row("empty-transfers")
def empty_transfers(at: Listener) -> None:
    # Transfers without a byte make a message that never ends, of nothing.
    with RawAmqp(at) as one:
        one.begun()
        to = address("e")
        one.sending(to)
        for _ in range(20):
            one.send(b"".join(wire.transfer(0, 0, b"", more=True) for _ in range(100)))
        one.send(wire.transfer(0, 0, b"", aborted=True))
        one.send(wire.transfer(0, 1, wire.data(b"x"), tag=b"1"))
        got = one.next(wire.DISPOSITION)
        expect(got.field(1) == 1, f"{got} for delivery 1 after an aborted one")


@row("never-settled-by-a-sender")
def never_settled_by_sender(at: Listener) -> None:
    # Receiver second: the broker must keep what the sender does not settle, so credit has to end.
    with RawAmqp(at) as one:
        one.begun()
        credit = one.sending(address("n"), rcv=ubyte(1), snd=ubyte(0))
        granted, sent = credit, 0
        until = time.monotonic() + 1.5
        while time.monotonic() < until and sent < 4000:
            while sent < granted:
                one.send(wire.transfer(0, sent, wire.data(b"x"), tag=sent.to_bytes(4, "big")))
                sent += 1
            got = one.frame(0.2)
            if got is None:
                break
            if got.code == wire.FLOW and got.field(4) is not None:
                granted = (got.field(5) or 0) + (got.field(6) or 0)
            expect(got.code in (wire.FLOW, wire.DISPOSITION), f"{got} to a sender that keeps to its credit")
        expect(sent <= UNSETTLED + CREDIT, f"credit for {sent} unsettled deliveries, set are {UNSETTLED}")


@row("never-settled-by-a-receiver")
def never_settled_by_receiver(at: Listener) -> None:
    with RawAmqp(at) as receiver, RawAmqp(at) as sender:
        receiver.begun()
        to = address("n")
        receiver.receiving(wire.source(to), 4_294_967_295, snd=ubyte(0))
        publish(sender, to, 300, b"x")
        receiver.next(wire.TRANSFER)
        got = 1
        while (each := receiver.frame(0.5)) is not None:
            got += each.code == wire.TRANSFER
        expect(got <= UNSETTLED, f"{got} unsettled deliveries, set are {UNSETTLED}")


def publish(one: RawAmqp, to: str, count: int, payload: bytes, settled: bool = True) -> None:
    """Sends messages in order, keeping to the credit."""
    one.begun()
    granted, sent = one.sending(to), 0
    while sent < count:
        while sent < min(granted, count):
            one.send(wire.transfer(0, sent, wire.data(payload), settled=settled, tag=sent.to_bytes(4, "big")))
            sent += 1
        if sent < count:
            got = one.frame()
            expect(got is not None, f"no credit for more than {sent} messages")
            expect(got.code in (wire.FLOW, wire.DISPOSITION), f"{got} to a sender in order")
            if got.code == wire.FLOW and got.field(4) is not None:
                granted = (got.field(5) or 0) + (got.field(6) or 0)


@row("a-receiver-that-does-not-read")
def not_reading(at: Listener) -> None:
    pid = broker_pid(at)
    before = resident_kib(pid) if pid else 0
    to = address("slow")
    with RawAmqp(at) as receiver, RawAmqp(at) as sender:
        receiver.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        receiver.begun(incoming=4_294_967_295)
        receiver.receiving(wire.source(to), 4_294_967_295, snd=ubyte(1))
        publish(sender, to, 1500, bytes(60_000))
        if pid:
            grown = resident_kib(pid) - before
            expect(grown < 32 * KIB, f"90 MB for a receiver that does not read took {grown} KiB")


@row("queues")
def queues(at: Listener) -> None:
    with RawAmqp(at) as one:
        one.begun()
        run, refused = secrets.token_hex(3), None
        for number in range(QUEUES + 5):
            one.send(wire.attach_sender(f"q{number}", 0, wire.target(f"queue/many-{run}-{number}")))
            answer = one.next(wire.ATTACH)
            if answer.field(6) is None:
                refused = one.next(wire.DETACH)
                break
            one.next(wire.FLOW)
            one.send(wire.detach(0))
            one.next(wire.DETACH)
        expect(refused is not None, f"{QUEUES + 5} queues, set are {QUEUES}")
        expect(refused.error == LIMIT, f"{refused.error} for a queue too many")


@row("transactions")
def transactions(at: Listener) -> None:
    with RawAmqp(at) as one:
        one.begun()
        one.send(wire.attach_sender("txn", 0, composite(wire.COORDINATOR)))
        expect(one.next(wire.ATTACH).field(6) is not None, "the coordinator was refused")
        one.next(wire.FLOW)
        states = []
        for number in range(TRANSACTIONS + 1):
            declare = b"\0\x53\x77" + composite(wire.DECLARE).raw
            one.send(wire.transfer(0, number, declare, tag=bytes([number])))
            states.append(one.next(wire.DISPOSITION).field(4))
        expect(all(each.descriptor == wire.DECLARED for each in states[:-1]), f"{states[:-1]}")
        last = states[-1]
        expect(last.descriptor == wire.REJECTED, f"a transaction too many: {last}")
        # An unknown one cannot be discharged (part 4, section 4.3).
        discharge = b"\0\x53\x77" + composite(wire.DISCHARGE, b"never declared", False).raw
        one.send(wire.transfer(0, 90, discharge, tag=b"d"))
        found = one.next(wire.DISPOSITION).field(4)
        condition = str(found.value[0].value[0]) if found.descriptor == wire.REJECTED and found.value else str(found)
        expect(condition == "amqp:transaction:unknown-id", f"an unknown transaction: {condition}")


@row("a-link-attached-again")
def stolen(at: Listener) -> None:
    # Part 2, section 2.6.1: the same name within a connection takes the link over.
    with RawAmqp(at) as one:
        one.begun()
        one.receiving(wire.source(address("s")), 1, name="mine")
        one.send(wire.begin(1))
        one.next(wire.BEGIN)
        one.send(wire.attach_receiver("mine", 0, wire.source(address("s")), 1))
        first, attached = None, False
        while first is None or not attached:
            got = one.frame()
            expect(got is not None, f"{'no detach of the old link' if attached else 'no attach of the new one'}")
            if got.code == wire.DETACH:
                first = got
            attached |= got.code == wire.ATTACH
        expect(first.channel == 0 and first.error == "amqp:link:stolen", f"{first} on channel {first.channel}")


@row("transactional-acquisition")
def acquisition(at: Listener) -> None:
    # docs/amqp.md: refused, as a receiver's flow with a transaction in its properties cannot be served.
    with RawAmqp(at) as one:
        one.begun()
        one.send(wire.attach_sender("txn", 0, composite(wire.COORDINATOR)))
        expect(one.next(wire.ATTACH).field(6) is not None, "the coordinator was refused")
        one.next(wire.FLOW)
        one.send(wire.transfer(0, 0, b"\0\x53\x77" + composite(wire.DECLARE).raw))
        number = one.next(wire.DISPOSITION).field(4).value[0]
        one.receiving(wire.source(address("a")), 0, handle=1)
        one.send(performative(wire.FLOW, 0, 2048, 1, 2048, 1, 0, 5, None, None, None, {Symbol("txn-id"): number}))
        lost(one, LINK, "amqp:not-implemented")


@row("selectors")
def selectors(at: Listener) -> None:
    name = Symbol("apache.org:selector-filter:string")
    for what, text in {"64 KiB": "a = '" + "x" * 60_000 + "'", "8,000 brackets": "(" * 8000 + "a" + ")" * 8000,
                       "4,000 NOTs": "NOT " * 4000 + "a", "half a text": "a = 'x", "nothing": "",
                       "a pattern that explodes": "a LIKE '" + "%a" * 2000 + "'"}.items():
        with RawAmqp(at) as one:
            one.begun()
            work = Work(broker_pid(at))
            one.send(wire.attach_receiver("s", 0, wire.source(address("s"), filter={name: Described(name, text)})))
            answer = one.next(wire.ATTACH)
            if answer.field(5) is None:
                got = one.next(wire.DETACH)
                expect(got.error in ("amqp:invalid-field", LIMIT), f"{what}: {got.error}")
            work.expect_below(1.0, what)


@row("links-that-come-and-go")
def churn(at: Listener) -> None:
    with RawAmqp(at) as one:
        one.begun()
        for number in range(1500):
            one.send(wire.attach_receiver(f"n{number}", 0, wire.source(address("c"))) + wire.detach(0))
        closed = 0
        while closed < 1500:
            got = one.frame()
            expect(got is not None, f"only {closed} of 1,500 links were closed")
            expect(got.code in (wire.ATTACH, wire.FLOW, wire.DETACH), f"{got}")
            closed += got.code == wire.DETACH


@row("sessions-that-come-and-go")
def session_churn(at: Listener) -> None:
    with RawAmqp(at) as one:
        one.opened()
        for _ in range(1500):
            one.send(wire.begin(1) + performative(wire.END, channel=1))
        ended = 0
        while ended < 1500:
            got = one.frame()
            expect(got is not None and got.code in (wire.BEGIN, wire.END), f"{got} after {ended} sessions")
            ended += got.code == wire.END


@row("flows-that-want-an-echo")
def echoes(at: Listener) -> None:
    with RawAmqp(at) as one:
        one.begun()
        one.send(wire.flow(echo=True) * 20_000)
        answered = 0
        while (got := one.frame(0.3 if answered else PATIENCE_S)) is not None:
            expect(got.code == wire.FLOW, f"{got} instead of flow")
            answered += 1
            if answered == 20_000:
                break
        expect(answered, "no echo")


@row("durable-subscriptions-left-behind")
def left_behind(at: Listener) -> None:
    # Each is a session of the broker (broker.maximum_sessions): beyond that they are refused, not kept.
    with RawAmqp(at) as one:
        one.begun()
        kept, refused = 0, None
        # None expires before there are too many.
        of = wire.source(address("d"), durable=2, expiry=Symbol("link-detach"), timeout=600)
        for number in range(400):
            one.send(wire.attach_receiver(f"d{number}", 0, of))
            if one.next(wire.ATTACH).field(5) is None:
                refused = one.next(wire.DETACH)
                break
            one.send(wire.detach(0, closed=False))
            one.next(wire.DETACH)
            kept += 1
        expect(refused is not None, f"{kept} subscriptions were kept")
        expect(refused.error == LIMIT, f"{refused.error} for a subscription too many")
    with RawAmqp(at) as one:
        one.begun()
        for number in range(kept):
            one.send(wire.attach_receiver(f"d{number}", 0, of))
            one.next(wire.ATTACH)
            one.send(wire.detach(0, closed=True))
            one.next(wire.DETACH)


@row("connections-cut-within-a-transfer", everywhere=True)
def cut(at: Listener) -> None:
    for _ in range(30):
        one = RawAmqp(at)
        one.begun()
        one.sending(address("cut"))
        one.send(wire.transfer(0, 0, bytes(50_000), more=True)[:30_000])
        one.abort()


@row("websocket", everywhere=True)
def websocket(at: Listener) -> None:
    if at.scheme not in ("ws", "wss"):
        return
    for what, data in {"a text frame": RawAmqp.websocket_frame(b"text", 1), "a reserved opcode": RawAmqp.websocket_frame(b"x", 3),
                       "an unmasked frame": b"\x82\x02\xc0\x00"}.items():
        with RawAmqp(at) as one:
            one.opened()
            one.send_raw(data)
            try:
                one.ending()
            except Failure as why:
                raise Failure(f"{what}: {why}") from None


# --------------------------------------------------------------------------- running them


def table(runner: Runner, report: Report, transport: str, at: Listener, only: str) -> None:
    chosen = [one for one in amqp_violations.every() if only in f"{transport}/{one.name}"]
    if not chosen:
        return

    def work() -> None:
        for one in chosen:
            label = f"{transport}/{one.name}"
            try:
                violates(one, at)
                report.ok(label)
            except Failure as why:
                report.not_ok(label, str(why))
            except (Closed, OSError, wire.Malformed) as why:
                report.not_ok(label, f"{type(why).__name__}: {why}")

    runner.guarded(f"{transport}/table-memory-and-bystander", work)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="only rows whose transport/name contains this")
    parser.add_argument("--transports", default="tcp,tls,ws,wss", help="separated by commas")
    parser.add_argument("--timings", action="store_true", help="print how long each row took")
    arguments = parser.parse_args()
    report, places, mqtt = Report(), {}, None
    for one in all_listeners():
        if one.scheme == "mqtt":
            mqtt = one
        elif (transport := AMQP_SCHEMES.get(one.scheme)) in arguments.transports.split(","):
            one.transport, one.secure = transport, one.scheme in ("amqps", "wss")
            places.setdefault(transport, one)
    if not places or mqtt is None:
        report.not_ok("amqp-attacks", "the broker has none of the transports, or no listener for the bystander")
        report.exit()
    runner = Runner(report, {"tcp": mqtt})
    if not runner.pid:
        report.skip("memory", "the broker's process is not known; set STERNA_PID")
    waiting = []
    for transport, at in places.items():
        table(runner, report, transport, at, arguments.only)
        for name, function, everywhere in ROWS:
            label = f"{transport}/{name}"
            if arguments.only not in label or not (everywhere or transport == "tcp"):
                continue
            if function in (silent, idle):  # they wait for the clock: side by side, at the end
                waiting.append(threading.Thread(target=runner.guarded, args=(label, lambda f=function, a=at: f(a))))
                continue
            start = time.monotonic()
            runner.guarded(label, lambda function=function, at=at: function(at))
            if arguments.timings:
                print(f"# {time.monotonic() - start:.2f} s {label}", flush=True)
    for thread in waiting:
        thread.start()
    for thread in waiting:
        thread.join()
    report.exit()


if __name__ == "__main__":
    main()
