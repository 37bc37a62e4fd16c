"""What the steps of the AMQP scenario are made of; they are written once and run with every client library."""

from __future__ import annotations

import asyncio
import itertools
import tempfile
from pathlib import Path

import mosquitto
from amqp_client import AmqpDriver, AmqpError, Connection, Receiver, Sender, Session
from harness import Cannot, Failure, Listener

STEPS: list[tuple[str, frozenset[str], object]] = []
# Steps that keep a driver busy for so long that the others would miss their time beside them; they come last.
ALONE: set[str] = set()
ALL = frozenset({"tcp", "tls", "ws", "wss", "quic", "quic-streams"})
PLAIN = frozenset({"tcp"})
# Time given to a message that must not come, when no later message can prove its absence.
QUIET_S = 0.5


def step(name: str, transports: frozenset[str] = ALL, alone: bool = False):
    def add(function):
        if alone:
            ALONE.add(name)
        STEPS.append((name, transports, function))
        return function

    return add


def expect(condition, why: str) -> None:
    if not condition:
        raise Failure(why)


def equal(got, wanted, what: str) -> None:
    if got != wanted:
        raise Failure(f"{what}: got {str(got)[:300]}, expected {str(wanted)[:300]}")


class Places:
    """The broker's listeners: by transport where nobody need say who it is, then those that ask, then MQTT's."""

    def __init__(self, open_to_all: dict[str, Listener], asking: dict[str, Listener], mqtt: Listener):
        self.open_to_all, self.asking, self.mqtt = open_to_all, asking, mqtt


class Step:
    """One run of one step: names of its own, and the connections that it opened."""

    counter = itertools.count(1)

    def __init__(self, driver: AmqpDriver, places: Places, at: Listener, run: str):
        self.driver, self.places, self.at = driver, places, at
        self.number, self.run = next(self.counter), run
        self.connections: list[Connection] = []
        self.mqtt: mosquitto.Step | None = None
        self.folder: tempfile.TemporaryDirectory | None = None

    def name(self, what: str) -> str:
        return f"iop-{self.run}-{self.number}-{what}"

    def topic(self, *levels: str) -> str:
        return "/".join(["iop", f"{self.run}-{self.number}", *levels])

    def queue(self, what: str = "q") -> str:
        return f"queue/{self.name(what)}"

    async def connect(self, at: Listener | None = None, **options) -> Connection:
        one = Connection(self.driver)
        await one.connect(at or self.at, **options)
        self.connections.append(one)
        return one

    async def session(self, **options) -> Session:
        return await (await self.connect(**options)).session()

    async def pair(self, address: str, credit: int = 100, **options) -> tuple[Sender, Receiver]:
        """A receiver with credit and a sender for the same address."""
        session = await self.session(**options)
        receiver = await session.receiver(address, credit)
        return await session.sender(address), receiver

    def mosquitto(self) -> mosquitto.Step:
        """Clients of MQTT 5.0 on the same broker."""
        if self.mqtt is None:
            self.folder = tempfile.TemporaryDirectory()
            self.mqtt = mosquitto.Step(self.places.mqtt, 5, Path(self.folder.name))
        return self.mqtt

    async def refused(self, doing, *conditions: str) -> AmqpError:
        """What has to be refused, with one of these conditions."""
        try:
            await doing
        except AmqpError as why:
            if why.condition not in conditions:
                raise Failure(f"refused with {why}, expected {' or '.join(conditions)}") from None
            return why
        raise Failure(f"was not refused with {' or '.join(conditions)}")

    async def clean_up(self) -> None:
        if self.mqtt is not None:
            await self.mqtt.clean_up()
            self.folder.cleanup()
        for one in self.connections:
            if one.open:
                try:
                    await asyncio.wait_for(one.close(), 2)
                except (AmqpError, Cannot, Failure, TimeoutError):
                    pass
