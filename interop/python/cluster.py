"""Three nodes on three servers of NATS: what crosses between them, and what happens when one of them goes.

  cluster.py [--part PART] [WORD]...   all rows of a part, or of all; with words those that have one of them in their name

Each part is a suite of its own: they run side by side, each with its own servers, nodes and ports. Standard library; the
clients are the broker's own command.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from cluster_nodes import ABSENCE_MS, LEASE_MS, PATIENCE_S, Cluster, Node, ask_nats, wait_until
from cluster_flow import ROWS as FLOW
from cluster_groups import ROWS as GROUPS
from cluster_kept import ROWS as KEPT
from cluster_losses import ROWS as LOSSES
from cluster_requests import ROWS as REQUESTS
from cluster_sessions import ROWS as SESSIONS
from harness import Failure, Report

STERNA = os.environ["STERNA_BIN"]
PROTOCOLS = ("mqtt", "amqp", "http")
# Messages of a ledger, and the time between two of them in seconds.
LEDGER, PACE_S = 2_000, 0.002
# Retained messages that each node publishes to one topic.
RETAINED = 300
# How long NATS sends on to a reader that stands still, and some more.
FOLLOWED_S = 12.0
# How long nothing must come.
SILENCE_S = 1.0
# Clients of a row, which end with it.
clients: list[subprocess.Popen] = []


class Reader:
    """A client that gathers what it receives."""

    def __init__(self, node: Node, protocol: str, topic: str, *options: str):
        self.node = node
        before = node.figure("sterna_subscriptions")
        self.process = subprocess.Popen(
            [STERNA, "sub", node.url(protocol), "-t", topic, *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        clients.append(self.process)
        self.lines: list[str] = []
        threading.Thread(target=self.gather, daemon=True).start()
        wait_until("the subscription is made", lambda: node.figure("sterna_subscriptions") > before)

    def gather(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))

    def wait(self, count: int, patience_s: float = PATIENCE_S) -> list[str]:
        try:
            wait_until(f"{count} messages", lambda: len(self.lines) >= count, patience_s)
        except TimeoutError as error:
            raise Failure(f"{error}, but {len(self.lines)}") from error
        return self.lines

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        """Ends it, and waits until its node has seen that: the next reader is known by one subscription more."""
        made = self.node.figure("sterna_subscriptions") if self.process.poll() is None else 0
        self.process.kill()
        self.process.wait()
        if made > 0:
            wait_until("the subscription is gone", lambda: self.node.figure("sterna_subscriptions") < made)


def publish(node: Node, protocol: str, topic: str, payload: str, *options: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [STERNA, "pub", node.url(protocol), "-t", topic, "-m", payload, *options],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def publish_well(node: Node, protocol: str, topic: str, payload: str, *options: str) -> None:
    done = publish(node, protocol, topic, payload, *options)
    if done.returncode != 0:
        raise Failure(f"pub ended with {done.returncode}: {done.stderr}")


def wait_for_filters(node: Node, count: int) -> None:
    """Waits until the node knows of so many filters of others."""
    try:
        wait_until(f"{node.name} knows {count} filters", lambda: node.figure("sterna_cluster_filters") == count)
    except TimeoutError as error:
        owners = {each["node"]: each["filters"] for each in status(node)["nodes"]}
        raise Failure(f"{error}, but {owners}") from error


def none_left(cluster: Cluster) -> None:
    for node in cluster.nodes:
        wait_for_filters(node, 0)


def protocols(cluster: Cluster) -> None:
    """Published on one node by each protocol, read on the others by each, once."""
    first, second, third = cluster.nodes
    readers = [Reader(node, protocol, "cross/#") for node in (second, third) for protocol in PROTOCOLS]
    local = Reader(first, "mqtt", "cross/#")
    wait_for_filters(first, 2)
    for protocol in PROTOCOLS:
        publish_well(first, protocol, f"cross/{protocol}", f"by {protocol}", "-q", "1")
    expected = [f"by {protocol}" for protocol in PROTOCOLS]
    for reader in [*readers, local]:
        reader.wait(len(expected))
    time.sleep(SILENCE_S)
    for reader in [*readers, local]:
        if sorted(reader.lines) != sorted(expected):
            raise Failure(f"got {reader.lines}")
        reader.__exit__()
    none_left(cluster)


def levels(cluster: Cluster) -> None:
    """Each quality of service, on topics that NATS could not have as subjects."""
    first, second, _ = cluster.nodes
    topic = "levels/a b//*.>%/é"
    with Reader(second, "mqtt", "levels/+/+/#", "-q", "2") as reader:
        wait_for_filters(first, 1)
        for level in ("0", "1", "2"):
            publish_well(first, "mqtt", topic, level, "-q", level)
        if sorted(reader.wait(3)) != ["0", "1", "2"]:
            raise Failure(f"got {reader.lines}")
    none_left(cluster)


def retained(cluster: Cluster) -> None:
    """A retained message is on every node, also on one that starts later, and goes everywhere."""
    first, second, third = cluster.nodes
    publish_well(first, "mqtt", "kept/a.b *", "kept", "-q", "1", "-r")
    for node, protocol in ((second, "mqtt"), (third, "http"), (first, "mqtt")):
        with Reader(node, protocol, "kept/#") as reader:
            reader.wait(1)
    second.kill()
    second.start()
    cluster.settle()
    with Reader(second, "mqtt", "kept/#") as reader:
        reader.wait(1)
    publish_well(third, "mqtt", "kept/a.b *", "", "-q", "1", "-r")
    wait_until(
        "the first node has none",
        lambda: first.figure("sterna_retained_messages") == third.figure("sterna_retained_messages"),
    )
    for node in cluster.nodes:
        with Reader(node, "mqtt", "kept/#") as reader:
            time.sleep(SILENCE_S)
            if reader.lines:
                raise Failure(f"{node.name} still has {reader.lines}")
    # Nothing is there to clear.
    before = entries_of_retained(cluster)
    for number in range(5):
        publish_well(first, "mqtt", f"never-kept/{number}", "", "-q", str(number % 3), "-r")
    if (after := entries_of_retained(cluster)) > before:
        raise Failure(f"NATS has {after - before} more entries of retained messages")
    none_left(cluster)


def entries_of_retained(cluster: Cluster) -> int:
    return ask_nats(cluster, "$JS.API.STREAM.INFO.STERNA_sterna_RETAINED")["state"]["messages"]


class Stranger:
    """A connection to NATS of somebody who speaks for a node that is none of ours."""

    def __init__(self, port: int):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        self.lines = self.socket.makefile("rb")
        self.lines.readline()
        self.socket.sendall(b'CONNECT {"verbose":false,"pedantic":false}\r\n')

    def __enter__(self) -> Stranger:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def publish(self, subject: str, payload: bytes) -> None:
        self.socket.sendall(f"PUB {subject} {len(payload)}\r\n".encode() + payload + b"\r\n")

    def subscribe(self, subject: str) -> None:
        self.socket.sendall(f"SUB {subject} 1\r\nPING\r\n".encode())
        while not self.lines.readline().startswith(b"PONG"):
            pass

    def receive(self) -> bytes:
        while True:
            line = self.lines.readline()
            if not line:
                raise ConnectionError("NATS ends the connection")
            if line.startswith(b"PING"):
                self.socket.sendall(b"PONG\r\n")
            if line.startswith(b"MSG"):
                return self.lines.read(int(line.split()[-1]))


def others(node: Node) -> float:
    """How many other nodes a node counts."""
    return sum(node.figure(f"sterna_cluster_nodes_{how}") for how in ("here", "away"))


# Later than all: incarnations are numbers of a stream that begins at a time in microseconds.
LATER = "9999999999999999"


def a_later_version(cluster: Cluster) -> None:
    """A node of a later program joins: it reads the next version of the wire form, too. The others go on with the one
    that all read, and a batch of the next one harms nothing. A node that reads the next one alone is left out."""
    first, second, _ = cluster.nodes
    words = {each["node"]: each["told"]["wire"] for each in status(first)["nodes"]}
    if set(words.values()) != {"1"}:
        raise Failure(f"they state {words}")
    unread = second.figure("sterna_cluster_unreadable_batches_total")
    with Stranger(cluster.servers[0]) as nats, Reader(second, "mqtt", "form") as reader:
        nats.publish("sterna.sterna.alive.next", f"1 {LATER} here 1-2".encode())
        for node in cluster.nodes:
            wait_until(f"{node.name} has heard it", lambda node=node: others(node) == len(cluster.nodes))
        wait_for_filters(first, 1)
        nats.subscribe(f"sterna.sterna.to.{second.name}.*")
        publish_well(first, "mqtt", "form", "in version 1", "-q", "0")
        reader.wait(1)
        batch = nats.receive()
        if batch[0] != 1:
            raise Failure(f"a batch begins with {batch[:20]!r}")
        nats.publish(f"sterna.sterna.to.{second.name}.next", b"\x02" + batch[1:])
        wait_until(
            "the batch is counted", lambda: second.figure("sterna_cluster_unreadable_batches_total") == unread + 1
        )
        nats.publish("sterna.sterna.alive.next", f"1 {LATER} leaving 1-2".encode())
        # One that reads nothing of theirs.
        nats.publish("sterna.sterna.alive.later", f"1 {LATER} here 2".encode())
        wait_until("it is said", lambda: all("it is left out" in node.log.read_text() for node in cluster.nodes))
        for node in cluster.nodes:
            # A node that stood still in the row before may have missed the others, and hears of them within a beat.
            wait_until(
                f"{node.name} counts the others",
                lambda node=node: others(node) == len(cluster.nodes) - 1,
            )
            wait_until(f"{node.name} is ready", node.is_ready)
        publish_well(first, "mqtt", "form", "goes on", "-q", "0")
        if reader.wait(2) != ["in version 1", "goes on"]:
            raise Failure(f"got {reader.lines}")
    none_left(cluster)


class Ledger:
    """A publisher of numbers on one node, and a reader on another."""

    def __init__(self, source: Node, sink: Node, topic: str, level: str):
        self.reader = Reader(sink, "mqtt", topic, "-q", level)
        wait_for_filters(source, 1)
        self.process = subprocess.Popen(
            [STERNA, "pub", source.url("mqtt"), "-t", topic, "-q", level, "-l"],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        clients.append(self.process)
        self.thread = threading.Thread(target=self.write, daemon=True)
        self.thread.start()

    def write(self) -> None:
        assert self.process.stdin
        for number in range(LEDGER):
            self.process.stdin.write(f"{number}\n")
            self.process.stdin.flush()
            time.sleep(PACE_S)
        self.process.stdin.close()

    def check(self) -> None:
        """Every number arrives once, in order."""
        self.thread.join()
        # Its standard input is closed.
        self.process.stdin = None
        self.process.communicate(timeout=PATIENCE_S)
        if self.process.returncode != 0:
            raise Failure(f"the publisher ended with {self.process.returncode}")
        found = [int(line) for line in self.reader.wait(LEDGER)]
        time.sleep(SILENCE_S)
        if found != list(range(LEDGER)):
            raise Failure(f"{len(found)} messages, {len(set(found))} different, in order {found == sorted(found)}")
        self.reader.__exit__()


def one_server(cluster: Cluster, level: str) -> None:
    """A server of NATS is killed, and comes back: nothing is lost, doubled or out of order."""
    first, _, third = cluster.nodes
    for victim in (1, 2):
        ledger = Ledger(first, third, f"ledger/{level}/{victim}", level)
        ledger.reader.wait(LEDGER // 10)
        cluster.nats[victim].kill()
        ledger.reader.wait(LEDGER // 2)
        cluster.nats[victim].start()
        ledger.check()
        none_left(cluster)
    cluster.settle()


def all_servers(cluster: Cluster) -> None:
    """Without NATS, clients of one node go on, and what another wants for sure, or may want by then, is refused."""
    first, second, _ = cluster.nodes
    with Reader(second, "mqtt", "far/#", "-q", "1") as far, Reader(first, "mqtt", "near/#", "-q", "1") as near:
        wait_for_filters(first, 1)
        wait_for_filters(second, 1)
        publish_well(first, "mqtt", "far/before", "before", "-q", "1")
        far.wait(1)
        for server in cluster.nats:
            server.kill()
        wait_until("the node says so", lambda: "no server of NATS" in first.page("/readyz"))
        publish_well(first, "mqtt", "near/0", "0", "-q", "0")
        publish_well(first, "mqtt", "near/1", "1", "-q", "1")
        near.wait(2)
        wait_until("what must arrive is refused", lambda: first.figure("sterna_cluster_open") == 0)
        refused = publish(first, "mqtt", "far/refused", "refused", "-q", "1")
        if refused.returncode == 0:
            raise Failure("a message was acknowledged that nobody will bring to its reader")
        if publish(first, "mqtt", "near/2", "who wants it elsewhere is not known any more", "-q", "1").returncode == 0:
            raise Failure("a message was acknowledged that somebody may have come for elsewhere")
        publish_well(first, "mqtt", "near/2", "2", "-q", "0")
        near.wait(3)
        for server in cluster.nats:
            server.start()
        cluster.settle()
        publish_well(first, "mqtt", "far/after", "after", "-q", "1")
        far.wait(2)
        time.sleep(SILENCE_S)
        if far.lines != ["before", "after"]:
            raise Failure(f"got {far.lines}")
    none_left(cluster)


def a_node(cluster: Cluster) -> None:
    """A node is killed: the others see it go, and hear of it when it is back."""
    first, second, third = cluster.nodes
    with Reader(third, "mqtt", "node/#", "-q", "1") as other:
        reader = Reader(second, "mqtt", "node/#", "-q", "1")
        wait_for_filters(first, 2)
        second.kill()
        reader.__exit__()
        wait_until("the others miss it", lambda: first.figure("sterna_cluster_nodes_away") == 1)
        publish_well(first, "mqtt", "node/1", "while it is away", "-q", "1")
        other.wait(1)
        second.start()
        cluster.settle()
        with Reader(second, "mqtt", "node/#", "-q", "1") as reader:
            wait_for_filters(first, 2)
            publish_well(first, "mqtt", "node/2", "when it is back", "-q", "1")
            if reader.wait(1) != ["when it is back"]:
                raise Failure(f"got {reader.lines}")
            other.wait(2)
    none_left(cluster)


def publish_retained(node: Node, topic: str, payloads: list[str]) -> None:
    """One client publishes them in this order."""
    subprocess.run(
        [STERNA, "pub", node.url("mqtt"), "-t", topic, "-q", "1", "-r", "-l"],
        input="".join(f"{payload}\n" for payload in payloads), text=True, timeout=PATIENCE_S, check=True,
    )


def a_pause_of_retained(cluster: Cluster) -> None:
    """The same for retained messages of one topic, of which NATS keeps the last alone."""
    first, second, third = cluster.nodes
    with Reader(second, "mqtt", "pause/#", "-q", "1") as reader, Reader(third, "mqtt", "pause/#", "-q", "1") as other:
        wait_for_filters(first, 2)
        second.stand_still()
        try:
            # NATS sends it nothing more after that.
            time.sleep(FOLLOWED_S)
            publish_retained(first, "pause/x", [str(number) for number in range(10)])
        finally:
            second.send(signal.SIGCONT)
        for one in (reader, other):
            one.wait(10)
        time.sleep(SILENCE_S)
        for one in (reader, other):
            if one.lines != [str(number) for number in range(10)]:
                raise Failure(f"got {one.lines}")
    for node in cluster.nodes:
        with Reader(node, "mqtt", "pause/#") as late:
            if late.wait(1) != ["9"]:
                raise Failure(f"{node.name} retains {late.lines}")
    publish_well(third, "mqtt", "pause/x", "", "-q", "1", "-r")
    cluster.settle()
    none_left(cluster)


def agreement(cluster: Cluster) -> None:
    """All nodes publish retained messages to one topic at once: they agree on the last."""
    def write(node: Node) -> None:
        publish_retained(node, "agree", [f"{node.name} {number}" for number in range(RETAINED)])

    threads = [threading.Thread(target=write, args=(node,)) for node in cluster.nodes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for node in cluster.nodes:
        # Once more, now that nobody else does: earlier ones must not count as under way.
        publish_well(node, "mqtt", "agree", node.name, "-q", "1", "-r")
        for other in cluster.nodes:
            with Reader(other, "mqtt", "agree", "-q", "1") as reader:
                wait_until(f"{other.name} has it", lambda: node.name in reader.wait(1))
    publish_well(cluster.nodes[0], "mqtt", "agree", "", "-q", "1", "-r")
    none_left(cluster)


def a_pause(cluster: Cluster) -> None:
    """A node stands still for longer than the lease: what was acknowledged meanwhile arrives after it."""
    first, second, _ = cluster.nodes
    with Reader(second, "mqtt", "pause/#", "-q", "1") as reader:
        wait_for_filters(first, 1)
        second.stand_still()
        try:
            wait_until("it is missed", lambda: first.figure("sterna_cluster_nodes_away") == 1)
            for number in range(10):
                publish_well(first, "mqtt", "pause/x", str(number), "-q", "1")
        finally:
            second.send(signal.SIGCONT)
        # Each has a publisher of its own, so their order is not promised.
        if sorted(reader.wait(10)) != [str(number) for number in range(10)]:
            raise Failure(f"got {reader.lines}")
    cluster.settle()
    none_left(cluster)


def a_pause_under_load(cluster: Cluster, level: str) -> None:
    """A node that takes batches directly stands still under a publisher. What it does not take waits in its inbox, and it
    takes batches directly again: all arrive, once and in order."""
    first, second, _ = cluster.nodes

    def sent(way: str) -> float:
        return first.figure(f"sterna_cluster_{way}_batches_total")

    given = sent("given")
    ledger = Ledger(first, second, f"pause/{level}", level)
    ledger.reader.wait(LEDGER // 10)
    if sent("given") == given:
        raise Failure("the node takes no batch directly")
    second.stand_still()
    try:
        inbox = sent("inbox")
        wait_until("batches go to its inbox", lambda: sent("inbox") >= inbox + 10)
    finally:
        second.send(signal.SIGCONT)
    given = sent("given")
    ledger.check()
    with Reader(second, "mqtt", "pause/again", "-q", level) as reader:
        wait_for_filters(first, 1)
        count = 0
        while sent("given") == given:
            publish_well(first, "mqtt", "pause/again", str(count), "-q", level)
            count += 1
            if count > 1_000:
                raise Failure("the node is given nothing any more")
        publish_well(first, "mqtt", "pause/again", str(count), "-q", level)
        if (lines := reader.wait(count + 1)) != [str(number) for number in range(count + 1)]:
            raise Failure(f"got {lines}")
    cluster.settle()
    none_left(cluster)


def leaving(cluster: Cluster) -> None:
    """A node that stops in order says so: nobody waits for its lease."""
    first, second, _ = cluster.nodes
    code = second.stop()

    def is_gone() -> bool:
        return {each["node"]: each["presence"] for each in status(first)["nodes"]}.get(second.name, "gone") == "gone"

    # One that had said nothing would be away for `absence_ms`.
    wait_until("it is gone", is_gone, cluster.absence_s / 2)
    if code != 0:
        raise Failure(f"it ended with {code}")
    second.start()
    cluster.settle()


def status(node: Node) -> dict:
    """What `sterna cluster status` says by way of a node."""
    done = subprocess.run(
        [STERNA, "cluster", "status", "--json", "-L", node.url("admin")],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    if done.returncode != 0:
        raise Failure(f"status ended with {done.returncode}: {done.stderr}")
    return json.loads(done.stdout)


def wrong_in(cluster: Cluster, node: Node, report: dict) -> str:
    """What a node's report has that is not so where the second node alone has a reader; empty if there is nothing."""
    if report["node"] != node.name or report["problems"]:
        return f"{report}"
    seen = {each["node"]: each for each in report["nodes"]}
    if sorted(seen) != sorted(each.name for each in cluster.nodes):
        return f"{node.name} tells of {sorted(seen)}"
    for name, each in seen.items():
        if each["presence"] != "here" or each["told"] is None or each["told"]["state"] != "ready":
            return f"{node.name} tells {each}"
        if each["inbox_batches"] is None or each["filters"] != (1 if name == cluster.nodes[1].name else 0):
            return f"{node.name} tells {each}"
        if not each["told"]["nats_server"].startswith("nats-"):
            return f"{node.name} tells {each}"
    if len(report["streams"]) < 3:
        return f"{report['streams']}"
    for stream in report["streams"]:
        if len(stream["followers"]) != 2 or not stream["leader"] or stream["replicas"] != 3:
            return f"{stream}"
    return ""


