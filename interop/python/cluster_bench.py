"""Figures of a cluster, on one machine: `cargo xtask bench cluster`.

  cluster_bench.py FOLDER [--messages N] [--rounds N] [--only WORD]... [--json FILE]

Each figure is the median of the rounds, and rounds of all places take turns. CPU is that of the processes, from /proc: the
generator's own does not count, but it shares the machine, so messages per second say little where cores are few. The
environment is that of `cluster_nodes.py`. Standard library only.
"""

from __future__ import annotations

import argparse
import json
import selectors
import shutil
import socket
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

from cluster_bench_load import PAIRS, PATIENCE_S, Place, Publisher, Reader, cpu_s, play, resident_bytes
from cluster_bench_peers import PEERS, Peer
from cluster_nodes import COUNT, Cluster, Node, wait_until
from mqtt_client import Client

FAN_OUT, FAN_OUT_MESSAGES = 1_000, 500
MOVED_READERS = 200
FILTERS = 100_000
# Filters of one packet and of one client.
FILTERS_PER_PACKET, FILTERS_PER_CLIENT = 250, 1_000
# The figure of sessions that outlive their connections.
KEPT = "QoS 1 kept"
# The figure of `sync_interval: always` in NATS, at these numbers of messages without an acknowledgement. With one, fewer
# messages of a publisher make a round.
SYNCS = "syncs"
SYNC_WINDOWS = {1: 20, 64: 1}
# Figures of throughput: the name, the QoS, and whether sessions outlive their connections.
FIGURES = (("QoS 0", 0, False), ("QoS 1", 1, False), (KEPT, 1, True), ("QoS 2", 2, False))


class Alone(Node):
    """A node without a cluster."""

    def __init__(self, folder: Path):
        super().__init__(folder, "alone", [1])
        text = self.config.read_text().split("[cluster]")[0]
        self.config.write_text(text.replace("enabled = false", "enabled = true"))


def settled() -> None:
    """Time in which a subscription of another node gets known."""
    time.sleep(1)


def fan_out(cluster: Cluster, marker: str) -> dict[str, float]:
    """One publisher, readers on all nodes, QoS 0."""
    ports = [node.ports["mqtt"] for node in cluster.nodes]
    topic = f"fan/{marker}"
    readers = [Reader(ports[number % COUNT], f"f{marker}-{number}", topic, 0) for number in range(FAN_OUT)]
    publisher = Publisher(ports[0], f"fp{marker}", topic, 0, FAN_OUT_MESSAGES)
    publisher.readers = readers
    settled()
    before = cpu_s(cluster.nodes), cpu_s(cluster.nats)
    took = play([publisher], readers)
    after = cpu_s(cluster.nodes), cpu_s(cluster.nats)
    for client in [publisher, *readers]:
        client.close()
    deliveries = FAN_OUT_MESSAGES * FAN_OUT
    return {
        "messages_per_s": deliveries / took,
        "nodes_us": (after[0] - before[0]) * 1e6 / deliveries,
        "nats_us": (after[1] - before[1]) * 1e6 / deliveries,
    }


