"""The admin API of a cluster: each node tells of all nodes, names those that do not answer, and acts at any of them.

  cluster_admin.py [WORD]...   all rows, or those with one of the words in their name

The operator is urllib of Python's library, and the broker's own command. Standard library only.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

from cluster import run_rows
from cluster_nodes import COUNT, PATIENCE_S, Cluster, Node, ask_nats, wait_until
from harness import Failure

STERNA = os.environ["STERNA_BIN"]
# Clients of each node in the rows of lists.
CLIENTS = 5
# Nobody waits longer for the answer of a node that stands still. No row measures it.
NODE_TIMEOUT_MS = 10_000
# A node that is to be named must not be given up before: each list may wait for its answer.
ADMIN_ABSENCE_MS = 600_000
BUILD = Path(os.environ["STERNA_BUILD"])
PASSWORDS = BUILD / "cluster-admin-passwords"
SETTINGS = f"""
ended_session_ms = {ADMIN_ABSENCE_MS}

[authentication]
password_file = "{PASSWORDS}"
anonymous = true

[admin]
operators = ["anonymous"]
node_timeout_ms = {NODE_TIMEOUT_MS}
maximum_answer_bytes = 16384

[authorization]
admins = ["anonymous"]

[[amqp.queue]]
name = "orders"
"""


def call(node: Node, method: str, path: str, content: dict | None = None) -> tuple[int, dict]:
    """The status and the content of an answer of the admin API."""
    url = f"http://127.0.0.1:{node.ports['admin']}/admin/v1{path}"
    data = None if content is None else json.dumps(content).encode()
    fields = {"sterna-request": "1", "content-type": "application/json"}
    request = urllib.request.Request(url, method=method, data=data, headers=fields)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            text = answer.read()
            return answer.status, json.loads(text) if text else {}
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def get(node: Node, path: str, status: int = 200) -> dict:
    got, value = call(node, "GET", path)
    if got != status:
        raise Failure(f"GET {path} at {node.name} answers {got}: {value}")
    return value


def listed(node: Node, path: str, limit: int = 100) -> tuple[list[dict], list[str]]:
    """All entries of a list, page by page, and the nodes that have not answered."""
    items, silent, after = [], set(), None
    for _ in range(1_000):
        query = {"limit": limit} | ({} if after is None else {"after": after})
        page = get(node, f"{path}{'&' if '?' in path else '?'}{urllib.parse.urlencode(query)}")
        if len(page["items"]) > limit:
            raise Failure(f"{path} has {len(page['items'])} entries for {limit}")
        items += page["items"]
        silent |= set(page["unanswered"])
        after = page["next"]
        if after is None:
            return items, sorted(silent)
    raise Failure(f"{path} does not end")


def listed_by_all(node: Node, path: str, limit: int = 100) -> list[dict]:
    """All entries of a list, once all nodes answer: a busy machine may let one wait for longer than its lease."""
    found: list[dict] = []

    def is_whole() -> bool:
        found[:], silent = listed(node, path, limit)
        return not silent

    wait_until(f"all nodes answer {path} at {node.name}", is_whole)
    return found


def text(data: bytes) -> bytes:
    return struct.pack(">H", len(data)) + data


class Client:
    """A client of MQTT 5 that says little. Standard library, so that no broker's library is in between."""

    def __init__(self, node: Node, name: str, expiry_s: int = 0, user: str | None = None):
        self.node, self.name = node, name
        self.socket = socket.create_connection(("127.0.0.1", node.ports["mqtt"]), timeout=PATIENCE_S)
        properties = b"\x11" + struct.pack(">I", expiry_s)
        flags, login = 0, b""
        if user is not None:
            flags, login = 0xC0, text(user.encode()) + text(b"secret")
        body = text(b"MQTT") + bytes([5, flags]) + struct.pack(">H", 0)
        body += bytes([len(properties)]) + properties + text(name.encode()) + login
        self.send(0x10, body)
        kind, answer = self.receive()
        if kind != 0x20 or answer[1] != 0:
            raise Failure(f"{name} gets {kind:#x} {answer!r} at {node.name}")

    def send(self, kind: int, body: bytes) -> None:
        length, size = b"", len(body)
        while True:
            size, low = divmod(size, 128)
            length += bytes([low | (128 if size else 0)])
            if not size:
                break
        self.socket.sendall(bytes([kind]) + length + body)

    def exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = self.socket.recv(count - len(data))
            if not more:
                raise EOFError
            data += more
        return data

    def receive(self) -> tuple[int, bytes]:
        kind, size, shift = self.exactly(1)[0], 0, 0
        while True:
            byte = self.exactly(1)[0]
            size |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return kind & 0xF0, self.exactly(size)

    def subscribe(self, topic: str, qos: int = 0) -> None:
        self.send(0x82, struct.pack(">HB", 1, 0) + text(topic.encode()) + bytes([qos]))
        while self.receive()[0] != 0x90:
            pass

    def publish(self, topic: str, payload: bytes, qos: int = 0) -> None:
        packet = struct.pack(">H", 1) if qos else b""
        self.send(0x30 | qos << 1, text(topic.encode()) + packet + b"\0" + payload)
        while qos and self.receive()[0] != 0x40:
            pass

    def end(self) -> int | None:
        """The reason with which the broker ends the connection; None for an end without a word."""
        try:
            while True:
                kind, body = self.receive()
                if kind == 0xE0:
                    return body[0] if body else 0
        except (EOFError, ConnectionError):
            return None

    def close(self) -> None:
        self.socket.close()


