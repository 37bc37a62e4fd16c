"""Steps of the HTTP scenario: messages, their fields, the forms in which they come, retained ones, topics."""

from __future__ import annotations

import asyncio

from http_client import BINARY, FORMS, NDJSON, Got, Response, Subscription, link_next, topic_path
from http_step import H1, MANY, ONCE, QUIET_S, VERSIONS, Step, equal, expect, step

EVERY = {"qos": 2, "content_type": "text/x; a=b", "expiry_s": 100, "response_topic": "answers/Zürich 7",
         "correlation_data": b"\0\xffc-1", "user_properties": [("a", "1"), ("Größe", "5 %, =;"), ("a", "2"), ("", "")],
         "payload_format": "utf-8"}


def complete(got: Got, form: str) -> None:
    """What was sent with EVERY."""
    expected = {name: value for name, value in EVERY.items() if name not in ("qos", "expiry_s")}
    left = got.properties.pop("expiry_s", None)
    expect(left is not None and 40 <= left <= 100, f"{form}: {left} s are left of 100")
    equal(got.properties, expected, f"{form}: properties")
    equal((got.payload, got.qos), ("Grüße".encode(), 2), f"{form}: payload and QoS")


@step("publish-subscribe")
async def publish_subscribe(t: Step) -> None:
    one = await t.connect()
    subscriber = await one.subscribe(t.topic("a"))
    equal(subscriber.response.version.partition(".")[0], VERSIONS[t.transport].partition(".")[0], "version of HTTP")
    answer = await one.publish(t.topic("a"), "hello")
    equal(answer.content, b"", "content of 204")
    got = await subscriber.message()
    equal((got.topic, got.payload, got.qos, got.retain, got.redelivered, got.properties),
          (t.topic("a"), b"hello", 1, False, False, {}), "message")
    expect(got.id is not None, "a message of QoS 1 without id")


@step("every-field")
async def every_field(t: Step) -> None:
    one = await t.connect()
    for form in FORMS:
        subscriber = await one.subscribe(t.topic("a"), "qos=2", form)
        await one.publish(t.topic("a"), "Grüße", **EVERY)
        complete(await subscriber.message(), form)
        await subscriber.cut()


@step("user-property-fields")
async def user_property_fields(t: Step) -> None:
    if t.transport == "urllib":
        pairs = [("Sterna-User-Property", "a=1, b=2=3,c=4")]
    else:
        pairs = [("Sterna-User-Property", "a=1"), ("Sterna-User-Property", "b=2=3,c=4")]
    one = await t.connect()
    subscriber = await one.subscribe(t.topic("a"))
    await one.publish(t.topic("a"), "x", pairs)
    # The first `=` separates; a value need not encode another one.
    equal((await subscriber.message()).properties.get("user_properties"), [("a", "1"), ("b", "2=3"), ("c", "4")],
          "user properties in several fields")


@step("retain-spellings", ONCE)
async def retain_spellings(t: Step) -> None:
    one = await t.connect()
    for value, kept in (("?1", True), ("1", True), ("true", True), ("?0", False)):
        topic = t.topic(value.strip("?"), str(kept))
        await one.publish(topic, "x", [("Sterna-Retain", value)])
        await one.request("HEAD", topic_path(topic))
        equal((await one.get(topic_path(topic) + "?last")).status, 200 if kept else 404, f"Sterna-Retain: {value}")


@step("qos")
async def qos(t: Step) -> None:
    one = await t.connect()
    subscribers = [await one.subscribe(t.topic("q"), query) for query in ("qos=0", "", "qos=2")]
    for level in (0, 1, 2):
        await one.publish(t.topic("q"), str(level), qos=level)
    for highest, subscriber in enumerate(subscribers):
        got = await subscriber.messages(3)
        equal([(int(each.payload), each.qos) for each in got], [(level, min(level, highest)) for level in (0, 1, 2)],
              f"payload and QoS of what was asked for with QoS {highest}")
        for each in got:
            equal(each.id is None, each.qos == 0, f"no id of a message of QoS {each.qos}")


