"""Steps about subscriptions of every kind.

The normative statements that a step shows are cited in it: [MQTT-...] of MQTT 5.0, [MQTT311-...] of MQTT 3.1.1.
"""

from __future__ import annotations

from harness import Cannot, Failure, Refused
from step import V5, Step, equal, expect, step


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
    # The broker may see the DISCONNECT after the first of them: what it gave to that member then comes later.
    equal(sorted(rest), list(range(10)), "messages at the last member")
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
