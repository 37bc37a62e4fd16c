"""Steps of the AMQP scenario: one topic space with MQTT 5.0, as docs/mapping.md has it. MQTT's side is mosquitto."""

from __future__ import annotations

import asyncio
import base64
import json

from amqp_step import PLAIN, Step, equal, expect, step
from amqp_values import binary, data, message, payload, text


def user_properties(got: dict) -> dict:
    """The user properties of what mosquitto_sub printed."""
    found = got.get("properties", {})
    pairs = found.get("user-properties", found.get("user-property", []))
    if isinstance(pairs, dict):
        return pairs
    return {key: value for pair in pairs for key, value in pair.items()}


@step("from-mqtt", PLAIN)
async def from_mqtt(t: Step) -> None:
    receiver = await (await t.session()).receiver(t.topic("m", "+"), 10)
    await t.mosquitto().pub(
        "-t", t.topic("m", "x"), "-m", "hello", "-q", "1", "-D", "publish", "content-type", "text/x",
        "-D", "publish", "response-topic", t.topic("answers"), "-D", "publish", "correlation-data", "c-1",
        "-D", "publish", "user-property", "a", "1", "-D", "publish", "message-expiry-interval", "100",
        "-D", "publish", "user-property", "amqp-subject", "S")
    got = await receiver.receive()
    expect(got.settled is not True, "a message of QoS 1 came settled")
    await got.settle()
    said, properties = got.message, got.message["properties"]
    equal(payload(said), b"hello", "payload as a data section")
    equal(properties.get("to"), text(t.topic("m", "x")), "`to`, the topic")
    equal(properties.get("content_type"), ["symbol", "text/x"], "content-type")
    equal(properties.get("reply_to"), text(t.topic("answers")), "reply-to")
    equal(properties.get("correlation_id"), text("c-1"), "correlation-id")
    equal(properties.get("subject"), text("S"), "subject")
    equal([pair for pair in said["application_properties"] if pair[0] == text("a")], [[text("a"), text("1")]],
          "application property")
    header = said["header"]
    equal(header.get("durable", False), True, "durable of a message of QoS 1")
    expect(40_000 < int(header.get("ttl", "0")) <= 100_000, f"ttl {header.get('ttl')} of 100 s")


@step("from-mqtt-text", PLAIN)
async def from_mqtt_text(t: Step) -> None:
    receiver = await (await t.session()).receiver(t.topic("t"), 10)
    await t.mosquitto().pub("-t", t.topic("t"), "-m", "Grüße", "-q", "1", "-D", "publish",
                            "payload-format-indicator", "1")
    equal((await receiver.accept())["body"], {"value": text("Grüße")}, "text as one amqp-value")


@step("from-mqtt-qos", PLAIN)
async def from_mqtt_qos(t: Step) -> None:
    receiver = await (await t.session()).receiver(t.topic("q"), 10)
    for qos in (0, 1, 2):
        await t.mosquitto().pub("-t", t.topic("q"), "-m", str(qos), "-q", str(qos))
        got = await receiver.receive()
        equal(payload(got.message), str(qos).encode(), "payload")
        if got.settled is not None:
            equal(got.settled, qos == 0, f"settled of a message of QoS {qos}")
        if not got.settled:
            await got.settle()


@step("to-mqtt", PLAIN)
async def to_mqtt(t: Step) -> None:
    subscriber = await t.mosquitto().sub("-t", t.topic("m"), "-q", "1")
    sender = await (await t.session()).sender(t.topic("m"))
    await sender.deliver(message(
        b"hello", header={"durable": True, "priority": "7", "ttl": "100000"},
        properties={"message_id": text("m-1"), "user_id": binary(b"me"), "subject": text("S"),
                    "reply_to": text(t.topic("answers")), "correlation_id": text("c-1"),
                    "content_type": ["symbol", "text/x"], "content_encoding": ["symbol", "gzip"],
                    "creation_time": ["timestamp", "1311704463521"], "group_id": text("g"),
                    "group_sequence": ["uint", "5"], "reply_to_group_id": text("r")},
        application_properties=[[text("a"), text("1")], [text("n"), ["int", "-5"]], [text("b"), ["boolean", True]],
                                [text("x"), binary(b"\xff")]]))
    got = await subscriber.message()
    found, users = got["properties"], user_properties(got)
    equal((got["payload"], got["qos"]), ("hello", 1), "payload and QoS")
    for name, wanted in (("content-type", "text/x"), ("response-topic", t.topic("answers")),
                         ("correlation-data", "c-1")):
        equal(found.get(name), wanted, name)
    expect(40 <= found.get("message-expiry-interval", 0) <= 100, f"expiry {found.get('message-expiry-interval')}")
    wanted = {"a": "1", "n": "-5", "b": "true", "x": base64.b64encode(b"\xff").decode(), "amqp-subject": "S",
              "amqp-message-id": "m-1", "amqp-user-id": base64.b64encode(b"me").decode(),
              "amqp-content-encoding": "gzip", "amqp-creation-time": "1311704463521", "amqp-group-id": "g",
              "amqp-group-sequence": "5", "amqp-reply-to-group-id": "r", "amqp-priority": "7"}
    for name, value in wanted.items():
        equal(users.get(name), value, f"user property {name}")