class Clients:
    """Some clients on each node, which end with the row."""

    def __init__(self, cluster: Cluster, count: int = CLIENTS, long: int = 0):
        names = [(node, f"{node.name}-{'x' * long}{number}") for node in cluster.nodes for number in range(count)]
        self.all = [Client(node, name) for node, name in names]
        self.names = sorted(client.name for client in self.all)

    def __enter__(self) -> Clients:
        return self

    def __exit__(self, *_: object) -> None:
        for client in self.all:
            client.close()


def until_gone(cluster: Cluster) -> None:
    """Waits until no client of an earlier row is left."""
    wait_until("all clients are gone", lambda: listed(cluster.nodes[0], "/clients") == ([], []))


def lists(cluster: Cluster) -> None:
    """Clients, sessions and subscriptions of all nodes at each node, each once, in pages of any size."""
    until_gone(cluster)
    with Clients(cluster) as clients:
        for client in clients.all:
            client.subscribe(f"of/{client.name}")
        for node in cluster.nodes:
            for limit in (1, 4, 100):
                for path, name in (("/clients", "name"), ("/sessions", "name"), ("/subscriptions?topic=of/x", "session"),
                                   ("/clients?sort=name", "name"), ("/clients?sort=messages", "name"),
                                   ("/subscriptions", "session")):
                    items = [item for item in listed_by_all(node, path, limit) if not item[name].startswith("$")]
                    names = sorted(item[name] for item in items)
                    wanted = [] if "topic=" in path else clients.names
                    if names != wanted:
                        raise Failure(f"{path} by {limit} at {node.name}: {names}")
                    if wrong := [item for item in items if not item[name].startswith(item["node"])]:
                        raise Failure(f"{path} at {node.name} has wrong nodes: {wrong}")
            by_name = [item["name"] for item in listed_by_all(node, "/clients?sort=name", 4)]
            if by_name != clients.names:
                raise Failure(f"{node.name} sorts {by_name}")
            mine = [name for name in clients.names if name.startswith(node.name)]
            for query in ("local=yes", f"node={node.name}"):
                for sort in ("", "&sort=name"):
                    got = sorted(item["name"] for item in listed(node, f"/clients?{query}{sort}", 2)[0])
                    if got != mine:
                        raise Failure(f"{query}{sort} at {node.name}: {got}")
        other = cluster.nodes[1]
        got = sorted(item["name"] for item in listed_by_all(cluster.nodes[0], f"/clients?node={other.name}"))
        if got != [name for name in clients.names if name.startswith(other.name)]:
            raise Failure(f"node={other.name}: {got}")
        status, told = call(cluster.nodes[0], "GET", "/clients?node=nobody")
        if (status, told["type"]) != (404, "urn:sterna:problem:no-node"):
            raise Failure(f"an unknown node: {status} {told}")
        if (version := get(cluster.nodes[0], f"/node?node={other.name}"))["node"] != other.name:
            raise Failure(f"/node of {other.name}: {version}")
        shown = subprocess.run(
            [STERNA, "admin", "clients", "list", "-L", cluster.nodes[2].url("admin")],
            capture_output=True, text=True, timeout=PATIENCE_S, check=True,
        )
        lines = shown.stdout.splitlines()
        if not lines[0].startswith("NODE") or len(lines) != 1 + len(clients.all) or shown.stderr:
            raise Failure(f"the command shows {shown.stdout} {shown.stderr}")


