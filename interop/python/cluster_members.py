"""Members of a shared subscription under a nemesis (`cluster_nemesis.py`): on all nodes, with a history of what each held and for
how long. Standard library only.
"""

from __future__ import annotations

import math
import random
import threading
import time

import wire
from cluster_history import Hold
from cluster_nodes import Node
from mqtt_client import PUBLISH, Client

GROUP = "$share/nemesis/grouped/#"
# How long a member keeps a message, and one in how many it leaves with its connection.
KEEP_S, LEAVES_ONE_IN = 0.2, 200


class Member:
    """Takes messages, acknowledges each after a while, and sometimes leaves instead."""

    def __init__(self, node: Node, number: int, seed: int):
        self.node, self.name = node, f"member-{node.name}-{number}"
        self.random = random.Random(seed)
        self.holds: list[Hold] = []
        self.settled: set[str] = set()
        self.connections, self.ends = 0, False
        self.is_there = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self) -> None:
        while not self.ends:
            # By packet identifier: when it is acknowledged, and what it is.
            held: dict[int, tuple[float, Hold]] = {}
            link = None
            try:
                self.connections += 1
                link = Client(self.node.ports["mqtt"], self.name, timeout_s=5)
                link.subscribe([GROUP], 1)
                self.is_there.set()
                self.take(link, held)
            except (OSError, RuntimeError):
                pass
            # Before the broker can know: this thread may not run again soon.
            for _, hold in held.values():
                hold.until_s = time.monotonic()
            self.is_there.clear()
            if link:
                link.close()
            time.sleep(0.1)

    def take(self, link: Client, held: dict[int, tuple[float, Hold]]) -> None:
        while not self.ends:
            try:
                told = link.read(0.02)
                if told is None:
                    return
                if told[0] & 0xF0 == PUBLISH:
                    body = told[1]
                    at = 2 + int.from_bytes(body[:2], "big")
                    hold = Hold(body[at + 2 :].decode(), self.node.name, f"{self.name}, connection {self.connections}",
                                time.monotonic(), math.inf)
                    self.holds.append(hold)
                    due_s = hold.from_s + self.random.uniform(0, KEEP_S)
                    held[int.from_bytes(body[at : at + 2], "big")] = (due_s, hold)
                    if self.random.randrange(LEAVES_ONE_IN) == 0:
                        return
            except TimeoutError:
                pass
            now_s = time.monotonic()
            for number in [number for number, (due_s, _) in held.items() if due_s <= now_s]:
                _, hold = held.pop(number)
                hold.until_s = time.monotonic()
                link.send(wire.ack(wire.PUBACK, number, level=4))
                self.settled.add(hold.payload)
