"""How others use QUIC's streams for MQTT, shown with a client on aioquic: `quic_streams.py [--only TEXT]`.

The groups are dialects that exist: EMQX's extra bidirectional data streams, NanoNNG's fixed streams, the unidirectional
publish streams of the mqtt5 crate, and the ways in which connections end. One broker has to understand them all on one
port, and none of the clients may ever see a stream that the server opened (ALPN `mqtt`).
"""

from __future__ import annotations

import argparse
import asyncio
import time

import wire
import quic_moves  # its steps
from harness import Failure, Listener, Report, all_listeners, listeners
from quic_client import PATIENCE_S, Fin, QuicClient, Reset, Stop, alert
from quic_step import STEPS, Skip, Step, delivered, expect, ping, published, step, subscribed, watcher, will
from raw import Raw

STEP_LIMIT_S = 120
AT_ONCE = 6
QUIET_S = 0.5
MEBIBYTE = 1024 * 1024
# TLS alert no_application_protocol.
NO_APPLICATION_PROTOCOL = 120
# What NanoNNG resets a sub-stream with (NNG_ECONNSHUT).
NNG_ECONNSHUT = 31


# --------------------------------------------------------------------------- EMQX: data streams


@step("emqx/subscribe-and-publish-on-data-streams")
async def data_streams(t: Step) -> None:
    # Acknowledgements stay on the stream of the packet; deliveries come on the stream of the SUBSCRIBE.
    async with t.open() as quic:
        await quic.connect_mqtt(client_id=t.id("a"))
        four, eight = quic.bidirectional(4), quic.bidirectional(8)
        await subscribed(four, t.topic(), options=2)
        for qos in range(3):
            work = asyncio.create_task(published(eight, t.topic(), b"%d" % qos, qos, 10 + qos))
            got = await delivered(four)
            await work
            expect((got.payload, got.qos) == (b"%d" % qos, qos), f"{got}")
        await quic.bidirectional(0).quiet(0.2, "the control stream")


@step("emqx/same-packet-identifier-on-two-streams")
async def same_identifier(t: Step) -> None:
    # Each stream counts from one; incoming identifiers belong to their stream. [MQTT-4.3.3-10] [MQTT-4.3.3-12]
    async with t.open() as quic:
        await quic.connect_mqtt(client_id=t.id("a"))
        control, four, eight = quic.bidirectional(0), quic.bidirectional(4), quic.bidirectional(8)
        await subscribed(control, t.topic(), options=0)
        for stream, payload in ((four, b"four"), (eight, b"eight")):
            stream.send(wire.publish(t.topic(), payload, 2, 1))
        for stream in (four, eight):
            expect((await stream.expect(wire.PUBREC)).reason in (0, 0x10), "PUBREC")
        for stream in (eight, four):
            stream.send(wire.ack(wire.PUBREL, 1))
            expect((await stream.expect(wire.PUBCOMP)).reason == 0, "PUBCOMP with a reason")
        got = sorted([(await control.expect(wire.PUBLISH)).payload for _ in range(2)])
        expect(got == [b"eight", b"four"], f"delivered {got}")


@step("emqx/same-subscribe-identifier-on-two-streams")
async def same_subscribe_identifier(t: Step) -> None:
    async with t.open() as quic:
        await quic.connect_mqtt(client_id=t.id("a"))
        four, eight = quic.bidirectional(4), quic.bidirectional(8)
        four.send(wire.subscribe(1, [(t.topic("a"), 1)]))
        eight.send(wire.subscribe(1, [(t.topic("b"), 1)]))
        await four.expect(wire.SUBACK)
        await eight.expect(wire.SUBACK)
        await published(quic.bidirectional(0), t.topic("b"), b"b", 1, 1)
        expect((await delivered(eight)).payload == b"b", "delivered something else")
        await four.quiet(0.2, "a message for another stream's subscription")


