"""Rows of the cluster's suite about sessions: one owner at a time, and wills of nodes that go.

The rows look at what a connection of MQTT 5.0 and 3.1.1 is told, byte by byte. Standard library only.
"""

from __future__ import annotations

import http.client
import signal
import subprocess
import time
from pathlib import Path

import wire
from cluster_nodes import COUNT, PATIENCE_S, Cluster, Node, wait_until
from harness import Failure
from mqtt_client import CONNACK, DISCONNECT, PUBACK, PUBLISH, Connection

TAKEN_OVER, SERVER_UNAVAILABLE = 0x8E, 0x88
# How often a client goes from one node to another.
HOPS = 300
# For ever, as a Session Expiry Interval.
FOREVER_S = 0xFFFFFFFF
# The default of `cluster.session_lease_ms`, in seconds.
SESSION_LEASE_S = 1.5


class Client(Connection):
    """A connection. Packets of the broker are (type, body); the end of the connection is None."""

    def __init__(self, node: Node, client_id: str, level: int = 5, expiry_s: int = 0, clean: bool = False, will: str = "",
                 will_qos: int = 0, **options):
        super().__init__(
            node.ports["mqtt"], client_id, level, PATIENCE_S, clean=clean, props={"session_expiry": expiry_s},
            will={"topic": will, "payload": client_id.encode(), "qos": will_qos} if will else None, **options,
        )

    def read(self, timeout_s: float | None = None) -> tuple[int, bytes] | None:
        told = super().read(timeout_s)
        return told and (told[0] & 0xF0, told[1])

    def admitted(self) -> Client:
        """Expects a CONNACK that lets the client in."""
        answer = self.read()
        if answer is None or answer[0] != CONNACK or answer[1][1:2] != b"\x00":
            raise Failure(f"CONNECT was answered with {answer}")
        return self

    def publish(self, topic: str) -> None:
        self.send(wire.publish(topic, b"x", 1, 7))

    def expect_taken_over(self) -> None:
        told = self.read()
        if self.level == 5 and (told is None or told[0] != DISCONNECT or told[1][:1] != bytes([TAKEN_OVER])):
            raise Failure(f"the earlier connection was told {told}")
        if self.level == 4 and told is not None:
            raise Failure(f"the earlier connection was told {told}")
        if self.level == 5 and self.read() is not None:
            raise Failure("the earlier connection goes on")


def moves(cluster: Cluster) -> None:
    """A client that comes to another node ends its earlier connection, which is handed over: no lease has to end."""
    took_s = []
    for level, expiry_s, clean in ((5, 0, True), (5, FOREVER_S, False), (4, 0, True), (4, 0, False)):
        client_id = f"moves-{level}-{expiry_s}-{clean}"
        earlier = Client(cluster.nodes[0], client_id, level, expiry_s, clean).admitted()
        for node in (1, 2, 0):
            begun = time.monotonic()
            later = Client(cluster.nodes[node], client_id, level, expiry_s, clean).admitted()
            took_s.append(time.monotonic() - begun)
            earlier.expect_taken_over()
            earlier = later
        earlier.close()
    # The quickest of them, whatever else the machine does.
    if min(took_s) > SESSION_LEASE_S:
        raise Failure(f"each client was let in after {min(took_s):.1f} s and more")


def hops(cluster: Cluster) -> None:
    """A client leaves one node in order and comes to another at once, when the end of its session is being written: nobody
    else has it, and it is let in."""
    link = Client(cluster.nodes[0], "hops", will="will/hops").admitted()
    for number in range(1, HOPS):
        link.send(wire.disconnect())
        link.close()
        link = Client(cluster.nodes[number % COUNT], "hops", will="will/hops")
        try:
            link.admitted()
        except Failure as error:
            raise Failure(f"hop {number}: {error}") from error
    link.close()


def subscribe_http(node: Node, name: str) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", node.ports["http"], timeout=PATIENCE_S)
    connection.request("GET", f"/v1/topics/moves?session={name}&qos=1")
    return connection.getresponse()


