"""Connections that come back and connections that move: resumption, early data, changes of address. Steps of the suite
`quic_streams.py`.
"""

from __future__ import annotations

import asyncio

import wire
from quic_client import PATIENCE_S, QuicClient, Stream
from quic_step import Skip, Step, delivered, expect, ping, published, step, subscribed

# Messages of a flow in which somebody moves, how many of them may be unacknowledged, and where the moves are.
FLOW, WINDOW, MOVES = 400, 20, (100, 200, 300)


# --------------------------------------------------------------------------- resumption


async def ticket_of(t: Step, at=None) -> object:
    """The ticket that a connection in full gives."""
    tickets: asyncio.Queue = asyncio.Queue()
    async with t.open(at, tickets=tickets.put_nowait) as quic:
        await quic.connect_mqtt(client_id=t.id("ticket"))
        expect(not quic.resumed, "a first connection that is a resumed one")
        try:
            return await asyncio.wait_for(tickets.get(), PATIENCE_S)
        except TimeoutError:
            raise Skip("the broker gives no session tickets") from None


async def early_publish(t: Step, ticket, name: str, qos: int = 1, at=None) -> QuicClient:
    """CONNECT and PUBLISH in the first flight of a resumed client; the message arrives once, whatever becomes of the
    early data."""
    async with t.open() as other, t.open(at, ticket=ticket, early=True) as quic:
        await other.connect_mqtt(client_id=t.id(f"w{name}"))
        hears = other.bidirectional(0)
        await subscribed(hears, t.topic(name), options=2)
        control, four = quic.bidirectional(0), quic.bidirectional(4)
        control.send(wire.connect(client_id=t.id(f"a{name}")))
        four.send(wire.publish(t.topic(name), b"early", qos, 1))
        await control.expect(wire.CONNACK)
        await acknowledged(four, qos)
        got = await delivered(hears)
        expect((got.payload, got.qos) == (b"early", qos), f"{got}")
        await ping(hears)
        expect(not hears.copies(), "the message again")
        return quic


async def acknowledged(stream: Stream, qos: int, pid: int = 1) -> None:
    """Takes what was published through to its end."""
    if qos == 1:
        await stream.expect(wire.PUBACK)
    else:
        await stream.expect(wire.PUBREC)
        stream.send(wire.ack(wire.PUBREL, pid))
        await stream.expect(wire.PUBCOMP)


@step("resumption/without-early-data")
async def resumption(t: Step) -> None:
    ticket = await ticket_of(t)
    async with t.open(ticket=ticket) as quic:
        await quic.connect_mqtt(client_id=t.id("a"))
        expect(quic.resumed, "the ticket was not taken")


@step("resumption/early-data-accepted")
async def early_accepted(t: Step) -> None:
    for qos in (1, 2):
        quic = await early_publish(t, await ticket_of(t), str(qos), qos)
        expect(quic.resumed and quic.early_data_accepted, f"resumed {quic.resumed}, early {quic.early_data_accepted}")


@step("resumption/single-use-ticket")
async def single_use(t: Step) -> None:
    # RFC 8446 section 8: what can be replayed is not taken twice; it still works, later
    ticket = await ticket_of(t)
    for use in range(3):
        quic = await early_publish(t, ticket, str(use))
        expect(quic.early_data_accepted == (use == 0), f"use {use + 1} of a ticket: early {quic.early_data_accepted}")


@step("resumption/single-use-ticket-at-once")
async def single_use_at_once(t: Step) -> None:
    ticket = await ticket_of(t)
    used = await asyncio.gather(*(early_publish(t, ticket, str(use)) for use in range(5)))
    taken = sum(quic.early_data_accepted for quic in used)
    expect(taken == 1, f"{taken} of {len(used)} uses of one ticket were given early data")


@step("resumption/early-data-refused-by-the-listener")
async def early_refused(t: Step) -> None:
    if t.strict is None:
        raise Skip("the broker has one QUIC listener only")
    quic = await early_publish(t, await ticket_of(t), "elsewhere", at=t.strict)
    expect(not quic.early_data_accepted, "early data was taken where it is off")
    quic = await early_publish(t, await ticket_of(t, t.strict), "here", at=t.strict)
    expect(quic.resumed and not quic.early_data_accepted, f"resumed {quic.resumed}, early {quic.early_data_accepted}")


