"""Foreign HTTP clients behind drivers (README.md has the form of their lines): requests and subscriptions.

The drivers know HTTP alone; what is written on it is made and read here, from docs/http.md.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import re
from dataclasses import dataclass, field
from urllib.parse import quote

import wire
from harness import Cannot, Driver, Failure, Listener

PATIENCE_S = 30.0
NDJSON, SSE, BINARY = "application/x-ndjson", "text/event-stream", "application/vnd.sterna.stream"
FORMS = (NDJSON, SSE, BINARY)
PROBLEM = "urn:sterna:problem:"
# The field of the request for each property of a message.
FIELDS = {"qos": "Sterna-QoS", "content_type": "Content-Type", "expiry_s": "Sterna-Expiry", "key": "Idempotency-Key",
          "payload_format": "Sterna-Payload-Format"}


class HttpError(Exception):
    """The library could not make the request, or lost it."""


class HttpDriver(Driver):
    """A driver that speaks of requests and responses."""

    def __init__(self, command: list[str]):
        super().__init__(command)
        self.responses: dict[int, Response] = {}

    def take(self, entry: dict) -> None:
        if "event" in entry:
            one = self.responses.get(entry["r"])
            if one is not None:
                one.event(entry)
            return
        future = self.waiting.pop(entry["n"], None)
        if future is None or future.done():
            return
        if "error" in entry:
            future.set_exception(HttpError(entry["error"]))
        elif "cannot" in entry:
            future.set_exception(Cannot(entry["cannot"]))
        else:
            future.set_result(entry.get("ok") or {})


@dataclass
class End:
    """The response is over; `error` says so where it was broken off."""

    error: str | None


class Response:
    """What the library showed of a response. The content of one that goes on comes piece by piece."""

    numbers = itertools.count(1)

    def __init__(self, driver: HttpDriver):
        self.driver, self.number = driver, next(self.numbers)
        self.status, self.fields, self.content, self.version = 0, [], b"", ""
        self.early: bool | None = None
        self.pieces: asyncio.Queue[bytes | End] = asyncio.Queue()

    def said(self, answer: dict) -> None:
        self.status, self.version = answer["status"], answer["version"]
        self.fields = [(name.lower(), value) for name, value in answer["fields"]]
        self.content = base64.b64decode(answer.get("content") or "")
        self.early = answer.get("early")

    def event(self, entry: dict) -> None:
        if entry["event"] == "data":
            self.pieces.put_nowait(base64.b64decode(entry["data"]))
        else:
            self.pieces.put_nowait(End(entry.get("error")))

    def field(self, name: str) -> str | None:
        """The value of a field; of several the values with commas between, as RFC 9110, section 5.3, has it."""
        values = [value for each, value in self.fields if each == name.lower()]
        return ", ".join(values) if values else None

    def json(self):
        return json.loads(self.content)

    def problem(self) -> dict:
        """The problem that it carries, checked for form."""
        kind = (self.field("content-type") or "").partition(";")[0]
        if kind != "application/problem+json":
            raise Failure(f"{self.status} with content type {kind!r} is no problem: {self.content[:200]!r}")
        found = self.json()
        for name, of in (("type", str), ("title", str), ("status", int), ("detail", str)):
            if not isinstance(found.get(name), of):
                raise Failure(f"a problem whose `{name}` is {found.get(name)!r}: {found}")
        if found["status"] != self.status:
            raise Failure(f"a problem with status {found['status']} in a response with {self.status}")
        return found

    def expect(self, *statuses: int) -> Response:
        if self.status not in statuses:
            raise Failure(f"status {self.status} instead of {' or '.join(map(str, statuses))}: "
                          f"{self.content[:300].decode(errors='replace')}")
        return self

    def refused(self, status: int, kind: str) -> dict:
        """The problem of this status and type."""
        self.expect(status)
        found = self.problem()
        if found["type"] != PROBLEM + kind:
            raise Failure(f"{status} with {found['type']}, not {kind}: {found['detail']}")
        return found


@dataclass
class Got:
    """A message as a subscriber of HTTP got it, in whatever form it came."""

    topic: str
    payload: bytes
    qos: int
    id: int | None = None
    retain: bool = False
    redelivered: bool = False
    properties: dict = field(default_factory=dict)


# The members of the object that are properties.
MEMBERS = {"content_type", "payload_format", "expiry_s", "response_topic", "correlation_data", "user_properties"}
KNOWN = MEMBERS | {"id", "topic", "payload", "payload_base64", "qos", "retain", "redelivered"}


def of_object(said: dict) -> Got:
    if set(said) - KNOWN:
        raise Failure(f"unknown members {sorted(set(said) - KNOWN)} in {said}")
    if ("payload" in said) == ("payload_base64" in said):
        raise Failure(f"either payload or payload_base64, not {said}")
    payload = said["payload"].encode() if "payload" in said else base64.b64decode(said["payload_base64"], validate=True)
    for name in ("retain", "redelivered"):
        if said.get(name, True) is not True:
            raise Failure(f"{name} is {said[name]!r}, which says nothing")
    properties = {name: said[name] for name in MEMBERS if name in said}
    if "correlation_data" in properties:
        properties["correlation_data"] = base64.b64decode(properties["correlation_data"], validate=True)
    if "user_properties" in properties:
        properties["user_properties"] = [tuple(pair) for pair in properties["user_properties"]]
    return Got(said["topic"], payload, said["qos"], said.get("id"), "retain" in said, "redelivered" in said, properties)


def varint(data: bytes, at: int) -> tuple[int, int] | None:
    """An integer of variable length (RFC 9000, section 16) and where it ends."""
    if at >= len(data):
        return None
    size = 1 << (data[at] >> 6)
    if at + size > len(data):
        return None
    return int.from_bytes(data[at : at + size], "big") & ((1 << (8 * size - 2)) - 1), at + size


def to_varint(value: int) -> bytes:
    for size, bits in ((1, 6), (2, 14), (4, 30), (8, 62)):
        if value < 1 << bits:
            return (value | {1: 0, 2: 1, 4: 2, 8: 3}[size] << (8 * size - 2)).to_bytes(size, "big")
    raise ValueError(value)


def of_frame(frame: bytes) -> Got:
    """A frame of the binary stream without its Length."""
    number, at = varint(frame, 0)
    flags, at = frame[at], at + 1
    size, at = varint(frame, at)
    topic, at = frame[at : at + size].decode(), at + size
    size, at = varint(frame, at)
    raw, payload = frame[at : at + size], frame[at + size :]
    numbers = wire.raw_properties(raw)
    if "message_expiry" in numbers:
        numbers["expiry_s"] = numbers.pop("message_expiry")
    if "payload_format" in numbers:
        numbers["payload_format"] = {1: "utf-8"}.get(numbers["payload_format"], numbers["payload_format"])
    if "user_properties" in numbers:
        numbers["user_properties"] = [tuple(pair) for pair in numbers["user_properties"]]
    if flags & 0xF0:
        raise Failure(f"unknown flags 0x{flags:02X}")
    return Got(topic, payload, flags & 3, number or None, bool(flags & 4), bool(flags & 8), numbers)


class Heartbeat:
    """A sign of life."""


class Subscription:
    """The messages of a response that goes on."""

    def __init__(self, response: Response, form: str):
        self.response, self.form, self.rest = response, form, b""
        self.session = response.field("sterna-session") or ""
        self.waiting: list[Got | Heartbeat] = []
        self.over: End | None = None
        # Server-sent events: the last `id:`.
        self.last_event_id: str | None = None

    def _parse(self, data: bytes) -> None:
        self.rest += data
        if self.form == BINARY:
            while (head := varint(self.rest, 0)) and len(self.rest) >= head[1] + head[0]:
                frame, self.rest = self.rest[head[1] : head[1] + head[0]], self.rest[head[1] + head[0] :]
                self.waiting.append(of_frame(frame) if frame else Heartbeat())
            return
        if self.form == NDJSON:
            *lines, self.rest = self.rest.split(b"\n")
            for line in lines:
                self.waiting.append(of_object(json.loads(line)) if line else Heartbeat())
            return
        # A heartbeat is a line of its own, an event ends with an empty one.
        while b"\n" in self.rest:
            if self.rest.startswith(b":"):
                _, _, self.rest = self.rest.partition(b"\n")
                self.rest = self.rest.removeprefix(b"\n")
                self.waiting.append(Heartbeat())
                continue
            block, end, after = self.rest.partition(b"\n\n")
            if not end:
                return
            self.rest = after
            self._event(block.decode())

    def _event(self, block: str) -> None:
        fields: dict[str, str] = {}
        for line in block.split("\n"):
            name, _, value = line.partition(":")
            fields[name] = fields[name] + "\n" + value.removeprefix(" ") if name in fields else value.removeprefix(" ")
        if "data" not in fields:
            raise Failure(f"an event without data: {block!r}")
        got = of_object(json.loads(fields["data"]))
        if (got.id is None) != ("id" not in fields):
            raise Failure(f"id of the event {fields.get('id')!r}, of the message {got.id}")
        if got.id is not None and fields["id"] != f"{self.session}:{got.id}":
            raise Failure(f"id {fields['id']!r} of message {got.id} of session {self.session!r}")
        self.waiting.append(got)

    async def _next(self, timeout: float) -> Got | Heartbeat | End:
        while not self.waiting:
            if self.over:
                return self.over
            try:
                piece = await asyncio.wait_for(self.response.pieces.get(), timeout)
            except TimeoutError:
                raise Failure(f"nothing came within {timeout} s") from None
            if isinstance(piece, End):
                self.over = piece
            else:
                self._parse(piece)
        taken = self.waiting.pop(0)
        # What came with it, and nobody has looked at yet, is not what the client has got to.
        if isinstance(taken, Got) and taken.id is not None:
            self.last_event_id = f"{self.session}:{taken.id}"
        return taken

    async def message(self, timeout: float = PATIENCE_S) -> Got:
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout
        while True:
            got = await self._next(max(0.01, until - loop.time()))
            if isinstance(got, End):
                raise Failure(f"the response ended ({got.error or 'in order'}) instead of a message")
            if isinstance(got, Got):
                return got

    async def messages(self, count: int) -> list[Got]:
        return [await self.message() for _ in range(count)]

    async def heartbeat(self, timeout: float = PATIENCE_S) -> None:
        got = await self._next(timeout)
        if not isinstance(got, Heartbeat):
            raise Failure(f"{got} instead of a heartbeat")

    async def ended(self, timeout: float = PATIENCE_S) -> End:
        """The end of the response, whatever comes before it."""
        while not isinstance(got := await self._next(timeout), End):
            pass
        return got

    async def quiet(self, seconds: float, why: str) -> None:
        try:
            got = await self.message(seconds)
        except Failure:
            return
        raise Failure(f"{why}: got {got}")

    async def cut(self) -> None:
        """Gives the response up, as a client does that goes away."""
        await self.response.driver.ask("cancel", PATIENCE_S, r=self.response.number)
        self.response.driver.responses.pop(self.response.number, None)


def topic_path(topic: str) -> str:
    """The path of a topic or filter; slashes stay."""
    return "/v1/topics/" + quote(topic, safe="/$+!'()*,;:@&=-._~")


def field_text(value: str) -> str:
    """As docs/http.md wants texts in fields."""
    return "".join(
        each if "!" <= each <= "~" and each not in "%,=;" else "".join(f"%{byte:02X}" for byte in each.encode())
        for each in value)


def publish_fields(**properties) -> list[tuple[str, str]]:
    """The fields of a POST for a message with these properties."""
    fields = []
    for name, value in properties.items():
        if name == "retain":
            fields.append(("Sterna-Retain", "?1" if value else "?0"))
        elif name == "response_topic":
            fields.append(("Sterna-Response-Topic", field_text(value)))
        elif name == "correlation_data":
            fields.append(("Sterna-Correlation-Data", base64.b64encode(value).decode()))
        elif name == "user_properties":
            pairs = [f"{field_text(key)}={field_text(text)}" for key, text in value]
            fields.append(("Sterna-User-Property", ", ".join(pairs)))
        else:
            fields.append((FIELDS[name], str(value)))
    return fields


def link_next(response: Response) -> str:
    """The target of `Link: <...>; rel="next"`, as path and query."""
    found = re.search(r'<([^>]*)>\s*;\s*rel="?next"?', response.field("link") or "")
    if not found:
        raise Failure(f"Link is {response.field('link')!r}, without a next")
    return re.sub(r"^https?://[^/]+", "", found[1])


class Connection:
    """What a library keeps of one peer: one connection where the version of HTTP carries many requests."""

    numbers = itertools.count(1)

    def __init__(self, driver: HttpDriver, at: Listener, transport: str, fields=(), **options):
        self.driver, self.at, self.transport = driver, at, transport
        self.number, self.fields, self.options = next(self.numbers), list(fields), options

    async def open(self) -> Connection:
        await self.driver.ask("open", PATIENCE_S, c=self.number, host=self.at.host, port=self.at.port,
                              transport=self.transport, ca=self.at.certificate, **self.options)
        return self

    async def request(self, method: str, target: str, fields=(), content: bytes | None = None, stream: bool = False,
                      timeout: float = PATIENCE_S, **more) -> Response:
        response = Response(self.driver)
        self.driver.responses[response.number] = response
        # What is given here replaces what the connection has.
        named = {name.lower() for name, _ in fields}
        every = [pair for pair in self.fields if pair[0].lower() not in named] + list(fields)
        said = await self.driver.ask(
            "request", timeout, c=self.number, r=response.number, method=method, target=target,
            fields=[list(pair) for pair in every if pair[1] is not None],
            content=None if content is None else base64.b64encode(content).decode(), stream=stream, **more)
        response.said(said)
        return response

    async def get(self, target: str, fields=(), **more) -> Response:
        return await self.request("GET", target, fields, **more)

    async def publish(self, topic: str, payload: bytes | str = b"", fields=(), **properties) -> Response:
        """POST, which has to succeed."""
        return (await self.post(topic, payload, fields, **properties)).expect(204)

    async def post(self, topic: str, payload: bytes | str = b"", fields=(), **properties) -> Response:
        raw = payload.encode() if isinstance(payload, str) else payload
        return await self.request("POST", topic_path(topic), [*publish_fields(**properties), *fields], raw)

    async def subscribe(self, filter_: str, query: str = "", form: str = NDJSON, fields=()) -> Subscription:
        target = topic_path(filter_) + (f"?{query}" if query else "")
        response = await self.request("GET", target, [("Accept", form), *fields], stream=True)
        response.expect(200)
        kind = (response.field("content-type") or "").partition(";")[0]
        if kind != form:
            raise Failure(f"content type {kind!r}, asked for {form}")
        if not response.field("sterna-session"):
            raise Failure("a subscription without Sterna-Session")
        return Subscription(response, form)

    async def close(self) -> None:
        await self.driver.ask("close", PATIENCE_S, c=self.number)
