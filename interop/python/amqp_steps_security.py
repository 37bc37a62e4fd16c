"""Steps of the AMQP scenario: who gets in. They use the listeners that admit nobody without a name."""

from __future__ import annotations

from amqp_client import AmqpError, Connection
from amqp_step import Step, equal, expect, step
from amqp_values import message, payload
from harness import INTEROP, Failure

BOTH = frozenset({"tcp", "tls"})
USER, PASSWORD = "interop", "a password of Bob's"
CERTIFICATE = {"cert": str(INTEROP / "certificates" / "device.pem"), "key": str(INTEROP / "certificates" / "device-key.pem")}


async def works(t: Step, **options) -> None:
    session = await t.session(at=t.places.asking[t.at.transport], **options)
    receiver = await session.receiver(t.topic("in"), 1)
    await (await session.sender(t.topic("in"))).deliver(message(b"in"))
    equal(payload(await receiver.accept()), b"in", "payload")


async def stays_out(t: Step, **options) -> None:
    connection = Connection(t.driver)
    try:
        await connection.connect(t.places.asking[t.at.transport], **options)
    except AmqpError:
        return
    t.connections.append(connection)
    raise Failure("was admitted")


@step("sasl-plain", BOTH)
async def plain(t: Step) -> None:
    await works(t, sasl="PLAIN", user=USER, password=PASSWORD)


@step("sasl-plain-wrong", BOTH)
async def plain_wrong(t: Step) -> None:
    await stays_out(t, sasl="PLAIN", user=USER, password="wrong")
    await stays_out(t, sasl="PLAIN", user="nobody", password=PASSWORD)
    # Others get in as before.
    await works(t, sasl="PLAIN", user=USER, password=PASSWORD)


@step("sasl-scram", BOTH)
async def scram(t: Step) -> None:
    await works(t, sasl="SCRAM-SHA-256", user=USER, password=PASSWORD)


@step("sasl-scram-wrong", BOTH)
async def scram_wrong(t: Step) -> None:
    await stays_out(t, sasl="SCRAM-SHA-256", user=USER, password="wrong")
    await stays_out(t, sasl="SCRAM-SHA-256", user="nobody", password=PASSWORD)


@step("sasl-anonymous-refused", BOTH)
async def anonymous_refused(t: Step) -> None:
    await stays_out(t, sasl="ANONYMOUS")


@step("sasl-none-refused", BOTH)
async def none_refused(t: Step) -> None:
    await stays_out(t, sasl=None)


@step("sasl-none", BOTH)
async def none(t: Step) -> None:
    # Part 2, section 2.2: where anybody may come in, AMQP may start without a security layer.
    session = await t.session(sasl=None)
    await (await session.sender(t.topic("x"))).deliver(message(b"x"))


@step("sasl-external", frozenset({"tls"}))
async def external(t: Step) -> None:
    # The certificate's common name is the user: a rule lets `device-7` alone into its branch.
    session = await t.session(at=t.places.asking["tls"], sasl="EXTERNAL", **CERTIFICATE)
    address = f"iop/only-device-7/{t.name('x')}"
    receiver = await session.receiver(address, 1)
    await (await session.sender(address)).deliver(message(b"me"))
    equal(payload(await receiver.accept()), b"me", "payload")
    other = await t.session(at=t.places.asking["tls"], sasl="PLAIN", user=USER, password=PASSWORD)
    why = await t.refused(other.receiver(address, 1), "amqp:unauthorized-access")
    expect(why.condition, "no condition")


@step("sasl-external-without-certificate", frozenset({"tls"}))
async def external_without(t: Step) -> None:
    await stays_out(t, sasl="EXTERNAL")
