"""What every suite shares: the broker's addresses, the lines of the report, and driver processes.

A suite runs against one running broker. The runner says where it is:
  STERNA_READY_FILE  JSON {"listeners": [{"url": ...}], "certificate": PATH of the authority's certificate}
  STERNA_BUILD       folder into which the suites' dependencies are installed
  STERNA_PID         process identifier of the broker (only the attacks need it)
Standard library only.
"""

from __future__ import annotations

import asyncio
import base64
import inspect
import itertools
import json
import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

INTEROP = Path(__file__).resolve().parent.parent
# The transports in the words of the report.
SCHEMES = {"mqtt": "tcp", "mqtts": "tls", "ws": "ws", "wss": "wss", "mqtt+quic": "quic", "quic": "quic"}
AMQP_SCHEMES = {"amqp": "tcp", "amqps": "tls", "ws": "ws", "wss": "wss", "amqp+quic": "quic"}
LEVELS = {3: "3.1", 4: "3.1.1", 5: "5.0"}
# A driver's line may carry a payload of 1 MiB in base64.
LINE_LIMIT_BYTES = 16 * 1024 * 1024
# How long something may take that is to come. A hang is told from a slow machine, and nothing is measured.
PATIENCE_S = 30.0


class Failure(Exception):
    """A scenario's expectation that did not hold; the text is what the report says."""


class Cannot(Exception):
    """What the client (or the broker's advertised settings) leaves out: there is nothing to check."""


class Refused(Exception):
    """The broker refused a CONNECT. `reason` is the code of the CONNACK, or None if there was none."""

    def __init__(self, reason: int | None, detail: str = ""):
        super().__init__(detail)
        self.reason = reason


class Report:
    """Prints the result lines and remembers whether one failed."""

    def __init__(self):
        self.failed = self.passed = self.skipped = self.void = 0

    @staticmethod
    def _line(text: str) -> None:
        # In one piece: rows that run in threads report at the same time.
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    def ok(self, name: str) -> None:
        self.passed += 1
        self._line(f"ok {name}")

    def not_ok(self, name: str, why: str) -> None:
        self.failed += 1
        self._line(f"not ok {name}: {' '.join(why.split())}")

    def skip(self, name: str, why: str) -> None:
        """What could be there and is missing."""
        self.skipped += 1
        self._line(f"skip {name}: {' '.join(why.split())}")

    def nothing(self, name: str, why: str) -> None:
        """What cannot be there: a library that has no way to do it, a version that has not got it."""
        self.void += 1
        self._line(f"n/a {name}: {' '.join(why.split())}")

    def exit(self) -> None:
        print(f"# {self.passed} ok, {self.failed} not ok, {self.skipped} skipped, {self.void} not applicable",
              flush=True)
        sys.exit(1 if self.failed or not self.passed else 0)


@dataclass
class Listener:
    """One address of the broker."""

    url: str
    certificate: str | None

    def __post_init__(self):
        parts = urlsplit(self.url)
        self.scheme, self.host, self.port = parts.scheme, parts.hostname, parts.port
        self.path = parts.path or "/mqtt"
        self.transport = SCHEMES.get(self.scheme, self.scheme)
        self.secure = self.transport in ("tls", "wss", "quic")


def ready() -> dict:
    """What the broker wrote when it was ready."""
    try:
        return json.loads(Path(os.environ["STERNA_READY_FILE"]).read_text())
    except (KeyError, OSError, ValueError) as why:
        print(f"not ok broker: STERNA_READY_FILE does not say where it is: {type(why).__name__}: {why}", flush=True)
        sys.exit(1)


def all_listeners() -> list[Listener]:
    said = ready()
    return [Listener(entry["url"], said.get("certificate")) for entry in said["listeners"]]


def listeners() -> dict[str, Listener]:
    """The broker's listeners by transport (tcp, tls, ws, wss, quic); the first of each kind."""
    found: dict[str, Listener] = {}
    for one in all_listeners():
        found.setdefault(one.transport, one)
    return found


def build_folder() -> Path:
    return Path(os.environ.get("STERNA_BUILD", INTEROP / "target"))