@step("resumption/session-comes-back-in-early-data")
async def session_back(t: Step) -> None:
    # A device that sleeps: its session waits, and what is for it comes with the first answer.
    tickets: asyncio.Queue = asyncio.Queue()
    options = {"client_id": t.id("a"), "clean": False, "props": {"session_expiry": 60}}
    async with t.open(tickets=tickets.put_nowait) as quic:
        await quic.connect_mqtt(**options)
        await subscribed(quic.bidirectional(0), t.topic(), options=2)
        ticket = await asyncio.wait_for(tickets.get(), PATIENCE_S)
    async with t.open() as other:
        await other.connect_mqtt(client_id=t.id("p"))
        for wake in range(3):
            await published(other.bidirectional(0), t.topic(), b"%d" % wake, 2, wake + 1)
            async with t.open(ticket=ticket, early=True, tickets=tickets.put_nowait) as quic:
                answer = await quic.connect_mqtt(**options)
                expect(answer.session_present, "session not present")
                got = await delivered(quic.bidirectional(0))
                expect((got.payload, got.dup) == (b"%d" % wake, False), f"{got}, DUP {got.dup}")
                await ping(quic.bidirectional(0))
                expect(quic.early_data_accepted, f"early data was refused at wake {wake}")
                ticket = await asyncio.wait_for(tickets.get(), PATIENCE_S)


# --------------------------------------------------------------------------- moving


async def flow(t: Step, source: QuicClient, sink: QuicClient, qos: int, moving: QuicClient, new_identifier: bool) -> None:
    """Messages from one connection to another while one of them changes its address: each arrives once, in order."""
    out, into = source.bidirectional(0), sink.bidirectional(0)
    await subscribed(into, t.topic("flow"), options=qos)

    async def move(stream: Stream) -> None:
        await moving.move(new_identifier)
        # The broker follows what comes from the new address, so something has to.
        stream.send(wire.pingreq())

    async def publish() -> None:
        sent = acked = 0
        while acked < FLOW:
            while sent < FLOW and sent - acked < WINDOW:
                if moving is source and sent in MOVES:
                    await move(out)
                out.send(wire.publish(t.topic("flow"), b"%d" % sent, qos, sent + 1))
                sent += 1
            got = await out.next()
            expect(isinstance(got, wire.Packet), f"{got} after {acked} acknowledgements {source.ending or ''}")
            if got.kind == wire.PUBREC:
                out.send(wire.ack(wire.PUBREL, got.pid))
            elif got.kind in (wire.PUBACK, wire.PUBCOMP):
                # [MQTT-4.6.0-2] [MQTT-4.6.0-4]
                expect((got.pid, got.reason) == (acked + 1, 0), f"{got} for {got.pid}, expected {acked + 1}")
                acked += 1
            else:
                expect(got.kind == wire.PINGRESP, f"{got} for the publisher")

    async def receive() -> None:
        got = done = 0
        while got < FLOW or done < FLOW:
            packet = await into.next()
            expect(isinstance(packet, wire.Packet), f"{packet} after {got} messages {sink.ending or ''}")
            if packet.kind == wire.PUBLISH:
                expect((packet.payload, packet.dup) == (b"%d" % got, False),
                       f"{packet}, DUP {packet.dup}, expected {got}")
                got += 1
                done += qos == 1
                into.send(wire.ack(wire.PUBACK if qos == 1 else wire.PUBREC, packet.pid))
                if moving is sink and got in MOVES:
                    await move(into)
            elif packet.kind == wire.PUBREL:
                into.send(wire.ack(wire.PUBCOMP, packet.pid))
                done += 1
            else:
                expect(packet.kind == wire.PINGRESP, f"{packet} for the subscriber")

    await asyncio.gather(publish(), receive())
    for one in (source, sink):
        expect(not one.ending, f"a connection ended: {one.ending}")


def flows(how: str, new_identifier: bool) -> None:
    for qos in (1, 2):
        for who in ("publisher", "subscriber"):
            @step(f"{how}/{who}-in-qos-{qos}-flow")
            async def run(t: Step, qos=qos, who=who) -> None:
                async with t.open() as source, t.open() as sink:
                    await source.connect_mqtt(client_id=t.id("a"))
                    await sink.connect_mqtt(client_id=t.id("b"))
                    await flow(t, source, sink, qos, source if who == "publisher" else sink, new_identifier)


# RFC 9000 section 9: the client's address changes under a connection that stays.
flows("migration", True)
flows("rebinding", False)


@step("migration/between-two-messages")
async def between(t: Step) -> None:
    async with t.open() as quic:
        await quic.connect_mqtt(client_id=t.id("a"))
        control, four = quic.bidirectional(0), quic.bidirectional(4)
        await subscribed(four, t.topic())
        for number in range(5):
            await quic.move()
            await published(control, t.topic(), b"%d" % number, 1, number + 1)
            expect((await delivered(four)).payload == b"%d" % number, "message after the change")
            await ping(control)
