"""The common scenario: what every foreign client does with the broker, one step after the other.

A step is written once, against `harness.Client`, and runs with every client library, over every transport and
for every protocol version that the library has. The normative statements that a step shows are cited in it:
[MQTT-...] of MQTT 5.0, [MQTT311-...] of MQTT 3.1.1.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import time

from harness import Cannot, Client, Driver, Failure, Listener, Message, Refused

V3, V5, ALL = (3, 4), (5,), (3, 4, 5)
STEPS: list[tuple[str, tuple[int, ...], object]] = []
MEBIBYTE = 1024 * 1024
# Time given to a message that must not come, when no later message can prove its absence.
QUIET_S = 0.6


def step(name: str, levels=ALL):
    def add(function):
        STEPS.append((name, levels, function))
        return function

    return add


def expect(condition, why: str) -> None:
    if not condition:
        raise Failure(why)


def equal(got, wanted, what: str) -> None:
    if got != wanted:
        raise Failure(f"{what}: got {got!r}, expected {wanted!r}")


class Step:
    """One run of one step: names of its own, and the connections that it opened."""

    counter = itertools.count(1)

    def __init__(self, driver: Driver, listener: Listener, level: int, run: str, name: str):
        self.driver, self.listener, self.level = driver, listener, level
        self.number = next(self.counter)
        self.run, self.name = run, name
        self.clients: list[Client] = []
        self.retained: list[str] = []
        self.fences = itertools.count(1)

    def topic(self, *levels: str) -> str:
        return "/".join(["iop", f"{self.run}-{self.number}", *levels])

    def id(self, name: str) -> str:
        """A client identifier of at most 23 letters and digits: [MQTT-3.1.3-3] [MQTT311-3.1.3-5]."""
        return f"i{self.run}n{self.number}{name}"[:23]

    async def client(self, name: str, *, persistent: bool = False, expiry: int = 60, id: str | None = None,
                     properties: dict | None = None, **options) -> Client:
        """Connects; `persistent` asks for a session that outlives the connection, by the version's means."""
        one = Client(self.driver, name)
        self.clients.append(one)
        properties = dict(properties or {})
        if persistent:
            options.setdefault("clean", False)
            if self.level >= 5:
                properties.setdefault("session_expiry", expiry)
        await one.connect(self.listener, self.level, id=self.id(name) if id is None else id,
                          properties=properties, **options)
        return one

    def resumed(self, client: Client) -> None:
        """Expects that the broker had a session; the CONNACK of MQTT 3.1 can't say so."""
        expect(client.session_present or self.level == 3, f"{client.name}: session not present")

    def properties_equal(self, got: dict, wanted: dict, where: str) -> None:
        for name, value in wanted.items():
            seen = got.get(name)
            # A library that keeps user properties in a map by key shows their order within each key only.
            if name == "user_properties" and seen and self.driver.hello.get("groups_user_properties"):
                keys = list(dict.fromkeys(key for key, _ in value))
                value = sorted(value, key=lambda pair: keys.index(pair[0]))
            equal(seen, value, f"{name} of {where}")

    async def retain(self, publisher: Client, topic: str, payload, **options) -> None:
        self.retained.append(topic)
        await publisher.publish(topic, payload, retain=True, **options)

    async def nothing_more(self, subscriber: Client, publisher: Client) -> list[Message]:
        """Returns what `subscriber` still gets before a last message of `publisher`: nothing, hopefully.

        The last message has quality of service 2, because that is the slowest to be handed over."""
        fence = self.topic("fence", str(next(self.fences)))
        await subscriber.subscribe(fence, 2)
        await publisher.publish(fence, b"fence", 2)
        found = []
        while (message := await subscriber.receive()).topic != fence:
            found.append(message)
        return found

    async def silent(self, subscriber: Client, publisher: Client, why: str) -> None:
        extra = await self.nothing_more(subscriber, publisher)
        expect(not extra, f"{why}: got {', '.join(map(str, extra))}")

    async def clean_up(self) -> None:
        if self.retained:
            try:
                cleaner = await self.client("cleaner")
                for topic in self.retained:
                    await cleaner.publish(topic, b"", 1, retain=True)
            except (Failure, Refused, Cannot):
                pass
        await asyncio.gather(*(one.drop() for one in self.clients))


# --------------------------------------------------------------------------- connecting