def moved(cluster: Cluster, marker: str) -> dict[str, float]:
    """A node is killed. Each of its readers connects to another at once, and waits for a message that was published
    after that."""
    topic = f"moved/{marker}"
    dead, ports = cluster.nodes[-1], [node.ports["mqtt"] for node in cluster.nodes[:-1]]
    readers = [Reader(dead.ports["mqtt"], f"m{marker}-{number}", topic, 1) for number in range(MOVED_READERS)]
    publisher = Publisher(ports[0], f"mp{marker}", topic, 1, 1 << 40)
    settled()
    begun = time.monotonic()
    dead.kill()
    selector = selectors.DefaultSelector()
    # From the kill, and from the own connect, in milliseconds.
    from_kill, from_connect = [], []
    connected: dict[socket.socket, float] = {}
    for number, reader in enumerate(readers):
        reader.close()
        at = time.monotonic()
        again = Reader(ports[number % len(ports)], f"m{marker}-{number}", topic, 1)
        connected[again.socket] = at
        readers[number] = again
        selector.register(again.socket, selectors.EVENT_READ, again)
        publisher.total = publisher.sent + 1
        publisher.pump()
        publisher.flush()
        publisher_reads(publisher)
    while len(from_kill) < MOVED_READERS and time.monotonic() - begun < PATIENCE_S:
        publisher.total = publisher.sent + 1
        publisher.pump()
        publisher.flush()
        publisher_reads(publisher)
        for key, _ in selector.select(0.005):
            key.data.take()
            key.data.flush()
            if key.data.received and key.fileobj in connected:
                now = time.monotonic()
                from_kill.append((now - begun) * 1e3)
                from_connect.append((now - connected.pop(key.fileobj)) * 1e3)
    if len(from_kill) < MOVED_READERS:
        raise TimeoutError(f"{len(from_kill)} of {MOVED_READERS} readers are served")
    for client in [publisher, *readers]:
        client.close()
    dead.start()
    cluster.settle()

    def quantile(values: list[float], share: float) -> float:
        return sorted(values)[min(len(values) - 1, int(len(values) * share))]

    return {
        "all_served_ms": max(from_kill),
        "from_connect_p50_ms": quantile(from_connect, 0.5),
        "from_connect_p99_ms": quantile(from_connect, 0.99),
    }


def publisher_reads(publisher: Publisher) -> None:
    publisher.take()
    publisher.flush()


def remote_filters(cluster: Cluster, marker: str) -> dict[str, float]:
    """Memory that filters of another node take on a node."""
    first, second = cluster.nodes[0], cluster.nodes[1]
    # Those of figures before.
    wait_until("no filter is left", lambda: first.figure("sterna_cluster_filters") == 0)
    before = resident_bytes(first)
    clients = []
    for start in range(0, FILTERS, FILTERS_PER_CLIENT):
        client = Client(second.ports["mqtt"], f"q{marker}-{start}")
        for at in range(start, start + FILTERS_PER_CLIENT, FILTERS_PER_PACKET):
            client.subscribe([f"site/{marker}/{one}/+" for one in range(at, at + FILTERS_PER_PACKET)], 1)
        clients.append(client)
    begun = time.monotonic()
    wait_until("all filters are known", lambda: first.figure("sterna_cluster_filters") >= FILTERS, PATIENCE_S)
    waited_s = time.monotonic() - begun
    after = resident_bytes(first)
    for client in clients:
        client.close()
    wait_until("all filters are gone", lambda: first.figure("sterna_cluster_filters") == 0, PATIENCE_S)
    return {"mib": (after - before) / (1 << 20), "known_after_s": waited_s}