@step("payloads")
async def payloads(t: Step) -> None:
    one = await t.connect()
    for form in FORMS:
        subscriber = await one.subscribe(t.topic("p"), "", form)
        for payload in (b"", b"\0", b"\xff\xfe", "Küstenseeschwalbe \U0001f426\n\"\\".encode(), b"data: x\n\n:\r\n",
                        bytes(range(256)), b"x" * 100_000):
            await one.publish(t.topic("p"), payload)
            equal((await subscriber.message()).payload, payload, f"payload as {form}")
        await subscriber.cut()


@step("large")
async def large(t: Step) -> None:
    one = await t.connect()
    subscriber = await one.subscribe(t.topic("l"), "", BINARY)
    payload = bytes(range(256)) * 3600
    await one.publish(t.topic("l"), payload)
    expect((await subscriber.message()).payload == payload, "a payload of 900 KiB came altered")


@step("order")
async def order(t: Step) -> None:
    one = await t.connect()
    subscriber = await one.subscribe(t.topic("o"))
    count = 10 if t.driver.hello.get("process_each") else 100
    for number in range(count):
        await one.publish(t.topic("o"), str(number))
    got = await subscriber.messages(count)
    equal([int(each.payload) for each in got], list(range(count)), "order")
    ids = [each.id for each in got]
    equal(ids, sorted(set(ids)), "ids, which grow")


@step("many-at-once", MANY)
async def many_at_once(t: Step) -> None:
    if t.driver.hello.get("process_each"):
        count, publishers = 10, await t.connect()
    else:
        count, publishers = 60, await t.connect()
    subscriber = await (await t.connect()).subscribe(t.topic("m"))
    await asyncio.gather(*(publishers.publish(t.topic("m"), str(number)) for number in range(count)))
    got = await subscriber.messages(count)
    equal(sorted(int(each.payload) for each in got), list(range(count)), "what was published at the same time")


@step("filters")
async def filters(t: Step) -> None:
    one = await t.connect()
    root = topic_path(t.topic(""))
    # What is asked for, what comes, what does not.
    for target, matching, other in (
        ("x/+/z", "x/y/z", "x/y/a/z"), ("x/%2B/z", "x/y/z", "x/z"), ("x/%23", "x/y/z", "y/x"),
        ("%2B%2Fb", "a/b", "a/b/c"), ("a%2Fb", "a/b", "a%2Fb"), ("Gr%C3%B6%C3%9Fe", "Größe", "Gr"),
        ("a//b", "a//b", "a/b"), ("a%20b", "a b", "ab"), ("a%25b", "a%b", "ab"), ("%3F%26", "?&", "&?"),
    ):
        response = await one.request("GET", f"{root}{target}", stream=True)
        subscriber = Subscription(response.expect(200), NDJSON)
        await one.publish(t.topic(other), "other")
        await one.publish(t.topic(matching), "matching")
        got = await subscriber.message()
        equal((got.topic, got.payload), (t.topic(matching), b"matching"), f"what matches {target}")
        await subscriber.cut()


@step("further-filters")
async def further_filters(t: Step) -> None:
    one = await t.connect()
    subscriber = await one.subscribe(t.topic("a"), f"filter={t.topic('b', '%2B')}&filter={t.topic('c')}")
    for name in (("a",), ("b", "1"), ("b", "2"), ("c",), ("d",)):
        await one.publish(t.topic(*name), "/".join(name))
    await one.publish(t.topic("a"), "end")
    got = [each.payload for each in await subscriber.messages(5)]
    equal(got, [b"a", b"b/1", b"b/2", b"c", b"end"], "what matches one of three filters")


@step("retained")
async def retained(t: Step) -> None:
    one = await t.connect()
    topic = t.topic("r")
    await one.publish(topic, "kept", retain=True, user_properties=[("a", "1")])
    for form in FORMS:
        subscriber = await one.subscribe(topic, "", form)
        got = await subscriber.message()
        equal((got.payload, got.retain, got.properties), (b"kept", True, {"user_properties": [("a", "1")]}),
              f"retained message as {form}")
        await one.publish(topic, "new")
        got = await subscriber.message()
        equal((got.payload, got.retain), (b"new", False), f"another one as {form}")
        await subscriber.cut()
    without = await one.subscribe(topic, "retained=no")
    await one.publish(topic, "after")
    equal((await without.message()).payload, b"after", "what comes first with retained=no")
    await one.publish(topic, "", retain=True)
    subscriber = await one.subscribe(topic)
    await subscriber.quiet(QUIET_S, "a retained message that was cleared")