def large(cluster: Cluster) -> None:
    """Entries of which few fit an answer come all the same."""
    until_gone(cluster)
    with Clients(cluster, 30, long=100) as clients:
        for node in cluster.nodes:
            for path in ("/clients", "/clients?sort=name"):
                items = listed_by_all(node, path, 1_000)
                if sorted(item["name"] for item in items) != clients.names:
                    raise Failure(f"{node.name} lists {len(items)} of {len(clients.names)}")


def disconnected(cluster: Cluster) -> None:
    """A client of another node is shown and disconnected, by its id and by its name; its session is ended from anywhere."""
    until_gone(cluster)
    first, second, third = cluster.nodes
    client = Client(second, "panel", expiry_s=600)
    client.subscribe("of/panel", 1)
    row = next(item for item in listed(first, "/clients")[0] if item["name"] == "panel")
    if get(third, f"/clients/{urllib.parse.quote(row['id'], safe='')}")["name"] != "panel":
        raise Failure(f"{third.name} does not show {row['id']}")
    session = get(third, "/sessions/panel")
    if (session["node"], session["client"]) != (second.name, row["id"]):
        raise Failure(f"the session: {session}")
    page = get(first, "/sessions/panel/subscriptions")
    if [(one["filter"], one["node"]) for one in page["items"]] != [("of/panel", second.name)]:
        raise Failure(f"its subscriptions: {page}")
    if (done := call(third, "DELETE", f"/clients/{row['id']}"))[0] != 204:
        raise Failure(f"disconnect: {done}")
    if (reason := client.end()) != 0x98:
        raise Failure(f"the client is told {reason}")
    if (again := call(third, "DELETE", f"/clients/{row['id']}"))[0] != 404:
        raise Failure(f"once more: {again}")
    client = Client(second, "panel", expiry_s=600)
    subprocess.run(
        [STERNA, "admin", "clients", "disconnect", "panel", "-L", first.url("admin")],
        timeout=PATIENCE_S, check=True, capture_output=True,
    )
    if (reason := client.end()) != 0x98:
        raise Failure(f"the client is told {reason} by the command")
    if (done := call(first, "DELETE", "/sessions/panel"))[0] != 204:
        raise Failure(f"end: {done}")
    if (gone := call(third, "GET", "/sessions/panel"))[0] != 404:
        raise Failure(f"the session is still there: {gone}")
    audited = [line for line in first.log.read_text().splitlines() if "endSession" in line]
    if not audited:
        raise Failure("the node that was asked has no audit line")


