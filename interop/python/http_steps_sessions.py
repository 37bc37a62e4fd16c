"""Steps of the HTTP scenario: what is cut off and goes on, durable subscriptions, and publishing once."""

from __future__ import annotations

import asyncio
import json

from http_client import FORMS, SSE, Connection, topic_path
from harness import until
from http_step import ONCE, QUIET_S, Step, equal, expect, step

JSON = [("Content-Type", "application/json")]


async def description(one: Connection, name: str) -> dict:
    got = (await one.get(f"/v1/sessions/{name}")).expect(200)
    equal(got.field("content-type").partition(";")[0], "application/json", "content type")
    return got.json()


async def acknowledge(one: Connection, name: str, what) -> None:
    (await one.request("POST", f"/v1/sessions/{name}/ack", JSON, json.dumps(what).encode())).expect(204)


def numbers(messages) -> list[str]:
    return [each.payload.decode() for each in messages]


@step("last-event-id")
async def last_event_id(t: Step) -> None:
    one, publisher = await t.connect(), await t.connect()
    subscriber = await one.subscribe(t.topic("e"), "", SSE)
    for number in range(3):
        await publisher.publish(t.topic("e"), str(number))
    await subscriber.messages(2)
    seen = subscriber.last_event_id
    equal(seen.rpartition(":")[0], subscriber.session, "session in the id of an event")
    await subscriber.message()
    await subscriber.cut()
    await disconnected(publisher, subscriber.session)
    for number in range(3, 5):
        await publisher.publish(t.topic("e"), str(number))
    # What was sent and may not have arrived, and what came since.
    again = await one.subscribe(t.topic("e"), "", SSE, [("Last-Event-ID", seen)])
    equal(again.session, subscriber.session, "the session that goes on")
    got = await again.messages(3)
    equal(numbers(got), ["2", "3", "4"], "what comes after the last id")
    equal((got[0].redelivered, got[2].redelivered), (True, False), "redelivered, of what was sent before")
    await again.quiet(QUIET_S, "nothing comes twice")


@step("resume-each-form")
async def resume_each_form(t: Step) -> None:
    one, publisher = await t.connect(), await t.connect()
    for form in FORMS:
        subscriber = await one.subscribe(t.topic("f"), "", form)
        await publisher.publish(t.topic("f"), "1")
        first = await subscriber.message()
        await publisher.publish(t.topic("f"), "2")
        await subscriber.message()
        await subscriber.cut()
        await disconnected(publisher, subscriber.session)
        await publisher.publish(t.topic("f"), "3")
        again = await one.subscribe(t.topic("f"), f"session={subscriber.session}&after={first.id}", form)
        equal(again.session, subscriber.session, f"{form}: the session that goes on")
        got = await again.messages(2)
        equal([(each.payload, each.redelivered) for each in got], [(b"2", True), (b"3", False)],
              f"{form}: payload and redelivered")
        await again.cut()


@step("resume-what-is-gone")
async def resume_gone(t: Step) -> None:
    one = await t.connect()
    subscriber = await one.subscribe(t.topic("g"), "", SSE, [("Last-Event-ID", "~nothing-of-this-name:7")])
    expect(subscriber.session != "~nothing-of-this-name", "a session that is gone goes on")
    expect(subscriber.session.startswith("~"), f"session {subscriber.session!r}")
    await one.publish(t.topic("g"), "x")
    await subscriber.message()


@step("resume-without-a-cut")
async def without_a_cut(t: Step) -> None:
    # The server may not know yet that the first connection is dead.
    one, other = await t.connect(), await t.connect()
    subscriber = await one.subscribe(t.topic("w"))
    expect(subscriber.session.startswith("~"), f"session {subscriber.session!r}")
    await one.publish(t.topic("w"), "1")
    first = await subscriber.message()
    again = await other.subscribe(t.topic("w"), f"session={subscriber.session}&after={first.id}")
    await subscriber.ended()
    await other.publish(t.topic("w"), "2")
    equal((await again.message()).payload, b"2", "what the new response gets")


