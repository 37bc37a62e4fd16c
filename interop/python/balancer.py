"""Three nodes behind the balancer of examples/cluster/balancer.nft, with clients whose address changes.

The parts are network namespaces of this process, so nothing of the machine's own network is touched. It needs root, or a
system that lets users make namespaces. Standard library only.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from pathlib import Path

from cluster_nodes import wait_until
from harness import INTEROP, Failure, Report
from namespaces import enter, sh

STERNA = os.environ["STERNA_BIN"]
RULES = INTEROP.parent / "examples" / "cluster" / "balancer.nft"
SERVICE, PORT = "10.0.0.100", 14567
NODES = (1, 2, 3)
# Addresses that the client has one after the other.
FIRST, SECOND = "10.0.0.1", "10.0.0.2"
CLIENTS = 12


def network() -> None:
    sh(
        f"""
        mount -t tmpfs tmpfs /run
        ip link set lo up
        sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=0
        ip netns add client
        ip link add front0 type veth peer name eth0 netns client
        ip address add 10.0.0.254/24 dev front0
        ip link set front0 up
        ip -n client link set lo up
        ip -n client link set eth0 up
        ip -n client address add {FIRST}/24 dev eth0
        ip -n client route add {SERVICE} via 10.0.0.254
        ip link add back0 type bridge
        ip address add 10.0.1.1/24 dev back0
        ip link set back0 up
        """
    )
    for node in NODES:
        sh(
            f"""
            ip netns add node{node}
            ip link add port{node} type veth peer name eth0 netns node{node}
            ip link set port{node} master back0 up
            ip -n node{node} link set lo up
            ip -n node{node} address add {SERVICE}/32 dev lo
            ip netns exec node{node} sysctl -qw net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2
            ip -n node{node} address add 10.0.1.1{node}/24 dev eth0
            ip -n node{node} link set eth0 up
            ip -n node{node} route add default via 10.0.1.1
            """
        )
    sh(f"nft -f {RULES}")


def within(place: str, *command: str) -> list[str]:
    return ["ip", "netns", "exec", place, *command]


def start_node(folder: Path, node: int) -> None:
    folder = folder / f"node-{node}"
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "sterna.toml"
    config.write_text(
        f'data_directory = "{folder / "data"}"\nshards = 2\n\n'
        f'[[listener]]\nurl = "mqtt+quic://{SERVICE}:{PORT}"\n\n[[listener]]\nurl = "mqtt://127.0.0.1:1883"\n\n'
        "[authentication]\nallow_anonymous_beyond_loopback = true\n\n"
        "[authorization]\nallow_default_beyond_loopback = true\n\n"
        "[tls]\nallow_development_certificate_beyond_loopback = true\n\n"
        f'[store]\nenabled = false\n\n[quic]\nserver_id = "0{node}"\n'
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("STERNA_")}
    with (folder / "log").open("wb") as log:
        subprocess.Popen(within(f"node{node}", STERNA, "serve", "--config", str(config)), stdout=log, stderr=log,
                         stdin=subprocess.DEVNULL, env=environment)
    wait_until(f"node {node} listens", lambda: published(node, "ready"))


def published(node: int, topic: str) -> bool:
    command = within(f"node{node}", STERNA, "pub", "mqtt://127.0.0.1:1883", "-t", topic, "-m", str(node), "-q", "1",
                     "--maximum-reconnect-times", "0")
    return subprocess.run(command, capture_output=True, check=False, timeout=30).returncode == 0


class Device:
    """A client that reads, and says when it connects."""

    def __init__(self, number: int):
        self.topic = f"device/{number}"
        command = within("client", STERNA, "sub", f"mqtt+quic://{SERVICE}:{PORT}", "-t", self.topic, "--insecure", "-k", "1",
                         "-d")
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.lines: list[str] = []
        self.said: list[str] = []
        for stream, lines in ((self.process.stdout, self.lines), (self.process.stderr, self.said)):
            threading.Thread(target=lambda stream=stream, lines=lines: lines.extend(iter(stream.readline, "")),
                             daemon=True).start()

    def heard(self, node: int) -> bool:
        """Whether a message of this node arrives."""
        before = len(self.lines)
        published(node, self.topic)
        try:
            wait_until("a message", lambda: len(self.lines) > before, 1)
        except TimeoutError:
            return False
        return True

    def node(self) -> int:
        """The node that it is at."""
        return wait_until(f"{self.topic} is at a node", lambda: next((node for node in NODES if self.heard(node)), 0), 30)

    def connects(self) -> int:
        return sum("CONNACK received" in line for line in self.said)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


def moves(devices: list[Device]) -> None:
    nodes = [device.node() for device in devices]
    if len(set(nodes)) < 2:
        raise Failure(f"all clients are at one node: {nodes}")
    connects = [device.connects() for device in devices]
    if any(count != 1 for count in connects):
        raise Failure(f"connected {connects} times: {devices[0].said}")
    sh(f"ip -n client address add {SECOND}/24 dev eth0; ip -n client address delete {FIRST}/24 dev eth0;"
       f"ip -n client address add {SECOND}/24 dev eth0 2>/dev/null || true;"
       f"ip -n client route replace {SERVICE} via 10.0.0.254")
    for device, node in zip(devices, nodes, strict=True):
        wait_until(f"node {node} reaches {device.topic} at its new address", lambda d=device, n=node: d.heard(n), 30)
    connects = [device.connects() for device in devices]
    if any(count != 1 for count in connects):
        raise Failure(f"connected {connects} times after the move")


def a_dead_node(devices: list[Device]) -> None:
    """What is taken out of the map is served by another."""
    nodes = [device.node() for device in devices]
    dead = nodes[0]
    others = [node for node in NODES if node != dead]
    sh(f"nft delete element netdev sterna_quic nodes '{{ 0x0{dead} }}'")
    places = ", ".join(f"{place} : 10.0.1.1{others[place % 2]}" for place in range(3))
    rule = f"fwd ip to jhash ip saddr . udp sport mod 3 map {{ {places} }} device \"back0\""
    sh(f"nft flush chain netdev sterna_quic newcomer; nft add rule netdev sterna_quic newcomer '{rule}'")
    fresh = [Device(CLIENTS + number) for number in range(4)]
    found = [device.node() for device in fresh]
    for device in fresh:
        device.end()
    if dead in found:
        raise Failure(f"node {dead} was taken out, and has clients: {found}")
    stayed = [device for device, node in zip(devices, nodes, strict=True) if node != dead]
    for device in stayed:
        if device.connects() != 1:
            raise Failure(f"{device.topic} of another node connected {device.connects()} times")


def main() -> None:
    report = Report()
    enter()
    folder = Path(os.environ["STERNA_BUILD"]) / "balancer"
    try:
        network()
    except subprocess.CalledProcessError as error:
        report.skip("a balancer of nftables", f"no namespaces here: {error}")
        report.exit()
    for node in NODES:
        start_node(folder, node)
    devices = [Device(number) for number in range(CLIENTS)]
    for name, row in (("clients that move stay with their node", moves),
                      ("a node is taken out of the balancer", a_dead_node)):
        try:
            row(devices)
        except (Failure, TimeoutError) as error:
            report.not_ok(name, str(error))
        else:
            report.ok(name)
    report.exit()


if __name__ == "__main__":
    main()