def wait_for_none(what: str, wrong) -> None:
    """Waits until `wrong` has nothing to say."""
    said = [""]

    def is_right() -> bool:
        said[0] = wrong()
        return not said[0]

    try:
        wait_until(what, is_right)
    except TimeoutError as error:
        raise Failure(f"{error}: {said[0]}") from error


def told(cluster: Cluster) -> None:
    """What is told of the cluster: presence, filters, inboxes, servers and streams."""
    first, second, third = cluster.nodes
    with Reader(second, "mqtt", "status/#", "-q", "1"):
        wait_for_filters(first, 1)
        wait_for_filters(third, 1)
        for node in cluster.nodes:
            wait_for_none(f"what {node.name} tells", lambda node=node: wrong_in(cluster, node, status(node)))
        third.stand_still()
        try:
            publish_well(first, "mqtt", "status/x", "to one", "-q", "1")
            wait_until("it is away", lambda: first.figure("sterna_cluster_nodes_away") == 1)
            seen = {each["node"]: each for each in status(first)["nodes"]}
            if seen[third.name]["presence"] != "away" or seen[third.name]["told"] is not None:
                raise Failure(f"{seen}")
        finally:
            third.send(signal.SIGCONT)
        cluster.settle()
    none_left(cluster)


def a_disk(cluster: Cluster) -> None:
    """A server of NATS comes back with an empty disk: it gets its copies again."""
    first, second, _ = cluster.nodes
    nats = cluster.nats[-1]
    publish_well(first, "mqtt", "disk/kept", "kept", "-q", "1", "-r")
    nats.kill()
    shutil.rmtree(cluster.folder / "nats-3" / "data")
    with Reader(second, "mqtt", "disk/live", "-q", "1") as reader:
        wait_for_filters(first, 1)
        publish_well(first, "mqtt", "disk/live", "meanwhile", "-q", "1")
        nats.start()

        def is_whole() -> bool:
            report = status(first)
            followers = [one for stream in report["streams"] for one in stream["followers"]]
            return len(followers) == 2 * len(report["streams"]) > 0 and all(
                one["is_current"] and not one["is_offline"] for one in followers
            )

        wait_until("all streams have their copies", is_whole, 60)
        # Now it is one of two, and must know everything.
        cluster.nats[0].kill()
        publish_well(first, "mqtt", "disk/live", "after", "-q", "1")
        reader.wait(2)
        if reader.lines != ["meanwhile", "after"]:
            raise Failure(f"got {reader.lines}")
        cluster.nats[0].start()
    cluster.settle()
    none_left(cluster)
    with Reader(cluster.nodes[2], "mqtt", "disk/kept") as late:
        if late.wait(1) != ["kept"]:
            raise Failure(f"got {late.lines}")
    publish_well(first, "mqtt", "disk/kept", "", "-q", "1", "-r")