@dataclass
class Message:
    """A message as the foreign client's API showed it."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    dup: bool | None
    properties: dict = field(default_factory=dict)

    def __str__(self) -> str:
        shown = self.payload[:40]
        return f"{self.topic!r} {shown!r}{'...' if len(self.payload) > 40 else ''} qos {self.qos}"


# Properties whose value is binary and travels as base64 in the drivers' lines.
BINARY = {"correlation_data", "authentication_data"}


def pack_properties(values: dict) -> dict:
    return {k: base64.b64encode(v).decode() if k in BINARY else v for k, v in values.items()}


def unpack_properties(values: dict) -> dict:
    return {k: base64.b64decode(v) if k in BINARY else v for k, v in (values or {}).items()}


async def until(what: str, holds, timeout: float = PATIENCE_S) -> None:
    """Waits until `holds`, a function or a coroutine function, says so."""
    deadline = time.monotonic() + timeout
    while True:
        found = holds()
        if await found if inspect.isawaitable(found) else found:
            return
        if time.monotonic() > deadline:
            raise Failure(f"{what}: not within {timeout} s")
        await asyncio.sleep(0.05)


class Driver:
    """A foreign client library behind a process that takes and gives JSON lines (see README.md)."""

    def __init__(self, command: list[str]):
        self.command = command
        self.numbers = itertools.count(1)
        self.handles = itertools.count(1)
        self.waiting: dict[int, asyncio.Future] = {}
        self.clients: dict[int, object] = {}
        self.hello: dict = {}
        self.dead: str | None = None
        self.stderr: list[str] = []

    async def start(self) -> None:
        self.process = await asyncio.create_subprocess_exec(
            *self.command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE, limit=LINE_LIMIT_BYTES,
        )
        self.tasks = [asyncio.create_task(self._errors())]
        line = await asyncio.wait_for(self.process.stdout.readline(), PATIENCE_S)
        if not line:
            await asyncio.sleep(0.2)
            raise Failure(f"the driver {self.command} ended at once: {' | '.join(self.stderr[-5:])}")
        self.hello = json.loads(line)["hello"]
        self.tasks.append(asyncio.create_task(self._lines()))

    async def stop(self) -> None:
        self.process.stdin.close()
        try:
            await asyncio.wait_for(self.process.wait(), 3)
        except TimeoutError:
            self.process.kill()
            await self.process.wait()
        for task in self.tasks:
            task.cancel()

    async def _errors(self) -> None:
        while line := await self.process.stderr.readline():
            self.stderr = [*self.stderr[-50:], line.decode(errors="replace").rstrip()]

    def take(self, entry: dict) -> None:
        """Hands an event to its client, or an answer to who asked."""
        if "event" in entry:
            client = self.clients.get(entry["client"])
            if client is not None:
                client.event(entry)
            return
        future = self.waiting.pop(entry["n"], None)
        if future is None or future.done():
            return
        if "error" in entry:
            future.set_exception(Refused(entry.get("reason"), entry["error"]))
        elif "cannot" in entry:
            future.set_exception(Cannot(entry["cannot"]))
        else:
            future.set_result(entry.get("ok") or {})

    async def _lines(self) -> None:
        while line := await self.process.stdout.readline():
            self.take(json.loads(line))
        await asyncio.sleep(0.1)
        self.dead = f"the driver ended: {' | '.join(self.stderr[-8:])}"
        for future in self.waiting.values():
            if not future.done():
                future.set_exception(Failure(self.dead))

    async def ask(self, op: str, timeout: float = PATIENCE_S, **arguments) -> dict:
        if self.dead:
            raise Failure(self.dead)
        number, future = next(self.numbers), asyncio.get_running_loop().create_future()
        self.waiting[number] = future
        line = json.dumps({"n": number, "op": op, **arguments}) + "\n"
        try:
            self.process.stdin.write(line.encode())
            await self.process.stdin.drain()
            return await asyncio.wait_for(future, timeout)
        except ConnectionError:
            raise Failure(f"the driver has ended: {' | '.join(self.stderr[-8:])}") from None
        except TimeoutError:
            raise Failure(f"{op} was not answered within {timeout} s") from None
        finally:
            self.waiting.pop(number, None)


class Client:
    """One connection of the foreign client, with what has arrived on it."""

    def __init__(self, driver: Driver, name: str):
        self.driver, self.name = driver, name
        self.handle = next(driver.handles)
        self.inbox: asyncio.Queue[Message] = asyncio.Queue()
        self.end: asyncio.Future = asyncio.get_running_loop().create_future()
        self.session_present = False
        self.connack: dict = {}
        self.alive = False
        driver.clients[self.handle] = self

    def event(self, entry: dict) -> None:
        if entry["event"] == "message":
            self.inbox.put_nowait(Message(
                entry["topic"], base64.b64decode(entry["payload"]), entry["qos"], entry["retain"],
                entry.get("dup"), unpack_properties(entry.get("properties")),
            ))
        elif entry["event"] == "closed" and not self.end.done():
            self.end.set_result((entry.get("reason"), entry.get("detail", "")))

    async def connect(self, listener: Listener, level: int, **options) -> None:
        will = options.get("will")
        if will:
            will = {**will, "payload": base64.b64encode(will.get("payload", b"")).decode(),
                    "properties": pack_properties(will.get("properties", {}))}
        answer = await self.driver.ask(
            "connect", client=self.handle, url=listener.url, host=listener.host, port=listener.port,
            path=listener.path, transport=listener.transport, ca=listener.certificate, level=level,
            id=options.get("id", ""), clean=options.get("clean", True),
            keep_alive=options.get("keep_alive", 60), will=will,
            properties=pack_properties(options.get("properties", {})),
            manual_ack=options.get("manual_ack", False),
        )
        self.alive = True
        self.session_present = answer["session_present"]
        self.connack = unpack_properties(answer.get("properties"))

    async def subscribe(self, filters, qos: int = 0, identifier: int | None = None, **options) -> list[int]:
        """Subscribes and returns the reason codes. `filters` is one filter or a list of (filter, qos)."""
        pairs = [(filters, qos)] if isinstance(filters, str) else filters
        entries = [{"filter": one, "qos": level, "no_local": False, "retain_as_published": False,
                    "retain_handling": 0, **options} for one, level in pairs]
        answer = await self.driver.ask("subscribe", client=self.handle, filters=entries, identifier=identifier)
        return answer["codes"]

    async def unsubscribe(self, *filters: str) -> list[int] | None:
        return (await self.driver.ask("unsubscribe", client=self.handle, filters=list(filters))).get("codes")

    async def publish(self, topic: str, payload: bytes | str = b"", qos: int = 0, retain: bool = False,
                      timeout: float = PATIENCE_S, **properties) -> int | None:
        """Publishes and waits until the exchange is complete; the reason code if the client shows it."""
        raw = payload.encode() if isinstance(payload, str) else payload
        answer = await self.driver.ask(
            "publish", timeout, client=self.handle, topic=topic, payload=base64.b64encode(raw).decode(), qos=qos,
            retain=retain, properties=pack_properties(properties),
        )
        return answer.get("reason")

    async def burst(self, topic: str, qos: int, count: int) -> None:
        """Publishes "0", "1", ... as fast as the client does, and waits for all acknowledgements."""
        await self.driver.ask("burst", client=self.handle, topic=topic, qos=qos, count=count)

    async def ack(self, count: int = 1) -> None:
        """Acknowledges the oldest messages of a client that was opened with `manual_ack`."""
        await self.driver.ask("ack", client=self.handle, count=count)

    async def receive(self, timeout: float = PATIENCE_S) -> Message:
        try:
            return await asyncio.wait_for(self.inbox.get(), timeout)
        except TimeoutError:
            end = f" (its connection ended: {self.end.result()})" if self.end.done() else ""
            raise Failure(f"{self.name} got no message within {timeout} s{end}") from None

    async def closed(self, timeout: float = PATIENCE_S) -> tuple[int | None, str]:
        """Waits for the end of the connection: the server's reason code if it gave one, and a text."""
        try:
            return await asyncio.wait_for(asyncio.shield(self.end), timeout)
        except TimeoutError:
            raise Failure(f"{self.name} was not disconnected within {timeout} s") from None

    async def disconnect(self, reason: int = 0, **properties) -> None:
        self.alive = False
        await self.driver.ask("disconnect", client=self.handle, reason=reason, properties=properties)

    async def abort(self) -> None:
        """Ends the network connection without DISCONNECT."""
        self.alive = False
        await self.driver.ask("abort", client=self.handle)

    async def drop(self) -> None:
        """Leaves nothing behind, whatever state the connection is in."""
        self.driver.clients.pop(self.handle, None)
        if self.alive:
            self.alive = False
            try:
                await self.driver.ask("disconnect", 2, client=self.handle, reason=0, properties={})
            except (Failure, Refused, Cannot):
                pass