@step("emqx/written-before-connack")
async def before_connack(t: Step) -> None:
    # [MQTT-3.1.4-5]: one flight with everything; data streams wait for the CONNECT to succeed.
    async with t.open() as quic:
        control, four, eight = quic.bidirectional(0), quic.bidirectional(4), quic.bidirectional(8)
        control.send(wire.connect(client_id=t.id("a")))
        four.send(wire.subscribe(1, [(t.topic(), 1)]))
        await control.expect(wire.CONNACK)
        await four.expect(wire.SUBACK)
        eight.send(wire.publish(t.topic(), b"x", 1, 1))
        await eight.expect(wire.PUBACK)
        expect((await delivered(four)).payload == b"x", "delivered something else")


@step("emqx/written-before-connect")
async def before_connect(t: Step) -> None:
    # The data streams' bytes may even arrive first.
    async with t.open() as quic:
        control, four, eight = quic.bidirectional(0), quic.bidirectional(4), quic.bidirectional(8)
        four.send(wire.subscribe(1, [(t.topic(), 1)]))
        eight.send(wire.publish(t.topic("other"), b"x", 1, 1))
        await asyncio.sleep(0.3)
        control.send(wire.connect(client_id=t.id("a")))
        await control.expect(wire.CONNACK)
        await four.expect(wire.SUBACK)
        await eight.expect(wire.PUBACK)


@step("emqx/held-bytes-have-a-limit")
async def held_bytes(t: Step) -> None:
    # 40 MiB on data streams without any CONNECT: flow control or an end, not memory.
    async with t.open() as quic:
        streams = [quic.bidirectional(4 * number) for number in range(1, 9)]
        for stream in streams:
            stream.send(wire.publish(t.topic(), b"x" * (5 * MEBIBYTE), 1, 1))
        await asyncio.sleep(1.5)
        if not quic.ending:
            unsent = sum(len(quic._quic._streams[one.number].sender._buffer) for one in streams)
            expect(unsent > 30 * MEBIBYTE, f"the broker took {40 - unsent / MEBIBYTE:.0f} MiB before a CONNECT")


@step("emqx/rejected-connect-discards-data-streams")
async def rejected(t: Step) -> None:
    # [MQTT-3.1.4-6]
    async with t.open() as other, t.open() as quic:
        watch = await watcher(t, other, "t")
        quic.bidirectional(4).send(wire.publish(t.topic(), b"x", 1, 1))
        connect = bytearray(wire.connect(level=4, client_id=t.id("a")))
        connect[8] = 6  # a protocol level that is none
        quic.bidirectional(0).send(bytes(connect))
        await quic.terminated()
        await watch.quiet(QUIET_S, "a message of a client that was refused")


@step("emqx/connect-on-a-data-stream")
async def connect_on_data_stream(t: Step) -> None:
    # [MQTT-3.1.0-2]: the stream or the connection ends, and the session is not taken over by itself
    async with t.open() as quic:
        await quic.connect_mqtt(client_id=t.id("a"))
        four = quic.bidirectional(4)
        four.send(wire.connect(client_id=t.id("b")))
        deadline = time.monotonic() + PATIENCE_S
        while not quic.ending:
            got = await four.next(0.2)
            if isinstance(got, (Fin, Reset, Stop)):
                break
            expect(not (isinstance(got, wire.Packet) and got.kind == wire.CONNACK), "CONNACK on a data stream")
            expect(time.monotonic() < deadline, "neither the stream nor the connection ended")


@step("emqx/ping-on-a-data-stream")
async def ping_on_data_stream(t: Step) -> None:
    # [MQTT-3.12.4-1]: answered on the stream that asks
    async with t.open() as quic:
        await quic.connect_mqtt(client_id=t.id("a"))
        await ping(quic.bidirectional(4))
        await ping(quic.bidirectional(0))


@step("emqx/data-streams-keep-the-session-alive")
async def data_streams_keep_alive(t: Step) -> None:
    # [MQTT-3.1.2-22]: control packets of any stream count
    async with t.open() as quic:
        connack = await quic.connect_mqtt(client_id=t.id("a"), keep_alive=4)
        if connack.properties.get("server_keep_alive", 4) > 4:
            raise Skip("the broker sets a longer keep alive")
        four = quic.bidirectional(4)
        for number in range(8):
            await published(four, t.topic(), b"x", 1, number + 1)
            await asyncio.sleep(1)
        expect(not quic.ending, f"a client that publishes on a data stream was thrown out: {quic.ending}")


