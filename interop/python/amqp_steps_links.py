"""Steps of the AMQP scenario: settlement, outcomes and redelivery, credit, addresses, filters and errors."""

from __future__ import annotations

import asyncio
import secrets
import time

from amqp_client import PATIENCE_S, AmqpError
from amqp_step import PLAIN, QUIET_S, Step, equal, expect, step
from amqp_values import message, payload, text

SELECTOR = "apache.org:selector-filter:string"
BINDING = "apache.org:legacy-amqp-topic-binding:string"
NO_LOCAL = "apache.org:no-local-filter:list"


def filter_set(name: str, value: list) -> dict:
    return {name: ["described", ["symbol", name], value]}


# --------------------------------------------------------------------------- settlement


@step("settled")
async def settled(t: Step) -> None:
    for address in (t.topic("s"), t.queue()):
        session = await t.session()
        receiver = await session.receiver(address, 10)
        sender = await session.sender(address, snd="settled")
        await sender.deliver(message(b"fire and forget"), settled=True)
        equal(payload(await receiver.accept()), b"fire and forget", f"payload on {address}")


@step("unsettled")
async def unsettled(t: Step) -> None:
    for address in (t.topic("u"), t.queue()):
        session = await t.session()
        receiver = await session.receiver(address, 10, snd="unsettled")
        sender = await session.sender(address, snd="unsettled")
        await sender.deliver(message(b"x"))
        got = await receiver.receive()
        expect(got.settled is not True, f"a delivery from {address} came settled, asked for unsettled")
        await got.settle()


@step("mixed")
async def mixed(t: Step) -> None:
    session = await t.session()
    receiver = await session.receiver(t.topic("m"), 10)
    sender = await session.sender(t.topic("m"))
    for number in range(6):
        await sender.deliver(message(str(number).encode()), settled=number % 2 == 0)
        got = await receiver.receive()
        equal(payload(got.message), str(number).encode(), "payload")
        if got.settled is not None:
            # docs/amqp.md: with `mixed` messages of QoS 0 come settled, others unsettled.
            equal(got.settled, number % 2 == 0, f"settled of message {number}")
        if not got.settled:
            await got.settle()


@step("source-settled")
async def source_settled(t: Step) -> None:
    session = await t.session()
    receiver = await session.receiver(t.queue(), 10, snd="settled")
    sender = await session.sender(t.queue())
    await sender.deliver(message(b"x"))
    got = await receiver.receive()
    expect(got.settled is not False, "a delivery came unsettled, asked for settled")
    equal(payload(got.message), b"x", "payload")


@step("receiver-second")
async def receiver_second(t: Step) -> None:
    # Part 2, section 2.6.12: the sender settles when it knows the outcome, then the receiver; both ways.
    for address in (t.topic("two"), t.queue()):
        session = await t.session()
        receiver = await session.receiver(address, 10, snd="unsettled", rcv="second")
        sender = await session.sender(address, snd="unsettled", rcv="second")
        for number in range(3):
            await sender.deliver(message(str(number).encode()))
            got = await receiver.receive()
            equal(payload(got.message), str(number).encode(), "payload")
            await got.settle()
        await receiver.quiet(QUIET_S, "what was settled came again")


# --------------------------------------------------------------------------- outcomes


@step("rejected")
async def rejected(t: Step) -> None:
    sender, receiver = await t.pair(t.queue(), 10)
    await sender.deliver(message(b"bad"))
    await (await receiver.receive()).settle("rejected", condition="amqp:decode-error")
    await sender.deliver(message(b"good"))
    equal(payload(await receiver.accept()), b"good", "the message after a rejected one")
    await receiver.quiet(QUIET_S, "a rejected message came again")


@step("released")
async def released(t: Step) -> None:
    sender, receiver = await t.pair(t.queue(), 10)
    await sender.deliver(message(b"x"))
    await (await receiver.receive()).settle("released")
    got = await receiver.receive()
    equal(payload(got.message), b"x", "the message after it was released")
    equal(got.message.get("header", {}).get("delivery_count", "0"), "0", "delivery-count of a released message")
    await got.settle()


