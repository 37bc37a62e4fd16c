"""Steps of the HTTP scenario: one topic space with MQTT 5.0 and AMQP 1.0, as docs/mapping.md has it.

MQTT's side is mosquitto, AMQP's is Qpid Proton.
"""

from __future__ import annotations

import asyncio
import base64

from amqp_steps_mapping import user_properties
from amqp_values import binary, data, message, payload, text
from http_client import BINARY, NDJSON, topic_path
from http_step import QUIET_S, Step, equal, expect, step

FORMS = (NDJSON, BINARY)


@step("mqtt-to-http")
async def mqtt_to_http(t: Step) -> None:
    one = await t.connect()
    subscribers = [await (await t.connect()).subscribe(t.topic("m", "+"), "qos=2", form) for form in FORMS]
    await t.mosquitto().pub(
        "-t", t.topic("m", "x"), "-m", "hello", "-q", "1", "-D", "publish", "content-type", "text/x",
        "-D", "publish", "response-topic", t.topic("answers"), "-D", "publish", "correlation-data", "c-1",
        "-D", "publish", "user-property", "a", "1", "-D", "publish", "user-property", "a", "2",
        "-D", "publish", "message-expiry-interval", "100", "-D", "publish", "payload-format-indicator", "1")
    for subscriber, form in zip(subscribers, FORMS):
        got = await subscriber.message()
        left = got.properties.pop("expiry_s", 0)
        expect(40 <= left <= 100, f"{form}: {left} s are left of 100")
        equal((got.topic, got.payload, got.qos, got.retain), (t.topic("m", "x"), b"hello", 1, False), form)
        equal(got.properties, {"content_type": "text/x", "response_topic": t.topic("answers"),
                               "correlation_data": b"c-1", "user_properties": [("a", "1"), ("a", "2")],
                               "payload_format": "utf-8"}, f"{form}: properties")
    for qos in (0, 2):
        await t.mosquitto().pub("-t", t.topic("m", "q"), "-m", str(qos), "-q", str(qos))
        for subscriber in subscribers:
            got = await subscriber.message()
            equal((got.payload, got.qos), (str(qos).encode(), qos), "payload and QoS")
    await t.mosquitto().pub("-t", t.topic("r"), "-m", "kept", "-q", "1", "-r")
    equal((await one.get(topic_path(t.topic("r")) + "?last")).expect(200).content, b"kept", "MQTT's retained message")


@step("http-to-mqtt")
async def http_to_mqtt(t: Step) -> None:
    one = await t.connect()
    subscriber = await t.mosquitto().sub("-t", t.topic("m"), "-q", "2")
    await one.publish(t.topic("m"), "Grüße", qos=2, content_type="text/x", expiry_s=100,
                      response_topic=t.topic("answers"), correlation_data=b"c-1", payload_format="utf-8",
                      user_properties=[("a", "1"), ("ü", "2")])
    got = await subscriber.message()
    found = got["properties"]
    equal((got["topic"], got["payload"], got["qos"], got["retain"]), (t.topic("m"), "Grüße", 2, 0), "message")
    for name, wanted in (("content-type", "text/x"), ("response-topic", t.topic("answers")),
                         ("correlation-data", "c-1"), ("payload-format-indicator", 1)):
        equal(found.get(name), wanted, name)
    expect(40 <= found.get("message-expiry-interval", 0) <= 100, f"expiry {found.get('message-expiry-interval')}")
    users = user_properties(got)
    equal((users.get("a"), users.get("ü")), ("1", "2"), "user properties")
    for qos in (0, 1):
        await one.publish(t.topic("m"), str(qos), qos=qos)
        got = await subscriber.message()
        equal((got["payload"], got["qos"]), (str(qos), qos), "payload and QoS")
    await one.publish(t.topic("r"), "kept", retain=True)
    late = await t.mosquitto().sub("-t", t.topic("r"), "-q", "1")
    got = await late.message()
    equal((got["payload"], got["retain"]), ("kept", 1), "retained message of HTTP at MQTT")
    await one.publish(t.topic("r"), "", retain=True)