def removed(cluster: Cluster) -> None:
    """All sessions of a user end on all nodes, whichever is asked, also those of clients that are away."""
    until_gone(cluster)
    first, second, third = cluster.nodes
    with Clients(cluster, 1):
        eves = [Client(node, f"eve-{node.name}", expiry_s=600, user="eve") for node in cluster.nodes]
        for eve in eves:
            eve.subscribe("of/eve", 1)
        away = Client(third, "eve-away", expiry_s=600, user="eve")
        away.close()
        wait_until("she is away", lambda: get(first, "/sessions/eve-away?user=eve")["connected"] is False)
        status, told = call(second, "DELETE", "/sessions?user=eve")
        ended = {part["node"]: part["sessions"] for part in told.get("of_nodes", [])}
        wanted = {first.name: 1, second.name: 1, third.name: 2}
        if (status, told.get("sessions"), ended, told.get("unanswered")) != (200, 4, wanted, []):
            raise Failure(f"{status} {told}")
        for eve in eves:
            if eve.end() is None:
                raise Failure(f"{eve.name} is told nothing")
        left = [item["name"] for item in listed_by_all(first, "/sessions") if item["user"] == "eve"]
        if left or len(listed_by_all(first, "/clients")) != COUNT:
            raise Failure(f"{left} are left, or others are gone")
        if not any("endSessionsOf" in line and "4 sessions" in line for line in second.log.read_text().splitlines()):
            raise Failure("the node that was asked has no audit line")
        status, told = call(second, "DELETE", "/sessions")
        if (status, told["type"]) != (400, "urn:sterna:problem:invalid-parameter"):
            raise Failure(f"without a user: {status} {told}")
        shown = subprocess.run(
            [STERNA, "admin", "sessions", "remove", "--user", "eve", "-L", third.url("admin")],
            capture_output=True, text=True, timeout=PATIENCE_S, check=True,
        )
        if shown.stdout != "0 sessions of eve have ended\n":
            raise Failure(f"the command says {shown.stdout}")


def queues(cluster: Cluster) -> None:
    """A queue's depth is told by each node, and its messages are seen and removed from each."""
    def send() -> None:
        for number in range(6):
            subprocess.run(
                [STERNA, "pub", cluster.nodes[0].url("amqp"), "-t", "queue/orders", "-m", str(number), "-q", "1"],
                timeout=PATIENCE_S, check=True, capture_output=True,
            )

    wait_until("a node has the queue", lambda: "messages" in get(cluster.nodes[0], "/queues/orders"))
    send()
    left = 6
    for node in cluster.nodes:
        wait_until("the queue has them", lambda node=node, left=left: get(node, "/queues/orders").get("messages") == left)
        row = next(item for item in listed(node, "/queues")[0] if item["name"] == "orders")
        if row["messages"] != left or row["node"] is None:
            raise Failure(f"{node.name} lists {row}")
        page = get(node, "/queues/orders/messages?limit=3")
        if [message["payload"] for message in page["items"]] != [str(number) for number in range(6 - left, 6)][:3]:
            raise Failure(f"{node.name} shows {page}")
        status, told = call(node, "DELETE", "/queues/orders/messages?limit=2")
        left -= 2
        if (status, told.get("messages"), told.get("node")) != (200, 2, row["node"]):
            raise Failure(f"{node.name} removes {status} {told}")
    if (gone := call(cluster.nodes[0], "GET", "/queues/nothing"))[0] != 404:
        raise Failure(f"no such queue: {gone}")


def banned(cluster: Cluster) -> None:
    """A ban holds on all nodes, is listed with its node, and is lifted everywhere."""
    until_gone(cluster)
    first, second, third = cluster.nodes
    client = Client(third, "pest")
    status, ban = call(first, "POST", "/bans", {"client": "pest", "reason": "a test"})
    if (status, ban.get("node"), [part["node"] for part in ban.get("of_nodes", [])]) != (
        200, first.name, [node.name for node in cluster.nodes]
    ):
        raise Failure(f"ban: {status} {ban}")
    if (reason := client.end()) != 0x98:
        raise Failure(f"the client is told {reason}")
    for node in cluster.nodes:
        try:
            Client(node, "pest")
        except Failure:
            continue
        raise Failure(f"{node.name} lets it in")
    rows, _ = listed(second, "/bans", 2)
    if [row["node"] for row in rows] != [node.name for node in cluster.nodes]:
        raise Failure(f"bans: {rows}")
    if (done := call(third, "DELETE", f"/bans/{rows[1]['id']}"))[0] != 204:
        raise Failure(f"lift: {done}")
    if (rows := listed(second, "/bans"))[0]:
        raise Failure(f"bans are left: {rows}")
    Client(first, "pest").close()


