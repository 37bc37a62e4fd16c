"""Steps about wills and sessions.

The normative statements that a step shows are cited in it: [MQTT-...] of MQTT 5.0, [MQTT311-...] of MQTT 3.1.1.
"""

from __future__ import annotations

import asyncio
import time

from step import QUIET_S, V5, Step, equal, expect, step

# Messages that a reader is behind: more than it may have in flight, and than wait for it in memory.
BEHIND = 3_000

# --------------------------------------------------------------------------- wills


@step("will-on-abrupt-loss")
async def will_on_loss(t: Step) -> None:
    # [MQTT-3.1.2-14] [MQTT311-3.1.2-8] [MQTT311-3.1.2-16]
    watcher = await t.client("w")
    await watcher.subscribe(t.topic("will"), 2)
    for qos in range(3):
        dying = await t.client(f"d{qos}", will={"topic": t.topic("will"), "payload": b"gone", "qos": qos})
        await dying.abort()
        message = await watcher.receive()
        equal((message.topic, message.payload, message.qos, message.retain),
              (t.topic("will"), b"gone", qos, False), "will")


@step("will-not-on-disconnect")
async def will_not_on_disconnect(t: Step) -> None:
    # [MQTT-3.14.4-3] [MQTT-3.1.2-10] [MQTT311-3.1.2-10]
    watcher, publisher = await t.client("w"), await t.client("p")
    await watcher.subscribe(t.topic("will"), 1)
    leaving = await t.client("d", will={"topic": t.topic("will"), "payload": b"gone", "qos": 1})
    await leaving.disconnect()
    await asyncio.sleep(QUIET_S)
    await t.silent(watcher, publisher, "the will of a client that sent DISCONNECT was published")


@step("will-retained")
async def will_retained(t: Step) -> None:
    # [MQTT-3.1.2-15] [MQTT311-3.1.2-17]
    watcher = await t.client("w")
    await watcher.subscribe(t.topic("will"), 1)
    t.retained.append(t.topic("will"))
    dying = await t.client("d", will={"topic": t.topic("will"), "payload": b"gone", "qos": 1, "retain": True})
    await dying.abort()
    expect(not (await watcher.receive()).retain, "RETAIN at a subscriber that was there before")
    late = await t.client("late")
    await late.subscribe(t.topic("will"), 1)
    message = await late.receive()
    equal((message.payload, message.retain), (b"gone", True), "retained will for a new subscriber")


@step("will-on-takeover")
async def will_on_takeover(t: Step) -> None:
    # [MQTT311-3.1.2-8]; 5.0 section 3.1.2.5: the server closes the connection of the client that is taken over
    watcher = await t.client("w")
    await watcher.subscribe(t.topic("will"), 1)
    await t.client("d", will={"topic": t.topic("will"), "payload": b"taken over", "qos": 1})
    await t.client("d", clean=True)
    equal((await watcher.receive()).payload, b"taken over", "will")


@step("will-with-disconnect-0x04", V5)
async def will_with_disconnect(t: Step) -> None:
    watcher = await t.client("w")
    await watcher.subscribe(t.topic("will"), 1)
    leaving = await t.client("d", will={"topic": t.topic("will"), "payload": b"asked for", "qos": 1})
    await leaving.disconnect(0x04)
    equal((await watcher.receive()).payload, b"asked for", "will")


@step("will-properties", V5)
async def will_properties(t: Step) -> None:
    # [MQTT-3.1.3-10]
    watcher = await t.client("w")
    await watcher.subscribe(t.topic("will"), 1)
    sent = {"content_type": "text/plain", "response_topic": "r/t", "correlation_data": b"\x00\xff",
            "payload_format": 1, "user_properties": [["b", "2"], ["a", "1"], ["b", "3"]]}
    dying = await t.client("d", will={"topic": t.topic("will"), "payload": b"gone", "qos": 1, "properties": sent})
    await dying.abort()
    t.properties_equal((await watcher.receive()).properties, sent, "the will")


@step("will-delay", V5)
async def will_delay(t: Step) -> None:
    watcher = await t.client("w")
    await watcher.subscribe(t.topic("will", "#"), 1)
    will = {"topic": t.topic("will", "late"), "payload": b"late", "qos": 1, "properties": {"will_delay": 2}}
    dying = await t.client("d", persistent=True, will=will)
    start = time.monotonic()
    await dying.abort()
    message = await watcher.receive()
    waited = time.monotonic() - start
    equal(message.payload, b"late", "will")
    expect(1.5 <= waited, f"a will with a delay of 2 s came after {waited:.2f} s")
    # The session ends before the delay has passed: the will goes out with it.
    will = {"topic": t.topic("will", "end"), "payload": b"end", "qos": 1, "properties": {"will_delay": 30}}
    dying = await t.client("e", persistent=True, expiry=1, will=will)
    await dying.abort()
    equal((await watcher.receive()).payload, b"end", "will at the end of the session")


@step("will-delay-cancelled", V5)
async def will_delay_cancelled(t: Step) -> None:
    # [MQTT-3.1.3-9]
    watcher, publisher = await t.client("w"), await t.client("p")
    await watcher.subscribe(t.topic("will"), 1)
    will = {"topic": t.topic("will"), "payload": b"no", "qos": 1, "properties": {"will_delay": 5}}
    dying = await t.client("d", persistent=True, will=will)
    await dying.abort()
    await t.client("d", persistent=True)
    await asyncio.sleep(6)
    await t.silent(watcher, publisher, "the will was published although the client came back in time")