@step("connect")
async def connect(t: Step) -> None:
    # [MQTT-3.1.4-5] [MQTT-3.2.2-2] [MQTT311-3.1.4-4] [MQTT311-3.2.2-1]
    one = await t.client("a", clean=True)
    expect(not one.session_present, "session present after a clean start")


@step("keep-alive")
async def keep_alive(t: Step) -> None:
    # [MQTT-3.12.4-1] [MQTT-3.1.2-22] [MQTT311-3.12.4-1]: an idle client that pings stays
    one = await t.client("a", keep_alive=1)
    await asyncio.sleep(3.2)
    expect(not one.end.done(), "an idle client that pings every second was disconnected")
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
    message = await watcher.receive(6)
    waited = time.monotonic() - start
    equal(message.payload, b"late", "will")
    expect(1.5 <= waited, f"a will with a delay of 2 s came after {waited:.2f} s")
    # The session ends before the delay has passed: the will goes out with it.
    will = {"topic": t.topic("will", "end"), "payload": b"end", "qos": 1, "properties": {"will_delay": 30}}
    dying = await t.client("e", persistent=True, expiry=1, will=will)
    await dying.abort()
    equal((await watcher.receive(5)).payload, b"end", "will at the end of the session")


@step("will-delay-cancelled", V5)
async def will_delay_cancelled(t: Step) -> None:
    # [MQTT-3.1.3-9]
    watcher, publisher = await t.client("w"), await t.client("p")
    await watcher.subscribe(t.topic("will"), 1)
    will = {"topic": t.topic("will"), "payload": b"no", "qos": 1, "properties": {"will_delay": 1}}
    dying = await t.client("d", persistent=True, will=will)
    await dying.abort()
    await t.client("d", persistent=True)
    await asyncio.sleep(2)
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
    await asyncio.sleep(0.3)
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


# --------------------------------------------------------------------------- subscriptions


@step("subscribe-many")
async def subscribe_many(t: Step) -> None:
    # [MQTT-3.8.4-5] [MQTT-3.8.4-6] [MQTT-3.9.3-1] [MQTT311-3.8.4-4] [MQTT311-3.8.4-5]
    one = await t.client("a")
    codes = await one.subscribe([(t.topic("a"), 0), (t.topic("b"), 1), (t.topic("c"), 2)])
    equal(codes, [0, 1, 2], "reason codes")
    for name, qos in (("a", 0), ("b", 1), ("c", 2)):
        await one.publish(t.topic(name), b"x", 2)
        message = await one.receive()
        equal((message.topic, message.qos), (t.topic(name), qos), "message")


@step("subscribe-replaces")
async def subscribe_replaces(t: Step) -> None:
    # [MQTT-3.8.4-3] [MQTT311-3.8.4-3]
    one = await t.client("a")
    await one.subscribe(t.topic("x"), 2)
    await one.subscribe(t.topic("x"), 0)
    await one.publish(t.topic("x"), b"1", 1)
    equal((await one.receive()).qos, 0, "quality of service of the replaced subscription")
    await t.silent(one, one, "the replaced subscription still delivers")


@step("unsubscribe")
async def unsubscribe(t: Step) -> None:
    # [MQTT-3.10.4-1] [MQTT-3.10.4-5] [MQTT-3.10.4-6] [MQTT-3.11.3-1] [MQTT311-3.10.4-1] [MQTT311-3.10.4-5]
    one = await t.client("a")
    await one.subscribe([(t.topic("x"), 1), (t.topic("y"), 1)])
    codes = await one.unsubscribe(t.topic("x"), t.topic("never"))
    if t.level >= 5 and codes is not None:
        equal(codes, [0x00, 0x11], "reason codes")
    await one.publish(t.topic("x"), b"1", 1)
    await one.publish(t.topic("y"), b"2", 1)
    equal((await one.receive()).topic, t.topic("y"), "the subscription that is left")
    await t.silent(one, one, "the subscription still delivers")