def banned_before(cluster: Cluster) -> None:
    """A ban that was made while a node was away holds there when it is back, and at a node that has not been there; so does its
    end, and a ban has its end in time."""
    until_gone(cluster)
    first, second, third = cluster.nodes
    third.kill()
    for client, expiry in (("early", {}), ("short", {"expiry_s": 40}), ("lifted", {})):
        status, told = call(first, "POST", "/bans", {"client": client, **expiry})
        if status not in (200, 503):
            raise Failure(f"ban: {status} {told}")
    lifted = next(row for row in listed(first, "/bans")[0] if row["client"] == "lifted" and row["node"] == first.name)
    call(first, "DELETE", f"/bans/{lifted['id']}")
    third.start()
    cluster.settle()

    def names(node: Node) -> list[str]:
        return sorted(row["client"] for row in get(node, "/bans?local=yes")["items"])

    wait_until("the bans are known", lambda: names(third) == ["early", "short"])
    try:
        Client(third, "early")
    except Failure:
        pass
    else:
        raise Failure(f"{third.name} lets it in")
    Client(third, "lifted").close()
    # All nodes end, and nobody has a store.
    for node in cluster.nodes:
        node.kill()
    for node in cluster.nodes:
        node.start()
    cluster.settle()
    for node in cluster.nodes:
        wait_until(f"{node.name} has the ban", lambda node=node: "early" in names(node))
        wait_until("a ban has ended in time", lambda node=node: names(node) == ["early"])
    # NATS loses what it has of nodes, and these write the ban again.
    ask_nats(cluster, "$JS.API.STREAM.DELETE.STERNA_sterna_NODES", b"")
    wait_until("the ban is written again", lambda: ask_nats(
        cluster, "$JS.API.STREAM.INFO.STERNA_sterna_NODES", b'{"subjects_filter": "sterna.sterna.ban.*"}',
    ).get("state", {}).get("subjects"))
    cluster.settle()
    third.kill()
    third.start()
    cluster.settle()
    wait_until("who starts later has it", lambda: names(third) == ["early"])
    ban = next(row for row in listed(second, "/bans", 3)[0] if row["node"] == second.name)
    if (done := call(third, "DELETE", f"/bans/{ban['id']}"))[0] != 204:
        raise Failure(f"lift: {done}")
    third.kill()
    third.start()
    cluster.settle()
    for node in cluster.nodes:
        wait_until(f"{node.name} has no ban", lambda node=node: names(node) == [])
    Client(third, "early").close()


def done_by_one(cluster: Cluster) -> None:
    """What one node does alone says which, and the others are as before."""
    until_gone(cluster)
    first, second, _ = cluster.nodes
    for path, content, wanted in (
        ("/publish", {"topic": "one/node", "payload": "x"}, 200), ("/reload?dry_run=yes", None, 200), ("/reload", None, 200)
    ):
        status, told = call(second, "POST", path, content)
        if (status, told.get("node")) != (wanted, second.name):
            raise Failure(f"{path}: {status} {told}")
    shown = subprocess.run(
        [STERNA, "admin", "reload", "-L", first.url("admin")],
        capture_output=True, text=True, timeout=PATIENCE_S, check=True,
    )
    if f"at node {first.name}, and no other" not in shown.stdout + shown.stderr:
        raise Failure(f"the command says {shown.stdout} {shown.stderr}")


class Trace:
    """The events of a trace, as they come."""

    def __init__(self, node: Node, query: str):
        url = f"http://127.0.0.1:{node.ports['admin']}/admin/v1/trace?{query}"
        self.answer = urllib.request.urlopen(url, timeout=PATIENCE_S)
        self.events: list[dict] = []
        threading.Thread(target=self.gather, daemon=True).start()

    def gather(self) -> None:
        try:
            for line in self.answer:
                self.events.append(json.loads(line))
        except (OSError, ValueError, AttributeError):
            pass

    def wait(self, what: str, **wanted: object) -> dict:
        def found() -> dict | None:
            events = list(self.events)
            return next((event for event in events if wanted.items() <= event.items()), None)

        try:
            return wait_until(what, found)
        except TimeoutError as error:
            raise Failure(f"{error}: {self.events}") from error

    def close(self) -> None:
        self.answer.fp.raw._sock.shutdown(socket.SHUT_RDWR)


