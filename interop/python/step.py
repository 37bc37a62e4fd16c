"""What the steps of the common scenario are made of.

A step is written once, against `harness.Client`, and runs with every client library, over every transport and
for every protocol version that the library has.
"""

from __future__ import annotations

import asyncio
import itertools

from harness import Cannot, Client, Driver, Failure, Listener, Message, Refused

V3, V5, ALL = (3, 4), (5,), (3, 4, 5)
STEPS: list[tuple[str, tuple[int, ...], object]] = []
# Time given to a message that must not come, when no later message can prove its absence.
QUIET_S = 0.6


def step(name: str, levels=ALL):
    def add(function):
        STEPS.append((name, levels, function))
        return function

    return add


def expect(condition, why: str) -> None:
    if not condition:
        raise Failure(why)


def equal(got, wanted, what: str) -> None:
    if got != wanted:
        raise Failure(f"{what}: got {got!r}, expected {wanted!r}")


class Step:
    """One run of one step: names of its own, and the connections that it opened."""

    counter = itertools.count(1)

    def __init__(self, driver: Driver, listener: Listener, level: int, run: str, name: str):
        self.driver, self.listener, self.level = driver, listener, level
        self.number = next(self.counter)
        self.run, self.name = run, name
        self.clients: list[Client] = []
        self.retained: list[str] = []
        self.fences = itertools.count(1)

    def topic(self, *levels: str) -> str:
        return "/".join(["iop", f"{self.run}-{self.number}", *levels])

    def id(self, name: str) -> str:
        """A client identifier of at most 23 letters and digits: [MQTT-3.1.3-3] [MQTT311-3.1.3-5]."""
        return f"i{self.run}n{self.number}{name}"[:23]

    async def client(self, name: str, *, persistent: bool = False, expiry: int = 60, id: str | None = None,
                     properties: dict | None = None, **options) -> Client:
        """Connects; `persistent` asks for a session that outlives the connection, by the version's means."""
        one = Client(self.driver, name)
        self.clients.append(one)
        properties = dict(properties or {})
        if persistent:
            options.setdefault("clean", False)
            if self.level >= 5:
                properties.setdefault("session_expiry", expiry)
        await one.connect(self.listener, self.level, id=self.id(name) if id is None else id,
                          properties=properties, **options)
        return one

    def resumed(self, client: Client) -> None:
        """Expects that the broker had a session; the CONNACK of MQTT 3.1 can't say so."""
        expect(client.session_present or self.level == 3, f"{client.name}: session not present")

    def properties_equal(self, got: dict, wanted: dict, where: str) -> None:
        for name, value in wanted.items():
            seen = got.get(name)
            # A library that keeps user properties in a map by key shows their order within each key only.
            if name == "user_properties" and seen and self.driver.hello.get("groups_user_properties"):
                keys = list(dict.fromkeys(key for key, _ in value))
                value = sorted(value, key=lambda pair: keys.index(pair[0]))
            equal(seen, value, f"{name} of {where}")

    async def retain(self, publisher: Client, topic: str, payload, **options) -> None:
        self.retained.append(topic)
        await publisher.publish(topic, payload, retain=True, **options)

    async def nothing_more(self, subscriber: Client, publisher: Client) -> list[Message]:
        """Returns what `subscriber` still gets before a last message of `publisher`: nothing, hopefully.

        The last message has quality of service 2, because that is the slowest to be handed over."""
        fence = self.topic("fence", str(next(self.fences)))
        await subscriber.subscribe(fence, 2)
        await publisher.publish(fence, b"fence", 2)
        found = []
        while (message := await subscriber.receive()).topic != fence:
            found.append(message)
        return found

    async def silent(self, subscriber: Client, publisher: Client, why: str) -> None:
        extra = await self.nothing_more(subscriber, publisher)
        expect(not extra, f"{why}: got {', '.join(map(str, extra))}")

    async def clean_up(self) -> None:
        if self.retained:
            try:
                cleaner = await self.client("cleaner")
                for topic in self.retained:
                    await cleaner.publish(topic, b"", 1, retain=True)
            except (Failure, Refused, Cannot):
                pass
        await asyncio.gather(*(one.drop() for one in self.clients))
