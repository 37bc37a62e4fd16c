"""Steps of the AMQP scenario: what a message may hold, and how large it may be."""

from __future__ import annotations

import asyncio

from amqp_client import LARGE_PATIENCE_S, AmqpError
from amqp_step import Step, equal, expect, step
from amqp_values import ARRAYS, COMPOUND, DESCRIBED, PRIMITIVES, binary, data, digest, message, normal, pairs, text

MIB = 1024 * 1024
# What its sections take beside the payload.
OVERHEAD_BYTES = 1024


async def values(t: Step, table: list) -> None:
    """Each value goes out as the body of a message and comes back the same."""
    sender, receiver = await t.pair(t.topic("v"))
    for value in table:
        await sender.deliver(message(value))
        got = await receiver.accept()
        equal(normal(got["body"].get("value")), normal(value), "amqp-value")


def table(name: str, values_of: list) -> None:
    @step(f"value-{name}")
    async def run(t: Step) -> None:
        await values(t, values_of)


for kind, known in (PRIMITIVES | COMPOUND).items():
    table(kind, known)
for kind, array in ARRAYS.items():
    table(f"array-of-{kind}", [array])
table("described", DESCRIBED)


@step("data-sections")
async def data_sections(t: Step) -> None:
    sender, receiver = await t.pair(t.topic("d"))
    for sections in ((b"",), (b"one",), (b"one", b"", b"three" * 100), tuple(bytes([n]) for n in range(50))):
        await sender.deliver({"body": data(*sections)})
        equal((await receiver.accept())["body"], data(*sections), "data sections")


@step("sequence-sections")
async def sequence_sections(t: Step) -> None:
    sender, receiver = await t.pair(t.topic("s"))
    for sections in ([[["uint", "1"], text("two"), ["list", [["null"]]]]], [[text("a")], [], [["long", "-3"]]]):
        await sender.deliver({"body": {"sequence": sections}})
        equal((await receiver.accept())["body"].get("sequence"), sections, "amqp-sequence sections")


def simple(t: Step) -> list:
    """An application property of every simple type that the library has."""
    missing = {key.removeprefix("value-") for key in t.driver.hello.get("cannot", {})}
    found = [[text(f"p-{kind}-{number}"), value] for kind, known in PRIMITIVES.items() if kind not in missing
             for number, value in enumerate(known)]
    return [*found, [text(""), text("an empty name")], [text("Ü €"), ["boolean", False]]]


@step("application-properties")
async def application_properties(t: Step) -> None:
    sender, receiver = await t.pair(t.topic("a"))
    wanted = simple(t)
    await sender.deliver(message(b"x", application_properties=wanted))
    got = dict((str(key), value) for key, value in (await receiver.accept()).get("application_properties", []))
    for key, value in wanted:
        equal(got.pop(str(key), None), value, f"application property {key[1]!r}")
    equal(got, {}, "further application properties")


@step("properties")
async def properties(t: Step) -> None:
    sender, receiver = await t.pair(t.topic("p"))
    wanted = {
        "message_id": text("m-1"), "user_id": binary(b"\0user"), "to": text(t.topic("p")), "subject": text("Betreff"),
        "reply_to": text(t.topic("answers")), "correlation_id": text("c-1"),
        "content_type": ["symbol", "application/json"], "content_encoding": ["symbol", "gzip"],
        "absolute_expiry_time": ["timestamp", "4102444800000"], "creation_time": ["timestamp", "1311704463521"],
        "group_id": text("g"), "group_sequence": ["uint", "4294967295"], "reply_to_group_id": text("r"),
    }
    await sender.deliver(message(b"x", properties=wanted))
    got = (await receiver.accept()).get("properties", {})
    for name, value in wanted.items():
        equal(got.get(name), value, name)


@step("identifiers")
async def identifiers(t: Step) -> None:
    sender, receiver = await t.pair(t.topic("i"))
    for value in (["ulong", "18446744073709551615"], ["ulong", "0"], ["uuid", "f81d4fae7dec11d0a76500a0c91e6bf6"],
                  binary(b"\xff\0"), text("")):
        await sender.deliver(message(b"x", properties={"message_id": value, "correlation_id": value}))
        got = (await receiver.accept()).get("properties", {})
        equal((got.get("message_id"), got.get("correlation_id")), (value, value), "message-id and correlation-id")