def traced(cluster: Cluster) -> None:
    """A trace at one node tells what others see, begins at a node that comes back, and ends at all."""
    first, second, third = cluster.nodes
    trace = Trace(first, "topic=house/%23")
    for node in cluster.nodes:
        trace.wait(f"{node.name} is watched", event="watching", node=node.name)
    reader, publisher = Client(third, "panel"), Client(second, "sensor")
    reader.subscribe("house/+")
    wait_until("the reader is known", lambda: get(second, "/topics/house/door")["nodes"] == 1)
    publisher.publish("house/door", b"open", 1)
    trace.wait("it is received", event="received", node=second.name, publisher="sensor")
    trace.wait("it is sent", event="sent", node=third.name, reader="panel")
    topic = get(first, "/topics/house/door")
    if {part["node"]: part["matched"] for part in topic["of_nodes"]}[third.name] != 1:
        raise Failure(f"the readers: {topic}")
    third.kill()
    trace.wait("a killed node is named", event="unanswered", node=third.name)
    third.start()
    cluster.settle()
    def watched() -> bool:
        words = [event["event"] for event in list(trace.events) if event.get("node") == third.name]
        return "unanswered" in words and "watching" in words[words.index("unanswered"):]

    wait_until("it is watched again", watched)
    reader = Client(third, "panel")
    reader.subscribe("house/+")
    # Until the publisher's node knows the reader, there is nobody to send to.
    wanted = {"event": "sent", "node": third.name, "topic": "house/window"}

    def goes_on() -> bool:
        publisher.publish("house/window", b"open", 1)
        return any(wanted.items() <= event.items() for event in list(trace.events))

    wait_until("it goes on there", goes_on)
    trace.close()
    # As many as may be: each node lets go of the one that is over.
    for _ in range(12):
        again = Trace(first, "topic=house/%23")
        for node in cluster.nodes:
            again.wait(f"{node.name} is watched", event="watching", node=node.name)
        again.close()
    for client in (reader, publisher):
        client.close()


def names_alone(node: Node, path: str, silent: Node, clients: list[str] | None = None) -> None:
    """A list names a node that does not answer and, at some time, no other. Of `clients` it has those of all nodes that it
    does not name, each time.

    A node that a busy machine lets wait for longer than its lease is named as well, until it is heard of again.
    """
    def is_alone() -> bool:
        items, named = listed(node, path, 4)
        if silent.name not in named:
            raise Failure(f"{path} at {node.name} names {named}, and not {silent.name}")
        if clients is not None:
            names = sorted(item["name"] for item in items)
            told = [name for name in names if not name.startswith(tuple(named))]
            if told != [name for name in clients if not name.startswith(tuple(named))]:
                raise Failure(f"{path} at {node.name}: {names}, no answer from {named}")
            if of_silent := [name for name in names if name.startswith(silent.name)]:
                raise Failure(f"{path} at {node.name} has {of_silent} of a node that does not answer")
        return named == [silent.name]

    wait_until(f"{path} at {node.name} names {silent.name} alone", is_alone)


def killed(cluster: Cluster) -> None:
    """A killed node is named, and the others are told of; what it may have is not said to be missing."""
    until_gone(cluster)
    with Clients(cluster) as clients:
        first, second, third = cluster.nodes
        row = next(item for item in listed(first, "/clients")[0] if item["node"] == second.name)
        second.kill()
        for node in (first, third):
            for path in ("/clients", "/clients?sort=name", "/sessions", "/subscriptions", "/queues", "/bans"):
                names_alone(node, path, second, clients.names if path.startswith("/clients") else None)
        for method, path in (("GET", f"/clients/{row['id']}"), ("DELETE", f"/clients/{row['id']}"),
                             ("GET", "/sessions/nobody"), ("GET", f"/node?node={second.name}")):
            status, told = call(first, method, path)
            if status != 503 or second.name not in told["detail"]:
                raise Failure(f"{method} {path}: {status} {told}")

        def is_alone() -> bool:
            status, told = call(first, "DELETE", "/sessions?user=eve")
            if status != 200 or second.name not in told["unanswered"]:
                raise Failure(f"sessions of a user: {status} {told}")
            return told["unanswered"] == [second.name]

        wait_until("it alone does not end sessions of a user", is_alone)
        shown = subprocess.run(
            [STERNA, "admin", "clients", "list", "-L", first.url("admin")],
            capture_output=True, text=True, timeout=PATIENCE_S, check=True,
        )
        if f"no answer from node {second.name}" not in shown.stderr:
            raise Failure(f"the command says {shown.stderr}")
        second.start()
        cluster.settle()
        wait_until("all answer again", lambda: listed(first, "/clients")[1] == [])


