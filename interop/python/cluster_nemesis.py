"""The ledger of a cluster under a nemesis: `cargo xtask nemesis --rounds N --seed S`.

  cluster_nemesis.py FOLDER [--rounds N] [--seed N] [--only FAULT] [--plant]

Publishers and readers of MQTT, AMQP and HTTP are spread over three nodes. In each round the nemesis kills or pauses a node or
a server of NATS, or cuts a node off from NATS by a proxy. Then all is mended, and the ledgers are compared:

  lost           a message of QoS 1 or 2 was acknowledged, and a present reader has not got it
  doubled        a present reader got a message twice that was sent once
  out of order   messages of one connection on one topic came in another order
  unasked        a reader got what nobody sent, or what was refused by a status
  not served     nodes are not ready, or publishers are not acknowledged, some time after all is mended

A reader is present in a round if its node was not killed in it: sessions end with their node (docs/cluster.md). `--plant`
has nodes give a silent one up too early, and pauses one for longer: messages must be reported as lost.

The environment is that of `cluster_nodes.py`. Standard library only.
"""

from __future__ import annotations

import argparse
import bisect
import http.client
import os
import random
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

from cluster_bench import Client, packet, text
from cluster_nodes import ABSENCE_MS, COUNT, Cluster, Node, wait_until

STERNA = os.environ["STERNA_BIN"]
# How long a fault lasts, in seconds. Less than `absence_ms` of the nodes, after which nothing waits for one.
FAULT_S = (1.0, 6.0)
# After which nothing waits for a node where that fault is planted.
PLANTED_ABSENCE_MS = 1_500
# Time of a round before and after its fault.
CALM_S = 0.7
# How long the last messages may take when all is mended.
MEND_S = 60
PACE_S = 0.01
KINDS = ("kill NATS", "pause NATS", "cut a node off", "cut one way", "pause a node", "kill a node")
PUBACK, PUBREC, PUBREL, PUBCOMP = 0x40, 0x50, 0x62, 0x70


class Proxy:
    """Between a node and a server of NATS: it can be cut, so that nothing passes and nobody is told."""

    def __init__(self, port: int):
        self.target = port
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.is_cut = threading.Event()
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        while True:
            client, _ = self.listener.accept()
            threading.Thread(target=self.serve, args=(client,), daemon=True).start()

    def serve(self, client: socket.socket) -> None:
        try:
            if self.is_cut.is_set():
                return
            with socket.create_connection(("127.0.0.1", self.target), 5) as server:
                server.settimeout(None)
                selector = selectors.DefaultSelector()
                selector.register(client, selectors.EVENT_READ, server)
                selector.register(server, selectors.EVENT_READ, client)
                while True:
                    while self.is_cut.is_set():
                        time.sleep(0.02)
                    for key, _ in selector.select(0.1):
                        if self.is_cut.is_set():
                            break
                        data = key.fileobj.recv(1 << 16)
                        if not data:
                            return
                        key.data.sendall(data)
        except OSError:
            pass
        finally:
            client.close()


class Publisher:
    """Publishes numbers on a topic of its own, at a pace, from any node that answers. What has no acknowledgement is
    not sent again: it may have arrived or not."""

    def __init__(self, name: str, nodes: list[Node], first: int):
        self.name, self.nodes, self.at = name, nodes, first
        self.topic = f"ledger/{name}"
        self.sent = 0
        # The number of the first message of each connection.
        self.connections: list[int] = []
        self.acknowledged: set[int] = set()
        self.refused: set[int] = set()
        self.goes = threading.Event()
        self.ends = False
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def node(self) -> Node:
        return self.nodes[self.at % COUNT]

    def elsewhere(self) -> None:
        self.at += 1
        time.sleep(0.1)

    def run(self) -> None:
        while not self.ends:
            if not self.goes.wait(0.2):
                self.idle()
                continue
            try:
                self.publish()
            except (OSError, RuntimeError, http.client.HTTPException, subprocess.TimeoutExpired):
                self.drop()
                self.elsewhere()
            time.sleep(PACE_S)

    def idle(self) -> None:
        """Called while nothing is to be published."""

    def drop(self) -> None:
        """Forgets a broken connection."""