@step("modified")
async def modified(t: Step) -> None:
    sender, receiver = await t.pair(t.queue(), 10)
    await sender.deliver(message(b"x"))
    for count in range(3):
        got = await receiver.receive()
        equal(got.message.get("header", {}).get("delivery_count", "0"), str(count), "delivery-count")
        if count < 2:
            await got.settle("modified", failed=True)
    await got.settle()


@step("undeliverable-here")
async def undeliverable_here(t: Step) -> None:
    sender, receiver = await t.pair(t.queue(), 10)
    await sender.deliver(message(b"x"))
    await (await receiver.receive()).settle("modified", failed=False, undeliverable=True)
    await receiver.quiet(QUIET_S, "a message came back to who cannot deliver it")
    other = await (await t.session()).receiver(t.queue(), 10)
    equal(payload(await other.accept()), b"x", "the message at another receiver")


@step("order-of-released")
async def order_of_released(t: Step) -> None:
    sender, receiver = await t.pair(t.queue(), 3)
    await sender.burst(5)
    held = [await receiver.receive() for _ in range(3)]
    for one in held:
        await one.settle("released")
    await receiver.detach()
    again = await receiver.session.receiver(t.queue(), 10)
    got = [int(payload(await again.accept())) for _ in range(5)]
    equal(got, list(range(5)), "messages after three were released")


@step("ends-in-order")
async def ends_in_order(t: Step) -> None:
    # The queue takes three failed deliveries. Consumers that prefetch and end in order have failed none.
    sender = await (await t.session()).sender(t.queue())
    await sender.burst(20)
    for end in ("close", "detach", "end", "close"):
        leaving = await t.connect()
        session = await leaving.session()
        receiver = await session.receiver(t.queue(), 100)
        equal(len([await receiver.receive() for _ in range(20)]), 20, "messages before " + end)
        if end == "detach":
            await receiver.detach()
        elif end == "end":
            await session.finish()
        await leaving.close()
    last = await (await t.session()).receiver(t.queue(), 100)
    for number in range(20):
        got = await last.receive()
        equal(int(payload(got.message)), number, "the message after consumers that left in order")
        equal(got.message.get("header", {}).get("delivery_count", "0"), "0", "delivery-count")
        await got.settle()


@step("redelivery-after-loss")
async def redelivery(t: Step) -> None:
    sender = await (await t.session()).sender(t.queue())
    lost = await t.connect()
    first = await (await lost.session()).receiver(t.queue(), 10)
    await sender.burst(3)
    for _ in range(3):
        await first.receive()
    await lost.abort()
    second = await (await t.session()).receiver(t.queue(), 10)
    got = [int(payload(await second.accept())) for _ in range(3)]
    equal(got, [0, 1, 2], "messages of a receiver that was lost")


# --------------------------------------------------------------------------- credit


@step("credit")
async def credit(t: Step) -> None:
    sender, receiver = await t.pair(t.queue(), 0)
    await sender.burst(10)
    await receiver.quiet(QUIET_S, "a message without credit")
    await receiver.credit(3)
    for number in range(3):
        equal(int(payload(await receiver.accept())), number, "message")
    await receiver.quiet(QUIET_S, "a fourth message for a credit of three")
    await receiver.credit(7)
    equal([int(payload(await receiver.accept())) for _ in range(7)], list(range(3, 10)), "the rest")


@step("drain")
async def drain(t: Step) -> None:
    # Part 2, section 2.6.7: the sender uses up the credit, or advances its count past it.
    sender, receiver = await t.pair(t.queue(), 0)
    await sender.burst(2)
    await receiver.credit(10)
    # go-amqp forgets credit that it has not sent when it drains.
    got = [int(payload(await receiver.accept()))]
    await receiver.drain()
    got.append(int(payload(await receiver.accept())))
    equal(got, [0, 1], "messages of a drained link")
    await sender.burst(1)
    await receiver.quiet(QUIET_S, "a message after the credit was drained")
    await receiver.credit(1)
    equal(payload(await receiver.accept()).strip(), b"0", "the message after new credit")


