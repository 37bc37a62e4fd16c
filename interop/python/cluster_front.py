"""Three nodes of a cluster that look like one broker: each connection comes to one of them at random.

  cluster_front.py STERNA SEED serve --ready-file FILE --data-dir FOLDER --config FILE

It takes the place of `sterna serve` for suites (`cargo xtask interop --cluster`): it starts three servers of NATS and three
nodes with the suite's configuration, and writes its own listeners into the file.

  TCP      each connection has a node of its own, and ends as the node or the client ends it
  QUIC     a first packet goes to the node of its address; others to the node whose server ID is in them, as a balancer does

What nodes send comes DELAY_S later. A SUBACK does not wait for other nodes (docs/cluster-design.md, Order), and suites publish by
another connection as soon as they have it. `nats-server` is on the search path. Standard library only.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import signal
import socket
import struct
import sys
import time
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

from cluster_nodes import COUNT, Nats, Program, free_ports, wait_until

# Longer than a node's word to all others takes on a busy machine.
DELAY_S = 0.1
CHUNK_BYTES = 1 << 16
# Chunks that a slow client may have behind it, before its node is read no further.
CHUNKS = 16
# Datagrams that the kernel keeps for a relay.
DATAGRAM_BYTES = 4 << 20
# The largest message between nodes: suites publish more than a mebibyte.
LARGEST_BYTES = 8 << 20
# For how long a node is sure of its sessions. No node fails here, but a machine may be too busy for the default.
LEASE_MS = 5_000
DEVELOPMENT = ("development-ca.pem", "development-certificate.pem", "development-key.pem")


class FrontNode(Program):
    """A node with the suite's configuration, listeners on ports of its own, and an admin listener."""

    def __init__(self, sterna: str, folder: Path, number: int, config: str, servers: list[int]):
        self.folder = folder
        self.data = folder / "data"
        self.data.mkdir(parents=True)
        self.ready_file = folder / "ready.json"
        path = folder / "sterna.toml"
        path.write_text(f'{config}\n[[listener]]\nurl = "admin://127.0.0.1:0"\n')
        urls = ", ".join(f'"nats://127.0.0.1:{port}"' for port in servers)
        super().__init__(
            [sterna, "serve", "--config", str(path), "--data-dir", str(self.data), "--ready-file", str(self.ready_file)],
            folder / "log",
            {
                "STERNA__CLUSTER__NATS": f"[{urls}]",
                "STERNA__CLUSTER__NODE": f"node-{number}",
                "STERNA__CLUSTER__SESSION_LEASE_MS": str(LEASE_MS),
                "STERNA__CLUSTER__CLAIM_TIMEOUT_MS": str(2 * LEASE_MS),
                "STERNA__STORE__ENABLED": "false",
                "STERNA__QUIC__SERVER_ID": f'"{number:02x}"',
                "STERNA__QUIC__ADDRESS_TOKEN_KEY_FILE": str(folder.parent / "address-token-key"),
            },
        )

    def begin(self) -> None:
        self.start()
        self.ready = wait_until(f"{self.folder.name} listens", self.read_ready)
        self.urls = [entry["url"] for entry in self.ready["listeners"]]
        self.admin = next(urlsplit(url) for url in self.urls if url.startswith("admin:"))

    def read_ready(self) -> dict | None:
        if self.process is None or self.process.poll() is not None:
            raise RuntimeError(f"{self.folder.name} has ended: {self.log.read_text(errors='replace')[-2000:]}")
        try:
            return json.loads(self.ready_file.read_text())
        except (OSError, ValueError):
            return None

    def page(self, path: str) -> str:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.admin.port}{path}", timeout=10) as answer:
                return answer.read().decode()
        except OSError:
            return ""

    def sees_all(self) -> bool:
        others = f"sterna_cluster_nodes_here {COUNT - 1}\n"
        return self.page("/readyz") == "ready\n" and others in self.page("/metrics")


