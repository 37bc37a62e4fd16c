"""What has ended does not come again: servers of NATS are killed after the time of every end has passed, or records of old
are written once more. Nothing of it may depend on what NATS removes by itself.

A server of NATS that is killed reads its messages anew, and may have some again that had been replaced, had expired or were
removed. The rows end sessions, wills, keys of requests, retained messages and filters, wait until NATS has forgotten the ends,
and kill servers. Then nodes die, which has the others look at every record.

  cluster_returns.py [WORD]...   all rows, or those with one of the words in their name

Standard library only.
"""

from __future__ import annotations

import base64
import json
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
# Where a row looks at ends.
LONG_END_MS = 30_000


def ends(end_ms: int) -> str:
    return (
        f"maximum_node_names = {COUNT}\n"
        f"ended_session_ms = {SHORT_ABSENCE_MS}\nended_filter_ms = {end_ms}\ncleared_topic_ms = {end_ms}\n"
        f"[http]\nidempotency_window_s = {KEY_S}\n"
    )


class Ground(Cluster):
    """Three nodes and one server of NATS, or three."""

    def __init__(self, folder: Path, servers: int, end_ms: int = END_MS):
        settings = ends(end_ms) if servers == COUNT else f"replicas = {servers}\n{ends(end_ms)}"
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

    def last_of(self, stream: str, subject: str) -> dict | None:
        """The last message of a subject: its sequence number, headers and payload."""
        question = json.dumps({"last_by_subj": f"sterna.sterna.{subject}"}).encode()
        found = ask_nats(self, f"$JS.API.STREAM.MSG.GET.STERNA_sterna_{stream}", question).get("message")
        return found and {
            "sequence": found["seq"],
            "headers": base64.b64decode(found.get("hdrs", "")).decode(),
            "payload": base64.b64decode(found.get("data", "")),
        }

    def write(self, subject: str, payload: bytes) -> None:
        """Writes a record as a server of NATS does that has an old one again."""
        if "seq" not in (answer := ask_nats(self, subject, payload)):
            raise Failure(f"NATS does not take {subject}: {answer}")

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


def kept_records(cluster: Ground, stream: str, filter_: str) -> dict[str, bytes]:
    """The last records of subjects, as they are now."""
    subjects = [subject.removeprefix("sterna.sterna.") for subject in cluster.subjects(stream, filter_)]
    found = {subject: cluster.last_of(stream, subject) for subject in subjects}
    return {f"sterna.sterna.{subject}": record["payload"] for subject, record in found.items() if record}


def written_again(cluster: Ground) -> None:
    """Records of an earlier process of a node, and of a key whose time is over, are written once more after their ends have been
    removed: they are nothing to anybody, nor to who starts later. A server that has them again has them where they were, so what
    is tried here is more: they come behind all others."""
    first, second, third = cluster.nodes
    wills = Wills(third)
    wait_until("the wills' reader is known", lambda: first.figure("sterna_cluster_filters") == 1)
    links = [Living(first, name) for name in named("dies")]
    links[0].subscribe(["of/old/#"], 1)
    post_well(first, "keyed/a", "old", "m", was_done=False)
    records = kept_records(cluster, "SESSIONS", "session.*")
    records |= kept_records(cluster, "KEPT", "kept.*")
    wait_until("its filter is told", lambda: len(cluster.subjects("NODES", f"node.{first.name}.want.*")) > 0)
    wants = kept_records(cluster, "NODES", f"node.{first.name}.want.*")
    records |= wants
    process = int(next(iter(wants.values())).split()[1])
    first.kill()
    wills.until(set(named("dies")))
    # The reader is left; swept is all that stays of the node's filters.
    wait_until("ends of sessions are removed", lambda: len(cluster.subjects("SESSIONS", "session.*")) == 1)
    wait_until("the key is free", lambda: not cluster.subjects("KEPT", "kept.*"))
    wait_until("the node is swept", lambda: [
        subject.rsplit(".", 1)[1] for subject in cluster.subjects("NODES", f"node.{first.name}.want.*")] == ["swept"])
    first.start()
    cluster.settle()
    # A process writes above its own floor: it may have been taken for gone. So only a later one ends an earlier for good.
    wait_until("its next process is above", lambda: int(
        cluster.last_of("SESSIONS", f"floor.{first.name}")["payload"].split()[1]) > process)
    living = cluster.subjects("SESSIONS", "session.*")
    old = {subject: payload for subject, payload in records.items() if subject not in living}
    if len(old) < EACH + 2:
        raise Failure(f"only these records are of old: {sorted(old)}")
    for subject, payload in old.items():
        cluster.write(subject, payload)
    # Who starts later reads them; and a node that dies has another look at all records.
    marker = Living(second, "marker")
    second.kill()
    marker.close()
    expected = [*named("dies"), "marker"]
    wills.until(set(expected))
    second.start()
    wait_until("it is ready", second.is_ready)
    wait_until("it knows the living reader alone", lambda: second.figure("sterna_cluster_filters") == 1)
    if sorted(wills.seen) != sorted(expected):
        raise Failure(f"the wills were {sorted(wills.seen)}")
    post_well(third, "keyed/a", "old", "m", was_done=False)
    first.kill()
    first.start()
    cluster.settle()
    wait_until("the first knows the living reader alone", lambda: first.figure("sterna_cluster_filters") == 1)
    wills.link.close()


