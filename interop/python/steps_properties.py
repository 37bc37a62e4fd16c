"""Steps about what the properties of MQTT 5.0 promise.

The normative statements that a step shows are cited in it: [MQTT-...] of MQTT 5.0, [MQTT311-...] of MQTT 3.1.1.
"""

from __future__ import annotations

import asyncio

from harness import Cannot
from step import QUIET_S, V5, Step, equal, expect, step


@step("request-response", V5)
async def request_response(t: Step) -> None:
    # [MQTT-3.3.2-4] [MQTT-3.3.2-15] [MQTT-3.3.2-16] [MQTT-3.3.2-17] [MQTT-3.3.2-18] [MQTT-3.3.2-20]
    asker, answerer = await t.client("a"), await t.client("b")
    await answerer.subscribe(t.topic("do"), 1)
    await asker.subscribe(t.topic("answer"), 1)
    pairs = [["k", "1"], ["K", "2"], ["k", "3"], ["", ""], ["ключ", "🗝"], ["k", "1"]]
    sent = {"response_topic": t.topic("answer"), "correlation_data": bytes(range(256)), "content_type": "a/b",
            "payload_format": 1, "user_properties": pairs}
    await asker.publish(t.topic("do"), "što?", 1, **sent)
    request = await answerer.receive()
    t.properties_equal(request.properties, sent, "the request")
    await answerer.publish(request.properties["response_topic"], b"this", 2,
                           correlation_data=request.properties["correlation_data"])
    answer = await asker.receive()
    equal(answer.properties.get("correlation_data"), bytes(range(256)), "correlation data of the answer")
    equal(answer.properties.get("user_properties"), None, "user properties of an answer without any")


@step("message-expiry", V5)
async def message_expiry(t: Step) -> None:
    # [MQTT-3.3.2-5] [MQTT-3.3.2-6]
    publisher = await t.client("p")
    away = await t.client("s", persistent=True)
    await away.subscribe(t.topic("q"), 1)
    await away.disconnect()
    await publisher.publish(t.topic("q"), b"short", 1, message_expiry=1)
    await publisher.publish(t.topic("q"), b"long", 1, message_expiry=100)
    await publisher.publish(t.topic("q"), b"forever", 1)
    await t.retain(publisher, t.topic("kept/short"), b"x", qos=1, message_expiry=1)
    await t.retain(publisher, t.topic("kept/long"), b"x", qos=1, message_expiry=100)
    await asyncio.sleep(2.2)
    back = await t.client("s", persistent=True)
    got = [await back.receive() for _ in range(2)]
    equal([m.payload for m in got], [b"long", b"forever"], "queued messages after 2.2 s")
    left = got[0].properties.get("message_expiry")
    expect(left is not None and 40 <= left <= 98, f"message expiry interval {left} after 2.2 of 100 s")
    equal(got[1].properties.get("message_expiry"), None, "expiry interval of a message without one")
    await back.subscribe(t.topic("kept/+"), 1)
    message = await back.receive()
    equal(message.topic, t.topic("kept/long"), "retained message after 2.2 s")
    left = message.properties.get("message_expiry")
    expect(left is not None and 40 <= left <= 98, f"expiry interval {left} of a retained message after 2.2 of 100 s")
    await t.silent(back, publisher, "an expired message was sent")
    # What is sent on at once has at most what it came with.
    for _ in range(10):
        await publisher.publish(t.topic("q"), b"live", 1, message_expiry=100)
        left = (await back.receive()).properties.get("message_expiry")
        expect(left is not None and 40 <= left <= 100, f"message expiry interval {left} of 100 s at once")


@step("topic-alias-to-server", V5)
async def topic_alias_to_server(t: Step) -> None:
    # [MQTT-3.3.2-12] [MQTT-3.3.2-10]
    publisher, subscriber = await t.client("p"), await t.client("s")
    offered = publisher.connack.get("topic_alias_maximum", 0)
    if not offered:
        raise Cannot("the broker accepts no topic aliases")
    await subscriber.subscribe(t.topic("#"), 1)
    plan = [("a", 1, True), ("a", 1, False), ("b", offered, True), ("a", 1, False), ("b", offered, False),
            ("c", 1, True), ("c", 1, False)]
    for number, (name, alias, spelled) in enumerate(plan):
        topic = t.topic(name) if spelled else ""
        await publisher.publish(topic, str(number), 1 if number % 2 else 0, topic_alias=alias)
        message = await subscriber.receive()
        equal((message.topic, message.payload), (t.topic(name), str(number).encode()), "message by alias")


@step("topic-alias-to-client", V5)
async def topic_alias_to_client(t: Step) -> None:
    # [MQTT-3.1.2-26] [MQTT-3.1.2-27] [MQTT-3.3.2-11]
    publisher = await t.client("p")
    subscriber = await t.client("s", properties={"topic_alias_maximum": 2})
    await subscriber.subscribe(t.topic("#"), 1)
    for number in range(30):
        name = "abcd"[number % 4] if number < 20 else "d"
        await publisher.publish(t.topic(name), str(number), number % 2)
    for number in range(30):
        name = "abcd"[number % 4] if number < 20 else "d"
        message = await subscriber.receive()
        equal((message.topic, message.payload), (t.topic(name), str(number).encode()), "message")
        alias = message.properties.get("topic_alias")
        expect(alias is None or 1 <= alias <= 2, f"topic alias {alias} above the maximum of 2")


@step("maximum-packet-size", V5)
async def maximum_packet_size(t: Step) -> None:
    # [MQTT-3.1.2-24] [MQTT-3.1.2-25]
    publisher = await t.client("p")
    subscriber = await t.client("s", properties={"maximum_packet_size": 500})
    await subscriber.subscribe(t.topic("x"), 2)
    for qos in range(3):
        await publisher.publish(t.topic("x"), b"-" * 1000, qos)
        await publisher.publish(t.topic("x"), f"{qos}", qos)
        message = await subscriber.receive()
        equal(message.payload, f"{qos}".encode(), f"message after one that is too large, quality of service {qos}")
    expect(not subscriber.end.done(), "the connection was closed")


@step("receive-maximum", V5)
async def receive_maximum(t: Step) -> None:
    # [MQTT-3.3.4-7] [MQTT-4.9.0-1] [MQTT-4.9.0-2] [MQTT-4.9.0-3]
    publisher = await t.client("p")
    slow = await t.client("s", properties={"receive_maximum": 3}, manual_ack=True)
    await slow.subscribe(t.topic("x"), 1)
    await publisher.burst(t.topic("x"), 1, 10)
    for number in range(3):
        equal((await slow.receive()).payload, str(number).encode(), "message")
    await asyncio.sleep(QUIET_S)
    equal(slow.inbox.qsize(), 0, "messages beyond a receive maximum of 3")
    for number in range(3, 10):
        await slow.ack(1)
        equal((await slow.receive()).payload, str(number).encode(), "message after an acknowledgement")
        expect(slow.inbox.empty(), "one acknowledgement let two messages through")
    await slow.ack(3)
