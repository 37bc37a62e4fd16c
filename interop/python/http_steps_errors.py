"""Steps of the HTTP scenario: every error of docs/http.md, and limits. interop/http.toml has the limits."""

from __future__ import annotations

from harness import Cannot, until
from http_client import HttpError, topic_path
from http_step import H1, MANY, Step, equal, expect, step

# As interop/http.toml has them.
CONTENT_BYTES, FIELDS_BYTES, TARGET_BYTES, SUBSCRIPTIONS, FILTERS = 1 << 20, 16_383, 8 << 10, 12, 16
# (what, method, target after /v1/topics/ROOT/, fields, content, status, type)
BAD_REQUESTS = [
    ("a wildcard in a topic", "POST", "a/%2B", [], b"x", "invalid-topic"),
    ("a wildcard in what is created", "PUT", "%23", [], None, "invalid-topic"),
    ("a wildcard in what is removed", "DELETE", "a/+", [], None, "invalid-topic"),
    ("a wildcard in what exists", "GET", "%23?last", [], None, "invalid-topic"),
    ("U+0000", "POST", "a%00b", [], b"x", "invalid-topic"),
    ("no UTF-8", "POST", "a%FFb", [], b"x", "invalid-topic"),
    ("half an escape", "POST", "a%2", [], b"x", "invalid-topic"),
    ("# before the end", "GET", "%23/a?wait=1ms", [], None, "invalid-filter"),
    ("+ within a level", "GET", "a%2B/b?wait=1ms", [], None, "invalid-filter"),
    ("a wrong further filter", "GET", "a?filter=a%23&wait=1ms", [], None, "invalid-filter"),
    ("qos=3", "GET", "a?qos=3&wait=1ms", [], None, "invalid-parameter"),
    ("qos of text", "GET", "a?qos=x&wait=1ms", [], None, "invalid-parameter"),
    ("wait without a unit", "GET", "a?wait=1", [], None, "invalid-parameter"),
    ("wait of nothing", "GET", "a?wait=", [], None, "invalid-parameter"),
    ("max=0", "GET", "a?max=0&wait=1ms", [], None, "invalid-parameter"),
    ("max of text", "GET", "a?max=x&wait=1ms", [], None, "invalid-parameter"),
    ("after of text", "GET", "a?session=s&after=x&wait=1ms", [], None, "invalid-parameter"),
    ("retained=maybe", "GET", "a?retained=maybe&wait=1ms", [], None, "invalid-parameter"),
    ("QoS 3", "POST", "a", [("Sterna-QoS", "3")], b"x", "invalid-field"),
    ("QoS of text", "POST", "a", [("Sterna-QoS", "one")], b"x", "invalid-field"),
    ("retain of text", "POST", "a", [("Sterna-Retain", "maybe")], b"x", "invalid-field"),
    ("expiry of text", "POST", "a", [("Sterna-Expiry", "soon")], b"x", "invalid-field"),
    ("expiry above 32 bits", "POST", "a", [("Sterna-Expiry", "4294967296")], b"x", "invalid-field"),
    ("a negative expiry", "POST", "a", [("Sterna-Expiry", "-1")], b"x", "invalid-field"),
    ("a response topic with a wildcard", "POST", "a", [("Sterna-Response-Topic", "a/#")], b"x", "invalid-field"),
    ("correlation data that is no base64", "POST", "a", [("Sterna-Correlation-Data", "a b!")], b"x", "invalid-field"),
    ("a user property without =", "POST", "a", [("Sterna-User-Property", "a")], b"x", "invalid-field"),
    ("a user property that is no UTF-8", "POST", "a", [("Sterna-User-Property", "a=%FF")], b"x", "invalid-field"),
    ("an unknown payload format", "POST", "a", [("Sterna-Payload-Format", "utf-16")], b"x", "invalid-field"),
    ("a payload that is no text", "POST", "a", [("Sterna-Payload-Format", "utf-8")], b"\xff", "invalid-field"),
    ("a key that is too long", "POST", "a", [("Idempotency-Key", "k" * 256)], b"x", "invalid-field"),
    ("a key with a space", "POST", "a", [("Idempotency-Key", "k k")], b"x", "invalid-field"),
]
# (what, session's path, content, type)
BAD_ACKNOWLEDGEMENTS = [
    ("no JSON", "ack", b"{", "invalid-content"), ("an array", "ack", b"[1]", "invalid-content"),
    ("nothing", "ack", b"{}", "invalid-content"), ("a text", "ack", b'{"id": "7"}', "invalid-content"),
    ("a negative number", "ack", b'{"id": -1}', "invalid-content"),
    ("numbers that are texts", "ack", b'{"ids": ["1"]}', "invalid-content"),
    ("a parameter that is text", "ack?id=x", b"", "invalid-parameter"),
]


@step("bad-requests")
async def bad_requests(t: Step) -> None:
    one = await t.connect()
    root, wrong = topic_path(t.topic("")), []
    for what, method, target, fields, content, kind in BAD_REQUESTS:
        try:
            answer = await one.request(method, root + target, fields, content)
            answer.refused(400, kind)
        except Exception as why:  # all of them at once say more than the first
            wrong.append(f"{what}: {why}")
    expect(not wrong, "; ".join(wrong))


