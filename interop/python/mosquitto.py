"""mosquitto_pub, mosquitto_sub and mosquitto_rr (Debian) against the broker: the steps that a command line can do.

They are what people have at hand, and an MQTT implementation (libmosquitto) that no other suite uses. The tools
speak no WebSocket. Standard library only.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import hashlib
import json
import secrets
import shutil
import signal
import ssl
import struct
import tempfile
from pathlib import Path

from harness import LEVELS, Failure, Listener, Report, listeners

VERSIONS = {3: "mqttv31", 4: "mqttv311", 5: "mqttv5"}
STEPS: list[tuple[str, tuple[int, ...], object]] = []
PATIENCE_S, STEP_LIMIT_S = 30, 120
AT_ONCE = 6


def step(name: str, levels=(4, 5)):
    def add(function):
        STEPS.append((name, levels, function))
        return function

    return add


def equal(got, wanted, what: str) -> None:
    if got != wanted:
        raise Failure(f"{what}: got {got!r}, expected {wanted!r}")


class Subscriber:
    """A mosquitto_sub whose messages are read as JSON. Those that come before the SUBACK count like others: a server may
    send them there (MQTT 5.0, section 3.8.4)."""

    def __init__(self, process):
        self.process, self.log = process, []
        self.early: collections.deque[dict] = collections.deque()

    async def _line(self, timeout: float) -> str | None:
        try:
            raw = await asyncio.wait_for(self.process.stdout.readline(), timeout)
        except TimeoutError:
            return None
        if not raw:
            raise Failure(f"mosquitto_sub ended: {' | '.join(self.log[-4:])}")
        return raw.decode().rstrip("\n")

    async def ready(self) -> None:
        """Waits for the SUBACK."""
        while (line := await self._line(PATIENCE_S)) is not None:
            if line.startswith("{"):
                self.early.append(json.loads(line))
                continue
            self.log.append(line)
            if line.startswith("Subscribed"):
                return
        raise Failure(f"mosquitto_sub was not subscribed within {PATIENCE_S} s: {' | '.join(self.log[-4:])}")

    async def message(self, timeout: float = PATIENCE_S) -> dict:
        if self.early:
            return self.early.popleft()
        while (line := await self._line(timeout)) is not None:
            if line.startswith("{"):
                return json.loads(line)
            self.log.append(line)
        raise Failure(f"no message within {timeout} s")

    async def messages(self, count: int) -> list[dict]:
        return [await self.message() for _ in range(count)]

    async def quiet(self, seconds: float, why: str) -> None:
        try:
            extra = await self.message(seconds)
        except Failure:
            return
        raise Failure(f"{why}: got {extra['topic']} {extra.get('payload')!r}")

    async def stop(self) -> None:
        """Ends it as ctrl-c does: with DISCONNECT."""
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGINT)
        await asyncio.wait_for(self.process.wait(), PATIENCE_S)

    async def kill(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()


class Step:
    def __init__(self, listener: Listener, level: int, folder: Path):
        self.listener, self.level, self.folder = listener, level, folder
        self.root = f"iop/mosquitto/{secrets.token_hex(4)}"
        self.subscribers: list[Subscriber] = []

    def topic(self, name: str) -> str:
        return f"{self.root}/{name}"

    def where(self) -> list[str]:
        found = ["-h", self.listener.host, "-p", str(self.listener.port), "-V", VERSIONS[self.level]]
        return found + (["--cafile", self.listener.certificate] if self.listener.secure else [])

    async def pub(self, *arguments: str, data: bytes | None = None) -> None:
        await self.run("mosquitto_pub", *arguments, data=data)

    async def run(self, program: str, *arguments: str, data: bytes | None = None) -> bytes:
        process = await asyncio.create_subprocess_exec(
            program, *self.where(), *arguments, stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )
        try:
            out, err = await asyncio.wait_for(process.communicate(data), PATIENCE_S)
        except TimeoutError:
            process.kill()
            await process.wait()
            raise Failure(f"{program} {' '.join(arguments)} is not done after {PATIENCE_S} s") from None
        if process.returncode:
            raise Failure(f"{program} {' '.join(arguments)} ended with {process.returncode}: {err.decode().strip()}")
        return out

    async def sub(self, *arguments: str) -> Subscriber:
        process = await asyncio.create_subprocess_exec(
            "stdbuf", "-oL", "mosquitto_sub", *self.where(), "-d", "-F", "%j", *arguments,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, limit=8 * 1024 * 1024,
        )
        one = Subscriber(process)
        self.subscribers.append(one)
        await one.ready()
        return one

    async def clean_up(self) -> None:
        for one in self.subscribers:
            await one.kill()


@step("publish-subscribe", (3, 4, 5))
async def publish_subscribe(t: Step) -> None:
    # [MQTT-3.8.4-8] [MQTT311-3.8.4-6]
    subscriber = await t.sub("-t", t.topic("+"), "-q", "2")
    for qos in range(3):
        await t.pub("-t", t.topic("x"), "-m", f"m{qos}", "-q", str(qos))
        got = await subscriber.message()
        equal((got["topic"], got["payload"], got["qos"], got["retain"]), (t.topic("x"), f"m{qos}", qos, 0), "message")
    await subscriber.stop()
    equal(subscriber.process.returncode, 0, "exit code of mosquitto_sub")


@step("empty-payload")
async def empty_payload(t: Step) -> None:
    subscriber = await t.sub("-t", t.topic("x"), "-q", "1")
    await t.pub("-t", t.topic("x"), "-n", "-q", "1")
    equal((await subscriber.message())["payloadlen"], 0, "length")


@step("large-payload")
async def large_payload(t: Step) -> None:
    # [MQTT-3.3.4-1] [MQTT311-3.3.4-1]
    payload = hashlib.shake_256(t.root.encode()).digest(1024 * 1024)
    path = t.folder / "large"
    path.write_bytes(payload)
    await t.pub("-t", t.topic("large"), "-f", str(path), "-q", "2", "-r")
    got = await t.run("mosquitto_sub", "-t", t.topic("large"), "-q", "2", "-C", "1", "-N")
    await t.pub("-t", t.topic("large"), "-n", "-q", "1", "-r")
    if got != payload:
        raise Failure(f"{len(got)} bytes arrived, other than the {len(payload)} that were published")


@step("order-1000")
async def order(t: Step) -> None:
    # [MQTT-4.6.0-5] [MQTT311-4.6.0-5]
    subscriber = await t.sub("-t", t.topic("o"), "-q", "2")
    for qos in range(3):
        lines = "".join(f"{number}\n" for number in range(1000))
        await t.pub("-t", t.topic("o"), "-l", "-q", str(qos), data=lines.encode())
        got = await subscriber.messages(1000)
        equal([int(m["payload"]) for m in got], list(range(1000)), f"messages at quality of service {qos}")


@step("burst-20000")
async def burst(t: Step) -> None:
    # More than any queue of the broker has places: it reads the publisher as fast as mosquitto_sub takes.
    count = 20_000
    subscriber = await t.sub("-t", t.topic("burst"), "-q", "1")
    context = ssl.create_default_context(cafile=t.listener.certificate) if t.listener.secure else None
    reader, writer = await asyncio.open_connection(t.listener.host, t.listener.port, ssl=context)
    topic = t.topic("burst").encode()
    name = b"burst" + secrets.token_hex(8).encode()
    body = b"\0\4MQTT\4\2\0\0" + struct.pack("!H", len(name)) + name
    writer.write(bytes([0x10, len(body)]) + body)
    equal(await asyncio.wait_for(reader.readexactly(4), PATIENCE_S), b"\x20\2\0\0", "CONNACK")
    packets = bytearray()
    for number in range(count):
        body = struct.pack("!H", len(topic)) + topic + struct.pack("!H", number + 1) + b"%d" % number
        packets += bytes([0x32, len(body)]) + body
    writer.write(packets)
    got = await subscriber.messages(count)
    equal([int(m["payload"]) for m in got], list(range(count)), "messages")
    answers = await asyncio.wait_for(reader.readexactly(4 * count), PATIENCE_S)
    wanted = b"".join(b"\x40\2" + struct.pack("!H", number + 1) for number in range(count))
    equal(answers == wanted, True, "a PUBACK for each, in their order")
    writer.close()


@step("retained")
async def retained(t: Step) -> None:
    # [MQTT-3.3.1-5] [MQTT-3.3.1-6] [MQTT311-3.3.1-5] [MQTT311-3.3.1-10]
    await t.pub("-t", t.topic("r"), "-m", "one", "-q", "1", "-r")
    await t.pub("-t", t.topic("r"), "-m", "two", "-q", "1", "-r")
    subscriber = await t.sub("-t", t.topic("r"), "-q", "1")
    got = await subscriber.message()
    equal((got["payload"], got["retain"]), ("two", 1), "retained message")
    await t.pub("-t", t.topic("r"), "-n", "-q", "1", "-r")
    await subscriber.message()
    late = await t.sub("-t", t.topic("r"), "-q", "1")
    await late.quiet(0.7, "a cleared retained message was sent")


@step("will-on-kill")
async def will_on_kill(t: Step) -> None:
    # [MQTT-3.1.2-14] [MQTT311-3.1.2-8]
    watcher = await t.sub("-t", t.topic("will"), "-q", "1")
    will = ["--will-topic", t.topic("will"), "--will-payload", "gone", "--will-qos", "1"]
    dying = await t.sub("-t", t.topic("x"), *will)
    await dying.kill()
    got = await watcher.message()
    equal((got["payload"], got["qos"], got["retain"]), ("gone", 1, 0), "will")


@step("will-not-on-disconnect")
async def will_not_on_disconnect(t: Step) -> None:
    # [MQTT-3.14.4-3] [MQTT311-3.1.2-10]
    watcher = await t.sub("-t", t.topic("will"), "-q", "1")
    will = ["--will-topic", t.topic("will"), "--will-payload", "gone"]
    leaving = await t.sub("-t", t.topic("x"), "-C", "1", *will)
    await t.pub("-t", t.topic("x"), "-m", "go")
    await asyncio.wait_for(leaving.process.wait(), PATIENCE_S)
    await watcher.quiet(0.8, "a will was published after DISCONNECT")


@step("will-with-disconnect-0x04", (5,))
async def will_with_disconnect(t: Step) -> None:
    # When it is interrupted, mosquitto_sub leaves with the code that asks for the will.
    watcher = await t.sub("-t", t.topic("will"), "-q", "1")
    leaving = await t.sub("-t", t.topic("x"), "--will-topic", t.topic("will"), "--will-payload", "asked")
    await leaving.stop()
    equal((await watcher.message())["payload"], "asked", "will")


@step("session-resume")
async def session_resume(t: Step) -> None:
    # [MQTT-3.1.2-5] [MQTT-4.5.0-1] [MQTT311-3.1.2-4] [MQTT311-3.1.2-5]
    name = "m" + secrets.token_hex(8)
    extra = ["-x", "60"] if t.level == 5 else []
    first = await t.sub("-t", t.topic("q"), "-q", "1", "-c", "-i", name, *extra)
    await first.stop()
    for number in range(5):
        await t.pub("-t", t.topic("q"), "-m", str(number), "-q", "1")
    again = await t.sub("-t", t.topic("q"), "-q", "1", "-c", "-i", name, *extra)
    got = await again.messages(5)
    equal([m["payload"] for m in got], [str(number) for number in range(5)], "queued messages")
    await again.stop()
    # A clean connection leaves nothing of it behind.
    await t.run("mosquitto_sub", "-t", t.topic("q"), "-i", name, "-E")


@step("wildcards-and-unsubscribe")
async def wildcards(t: Step) -> None:
    # [MQTT-4.7.1-2] [MQTT-3.10.4-4] [MQTT311-4.7.1-3] [MQTT311-3.10.4-4]
    subscriber = await t.sub("-t", t.topic("+/b"), "-t", t.topic("c/#"), "-U", t.topic("unused"), "-q", "1")
    for name in ("a/b", "c", "c/d/e", "a/b/c", "x"):
        await t.pub("-t", t.topic(name), "-m", name, "-q", "1")
    got = await subscriber.messages(3)
    equal([m["payload"] for m in got], ["a/b", "c", "c/d/e"], "messages")
    await subscriber.quiet(0.5, "more messages than match")


@step("properties", (5,))
async def properties(t: Step) -> None:
    # [MQTT-3.3.2-15] [MQTT-3.3.2-16] [MQTT-3.3.2-17] [MQTT-3.3.2-18] [MQTT-3.3.2-20] [MQTT-3.3.4-3]
    subscriber = await t.sub("-t", t.topic("x"), "-q", "1", "-D", "subscribe", "subscription-identifier", "77")
    await t.pub(
        "-t", t.topic("x"), "-m", "m", "-q", "1", "-D", "publish", "content-type", "a/b",
        "-D", "publish", "response-topic", "r/t", "-D", "publish", "correlation-data", "c",
        "-D", "publish", "user-property", "b", "2", "-D", "publish", "user-property", "a", "1",
        "-D", "publish", "payload-format-indicator", "1", "-D", "publish", "message-expiry-interval", "500",
        "-D", "publish", "topic-alias", "1",
    )
    got = (await subscriber.message()).get("properties", {})
    for name, wanted in (("content-type", "a/b"), ("response-topic", "r/t"), ("correlation-data", "c"),
                         ("payload-format-indicator", 1)):
        equal(got.get(name), wanted, name)
    pairs = got.get("user-properties", got.get("user-property"))
    flat = [next(iter(pair.items())) for pair in pairs] if isinstance(pairs, list) else list((pairs or {}).items())
    equal(flat, [("b", "2"), ("a", "1")], "user properties")
    if not 440 <= got.get("message-expiry-interval", 0) <= 500:
        raise Failure(f"message expiry interval {got.get('message-expiry-interval')} of 500")


@step("request-response", (5,))
async def request_response(t: Step) -> None:
    # mosquitto_rr is both: it waits on the response topic that it names in its request.
    server = await t.sub("-t", t.topic("do"), "-q", "1")
    asking = asyncio.create_task(
        t.run("mosquitto_rr", "-t", t.topic("do"), "-e", t.topic("answer"), "-m", "what?", "-q", "1", "-N"))
    request = await server.message()
    equal(request["properties"].get("response-topic"), t.topic("answer"), "response topic")
    await t.pub("-t", request["properties"]["response-topic"], "-m", "this", "-q", "1")
    equal(await asking, b"this", "answer")


@step("shared-subscription", (5,))
async def shared(t: Step) -> None:
    # [MQTT-4.8.2-1]
    group = f"$share/g/{t.topic('s')}"
    members = [await t.sub("-t", group, "-q", "1") for _ in range(2)]
    await t.pub("-t", t.topic("s"), "-l", "-q", "1", data="".join(f"{n}\n" for n in range(40)).encode())

    async def collect(member: Subscriber) -> list[int]:
        found = []
        try:
            while True:
                found.append(int((await member.message(1.0))["payload"]))
        except Failure:
            return found

    got = await asyncio.gather(*(collect(member) for member in members))
    equal(sorted(got[0] + got[1]), list(range(40)), "messages of both members together")
    if not got[0] or not got[1]:
        raise Failure(f"one member got everything: {[len(part) for part in got]}")


@step("maximum-packet-size", (5,))
async def maximum_packet_size(t: Step) -> None:
    # [MQTT-3.1.2-24] [MQTT-3.1.2-25]
    small = await t.sub("-t", t.topic("x"), "-q", "1", "-D", "connect", "maximum-packet-size", "300")
    await t.pub("-t", t.topic("x"), "-m", "-" * 1000, "-q", "1")
    await t.pub("-t", t.topic("x"), "-m", "fits", "-q", "1")
    equal((await small.message())["payload"], "fits", "message after one that is too large")


@step("session-expiry", (5,))
async def session_expiry(t: Step) -> None:
    # [MQTT-4.1.0-2]
    name = "m" + secrets.token_hex(8)
    first = await t.sub("-t", t.topic("q"), "-q", "1", "-c", "-i", name, "-x", "1")
    await first.stop()
    await t.pub("-t", t.topic("q"), "-m", "lost", "-q", "1")
    await asyncio.sleep(2.5)
    again = await t.sub("-t", t.topic("other"), "-q", "1", "-c", "-i", name, "-x", "1")
    await again.quiet(0.5, "a message of an expired session was sent")
    await again.stop()


async def run_step(listener, level, name, function, report, gate) -> None:
    label = f"{listener.transport}/{LEVELS[level]}/{name}"
    async with gate:
        with tempfile.TemporaryDirectory() as folder:
            one = Step(listener, level, Path(folder))
            try:
                await asyncio.wait_for(function(one), STEP_LIMIT_S)
                report.ok(label)
            except Failure as why:
                report.not_ok(label, str(why))
            except TimeoutError:
                report.not_ok(label, f"not done within {STEP_LIMIT_S} s")
            except Exception as error:  # a fault of the suite must name itself and not end the others
                report.not_ok(label, f"{type(error).__name__}: {error}")
            await one.clean_up()


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="only steps whose transport/version/name contains this")
    arguments = parser.parse_args()
    report, places = Report(), listeners()
    if not shutil.which("mosquitto_sub"):
        report.not_ok("mosquitto", "mosquitto_sub is not installed (Debian: mosquitto-clients)")
        report.exit()
    gate, tasks = asyncio.Semaphore(AT_ONCE), []
    for transport in ("tcp", "tls"):
        if transport not in places:
            report.skip(transport, "the broker has no such listener")
            continue
        for level in (3, 4, 5):
            for name, levels, function in STEPS:
                if level in levels and arguments.only in f"{transport}/{LEVELS[level]}/{name}":
                    tasks.append(run_step(places[transport], level, name, function, report, gate))
    await asyncio.gather(*tasks)
    report.exit()


if __name__ == "__main__":
    asyncio.run(main())