def reset(writer: asyncio.StreamWriter) -> None:
    """Ends a connection as one that is lost."""
    if connection := writer.get_extra_info("socket"):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float) -> None:
    """Passes one direction on, each chunk `delay_s` after it came, to its end. A ConnectionError for one that is lost."""
    chunks: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(CHUNKS)

    async def read() -> None:
        while True:
            data = await reader.read(CHUNK_BYTES)
            await chunks.put((time.monotonic() + delay_s, data))
            if not data:
                return

    async def write() -> None:
        while True:
            due, data = await chunks.get()
            if delay_s:
                await asyncio.sleep(max(0.0, due - time.monotonic()))
            if not data:
                if writer.can_write_eof():
                    writer.write_eof()
                return
            writer.write(data)
            await writer.drain()

    reading = asyncio.create_task(read())
    writing = asyncio.create_task(write())
    try:
        await asyncio.wait([reading, writing], return_when=asyncio.FIRST_EXCEPTION)
        if reading.done() and reading.exception() and not chunks.empty():
            # What came before the loss is passed on.
            await asyncio.sleep(delay_s * 2)
        for task in (reading, writing):
            if task.done() and task.exception():
                raise task.exception()
    finally:
        reading.cancel()
        writing.cancel()


class TcpRelay:
    def __init__(self, ports: list[int], chance: random.Random):
        self.ports, self.chance = ports, chance
        self.tasks: set[asyncio.Task] = set()

    async def listen(self) -> int:
        self.server = await asyncio.start_server(self.accept, "127.0.0.1", 0, limit=CHUNK_BYTES)
        return self.server.sockets[0].getsockname()[1]

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            to_reader, to_writer = await asyncio.open_connection(
                "127.0.0.1", self.chance.choice(self.ports), limit=CHUNK_BYTES)
        except OSError:
            reset(writer)
            return
        for one in (writer, to_writer):
            one.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        up = asyncio.create_task(pump(reader, to_writer, 0))
        down = asyncio.create_task(pump(to_reader, writer, DELAY_S))
        self.tasks |= {up, down}
        done, waiting = await asyncio.wait([up, down], return_when=asyncio.FIRST_COMPLETED)
        if any(task.exception() for task in done):
            for task in waiting:
                task.cancel()
            if up in done and up.exception():
                # The client is gone, or the node has closed and takes no more: what it said before is on its way.
                reset(to_writer)
                await asyncio.sleep(DELAY_S * 2)
            for one in (writer, to_writer):
                reset(one)
        else:
            await asyncio.wait([up, down])
            for task in (up, down):
                task.exception()
            # A socket of which both directions have ended goes away by itself.
            for one in (writer, to_writer):
                one.close()
        self.tasks -= {up, down}


class Upstream(asyncio.DatagramProtocol):
    """The socket by which one address of a client speaks to one node."""

    def __init__(self, relay: UdpRelay, client: tuple):
        self.relay, self.client = relay, client

    def datagram_received(self, data: bytes, _address: tuple) -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(DELAY_S, self.relay.transport.sendto, data, self.client)

    def error_received(self, _error: OSError) -> None:
        pass


