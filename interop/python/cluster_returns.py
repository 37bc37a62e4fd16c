"""What has ended does not come again: servers of NATS are killed after the time of every end has passed.

A server of NATS that is killed reads its messages anew, and may have some again that had been replaced, had expired or were
removed. The rows end sessions, wills, keys of requests, retained messages and filters, wait until NATS has forgotten the ends,
and kill servers. Then nodes die, which has the others look at every record.

  cluster_returns.py [WORD]...   all rows, or those with one of the words in their name

Standard library only.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import wire
from cluster import run_rows
from cluster_nodes import COUNT, PATIENCE_S, SHORT_ABSENCE_MS, Cluster, Node, ask_nats, wait_until
from cluster_requests import post_well
from cluster_sessions import CONNACK, PUBLISH, Client
from harness import Failure
from mqtt_client import Connection

# Clients of each kind.
EACH = 4
HOUR_S = 3_600
# How long ends and keys are kept. Those of sessions stay as long as a node that was cut off may be back.
END_MS, KEY_S = 1_000, 2
ENDS = (
    f"ended_session_ms = {SHORT_ABSENCE_MS}\nended_filter_ms = {END_MS}\ncleared_topic_ms = {END_MS}\n"
    f"[http]\nidempotency_window_s = {KEY_S}\n"
)


class Ground(Cluster):
    """Three nodes and one server of NATS, or three."""

    def __init__(self, folder: Path, servers: int):
        settings = ENDS if servers == COUNT else f"replicas = {servers}\n{ENDS}"
        super().__init__(folder, settings, SHORT_ABSENCE_MS)
        if servers == 1:
            only = self.nats[0]
            text = Path(only.arguments[-1]).read_text()
            Path(only.arguments[-1]).write_text(text.partition("cluster {")[0])
            self.nats = [only]
            self.programs = [only, *self.nodes]

    def subjects(self, stream: str, filter_: str) -> dict[str, int]:
        """The subjects of a stream, and how many messages each has."""
        # Any server answers, also one that was killed before.
        self.servers = [nats.port for nats in self.nats if nats.process]
        question = f'{{"subjects_filter": "sterna.sterna.{filter_}"}}'.encode()
        answer = ask_nats(self, f"$JS.API.STREAM.INFO.STERNA_sterna_{stream}", question)
        return answer["state"].get("subjects") or {}

    def kill_servers(self, together: bool) -> None:
        if together:
            for nats in self.nats:
                nats.kill()
            for nats in self.nats:
                nats.start()
            self.settle_living()
            return
        for nats in self.nats:
            nats.kill()
            nats.start()
            self.settle_living()

    def settle_living(self) -> None:
        """Waits until each node that lives is ready."""
        for node in [node for node in self.nodes if node.process]:
            wait_until(f"{node.name} is ready", node.is_ready)


class Wills:
    """Reads all wills on one node."""

    def __init__(self, node: Node):
        self.link = Client(node, "reader", clean=True).admitted()
        self.link.subscribe(["will/#"], 1)
        self.seen: list[str] = []

    def until(self, wanted: set[str]) -> None:
        while not wanted <= set(self.seen):
            told = self.link.read()
            if told is None:
                raise Failure(f"the reader's connection has ended; it has {self.seen}")
            if told[0] != PUBLISH:
                continue
            body = told[1]
            length = int.from_bytes(body[:2], "big")
            self.seen.append(body[2 : 2 + length].decode().removeprefix("will/"))
            self.link.send(wire.ack(wire.PUBACK, int.from_bytes(body[2 + length : 4 + length], "big")))


class Living(Client):
    """A client with a will of QoS 1, which was let in."""

    def __init__(self, node: Node, name: str, expiry_s: int = 0):
        will = {"topic": f"will/{name}", "payload": b"x", "qos": 1}
        Connection.__init__(
            self, node.ports["mqtt"], name, 5, PATIENCE_S, clean=False, props={"session_expiry": expiry_s}, will=will)
        self.admitted()


def named(kind: str) -> list[str]:
    return [f"{kind}-{number}" for number in range(EACH)]


def present(node: Node, name: str) -> bool:
    """Whether a client's session is there. It is ended with that."""
    link = Client(node, name, expiry_s=HOUR_S)
    answer = link.read()
    if answer is None or answer[0] != CONNACK or answer[1][1]:
        raise Failure(f"{name} was answered {answer}")
    link.send(wire.disconnect(props={"session_expiry": 0}))
    link.close()
    return bool(answer[1][0] & 1)