def http_moves(cluster: Cluster) -> None:
    """A session of HTTP, too: the response at the earlier node ends."""
    earlier = subscribe_http(cluster.nodes[0], "moves")
    for node in (1, 2, 0):
        later = subscribe_http(cluster.nodes[node], "moves")
        if later.status != 200:
            raise Failure(f"{cluster.nodes[node].name} answered {later.status}")
        # It ends, whatever was in it before.
        while earlier.read1():
            pass
        earlier = later
    earlier.close()
    connection = http.client.HTTPConnection("127.0.0.1", cluster.nodes[0].ports["http"], timeout=PATIENCE_S)
    connection.request("DELETE", "/v1/sessions/moves")
    if connection.getresponse().status >= 300:
        raise Failure("the session is not to be deleted")
    for node in cluster.nodes:
        wait_until("its filter is gone", lambda node=node: node.figure("sterna_cluster_filters") == 0)


def many_moves(cluster: Cluster) -> None:
    """Two nodes at once want one session, again and again: one connection is left each time."""
    for number in range(20):
        client_id = f"both-{number % 3}"
        both = [Client(cluster.nodes[at], client_id, expiry_s=FOREVER_S) for at in (number % 3, (number + 1) % 3)]
        left = list(both)

        def one_has_ended(left: list[Client] = left) -> bool:
            left[:] = [client for client in left if not has_ended(client)]
            return len(left) < 2

        wait_until(f"one of two connections ends in round {number}", one_has_ended)
        if not left or has_ended(left[0]):
            raise Failure(f"both connections have ended in round {number}")
        for client in both:
            client.close()


def has_ended(client: Client) -> bool:
    """Whether the client has been told that its connection ends, or the connection has ended."""
    try:
        while (told := client.read(0.3)) is not None:
            if told[0] != CONNACK or told[1][1] != 0:
                return True
    except TimeoutError:
        return False
    return True


def a_dead_node(cluster: Cluster) -> None:
    """A node is killed: its clients are let in elsewhere within the lease, and each will is published once."""
    first, second, third = cluster.nodes
    reader = Client(third, "wills").admitted()
    reader.subscribe(["will/#"], 1)
    wait_until("the wills' reader is known", lambda: first.figure("sterna_cluster_filters") == 1)
    wait_until("the wills' reader is known", lambda: second.figure("sterna_cluster_filters") == 1)
    # Connected until the node dies: it would publish the will of a connection that is lost before.
    clients = [
        Client(second, client_id, expiry_s=FOREVER_S, will=f"will/{client_id}").admitted()
        for client_id in ("returns", "stays-away")
    ]
    second.kill()
    back = Client(first, "returns", expiry_s=FOREVER_S).admitted()
    # The lease is over, and not the absence: its node is not given up yet.
    known = first.figure("sterna_cluster_nodes_here") + first.figure("sterna_cluster_nodes_away")
    if known != COUNT - 1:
        raise Failure(f"the client was let in when of the other nodes {known} were known")
    wills = []
    while len(wills) < 2:
        told = reader.read(cluster.absence_s + PATIENCE_S)
        if told is None:
            raise Failure("the wills' reader was cut off")
        if told[0] == PUBLISH:
            wills.append(told[1])
    try:
        raise Failure(f"after the wills came {reader.read(2)}")
    except TimeoutError:
        pass
    if [b"returns" in wills[0], b"stays-away" in wills[1]] != [True, True]:
        raise Failure(f"the wills were {wills}")
    second.start()
    cluster.settle()
    Client(second, "stays-away", expiry_s=FOREVER_S).admitted().close()
    for client in (back, reader, *clients):
        client.close()