@step("durable")
async def durable(t: Step) -> None:
    name = t.name()
    one, publisher = await t.connect(), await t.connect()
    subscriber = await one.subscribe(t.topic("d"), f"session={name}")
    equal(subscriber.session, name, "Sterna-Session")
    for number in range(4):
        await publisher.publish(t.topic("d"), str(number))
    got = await subscriber.messages(4)
    said = await description(publisher, name)
    equal((said["session"], said["connected"], said["unacknowledged"], said["filters"]),
          (name, True, 4, [t.topic("d")]), "description")
    await acknowledge(publisher, name, {"id": got[1].id})
    equal((await description(publisher, name))["unacknowledged"], 2, "unacknowledged after two of four")
    await subscriber.cut()
    await disconnected(publisher, name)
    await publisher.publish(t.topic("d"), "4")
    said = await description(publisher, name)
    # A broker that keeps messages in a log counts them when they are read: null, and never a wrong 0.
    for member in ("pending", "pending_bytes"):
        expect(said[member] is None or said[member] >= 1, f"what waits: {said}")
    again = await one.subscribe(t.topic("d"), f"session={name}")
    got = await again.messages(3)
    equal([(each.payload, each.redelivered) for each in got], [(b"2", True), (b"3", True), (b"4", False)],
          "payload and redelivered")
    await acknowledge(publisher, name, {"ids": [got[0].id, got[2].id]})
    await again.cut()
    await disconnected(publisher, name)
    third = await one.subscribe(t.topic("d"), f"session={name}")
    equal((await third.message()).payload, b"3", "the only one that is not acknowledged")
    await third.quiet(QUIET_S, "what is acknowledged does not come again")
    (await publisher.request("POST", f"/v1/sessions/{name}/ack?id={got[1].id}", content=b"")).expect(204)
    equal((await description(publisher, name))["unacknowledged"], 0, "unacknowledged after all")
    (await publisher.request("DELETE", f"/v1/sessions/{name}")).expect(204)
    await third.ended()
    (await publisher.get(f"/v1/sessions/{name}")).refused(404, "no-session")
    (await publisher.request("DELETE", f"/v1/sessions/{name}")).refused(404, "no-session")


async def disconnected(one: Connection, name: str) -> None:
    """Waits until the server has seen that the response is gone."""
    async def is_away() -> bool:
        return not (await description(one, name))["connected"]

    await until(f"the session {name} is away after its response was cut", is_away)


@step("durable-while-away")
async def durable_away(t: Step) -> None:
    name = t.name()
    one = await t.connect()
    subscriber = await one.subscribe(t.topic("a"), f"session={name}")
    await subscriber.cut()
    await disconnected(one, name)
    for number in range(20):
        await one.publish(t.topic("a"), str(number))
    # Filters of later requests are added.
    again = await one.subscribe(t.topic("b"), f"session={name}")
    await one.publish(t.topic("b"), "20")
    got = await again.messages(10)
    (await one.request("POST", f"/v1/sessions/{name}/ack?id={got[-1].id}", content=b"")).expect(204)
    got += await again.messages(11)
    equal(numbers(got), [str(number) for number in range(21)], "what came while nobody listened, and after")
    equal(sorted((await description(one, name))["filters"]), [t.topic("a"), t.topic("b")], "filters")
    (await one.request("DELETE", f"/v1/sessions/{name}")).expect(204)


@step("durable-after")
async def durable_after(t: Step) -> None:
    name = t.name()
    one = await t.connect()
    subscriber = await one.subscribe(t.topic("a"), f"session={name}")
    for number in range(3):
        await one.publish(t.topic("a"), str(number))
    got = await subscriber.messages(3)
    await subscriber.cut()
    again = await one.subscribe(t.topic("a"), f"session={name}&after={got[1].id}")
    equal((await again.message()).payload, b"2", "what comes after the second")
    equal((await description(one, name))["unacknowledged"], 1, "`after` acknowledges")
    (await one.request("DELETE", f"/v1/sessions/{name}")).expect(204)


@step("take-over")
async def take_over(t: Step) -> None:
    name = t.name()
    one, other = await t.connect(), await t.connect()
    first = await one.subscribe(t.topic("a"), f"session={name}")
    second = await other.subscribe(t.topic("a"), f"session={name}")
    await first.ended()
    await other.publish(t.topic("a"), "x")
    equal((await second.message()).payload, b"x", "what the second gets")
    (await one.request("DELETE", f"/v1/sessions/{name}")).expect(204)