class MqttPublisher(Publisher):
    """Keeps one connection, with some messages without an acknowledgement."""

    WINDOW = 16

    def __init__(self, name: str, nodes: list[Node], first: int, qos: int):
        self.qos, self.link, self.open = qos, None, {}
        super().__init__(name, nodes, first)

    def connect(self) -> Client:
        if not self.link:
            self.open = {}
            self.connections.append(self.sent + 1)
            socket.setdefaulttimeout(5)
            self.link = Client(self.node().ports["mqtt"], f"publisher-{self.name}")
            self.link.socket.setblocking(False)
        return self.link

    def publish(self) -> None:
        link = self.connect()
        if len(self.open) < self.WINDOW:
            self.sent += 1
            identifier = self.sent % 65_535 + 1
            self.open[identifier] = self.sent
            body = text(self.topic.encode()) + identifier.to_bytes(2, "big") + f"{self.name} {self.sent}".encode()
            link.out += packet(0x30 | self.qos << 1, body)
        self.exchange()

    def exchange(self) -> None:
        if not self.link:
            return
        self.link.flush()
        for kind, body in self.link.packets():
            identifier = int.from_bytes(body[:2], "big")
            if kind & 0xF0 == PUBREC:
                # From here on the broker has it.
                self.acknowledged.add(self.open[identifier])
                self.link.out += bytes([PUBREL, 2]) + body[:2]
            elif kind & 0xF0 in (PUBACK, PUBCOMP):
                self.acknowledged.add(self.open.pop(identifier))
        self.link.flush()

    def idle(self) -> None:
        try:
            self.exchange()
        except (OSError, KeyError):
            self.drop()

    def drop(self) -> None:
        if self.link:
            self.link.close()
        self.link = None


class HttpPublisher(Publisher):
    """One request after the other."""

    link: http.client.HTTPConnection | None = None

    def publish(self) -> None:
        if not self.link:
            self.connections.append(self.sent + 1)
            self.link = http.client.HTTPConnection("127.0.0.1", self.node().ports["http"], timeout=8)
        self.sent += 1
        number = self.sent
        self.link.request("POST", f"/v1/topics/{self.topic}", f"{self.name} {number}", {
            "Content-Type": "text/plain", "Sterna-QoS": "1"})
        answer = self.link.getresponse()
        answer.read()
        if answer.status < 300:
            self.acknowledged.add(number)
        else:
            self.refused.add(number)

    def drop(self) -> None:
        if self.link:
            self.link.close()
        self.link = None


class AmqpPublisher(Publisher):
    """One command for each message: the library's link, its transfer and its outcome."""

    def publish(self) -> None:
        self.sent += 1
        number = self.sent
        self.connections.append(number)
        done = subprocess.run(
            [STERNA, "pub", self.node().url("amqp"), "-t", self.topic, "-m", f"{self.name} {number}", "-q", "1",
             "--connect-timeout", "3", "--close-timeout", "8", "--maximum-reconnect-times", "0"],
            capture_output=True, timeout=20, check=False,
        )
        if done.returncode == 0:
            self.acknowledged.add(number)
        else:
            self.elsewhere()
        time.sleep(0.1)


