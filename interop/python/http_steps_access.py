"""Steps of the HTTP scenario: who may do what, pages of other origins, early data, and what is announced."""

from __future__ import annotations

import asyncio
import json
import re

from harness import INTEROP, Cannot
from http_client import FORMS, topic_path
from http_step import CERTIFICATE, MANY, ONCE, SECURE, Step, basic, equal, expect, step

ORIGIN = "https://page.example"
# Of the user `interop`; the one with `-expired` behind it was good until 2001.
TOKEN = (INTEROP / "certificates" / "token").read_text().strip()


def bearer(token: str = TOKEN) -> tuple[str, str]:
    return ("Authorization", f"Bearer {token}")


@step("unauthenticated")
async def unauthenticated(t: Step) -> None:
    one = await t.connect(asking=True)
    target = topic_path(t.topic("a"))
    for method, where in (("GET", target), ("POST", target), ("PUT", target), ("DELETE", target),
                          ("GET", "/v1/sessions/x"), ("DELETE", "/v1/sessions/x"), ("POST", "/v1/sessions/x/ack?id=1")):
        answer = await one.request(method, where, content=b"" if method in ("POST", "PUT") else None)
        answer.refused(401, "unauthenticated")
        schemes = answer.field("www-authenticate") or ""
        expect("basic" in schemes.lower() and "bearer" in schemes.lower(), f"WWW-Authenticate: {schemes}")
    (await one.request("HEAD", target)).expect(401)
    # What everybody may see.
    (await one.get("/v1/openapi.json")).expect(200)
    (await one.get("/")).expect(200)
    (await one.request("OPTIONS", target)).expect(204)


@step("basic")
async def basic_step(t: Step) -> None:
    one = await t.connect(asking=True, fields=[basic()])
    subscriber = await one.subscribe(t.topic("a"))
    await one.publish(t.topic("a"), "x")
    equal((await subscriber.message()).payload, b"x", "payload")
    for wrong in (basic(password="wrong"), basic(user="nobody"), ("Authorization", "Basic !!!"),
                  ("Authorization", "Basic aW50ZXJvcA=="), ("Authorization", "Magic x"), ("Authorization", "")):
        other = await t.connect(asking=True)
        answer = await other.post(t.topic("a"), "y", [wrong])
        answer.refused(401, "unauthenticated")
    # The scheme's name has no case (RFC 9110, section 11.1).
    lower = ("Authorization", basic()[1].replace("Basic", "basic"))
    await (await t.connect(asking=True)).post(t.topic("a"), "z", [lower])
    equal((await subscriber.message()).payload, b"z", "what came next")


@step("bearer")
async def bearer_step(t: Step) -> None:
    one = await t.connect(asking=True, fields=[bearer()])
    subscriber = await one.subscribe(t.topic("a"))
    await one.publish(t.topic("a"), "x")
    equal((await subscriber.message()).payload, b"x", "payload")
    for wrong in (bearer(TOKEN[:-1]), bearer(TOKEN + "x"), bearer(TOKEN + "-expired"),
                  ("Authorization", "Bearer")):
        (await (await t.connect(asking=True)).post(t.topic("a"), "y", [wrong])).refused(401, "unauthenticated")


@step("wrong-where-anybody-may", ONCE)
async def wrong_anyway(t: Step) -> None:
    # A request with credentials is judged by these, also where none are needed.
    (await (await t.connect()).post(t.topic("a"), "y", [basic(password="wrong")])).refused(401, "unauthenticated")


@step("certificate", SECURE)
async def certificate(t: Step) -> None:
    if not t.driver.hello.get("certificates"):
        raise Cannot("no client certificates")
    one = await t.connect(asking=True, **CERTIFICATE)
    only = f"iop/only-device-7/{t.name()}"
    subscriber = await one.subscribe(only)
    await one.publish(only, "x")
    equal((await subscriber.message()).payload, b"x", "payload")
    other = await t.connect(asking=True, fields=[basic()])
    (await other.post(only, "y")).refused(403, "forbidden")
    (await other.get(topic_path(only))).refused(403, "forbidden")
    # Each proof must hold, and both must name the same user.
    (await one.post(only, "y", [basic()])).refused(401, "unauthenticated")
    (await one.post(only, "y", [basic(password="wrong")])).refused(401, "unauthenticated")


