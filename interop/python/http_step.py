"""What the steps of the HTTP scenario are made of; they are written once and run with every client library."""

from __future__ import annotations

import asyncio
import base64
import itertools
import tempfile
from pathlib import Path

import mosquitto
from amqp_client import AmqpDriver
from amqp_client import Connection as AmqpConnection
from harness import INTEROP, Cannot, Failure, Listener
from http_client import Connection, HttpDriver, HttpError

STEPS: list[tuple[str, frozenset[str], object]] = []
H1 = frozenset({"h1", "h1s", "urllib", "fetch"})
# Versions that carry many requests on one connection.
MANY = frozenset({"h2", "h2c", "h3"})
ALL = H1 | MANY
SECURE = frozenset({"h1s", "h2", "h3"})
# Steps that show nothing new for each transport run on one of a library's.
ONCE = frozenset({"once"})
# What a driver runs over its transports in `brief`: those that show little beside its others, at a high price.
CORE = frozenset({"publish-subscribe", "every-field", "retained", "last", "topics", "long-poll", "last-event-id",
                  "durable", "idempotency", "method", "host", "basic", "alt-svc", "page"})
# The scheme of the listener that a transport needs.
SCHEMES = {"h1": "http", "h1s": "https", "urllib": "http", "fetch": "http", "h2": "https", "h2c": "http", "h3": "h3"}
VERSIONS = {"h1": "1.1", "h1s": "1.1", "urllib": "1.1", "fetch": "1.1", "h2": "2", "h2c": "2", "h3": "3"}
# Time given to a message that must not come.
QUIET_S = 0.4
# As interop/http.toml has them.
USER, PASSWORD = "interop", "a password of Bob's"
CERTIFICATE = {"cert": str(INTEROP / "certificates" / "device.pem"),
               "key": str(INTEROP / "certificates" / "device-key.pem")}


def basic(user: str = USER, password: str = PASSWORD) -> tuple[str, str]:
    return ("Authorization", "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode())


def step(name: str, transports: frozenset[str] = ALL):
    def add(function):
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
    """The listeners of http.toml by scheme: the first of each kind admits everybody, the second asks who it is."""

    def __init__(self, listeners: list[Listener]):
        self.open_to_all: dict[str, Listener] = {}
        self.asking: dict[str, Listener] = {}
        for one in listeners:
            (self.asking if one.scheme in self.open_to_all else self.open_to_all)[one.scheme] = one
        self.all = listeners


class Step:
    """One run of one step: names of its own, and what it opened."""

    counter = itertools.count(1)

    def __init__(self, driver: HttpDriver, places: Places, transport: str, run: str, amqp: AmqpDriver | None):
        self.driver, self.places, self.transport, self.run = driver, places, transport, run
        self.number, self.amqp_driver = next(self.counter), amqp
        self.connections: list[Connection] = []
        self.amqp_connections: list[AmqpConnection] = []
        self.mqtt: mosquitto.Step | None = None
        self.folder: tempfile.TemporaryDirectory | None = None

    @property
    def scheme(self) -> str:
        return SCHEMES[self.transport]

    def topic(self, *levels: str) -> str:
        return "/".join(["iop", f"{self.run}-{self.number}", *levels])

    def name(self, what: str = "s") -> str:
        return f"iop-{self.run}-{self.number}-{what}"

    async def connect(self, asking: bool = False, at: Listener | None = None, **options) -> Connection:
        places = self.places.asking if asking else self.places.open_to_all
        one = Connection(self.driver, at or places[self.scheme], self.transport, **options)
        self.connections.append(one)
        return await one.open()

    def mosquitto(self) -> mosquitto.Step:
        """Clients of MQTT 5.0 on the same broker."""
        if self.mqtt is None:
            self.folder = tempfile.TemporaryDirectory()
            self.mqtt = mosquitto.Step(self.places.open_to_all["mqtt"], 5, Path(self.folder.name))
        return self.mqtt

    async def amqp(self):
        """A session of AMQP on the same broker."""
        if self.amqp_driver is None:
            raise Cannot("no client of AMQP beside this library")
        at = self.places.open_to_all["amqp"]
        at.transport = "tcp"
        one = AmqpConnection(self.amqp_driver)
        await one.connect(at)
        self.amqp_connections.append(one)
        return await one.session()

    async def clean_up(self) -> None:
        if self.mqtt is not None:
            await self.mqtt.clean_up()
            self.folder.cleanup()
        for one in self.amqp_connections:
            await one.close()
        await asyncio.gather(*(one.close() for one in self.connections), return_exceptions=True)


async def fails(doing, why: str) -> HttpError:
    """What the library cannot do, because the server did not let it."""
    try:
        await doing
    except HttpError as error:
        return error
    raise Failure(why)