def draining(cluster: Cluster) -> None:
    """A node that drains says so to balancers and nodes, takes clients for a while, and tells them goodbye."""
    first, second, _ = cluster.nodes
    second.stop()
    text = second.config.read_text()
    second.config.write_text(
        f'{text}\n[network]\ndrain_notice_ms = 600000\n\n[mqtt]\nserver_reference = "node-1.example"\n'
    )
    try:
        second.start()
        cluster.settle()
        reader = Reader(second, "mqtt", "drain", "-d", "--maximum-reconnect-times", "0")
        second.send(signal.SIGTERM)
        wait_until("/readyz says so", lambda: second.page("/readyz") == "draining\n")
        seen = {each["node"]: each["told"]["state"] for each in status(first)["nodes"]}
        if seen[second.name] != "draining" or seen[first.name] != "ready":
            raise Failure(f"{seen}")
        wait_until("others are told", lambda: "a node drains" in first.log.read_text(errors="replace"))
        # Who has not heard it yet is served.
        wait_for_filters(first, 1)
        publish_well(second, "mqtt", "drain", "still here")
        publish_well(first, "mqtt", "drain", "from the other")
        reader.wait(2)
        # Who asks twice does not want to wait.
        code = second.stop()
        if code != 0:
            raise Failure(f"it ended with {code}")
        _, said = reader.process.communicate(timeout=PATIENCE_S)
        if "another server" not in said.lower() and "UseAnotherServer" not in said:
            raise Failure(f"its client says {said}")
        wait_until("it is gone", lambda: first.figure("sterna_cluster_nodes_here") == 1)
    finally:
        second.kill()
        second.config.write_text(text)
        second.start()
    cluster.settle()