@step("header")
async def header(t: Step) -> None:
    # Part 3, section 3.2.1: what a field that is left out means.
    sender, receiver = await t.pair(t.queue())
    cases = (
        ({"durable": True, "priority": "9", "ttl": "60000"}, ("9", True)),
        ({"durable": False, "priority": "0", "ttl": "4294967295"}, ("0", False)), ({}, ("4", False)))
    for said, (priority, durable) in cases:
        await sender.deliver(message(b"x", **({"header": said} if said else {})))
        got = (await receiver.accept()).get("header", {})
        equal((got.get("priority", "4"), got.get("durable", False)), (priority, durable), "priority and durable")
        equal(got.get("delivery_count", "0"), "0", "delivery-count")
        if "ttl" in said:
            # What is left of it, as the broker held the message meanwhile.
            left = int(got.get("ttl", "0"))
            expect(int(said["ttl"]) - 30_000 < left <= int(said["ttl"]), f"ttl {left} of {said['ttl']}")


@step("annotations")
async def annotations(t: Step) -> None:
    sender, receiver = await t.pair(t.topic("a"))
    wanted = [[["symbol", "x-opt-one"], text("1")], [["symbol", "x-opt-list"], ["list", [["uint", "1"], ["null"]]]],
              [["symbol", "x-opt-map"], ["map", [[text("k"), ["long", "5"]]]]]]
    await sender.deliver(message(b"x", message_annotations=wanted,
                                 delivery_annotations=[[["symbol", "x-opt-hop"], text("to the broker only")]]))
    got = await receiver.accept()
    equal(pairs(got.get("message_annotations", [])), pairs(wanted), "message annotations")
    # Part 3, section 3.2.2: they are from one peer to the next.
    hop = [each for each in got.get("delivery_annotations", []) if each[0][1] == "x-opt-hop"]
    equal(hop, [], "delivery annotations of the sender")


@step("footer")
async def footer(t: Step) -> None:
    sender, receiver = await t.pair(t.topic("f"))
    wanted = [[["symbol", "x-opt-crc"], ["uint", "123456"]], [["symbol", "x-opt-sig"], binary(bytes(range(64)))]]
    await sender.deliver(message(b"x", footer=wanted))
    equal(pairs((await receiver.accept()).get("footer", [])), pairs(wanted), "footer")


async def large(t: Step, size: int, **options) -> None:
    sender, receiver = await t.pair(t.topic("large"), 10, **options)
    await sender.deliver({"body": {"pattern": size}}, timeout=LARGE_PATIENCE_S)
    got = (await receiver.accept(LARGE_PATIENCE_S))["body"]
    equal(got.get("digest"), digest(size), "length and digest of the payload")


@step("large-1-mib")
async def large_1_mib(t: Step) -> None:
    await large(t, MIB)


@step("large-64-mib", frozenset({"tcp", "tls"}), alone=True)
async def large_64_mib(t: Step) -> None:
    await large(t, 64 * MIB - OVERHEAD_BYTES)


@step("frames-of-512-bytes")
async def small_frames(t: Step) -> None:
    # Part 2, section 2.7.1: no peer may send more than the other takes.
    await large(t, 100_000, max_frame=512)


@step("above-max-message-size", frozenset({"tcp"}), alone=True)
async def too_large(t: Step) -> None:
    # Part 2, section 2.7.3; libraries that know the limit refuse by themselves.
    sender, _ = await t.pair(t.topic("large"))
    sending = asyncio.ensure_future(sender.send({"body": {"pattern": 64 * MIB + 1}}, timeout=LARGE_PATIENCE_S))
    await asyncio.wait({sending, sender.end}, return_when=asyncio.FIRST_COMPLETED)
    if sender.end.done():
        equal(sender.end.result()["condition"], "amqp:link:message-size-exceeded", "condition of the detach")
        sending.cancel()
        return
    try:
        said = sending.result()
    except AmqpError as why:
        expect("size" in str(why), f"refused, but not for its size: {why}")
        return
    expect(said["state"] == "rejected", f"outcome {said}")


@step("order-500")
async def order(t: Step) -> None:
    session = await t.session()
    receiver = await session.receiver(t.queue(), 500)
    sender = await session.sender(t.queue())
    await sender.burst(500)
    for number in range(500):
        body = (await receiver.accept())["body"]
        equal(body, data(str(number).encode().ljust(16)), f"message {number}")