# --------------------------------------------------------------------------- sessions


@step("session-resume")
async def session_resume(t: Step) -> None:
    # [MQTT-3.1.2-5] [MQTT-3.2.2-3] [MQTT-4.5.0-1] [MQTT-3.1.2-23] [MQTT311-3.1.2-4] [MQTT311-3.1.2-5]
    # [MQTT311-3.2.2-2]
    publisher = await t.client("p")
    first = await t.client("s", persistent=True)
    expect(not first.session_present, "session present at the first connection")
    await first.subscribe([(t.topic("q"), 2), (t.topic("q1"), 1)])
    await first.disconnect()
    for number in range(20):
        await publisher.publish(t.topic("q"), str(number), 1 + number % 2)
    await publisher.publish(t.topic("q1"), b"down", 2)
    again = await t.client("s", persistent=True)
    t.resumed(again)
    got = [await again.receive() for _ in range(21)]
    queued = [m for m in got if m.topic == t.topic("q")]
    # Order is owed within one quality of service: [MQTT-4.6.0-5].
    for qos in (1, 2):
        numbers = [int(m.payload) for m in queued if m.qos == qos]
        equal(numbers, list(range(qos - 1, 20, 2)), f"queued messages of quality of service {qos}")
    equal([(m.payload, m.qos) for m in got if m.topic == t.topic("q1")], [(b"down", 1)], "downgraded message")
    await publisher.publish(t.topic("q"), b"live", 1)
    equal((await again.receive()).payload, b"live", "message after the resumption")
    await t.silent(again, publisher, "a message came twice")


@step("clean-start")
async def clean_start(t: Step) -> None:
    # [MQTT-3.1.2-4] [MQTT-3.2.2-2] [MQTT311-3.1.2-6] [MQTT311-3.2.2-1]
    publisher = await t.client("p")
    first = await t.client("s", persistent=True)
    await first.subscribe(t.topic("q"), 1)
    await first.disconnect()
    await publisher.publish(t.topic("q"), b"queued", 1)
    clean = await t.client("s", clean=True)
    expect(not clean.session_present, "session present after a clean start")
    await publisher.publish(t.topic("q"), b"more", 1)
    await t.silent(clean, publisher, "the old session's messages or subscriptions are still there")
    await clean.disconnect()
    after = await t.client("s", persistent=True)
    expect(not after.session_present, "the session of a clean start outlived its connection")


@step("session-expiry", V5)
async def session_expiry(t: Step) -> None:
    # [MQTT-4.1.0-2] [MQTT-3.1.2-23]
    first = await t.client("s", persistent=True, expiry=1)
    await first.disconnect()
    await asyncio.sleep(2.5)
    again = await t.client("s", persistent=True)
    expect(not again.session_present, "a session with an expiry interval of 1 s was there after 2.5 s")


@step("session-expiry-on-disconnect", V5)
async def session_expiry_on_disconnect(t: Step) -> None:
    # [MQTT-4.1.0-2]
    first = await t.client("k", persistent=True, expiry=60)
    await first.disconnect(session_expiry=0)
    again = await t.client("k", persistent=True)
    expect(not again.session_present, "the session outlived the expiry interval 0 of its DISCONNECT")


@step("redelivery")
async def redelivery(t: Step) -> None:
    # [MQTT-3.3.1-1] [MQTT-4.4.0-1] [MQTT-4.6.0-5] [MQTT311-3.3.1-1] [MQTT311-4.4.0-1]
    publisher = await t.client("p")
    first = await t.client("s", persistent=True, manual_ack=True)
    await first.subscribe(t.topic("q"), 1)
    for number in range(3):
        await publisher.publish(t.topic("q"), str(number), 1)
    for number in range(3):
        equal((await first.receive()).payload, str(number).encode(), "first delivery")
    await first.ack(1)
    # The broker has the acknowledgement when it answers what comes behind it.
    await first.publish(t.topic("behind"), b"", 1)
    await first.abort()
    again = await t.client("s", persistent=True, manual_ack=True)
    t.resumed(again)
    for number in (1, 2):
        message = await again.receive()
        equal(message.payload, str(number).encode(), "redelivered message")
        expect(message.dup in (True, None), "DUP is not set on a redelivery")
    await again.ack(2)
    await publisher.publish(t.topic("q"), b"next", 1)
    equal((await again.receive()).payload, b"next", "message after the redelivery")


@step("behind-and-lost")
async def behind_and_lost(t: Step) -> None:
    # [MQTT-4.4.0-1] [MQTT-4.5.0-1]: all that was published to a connected client that acknowledges nothing is its own,
    # however its connection ends.
    publisher = await t.client("p")
    first = await t.client("s", persistent=True, manual_ack=True)
    await first.subscribe(t.topic("q"), 1)
    await publisher.burst(t.topic("q"), 1, BEHIND)
    await first.receive()
    await first.abort()
    again = await t.client("s", persistent=True)
    t.resumed(again)
    got = [int((await again.receive()).payload) for _ in range(BEHIND)]
    equal(got, list(range(BEHIND)), "what came after the connection was lost")
    await t.silent(again, publisher, "a message came twice")
