"""The load of `cluster_bench.py`: publishers and readers of MQTT, and the places where they are. Standard library only."""

from __future__ import annotations

import contextlib
import re
import selectors
import time
from collections.abc import Callable
from pathlib import Path

import wire
from cluster_nodes import Program
from mqtt_client import PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, Client

PAYLOAD_BYTES = 64
# Publishers of a place, each with a reader of its own.
PAIRS = 4
# Messages without an acknowledgement; of QoS 0: that a publisher is ahead of its slowest reader.
WINDOW, AHEAD = 64, 1_000
PATIENCE_S = 300


class Reader(Client):
    """Acknowledges what it gets, and counts what is for it alone."""

    def __init__(self, port: int, name: str, topic: str, qos: int, clean: bool = True):
        super().__init__(port, name, clean=clean)
        self.subscribe([topic], qos)
        self.received = 0

    def take(self) -> None:
        for kind, body in self.packets():
            if kind & 0xF0 == PUBLISH:
                self.received += 1
                qos = (kind >> 1) & 3
                if qos:
                    at = 2 + int.from_bytes(body[:2], "big")
                    answer = wire.PUBACK if qos == 1 else wire.PUBREC
                    self.out += wire.ack(answer, int.from_bytes(body[at : at + 2], "big"))
            elif kind & 0xF0 == PUBREL:
                self.out += wire.ack(wire.PUBCOMP, int.from_bytes(body[:2], "big"))


class Publisher(Client):
    """Sends messages as fast as it may."""

    def __init__(self, port: int, name: str, topic: str, qos: int, total: int, window: int = WINDOW):
        super().__init__(port, name)
        self.qos, self.total, self.window, self.sent, self.done = qos, total, window, 0, 0
        self.topic = topic
        self.one = wire.publish(topic, bytes(PAYLOAD_BYTES), level=4)
        self.readers: list[Reader] = []

    def pump(self) -> None:
        if self.qos == 0:
            behind = min(reader.received for reader in self.readers)
            count = min(self.total, behind + AHEAD) - self.sent
            if count > 0 and len(self.out) < 1 << 16:
                self.out += self.one * count
                self.sent += count
            return
        while self.sent < self.total and self.sent - self.done < self.window:
            self.sent += 1
            identifier = self.sent % 65_535 + 1
            self.out += wire.publish(self.topic, bytes(PAYLOAD_BYTES), self.qos, identifier, level=4)

    def take(self) -> None:
        for kind, body in self.packets():
            if kind & 0xF0 == PUBREC:
                self.out += wire.ack(wire.PUBREL, int.from_bytes(body[:2], "big"))
            elif kind & 0xF0 in (PUBACK, PUBCOMP):
                self.done += 1


def cpu_s(programs: list[Program]) -> float:
    total_ns = 0
    for program in programs:
        for thread in Path(f"/proc/{program.pid()}/task").iterdir():
            # The time on a processor, which is finer than the ticks of `stat`. A thread may have ended since.
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                total_ns += int((thread / "schedstat").read_text().split()[0])
    return total_ns / 1e9


def resident_bytes(program: Program) -> int:
    status = Path(f"/proc/{program.pid()}/status").read_text()
    return int(re.search(r"VmRSS:\s*(\d+) kB", status)[1]) * 1024


def play(publishers: list[Publisher], readers: list[Reader]) -> float:
    """Runs until every reader has everything; the seconds that took."""
    selector = selectors.DefaultSelector()
    for client in [*publishers, *readers]:
        selector.register(client.socket, selectors.EVENT_READ, client)
    begun = time.monotonic()
    while True:
        for publisher in publishers:
            publisher.pump()
            publisher.flush()
        for key, _ in selector.select(0.001):
            key.data.take()
            key.data.flush()
        if all(reader.received >= publishers[0].total for reader in readers) and all(
            publisher.qos == 0 or publisher.done == publisher.total for publisher in publishers
        ):
            break
        if time.monotonic() - begun > PATIENCE_S:
            counts = sorted(reader.received for reader in readers)
            raise TimeoutError(f"{counts[0]} to {counts[-1]} of {publishers[0].total} messages have arrived")
    took = time.monotonic() - begun
    selector.close()
    return took


class Place:
    """Where publishers and readers are: ports of MQTT, and the processes whose CPU counts."""

    def __init__(self, name: str, pairs: list[tuple[int, int]], programs: list[Program], nats: list[Program],
                 known: Callable[[], None]):
        self.name, self.pairs, self.programs, self.nats, self.known = name, pairs, programs, nats, known

    def measure(
        self, qos: int, messages: int, marker: str, is_kept: bool = False, window: int = WINDOW
    ) -> dict[str, float]:
        """Readers are there all the time. Kept sessions would outlive their connections."""
        readers, publishers = [], []
        for number in range(max(PAIRS, len(self.pairs))):
            source, target = self.pairs[number % len(self.pairs)]
            topic = f"bench/{marker}/{number}"
            reader = Reader(target, f"r{marker}-{number}", topic, qos, clean=not is_kept)
            publisher = Publisher(source, f"p{marker}-{number}", topic, qos, messages, window)
            publisher.readers = [reader]
            readers.append(reader)
            publishers.append(publisher)
        self.known()
        before = cpu_s(self.programs), cpu_s(self.nats)
        took = play(publishers, readers)
        after = cpu_s(self.programs), cpu_s(self.nats)
        for client in [*publishers, *readers]:
            client.close()
        if is_kept:
            for number in range(len(readers)):
                # Its session ends here.
                _, target = self.pairs[number % len(self.pairs)]
                Client(target, f"r{marker}-{number}").close()
        total = messages * len(publishers)
        return {
            "messages_per_s": total / took,
            "nodes_us": (after[0] - before[0]) * 1e6 / total,
            "nats_us": (after[1] - before[1]) * 1e6 / total,
        }