@step("emqx/data-stream-reset")
async def data_stream_reset(t: Step) -> None:
    # What the client does to one stream does not touch the others, nor the session's subscriptions.
    async with t.open() as quic:
        await quic.connect_mqtt(client_id=t.id("a"))
        control, four, eight = quic.bidirectional(0), quic.bidirectional(4), quic.bidirectional(8)
        await subscribed(four, t.topic(), options=1)
        eight.send(wire.publish(t.topic(), b"half", 1, 1)[:-2])
        four.reset(0)
        eight.reset(NNG_ECONNSHUT)
        await ping(control)
        await published(control, t.topic(), b"after", 1, 2)
        got = await _on_any(quic, wire.PUBLISH, [0, 4])
        expect(got.payload == b"after", f"{got} after the subscribing stream was reset")
        await ping(control)


async def _on_any(quic: QuicClient, kind: int, numbers: list[int], timeout: float = PATIENCE_S) -> wire.Packet:
    """The next packet of a kind on any of these streams."""
    until = time.monotonic() + timeout
    while time.monotonic() < until:
        for number in numbers:
            got = await quic.bidirectional(number).next(0.02)
            if isinstance(got, wire.Packet) and got.kind == kind:
                return got
    raise Failure(f"no {wire.NAMES[kind]} on the streams {numbers} within {timeout} s{quic.ending or ''}")


@step("emqx/data-stream-finished")
async def data_stream_finished(t: Step) -> None:
    # A stream that the client finished still carries the acknowledgement; the subscription stays.
    async with t.open() as quic:
        await quic.connect_mqtt(client_id=t.id("a"))
        control, four, eight = quic.bidirectional(0), quic.bidirectional(4), quic.bidirectional(8)
        four.send(wire.subscribe(1, [(t.topic(), 0)]), fin=True)
        await four.expect(wire.SUBACK)
        eight.send(wire.publish(t.topic(), b"last", 1, 1), fin=True)
        expect((await eight.expect(wire.PUBACK)).pid == 1, "PUBACK")
        expect((await _on_any(quic, wire.PUBLISH, [0, 4])).payload == b"last", "delivered something else")
        await ping(control)


@step("emqx/malformed-on-a-data-stream")
async def malformed_on_data_stream(t: Step) -> None:
    # [MQTT-4.13.1-1] closes the connection; EMQX closes the stream alone. Both end what is wrong, at once.
    async with t.open() as quic:
        await quic.connect_mqtt(client_id=t.id("a"))
        control, four = quic.bidirectional(0), quic.bidirectional(4)
        four.send(b"\x36\x04\x00\x01t\x00")
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until and not quic.ending:
            got = await four.next(0.2)
            if isinstance(got, (Fin, Reset, Stop)):
                break
        else:
            expect(quic.ending, "neither the stream nor the connection ended")
        if not quic.ending:
            try:
                await ping(control)
            except Failure:
                # The connection ends when the broker's last bytes are acknowledged.
                while time.monotonic() < until and not quic.ending:
                    await asyncio.sleep(0.05)
                expect(quic.ending or control.arrived.qsize() == 0, "the control stream is dead and still there")


@step("emqx/unsubscribe-on-another-stream")
async def unsubscribe_elsewhere(t: Step) -> None:
    # EMQX answers 0x11 because each stream has its own subscriptions; here they are the session's: [MQTT-3.10.4-1].
    async with t.open() as quic:
        await quic.connect_mqtt(client_id=t.id("a"))
        control, four = quic.bidirectional(0), quic.bidirectional(4)
        await subscribed(four, t.topic(), options=1)
        control.send(wire.unsubscribe(9, [t.topic()]))
        expect((await control.expect(wire.UNSUBACK)).codes == [0], "UNSUBACK does not say success")
        await published(control, t.topic(), b"x", 1, 3)
        await four.quiet(QUIET_S, "a message after UNSUBSCRIBE")