@step("forbidden")
async def forbidden(t: Step) -> None:
    one = await t.connect()
    for doing in (one.post("iop/denied/a", "x"), one.get(topic_path("iop/denied/a")),
                  one.get(topic_path("iop/denied/#")), one.request("PUT", topic_path("iop/denied/a"), content=b""),
                  one.request("DELETE", topic_path("iop/denied/a")), one.get(topic_path("iop/denied/a") + "?last")):
        (await doing).refused(403, "forbidden")


@step("sessions-belong-to-users")
async def sessions_of_users(t: Step) -> None:
    name = t.name()
    mine = await t.connect(asking=True, fields=[basic()])
    theirs = await t.connect()
    subscriber = await mine.subscribe(t.topic("a"), f"session={name}")
    (await theirs.get(f"/v1/sessions/{name}")).refused(404, "no-session")
    (await theirs.request("DELETE", f"/v1/sessions/{name}")).refused(404, "no-session")
    (await theirs.request("POST", f"/v1/sessions/{name}/ack?id=1", content=b"")).refused(404, "no-session")
    # The same name, another session.
    other = await theirs.subscribe(t.topic("b"), f"session={name}")
    await theirs.publish(t.topic("b"), "theirs")
    equal((await other.message()).payload, b"theirs", "what the other user's session gets")
    await mine.publish(t.topic("a"), "mine")
    equal((await subscriber.message()).payload, b"mine", "what goes on")
    for one in (mine, theirs):
        (await one.request("DELETE", f"/v1/sessions/{name}")).expect(204)


@step("keys-belong-to-users")
async def keys_of_users(t: Step) -> None:
    mine, theirs = await t.connect(asking=True, fields=[basic()]), await t.connect()
    await mine.publish(t.topic("a"), "mine", key=t.name("key"))
    answer = await theirs.publish(t.topic("a"), "theirs", key=t.name("key"))
    equal(answer.field("idempotent-replayed"), None, "Idempotent-Replayed for another user's key")


@step("once-per-connection", frozenset({"h3"}))
async def once_per_connection(t: Step) -> None:
    # http.authentication is "connection" here.
    one = await t.connect(asking=True)
    (await one.post(t.topic("a"), "x")).refused(401, "unauthenticated")
    await one.publish(t.topic("a"), "x", [basic()])
    await one.publish(t.topic("a"), "x")
    subscriber = await one.subscribe(t.topic("a"))
    (await one.post(t.topic("a"), "x", [basic(password="wrong")])).refused(401, "unauthenticated")
    await one.publish(t.topic("a"), "y")
    equal((await subscriber.message()).payload, b"y", "payload")
    # It ends with the connection.
    (await (await t.connect(asking=True)).post(t.topic("a"), "x")).refused(401, "unauthenticated")


@step("each-request-on-tcp", frozenset({"h2", "h1s"}))
async def each_request(t: Step) -> None:
    one = await t.connect(asking=True)
    await one.publish(t.topic("a"), "x", [basic()])
    (await one.post(t.topic("a"), "x")).refused(401, "unauthenticated")


@step("early-data-field")
async def early_data_field(t: Step) -> None:
    # RFC 8470, section 5.1: a gateway says that it took the request from early data.
    one = await t.connect()
    early = [("Early-Data", "1")]
    target = topic_path(t.topic("a"))
    (await one.post(t.topic("a"), "x", early)).refused(425, "too-early")
    (await one.request("PUT", target, early, b"")).refused(425, "too-early")
    (await one.request("DELETE", target, early)).refused(425, "too-early")
    await one.publish(t.topic("a"), "x", early, key=t.name("key"))
    (await one.request("HEAD", target, early)).expect(404)
    (await one.get(f"{target}?wait=1ms", early)).expect(204)


