"""The ledger of a cluster under a nemesis: `cargo xtask nemesis --rounds N --seed S`.

  cluster_nemesis.py FOLDER [--rounds N] [--seed N] [--only FAULT] [--rest-s S] [--plant absence|fence|returns|rights|clock]

Publishers and readers of MQTT, AMQP and HTTP are spread over three nodes, and clients go from node to node with their
sessions. In each round the nemesis does something to a node, a server of NATS, or a way between two of them
(`cluster_faults.py`). Then all is mended, and what everybody has seen is compared (`cluster_history.py`):

  lost           a message of QoS 1 or 2 was acknowledged, and a present reader has not got it
  doubled        a present reader got a message twice that was sent once, or a message of a queue came again that was
                 accepted while nothing was wrong
  out of order   messages of one connection on one topic came in another order
  unasked        a reader got what nobody sent, or what was refused by a status
  two owners     a connection was acknowledged what it sent after a later one of its client was let in
  will doubled, will lost, will unasked
  two members    a message of a shared subscription, or of a queue, came to a member while one of a sound node had it
  expired        a session, or messages for it, are gone that were to last for much longer
  not served     nodes are not ready, or publishers and sessions are not acknowledged, some time after all is mended

A reader is present in a round if its node was not killed in it: what it has is in its node's memory (docs/cluster-design.md).
`--plant absence` has nodes give a silent one up too early: messages must be reported as lost. `--plant fence` has one node
believe that it is sure of its sessions for longer than the others wait: two owners must be reported. `--plant returns` writes
records of sessions again that have ended: a doubled will must be reported. `--plant rights` has nodes give a silent one up
too early, and takes a node's right to hear NATS' answers: messages must be reported as lost. `--plant clock` has
nodes take part with any clock: sessions must be reported as expired.

Wills are watched through all rounds. `--rest-s` is how long nothing happens after the last one; then all servers of NATS are
killed, and a node, which has the others look at everything that NATS has.

The environment is that of `cluster_nodes.py`. Standard library only, and a C compiler for clocks that jump.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import wire
from cluster_faults import Arena, Fault
from cluster_history import (
    WILL_S, Event, Trouble, of_group, of_members, of_owners, of_queue, of_reader, of_wills,
)
from cluster_members import Member
from cluster_publishers import (
    AmqpPublisher, HttpPublisher, KeyedPublisher, MqttPublisher, Publisher, QueuePublisher,
)
from cluster_queue_members import DEAD, QUEUE, QUEUES, Consumer
from cluster_nodes import ABSENCE_MS, COUNT, LEASE_MS, Node, wait_until
from mqtt_client import CONNACK, PUBACK, PUBLISH, Client, Connection

STERNA = os.environ["STERNA_BIN"]
# After which nothing waits for a node where that fault is planted.
PLANTED_ABSENCE_MS = 1_500
# For how long a node is sure of its sessions where that fault is planted.
PLANTED_LEASE_MS = 8_000
# By how much clocks may differ where that fault is planted: a year.
TRUSTING_MS = 365 * 24 * 3_600_000
# Time of a round before and after its fault.
CALM_S = 0.7
# How long the last messages may take when all is mended.
MEND_S = 60
# Clients that go from node to node, how long each stays, and how long the answer to a CONNECT may take.
MOVERS, STAY_S, ADMIT_S = 6, (0.2, 1.5), 8
# Clients that come once, and are there at a time.
VISITORS = 6


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
        self.since = {publisher.name: publisher.ledger.sent for publisher in publishers}

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


class History:
    """What happens to sessions, in order."""

    def __init__(self):
        self.events: list[Event] = []
        self.lock = threading.Lock()
        self.connections = 0

    def note(self, what: str, **values) -> None:
        with self.lock:
            self.events.append(Event(time.monotonic(), what, **values))

    def new_connection(self) -> int:
        with self.lock:
            self.connections += 1
            return self.connections

    def forget(self, kept: set[int]) -> None:
        """Drops what connections other than those were acknowledged: it was looked at."""
        with self.lock:
            self.events = [event for event in self.events
                           if event.connection in kept or event.what not in ("sent", "acknowledged")]

    def write(self, path: Path) -> None:
        with path.open("w") as file:
            for event in self.events:
                file.write(json.dumps({name: value for name, value in asdict(event).items() if value}) + "\n")


class Stay:
    """A connection of a client that goes from node to node."""

    def __init__(self, mover: Mover, node: Node):
        self.mover, self.number, self.name = mover, mover.history.new_connection(), mover.name
        self.sent, self.is_over = 0, False
        self.note("asked", node=node.name)
        self.link = Connection(
            node.ports["mqtt"], self.name, 5, ADMIT_S, clean=False, props={"session_expiry": mover.expiry_s},
            will={"topic": f"will/{self.name}", "payload": str(self.number).encode(), "qos": 1})

    def note(self, what: str, **values) -> None:
        self.mover.history.note(what, client=self.name, connection=self.number, **values)

    def admit(self) -> bool:
        answer = self.link.read()
        if answer is None or answer[0] != CONNACK or answer[1][1] != 0:
            return False
        self.note("admitted")
        return True

    def work(self) -> None:
        """Publishes one message, and takes what has come."""
        if self.is_over:
            return
        try:
            self.sent += 1
            self.note("sent", number=self.sent)
            self.link.out += wire.publish(f"moved/{self.name}", b"x", 1, self.sent)
            self.link.flush()
            for kind, body in self.link.packets():
                if kind == PUBACK:
                    self.note("acknowledged", number=int.from_bytes(body[:2], "big"))
                    self.mover.acknowledged += 1
                elif kind & 0xF0 == 0xE0:
                    self.end("ended")
                    return
        except OSError:
            self.end("ended")

    def end(self, how: str) -> None:
        if self.is_over:
            return
        self.is_over = True
        self.note(how)
        if how == "left":
            try:
                self.link.send(wire.disconnect())
            except OSError:
                pass
        self.link.close()


class Mover:
    """A client that comes to one node after the other, and mostly leaves its earlier connection as it is."""

    # For how long its session outlives its connection.
    expiry_s = 3_600

    def __init__(self, name: str, nodes: list[Node], history: History, seed: int):
        self.name, self.nodes, self.history = name, nodes, history
        self.random = random.Random(seed)
        self.stays: list[Stay] = []
        self.acknowledged = self.admitted = 0
        self.goes, self.ends = threading.Event(), False
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self) -> None:
        while not self.ends:
            if self.goes.is_set():
                self.move()
                end = time.monotonic() + self.random.uniform(*STAY_S)
                while time.monotonic() < end:
                    self.work()
            else:
                self.work()
        for stay in self.stays:
            stay.end("aborted")

    def work(self) -> None:
        for stay in self.stays:
            stay.work()
        self.stays = [stay for stay in self.stays if not stay.is_over]
        time.sleep(0.03)

    def move(self) -> None:
        how = self.random.choice(("stays", "stays", "aborted", "left"))
        for stay in self.stays:
            if how != "stays":
                stay.end(how)
        if how == "left":
            # A client that comes elsewhere before its DISCONNECT is known there may find its will published.
            time.sleep(WILL_S * 1.2)
        stay = None
        try:
            stay = Stay(self, self.random.choice(self.nodes))
            if stay.admit():
                self.admitted += 1
                self.stays.append(stay)
                return
        except OSError:
            pass
        if stay:
            stay.link.close()


class Visitors(Mover):
    """Clients that come once each. Their sessions end with their connections, and many of these with their nodes."""

    expiry_s = 0

    def __init__(self, name: str, nodes: list[Node], history: History, seed: int):
        self.base, self.visits = name, 0
        super().__init__(name, nodes, history, seed)

    def move(self) -> None:
        self.visits += 1
        self.name = f"{self.base}-{self.visits}"
        if len(self.stays) >= VISITORS:
            self.stays.pop(0).end(self.random.choice(("aborted", "left")))
        stay = None
        try:
            stay = Stay(self, self.random.choice(self.nodes))
            if stay.admit():
                self.admitted += 1
                self.stays.append(stay)
                return
        except OSError:
            pass
        if stay:
            stay.link.close()


class WillReader:
    """Reads the wills of all movers on one node, and comes back when it is there again."""

    def __init__(self, node: Node, history: History):
        self.node, self.history, self.ends, self.starts = node, history, False, 0
        self.is_there = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self) -> None:
        while not self.ends:
            try:
                link = Client(self.node.ports["mqtt"], f"wills-{self.node.name}", timeout_s=5)
                link.subscribe(["will/#"], 1)
                # What comes to another start of it is another reader's.
                self.starts += 1
                self.is_there.set()
                while not self.ends:
                    try:
                        told = link.read(0.5)
                    except TimeoutError:
                        continue
                    if told is None:
                        break
                    if told[0] & 0xF0 == PUBLISH:
                        self.take(link, told[1])
            except (OSError, RuntimeError):
                time.sleep(0.1)
            self.is_there.clear()

    def take(self, link: Client, body: bytes) -> None:
        at = 2 + int.from_bytes(body[:2], "big")
        reader = f"{self.node.name}, start {self.starts}"
        self.history.note("will", connection=int(body[at + 2 :]), reader=reader)
        link.send(wire.ack(wire.PUBACK, int.from_bytes(body[at : at + 2], "big"), level=4))


def dropped(node: Node) -> list[str]:
    """What a node says that it dropped or refused."""
    words = ("dropped", "refused", "lost", "repeated", "unreadable")
    lines = [line for line in node.page("/metrics").splitlines() if any(word in line for word in words)]
    return [line for line in lines if not line.startswith("#") and not line.endswith(" 0")]


class Game:
    """All clients, and what they have seen."""

    def __init__(self, arena: Arena, seed: int, plant: str):
        self.arena, self.plant = arena, plant
        nodes = arena.cluster.nodes
        self.history = History()
        self.publishers: list[Publisher] = []
        for number in range(COUNT):
            self.publishers.append(MqttPublisher(f"mqtt-1-{number}", nodes, number, 1))
            self.publishers.append(MqttPublisher(f"mqtt-2-{number}", nodes, number, 2))
            self.publishers.append(HttpPublisher(f"http-{number}", nodes, number))
            self.publishers.append(KeyedPublisher(f"keyed-{number}", nodes, number))
        self.publishers.append(AmqpPublisher("amqp-0", nodes, arena.random.randrange(COUNT)))
        self.movers = [Mover(f"mover-{number}", nodes, self.history, seed + number) for number in range(MOVERS)]
        self.visitors = Visitors("visitor", nodes, self.history, seed + MOVERS)
        self.readers = [
            Reader(node, protocol, qos)
            for node in nodes
            for protocol, qos in (("mqtt", 1), ("mqtt", 2), ("amqp", 1), ("http", 1))
        ]
        self.wills = [WillReader(node, self.history) for node in nodes]
        # Their messages are a shared subscription's alone.
        self.grouped = [MqttPublisher(f"grouped-{number}", nodes, number, 1, "grouped") for number in range(COUNT)]
        self.members = [Member(node, number, seed + number) for node in nodes for number in range(2)]
        self.group_since: dict[str, int] = {}
        # And these are a queue's. Those whose deliveries fail go on to another.
        self.senders = [QueuePublisher(f"queued-{number}", nodes, number, QUEUE) for number in range(COUNT)]
        self.consumers = [
            Consumer(node, queue, number, seed + number)
            for node in nodes
            for queue, count in ((QUEUE, 2), (DEAD, 1))
            for number in range(count)
        ]
        self.queue_since: dict[str, int] = {}
        self.queue_ledgers = {publisher.name: publisher.ledger for publisher in self.senders}
        self.troubles: list[Trouble] = []
        # Times in which a queue's cursor may not be kept.
        self.unkept: list[Trouble] = []
        self.ledgers = {publisher.name: publisher.ledger for publisher in self.publishers}
        self.group_ledgers = {publisher.name: publisher.ledger for publisher in self.grouped}
        self.counts: Counter[str] = Counter()

    def everybody(self) -> list[Publisher | Mover]:
        """Who goes in a round, and waits between two."""
        return [*self.publishers, *self.grouped, *self.senders, *self.movers, self.visitors]

    def end(self) -> None:
        for one in [*self.everybody(), *self.members, *self.consumers, *self.wills]:
            one.ends = True
        for reader in self.readers:
            reader.end()

    def begin_round(self) -> None:
        for reader in self.readers:
            if not reader.is_there():
                reader.start(self.publishers)
        for reader in self.wills:
            wait_until(f"wills are read on {reader.node.name}", reader.is_there.is_set)
        for member in [*self.members, *self.consumers]:
            wait_until(f"{member.name} is there", member.is_there.is_set)
        # Every node knows of the readers of all others: one filter each for messages, the group's, wills, and two queues.
        wait_until("filters are known", lambda: all(
            node.figure("sterna_cluster_filters") == 5 * (COUNT - 1) for node in self.arena.cluster.nodes), MEND_S)
        self.group_since = self.group_since or {one.name: one.ledger.sent for one in self.grouped}
        self.queue_since = self.queue_since or {one.name: one.ledger.sent for one in self.senders}
        for one in self.everybody():
            one.goes.set()
        time.sleep(CALM_S)

    def fault(self, kind: str) -> Fault:
        def note(what: str, node: str, for_ms: int) -> None:
            self.history.note(what, node=node, number=for_ms)

        if self.plant == "absence":
            return self.arena.play(note, "pause a node", PLANTED_ABSENCE_MS / 1e3 + 3)
        if self.plant == "rights":
            seconds = PLANTED_ABSENCE_MS / 1e3 + 3
            return self.arena.play(note, "revoke a right", seconds, right=("subscribe", "_INBOX.>"))
        if self.plant == "fence":
            return self.arena.play(note, "pause a node", 5, 0)
        if self.plant == "returns":
            return self.arena.play(note, "kill NATS late")
        if self.plant == "clock":
            return self.arena.play(note, "a node starts with a wrong clock")
        return self.arena.play(note, kind)

    def served(self) -> None:
        """Waits until everybody is served again; a TimeoutError that says who is not."""
        self.arena.cluster.settle()
        publishers = [*self.publishers, *self.grouped, *self.senders]
        everybody = [(one.name, lambda one=one: len(one.ledger.acknowledged)) for one in publishers]
        everybody += [(one.name, lambda one=one: one.acknowledged) for one in self.movers]
        before = {name: count() for name, count in everybody}
        try:
            wait_until("everybody is acknowledged again", lambda: all(
                count() > before[name] for name, count in everybody), MEND_S)
        except TimeoutError as error:
            stuck = [name for name, count in everybody if count() <= before[name]]
            raise TimeoutError(f"{error}: {stuck}") from error

    def look(self, present: list[Reader], until_s: float) -> list[str]:
        """What must not be, as far as it is known."""
        events = list(self.history.events)
        found = of_owners(events) + of_wills(events, until_s)
        holds = [hold for member in self.members for hold in list(member.holds)]
        found += of_group(holds, self.troubles)
        settled = set().union(*(member.settled for member in self.members))
        found += of_members(settled, self.group_since, self.group_ledgers)
        for queue in (QUEUE, DEAD):
            holds = [hold for one in self.consumers if one.queue == queue for hold in list(one.holds)]
            found += of_group(holds, self.troubles)
            found += of_queue(holds, self.unkept)
        settled = set().union(*(one.settled for one in self.consumers))
        found += of_members(settled, self.queue_since, self.queue_ledgers)
        for reader in present:
            found += of_reader(reader.name, reader.numbers(), reader.since, self.ledgers)
        return found

    def round(self, number: int, kind: str = "") -> list[str]:
        self.begin_round()
        before, begun_s = self.acknowledged(), time.monotonic()
        fault = self.fault(kind)
        trouble = Trouble(fault.troubled or "", begun_s, time.monotonic() + 60)
        if fault.troubled is not None:
            self.troubles.append(trouble)
        if fault.kind != "a clock jumps":
            self.unkept.append(trouble)
        self.counts[fault.kind] += 1
        where = f"round {number} ({fault.told})"
        if fault.lost:
            return [f"{where}: {one}" for one in fault.lost]
        try:
            self.served()
        except TimeoutError as error:
            return [f"{where}: not served: {error}"]
        if fault.delays_records:
            # Until now.
            self.history.note("disturbed", number=int((time.monotonic() - begun_s) * 1e3))
        trouble.until_s = time.monotonic()
        time.sleep(CALM_S)
        for one in self.everybody():
            one.goes.clear()
        present = [reader for reader in self.readers if reader.node.name not in fault.killed]
        gone = [reader.name for reader in present if not reader.is_there()]
        found = [f"not served: {gone} were disconnected"] if gone else []
        present = [reader for reader in present if reader.is_there()]
        until_s = time.monotonic()
        # What is still on its way has its time.
        end = until_s + (8 if self.plant else MEND_S)
        while time.monotonic() < end and self.look(present, until_s):
            time.sleep(0.5)
        time.sleep(CALM_S)
        found += self.look(present, until_s)
        left = {mover.name: len(mover.stays) for mover in self.movers if len(mover.stays) > 1}
        if left:
            found.append(f"two owners: connections are left: {left}")
        self.counts["acknowledged"] += self.acknowledged() - before
        for reader in self.readers:
            if reader.node.name in fault.killed:
                reader.end()
        if not found:
            self.history.forget({stay.number for mover in [*self.movers, self.visitors] for stay in mover.stays})
        print(f"  {self.acknowledged() - before} acknowledged, {len(present)} of {len(self.readers)} readers present, "
              f"{sum(mover.admitted for mover in self.movers)} moves, {len(found)} violations", flush=True)
        return [f"{where}: {one}" for one in found]

    def acknowledged(self) -> int:
        ledgers = [*self.ledgers.values(), *self.group_ledgers.values(), *self.queue_ledgers.values()]
        return sum(len(ledger.acknowledged) for ledger in ledgers)


def in_cluster(text: str, settings: str) -> str:
    """A configuration with more settings of `[cluster]`."""
    head, section, rest = text.partition("[cluster]\n")
    return f"{head}{section}{settings}\n{rest}"


def plant(arena: Arena, what: str) -> None:
    """Breaks a promise of the cluster by its configuration."""
    for at, node in enumerate(arena.cluster.nodes):
        text = node.config.read_text()
        if what in ("absence", "rights"):
            text = text.replace(f"absence_ms = {ABSENCE_MS}", f"absence_ms = {PLANTED_ABSENCE_MS}")
            text = text.replace(f"\nlease_ms = {LEASE_MS}", f"\nlease_ms = {PLANTED_ABSENCE_MS}")
            text = in_cluster(text, f"session_lease_ms = {PLANTED_ABSENCE_MS // 2}")
        elif what == "fence" and at == 0:
            text = in_cluster(text, f"session_lease_ms = {PLANTED_LEASE_MS}\nclaim_timeout_ms = {2 * PLANTED_LEASE_MS}")
        elif what == "clock":
            text = text.replace("absence_ms =", f"maximum_clock_skew_ms = {TRUSTING_MS}\nabsence_ms =", 1)
            arena.trusts = True
        node.config.write_text(text)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--only", default="", help="only faults with this in their name")
    parser.add_argument("--plant", choices=("absence", "fence", "returns", "rights", "clock"), default="", help="break a promise, which must be caught")
    parser.add_argument("--rest-s", type=float, default=0, help="how long nothing happens after the last round")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    arena = Arena(options.folder, options.seed, options.only, QUEUES)
    if not arena.library:
        print("no C compiler: clocks do not jump", flush=True)
    plant(arena, options.plant)
    arena.returns = options.plant == "returns"
    word = {"absence": ": lost: ", "rights": ": lost: ", "fence": ": two owners: ", "returns": ": will doubled: ", "clock": ": expired: "}.get(options.plant)
    found: list[str] = []
    with arena.cluster:
        game = Game(arena, options.seed, options.plant)
        try:
            for number in range(1, options.rounds + 1):
                print(f"round {number}", flush=True)
                found = game.round(number)
                if found and not (word and not any(word in one for one in found)):
                    break
            if options.rest_s and not found:
                print(f"nothing for {options.rest_s} s", flush=True)
                time.sleep(options.rest_s)
                for kind in ("kill all NATS", "kill NATS late", "kill a node"):
                    found += game.round(options.rounds, kind)
        finally:
            game.end()
        if found and not word:
            for node in arena.cluster.nodes:
                print(f"  {node.name}: {dropped(node)}", flush=True)
            game.history.write(options.folder / "history.jsonl")
            print(f"  the history is in {options.folder / 'history.jsonl'}", flush=True)
    for one in found:
        print(one)
    for queue in (QUEUE, DEAD):
        accepted = [hold.payload for one in game.consumers if one.queue == queue for hold in one.holds if hold.is_accepted]
        game.counts[f"accepted from the queue {queue}"] = len(set(accepted))
        game.counts[f"accepted from the queue {queue} again"] = len(accepted) - len(set(accepted))
    for kind, count in sorted(game.counts.items()):
        print(f"{count:8} {kind}")
    if word:
        caught = any(word in one for one in found)
        print("the planted fault was caught" if caught else "the planted fault was NOT caught")
        return 0 if caught else 1
    print(f"{options.rounds} rounds, seed {options.seed}: {len(found)} violations")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
