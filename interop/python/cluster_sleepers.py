"""Clients with sessions that are away while a clock of a cluster is wrong (`cluster_nemesis.py`). Neither they nor the messages for
them may end by that. Standard library only.
"""

from __future__ import annotations

import time

import wire
from cluster_nodes import Node
from mqtt_client import CONNACK, PUBACK, PUBLISH, Connection

# For how long a session and a message last, which is much longer than a round.
LASTS_S = 600
MESSAGES = 5
# For how long a node with a wrong clock is asked to let somebody in, and how long the others have to do so.
KNOCK_S, RISE_S = 1, 60


class Sleeper:
    """A client with a session. It goes to sleep at a node, and gets up at another."""

    def __init__(self, node: Node, number: int):
        self.node, self.name = node, f"sleeper-{number}"
        self.topic = f"sleeps/{number}"
        self.got: set[bytes] = set()

    def connect(self, node: Node, timeout_s: float) -> tuple[Connection, bool] | None:
        """A connection that was let in, and whether its session was present; `None` where it was not."""
        link = None
        try:
            link = Connection(node.ports["mqtt"], self.name, 5, timeout_s, clean=False, props={"session_expiry": LASTS_S})
            answer = link.read()
        except OSError:
            answer = None
        if answer and answer[0] == CONNACK and answer[1][1] == 0:
            return link, bool(answer[1][0] & 1)
        if link:
            link.close()
        return None

    def lie_down(self) -> None:
        found = self.connect(self.node, 10)
        if not found:
            raise RuntimeError(f"{self.name} was not let in")
        link, _ = found
        link.subscribe([self.topic], 1)
        link.close()
        publisher = Connection(self.node.ports["mqtt"], f"for-{self.name}", 5)
        publisher.read()
        for number in range(1, MESSAGES + 1):
            publisher.send(wire.publish(self.topic, str(number).encode(), 1, number, props={"message_expiry": LASTS_S}))
            answer = publisher.read()
            if not answer or answer[0] != PUBACK or (len(answer[1]) > 2 and answer[1][2] >= 0x80):
                raise RuntimeError(f"a message for {self.name} was answered with {answer}")
        publisher.close()

    def take(self, link: Connection, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end and len(self.got) < MESSAGES:
            try:
                told = link.read(0.5)
            except TimeoutError:
                continue
            if told is None:
                return
            if told[0] & 0xF0 == PUBLISH:
                body = told[1]
                at = 2 + int.from_bytes(body[:2], "big")
                link.send(wire.ack(wire.PUBACK, int.from_bytes(body[at : at + 2], "big")))
                # Properties are shorter than 128 bytes.
                self.got.add(body[at + 3 + body[at + 2] :])

    def get_up(self, node: Node) -> str:
        """What was lost meanwhile; empty for nothing."""
        end = time.monotonic() + RISE_S
        found = None
        while not found and time.monotonic() < end:
            found = self.connect(node, 10)
            if not found:
                time.sleep(0.2)
        if not found:
            return f"not served: {self.name} is not let in at {node.name}"
        link, is_present = found
        self.take(link, 20)
        try:
            link.send(wire.disconnect(props={"session_expiry": 0}))
        except OSError:
            pass
        link.close()
        if not is_present:
            return f"expired: the session of {self.name} is gone at {node.name}"
        missing = MESSAGES - len(self.got)
        return f"expired: {missing} messages of {self.name} are gone at {node.name}" if missing else ""


class Sleepers:
    """One of each node."""

    def __init__(self, nodes: list[Node]):
        self.nodes = nodes
        self.all = [Sleeper(node, number) for number, node in enumerate(nodes)]

    def lie_down(self) -> None:
        for sleeper in self.all:
            sleeper.got.clear()
            sleeper.lie_down()

    def knock(self, node: Node) -> None:
        """All come to the node whose clock is wrong. It should let nobody in."""
        end = time.monotonic() + KNOCK_S
        while time.monotonic() < end:
            for sleeper in self.all:
                found = sleeper.connect(node, 2)
                if found:
                    sleeper.take(found[0], 1)
                    found[0].close()
            time.sleep(0.2)

    def get_up(self) -> list[str]:
        """What was lost, when all clocks are right again."""
        others = self.nodes[1:] + self.nodes[:1]
        return [lost for sleeper, node in zip(self.all, others, strict=True) if (lost := sleeper.get_up(node))]