class Results:
    """Rounds of each figure, and their medians."""

    def __init__(self, path: str | None):
        self.rounds: dict[tuple[str, str], list[dict[str, float]]] = {}
        self.path = path

    def add(self, what: str, place: str, found: dict[str, float]) -> None:
        self.rounds.setdefault((what, place), []).append(found)
        print(f"  {what:<10} {place:<44} " + "  ".join(f"{key} {value:.2f}" for key, value in found.items()), flush=True)
        if self.path:
            with open(self.path, "a", encoding="utf-8") as out:
                out.write(json.dumps({"what": what, "place": place, **found}) + "\n")

    def medians(self) -> dict[tuple[str, str], dict[str, float]]:
        return {
            row: {key: statistics.median(one[key] for one in rounds) for key in rounds[0]}
            for row, rounds in self.rounds.items()
        }

    def ratios(self) -> None:
        """What `sync_interval: always` costs: the ratio of each round, whose two halves took turns."""
        for window in SYNC_WINDOWS:
            halves = [self.rounds.get((SYNCS, sync_place(window, is_always)), []) for is_always in (False, True)]
            ratios = [rest["messages_per_s"] / always["messages_per_s"] for rest, always in zip(*halves, strict=False)]
            if ratios:
                low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
                print(f"{SYNCS}: {window} a publisher: {middle:.2f} times the messages per second without `always`"
                      f" (interquartile {low:.2f} to {high:.2f}, {len(ratios)} rounds)")

    def table(self) -> None:
        print("\nMedians\n")
        for (what, place), found in self.medians().items():
            print(f"{what:<10} {place:<44} " + "  ".join(f"{key} {value:>10.2f}" for key, value in found.items()))

    def goals(self) -> None:
        """The goals of the design, each with what was found."""
        found = self.medians()
        print("\nGoals\n")
        cost = {row: one["nodes_us"] for row, one in found.items() if "nodes_us" in one}
        whole = {row: one["nodes_us"] + one["nats_us"] for row, one in found.items() if "nodes_us" in one}
        same, other = ("QoS 0", "3 nodes: same node"), ("QoS 0", "3 nodes: another node")
        if same in cost and other in cost and cost[same]:
            print(f"QoS 0 to another node, CPU of the nodes: {cost[other] / cost[same]:.2f} times the same node's (at most 1.5);"
                  f" with NATS {whole[other] / whole[same]:.2f}")
        for what in ("QoS 1", KEPT):
            ours = (what, "3 nodes: another node")
            for peer in PEERS:
                theirs = (what, f"{peer.name}: another server")
                if theirs in whole and whole.get(ours):
                    goal = " (at least 5)" if peer.name == "NATS MQTT" else ""
                    print(f"{what} across nodes: {whole[theirs] / whole[ours]:.2f} times the messages of {peer.name}"
                          f" per CPU second{goal}")
        for (what, place), one in found.items():
            if what == "a death":
                print(f"readers of a dead node, p99 from their connect: {one['from_connect_p99_ms']:.0f} ms (under 2000)")


class Peers:
    """Other brokers' clusters. One runs only while it is measured: even at rest they take some of the machine."""

    def __init__(self, options: argparse.Namespace, folder: Path):
        self.options, self.folder = options, folder

    def measure(self, number: int, results: Results) -> None:
        for at, kind in enumerate(PEERS):
            wanted = [
                (what, qos, is_kept, place)
                for what, qos, is_kept in FIGURES
                for place in ("same server", "another server")
                if qos in kind.levels and self.options.wants(f"{what} {kind.name}: {place}")
            ]
            if not wanted:
                continue
            if (why := kind.lacks()) is not None:
                print(f"  {kind.name}: {why}", flush=True)
                continue
            try:
                with kind(self.folder / f"{kind.name}-{number}") as peer:
                    self.measure_peer(peer, f"{number}-{at}", wanted, results)
            except TimeoutError as error:
                print(f"  {kind.name}: {error}", flush=True)

    def measure_peer(self, peer: Peer, marker: str, wanted: list[tuple[str, int, bool, str]], results: Results) -> None:
        for what, qos, is_kept, place in wanted:
            messages = messages_at(qos, self.options)
            try:
                found = place_of(peer, place).measure(qos, messages, f"{marker}-{qos}-{int(is_kept)}-{place[0]}", is_kept)
            except (OSError, RuntimeError) as error:
                # A TimeoutError among them: messages that never came.
                print(f"  {what:<10} {peer.name}: {place}: {error}", flush=True)
                continue
            results.add(what, f"{peer.name}: {place}", found)


def messages_at(qos: int, options: argparse.Namespace) -> int:
    """Messages of each publisher. At QoS 0 fewer are gone before the processor has come to its speed."""
    return options.messages if qos == 0 else options.messages // 20


def place_of(peer: Peer, name: str) -> Place:
    first, second, third = peer.ports
    pairs = [(first, first)] if name == "same server" else [(first, second), (second, third), (third, first)]
    return Place(f"{peer.name}: {name}", pairs, [], peer.programs, settled)


def sync_place(window: int, is_always: bool) -> str:
    return f"{window} a publisher: {'always' if is_always else 'every 2 minutes'}"


