"""AMQP over QUIC by streams, as docs/amqp-over-quic.md has it: `amqp_streams.py [--only TEXT]`.

The frames are made by hand (amqp_wire.py), the transport is aioquic: nothing here knows the project's own QUIC or AMQP code.
Each step's comment names the section of the document.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import ssl
from contextlib import asynccontextmanager

from aioquic.asyncio import QuicConnectionProtocol, connect
from aioquic.quic import events
from aioquic.quic.configuration import QuicConfiguration

import amqp_wire as wire
from amqp_scenario import places
from amqp_wire import Symbol
from harness import Failure, Listener, Report, until

PATIENCE_S = 30.0
AT_ONCE = 6
STEPS: list[tuple[str, object]] = []
ANONYMOUS = wire.SASL_HEADER + wire.sasl(wire.SASL_INIT, Symbol("ANONYMOUS"), b"")


def step(name: str):
    def add(function):
        STEPS.append((name, function))
        return function

    return add


def expect(condition, why: str) -> None:
    if not condition:
        raise Failure(why)


class Stream:
    """One stream: bytes out, frames in, then how it ended."""

    def __init__(self, quic: Client, number: int):
        self.quic, self.number, self.parser = quic, number, wire.Parser()
        self.arrived: asyncio.Queue = asyncio.Queue()

    def send(self, data: bytes, fin: bool = False) -> None:
        # Lets lower streams be written to later: the library takes a skipped one for a finished one.
        for lower in range(self.number % 4, self.number, 4):
            if lower not in self.quic._quic._streams and not self.quic._quic._stream_is_discarded(lower):
                self.quic._quic._get_or_create_stream_for_send(lower)
        self.quic._quic.send_stream_data(self.number, data, fin)
        self.quic.transmit()

    def reset(self, code: int = 0) -> None:
        self.quic._quic.reset_stream(self.number, code)
        self.quic.transmit()

    async def next(self, timeout: float = PATIENCE_S):
        """The next frame that is not empty, or ("fin" | "reset" | "stop", code); None when nothing comes."""
        while True:
            try:
                got = await asyncio.wait_for(self.arrived.get(), timeout)
            except TimeoutError:
                return None
            if not isinstance(got, wire.Frame) or got.kind < 0 or got.code is not None:
                return got

    async def expect(self, code: int, timeout: float = PATIENCE_S) -> wire.Frame:
        """The next frame, which has to be of this kind; headers and flows may come before."""
        while True:
            got = await self.next(timeout)
            if isinstance(got, wire.Frame) and (got.kind < 0 or (got.code == wire.FLOW and code != wire.FLOW)):
                continue
            break
        if not isinstance(got, wire.Frame) or got.code != code:
            raise Failure(f"{got} on stream {self.number} instead of {wire.NAMES[code]} ({self.quic.ending})")
        return got

    async def ending(self) -> tuple[str, int]:
        while isinstance(got := await self.next(), wire.Frame):
            pass
        expect(got is not None, f"stream {self.number} is still open")
        return got


class Client(QuicConnectionProtocol):
    """A QUIC connection with ALPN `amqp`, and its streams."""

    def __init__(self, *arguments, **keywords):
        super().__init__(*arguments, **keywords)
        self.streams: dict[int, Stream] = {}
        self.early_data_accepted, self.ending = False, None
        self.over: asyncio.Future = asyncio.get_event_loop().create_future()

    def stream(self, number: int) -> Stream:
        return self.streams.setdefault(number, Stream(self, number))

    def start(self, after: bytes = b"") -> Stream:
        """The control stream with all that need not wait for an answer (section 13)."""
        control = self.stream(0)
        control.send(ANONYMOUS + wire.HEADER + wire.open_("quic-" + secrets.token_hex(5)) + after)
        return control

    async def started(self) -> wire.Frame:
        """Sends the start, and sees it answered."""
        control = self.start()
        await control.expect(wire.SASL_MECHANISMS)
        outcome = await control.expect(wire.SASL_OUTCOME)
        expect(outcome.field(0) == 0, f"{outcome}")
        return await control.expect(wire.OPEN)

    async def terminated(self) -> events.ConnectionTerminated:
        try:
            return await asyncio.wait_for(asyncio.shield(self.over), PATIENCE_S)
        except TimeoutError:
            told = [str(one.arrived._queue) for one in self.streams.values()]
            raise Failure(f"the connection is still open; waiting there: {told}") from None

    def quic_event_received(self, event: events.QuicEvent) -> None:
        if isinstance(event, events.StreamDataReceived):
            stream = self.stream(event.stream_id)
            for one in stream.parser.feed(event.data):
                stream.arrived.put_nowait(one)
            if event.end_stream:
                stream.arrived.put_nowait(("fin", 0))
            return
        if isinstance(event, events.StreamReset):
            self.stream(event.stream_id).arrived.put_nowait(("reset", event.error_code))
            return
        if isinstance(event, events.StopSendingReceived):
            self.stream(event.stream_id).arrived.put_nowait(("stop", event.error_code))
            return
        super().quic_event_received(event)
        if isinstance(event, events.HandshakeCompleted):
            self.early_data_accepted = event.early_data_accepted
        elif isinstance(event, events.ConnectionTerminated):
            self.ending = f"closed with code 0x{event.error_code:X} {event.reason_phrase}"
            if not self.over.done():
                self.over.set_result(event)


class Step:
    def __init__(self, at: Listener):
        self.at, self.root = at, "iop/streams/" + secrets.token_hex(5)

    def topic(self, name: str = "t") -> str:
        return f"{self.root}/{name}"

    @asynccontextmanager
    async def open(self, alpn: str = "amqp", ticket=None, tickets=None, early: bool = False):
        settings = QuicConfiguration(is_client=True, alpn_protocols=[alpn], server_name=self.at.host,
                                     idle_timeout=20.0, session_ticket=ticket)
        settings.verify_mode = ssl.CERT_REQUIRED
        settings.load_verify_locations(self.at.certificate)
        try:
            async with connect(self.at.host, self.at.port, configuration=settings, create_protocol=Client,
                               session_ticket_handler=tickets, wait_connected=False) as quic:
                if not early:
                    quic.transmit()
                    await asyncio.wait_for(quic.wait_connected(), PATIENCE_S)
                yield quic
        except ConnectionError as why:
            raise Failure(f"the QUIC connection failed: {why or type(why).__name__}") from None


async def receiving(stream: Stream, address: str, channel: int, credit: int = 10) -> None:
    stream.send(wire.begin(channel) + wire.attach_receiver("in", 0, wire.source(address), channel)
                + wire.flow(0, credit, 0, channel))
    await stream.expect(wire.BEGIN)
    expect((await stream.expect(wire.ATTACH)).field(5) is not None, "attach was refused")


async def sending(stream: Stream, address: str, channel: int) -> int:
    stream.send(wire.begin(channel) + wire.attach_sender("out", 0, wire.target(address), channel))
    await stream.expect(wire.BEGIN)
    expect((await stream.expect(wire.ATTACH)).field(6) is not None, "attach was refused")
    return (await stream.expect(wire.FLOW)).field(6)


async def passes(out: Stream, into: Stream, channel: int, number: int, payload: bytes) -> None:
    """A message goes out on one session's stream and comes in on another's."""
    out.send(wire.transfer(0, number, wire.data(payload), tag=bytes([number]), channel=channel))
    got = await into.expect(wire.TRANSFER)
    expect(wire.data(payload) in got.payload, f"another message: {got.payload!r}")
    expect((await out.expect(wire.DISPOSITION)).field(1) == number, "disposition of another delivery")


@step("a-stream-for-each-session")
async def each_session(t: Step) -> None:
    # 3, 6, 7
    async with t.open() as quic:
        await quic.started()
        first, second = quic.stream(4), quic.stream(8)
        await receiving(first, t.topic(), 1)
        expect(await sending(second, t.topic(), 2) > 0, "no credit")
        for number in range(3):
            await passes(second, first, 2, number, bytes([number]) * 10)


@step("sessions-on-the-control-stream")
async def on_control(t: Step) -> None:
    # 8: a peer that uses one stream, and one that uses both kinds; the answer comes where `begin` came
    async with t.open() as quic:
        await quic.started()
        control, other = quic.stream(0), quic.stream(4)
        await receiving(control, t.topic(), 5)
        await sending(other, t.topic(), 1)
        await passes(other, control, 1, 0, b"mixed")


@step("first-flight")
async def first_flight(t: Step) -> None:
    # 9, 13: the first session's stream may arrive before the open
    async with t.open() as quic:
        session = quic.stream(4)
        session.send(wire.begin(0) + wire.attach_sender("out", 0, wire.target(t.topic())))
        await asyncio.sleep(0.2)
        control = quic.start()
        await control.expect(wire.SASL_MECHANISMS)
        await control.expect(wire.SASL_OUTCOME)
        await control.expect(wire.OPEN)
        await session.expect(wire.BEGIN)
        expect((await session.expect(wire.ATTACH)).field(6) is not None, "attach was refused")


@step("both-sides-finish")
async def both_finish(t: Step) -> None:
    # 10
    async with t.open() as quic:
        await quic.started()
        session = quic.stream(4)
        await receiving(session, t.topic(), 1)
        session.send(wire.performative(wire.END, channel=1), fin=True)
        await session.expect(wire.END)
        expect(await session.ending() == ("fin", 0), "the broker's side of an ended session is not finished")
        # The channel is free again, on another stream.
        await receiving(quic.stream(8), t.topic(), 1)


@step("a-session-that-is-reset")
async def reset(t: Step) -> None:
    # 11: it ends its session alone, and the other direction is reset, too
    async with t.open() as quic:
        await quic.started()
        lost, into, out = quic.stream(4), quic.stream(8), quic.stream(12)
        await receiving(lost, t.topic(), 1)
        await receiving(into, t.topic(), 2)
        await sending(out, t.topic(), 3)
        lost.reset(0)
        kind, _ = await lost.ending()
        expect(kind in ("reset", "stop"), f"{kind} on a stream whose other direction was reset")
        await passes(out, into, 3, 0, b"goes on")
        await receiving(quic.stream(16), t.topic(), 1)


@step("a-violation-ends-the-session-alone")
async def violation(t: Step) -> None:
    async with t.open() as quic:
        await quic.started()
        wrong, into, out = quic.stream(4), quic.stream(8), quic.stream(12)
        await receiving(into, t.topic(), 2)
        await sending(out, t.topic(), 3)
        wrong.send(wire.begin(1) + wire.transfer(9, 0, wire.data(b"x"), channel=1))
        await wrong.expect(wire.BEGIN)
        end = await wrong.expect(wire.END)
        expect(end.error == "amqp:session:unattached-handle", f"{end.error}")
        await passes(out, into, 3, 0, b"goes on")


@step("unidirectional-stream")
async def unidirectional(t: Step) -> None:
    # 12
    async with t.open() as quic:
        await quic.started()
        stray = quic.stream(2)
        stray.send(wire.begin(1))
        got = await stray.next()
        expect(got == ("stop", 1), f"{got} for a unidirectional stream, not STOP_SENDING with 1")
        await receiving(quic.stream(4), t.topic(), 1)


@step("close")
async def close(t: Step) -> None:
    # 4
    async with t.open() as quic:
        await quic.started()
        control = quic.stream(0)
        control.send(wire.performative(wire.CLOSE))
        await control.expect(wire.CLOSE)
        event = await quic.terminated()
        expect(event.error_code == 0 and event.frame_type is None, f"{quic.ending} after close")


@step("too-much-before-the-open")
async def before_open(t: Step) -> None:
    # 9: bounded
    async with t.open() as quic:
        quic.stream(0).send(wire.SASL_HEADER)
        for number in range(1, 4):
            quic.stream(number * 4).send(wire.begin(number) + bytes(100_000))
        event = await quic.terminated()
        expect(event.error_code in (1, 2), f"{quic.ending}")


@step("early-data-with-remembered-credit")
async def early(t: Step) -> None:
    # 14, 15: the whole start and a transfer in 0-RTT, by a client that remembers the credit
    tickets: list = []
    async with t.open(tickets=tickets.append) as quic:
        opened = await quic.started()
        credit = (opened.field(9) or {}).get("sterna:initial-credit")
        expect(credit, f"no sterna:initial-credit in {opened.field(9)}")
        await until("a ticket has come", lambda: tickets)
    async with t.open() as watcher:
        await watcher.started()
        into = watcher.stream(4)
        await receiving(into, t.topic(), 1)
        async with t.open(ticket=tickets[-1], early=True) as quic:
            quic.start()
            session = quic.stream(4)
            flight = wire.begin(0) + wire.attach_sender("out", 0, wire.target(t.topic()))
            for number in range(3):
                flight += wire.transfer(0, number, wire.data(bytes([number]) * 5), tag=bytes([number]))
            session.send(flight)
            await session.expect(wire.BEGIN)
            expect((await session.expect(wire.ATTACH)).field(6) is not None, "attach was refused")
            settled = await session.expect(wire.DISPOSITION)
            expect(settled.field(4).descriptor == wire.ACCEPTED, f"{settled}")
            expect(quic.early_data_accepted, "early data was not accepted")
        for number in range(3):
            got = await into.expect(wire.TRANSFER)
            expect(bytes([number]) * 5 in got.payload, f"message {number}: {got.payload!r}")


@step("sasl-on-the-control-stream-only")
async def sasl_elsewhere(t: Step) -> None:
    # 6: other streams carry frames only, no protocol header
    async with t.open() as quic:
        await quic.started()
        quic.stream(4).send(wire.HEADER + wire.begin(1))
        event = await quic.terminated()
        expect(event.error_code == 1, f"{quic.ending}")


@step("control-stream-reset")
async def control_reset(t: Step) -> None:
    # 4: as the loss of the transport
    async with t.open() as quic:
        await quic.started()
        await receiving(quic.stream(4), t.topic(), 1)
        quic.stream(0).reset(0)
        await quic.terminated()


async def run_step(name: str, function, at: Listener, report: Report, gate: asyncio.Semaphore) -> None:
    async with gate:
        label = f"quic/{name}"
        try:
            await asyncio.wait_for(function(Step(at)), 4 * PATIENCE_S)
            report.ok(label)
        except Failure as why:
            report.not_ok(label, str(why))
        except TimeoutError:
            report.not_ok(label, "what has to come did not come in time")
        except Exception as error:  # a fault of the suite must name itself and not end the others
            report.not_ok(label, f"{type(error).__name__}: {error}")


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="only steps whose name contains this")
    arguments = parser.parse_args()
    report, at = Report(), places().open_to_all.get("quic")
    if at is None:
        report.not_ok("quic", "the broker has no such listener")
        report.exit()
    gate = asyncio.Semaphore(AT_ONCE)
    await asyncio.gather(*(run_step(name, function, at, report, gate) for name, function in STEPS
                           if arguments.only in name))
    report.exit()


if __name__ == "__main__":
    asyncio.run(main())