def a_stop_behind_late_nats(cluster: Cluster) -> None:
    """A node is asked to stop while NATS is late: the will of a connection that was taken over there is not lost with it, nor is
    that of the next one."""
    _, second, third = cluster.nodes
    text = second.config.read_text()
    second.stop()
    # It waits for half of it, however long NATS takes on this machine.
    second.config.write_text(f"{text}\n[network]\nshutdown_timeout_ms = {round(PATIENCE_S * 2e3)}\n")
    second.start()
    cluster.settle()
    reader = Client(third, "late-wills").admitted()
    reader.subscribe(["late/#"], 1)
    wait_until("the wills' reader is known", lambda: second.figure("sterna_cluster_filters") == 1)
    earlier = Client(second, "late", clean=True, will="late/earlier", will_qos=1).admitted()
    try:
        for server in cluster.nats:
            server.stand_still()
        later = Client(second, "late", clean=True, will="late/later", will_qos=1).admitted()
        earlier.expect_taken_over()
        second.send(signal.SIGTERM)
        assert second.process
        # The longest that a node which has nothing to wait for takes.
        second.process.wait(3)
        raise Failure("the node does not wait for NATS")
    except subprocess.TimeoutExpired:
        pass
    finally:
        for server in cluster.nats:
            server.send(signal.SIGCONT)
    if second.ended() != 0:
        raise Failure("the node did not end in order")
    wills = []
    while len(wills) < 2:
        told = reader.read(cluster.absence_s + PATIENCE_S)
        if told is None:
            raise Failure("the wills' reader was cut off")
        if told[0] == PUBLISH:
            wills.append(told[1])
    if sorted(b"later" in will for will in wills) != [False, True]:
        raise Failure(f"the wills were {wills}")
    second.config.write_text(text)
    second.start()
    cluster.settle()
    later.close()
    reader.close()


def stands_still(node: Node) -> bool:
    assert node.process
    threads = Path(f"/proc/{node.process.pid}/task").glob("*/stat")
    return all(thread.read_text().rsplit(")", 1)[1].split()[0] == "T" for thread in threads)


def a_sleeper(cluster: Cluster) -> None:
    """A node stands still while its client goes elsewhere: it acknowledges nothing for it when it goes on."""
    first, second, _ = cluster.nodes
    earlier = Client(second, "sleeper", expiry_s=FOREVER_S).admitted()
    second.stand_still()
    try:
        # Threads stop one after the other.
        wait_until("all its threads stand still", lambda: stands_still(second))
        earlier.publish("sleeper/while-it-stands-still")
        later = Client(first, "sleeper", expiry_s=FOREVER_S).admitted()
    finally:
        second.send(signal.SIGCONT)
    earlier.expect_taken_over()
    later.publish("sleeper/owner")
    told = later.read()
    if told is None or told[0] != PUBACK:
        raise Failure(f"the owner was told {told}")
    later.close()
    cluster.settle()


def without_nats(cluster: Cluster) -> None:
    """Without NATS, sessions that outlive their connection are refused, and others are let in."""
    first = cluster.nodes[0]
    here = Client(first, "was-here", expiry_s=FOREVER_S).admitted()
    for server in cluster.nats:
        server.kill()
    try:
        wait_until("the node says so", lambda: "no server of NATS" in first.page("/readyz"))
        time.sleep(3)
        refused = Client(first, "lasting", expiry_s=FOREVER_S).read()
        if refused is None or refused[0] != CONNACK or refused[1][1] != SERVER_UNAVAILABLE:
            raise Failure(f"CONNECT was answered with {refused}")
        passing = Client(first, "passing", clean=True).admitted()
        passing.publish("without/nats")
        told = passing.read()
        if told is None or told[0] != PUBACK:
            raise Failure(f"who has no session beyond the connection was told {told}")
        here.publish("without/nats")
        try:
            raise Failure(f"whose session may be elsewhere was told {here.read(1)}")
        except TimeoutError:
            pass
    finally:
        for server in cluster.nats:
            server.start()
    cluster.settle()
    told = here.read()
    if told is None or told[0] != PUBACK:
        raise Failure(f"when NATS is back it was told {told}")
    # The one that was let in without NATS is known now, and goes where its client goes.
    Client(cluster.nodes[1], "passing", clean=True).admitted().close()
    passing.expect_taken_over()
    here.close()


ROWS = [
    ("sessions: a client comes to another node", moves),
    ("sessions: a client leaves one node and comes to another at once", hops),
    ("sessions: a subscription of HTTP comes to another node", http_moves),
    ("sessions: two nodes want one at once", many_moves),
    ("sessions: a node is killed, and its wills", a_dead_node),
    ("sessions: a node stops while NATS is late, and its wills", a_stop_behind_late_nats),
    ("sessions: a node stands still", a_sleeper),
    ("sessions: all servers of NATS are killed", without_nats),
]
