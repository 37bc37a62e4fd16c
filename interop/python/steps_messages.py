"""Steps about connecting, publishing and retained messages.

The normative statements that a step shows are cited in it: [MQTT-...] of MQTT 5.0, [MQTT311-...] of MQTT 3.1.1.
"""

from __future__ import annotations

import asyncio
import hashlib

from harness import Cannot, Failure
from step import V3, V5, Step, equal, expect, step

MEBIBYTE = 1024 * 1024

# --------------------------------------------------------------------------- connecting


@step("connect")
async def connect(t: Step) -> None:
    # [MQTT-3.1.4-5] [MQTT-3.2.2-2] [MQTT311-3.1.4-4] [MQTT311-3.2.2-1]
    one = await t.client("a", clean=True)
    expect(not one.session_present, "session present after a clean start")


@step("keep-alive")
async def keep_alive(t: Step) -> None:
    # [MQTT-3.12.4-1] [MQTT-3.1.2-22] [MQTT311-3.12.4-1]: an idle client that pings stays
    one = await t.client("a", keep_alive=6)
    await asyncio.sleep(10)
    if one.end.done():
        raise Failure(f"an idle client that pings every 6 s was disconnected: {one.end.result()}")
    await one.subscribe(t.topic("x"), 1)
    await one.publish(t.topic("x"), b"still here", 1)
    equal((await one.receive()).payload, b"still here", "payload")


@step("server-keep-alive", V5)
async def server_keep_alive(t: Step) -> None:
    # [MQTT-3.1.2-21]
    one = await t.client("a", keep_alive=65535)
    if "server_keep_alive" not in one.connack:
        raise Cannot("the broker takes the client's keep alive of 65,535 s")
    expect(0 < one.connack["server_keep_alive"] < 65535, f"server keep alive {one.connack['server_keep_alive']}")


@step("assigned-client-id", V5)
async def assigned_client_id(t: Step) -> None:
    # [MQTT-3.1.3-6] [MQTT-3.1.3-7]
    first = await t.client("first", id="", properties={"session_expiry": 60})
    second = await t.client("second", id="")
    given = first.connack.get("assigned_client_id")
    expect(given, "CONNACK has no assigned client identifier")
    expect(second.connack.get("assigned_client_id") not in (None, given), "two clients got one identifier")
    await first.disconnect()
    again = await t.client("again", id=given, persistent=True, expiry=0)
    expect(again.session_present, "the assigned identifier does not name the session")


@step("empty-client-id", V3)
async def empty_client_id(t: Step) -> None:
    # [MQTT311-3.1.3-6] [MQTT311-3.1.3-7]
    if t.level == 3:
        raise Cannot("MQTT 3.1 asks for an identifier of 1 to 23 characters")
    one = await t.client("a", id="", clean=True)
    await one.subscribe(t.topic("x"))
    await one.publish(t.topic("x"), b"1")
    equal((await one.receive()).payload, b"1", "payload")


@step("takeover")
async def takeover(t: Step) -> None:
    # [MQTT-3.1.4-3] [MQTT311-3.1.4-2]
    first = await t.client("a")
    second = await t.client("a")
    reason, detail = await first.closed()
    if t.level >= 5:
        unread = t.driver.hello.get("misses_disconnect")
        expect(reason == 0x8E or (reason is None and unread),
               f"DISCONNECT to the first client has the code {reason}, expected 0x8E ({detail})")
    await second.subscribe(t.topic("x"), 1)
    await second.publish(t.topic("x"), b"mine", 1)
    equal((await second.receive()).payload, b"mine", "payload at the second client")


# --------------------------------------------------------------------------- publishing


@step("qos-matrix")
async def qos_matrix(t: Step) -> None:
    # [MQTT-3.8.4-8] [MQTT-3.3.1-2] [MQTT-3.3.1-3] [MQTT-4.3.1-1] [MQTT-4.3.2-4] [MQTT-4.3.3-8] [MQTT-4.3.3-11]
    # [MQTT311-3.8.4-6] [MQTT311-3.3.1-2] [MQTT311-4.3.1-1] [MQTT311-4.3.2-2] [MQTT311-4.3.3-2]
    subscriber, publisher = await t.client("s"), await t.client("p")
    for granted in range(3):
        codes = await subscriber.subscribe(t.topic(str(granted)), granted)
        equal(codes, [granted], "granted quality of service")
    for qos in range(3):
        for granted in range(3):
            topic = t.topic(str(granted))
            await publisher.publish(topic, f"{qos}", qos)
            message = await subscriber.receive()
            equal((message.topic, message.payload), (topic, f"{qos}".encode()), "message")
            equal(message.qos, min(qos, granted), f"quality of service published {qos}, granted {granted}")
            expect(not message.dup, "DUP on a first delivery")
            expect(not message.retain, "RETAIN on a message that was not retained")
    await t.silent(subscriber, publisher, "a message was delivered twice")