@step("early-data", frozenset({"h3"}))
async def early_data(t: Step) -> None:
    if not t.driver.hello.get("early_data"):
        raise Cannot("no requests but GET and HEAD in early data")
    subscriber = await (await t.connect()).subscribe(t.topic("e"))
    # One connection after the other: each ticket is good for one.
    for payload, key, status in (("with a key", t.name("k"), 204), ("without", None, 425)):
        first = await t.connect(tickets=t.name())
        await first.publish(t.topic("other"), "x")
        await asyncio.sleep(0.2)
        await first.close()
        again = await t.connect(tickets=t.name(), early=True)
        answer = await again.post(t.topic("e"), payload, **({"key": key} if key else {}))
        expect(answer.early, "the early data was not accepted")
        equal(answer.status, status, f"status of a POST in early data {payload}")
        if status == 425:
            answer.refused(425, "too-early")
            # RFC 8470, section 5.2: again, when the handshake is complete.
            await again.publish(t.topic("e"), payload)
    equal([each.payload for each in await subscriber.messages(2)], [b"with a key", b"without"], "what was published")


@step("early-get", frozenset({"h3"}))
async def early_get(t: Step) -> None:
    first = await t.connect(tickets=t.name())
    await first.publish(t.topic("r"), "kept", retain=True)
    await asyncio.sleep(0.2)
    await first.close()
    again = await t.connect(tickets=t.name(), early=True)
    answer = (await again.get(topic_path(t.topic("r")) + "?last")).expect(200)
    equal(answer.content, b"kept", "content")
    await again.publish(t.topic("r"), "", retain=True)


# --------------------------------------------------------------------------- pages and hosts


@step("cors")
async def cors(t: Step) -> None:
    one = await t.connect()
    target = topic_path(t.topic("a"))
    session = f"/v1/sessions/{t.name()}"
    for path, method in ((target, "POST"), (session, "DELETE"), (f"{session}/ack", "POST")):
        fields = [("Origin", ORIGIN), ("Access-Control-Request-Method", method),
                  ("Access-Control-Request-Headers", "authorization,content-type,sterna-qos,idempotency-key")]
        answer = (await one.request("OPTIONS", path, fields)).expect(204)
        equal(answer.field("access-control-allow-origin"), ORIGIN, "Access-Control-Allow-Origin")
        methods = {each.strip() for each in (answer.field("access-control-allow-methods") or "").split(",")}
        expect(method in methods, f"Access-Control-Allow-Methods {methods} for {path}")
        allowed = {each.strip().lower() for each in (answer.field("access-control-allow-headers") or "").split(",")}
        expect({"authorization", "content-type", "sterna-qos", "idempotency-key"} <= allowed,
               f"Access-Control-Allow-Headers {sorted(allowed)}")
    response = await one.request("GET", target, [("Origin", ORIGIN)], stream=True)
    response.expect(200)
    equal(response.field("access-control-allow-origin"), ORIGIN, "Access-Control-Allow-Origin of a subscription")
    exposed = {each.strip().lower() for each in (response.field("access-control-expose-headers") or "").split(",")}
    expect("sterna-session" in exposed or "*" in exposed, f"Access-Control-Expose-Headers {sorted(exposed)}")
    expect("origin" in (response.field("vary") or "").lower(), f"Vary: {response.field('vary')}")
    # Problems are for pages, too.
    wrong = await one.get(f"{target}?qos=7", [("Origin", ORIGIN)])
    wrong.refused(400, "invalid-parameter")
    equal(wrong.field("access-control-allow-origin"), ORIGIN, "Access-Control-Allow-Origin of a problem")


@step("origin")
async def origin(t: Step) -> None:
    one = await t.connect()
    target = topic_path(t.topic("a"))
    for foreign in ("https://other.example", "null", "https://page.example.other", "http://page.example",
                    "https://page.example:444"):
        fields = [("Origin", foreign)]
        (await one.post(t.topic("a"), "x", fields)).refused(403, "origin")
        (await one.get(target, fields)).refused(403, "origin")
        answer = await one.request("OPTIONS", target, [*fields, ("Access-Control-Request-Method", "POST")])
        equal(answer.field("access-control-allow-origin"), None, f"Access-Control-Allow-Origin for {foreign}")
    # The page of the broker itself.
    scheme = "http" if t.scheme == "http" else "https"
    at = t.places.open_to_all[t.scheme]
    await one.publish(t.topic("a"), "x", [("Origin", f"{scheme}://{at.host}:{at.port}")])