def one_name(cluster: Cluster) -> None:
    """A second process with a node's name takes its place, and the first tells its clients goodbye and ends."""
    first, second, _ = cluster.nodes
    client = Reader(second, "mqtt", "double", "-d", "--maximum-reconnect-times", "0")
    double = Node(cluster.folder / "double", second.name, cluster.servers)
    double.start()
    try:
        wait_until("the later one is ready", double.is_ready)
        code = second.ended()
        if code != 78 or "another process" not in second.log.read_text(errors="replace"):
            raise Failure(f"the earlier one ended with {code}")
        _, said = client.process.communicate(timeout=PATIENCE_S)
        if "shutting down" not in said.lower():
            raise Failure(f"its client says {said}")
        with Reader(double, "mqtt", "double", "-q", "1") as reader:
            wait_for_filters(first, 1)
            publish_well(first, "mqtt", "double", "to the later one", "-q", "1")
            reader.wait(1)
    finally:
        double.stop()
    second.kill()
    second.start()
    cluster.settle()
    none_left(cluster)


def run_rows(rows, run, mend, wanted: list[str] | None = None) -> None:
    """Runs the rows that the command names, or all, and ends with their report. `mend` follows each of them, and is told
    whether it has failed."""
    report = Report()
    wanted = sys.argv[1:] if wanted is None else wanted
    for name, row in rows:
        if wanted and not any(word in name for word in wanted):
            continue
        has_failed, begun = True, time.monotonic()
        try:
            run(row)
        except (Failure, OSError, AssertionError, subprocess.SubprocessError) as error:
            report.not_ok(name, str(error) or type(error).__name__)
        else:
            has_failed = False
            report.ok(name)
        finally:
            for client in clients:
                client.kill()
                client.wait()
            clients.clear()
            mend(has_failed)
            print(f"# {time.monotonic() - begun:.1f} s {name}", flush=True)
    report.exit()