@step("emqx/same-filter-on-two-streams")
async def same_filter(t: Step) -> None:
    # One session, one subscription: [MQTT-3.8.4-3]. One copy, on one of the streams that asked.
    async with t.open() as quic:
        await quic.connect_mqtt(client_id=t.id("a"))
        four, eight = quic.bidirectional(4), quic.bidirectional(8)
        await subscribed(four, t.topic(), options=1)
        await subscribed(eight, t.topic(), options=1, pid=2)
        await published(quic.bidirectional(0), t.topic(), b"x", 1, 3)
        await asyncio.sleep(QUIET_S)
        copies = four.copies() + eight.copies()
        expect(copies == 1, f"{copies} copies of a message for one session's one subscription")


@step("emqx/ten-data-streams")
async def ten_streams(t: Step) -> None:
    # EMQX allows ten at once; so many at least must work.
    async with t.open() as quic:
        await quic.connect_mqtt(client_id=t.id("a"))
        streams = [quic.bidirectional(4 * number) for number in range(1, 11)]
        for number, stream in enumerate(streams):
            await subscribed(stream, t.topic(str(number)), options=1)
        await asyncio.gather(*(published(stream, t.topic(str(9 - number)), b"%d" % number, 0, None)
                               for number, stream in enumerate(streams)))
        for number, stream in enumerate(streams):
            expect((await delivered(stream)).payload == b"%d" % (9 - number), f"stream {stream.number}")


@step("emqx/order-on-one-data-stream")
async def order(t: Step) -> None:
    # [MQTT-4.6.0-5]
    async with t.open() as quic:
        await quic.connect_mqtt(client_id=t.id("a"))
        four, eight = quic.bidirectional(4), quic.bidirectional(8)
        await subscribed(four, t.topic(), options=1)
        count = 500
        window = 50
        sent = acked = got = 0
        while got < count:
            while sent < count and sent - acked < window:
                eight.send(wire.publish(t.topic(), b"%d" % sent, 1, sent + 1))
                sent += 1
            while acked < sent and eight.arrived.qsize():
                await eight.expect(wire.PUBACK)
                acked += 1
            message = await delivered(four)
            expect(message.payload == b"%d" % got, f"message {got} is {message.payload!r}")
            got += 1
        while acked < count:
            await eight.expect(wire.PUBACK)
            acked += 1


@step("emqx/no-head-of-line-blocking")
async def no_blocking(t: Step) -> None:
    # The reason for many streams: a large message on one does not hold up the others.
    async with t.open() as quic:
        limit = (await quic.connect_mqtt(client_id=t.id("a"))).properties.get("maximum_packet_size", 1 << 28)
        size = min(8 * MEBIBYTE, limit - 1000)
        control, four, eight = quic.bidirectional(0), quic.bidirectional(4), quic.bidirectional(8)
        await subscribed(eight, t.topic("small"), options=1)
        four.send(wire.publish(t.topic("large"), b"x" * size, 1, 1))
        overtaking = 0
        for number in range(5):
            await published(control, t.topic("small"), b"s", 1, 10 + number)
            await delivered(eight)
            overtaking += four.arrived.empty()
        await four.expect(wire.PUBACK, 20)
        expect(overtaking > 0, "the large message was acknowledged before a small one was delivered")


@step("emqx/session-outlives-the-connection")
async def session_outlives(t: Step) -> None:
    # EMQX loses subscriptions of data streams; here they are the session's: [MQTT-3.1.2-5] [MQTT-4.4.0-1].
    options = {"client_id": t.id("a"), "clean": False, "props": {"session_expiry": 60}}
    async with t.open() as quic:
        await quic.connect_mqtt(**options)
        four = quic.bidirectional(4)
        await subscribed(four, t.topic(), options=1)
        await published(quic.bidirectional(0), t.topic(), b"unacknowledged", 1, 2)
        await four.expect(wire.PUBLISH)
        quic.end(1)
    async with t.open() as other:
        await other.connect_mqtt(client_id=t.id("p"))
        await published(other.bidirectional(0), t.topic(), b"queued", 1, 1)
    async with t.open() as quic:
        connack = await quic.connect_mqtt(**options)
        expect(connack.session_present, "session not present")
        control = quic.bidirectional(0)
        got = [await delivered(control) for _ in range(2)]
        expect([m.payload for m in got] == [b"unacknowledged", b"queued"], f"{[m.payload for m in got]}")
        expect([m.dup for m in got] == [True, False], f"DUP {[m.dup for m in got]}")