@step("to-mqtt-bodies", PLAIN)
async def to_mqtt_bodies(t: Step) -> None:
    subscriber = await t.mosquitto().sub("-t", t.topic("b"), "-q", "1")
    sender = await (await t.session()).sender(t.topic("b"))
    await sender.deliver(message("Grüße"))
    got = await subscriber.message()
    equal((got["payload"], got["properties"].get("payload-format-indicator")), ("Grüße", 1), "text")
    await sender.deliver(message(["null"]))
    equal((await subscriber.message())["payloadlen"], 0, "length of null")
    await sender.deliver({"body": data(b"one", b"two")})
    got = await subscriber.message()
    equal(got["properties"].get("content-type"), "application/vnd.amqp", "content type of several data sections")
    await sender.deliver(message(["map", [[text("k"), ["uint", "1"]]]]))
    got = await subscriber.message()
    equal(json.loads(got["payload"]) if isinstance(got["payload"], str) else got["payload"], {"k": 1}, "map as JSON")
    equal(got["properties"].get("content-type"), "application/json", "that of a map")
    equal(user_properties(got).get("amqp-type"), "map I", "mark of a map")
    await sender.deliver(message(["double", "4035800000000000"]))
    got = await subscriber.message()
    equal((str(got["payload"]), got["properties"].get("content-type"), user_properties(got).get("amqp-type")),
          ("21.5", "text/plain", "double"), "a number as text")


@step("to-mqtt-qos", PLAIN)
async def to_mqtt_qos(t: Step) -> None:
    subscriber = await t.mosquitto().sub("-t", t.topic("q"), "-q", "2")
    session = await t.session()
    once = await session.sender(t.topic("q"))
    twice = await session.sender(t.topic("q"), snd="unsettled", rcv="second")
    await once.deliver(message(b"0"), settled=True)
    await once.deliver(message(b"1"))
    await twice.deliver(message(b"2"))
    got = await subscriber.messages(3)
    equal([(int(one["payload"]), one["qos"]) for one in got], [(0, 0), (1, 1), (2, 2)], "payload and QoS")


@step("retain", PLAIN)
async def retain(t: Step) -> None:
    mark = [["symbol", "x-opt-retain"], ["boolean", True]]
    session = await t.session()
    sender = await session.sender(t.topic("r"))
    await sender.deliver(message(b"kept", message_annotations=[mark]))
    subscriber = await t.mosquitto().sub("-t", t.topic("r"), "-q", "1")
    got = await subscriber.message()
    equal((got["payload"], got["retain"]), ("kept", 1), "retained message at MQTT")
    receiver = await session.receiver(t.topic("r"), 10)
    kept = await receiver.accept()
    equal(payload(kept), b"kept", "retained message at AMQP")
    expect(mark in kept.get("message_annotations", []), f"annotations {json.dumps(kept.get('message_annotations'))}")
    await sender.deliver(message(b"", message_annotations=[mark]))
    await (await session.receiver(t.topic("r"), 10)).quiet(0.5, "a retained message that was cleared")


@step("queue-with-mqtt", PLAIN)
async def queue_with_mqtt(t: Step) -> None:
    # docs/amqp.md: the queue NAME is the shared subscription $share/NAME/queue/NAME.
    name = t.name("both").replace("/", "-")
    session = await t.session()
    receiver = await session.receiver(f"queue/{name}", 1)
    await t.mosquitto().pub("-t", f"queue/{name}", "-m", "from MQTT", "-q", "1")
    equal(payload(await receiver.accept()), b"from MQTT", "payload from MQTT")
    await receiver.detach()
    await (await session.sender(f"queue/{name}")).deliver(message(b"from AMQP"))
    member = await t.mosquitto().sub("-t", f"$share/{name}/queue/{name}", "-q", "1")
    equal((await member.message())["payload"], "from AMQP", "payload from AMQP")


@step("request-from-mqtt", PLAIN)
async def request_from_mqtt(t: Step) -> None:
    session = await t.session()
    requests = await session.receiver(t.topic("do"), 10)
    asking = asyncio.create_task(t.mosquitto().run(
        "mosquitto_rr", "-t", t.topic("do"), "-e", t.topic("answer"), "-m", "what?", "-q", "1", "-N"))
    request = await requests.accept()
    relay = await session.sender(None)
    await relay.deliver(message(b"this", properties={"to": request["properties"]["reply_to"]}))
    equal(await asking, b"this", "the answer")