@step("empty-payload")
async def empty_payload(t: Step) -> None:
    # [MQTT-3.3.1-8]: without RETAIN an empty payload is a message like any other
    one = await t.client("a")
    await one.subscribe(t.topic("x"), 2)
    for qos in range(3):
        await one.publish(t.topic("x"), b"", qos)
        equal((await one.receive()).payload, b"", f"payload at quality of service {qos}")


@step("large-payload")
async def large_payload(t: Step) -> None:
    # [MQTT-3.3.4-1] [MQTT311-3.3.4-1]
    subscriber, publisher = await t.client("s"), await t.client("p")
    limit = publisher.connack.get("maximum_packet_size")
    if limit and limit < MEBIBYTE + 256:
        raise Cannot(f"the broker takes packets of {limit} bytes at most")
    await subscriber.subscribe(t.topic("large"), 2)
    for qos in range(3):
        payload = hashlib.shake_256(f"{t.number}-{qos}".encode()).digest(MEBIBYTE)
        await publisher.publish(t.topic("large"), payload, qos)
        message = await subscriber.receive()
        equal(len(message.payload), MEBIBYTE, f"length at quality of service {qos}")
        expect(message.payload == payload, f"another payload arrived at quality of service {qos}")
        equal(message.qos, qos, "quality of service")


@step("utf8-topics")
async def utf8_topics(t: Step) -> None:
    # [MQTT-1.5.4-3] [MQTT-4.7.3-4] [MQTT311-1.5.3-3]: U+FEFF is kept, nothing is normalised
    names = ["Küste", "海/燕", "🐦/🌊", "\ufeffbom", "caf\u00e9", "cafe\u0301", " space ", "a//b", "e\u0301\u0323"]
    subscriber, publisher = await t.client("s"), await t.client("p")
    await subscriber.subscribe(t.topic("#"), 1)
    for name in names:
        await publisher.publish(t.topic(name), name.encode(), 1)
        message = await subscriber.receive()
        equal(message.topic, t.topic(name), "topic")
        equal(message.payload, name.encode(), "payload")
    composed = await t.client("c")
    await composed.subscribe(t.topic("caf\u00e9"), 1)
    await publisher.publish(t.topic("cafe\u0301"), b"decomposed", 1)
    await t.silent(composed, publisher, "the composed filter matched the decomposed topic")


async def _order(t: Step, qos: int) -> None:
    count = 1000
    subscriber, publisher = await t.client("s"), await t.client("p")
    await subscriber.subscribe(t.topic("order"), qos)
    await publisher.burst(t.topic("order"), qos, count)
    for number in range(count):
        message = await subscriber.receive()
        equal(message.payload, str(number).encode(), f"message {number} of {count}")
        equal(message.qos, qos, f"quality of service of message {number}")
    await t.silent(subscriber, publisher, "a message came twice")


@step("order-1000-qos0")
async def order_0(t: Step) -> None:
    # [MQTT-4.6.0-5] [MQTT-4.6.0-6] [MQTT311-4.6.0-5] [MQTT311-4.6.0-6]
    await _order(t, 0)


@step("order-1000-qos1")
async def order_1(t: Step) -> None:
    # [MQTT-4.6.0-5] [MQTT-4.6.0-6] [MQTT311-4.6.0-5] [MQTT311-4.6.0-6]
    await _order(t, 1)


@step("order-1000-qos2")
async def order_2(t: Step) -> None:
    # [MQTT-4.6.0-5] [MQTT-4.6.0-6] [MQTT311-4.6.0-5] [MQTT311-4.6.0-6] [MQTT-4.3.3-10]
    await _order(t, 2)


# --------------------------------------------------------------------------- retained messages