@step("competing-consumers")
async def competing(t: Step) -> None:
    first = await (await t.session()).receiver(t.queue(), 20)
    second = await (await t.session()).receiver(t.queue(), 20)
    sender = await (await t.session()).sender(t.queue())
    await sender.burst(40)
    got = []
    for one in (first, second):
        mine = [int(payload(await one.accept())) for _ in range(20)]
        equal(mine, sorted(mine), "order at one of two receivers")
        got += mine
    equal(sorted(got), list(range(40)), "messages of both receivers")


# --------------------------------------------------------------------------- addresses


@step("topic-copies")
async def topic_copies(t: Step) -> None:
    session = await t.session()
    exact = await session.receiver(t.topic("a", "b"), 10)
    plus = await session.receiver(t.topic("+", "b"), 10)
    everything = await session.receiver(t.topic("#"), 10)
    sender = await session.sender(t.topic("a", "b"))
    await sender.deliver(message(b"x"))
    for one in (exact, plus, everything):
        equal(payload(await one.accept()), b"x", "each receiver's copy")
    await (await session.sender(t.topic("a", "c"))).deliver(message(b"y"))
    equal(payload(await everything.accept()), b"y", "what matches # only")
    await exact.quiet(QUIET_S, "another topic's message")


@step("rabbitmq-queue")
async def rabbitmq_queue(t: Step) -> None:
    # RabbitMQ 4's address form v2, percent-encoded; `queue/NAME` is the same queue.
    name = t.name("Ü q")
    session = await t.session()
    encoded = name.replace(" ", "%20").replace("Ü", "%C3%9C")
    sender = await session.sender(f"/queues/{encoded}")
    await sender.deliver(message(b"x"))
    receiver = await session.receiver(f"queue/{name}", 1)
    equal(payload(await receiver.accept()), b"x", "payload")


@step("rabbitmq-exchange")
async def rabbitmq_exchange(t: Step) -> None:
    session = await t.session()
    key = t.topic("a").replace("/", ".")
    plain = await session.receiver(t.topic("a"), 10)
    bound = await session.receiver(f"/exchanges/amq.topic/{key.rpartition('.')[0]}.*", 10)
    await (await session.sender(f"/exchanges/amq.topic/{key}")).deliver(message(b"1"))
    by_subject = await session.sender("/exchanges/amq.topic")
    await by_subject.deliver(message(b"2", properties={"subject": text(key)}))
    for one in (plain, bound):
        equal([payload(await one.accept()) for _ in range(2)], [b"1", b"2"], "payloads")


@step("prefixes-and-capabilities")
async def prefixes(t: Step) -> None:
    session = await t.session()
    receiver = await session.receiver(f"topic://{t.topic('x')}", 10)
    await (await session.sender(t.topic("x"))).deliver(message(b"t"))
    equal(payload(await receiver.accept()), b"t", "payload of a topic")
    name = t.name("cap")
    await (await session.sender({"address": name, "capabilities": ["queue"]})).deliver(message(b"q"))
    equal(payload(await (await session.receiver(f"queue://{name}", 10)).accept()), b"q", "payload of a queue")


@step("anonymous-relay")
async def anonymous_relay(t: Step) -> None:
    session = await t.session()
    topic = await session.receiver(t.topic("r"), 10)
    queue = await session.receiver(t.queue(), 10)
    relay = await session.sender(None)
    await relay.deliver(message(b"1", properties={"to": text(t.topic("r"))}))
    await relay.deliver(message(b"2", properties={"to": text(t.queue())}))
    equal(payload(await topic.accept()), b"1", "payload at the topic")
    equal(payload(await queue.accept()), b"2", "payload at the queue")
    for what, properties in (("without `to`", {"subject": text("none")}),
                             ("to what is denied", {"to": text("iop/denied/x")}),
                             ("to a filter", {"to": text("a/#")})):
        said = await relay.send(message(b"x", properties=properties))
        equal(said["state"], "rejected", f"outcome of a message {what}")