@step("amqp-to-http")
async def amqp_to_http(t: Step) -> None:
    session = await t.amqp()
    subscribers = [await (await t.connect()).subscribe(t.topic("m"), "qos=2", form) for form in FORMS]
    sender = await session.sender(t.topic("m"))
    await sender.deliver(message(
        b"hello", header={"durable": True, "priority": "7", "ttl": "100000"},
        properties={"message_id": text("m-1"), "user_id": binary(b"me"), "subject": text("S"),
                    "reply_to": text(t.topic("answers")), "correlation_id": text("c-1"),
                    "content_type": ["symbol", "text/x"], "content_encoding": ["symbol", "gzip"]},
        application_properties=[[text("a"), text("1")], [text("n"), ["int", "-5"]]]))
    for subscriber, form in zip(subscribers, FORMS):
        got = await subscriber.message()
        equal((got.topic, got.payload, got.qos), (t.topic("m"), b"hello", 1), form)
        left = got.properties.get("expiry_s", 0)
        expect(40 <= left <= 100, f"{form}: {left} s are left of 100")
        equal((got.properties.get("content_type"), got.properties.get("response_topic"),
               got.properties.get("correlation_data")), ("text/x", t.topic("answers"), b"c-1"), f"{form}: properties")
        users = dict(got.properties["user_properties"])
        for name, value in {"a": "1", "n": "-5", "amqp-subject": "S", "amqp-message-id": "m-1",
                            "amqp-user-id": base64.b64encode(b"me").decode(), "amqp-content-encoding": "gzip",
                            "amqp-priority": "7"}.items():
            equal(users.get(name), value, f"{form}: user property {name}")
    await sender.deliver(message("Grüße"))
    for subscriber in subscribers:
        got = await subscriber.message()
        equal((got.payload, got.properties.get("payload_format")), ("Grüße".encode(), "utf-8"), "text")
    await sender.deliver({"body": data(b"one", b"two")})
    for subscriber in subscribers:
        equal((await subscriber.message()).properties.get("content_type"), "application/vnd.amqp",
              "content type of several data sections")
    await sender.deliver(message(b"settled"), settled=True)
    for subscriber in subscribers:
        got = await subscriber.message()
        equal((got.payload, got.qos, got.id), (b"settled", 0, None), "QoS of what was sent settled")
    await sender.deliver(message(b"kept", message_annotations=[[["symbol", "x-opt-retain"], ["boolean", True]]]))
    one = await t.connect()
    equal((await one.get(topic_path(t.topic("m")) + "?last")).expect(200).content, b"kept", "AMQP's retained message")


@step("http-to-amqp")
async def http_to_amqp(t: Step) -> None:
    receiver = await (await t.amqp()).receiver(t.topic("m", "+"), 20)
    one = await t.connect()
    await one.publish(t.topic("m", "x"), "hello", content_type="text/x", expiry_s=100,
                      response_topic=t.topic("answers"), correlation_data=b"c-1",
                      user_properties=[("a", "1"), ("amqp-subject", "S")])
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
    expect([text("a"), text("1")] in said["application_properties"], f"{said['application_properties']}")
    header = said["header"]
    equal(header.get("durable", False), True, "durable of a message of QoS 1")
    expect(40_000 < int(header.get("ttl", "0")) <= 100_000, f"ttl {header.get('ttl')} of 100 s")
    await one.publish(t.topic("m", "t"), "Grüße", payload_format="utf-8")
    equal((await receiver.accept())["body"], {"value": text("Grüße")}, "text as one amqp-value")
    await one.publish(t.topic("m", "z"), "0", qos=0)
    got = await receiver.receive()
    expect(got.settled is not False, "a message of QoS 0 came unsettled")
    await one.publish(t.topic("r"), "kept", retain=True)
    kept = await (await (await t.amqp()).receiver(t.topic("r"), 5)).accept()
    equal(payload(kept), b"kept", "retained message of HTTP at AMQP")
    expect([["symbol", "x-opt-retain"], ["boolean", True]] in kept.get("message_annotations", []),
           f"annotations {kept.get('message_annotations')}")
    await one.publish(t.topic("r"), "", retain=True)


@step("request-and-answer")
async def request_and_answer(t: Step) -> None:
    # A request from HTTP that MQTT answers: correlation data and response topic are enough.
    one = await t.connect()
    answers = await one.subscribe(t.topic("answers"))
    responder = await t.mosquitto().sub("-t", t.topic("requests"), "-q", "1")
    await one.publish(t.topic("requests"), "2+2", response_topic=t.topic("answers"), correlation_data=b"sum")
    asked = (await responder.message())["properties"]
    await t.mosquitto().pub("-t", asked["response-topic"], "-m", "4", "-q", "1", "-D", "publish", "correlation-data",
                            asked["correlation-data"])
    got = await answers.message()
    equal((got.payload, got.properties.get("correlation_data")), (b"4", b"sum"), "answer")


@step("shared-between-protocols")
async def shared(t: Step) -> None:
    one = await t.connect()
    target = f"$share/{t.name('g')}/{t.topic('s')}"
    mine = await one.subscribe(target)
    theirs = await t.mosquitto().sub("-t", target, "-q", "1")
    for number in range(10):
        await one.publish(t.topic("s"), str(number))

    async def all_of(next_one) -> list[str]:
        found = []
        while True:
            try:
                found.append(await next_one(QUIET_S))
            except Exception:
                return found

    async def from_http(timeout: float) -> str:
        return (await mine.message(timeout)).payload.decode()

    async def from_mqtt(timeout: float) -> str:
        return (await theirs.message(timeout))["payload"]

    got = await asyncio.gather(all_of(from_http), all_of(from_mqtt))
    equal(sorted(int(each) for part in got for each in part), list(range(10)), "each message once")
    expect(all(got), f"only one of two members got something: {got}")