@step("retained-set-replace-clear")
async def retained(t: Step) -> None:
    publisher, live = await t.client("p"), await t.client("l")
    topic = t.topic("r")
    await live.subscribe(topic, 1)
    # [MQTT-3.3.1-5] [MQTT311-3.3.1-5]
    await t.retain(publisher, topic, b"one", qos=1)
    await t.retain(publisher, topic, b"two", qos=1)
    # [MQTT-3.3.1-8] [MQTT311-3.3.1-12]: a message without RETAIN neither replaces nor removes it
    await publisher.publish(topic, b"passing", 1)
    for wanted in (b"one", b"two", b"passing"):
        message = await live.receive()
        equal(message.payload, wanted, "payload at a subscriber that was there before")
        # [MQTT-3.3.1-12] [MQTT311-3.3.1-9]
        expect(not message.retain, "RETAIN at a subscriber that was there before")
    late = await t.client("late")
    # [MQTT311-3.3.1-6] [MQTT311-3.3.1-8]
    await late.subscribe(topic, 1)
    message = await late.receive()
    equal((message.payload, message.retain), (b"two", True), "retained message for a new subscriber")
    await t.silent(late, publisher, "a new subscriber got more than the retained message")
    # [MQTT-3.3.1-6] [MQTT-3.3.1-7] [MQTT311-3.3.1-10] [MQTT311-3.3.1-11]
    await publisher.publish(topic, b"", 1, retain=True)
    equal((await late.receive()).payload, b"", "the clearing message at a live subscriber")
    after = await t.client("after")
    await after.subscribe(topic, 1)
    await t.silent(after, publisher, "a cleared retained message was sent")


@step("retained-wildcard")
async def retained_wildcard(t: Step) -> None:
    # [MQTT-3.3.1-9] [MQTT311-3.3.1-6]
    publisher, subscriber = await t.client("p"), await t.client("s")
    for name in ("a/1", "a/2", "b/1", "a/1/deep"):
        await t.retain(publisher, t.topic(name), name.encode(), qos=1)
    await subscriber.subscribe(t.topic("a/+"), 1)
    got = sorted([(await subscriber.receive()).topic for _ in range(2)])
    equal(got, [t.topic("a/1"), t.topic("a/2")], "retained topics for a/+")
    await t.silent(subscriber, publisher, "more retained messages than match")


@step("retained-outlives-session")
async def retained_outlives_session(t: Step) -> None:
    # [MQTT311-3.1.2-7] [MQTT-4.1.0-2]
    publisher = await t.client("p", clean=True)
    await t.retain(publisher, t.topic("r"), b"stays", qos=0)
    # Nothing acknowledges it; what is acknowledged behind it shows that it has been taken.
    await publisher.publish(t.topic("behind"), b"", 1)
    await publisher.disconnect()
    subscriber = await t.client("s")
    await subscriber.subscribe(t.topic("r"), 1)
    message = await subscriber.receive()
    equal((message.payload, message.qos, message.retain), (b"stays", 0, True), "retained message")


@step("retain-handling", V5)
async def retain_handling(t: Step) -> None:
    publisher = await t.client("p")
    topic = t.topic("r")
    await t.retain(publisher, topic, b"kept", qos=1)
    subscriber = await t.client("s")
    # [MQTT-3.3.1-10]: 1 sends for a new subscription only
    await subscriber.subscribe(topic, 1, retain_handling=1)
    equal((await subscriber.receive()).payload, b"kept", "retain handling 1, new subscription")
    await subscriber.subscribe(topic, 1, retain_handling=1)
    await t.silent(subscriber, publisher, "retain handling 1, existing subscription")
    # [MQTT-3.3.1-9] [MQTT-3.8.4-4]: 0 sends each time
    await subscriber.subscribe(topic, 1, retain_handling=0)
    equal((await subscriber.receive()).payload, b"kept", "retain handling 0, existing subscription")
    # [MQTT-3.3.1-11]: 2 never sends
    other = await t.client("o")
    await other.subscribe(topic, 1, retain_handling=2)
    await t.silent(other, publisher, "retain handling 2")


@step("retain-as-published", V5)
async def retain_as_published(t: Step) -> None:
    # [MQTT-3.3.1-12] [MQTT-3.3.1-13]
    publisher, plain, kept = await t.client("p"), await t.client("s"), await t.client("k")
    topic = t.topic("r")
    await plain.subscribe(topic, 1, retain_as_published=False)
    await kept.subscribe(topic, 1, retain_as_published=True)
    await t.retain(publisher, topic, b"1", qos=1)
    await publisher.publish(topic, b"2", 1, retain=False)
    equal([(await plain.receive()).retain for _ in range(2)], [False, False], "RETAIN without retain as published")
    equal([(await kept.receive()).retain for _ in range(2)], [True, False], "RETAIN with retain as published")