@step("request-response")
async def request_response(t: Step) -> None:
    client = await t.session()
    answers = await client.receiver({"dynamic": True}, 10)
    expect(answers.address and answers.address.startswith("amqp/dynamic/"), f"dynamic address {answers.address!r}")
    server = await t.session()
    requests = await server.receiver(t.queue(), 10)
    ask = message(b"what?", properties={"reply_to": text(answers.address), "message_id": text("id-1")})
    await (await client.sender(t.queue())).deliver(ask)
    request = await requests.accept()
    back = request["properties"]["reply_to"][1]
    answer = message(b"this", properties={"correlation_id": request["properties"]["message_id"]})
    await (await server.sender(back)).deliver(answer)
    got = await answers.accept()
    equal((payload(got), got["properties"]["correlation_id"]), (b"this", text("id-1")), "the answer")


@step("dynamic-node-lifetime")
async def dynamic_node_lifetime(t: Step) -> None:
    other = await t.session()
    for end in "detach", "end", "close":
        client = await t.session()
        answers = await client.receiver({"dynamic": True}, 10)
        await (await other.sender(answers.address)).deliver(message(b"this"))
        equal(payload(await answers.accept()), b"this", "the answer")
        if end == "detach":
            await answers.detach()
        elif end == "end":
            await client.finish()
        else:
            await client.connection.close()
        # Nodes of a cluster hear of it a moment later.
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                sender = await other.sender(answers.address)
            except AmqpError as why:
                equal(why.condition, "amqp:not-found", "the refusal")
                break
            await sender.detach()
            expect(time.monotonic() < deadline, "the node is still there")
            await asyncio.sleep(0.05)


@step("durable-subscription")
async def durable_subscription(t: Step) -> None:
    container, name = "iop-" + secrets.token_hex(6), "sub-" + secrets.token_hex(3)
    source = {"address": t.topic("d"), "durable": 2, "expiry": "never"}
    first = await t.connect(container=container)
    receiver = await (await first.session()).receiver(source, 1, name=name)
    sender = await (await t.session()).sender(t.topic("d"))
    await sender.deliver(message(b"0"))
    equal(payload(await receiver.accept()), b"0", "first message")
    # Libraries settle by themselves, and soon: what comes on credit that the link gave later shows that they have.
    await receiver.credit(1)
    await sender.deliver(message(b"1"))
    await receiver.receive()
    await first.close()
    for number in (2, 3):
        await sender.deliver(message(str(number).encode()))
    second = await t.connect(container=container)
    again = await (await second.session()).receiver(source, 10, name=name)
    equal([payload(await again.accept()) for _ in range(3)], [b"1", b"2", b"3"], "what came meanwhile")
    # Detaching with `closed` ends it.
    await again.detach(closed=True)
    await sender.deliver(message(b"lost"))
    third = await (await second.session()).receiver(source, 10, name=name)
    await third.quiet(QUIET_S, "a message for a subscription that had ended")
    await third.detach(closed=True)


@step("durable-subscription-after-loss")
async def durable_after_loss(t: Step) -> None:
    # What was delivered and not settled when the connection was lost comes again, in order.
    container, name = "iop-" + secrets.token_hex(6), "sub-" + secrets.token_hex(3)
    source = {"address": t.topic("d"), "durable": 2, "expiry": "never"}
    first = await t.connect(container=container)
    receiver = await (await first.session()).receiver(source, 2, name=name, snd="unsettled")
    sender = await (await t.session()).sender(t.topic("d"))
    for number in range(4):
        await sender.deliver(message(str(number).encode()))
    await (await receiver.receive()).settle()
    await receiver.receive()
    # What comes on credit that the link gave later shows that the first is settled.
    await receiver.credit(1)
    await receiver.receive()
    await first.abort()
    second = await t.connect(container=container)
    again = await (await second.session()).receiver(source, 10, name=name, snd="unsettled")
    equal([payload(await again.accept()) for _ in range(3)], [b"1", b"2", b"3"], "what was not settled")
    await again.detach(closed=True)