def still(cluster: Cluster) -> None:
    """A node that stands still is named, and keeps nobody from being told of the others."""
    until_gone(cluster)
    with Clients(cluster) as clients:
        first, second, third = cluster.nodes
        second.stand_still()
        try:
            for path in ("/clients", "/clients?sort=name"):
                names_alone(first, path, second, clients.names)
            if get(third, "/clients?local=yes")["unanswered"]:
                raise Failure("a node waits for others though it is asked alone")
        finally:
            second.send(signal.SIGCONT)
        wait_until("all answer again", lambda: listed(first, "/clients")[1] == [])


def hostile(cluster: Cluster) -> None:
    """What is no question, sent to a node's door by who may publish in NATS, neither ends it nor is obeyed."""
    first = cluster.nodes[0]
    subject = f"sterna.sterna.door.{first.name}"
    questions = [
        b"", b"\x80", b"\xff" * 20, b"\x80\x80\x01what", b"\x80\x80\x01{}", b"\x80\x80\x01[[[[",
        b'\x80\x80\x01{"method":"POST","target":"/admin/v1/drain","node":"x","role":"admin"}',
        b'\x80\x80\x01{"method":"GET","target":"/admin/v1/clients?limit=x","node":"x","role":"viewer"}',
        b'\x80\x80\x01{"method":"GET","target":"","node":"x","role":"viewer","trace":{"key":"k","client":null,"topic":"a/#/b"}}',
    ]
    with socket.create_connection(("127.0.0.1", cluster.servers[0]), timeout=PATIENCE_S) as nats:
        lines = nats.makefile("rb")
        lines.readline()
        nats.sendall(b'CONNECT {"verbose":false,"pedantic":false}\r\nSUB _INBOX.hostile 1\r\n')
        for question in questions:
            nats.sendall(f"PUB {subject} _INBOX.hostile {len(question)}\r\n".encode() + question + b"\r\n")
        nats.sendall(b"PING\r\n")
        while not lines.readline().startswith(b"PONG"):
            pass
    listed_by_all(cluster.nodes[1], "/clients")
    wait_until(f"{first.name} is ready", first.is_ready)


ROWS = [
    ("lists of all nodes", lists),
    ("long entries", large),
    ("a client of another node", disconnected),
    ("sessions of a user", removed),
    ("a queue at any node", queues),
    ("bans of all nodes", banned),
    ("bans of before", banned_before),
    ("what one node does alone", done_by_one),
    ("a trace of all nodes", traced),
    ("what is no question", hostile),
    ("a node is killed", killed),
    ("a node stands still", still),
]


def told(row, cluster: Cluster) -> None:
    """Runs a row; an answer of another form is a failure of it."""
    try:
        row(cluster)
    except (KeyError, ValueError, TypeError, StopIteration, OSError) as error:
        raise Failure(f"{type(error).__name__}: {error}") from error


def main() -> None:
    BUILD.mkdir(parents=True, exist_ok=True)
    command = [STERNA, "passwd", "-b", "-c", "--iterations", "4096", str(PASSWORDS), "eve", "secret"]
    PASSWORDS.unlink(missing_ok=True)
    subprocess.run(command, check=True, capture_output=True)
    with Cluster(BUILD / "cluster-admin", SETTINGS, ADMIN_ABSENCE_MS) as cluster:
        run_rows(ROWS, lambda row: told(row, cluster), cluster.mend)


if __name__ == "__main__":
    sys.exit(main())