@step("bad-acknowledgements")
async def bad_acknowledgements(t: Step) -> None:
    one, name = await t.connect(), t.name()
    subscriber = await one.subscribe(t.topic("a"), f"session={name}")
    for what, target, content, kind in BAD_ACKNOWLEDGEMENTS:
        answer = await one.request("POST", f"/v1/sessions/{name}/{target}", [("Content-Type", "application/json")],
                                   content)
        try:
            answer.refused(400, kind)
        except Exception as why:
            expect(False, f"{what}: {why}")
    (await one.request("POST", f"/v1/sessions/{t.name('none')}/ack?id=1", content=b"")).refused(404, "no-session")
    (await one.request("DELETE", f"/v1/sessions/{name}")).expect(204)
    await subscriber.ended()


@step("no-resource")
async def no_resource(t: Step) -> None:
    one = await t.connect()
    for target in ("/v2/topics/a", "/v1", "/v1/", "/v1/topic/a", "/x", "/v1/sessions", "/v1/sessions/a/b",
                   "/page/x.js", "/v1/openapi.jsonx", "/V1/topics/a"):
        (await one.get(target)).refused(404, "no-resource")
    missing = await one.request("HEAD", "/x")
    equal((missing.status, missing.content), (404, b""), "HEAD of nothing")


@step("method")
async def method(t: Step) -> None:
    one = await t.connect()
    for name, target, allowed in (
        ("PATCH", topic_path(t.topic("a")), {"GET", "HEAD", "PUT", "DELETE", "POST", "OPTIONS"}),
        ("PUT", f"/v1/sessions/{t.name()}", {"GET", "DELETE"}), ("GET", f"/v1/sessions/{t.name()}/ack", {"POST"}),
        ("DELETE", "/v1/openapi.json", {"GET"}), ("POST", "/", {"GET"}), ("BREW", topic_path(t.topic("a")), {"GET"}),
    ):
        answer = await one.request(name, target, content=b"" if name in ("PUT", "POST", "PATCH") else None)
        answer.refused(405, "method")
        allow = {each.strip() for each in (answer.field("allow") or "").split(",")}
        expect(allowed <= allow, f"{name} {target}: Allow {sorted(allow)} without {sorted(allowed - allow)}")


@step("not-acceptable")
async def not_acceptable(t: Step) -> None:
    one = await t.connect()
    target = topic_path(t.topic("a"))
    for accept in ("text/html", "application/json", "image/*", "text/event-stream;q=0", "*/*;q=0"):
        (await one.get(target, [("Accept", accept)])).refused(406, "not-acceptable")
    # What is asked for in other words than its own.
    for accept, form in (("*/*", "application/x-ndjson"), ("text/*", "text/event-stream"),
                         ("text/html, text/event-stream;q=0.5", "text/event-stream"),
                         ("application/x-ndjson;q=0.1, text/event-stream;q=0.9", "text/event-stream"),
                         ("TEXT/Event-Stream", "text/event-stream"),
                         ("application/x-ndjson;charset=utf-8", "application/x-ndjson")):
        response = await one.request("GET", target, [("Accept", accept)], stream=True)
        response.expect(200)
        equal(response.field("content-type").partition(";")[0], form, f"content type for Accept: {accept}")
        await one.driver.ask("cancel", r=response.number)


@step("too-large")
async def too_large(t: Step) -> None:
    one = await t.connect()
    try:
        (await one.post(t.topic("a"), bytes(CONTENT_BYTES + 1))).refused(413, "content-too-large")
    except HttpError:
        # Who is still sending may see the connection's end before the answer (RFC 9112, section 9.6); and Debian 12's
        # curl takes the RST_STREAM with NO_ERROR behind it (RFC 9113, section 8.1) for an error.
        if t.transport not in H1 and not t.driver.hello.get("process_each"):
            raise
    other = await t.connect()
    await other.publish(t.topic("a"), bytes(CONTENT_BYTES))
    (await other.get("/v1/topics/" + "a" * TARGET_BYTES)).refused(414, "uri-too-long")


@step("fields-too-large")
async def fields_too_large(t: Step) -> None:
    one = await t.connect()
    fields = [(f"x-{number}", "x" * 1000) for number in range(FIELDS_BYTES // 1000 + 2)]
    try:
        answer = await one.get(topic_path(t.topic("a")) + "?last", fields)
    except Exception as why:
        # RFC 9114, section 4.2.2: a client may keep to what the server announces, and send nothing.
        expect(type(why).__name__ == "HttpError" and t.transport in MANY, f"{type(why).__name__}: {why}")
    else:
        answer.refused(431, "fields-too-large")
    (await (await t.connect()).get(topic_path(t.topic("a")) + "?last", fields[:10])).expect(404)


@step("too-many-filters")
async def too_many_filters(t: Step) -> None:
    one = await t.connect()
    query = "&".join(f"filter=f{number}" for number in range(FILTERS))
    answer = await one.get(f"{topic_path(t.topic('a'))}?wait=1ms&{query}")
    answer.refused(400, "invalid-parameter")


@step("too-many-subscriptions", MANY)
async def too_many_subscriptions(t: Step) -> None:
    if t.driver.hello.get("process_each"):
        raise Cannot("a connection for each request")
    one = await t.connect()
    subscribers = [await one.subscribe(t.topic("a", str(number))) for number in range(SUBSCRIPTIONS)]
    refused = await one.get(topic_path(t.topic("b")))
    refused.refused(429, "too-many-subscriptions")
    expect(int(refused.field("retry-after") or "x") >= 0, "Retry-After")
    # One that ends makes room; the others go on.
    await subscribers.pop().cut()
    tried = []

    async def has_room() -> bool:
        tried.append(await one.request("GET", topic_path(t.topic("b")), stream=True))
        return tried[-1].status == 200

    await until("a subscription where one has ended", has_room)
    await one.publish(t.topic("a", "0"), "x")
    equal((await subscribers[0].message()).payload, b"x", "what another one gets")