# --------------------------------------------------------------------------- NanoNNG: fixed streams


@step("nanonng/streams-0-4-12")
async def nanonng(t: Step) -> None:
    # CONNECT, PINGREQ, UNSUBSCRIBE, DISCONNECT on 0; SUBSCRIBE on 4 or 8; PUBLISH on 12 or 16.
    async with t.open() as quic:
        await quic.connect_mqtt(client_id=t.id("a"))
        control, sub, pub = quic.bidirectional(0), quic.bidirectional(4), quic.bidirectional(12)
        await subscribed(sub, t.topic(), options=2)
        for qos in range(3):
            work = asyncio.create_task(published(pub, t.topic(), b"%d" % qos, qos, 1 + qos))
            expect((await delivered(sub)).qos == qos, f"quality of service {qos}")
            await work
        await ping(control)
        control.send(wire.unsubscribe(20, [t.topic()]))
        expect((await control.expect(wire.UNSUBACK)).codes == [0], "UNSUBACK on 0 for a subscription of 4")
        await published(pub, t.topic(), b"late", 1, 30)
        await sub.quiet(QUIET_S, "a message after UNSUBSCRIBE")


@step("nanonng/publish-first-on-16")
async def publish_on_16(t: Step) -> None:
    # The streams appear in any order: 16 before 4, 8 and 12.
    async with t.open() as quic:
        await quic.connect_mqtt(client_id=t.id("a"))
        last, sub = quic.bidirectional(16), quic.bidirectional(8)
        await published(last, t.topic("other"), b"x", 1, 1)
        await subscribed(sub, t.topic(), options=1)
        await published(quic.bidirectional(12), t.topic(), b"12", 1, 2)
        await published(last, t.topic(), b"16", 1, 3)
        got = sorted([(await delivered(sub)).payload for _ in range(2)])
        expect(got == [b"12", b"16"], f"delivered {got}")


@step("nanonng/qos-priority-on-control")
async def qos_priority(t: Step) -> None:
    # With its default, messages of quality of service 1 and 2 go on 0, those of 0 on 12.
    async with t.open() as quic:
        await quic.connect_mqtt(client_id=t.id("a"))
        control, sub, pub = quic.bidirectional(0), quic.bidirectional(4), quic.bidirectional(12)
        await subscribed(sub, t.topic(), options=2)
        for qos, stream in ((0, pub), (1, control), (2, control)):
            work = asyncio.create_task(published(stream, t.topic(), b"%d" % qos, qos, 1 + qos))
            expect((await delivered(sub)).payload == b"%d" % qos, "delivered something else")
            await work


@step("nanonng/sub-stream-reopened")
async def reopened(t: Step) -> None:
    async with t.open() as quic:
        await quic.connect_mqtt(client_id=t.id("a"))
        control, pub = quic.bidirectional(0), quic.bidirectional(12)
        await subscribed(control, t.topic(), options=1)
        await published(pub, t.topic(), b"1", 1, 1)
        pub.reset(NNG_ECONNSHUT)
        await published(quic.bidirectional(20), t.topic(), b"2", 1, 1)
        got = [(await delivered(control)).payload for _ in range(2)]
        expect(got == [b"1", b"2"], f"delivered {got}")


# --------------------------------------------------------------------------- mqtt5: unidirectional streams


@step("unidirectional/publish-acknowledged-on-control")
async def unidirectional(t: Step) -> None:
    async with t.open() as quic:
        await quic.connect_mqtt(client_id=t.id("a"))
        control, sub = quic.bidirectional(0), quic.bidirectional(4)
        await subscribed(sub, t.topic(), options=2)
        one = quic.unidirectional()
        for qos in range(3):
            work = asyncio.create_task(published(one, t.topic(), b"%d" % qos, qos, 1 + qos, control))
            got = await delivered(sub)
            await work
            expect((got.payload, got.qos) == (b"%d" % qos, qos), f"{got}")


