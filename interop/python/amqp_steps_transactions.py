"""Steps of the AMQP scenario: local transactions (part 4)."""

from __future__ import annotations

import itertools

from amqp_client import PATIENCE_S, Receiver, Sender, Session
from amqp_step import QUIET_S, Step, equal, step
from amqp_values import message, payload

numbers = itertools.count(1)


class Transactions:
    """A coordinator's link and the transactions that it declared."""

    def __init__(self, link: Sender):
        self.link = link

    @classmethod
    async def of(cls, session: Session) -> Transactions:
        return cls(await session.sender({"coordinator": True}))

    async def declare(self) -> int:
        number = next(numbers)
        await self.link.driver.ask("declare", PATIENCE_S, l=self.link.number, x=number)
        return number

    async def discharge(self, number: int, fail: bool = False) -> None:
        await self.link.driver.ask("discharge", PATIENCE_S, l=self.link.number, x=number, fail=fail)


async def prepared(t: Step) -> tuple[Transactions, Sender, Receiver]:
    session = await t.session()
    return await Transactions.of(session), await session.sender(t.queue()), await session.receiver(t.queue(), 50)


async def post(sender: Sender, number: int, payloads: list[bytes]) -> None:
    for one in payloads:
        said = await sender.send(message(one), txn=number)
        equal(said["state"], "accepted", "provisional outcome of a transactional transfer")


@step("transaction-commit")
async def commit(t: Step) -> None:
    transactions, sender, receiver = await prepared(t)
    number = await transactions.declare()
    await post(sender, number, [b"1", b"2"])
    await receiver.quiet(QUIET_S, "a message before its transaction was discharged")
    await transactions.discharge(number)
    equal([payload(await receiver.accept()) for _ in range(2)], [b"1", b"2"], "messages of the transaction")


@step("transaction-rollback")
async def rollback(t: Step) -> None:
    transactions, sender, receiver = await prepared(t)
    number = await transactions.declare()
    await post(sender, number, [b"1", b"2"])
    await transactions.discharge(number, fail=True)
    await sender.deliver(message(b"after"))
    equal(payload(await receiver.accept()), b"after", "the message after a transaction that failed")


@step("transaction-retire")
async def retire(t: Step) -> None:
    transactions, sender, receiver = await prepared(t)
    await sender.deliver(message(b"work"))
    number = await transactions.declare()
    await (await receiver.receive()).settle("accepted", txn=number)
    await post(sender, number, [b"result"])
    await transactions.discharge(number)
    equal(payload(await receiver.accept()), b"result", "what was posted with the retirement")
    await receiver.detach()
    other = await receiver.session.receiver(t.queue(), 10)
    await other.quiet(QUIET_S, "a message that was retired came again")


@step("transaction-retire-rollback")
async def retire_rollback(t: Step) -> None:
    transactions, sender, receiver = await prepared(t)
    await sender.deliver(message(b"work"))
    number = await transactions.declare()
    await (await receiver.receive()).settle("accepted", txn=number)
    await transactions.discharge(number, fail=True)
    await receiver.detach()
    other = await receiver.session.receiver(t.queue(), 10)
    equal(payload(await other.accept()), b"work", "the message whose retirement was rolled back")


@step("transaction-lost")
async def lost(t: Step) -> None:
    """A transaction ends with its connection, and nothing of it happened."""
    connection = await t.connect()
    session = await connection.session()
    transactions = await Transactions.of(session)
    number = await transactions.declare()
    await post(await session.sender(t.queue()), number, [b"never"])
    await connection.abort()
    receiver = await (await t.session()).receiver(t.queue(), 10)
    await receiver.quiet(QUIET_S, "a message of a transaction whose connection was lost")