@step("wildcards")
async def wildcards(t: Step) -> None:
    # [MQTT-4.7.1-1] [MQTT-4.7.1-2] [MQTT-3.3.2-3] [MQTT311-4.7.1-2] [MQTT311-4.7.1-3] [MQTT311-3.3.2-3]
    topics = ["a", "a/", "a/b", "a/b/c", "/a", "A/b", "a//c", "x/b", "a/b/c/d"]
    cases = {
        "#": topics,
        "+": ["a"],
        "a/#": ["a", "a/", "a/b", "a/b/c", "a//c", "a/b/c/d"],
        "a/+": ["a/", "a/b"],
        "+/b": ["a/b", "A/b", "x/b"],
        "a/+/c": ["a/b/c", "a//c"],
        "+/+": ["a/", "a/b", "/a", "A/b", "x/b"],
        "+/b/#": ["a/b", "A/b", "x/b", "a/b/c", "a/b/c/d"],
        "a/b": ["a/b"],
    }
    publisher, subscriber = await t.client("p"), await t.client("s")
    for number, (pattern, wanted) in enumerate(cases.items()):
        root = t.topic(str(number))
        equal(await subscriber.subscribe(f"{root}/{pattern}", 1), [1], f"reason code for {pattern}")
        for topic in topics:
            await publisher.publish(f"{root}/{topic}", b"", 1)
        got = [m.topic.removeprefix(root + "/") for m in await t.nothing_more(subscriber, publisher)]
        equal(sorted(got), sorted(wanted), f"topics that match {pattern}")


@step("dollar-topics")
async def dollar_topics(t: Step) -> None:
    # [MQTT-4.7.2-1] [MQTT311-4.7.2-1]
    all_of_it, plus, named, publisher = [await t.client(name) for name in ("h", "u", "n", "p")]
    topic = "$iop/" + t.topic("x")
    await all_of_it.subscribe("#", 0)
    await plus.subscribe("+/" + t.topic("x"), 1)
    await named.subscribe("$iop/" + t.topic("#"), 1)
    try:
        await publisher.publish(topic, b"1", 1)
        await publisher.publish("other/" + t.topic("x"), b"2", 1)
    except Refused as refusal:
        raise Cannot(f"the broker lets nobody publish to {topic}: {refusal}") from None
    equal((await plus.receive()).topic, "other/" + t.topic("x"), "first message for a filter that begins with +")
    fence = t.topic("fence")
    await publisher.publish(fence, b"", 1)
    while (message := await all_of_it.receive()).topic != fence:
        expect(not message.topic.startswith("$"), f"the filter # got {message}")
    await all_of_it.disconnect()
    got = [m.topic for m in await t.nothing_more(named, publisher)]
    expect(got in ([topic], []), f"a filter that begins with $iop/ got {got}")


@step("overlapping-subscriptions")
async def overlapping(t: Step) -> None:
    # [MQTT-3.3.4-2] [MQTT311-3.3.5-1]: at least one copy has the highest granted quality of service
    one, publisher = await t.client("a"), await t.client("p")
    await one.subscribe([(t.topic("o/#"), 1), (t.topic("o/+"), 2), (t.topic("o/x"), 0)])
    await publisher.publish(t.topic("o/x"), b"1", 2)
    copies = await t.nothing_more(one, publisher)
    expect(1 <= len(copies) <= 3, f"{len(copies)} copies for three overlapping subscriptions")
    equal(max(m.qos for m in copies), 2, "highest quality of service of the copies")


@step("subscription-identifiers", V5)
async def subscription_identifiers(t: Step) -> None:
    # [MQTT-3.3.4-3] [MQTT-3.3.4-4] [MQTT-3.3.4-5]
    one, publisher = await t.client("a"), await t.client("p")
    if one.connack.get("subscription_identifiers_available", 1) == 0:
        raise Cannot("the broker offers no subscription identifiers")
    await one.subscribe(t.topic("o/#"), 1, identifier=1)
    await one.subscribe(t.topic("o/+"), 1, identifier=268_435_455)
    await one.subscribe(t.topic("o/x"), 1)
    await publisher.publish(t.topic("o/x"), b"1", 1)
    copies = await t.nothing_more(one, publisher)
    got = [sorted(m.properties.get("subscription_identifiers", [])) for m in copies]
    together, apart = [[1, 268_435_455]], [[], [1], [268_435_455]]
    expect(got == together or sorted(got) == apart, f"identifiers {got}, expected {together} or {apart}")
    # Subscribing again replaces the identifier, and without one there is none: [MQTT-3.8.4-3].
    await one.unsubscribe(t.topic("o/+"), t.topic("o/x"))
    await one.subscribe(t.topic("o/#"), 1, identifier=7)
    await publisher.publish(t.topic("o/x"), b"2", 1)
    copies = await t.nothing_more(one, publisher)
    equal([m.properties.get("subscription_identifiers") for m in copies], [[7]], "identifiers after the change")