@step("unidirectional/one-stream-per-publish")
async def stream_per_publish(t: Step) -> None:
    async with t.open() as quic:
        await quic.connect_mqtt(client_id=t.id("a"))
        control, sub = quic.bidirectional(0), quic.bidirectional(4)
        await subscribed(sub, t.topic(), options=1)
        for number in range(150):
            quic.unidirectional().send(wire.publish(t.topic(), b"%d" % number, 1, number + 1), fin=True)
            expect((await control.expect(wire.PUBACK)).pid == number + 1, f"PUBACK {number + 1}")
            expect((await delivered(sub)).payload == b"%d" % number, f"message {number}")


# --------------------------------------------------------------------------- ends of connections


@step("end/disconnect-and-fin")
async def orderly(t: Step) -> None:
    # [MQTT-3.14.4-3] [MQTT-3.14.4-2]: the server finishes too and closes with code 0; no will
    async with t.open() as other, t.open() as quic:
        watch = await watcher(t, other)
        await quic.connect_mqtt(client_id=t.id("a"), will=will(t))
        quic.bidirectional(0).send(wire.disconnect(), fin=True)
        end = await quic.terminated()
        expect(end.error_code == 0, f"{quic.ending}, expected code 0")
        await watch.quiet(QUIET_S, "a will after DISCONNECT")


@step("end/disconnect-without-fin")
async def disconnect_alone(t: Step) -> None:
    async with t.open() as other, t.open() as quic:
        watch = await watcher(t, other)
        await quic.connect_mqtt(client_id=t.id("a"), will=will(t))
        quic.bidirectional(0).send(wire.disconnect())
        end = await quic.terminated()
        expect(end.error_code == 0, f"{quic.ending}, expected code 0")
        await watch.quiet(QUIET_S, "a will after DISCONNECT")


@step("end/disconnect-then-close-at-once")
async def disconnect_and_close(t: Step) -> None:
    # emqtt: DISCONNECT, FIN and CONNECTION_CLOSE in one go; the DISCONNECT counts.
    async with t.open() as other, t.open() as quic:
        watch = await watcher(t, other)
        await quic.connect_mqtt(client_id=t.id("a"), will=will(t))
        quic.bidirectional(0).send(wire.disconnect(), fin=True)
        await asyncio.sleep(0)  # the stream is on its way, nothing has been answered
        quic.transmit()
        quic.end(0)
        await watch.quiet(QUIET_S, "a will after DISCONNECT")


@step("end/fin-without-disconnect")
async def fin_alone(t: Step) -> None:
    # [MQTT-3.1.2-14]
    async with t.open() as other, t.open() as quic:
        watch = await watcher(t, other)
        await quic.connect_mqtt(client_id=t.id("a"), will=will(t))
        quic.bidirectional(0).send(b"", fin=True)
        expect((await delivered(watch)).payload == b"gone", "will")
        await quic.terminated()


@step("end/close-without-disconnect")
async def close_alone(t: Step) -> None:
    for code in (0, 1):
        async with t.open() as other, t.open() as quic:
            watch = await watcher(t, other)
            await quic.connect_mqtt(client_id=t.id("a"), will=will(t))
            quic.end(code)
            expect((await delivered(watch)).payload == b"gone", f"will after a close with code {code}")


@step("end/control-stream-reset")
async def control_reset(t: Step) -> None:
    async with t.open() as other, t.open() as quic:
        watch = await watcher(t, other)
        await quic.connect_mqtt(client_id=t.id("a"), will=will(t))
        quic.bidirectional(0).reset(0)
        expect((await delivered(watch)).payload == b"gone", "will")
        await quic.terminated()


@step("end/vanished")
async def vanished(t: Step) -> None:
    # [MQTT-3.1.2-22]: no packet, no close; the keep alive of 1 s finds out
    async with t.open() as other, t.open() as quic:
        watch = await watcher(t, other)
        connack = await quic.connect_mqtt(client_id=t.id("a"), will=will(t), keep_alive=1)
        if connack.properties.get("server_keep_alive", 1) > 5:
            raise Skip("the broker sets a longer keep alive")
        quic.vanish()
        got = await watch.expect(wire.PUBLISH)
        expect(got.payload == b"gone", "will")