@step("host")
async def host(t: Step) -> None:
    if t.transport == "urllib":
        raise Cannot("it looks the name up that it says")
    one = await t.connect()
    port = t.places.open_to_all[t.scheme].port
    for name in ("evil.example", f"evil.example:{port}", "localhost.evil.example", "broker.localhost.evil.example:80"):
        answer = await one.post(t.topic("a"), "x", [("Host", name)])
        answer.refused(421, "host")
        (await one.get("/", [("Host", name)])).expect(421)
    for name in (f"localhost:{port}", f"127.0.0.1:{port}", f"[::1]:{port}", f"LOCALHOST:{port}"):
        await one.publish(t.topic("a"), "x", [("Host", name)])


# --------------------------------------------------------------------------- what is announced


@step("alt-svc", SECURE)
async def alt_svc(t: Step) -> None:
    answer = (await (await t.connect()).get("/")).expect(200)
    said = answer.field("alt-svc")
    if t.transport == "h3":
        return
    port = re.search(r'h3=":(\d+)"', said or "")
    expect(port, f"Alt-Svc: {said}")
    quic = {each.port for each in t.places.all if each.scheme in ("h3", "mqtt+quic", "amqp+quic")}
    expect(int(port[1]) in quic, f"Alt-Svc: {said}, and QUIC is on {sorted(quic)}")


@step("every-quic-listener", frozenset({"h3"}))
async def every_quic_listener(t: Step) -> None:
    for scheme in ("mqtt+quic", "amqp+quic"):
        one = await t.connect(at=t.places.open_to_all[scheme])
        await one.publish(t.topic("a"), "x")


@step("document")
async def document(t: Step) -> None:
    one = await t.connect()
    answer = (await one.get("/v1/openapi.json")).expect(200)
    equal(answer.field("content-type").partition(";")[0], "application/json", "content type")
    found = json.loads(answer.content)
    equal(found["openapi"][:3], "3.1", "version of the description")
    expect(set(FORMS) <= set(found["paths"]["/v1/topics/{topic}"]["get"]["responses"]["200"]["content"]), "forms")


@step("page")
async def page(t: Step) -> None:
    one = await t.connect()
    index = (await one.get("/")).expect(200)
    equal(index.field("content-type"), "text/html; charset=utf-8", "content type")
    policy = index.field("content-security-policy") or ""
    expect("default-src 'none'" in policy and "unsafe" not in policy, f"Content-Security-Policy: {policy}")
    for name in re.findall(r'(?:src|href)="(page/[^"]+)"', index.content.decode()):
        answer = (await one.get(f"/{name}")).expect(200)
        expect(answer.content, f"{name} is empty")
        equal(answer.field("x-content-type-options"), "nosniff", f"X-Content-Type-Options of {name}")
        same = await one.get(f"/{name}", [("If-None-Match", answer.field("etag") or "")])
        equal((same.status, same.content), (304, b""), f"{name} that one has already")
    head = (await one.request("HEAD", "/")).expect(200)
    equal(head.content, b"", "content of HEAD")


@step("options")
async def options(t: Step) -> None:
    one = await t.connect()
    answer = (await one.request("OPTIONS", topic_path(t.topic("a")))).expect(204)
    allow = {each.strip() for each in (answer.field("allow") or "").split(",")}
    equal(allow, {"GET", "HEAD", "PUT", "DELETE", "POST", "OPTIONS"}, "Allow")


@step("in-pieces-and-together", MANY)
async def together(t: Step) -> None:
    # Requests of all kinds at the same time on one connection, each with its own answer.
    if t.driver.hello.get("process_each"):
        raise Cannot("a connection for each request")
    one = await t.connect()
    target = topic_path(t.topic("a"))
    waiting = [one.get(f"{target}?wait=200ms"), one.request("HEAD", target), one.get("/v1/openapi.json"),
               one.get(f"{target}?qos=9"), one.get("/"), one.request("OPTIONS", target), one.get("/nothing")]
    got = [answer.status for answer in await asyncio.gather(*waiting)]
    equal(got, [204, 404, 200, 400, 200, 204, 404], "statuses")