@step("subscription-identifiers-retained", V5)
async def subscription_identifiers_retained(t: Step) -> None:
    # [MQTT-3.3.4-3]
    one, publisher = await t.client("a"), await t.client("p")
    await t.retain(publisher, t.topic("r"), b"kept", qos=1)
    await one.subscribe(t.topic("r"), 1, identifier=3)
    equal((await one.receive()).properties.get("subscription_identifiers"), [3], "identifiers of a retained message")


@step("no-local", V5)
async def no_local(t: Step) -> None:
    one, other = await t.client("a"), await t.client("b")
    await one.subscribe(t.topic("x"), 1, no_local=True)
    await one.publish(t.topic("x"), b"own", 1)
    await other.publish(t.topic("x"), b"foreign", 1)
    equal((await one.receive()).payload, b"foreign", "message with no local")
    await t.silent(one, other, "no local")


@step("shared-subscription", V5)
async def shared_subscription(t: Step) -> None:
    # [MQTT-4.8.2-1] [MQTT-4.8.2-3]
    publisher, plain = await t.client("p"), await t.client("all")
    members = [await t.client(f"m{number}") for number in range(3)]
    if publisher.connack.get("shared_subscription_available", 1) == 0:
        raise Cannot("the broker offers no shared subscriptions")
    count, group = 30, f"$share/g{t.number}/" + t.topic("s/+")
    for member in members:
        equal(await member.subscribe(group, 1), [1], "reason code")
    await plain.subscribe(t.topic("s/+"), 1)
    for number in range(count):
        await publisher.publish(t.topic("s", str(number % 4)), str(number), 2)
    every = [await plain.receive() for _ in range(count)]
    equal(len({m.payload for m in every}), count, "messages at the subscriber that shares nothing")
    got = [await t.nothing_more(member, publisher) for member in members]
    shared = [message for part in got for message in part]
    equal(sorted(int(m.payload) for m in shared), list(range(count)), "messages of all members together")
    expect(all(m.qos == 1 for m in shared), "a shared delivery has another quality of service than granted")
    expect(all(part for part in got), f"one member got nothing: {[len(part) for part in got]}")
    # Who leaves no longer takes a share.
    await members[0].unsubscribe(group)
    await members[1].disconnect()
    for number in range(10):
        await publisher.publish(t.topic("s/0"), str(number), 1)
    rest = [int(m.payload) for m in await t.nothing_more(members[2], publisher)]
    equal(rest, list(range(10)), "messages at the last member")
    await t.silent(members[0], publisher, "a member that unsubscribed got a share")


@step("shared-subscription-no-retained", V5)
async def shared_no_retained(t: Step) -> None:
    # Section 4.8.2: retained messages are not sent to a shared subscription when it is made.
    publisher, member = await t.client("p"), await t.client("m")
    await t.retain(publisher, t.topic("r"), b"kept", qos=1)
    await member.subscribe(f"$share/g{t.number}/" + t.topic("r"), 1)
    await t.silent(member, publisher, "a shared subscription got a retained message")


@step("shared-subscription-no-local", V5)
async def shared_no_local(t: Step) -> None:
    # [MQTT-3.8.3-4]
    member = await t.client("m")
    try:
        codes = await member.subscribe(f"$share/g{t.number}/" + t.topic("r"), 1, no_local=True)
    except (Refused, Failure):
        codes = None
    if codes is not None and not member.end.done():
        raise Failure(f"the broker answered {codes} to no local on a shared subscription")
    reason, detail = await member.closed()
    expect(reason in (0x82, None), f"reason code {reason} ({detail}), expected 0x82")


# --------------------------------------------------------------------------- properties of 5.0


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
    expect(left is not None and 90 <= left <= 98, f"message expiry interval {left} after 2.2 of 100 s")
    equal(got[1].properties.get("message_expiry"), None, "expiry interval of a message without one")
    await back.subscribe(t.topic("kept/+"), 1)
    message = await back.receive()
    equal(message.topic, t.topic("kept/long"), "retained message after 2.2 s")
    left = message.properties.get("message_expiry")
    expect(left is not None and 90 <= left <= 98, f"expiry interval {left} of a retained message after 2.2 of 100 s")
    await t.silent(back, publisher, "an expired message was sent")


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