class Reader:
    """Reads every publisher's topic. Ends with its node."""

    def __init__(self, node: Node, protocol: str, qos: int):
        self.node, self.protocol, self.qos = node, protocol, qos
        self.name = f"{protocol} reader, QoS {qos}, of {node.name}"
        self.process: subprocess.Popen | None = None
        self.lines: list[str] = []
        # The number of each publisher's messages at the time of its subscription.
        self.since: dict[str, int] = {}

    def start(self, publishers: list[Publisher]) -> None:
        self.end()
        before = self.node.figure("sterna_subscriptions")
        self.lines = []
        self.process = subprocess.Popen(
            [STERNA, "sub", self.node.url(self.protocol), "-t", "ledger/#", "-q", str(self.qos),
             "--maximum-reconnect-times", "0"],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )
        lines, stream = self.lines, self.process.stdout
        threading.Thread(target=lambda: lines.extend(line.rstrip("\n") for line in iter(stream.readline, "")),
                         daemon=True).start()
        wait_until(f"{self.name} has subscribed", lambda: self.node.figure("sterna_subscriptions") > before)
        self.since = {publisher.name: publisher.sent for publisher in publishers}

    def is_there(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def end(self) -> None:
        if self.process:
            self.process.kill()
            self.process.wait()
        self.process = None

    def numbers(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for line in list(self.lines):
            name, _, number = line.rpartition(" ")
            found.setdefault(name, []).append(int(number))
        return found


def spans(numbers: list[int]) -> str:
    """Numbers that follow each other, as their first and last."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    shown = ", ".join(str(first) if first == last else f"{first} to {last}" for first, last in found[:8])
    return shown + (", …" if len(found) > 8 else "")


def dropped(node: Node) -> list[str]:
    """What a node says that it dropped or refused."""
    words = ("dropped", "refused", "lost", "repeated", "unreadable")
    lines = [line for line in node.page("/metrics").splitlines() if any(word in line for word in words)]
    return [line for line in lines if not line.startswith("#") and not line.endswith(" 0")]


def violations(reader: Reader, publishers: list[Publisher]) -> list[str]:
    """What a present reader's ledger says."""
    told = []
    found = reader.numbers()
    known = {publisher.name: publisher for publisher in publishers}
    for name in set(found) - set(known):
        told.append(f"unasked: {reader.name} got a message of {name}")
    for name, publisher in known.items():
        got = found.get(name, [])
        wanted = {number for number in publisher.acknowledged if number > reader.since[name]}
        lost = sorted(wanted - set(got))
        if lost:
            told.append(f"lost: {reader.name} has not got {len(lost)} acknowledged messages of {name}: "
                        f"{spans(lost)}; its last is {got[-1] if got else None}")
        doubled = [number for number, count in Counter(got).items() if count > 1]
        if doubled:
            told.append(f"doubled: {reader.name} got {len(doubled)} messages of {name} again: {doubled[:5]}")
        newest: dict[int, int] = {}
        for at, number in enumerate(got):
            connection = bisect.bisect(publisher.connections, number)
            if number < newest.get(connection, 0):
                told.append(f"out of order: {reader.name} got {name}'s {got[max(0, at - 3):at + 3]}")
                break
            newest[connection] = number
        strange = [number for number in got if number > publisher.sent or number in publisher.refused]
        if strange:
            told.append(f"unasked: {reader.name} got {name}'s {strange[:5]}, which was refused or never sent")
    return told


class Arena:
    """The cluster, with a proxy on each way from a node to NATS."""

    def __init__(self, folder: Path, seed: int, plants: bool, only: str):
        self.kinds = [kind for kind in KINDS if only in kind]
        self.random = random.Random(seed)
        self.plants = plants
        self.cluster = Cluster(folder)
        self.proxies: dict[str, list[Proxy]] = {}
        for nats in self.cluster.nats:
            config = Path(nats.arguments[-1])
            # Clients must not learn ways around the proxies.
            config.write_text(config.read_text().replace("cluster {", "cluster { no_advertise: true,"))
        for node in self.cluster.nodes:
            text = node.config.read_text()
            proxies = [Proxy(port) for port in self.cluster.servers]
            for proxy in proxies:
                text = text.replace(f"nats://127.0.0.1:{proxy.target}", f"nats://127.0.0.1:{proxy.port}")
            if plants:
                text = text.replace(f"absence_ms = {ABSENCE_MS}", f"absence_ms = {PLANTED_ABSENCE_MS}")
            node.config.write_text(text)
            self.proxies[node.name] = proxies

    def fault(self) -> tuple[str, set[str]]:
        """One fault, from its beginning to its end: what it was, and the nodes that it has killed."""
        kind = self.random.choice(self.kinds)
        seconds = self.random.uniform(*FAULT_S)
        if self.plants:
            kind, seconds = "pause a node", PLANTED_ABSENCE_MS / 1e3 + 3
        at = self.random.randrange(COUNT)
        node, nats = self.cluster.nodes[at], self.cluster.nats[at]
        told = f"{kind} {at + 1} for {seconds:.1f} s"
        print(f"  {told}", flush=True)
        if kind == "kill NATS":
            nats.kill()
            time.sleep(seconds)
            nats.start()
        elif kind in ("pause NATS", "pause a node"):
            program = nats if kind == "pause NATS" else node
            program.send(signal.SIGSTOP)
            time.sleep(seconds)
            program.send(signal.SIGCONT)
        elif kind == "kill a node":
            node.kill()
            time.sleep(seconds)
            node.start()
            return told, {node.name}
        else:
            ways = self.proxies[node.name]
            cut = ways if kind == "cut a node off" else [self.random.choice(ways)]
            for proxy in cut:
                proxy.is_cut.set()
            time.sleep(seconds)
            for proxy in cut:
                proxy.is_cut.clear()
        return told, set()


def rounds(arena: Arena, count: int) -> list[str]:
    """Plays the rounds; the violations."""
    cluster = arena.cluster
    publishers: list[Publisher] = []
    for number in range(COUNT):
        publishers.append(MqttPublisher(f"mqtt-1-{number}", cluster.nodes, number, 1))
        publishers.append(MqttPublisher(f"mqtt-2-{number}", cluster.nodes, number, 2))
        publishers.append(HttpPublisher(f"http-{number}", cluster.nodes, number))
    publishers.append(AmqpPublisher("amqp-0", cluster.nodes, arena.random.randrange(COUNT)))
    readers = [
        Reader(node, protocol, qos)
        for node in cluster.nodes
        for protocol, qos in (("mqtt", 1), ("mqtt", 2), ("amqp", 1), ("http", 1))
    ]
    found: list[str] = []
    try:
        for number in range(count):
            print(f"round {number + 1}", flush=True)
            for reader in readers:
                if not reader.is_there():
                    reader.start(publishers)
            # Every node knows of the readers of all others.
            wait_until("filters are known", lambda: all(
                node.figure("sterna_cluster_filters") == COUNT - 1 for node in cluster.nodes), MEND_S)
            for reader in readers:
                reader.since = reader.since or {publisher.name: publisher.sent for publisher in publishers}
            before = {publisher.name: len(publisher.acknowledged) for publisher in publishers}
            for publisher in publishers:
                publisher.goes.set()
            time.sleep(CALM_S)
            told, killed = arena.fault()
            try:
                cluster.settle()
            except TimeoutError as error:
                found.append(f"not served, round {number + 1} ({told}): {error}")
                break
            mended = {publisher.name: len(publisher.acknowledged) for publisher in publishers}
            try:
                wait_until("all publishers are acknowledged again", lambda mended=mended: all(
                    len(publisher.acknowledged) > mended[publisher.name] for publisher in publishers), MEND_S)
            except TimeoutError as error:
                stuck = [one.name for one in publishers if len(one.acknowledged) <= mended[one.name]]
                found.append(f"not served, round {number + 1} ({told}): {error}: {stuck}")
            time.sleep(CALM_S)
            for publisher in publishers:
                publisher.goes.clear()
            present = [reader for reader in readers if reader.node.name not in killed]
            gone = [reader.name for reader in present if not reader.is_there()]
            if gone:
                found.append(f"not served, round {number + 1} ({told}): {gone} were disconnected")
            present = [reader for reader in present if reader.is_there()]
            # What is still on its way has its time.
            end = time.monotonic() + (5 if arena.plants else MEND_S)
            while time.monotonic() < end and any(violations(reader, publishers) for reader in present):
                time.sleep(0.3)
            time.sleep(CALM_S)
            for reader in present:
                found += [f"round {number + 1} ({told}): {one}" for one in violations(reader, publishers)]
            acknowledged = sum(len(publisher.acknowledged) for publisher in publishers) - sum(before.values())
            print(f"  {acknowledged} acknowledged, {len(present)} of {len(readers)} readers present, "
                  f"{len(found)} violations", flush=True)
            if found:
                for node in cluster.nodes:
                    print(f"  {node.name}: {dropped(node)}", flush=True)
                break
            for reader in readers:
                if reader.node.name in killed:
                    reader.end()
    finally:
        for publisher in publishers:
            publisher.ends = True
        for reader in readers:
            reader.end()
    return found


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--only", default="", help="only faults with this in their name")
    parser.add_argument("--plant", action="store_true", help="give silent nodes up too early, which must be caught")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    arena = Arena(options.folder, options.seed, options.plant, options.only)
    with arena.cluster:
        found = rounds(arena, options.rounds)
    for one in found:
        print(one)
    if options.plant:
        caught = any(": lost: " in one for one in found)
        print("the planted fault was caught" if caught else "the planted fault was NOT caught")
        return 0 if caught else 1
    print(f"{options.rounds} rounds, seed {options.seed}: {len(found)} violations")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