@step("end/taken-over")
async def taken_over(t: Step) -> None:
    # [MQTT-3.1.4-3]
    async with t.open() as first, t.open() as second:
        await first.connect_mqtt(client_id=t.id("a"))
        await second.connect_mqtt(client_id=t.id("a"))
        got = await first.bidirectional(0).expect(wire.DISCONNECT)
        expect(got.reason == 0x8E, f"{got} for the first client")
        await first.terminated()
        await ping(second.bidirectional(0))


@step("end/session-moves-between-quic-and-tcp")
async def moves(t: Step) -> None:
    # [MQTT-3.1.2-5]: a session is the same whatever carries it
    if t.plain is None:
        raise Skip("the broker has no TCP listener")
    options = {"client_id": t.id("a"), "clean": False, "props": {"session_expiry": 60}}
    async with t.open() as quic:
        await quic.connect_mqtt(**options)
        await subscribed(quic.bidirectional(4), t.topic(), options=1)

        def over_tcp() -> None:
            with Raw(t.plain) as one:
                expect(one.connect(**options).session_present, "session not present over TCP")
                one.send(wire.publish(t.topic(), b"tcp", 1, 1))
                got = [one.packet() for _ in range(2)]
                kinds = sorted(packet.kind for packet in got if packet)
                expect(kinds == [wire.PUBLISH, wire.PUBACK], f"over TCP came {list(map(str, got))}")

        await asyncio.to_thread(over_tcp)
        expect((await quic.bidirectional(0).expect(wire.DISCONNECT)).reason == 0x8E, "the QUIC connection's DISCONNECT")
    async with t.open() as quic:
        expect((await quic.connect_mqtt(**options)).session_present, "session not present over QUIC")
        got = await delivered(quic.bidirectional(0))
        expect((got.payload, got.dup) == (b"tcp", True), f"{got}, DUP {got.dup}: the message that TCP left open")


# --------------------------------------------------------------------------- handshakes


@step("handshake/alpn-mqtt")
async def alpn_mqtt(t: Step) -> None:
    async with t.open() as quic:
        expect(quic.alpn == "mqtt", f"ALPN {quic.alpn}")
        await quic.connect_mqtt(client_id=t.id("a"))


@step("handshake/alpn-mqtt-next-first")
async def alpn_next(t: Step) -> None:
    # What mqtt5 offers with flow headers; a bare CONNECT must work under either name.
    async with t.open(alpn=("MQTT-next", "mqtt")) as quic:
        expect(quic.alpn in ("MQTT-next", "mqtt"), f"ALPN {quic.alpn}")
        await quic.connect_mqtt(client_id=t.id("a"))
        await ping(quic.bidirectional(0))


@step("handshake/alpn-unknown")
async def alpn_unknown(t: Step) -> None:
    # RFC 9001 section 8.1: no_application_protocol
    for offered in (("sterna-interop",), None):
        async with t.open(alpn=offered, early=True) as quic:
            quic.bidirectional(0).send(b"")
            end = await quic.terminated()
            expect(alert(end.error_code) == NO_APPLICATION_PROTOCOL,
                   f"{quic.ending} for ALPN {offered}, expected 0x178")


@step("handshake/version-3.1.1")
async def version_3(t: Step) -> None:
    async with t.open(level=4) as quic:
        await quic.connect_mqtt(client_id=t.id("a"))
        four = quic.bidirectional(4)
        four.send(wire.subscribe(1, [(t.topic(), 1)], 4))
        await four.expect(wire.SUBACK)
        eight = quic.bidirectional(8)
        eight.send(wire.publish(t.topic(), b"x", 1, 1, level=4))
        await eight.expect(wire.PUBACK)
        expect((await four.expect(wire.PUBLISH)).payload == b"x", "message")