@step("subscription-with-timeout")
async def subscription_with_timeout(t: Step) -> None:
    container = "iop-" + secrets.token_hex(6)
    source = {"address": t.topic("e"), "expiry": "connection-close", "timeout": 1}
    first = await t.connect(container=container)
    await (await first.session()).receiver(source, 10, name="e")
    await first.close()
    await asyncio.sleep(2)
    sender = await (await t.session()).sender(t.topic("e"))
    await sender.deliver(message(b"late"))
    second = await t.connect(container=container)
    again = await (await second.session()).receiver(source, 10, name="e")
    await again.quiet(QUIET_S, "a message for a subscription that had expired")


@step("shared-subscription")
async def shared(t: Step) -> None:
    address = f"$share/g/{t.topic('s')}"
    first = await (await t.session()).receiver(address, 20)
    second = await (await t.session()).receiver(address, 20)
    await (await (await t.session()).sender(t.topic("s"))).burst(40)
    got = []
    for one in (first, second):
        got += [int(payload(await one.accept())) for _ in range(20)]
    equal(sorted(got), list(range(40)), "messages of both members")


# --------------------------------------------------------------------------- filters


async def selected(t: Step, address: str) -> None:
    session = await t.session()
    chosen = filter_set(SELECTOR, text("colour = 'red' AND weight > 10"))
    receiver = await session.receiver({"address": address, "filters": chosen}, 10)
    expect(SELECTOR in receiver.filters, f"the answer names no selector, only {receiver.filters}")
    sender = await session.sender(address)
    for number, (colour, weight) in enumerate((("red", 5), ("blue", 20), ("red", 20), ("red", 11))):
        await sender.deliver(message(str(number).encode(), application_properties=[
            [text("colour"), text(colour)], [text("weight"), ["int", str(weight)]]]))
    equal([payload(await receiver.accept()) for _ in range(2)], [b"2", b"3"], "selected messages")
    await receiver.quiet(QUIET_S, "a message that was not selected")


@step("selector-topic")
async def selector_topic(t: Step) -> None:
    await selected(t, t.topic("s"))


@step("selector-queue")
async def selector_queue(t: Step) -> None:
    await selected(t, t.queue())
    rest = await (await t.session()).receiver(t.queue(), 10)
    equal([payload(await rest.accept()) for _ in range(2)], [b"0", b"1"], "what the selector left in the queue")


@step("selector-invalid")
async def selector_invalid(t: Step) -> None:
    session = await t.session()
    wrong = {"address": t.topic("s"), "filters": filter_set(SELECTOR, text("colour = = 'red'"))}
    await t.refused(session.receiver(wrong, 1), "amqp:invalid-field")


@step("topic-binding")
async def topic_binding(t: Step) -> None:
    session = await t.session()
    chosen = filter_set(BINDING, text(t.topic("*", "x").replace("/", ".")))
    receiver = await session.receiver({"address": t.topic("#"), "filters": chosen}, 10)
    for name in ("a/x", "a/y", "b/x"):
        await (await session.sender(t.topic(*name.split("/")))).deliver(message(name.encode()))
    equal([payload(await receiver.accept()) for _ in range(2)], [b"a/x", b"b/x"], "bound messages")


@step("no-local")
async def no_local(t: Step) -> None:
    session = await t.session()
    chosen = {NO_LOCAL: ["described", ["symbol", NO_LOCAL], ["list", []]]}
    receiver = await session.receiver({"address": t.topic("n"), "filters": chosen}, 10)
    await (await session.sender(t.topic("n"))).deliver(message(b"mine"))
    await (await (await t.session()).sender(t.topic("n"))).deliver(message(b"theirs"))
    equal(payload(await receiver.accept()), b"theirs", "a message of another connection")


# --------------------------------------------------------------------------- errors


@step("not-found")
async def not_found(t: Step) -> None:
    session = await t.session()
    await t.refused(session.sender("/nothing/here"), "amqp:not-found")
    await t.refused(session.receiver("/nothing/here"), "amqp:not-found")
    # The session goes on.
    sender = await session.sender(t.topic("on"))
    await sender.deliver(message(b"x"))


@step("invalid-address")
async def invalid_address(t: Step) -> None:
    session = await t.session()
    await t.refused(session.sender("a/#"), "amqp:invalid-field")
    await t.refused(session.receiver("a/#/b"), "amqp:invalid-field")


