"""What the steps about QUIC's streams are made of: names of their own, and whole exchanges on a stream."""

from __future__ import annotations

import secrets
import time

import wire
from harness import Failure, Listener
from quic_client import QuicClient, Stream, opened

STEPS: list[tuple[str, object]] = []


class Skip(Exception):
    """What the broker's settings leave out."""


def step(name: str):
    def add(function):
        STEPS.append((name, function))
        return function

    return add


def expect(condition, why: str) -> None:
    if not condition:
        raise Failure(why)


class Step:
    def __init__(self, at: Listener, plain: Listener | None, strict: Listener | None):
        # Where early data may do everything; TCP; a QUIC listener that takes no early data.
        self.at, self.plain, self.strict = at, plain, strict
        self.root = "iop/quic/" + secrets.token_hex(5)
        self.seen: list[QuicClient] = []

    def topic(self, name: str = "t") -> str:
        return f"{self.root}/{name}"

    def id(self, name: str) -> str:
        return f"q{self.root[-10:]}{name}"

    def open(self, at: Listener | None = None, **options):
        step = self

        class Watched(QuicClient):
            def __init__(self, *arguments, **keywords):
                super().__init__(*arguments, **keywords)
                step.seen.append(self)

        return opened(at or self.at, kind=Watched, **options)

    def finish(self) -> None:
        for one in self.seen:
            if one.alpn == "mqtt":
                expect(not one.by_server, f"the server opened stream {one.by_server[:3]} to a client with ALPN mqtt")


async def subscribed(stream: Stream, *filters: str, options: int = 1, pid: int = 1) -> None:
    stream.send(wire.subscribe(pid, [(each, options) for each in filters], stream.quic.level))
    answer = await stream.expect(wire.SUBACK)
    expect(answer.pid == pid, f"SUBACK for {answer.pid} instead of {pid}")
    expect(all(code <= 2 for code in answer.codes), f"SUBACK with {answer.codes}")


async def published(stream: Stream, topic: str, payload: bytes, qos: int, pid: int | None, acks: Stream | None = None,
                    ) -> None:
    """The whole exchange of one PUBLISH; acknowledgements come on the same stream unless `acks` says otherwise."""
    acks = acks or stream
    stream.send(wire.publish(topic, payload, qos, pid if qos else None))
    if qos == 1:
        got = await acks.expect(wire.PUBACK)
        expect(got.pid == pid and got.reason < 0x80, f"{got} for {got.pid}, published {pid}")
    if qos == 2:
        got = await acks.expect(wire.PUBREC)
        expect(got.pid == pid and got.reason < 0x80, f"{got} for {got.pid}, published {pid}")
        acks.send(wire.ack(wire.PUBREL, pid))
        got = await acks.expect(wire.PUBCOMP)
        expect(got.pid == pid and not got.reason, f"{got} for {got.pid}, published {pid}")


async def delivered(stream: Stream) -> wire.Packet:
    """The next message on a stream, acknowledged there."""
    got = await stream.expect(wire.PUBLISH)
    if got.qos == 1:
        stream.send(wire.ack(wire.PUBACK, got.pid))
    if got.qos == 2:
        stream.send(wire.ack(wire.PUBREC, got.pid))
        release = await stream.expect(wire.PUBREL)
        expect(release.pid == got.pid, f"PUBREL for {release.pid} instead of {got.pid}")
        stream.send(wire.ack(wire.PUBCOMP, got.pid))
    return got


async def ping(stream: Stream) -> float:
    start = time.monotonic()
    stream.send(wire.pingreq())
    await stream.expect(wire.PINGRESP)
    return time.monotonic() - start


async def watcher(t: Step, stack: QuicClient, name: str = "will") -> Stream:
    """A second client that hears the step's will topic on its control stream."""
    control = stack.bidirectional(0)
    await stack.connect_mqtt(client_id=t.id("watch"))
    await subscribed(control, t.topic(name))
    return control


def will(t: Step) -> dict:
    return {"topic": t.topic("will"), "payload": b"gone", "qos": 1}