def retain(link: Client, topic: str, payload: str, number: int, expiry_s: int = 0) -> None:
    props = {"message_expiry": expiry_s} if expiry_s else None
    link.send(wire.publish(topic, payload.encode(), 1, number, retain=True, props=props))
    link.read()


def retained_at(node: Node) -> list[str]:
    """Retained messages of a node, up to that of the last topic."""
    link = Client(node, "looks", clean=True).admitted()
    link.subscribe(["kept/#"], 0)
    found = []
    while "kept/there" not in found:
        told = link.read()
        if told is None:
            raise Failure(f"the connection has ended, after {found}")
        length = int.from_bytes(told[1][:2], "big")
        found.append(told[1][2 : 2 + length].decode())
    link.close()
    return found


def comes_again(cluster: Ground, together: bool) -> None:
    """Everything ends, NATS forgets the ends, its servers are killed, and nodes die."""
    first, second, third = cluster.nodes
    wills = Wills(third)
    for node in (first, second):
        wait_until("the wills' reader is known", lambda node=node: node.figure("sterna_cluster_filters") == 1)
    links = [Living(first, name) for name in named("dies")]
    links += [Living(first, name, HOUR_S) for name in named("stays")]
    # These leave in order, and their node dies later.
    for name in named("leaves"):
        link = Living(second, name)
        link.send(wire.disconnect())
        link.close()
    for name in named("ends"):
        link = Living(second, name, HOUR_S)
        link.subscribe([f"{name}/#"], 1)
        link.send(wire.disconnect(props={"session_expiry": 0}))
        link.close()
    writer = Client(second, "writer", clean=True).admitted()
    for topic in ("kept/cleared", "kept/expires"):
        retain(writer, topic, "old", 1)
        retain(writer, topic, "newer", 2)
    retain(writer, "kept/cleared", "", 3)
    retain(writer, "kept/expires", "short", 4, expiry_s=1)
    retain(writer, "kept/there", "x", 5)
    for name in named("key"):
        post_well(second, "keyed/a", name, "m", was_done=False)
    first.kill()
    expected = set(named("dies") + named("stays"))
    wills.until(expected)
    # The reader, the writer, and the sessions that another node has now.
    wait_until("ends are forgotten", lambda: len(cluster.subjects("SESSIONS", "session.*")) == 2 + EACH)
    wait_until("keys are forgotten", lambda: len(cluster.subjects("KEPT", "kept.*")) <= EACH)
    wait_until("topics are cleared", lambda: len(cluster.subjects("RETAINED", "retained.>")) == 1)
    cluster.kill_servers(together)
    writer.close()
    # Another looks at every record when a node is gone. Who looks for the second time has looked before.
    for number in range(2):
        name = f"marker-{number}"
        link = Living(second, name)
        second.kill()
        link.close()
        expected.add(name)
        wills.until(expected)
        second.start()
        cluster.settle_living()
    if sorted(wills.seen) != sorted(expected):
        again = sorted(name for name in set(wills.seen) if wills.seen.count(name) > 1 or name not in expected)
        raise Failure(f"these wills came again: {again}")
    back = [name for name in named("ends") if present(third, name)]
    if back:
        raise Failure(f"these sessions are there again: {back}")
    lost = [name for name in named("stays") if not present(second, name)]
    if lost:
        raise Failure(f"these sessions are lost: {lost}")
    for name in named("key"):
        post_well(third, "keyed/a", name, "m", was_done=False)
    first.start()
    cluster.settle()
    for node in (first, second):
        if retained_at(node) != ["kept/there"]:
            raise Failure(f"{node.name} has {retained_at(node)}")
        wait_until("its filters are those of the living", lambda node=node: node.figure("sterna_cluster_filters") == 1, 30)
    wills.link.close()


ROWS = [
    ("what has ended does not come again: one server of NATS is killed", 1, True),
    ("what has ended does not come again: three servers of NATS are killed together", COUNT, True),
    ("what has ended does not come again: three servers of NATS are killed one by one", COUNT, False),
]


def play(servers: int, together: bool) -> None:
    folder = Path(os.environ["STERNA_BUILD"]) / "cluster-returns"
    shutil.rmtree(folder, ignore_errors=True)
    with Ground(folder, servers) as cluster:
        comes_again(cluster, together)


def main() -> None:
    rows = [(name, (servers, together)) for name, servers, together in ROWS]
    run_rows(rows, lambda row: play(*row), lambda _: None)


if __name__ == "__main__":
    main()