@step("unauthorized")
async def unauthorized(t: Step) -> None:
    session = await t.session()
    await t.refused(session.sender("iop/denied/x"), "amqp:unauthorized-access")
    await t.refused(session.receiver("iop/denied/#"), "amqp:unauthorized-access")
    await t.refused(session.receiver("queue/iop-denied"), "amqp:unauthorized-access")


@step("browsing")
async def browsing(t: Step) -> None:
    # docs/amqp.md: a look gets copies in order, and leaves the messages to consumers.
    session = await t.session()
    sender = await session.sender(t.queue())
    for number in range(3):
        await sender.deliver(message(str(number).encode()))
    look = await session.receiver({"address": t.queue(), "distribution": "copy"}, 10)
    equal([payload(await look.accept()) for _ in range(3)], [b"0", b"1", b"2"], "what was seen")
    consumer = await session.receiver(t.queue(), 10)
    equal([payload(await consumer.accept()) for _ in range(3)], [b"0", b"1", b"2"], "what was left")


@step("delivery-delay")
async def delivery_delay(t: Step) -> None:
    # docs/amqp.md: both annotations of JMS clients. A message that is not due does not hold up the next.
    session = await t.session()
    sender = await session.sender(t.queue())
    receiver = await session.receiver(t.queue(), 10)
    begin = time.time()
    await sender.deliver(message(b"2", message_annotations=[
        [["symbol", "x-opt-delivery-time"], ["timestamp", str(int((begin + 1.5) * 1000))]]]))
    await sender.deliver(message(b"1", message_annotations=[[["symbol", "x-opt-delivery-delay"], ["long", "500"]]]))
    await sender.deliver(message(b"0"))
    # On a busy machine the sends take so long that their times have another order.
    is_quick = time.time() - begin < 0.5
    seen = [payload(await receiver.accept()) for _ in range(3)]
    equal(seen if is_quick else sorted(seen), [b"0", b"1", b"2"], "payloads in the order of their times")
    expect(time.time() - begin >= 1.5, "the last one came before its time")


@step("nodes-of-other-brokers")
async def nodes_of_other_brokers(t: Step) -> None:
    # What clients of RabbitMQ and Azure look for. They learn that it is not here, and are not left without an answer.
    session = await t.session()
    for address in ("/management", "$management", "$cbs", "/queue/a", "/topic/a", "/exchanges/amq.direct/a"):
        await t.refused(session.sender(address), "amqp:not-found")
        await t.refused(session.receiver(address), "amqp:not-found")


@step("sessions-apart")
async def sessions_apart(t: Step) -> None:
    """What ends on one session leaves the others alone."""
    connection = await t.connect()
    sessions = [await connection.session() for _ in range(3)]
    receivers = [await one.receiver(t.topic(str(number)), 10) for number, one in enumerate(sessions)]
    senders = [await one.sender(t.topic(str((number + 1) % 3))) for number, one in enumerate(sessions)]
    for number, one in enumerate(senders):
        await one.deliver(message(str(number).encode()))
    for number, one in enumerate(receivers):
        equal(payload(await one.accept()), str((number - 1) % 3).encode(), f"payload on session {number}")
    await sessions[0].finish()
    await senders[1].deliver(message(b"on"))
    equal(payload(await receivers[2].accept()), b"on", "payload after another session ended")
    fourth = await connection.session()
    await (await fourth.sender(t.topic("2"))).deliver(message(b"new"))
    equal(payload(await receivers[2].accept()), b"new", "payload from a session begun anew")


@step("idle", PLAIN)
async def idle(t: Step) -> None:
    # Part 2, section 2.4.5: the broker sends empty frames, or the library gives the connection up.
    # Long enough for a library that is busy with the steps beside this one.
    sender, receiver = await t.pair(t.topic("idle"), 10, idle_s=6)
    await asyncio.sleep(13)
    await sender.deliver(message(b"alive"))
    equal(payload(await receiver.accept()), b"alive", "payload after silence")