def row_of(rows, name: str):
    """The row of this name, which another part has, too."""
    return next(row for row in rows if row[0] == name)


# The first part has the most telling rows: it is the one that `cargo xtask test` runs.
PARTS = {
    "cluster": [
        ("every protocol to every protocol", protocols),
        ("every level, and topics with what subjects cannot have", levels),
        ("retained messages", retained),
        ("a server of NATS is killed under QoS 2", lambda cluster: one_server(cluster, "2")),
        ("all servers of NATS are killed", all_servers),
        ("a node is killed", a_node),
        ("a node stands still under QoS 1", lambda cluster: a_pause_under_load(cluster, "1")),
        ("what is told of the cluster", told),
        ("a node drains", draining),
        ("two processes have one name", one_name),
        row_of(GROUPS, "the node of a group's member is killed"),
        row_of(SESSIONS, "sessions: a client comes to another node"),
        row_of(REQUESTS, "once: a POST with a key is repeated at other nodes, and its node is killed"),
        row_of(KEPT, "kept: the session's node is killed"),
    ],
    "cluster-faults": [
        ("retained messages of all nodes to one topic", agreement),
        ("a server of NATS is killed under QoS 1", lambda cluster: one_server(cluster, "1")),
        ("a node stands still", a_pause),
        ("a node stands still under QoS 2", lambda cluster: a_pause_under_load(cluster, "2")),
        ("a node stands still, and retained messages are published", a_pause_of_retained),
        ("a node of a later version of the wire form", a_later_version),
        ("a server of NATS loses its disk", a_disk),
        *LOSSES,
        ("a node leaves", leaving),
        *FLOW,
    ],
    "cluster-groups": GROUPS,
    "cluster-sessions": SESSIONS,
    "cluster-requests": REQUESTS,
    "cluster-kept": KEPT,
}


def main() -> None:
    assert LEASE_MS < ABSENCE_MS
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", choices=PARTS)
    parser.add_argument("words", nargs="*", help="only rows with one of these in their name")
    arguments = parser.parse_args()
    parts = [arguments.part] if arguments.part else list(PARTS)
    rows = {name: row for part in parts for name, row in PARTS[part]}.items()
    folder = Path(os.environ["STERNA_BUILD"]) / (arguments.part or "cluster")
    with Cluster(folder) as cluster:
        run_rows(rows, lambda row: row(cluster), cluster.mend, arguments.words)


if __name__ == "__main__":
    main()