@step("last")
async def last(t: Step) -> None:
    one = await t.connect()
    topic, target = t.topic("r"), topic_path(t.topic("r")) + "?last"
    (await one.get(target)).refused(404, "no-retained-message")
    every = {name: value for name, value in EVERY.items() if name != "qos"}
    await one.publish(topic, "Grüße", retain=True, qos=1, **every)
    got = (await one.get(target, [("Accept", "*/*")])).expect(200)
    equal(got.content, "Grüße".encode(), "content")
    for name, value in (("content-type", "text/x; a=b"), ("sterna-qos", "1"), ("sterna-retain", "?1"),
                        ("sterna-response-topic", "answers/Z%C3%BCrich%207"), ("sterna-payload-format", "utf-8"),
                        ("sterna-correlation-data", "AP9jLTE=")):
        equal(got.field(name), value, name)
    pairs = [pair.strip() for pair in got.field("sterna-user-property").split(",")]
    equal(pairs, ["a=1", "Gr%C3%B6%C3%9Fe=5%20%25%2C%20%3D%3B", "a=2", "="], "sterna-user-property")
    expect(40 <= int(got.field("sterna-expiry")) <= 100, f"sterna-expiry {got.field('sterna-expiry')}")
    tag = got.field("etag")
    expect(tag, "no ETag")
    for fitting in (tag, "*", f'"other", {tag}', f"W/{tag.removeprefix('W/')}"):
        same = (await one.get(target, [("If-None-Match", fitting)])).expect(304)
        equal((same.content, same.field("etag")), (b"", tag), f"content and ETag of 304 for {fitting}")
    (await one.get(target, [("If-None-Match", '"other"')])).expect(200)
    await one.publish(topic, "other", retain=True)
    got = (await one.get(target, [("If-None-Match", tag)])).expect(200)
    equal((got.content, got.field("content-type")), (b"other", None), "what replaced it, and its content type")
    expect(got.field("etag") != tag, "another retained message has the same ETag")
    await one.publish(topic, "", retain=True)
    (await one.get(target)).refused(404, "no-retained-message")


@step("topics")
async def topics(t: Step) -> None:
    one = await t.connect()
    target = topic_path(t.topic("t"))

    async def status(method: str) -> Response:
        return await one.request(method, target, content=b"" if method == "PUT" else None)

    equal((await status("HEAD")).status, 404, "HEAD of what is not there")
    equal((await status("PUT")).status, 201, "PUT")
    equal((await status("PUT")).status, 200, "PUT again")
    found = await status("HEAD")
    equal((found.status, found.content), (200, b""), "HEAD of what was created")
    await one.publish(t.topic("t"), "x", retain=True)
    equal((await status("DELETE")).status, 204, "DELETE")
    (await one.get(target + "?last")).refused(404, "no-retained-message")
    equal((await status("HEAD")).status, 404, "HEAD of what was removed")
    (await status("DELETE")).refused(404, "no-topic")
    await one.publish(t.topic("t"), "x", retain=True)
    equal((await status("HEAD")).status, 200, "HEAD of what has a retained message")
    await one.publish(t.topic("t"), "", retain=True)
    equal((await status("HEAD")).status, 404, "HEAD of what has none any more")
    (await one.request("PUT", topic_path(t.topic("u")), content=b"x")).refused(400, "invalid-content")


@step("delete-ends-subscriptions")
async def delete_ends(t: Step) -> None:
    one = await t.connect()
    exact, wider = await one.subscribe(t.topic("t")), await one.subscribe(t.topic("#"))
    await one.publish(t.topic("t"), "x", retain=True)
    await exact.message()
    await wider.message()
    (await one.request("DELETE", topic_path(t.topic("t")))).expect(204)
    equal((await exact.ended()).error, None, "how the response ended whose filter is the topic")
    await one.publish(t.topic("t"), "y")
    equal((await wider.message()).payload, b"y", "what another subscription gets")