def syncs(options: argparse.Namespace, folder: Path, results: Results) -> None:
    """QoS 1 to kept sessions on another node, by servers of NATS that sync each write, and by others. Both are there all the
    time and take turns, so that a round's halves have the same machine."""
    with Cluster(folder / "syncs-rest") as rest, Cluster(folder / "syncs-always", storage="sync_interval: always") as always:
        for number in range(options.rounds):
            # Who is first changes.
            halves = [(rest, False), (always, True)][:: 1 if number % 2 else -1]
            for window, share in SYNC_WINDOWS.items():
                messages = max(1, messages_at(1, options) // share)
                for cluster, is_always in halves:
                    first, second = (node.ports["mqtt"] for node in cluster.nodes[:2])
                    place = Place(SYNCS, [(first, second)], cluster.nodes, cluster.nats, settled)
                    found = place.measure(1, messages, f"s{number}-{window}", True, window)
                    results.add(SYNCS, sync_place(window, is_always), found)


def throughput(options: argparse.Namespace, folder: Path, results: Results) -> None:
    if options.only == [SYNCS]:
        return
    peers = Peers(options, folder)
    alone = Alone(folder / "alone")
    alone.start()
    try:
        wait_until("the single node is ready", alone.is_ready)
        with Cluster(folder / "cluster") as cluster:
            a, b, c = (node.ports["mqtt"] for node in cluster.nodes)
            own = alone.ports["mqtt"]

            def settle(count: int) -> Callable[[], None]:
                def known() -> None:
                    time.sleep(0.3)
                    wait_until("filters are known", lambda: sum(
                        node.figure("sterna_cluster_filters") for node in cluster.nodes) >= count)

                return known

            places = [
                Place("1 node without a cluster", [(own, own)], [alone], [], lambda: None),
                Place("1 node of 3: same node", [(a, a)], cluster.nodes, cluster.nats, settle(2 * PAIRS)),
                Place("2 nodes of 3: another node", [(a, b)], cluster.nodes, cluster.nats, settle(2 * PAIRS)),
                Place("3 nodes: same node", [(a, a), (b, b), (c, c)], cluster.nodes, cluster.nats, settle(2 * PAIRS)),
                Place("3 nodes: another node", [(a, b), (b, c), (c, a)], cluster.nodes, cluster.nats, settle(2 * PAIRS)),
            ]
            for number in range(options.rounds):
                for what, qos, is_kept in FIGURES:
                    for at, place in enumerate(places):
                        if not options.wants(f"{what} {place.name}"):
                            continue
                        found = place.measure(qos, messages_at(qos, options), f"{number}-{qos}-{int(is_kept)}-{at}", is_kept)
                        results.add(what, place.name, found)
                if options.wants("fan-out"):
                    results.add("fan-out", f"1 to {FAN_OUT} on 3 nodes, per delivery", fan_out(cluster, str(number)))
                if options.wants("a death"):
                    results.add("a death", f"{MOVED_READERS} readers of a killed node", moved(cluster, str(number)))
                peers.measure(number, results)
            if options.wants("memory"):
                # Once: an allocator keeps what it had.
                results.add("memory", f"{FILTERS} filters of another node", remote_filters(cluster, "0"))
    finally:
        alone.kill()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--messages", type=int, default=200_000, help="of each publisher at QoS 0; a twentieth at QoS 1 and 2")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", action="append", default=[], help="only figures with one of these words in their name")
    parser.add_argument("--json", help="append every round as a line of JSON")
    options = parser.parse_args()
    options.wants = lambda name: not options.only or any(word in name for word in options.only)
    shutil.rmtree(options.folder, ignore_errors=True)
    results = Results(options.json)
    try:
        throughput(options, options.folder, results)
        if options.wants(SYNCS):
            syncs(options, options.folder, results)
    finally:
        results.table()
        results.ratios()
        results.goals()


if __name__ == "__main__":
    sys.exit(main())