def end_of(cluster: Ground, topic: str, first: int) -> dict | None:
    """The record that a retained message has ended, which has taken its place; `None` before that."""
    found = cluster.last_of("RETAINED", f"retained.t.{topic}")
    if found is None:
        raise Failure(f"NATS has nothing of {topic}: it was removed, and no record says that it has ended")
    return found if found["sequence"] != first else None


def retained_now(node: Node) -> list[str]:
    """All retained messages of a node below `kept`. Those of the second filter come behind them."""
    link = Client(node, "looks", clean=True).admitted()
    link.subscribe(["kept/#"], 0)
    link.send(wire.subscribe(2, [("last", 0)]))
    found = []
    while "last" not in found:
        told = link.read()
        if told is None:
            raise Failure(f"the connection has ended, after {found}")
        if told[0] == PUBLISH:
            length = int.from_bytes(told[1][:2], "big")
            found.append(told[1][2 : 2 + length].decode())
    link.close()
    return sorted(found)


def expires(cluster: Ground) -> None:
    """The end of a retained message that expires is a record, also where its node is gone by then; it is removed later with all
    before it. A message that has come since stays."""
    first, second, third = cluster.nodes
    writer = Client(second, "writer", clean=True).admitted()
    left = ["kept/again", "kept/there", "last"]
    for topic in ("kept/there", "last"):
        retain(writer, topic, "x", 1)
    for topic in ("kept/short", "kept/again", "kept/orphan"):
        retain(writer, topic, "old", 2)
    retain(writer, "kept/short", "short", 3, expiry_s=1)
    retain(writer, "kept/again", "short", 4, expiry_s=1)
    retain(writer, "kept/again", "new", 5)
    sequence = cluster.last_of("RETAINED", "retained.t.kept.short")["sequence"]
    end = wait_until("its end is written", lambda: end_of(cluster, "kept.short", sequence))
    if "Nats-TTL" in end["headers"] or "Nats-Rollup: sub" not in end["headers"]:
        raise Failure(f"its end has the headers {end['headers']}")
    retain(writer, "kept/orphan", "short", 6, expiry_s=2)
    sequence = cluster.last_of("RETAINED", "retained.t.kept.orphan")["sequence"]
    second.kill()
    wait_until("another node writes its end", lambda: end_of(cluster, "kept.orphan", sequence))
    if first.figure("sterna_cluster_waiting_ends") < 1:
        raise Failure("ends are not counted")
    second.start()
    cluster.settle()
    for node in cluster.nodes:
        wait_until(f"{node.name} has what is there", lambda node=node: retained_now(node) == left)
    wait_until("ends are removed", lambda: sorted(cluster.subjects("RETAINED", "retained.>")) == [
        "sterna.sterna.retained.t." + topic.replace("/", ".") for topic in left])
    third.kill()
    third.start()
    cluster.settle()
    wait_until("who starts later has the same", lambda: retained_now(third) == left)


def a_name_too_many(cluster: Ground) -> None:
    """What stays of nodes for good is bounded by their names. A node of another name says so, and one of a known name joins."""
    other = Node(cluster.folder / "other", "other", cluster.servers, "replicas = 1\n" + ends(END_MS), SHORT_ABSENCE_MS)
    cluster.programs.append(other)
    other.start()
    wait_until("it says why it does not join", lambda: "cluster.maximum_node_names = 3" in other.page("/readyz"))
    if (names := cluster.nodes[0].figure("sterna_cluster_node_names")) not in (0, 1, 2, 3):
        raise Failure(f"{names} names are counted")
    cluster.nodes[2].kill()
    cluster.nodes[2].start()
    wait_until("a known name joins", cluster.nodes[2].is_ready)
    if other.is_ready():
        raise Failure("the other has joined")


ROWS = [
    ("what has ended does not come again: one server of NATS is killed", 1, END_MS,
     lambda cluster: comes_again(cluster, True)),
    ("what has ended does not come again: three servers of NATS are killed together", COUNT, END_MS,
     lambda cluster: comes_again(cluster, True)),
    ("what has ended does not come again: three servers of NATS are killed one by one", COUNT, END_MS,
     lambda cluster: comes_again(cluster, False)),
    ("records of old are written once more", 1, END_MS, written_again),
    ("a retained message expires by a record", 1, LONG_END_MS, expires),
    ("a name of a node too many", 1, END_MS, a_name_too_many),
]


def play(servers: int, end_ms: int, row) -> None:
    folder = Path(os.environ["STERNA_BUILD"]) / "cluster-returns"
    shutil.rmtree(folder, ignore_errors=True)
    with Ground(folder, servers, end_ms) as cluster:
        row(cluster)


def main() -> None:
    rows = [(name, row) for name, *row in ROWS]
    run_rows(rows, lambda row: play(*row), lambda _: None)


if __name__ == "__main__":
    main()