class UdpRelay(asyncio.DatagramProtocol):
    def __init__(self, ports: list[int], chance: random.Random):
        self.ports, self.chance = ports, chance
        self.first: dict[tuple, int] = {}
        self.upstream: dict[tuple, asyncio.Future] = {}
        self.tasks: set[asyncio.Task] = set()

    async def listen(self) -> int:
        self.transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
            lambda: self, local_addr=("127.0.0.1", 0))
        one = self.transport.get_extra_info("socket")
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, DATAGRAM_BYTES)
        return one.getsockname()[1]

    def node_of(self, data: bytes, client: tuple) -> int:
        """The node that a datagram is for, as examples/cluster/balancer.nft finds it."""
        is_long = bool(data and data[0] & 0x80)
        # Version negotiation, Initial and 0-RTT have an identifier of the client's choice.
        is_first = is_long and (data[1:5] == bytes(4) or (data[0] & 0x30) >> 4 in (0, 1))
        at = 7 if is_long else 2
        if not is_first and len(data) > at and 1 <= data[at] <= len(self.ports):
            return data[at] - 1
        if client not in self.first:
            self.first[client] = self.chance.randrange(len(self.ports))
        return self.first[client]

    def datagram_received(self, data: bytes, client: tuple) -> None:
        way = (client, self.node_of(data, client))
        if way not in self.upstream:
            self.upstream[way] = asyncio.get_running_loop().create_future()
            task = asyncio.create_task(self.open(way))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)
        opened = self.upstream[way]
        if opened.done():
            opened.result().sendto(data)
        else:
            opened.add_done_callback(lambda opened: opened.result().sendto(data))

    async def open(self, way: tuple) -> None:
        client, node = way
        transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
            lambda: Upstream(self, client), remote_addr=("127.0.0.1", self.ports[node]))
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, DATAGRAM_BYTES)
        self.upstream[way].set_result(transport)

    def error_received(self, _error: OSError) -> None:
        pass


async def relays(nodes: list[FrontNode], chance: random.Random) -> list[dict]:
    """A relay for each listener that the nodes have; what the suite is told of them."""
    told = []
    for index, url in enumerate(nodes[0].urls):
        parts = urlsplit(url)
        if parts.scheme == "admin":
            continue
        ports = [urlsplit(node.urls[index]).port for node in nodes]
        is_datagrams = "quic" in parts.scheme or parts.scheme == "h3"
        port = await (UdpRelay if is_datagrams else TcpRelay)(ports, chance).listen()
        told.append({**nodes[0].ready["listeners"][index], "url": url.replace(f":{parts.port}", f":{port}", 1)})
    return told


async def run(options: argparse.Namespace) -> None:
    loop = asyncio.get_running_loop()
    asked = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, asked.set)
    folder = options.data_dir.parent / "cluster"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "address-token-key").write_bytes(random.randbytes(32))
    (folder / "address-token-key").chmod(0o600)
    ports, routes = free_ports(COUNT), free_ports(COUNT)
    nats = [Nats(folder, number, ports, routes, f"max_payload: {LARGEST_BYTES}\n") for number in range(COUNT)]
    config = options.config.read_text()
    nodes = [FrontNode(options.sterna, folder / f"node-{number + 1}", number + 1, config, ports) for number in range(COUNT)]
    failure = ""
    try:
        for server in nats:
            server.start()
        nodes[0].begin()
        for node in nodes[1:]:
            # One certificate for all, as a service has it.
            for name in DEVELOPMENT:
                if (nodes[0].data / name).exists():
                    shutil.copy2(nodes[0].data / name, node.data / name)
            node.begin()
        for node in nodes:
            wait_until(f"{node.folder.name} sees all others", node.sees_all)
        said = {**nodes[0].ready, "listeners": await relays(nodes, random.Random(options.seed))}
        partial = options.ready_file.with_suffix(".part")
        partial.write_text(json.dumps(said))
        partial.rename(options.ready_file)
        print(f"seed {options.seed}", flush=True)
        while not asked.is_set():
            for program in [*nats, *nodes]:
                if program.process.poll() is not None:
                    failure = f"{program.log.parent.name} has ended: {program.log.read_text(errors='replace')[-2000:]}"
                    return
            try:
                await asyncio.wait_for(asked.wait(), 0.2)
            except TimeoutError:
                pass
        for node in nodes:
            node.send(signal.SIGTERM)
        for node in nodes:
            code = await asyncio.to_thread(node.process.wait, 15)
            if code != 0:
                failure = f"{node.folder.name} ended with {code}: {node.log.read_text(errors='replace')[-2000:]}"
    finally:
        for program in [*nodes, *nats]:
            program.kill()
        if failure:
            print(failure, flush=True)
            sys.exit(1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("sterna")
    parser.add_argument("seed", type=int)
    parser.add_argument("serve")
    parser.add_argument("--ready-file", type=Path, required=True)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--config", type=Path, required=True)
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
