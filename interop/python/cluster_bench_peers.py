"""Clusters of other brokers on one machine, for `cluster_bench.py`: three servers each, with MQTT on loopback.

A peer whose program is not here is left out. `rmqttd` is that of crates.io (`cargo install rmqttd`), `rabbitmq-server`
Debian's. Standard library only.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

from cluster_nodes import COUNT, Nats, Program, Programs, free_ports, wait_until
from mqtt_client import Client

RABBITMQ = "/usr/lib/rabbitmq/bin/rabbitmq-server"


def answers(port: int) -> bool:
    try:
        Client(port, "probe").close()
    except (OSError, RuntimeError):
        return False
    return True


class Peer(Programs):
    """Three servers. `ports` are those of MQTT, `levels` the levels of QoS that they have."""

    name: str
    ports: list[int]
    levels: tuple[int, ...] = (0, 1, 2)

    @staticmethod
    def lacks() -> str | None:
        """Why it cannot be measured here."""
        return None

    def settle(self) -> None:
        for port in self.ports:
            wait_until(f"{self.name} is ready", lambda port=port: answers(port))


class NatsMqtt(Peer):
    """Servers of NATS with their own MQTT."""

    name = "NATS MQTT"

    def __init__(self, folder: Path):
        servers, routes, self.ports = free_ports(COUNT), free_ports(COUNT), free_ports(COUNT)
        self.programs = [
            Nats(folder, number, servers, routes, f"mqtt {{ listen: 127.0.0.1:{port} }}\n")
            for number, port in enumerate(self.ports)
        ]


class RabbitProgram(Program):
    """A node of RabbitMQ. Its program is a script, whose child is Erlang's machine."""

    def __init__(self, folder: Path, number: int, mqtt: int, distribution: int, mapper: int):
        own = folder / f"node-{number}"
        own.mkdir(parents=True)
        self.port, self.pid_file, self.mapper = mqtt, own / "pid", mapper
        nodes = "".join(
            f"cluster_formation.classic_config.nodes.{each} = bench{each}@localhost\n" for each in range(1, COUNT + 1)
        )
        (own / "rabbitmq.conf").write_text(
            f"listeners.tcp = none\nmqtt.listeners.tcp.1 = 127.0.0.1:{mqtt}\nmqtt.allow_anonymous = true\n"
            "mqtt.default_user = guest\nmqtt.default_pass = guest\nmqtt.prefetch = 10000\n"
            "mqtt.durable_queue_type = quorum\ndisk_free_limit.absolute = 50MB\n"
            f"cluster_formation.peer_discovery_backend = classic_config\n{nodes}"
        )
        (own / "enabled_plugins").write_text("[rabbitmq_mqtt].\n")
        environment = {
            # The nodes have one cookie.
            "HOME": str(folder),
            "RABBITMQ_NODENAME": f"bench{number}@localhost",
            "RABBITMQ_MNESIA_BASE": str(own / "data"),
            "RABBITMQ_LOG_BASE": str(own),
            "RABBITMQ_CONFIG_FILE": str(own / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(own / "enabled_plugins"),
            "RABBITMQ_PID_FILE": str(self.pid_file),
            "RABBITMQ_DIST_PORT": str(distribution),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(mapper),
        }
        super().__init__([RABBITMQ], own / "log", environment)

    def start(self) -> None:
        super().start()
        # One after the other: of nodes that start together, none finds a cluster to join.
        wait_until(f"RabbitMQ's node on port {self.port} is ready", lambda: answers(self.port))

    def pid(self) -> int:
        return int(self.pid_file.read_text())

    def kill(self) -> None:
        if self.process and self.pid_file.exists():
            subprocess.run(["kill", "-9", str(self.pid())], stderr=subprocess.DEVNULL)
        super().kill()


class RabbitMq(Peer):
    """Nodes of RabbitMQ. Sessions that outlive their connections are quorum queues. It has no QoS 2."""

    name, levels = "RabbitMQ", (0, 1)

    def __init__(self, folder: Path):
        folder.mkdir(parents=True)
        cookie = folder / ".erlang.cookie"
        cookie.write_text("bench")
        cookie.chmod(0o400)
        self.ports, distribution, (self.mapper,) = free_ports(COUNT), free_ports(COUNT), free_ports(1)
        self.programs = [
            RabbitProgram(folder, number + 1, self.ports[number], distribution[number], self.mapper)
            for number in range(COUNT)
        ]

    @staticmethod
    def lacks() -> str | None:
        return None if Path(RABBITMQ).exists() else "not installed (Debian: apt-get install rabbitmq-server)"

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        # The nodes' mapper of ports outlives them, and ends when it has seen that they are gone.
        environment = {**os.environ, "ERL_EPMD_PORT": str(self.mapper), "ERL_EPMD_ADDRESS": "127.0.0.1"}
        for _ in range(50):
            answer = subprocess.run(["epmd", "-kill"], env=environment, capture_output=True, text=True, check=False)
            if "not allowed" not in answer.stdout + answer.stderr:
                break
            time.sleep(0.1)


class Rmqtt(Peer):
    """Nodes of RMQTT, which agree on sessions by Raft. They keep messages in memory alone."""

    name = "RMQTT"

    def __init__(self, folder: Path):
        self.ports, calls, rafts, pages = (free_ports(COUNT) for _ in range(4))
        self.programs = []

        def addresses(ports: list[int]) -> list[str]:
            return [f"{number}@127.0.0.1:{port}" for number, port in enumerate(ports, 1)]

        for number in range(1, COUNT + 1):
            own = folder / f"node-{number}"
            own.mkdir(parents=True)
            (own / "rmqtt.toml").write_text(
                f'node.id = {number}\nrpc.server_addr = "127.0.0.1:{calls[number - 1]}"\nlog.to = "off"\n'
                f'plugins.dir = "{own}"\nplugins.default_startups = ["rmqtt-cluster-raft"]\n'
                f'listener.tcp.external.enable = true\nlistener.tcp.external.addr = "127.0.0.1:{self.ports[number - 1]}"\n'
                "listener.tcp.external.allow_anonymous = true\n"
                # With its defaults of 16 and 1,000 it drops messages of these publishers.
                "listener.tcp.external.max_inflight = 1000\nlistener.tcp.external.max_mqueue_len = 100000\n"
            )
            (own / "rmqtt-cluster-raft.toml").write_text(
                f"node_grpc_addrs = {addresses(calls)}\nraft_peer_addrs = {addresses(rafts)}\n"
                # Without a word about it, each node that finds no other begins a cluster of its own.
                f'laddr = "127.0.0.1:{rafts[number - 1]}"\nleader_id = 1\n'
            )
            (own / "rmqtt-http-api.toml").write_text(f'http_laddr = "127.0.0.1:{pages[number - 1]}"\n')
            self.programs.append(Program(["rmqttd", "-f", str(own / "rmqtt.toml")], own / "log"))

    @staticmethod
    def lacks() -> str | None:
        return None if shutil.which("rmqttd") else "not on the search path (cargo install rmqttd)"


PEERS = (NatsMqtt, RabbitMq, Rmqtt)
