"""Early data of QUIC on a cluster: what was sent to one node, and comes to another, does nothing there.

  cluster_early.py [WORD]...   all rows, or those with one of the words in their name

A recorder keeps the first flight of a client, and sends it again: to the same node and to others.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from pathlib import Path

import wire
from cluster import run_rows
from cluster_kept import Keeper, end, known_elsewhere
from cluster_nodes import PATIENCE_S, Cluster, Node, free_ports
from harness import Failure, Listener
from quic_client import QuicClient, opened

# How long nothing more must come.
SILENCE_S = 1.0


class Recorded(QuicClient):
    """A client whose datagrams are kept as they leave."""

    sent: list[bytes]

    def connection_made(self, transport) -> None:
        self.sent = []
        sendto = transport.sendto

        def keep(data: bytes, *address) -> None:
            self.sent.append(bytes(data))
            sendto(data, *address)

        transport.sendto = keep
        super().connection_made(transport)


class EarlyCluster(Cluster):
    """A cluster with a listener of QUIC on each node, which takes early data."""

    def __init__(self, folder: Path):
        super().__init__(folder)
        self.quic = dict(zip(self.nodes, free_ports(len(self.nodes)), strict=True))
        for node, port in self.quic.items():
            node.config.write_text(
                f'{node.config.read_text()}\n[[listener]]\nurl = "mqtt+quic://127.0.0.1:{port}"\nearly_data = "all"\n'
            )

    def listener(self, node: Node) -> Listener:
        authority = node.config.parent / "data" / "development-ca.pem"
        return Listener(f"mqtt+quic://127.0.0.1:{self.quic[node]}", str(authority))


async def a_ticket(listener: Listener):
    tickets: list = []
    async with opened(listener, tickets=tickets.append) as quic:
        await quic.connect_mqtt(client_id="early")
        end_at = time.monotonic() + PATIENCE_S
        while not tickets and time.monotonic() < end_at:
            await asyncio.sleep(0.01)
        quic.end()
    if not tickets:
        raise Failure("the node gives no ticket")
    return tickets[-1]


async def early(listener: Listener, ticket, topic: str, payload: str) -> tuple[list[bytes], bool]:
    """Publishes in the first flight. That flight's datagrams, and whether the node took its data early."""
    async with opened(listener, ticket=ticket, early=True, kind=Recorded) as quic:
        stream = quic.bidirectional(0)
        stream.send(wire.connect(client_id="early", level=5) + wire.publish(topic, payload.encode(), 1, 7))
        quic.transmit()
        flight = list(quic.sent)
        await stream.expect(wire.CONNACK)
        await stream.expect(wire.PUBACK)
        was_early = quic.early_data_accepted
        quic.end()
    return flight, was_early


def again(flight: list[bytes], port: int) -> None:
    """Sends a flight once more, as somebody does who has recorded it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        for datagram in flight:
            one.sendto(datagram, ("127.0.0.1", port))
        # It may answer, which nobody understands here.
        time.sleep(SILENCE_S)


def received(node: Node) -> int:
    """Datagrams that the node's listener of QUIC has received."""
    lines = node.page("/metrics").splitlines()
    counts = [line.split() for line in lines if line.startswith("sterna_quic_datagrams_total{")]
    return sum(int(float(count)) for name, count in counts if 'direction="received"' in name)


def a_flight(cluster: EarlyCluster) -> None:
    """A first flight that is played again to its node, and to the others, publishes nothing more."""
    first, second, third = cluster.nodes
    reader = Keeper(second, "flights")
    reader.want("flights/#")
    known_elsewhere(cluster, second)

    async def play() -> list[bytes]:
        ticket = await a_ticket(cluster.listener(first))
        flight, was_early = await early(cluster.listener(first), ticket, "flights/a", "m0")
        if not was_early:
            raise Failure("the node took no early data: there is nothing to play again")
        return flight

    flight = asyncio.run(play())
    if reader.receive(1) != ["m0"]:
        raise Failure(f"the reader got {reader.seen}")
    for node in (first, second, third, second):
        before = received(node)
        again(flight, cluster.quic[node])
        if received(node) < before + len(flight):
            raise Failure(f"{node.name} did not get the flight")
    reader.nothing_more()
    reader.close()
    end(cluster, "flights")


def a_strange_ticket(cluster: EarlyCluster) -> None:
    """A ticket of one node at another: its early data is not taken, the client sends it again, and it is done once."""
    first, second, third = cluster.nodes
    reader = Keeper(second, "tickets")
    reader.want("tickets/#")
    known_elsewhere(cluster, second)

    async def play() -> None:
        ticket = await a_ticket(cluster.listener(first))
        listener = Listener(f"mqtt+quic://127.0.0.1:{cluster.quic[third]}", cluster.listener(third).certificate)
        _, was_early = await early(listener, ticket, "tickets/a", "m0")
        if was_early:
            raise Failure("another node took the early data")

    asyncio.run(play())
    if reader.receive(1) != ["m0"]:
        raise Failure(f"the reader got {reader.seen}")
    reader.nothing_more()
    reader.close()
    end(cluster, "tickets")


def main() -> None:
    rows = [
        ("a first flight is played again to every node", a_flight),
        ("a ticket of one node is shown to another", a_strange_ticket),
    ]
    with EarlyCluster(Path(os.environ["STERNA_BUILD"]) / "cluster-early") as cluster:
        run_rows(rows, lambda row: row(cluster), cluster.mend)


if __name__ == "__main__":
    main()
