"""The CPU of a message of QoS 0 to a reader on another node, beside one to a reader on the same node.

  cluster_figure.py FOLDER   prints one line a place: CPU of the nodes and of NATS, in microseconds a message

The environment is that of `cluster_nodes.py`. One publisher writes as fast as it is read, and one reader counts. Standard
library only.
"""

from __future__ import annotations

import os
import socket
import statistics
import sys
import threading
import time
from pathlib import Path

from cluster_nodes import Cluster, Node, wait_until

MESSAGES, PAYLOAD_BYTES, ROUNDS = 100_000, 64, 5
TOPIC = b"figure/1"
# Messages of one write; the reader is at most so many windows behind, so that no queue drops.
BURST, WINDOW = 200, 10
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def text(value: bytes) -> bytes:
    return len(value).to_bytes(2, "big") + value


def packet(kind: int, body: bytes) -> bytes:
    length, out = len(body), bytearray([kind])
    while True:
        length, digit = divmod(length, 128)
        out.append(digit | (0x80 if length else 0))
        if not length:
            return bytes(out) + body


PUBLISH = packet(0x30, text(TOPIC) + bytes(PAYLOAD_BYTES))


def connect(node: Node, name: bytes) -> socket.socket:
    link = socket.create_connection(("127.0.0.1", node.ports["mqtt"]))
    link.sendall(packet(0x10, text(b"MQTT") + b"\x04\x02\x00\x00" + text(name)))
    assert link.recv(4) == b"\x20\x02\x00\x00"
    return link


def cpu_s(program) -> float:
    fields = Path(f"/proc/{program.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


class Counter:
    """Reads to the end, and counts bytes: all messages are alike."""

    def __init__(self, link: socket.socket):
        self.link, self.bytes = link, 0
        threading.Thread(target=self.run, daemon=True).start()

    def run(self) -> None:
        while data := self.link.recv(1 << 20):
            self.bytes += len(data)
        self.link.close()

    def messages(self) -> int:
        return self.bytes // len(PUBLISH)


def measure(cluster: Cluster, reader_node: Node) -> tuple[float, float]:
    """Microseconds of CPU a message: of all nodes, and of all servers of NATS."""
    reader, publisher = connect(reader_node, b"reader"), connect(cluster.nodes[0], b"publisher")
    reader.sendall(packet(0x82, b"\x00\x01" + text(TOPIC) + b"\x00"))
    assert reader.recv(5) == b"\x90\x03\x00\x01\x00"
    wanted = 0 if reader_node is cluster.nodes[0] else 1
    wait_until("the filter is known", lambda: cluster.nodes[0].figure("sterna_cluster_filters") == wanted)
    counter = Counter(reader)
    programs = (cluster.nodes, cluster.nats)
    before = [sum(cpu_s(program) for program in group) for group in programs]
    burst = PUBLISH * BURST
    for sent in range(BURST, MESSAGES + 1, BURST):
        publisher.sendall(burst)
        while counter.messages() < sent - BURST * WINDOW:
            time.sleep(0.0002)
    wait_until("all have arrived", lambda: counter.messages() == MESSAGES)
    after = [sum(cpu_s(program) for program in group) for group in programs]
    for link in (publisher, reader):
        # A close alone would wait for the thread that reads.
        link.shutdown(socket.SHUT_RDWR)
    wait_until("the filter is gone", lambda: cluster.nodes[0].figure("sterna_cluster_filters") == 0)
    return tuple((end - begin) * 1e6 / MESSAGES for begin, end in zip(before, after, strict=True))


def main() -> None:
    with Cluster(Path(sys.argv[1])) as cluster:
        places = {"same node": cluster.nodes[0], "another node": cluster.nodes[1]}
        found: dict[str, list[tuple[float, float]]] = {place: [] for place in places}
        for _ in range(ROUNDS):
            # In turn, so that a busy moment of the machine meets both.
            for place, node in places.items():
                found[place].append(measure(cluster, node))
        for place, rounds in found.items():
            nodes, nats = (statistics.median(values) for values in zip(*rounds, strict=True))
            print(f"{place}: nodes {nodes:.2f} us, NATS {nats:.2f} us, median of {ROUNDS} x {MESSAGES} messages", flush=True)


if __name__ == "__main__":
    main()