@step("handshake/unknown-version")
async def unknown_version(t: Step) -> None:
    # [MQTT-3.1.2-2]
    async with t.open() as quic:
        connect = bytearray(wire.connect(level=4, client_id=t.id("a")))
        connect[8] = 6
        control = quic.bidirectional(0)
        control.send(bytes(connect))
        got = await control.next()
        expect(isinstance(got, wire.Packet) and got.kind == wire.CONNACK and got.reason in (0x84, 0x01), f"{got}")
        await quic.terminated()


# --------------------------------------------------------------------------- datagrams


ASKS_FOR_DATAGRAMS = {"user_properties": [("datagrams", "1")]}


@step("datagrams/both-ways-for-who-asks")
async def datagrams(t: Step) -> None:
    async with t.open(max_datagram_frame_size=1200) as quic:
        agreed = await quic.connect_mqtt(client_id=t.id("a"), props=ASKS_FOR_DATAGRAMS)
        expect(("datagrams", "1") in map(tuple, agreed.properties.get("user_properties", [])), "CONNACK does not agree")
        control = quic.bidirectional(0)
        await subscribed(control, t.topic(), options=1)
        quic._quic.send_datagram_frame(wire.publish(t.topic(), b"x"))
        quic.transmit()
        got = wire.Parser(5).feed(await asyncio.wait_for(quic.datagrams.get(), PATIENCE_S))
        expect([one.payload for one in got] == [b"x"], f"a datagram with {got}")
        await published(control, t.topic(), b"y", 1, 1)
        expect((await delivered(control)).payload == b"y", "not on the stream what is acknowledged")


@step("datagrams/none-for-who-does-not-ask")
async def no_datagrams(t: Step) -> None:
    async with t.open(max_datagram_frame_size=1200) as quic:
        await quic.connect_mqtt(client_id=t.id("a"))
        control = quic.bidirectional(0)
        await subscribed(control, t.topic(), options=0)
        quic._quic.send_datagram_frame(wire.publish(t.topic(), b"x"))
        quic.transmit()
        expect((await delivered(control)).payload == b"x", "delivered something else")


@step("datagrams/what-is-no-mqtt-is-ignored")
async def not_mqtt(t: Step) -> None:
    async with t.open(max_datagram_frame_size=1200) as quic:
        await quic.connect_mqtt(client_id=t.id("a"))
        quic._quic.send_datagram_frame(b"\x00junk")
        quic.transmit()
        await ping(quic.bidirectional(0))


@step("datagrams/what-is-no-message-ends-the-connection")
async def no_message(t: Step) -> None:
    async with t.open(max_datagram_frame_size=1200) as quic:
        await quic.connect_mqtt(client_id=t.id("a"))
        quic._quic.send_datagram_frame(wire.pingreq())
        quic.transmit()
        expect((await quic.bidirectional(0).expect(wire.DISCONNECT)).reason == 0x82, "another reason")


# --------------------------------------------------------------------------- running them


async def run_step(name: str, function, one: Step, report: Report, gate) -> None:
    label = f"quic/{name}"
    async with gate:
        try:
            await asyncio.wait_for(function(one), STEP_LIMIT_S)
            one.finish()
            report.ok(label)
        except Skip as why:
            report.nothing(label, str(why))
        except Failure as why:
            report.not_ok(label, str(why))
        except TimeoutError:
            report.not_ok(label, f"not done within {STEP_LIMIT_S} s")
        except Exception as error:  # a fault of the suite must name itself and not end the others
            report.not_ok(label, f"{type(error).__name__}: {error}")


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="only steps whose name contains this")
    arguments = parser.parse_args()
    report, places = Report(), listeners()
    if "quic" not in places:
        report.not_ok("quic", "the broker has no QUIC listener")
        report.exit()
    strict = next((one for one in all_listeners() if one.transport == "quic" and one != places["quic"]), None)
    gate = asyncio.Semaphore(AT_ONCE)
    await asyncio.gather(*(run_step(name, function, Step(places["quic"], places.get("tcp"), strict), report, gate)
                           for name, function in STEPS if arguments.only in name))
    report.exit()


if __name__ == "__main__":
    asyncio.run(main())