@step("long-poll")
async def long_poll(t: Step) -> None:
    one = await t.connect()
    target = topic_path(t.topic("p"))
    json = [("Accept", "application/json")]
    empty = (await one.get(f"{target}?wait=100ms", json)).expect(204)
    equal(empty.content, b"", "content of 204")
    await one.publish(t.topic("p"), "1", content_type="text/x")
    await one.publish(t.topic("p"), "2")

    def following(answer: Response) -> str:
        return link_next(answer).replace("100ms", "5s")

    # Nothing is lost between one poll and the next.
    first = (await one.get(following(empty), json)).expect(200)
    equal(first.field("content-type").partition(";")[0], "application/json", "content type")
    found = first.json()
    await one.publish(t.topic("p"), "3")
    while len(found) < 3:
        first = (await one.get(following(first), json)).expect(200)
        found += first.json()
    equal([each["payload"] for each in found], ["1", "2", "3"], "payloads")
    equal(found[0]["content_type"], "text/x", "content type of the first")
    waiting = asyncio.create_task(one.get(following(first), json))
    await asyncio.sleep(0.1)
    expect(not waiting.done(), "a poll was answered while there was nothing")
    publisher = await t.connect()
    for number in range(4):
        await publisher.publish(t.topic("p"), f"more {number}")
    found = (await waiting).expect(200)
    got = found.json()
    # `max` for what goes on: each answer has no more, and together they have all.
    while len(got) < 4:
        found = (await one.get(following(found), json)).expect(200)
        got += found.json()
    equal([each["payload"] for each in got], [f"more {number}" for number in range(4)], "what came while it waited")


@step("long-poll-max")
async def long_poll_max(t: Step) -> None:
    one = await t.connect()
    name = t.name()
    target = topic_path(t.topic("p"))
    (await one.get(f"{target}?session={name}&wait=1ms&max=2")).expect(204)
    for number in range(5):
        await one.publish(t.topic("p"), str(number))
    sizes, got, at = [], [], f"{target}?session={name}&wait=5s&max=2"
    while len(got) < 5:
        answer = (await one.get(at, [("Accept", "application/json")])).expect(200)
        sizes.append(len(answer.json()))
        got += [each["payload"] for each in answer.json()]
        at = link_next(answer)
    equal((sizes, got), ([2, 2, 1], ["0", "1", "2", "3", "4"]), "sizes and payloads")
    (await one.request("DELETE", f"/v1/sessions/{name}")).expect(204)


@step("long-poll-forms", ONCE)
async def long_poll_forms(t: Step) -> None:
    one = await t.connect()
    await one.publish(t.topic("p"), "kept", retain=True)
    for form in FORMS:
        answer = (await one.get(f"{topic_path(t.topic('p'))}?wait=1s", [("Accept", form)])).expect(200)
        subscriber = Subscription(answer, form)
        answer.pieces.put_nowait(answer.content)
        equal((await subscriber.message()).payload, b"kept", f"poll as {form}")


@step("shared")
async def shared(t: Step) -> None:
    one = await t.connect()
    target = f"$share/{t.name('g')}/{t.topic('s')}"
    members = [await one.subscribe(target) for _ in range(2)] if t.transport in MANY else [
        await (await t.connect()).subscribe(target) for _ in range(2)]
    for number in range(10):
        await one.publish(t.topic("s"), str(number))
    got: list[int] = []
    for member in members:
        while len(got) < 10:
            try:
                got.append(int((await member.message(0.3)).payload))
            except Exception:
                break
    equal(sorted(got), list(range(10)), "each message once, to one of two members")


@step("heartbeat")
async def heartbeat(t: Step) -> None:
    # http.heartbeat_interval_s is 1 here.
    async def beats(form: str) -> None:
        one = await t.connect()
        topic = t.topic("h", str(FORMS.index(form)))
        subscriber = await one.subscribe(topic, "", form)
        await subscriber.heartbeat(4)
        await subscriber.heartbeat(4)
        await one.publish(topic, "x")
        equal((await subscriber.message()).payload, b"x", f"a message after heartbeats as {form}")

    await asyncio.gather(*map(beats, FORMS))


@step("keep-alive", H1)
async def keep_alive(t: Step) -> None:
    # One connection for many requests, also after one that was refused.
    one = await t.connect()
    for _ in range(5):
        (await one.get(f"{topic_path(t.topic('k'))}?last")).refused(404, "no-retained-message")
        await one.publish(t.topic("k"), "x")
        (await one.request("HEAD", topic_path(t.topic("k")))).expect(404)
        (await one.request("OPTIONS", topic_path(t.topic("k")))).expect(204)
