"""Consumers of a queue of AMQP under a nemesis (`cluster_nemesis.py`): on all nodes, with a history of what each held, for how
long, and whether it was accepted. Standard library only.
"""

from __future__ import annotations

import math
import random
import threading
import time

import amqp_wire as wire
from amqp_raw import RawAmqp
from cluster_history import Hold
from cluster_nodes import Node
from harness import Failure, Listener
from raw import Closed

QUEUE, DEAD = "nemesis", "nemesis-dead"
# How often a message of the queue is delivered before it is a dead letter.
DELIVERIES = 3
QUEUES = f"""
[[amqp.queue]]
name = "{QUEUE}"
maximum_deliveries = {DELIVERIES}
dead_letter = "{DEAD}"

[[amqp.queue]]
name = "{DEAD}"
"""
# How long a consumer keeps a message. One in how many it releases, and with one in how many its connection ends.
KEEP_S, RELEASES_ONE_IN, LEAVES_ONE_IN = 0.2, 100, 200
# The deliveries of each message whose number this divides fail, until it is a dead letter.
FAILS_EACH = 50
CREDIT = 20
# Transfers that a session takes before it says anew how many.
WINDOW = 2048


def body(message: bytes) -> str:
    """The text of a message with a data section, which may follow others."""
    at = 0
    while at < len(message):
        section, at = wire.decode(message, at)
        if isinstance(section.value, bytes):
            return section.value.decode()
    raise Failure(f"a message without a body: {message!r}")


class Consumer:
    """Takes messages, and accepts each after a while, or says that its delivery has failed, or releases it."""

    def __init__(self, node: Node, queue: str, number: int, seed: int):
        self.node, self.queue, self.name = node, queue, f"consumer of {queue} {node.name}-{number}"
        self.random = random.Random(seed)
        self.holds: list[Hold] = []
        self.settled: set[str] = set()
        self.connections, self.ends = 0, False
        self.is_there = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self) -> None:
        while not self.ends:
            # By delivery: when it is settled, and what it is.
            held: dict[int, tuple[float, Hold]] = {}
            link = None
            try:
                self.connections += 1
                link = RawAmqp(Listener(self.node.url("amqp"), None), timeout=5)
                begin = link.begun(container=self.name)
                link.receiving(wire.source(f"queue/{self.queue}"), CREDIT)
                self.is_there.set()
                self.take(link, held, begin.field(1) or 0)
            except (OSError, Failure, Closed):
                pass
            # Before the broker can know: this thread may not run again soon.
            for _, hold in held.values():
                hold.until_s = time.monotonic()
            self.is_there.clear()
            if link:
                link.close()
            time.sleep(0.1)

    def take(self, link: RawAmqp, held: dict[int, tuple[float, Hold]], first: int) -> None:
        count = 0
        while not self.ends:
            got = link.frame(0.02)
            if got is not None and got.code == wire.TRANSFER:
                count += 1
                hold = Hold(body(got.payload), self.node.name,
                            f"{self.name}, connection {self.connections}", time.monotonic(), math.inf)
                self.holds.append(hold)
                held[got.field(1)] = (hold.from_s + self.random.uniform(0, KEEP_S), hold)
                if self.random.randrange(LEAVES_ONE_IN) == 0:
                    return
            elif got is not None and got.code in (wire.DETACH, wire.END, wire.CLOSE):
                raise Closed(str(got))
            now_s = time.monotonic()
            due = [number for number, (due_s, _) in held.items() if due_s <= now_s]
            for number in due:
                _, hold = held.pop(number)
                hold.until_s = time.monotonic()
                link.send(wire.disposition(True, number, state=self.outcome(hold)))
            if due:
                link.send(wire.flow(0, CREDIT - len(held), count, next_incoming=first + count, incoming=WINDOW))

    def outcome(self, hold: Hold) -> wire.Typed:
        if self.queue == QUEUE and int(hold.payload.rpartition(" ")[2]) % FAILS_EACH == 0:
            return wire.composite(wire.MODIFIED, True)
        if self.random.randrange(RELEASES_ONE_IN) == 0:
            return wire.composite(wire.RELEASED)
        hold.is_accepted = True
        self.settled.add(hold.payload)
        return wire.composite(wire.ACCEPTED)