@step("unacknowledged-limit")
async def unacknowledged(t: Step) -> None:
    # http.maximum_unacknowledged is 16 here.
    name = t.name()
    one = await t.connect()
    subscriber = await one.subscribe(t.topic("a"), f"session={name}")
    for number in range(20):
        await one.publish(t.topic("a"), str(number))
    got = await subscriber.messages(16)
    await subscriber.quiet(QUIET_S, "more than 16 that are not acknowledged")
    await acknowledge(one, name, {"id": got[7].id})
    got += await subscriber.messages(4)
    equal(numbers(got), [str(number) for number in range(20)], "payloads")
    (await one.request("DELETE", f"/v1/sessions/{name}")).expect(204)


@step("expiry")
async def expiry(t: Step) -> None:
    name = t.name()
    one = await t.connect()
    subscriber = await one.subscribe(t.topic("x"), f"session={name}")
    await subscriber.cut()
    await disconnected(one, name)
    await one.publish(t.topic("x"), "short", expiry_s=1)
    await one.publish(t.topic("x"), "long", expiry_s=100)
    await asyncio.sleep(1.3)
    again = await one.subscribe(t.topic("x"), f"session={name}")
    got = await again.message()
    equal(got.payload, b"long", "what has not expired")
    expect(40 <= got.properties["expiry_s"] <= 99, f"{got.properties['expiry_s']} s are left of 100")
    (await one.request("DELETE", f"/v1/sessions/{name}")).expect(204)


@step("idempotency")
async def idempotency(t: Step) -> None:
    one = await t.connect()
    subscriber = await one.subscribe(t.topic("i"))
    key = t.name("key")
    first = await one.publish(t.topic("i"), "once", key=key)
    equal(first.field("idempotent-replayed"), None, "Idempotent-Replayed of the first")
    for _ in range(2):
        again = await one.publish(t.topic("i"), "once", key=key)
        equal(again.field("idempotent-replayed"), "?1", "Idempotent-Replayed of the next")
    (await one.post(t.topic("i"), "other", key=key)).refused(422, "key-reused")
    (await one.post(t.topic("i"), "once", key=key, retain=True)).refused(422, "key-reused")
    (await one.post(t.topic("j"), "once", key=key)).refused(422, "key-reused")
    await one.publish(t.topic("i"), "end", key=key + "-2")
    equal(numbers(await subscriber.messages(2)), ["once", "end"], "what was delivered")


@step("idempotency-at-the-same-time")
async def idempotency_together(t: Step) -> None:
    publishers = [await t.connect() for _ in range(4)]
    subscriber = await publishers[0].subscribe(t.topic("i"))
    answers = await asyncio.gather(*(one.post(t.topic("i"), "once", key=t.name("key")) for one in publishers))
    for answer in answers:
        # 409 `key-in-use` where the first is not answered yet.
        expect(answer.status == 204 or answer.refused(409, "key-in-use"), str(answer.status))
    equal(sum(answer.status == 204 and not answer.field("idempotent-replayed") for answer in answers), 1,
          "how many were published")
    await publishers[0].publish(t.topic("i"), "end")
    equal(numbers(await subscriber.messages(2)), ["once", "end"], "what was delivered")


@step("session-names", ONCE)
async def session_names(t: Step) -> None:
    one = await t.connect()
    for name in ("a" * 64, "A.b_c-9" + t.name()):
        subscriber = await one.subscribe(t.topic("n"), f"session={name}")
        equal(subscriber.session, name, "Sterna-Session")
        (await one.request("DELETE", f"/v1/sessions/{name}")).expect(204)
    for name in ("a" * 65, "a%2Fb", "a%20b", "%C3%BC", ""):
        (await one.get(f"{topic_path(t.topic('n'))}?session={name}")).refused(400, "invalid-parameter")


@step("anonymous-sessions-are-described", ONCE)
async def anonymous_sessions(t: Step) -> None:
    one = await t.connect()
    subscriber = await one.subscribe(t.topic("s"))
    said = await description(one, subscriber.session)
    equal((said["connected"], said["filters"]), (True, [t.topic("s")]), "description")
    (await one.request("DELETE", f"/v1/sessions/{subscriber.session}")).expect(204)
    await subscriber.ended()
