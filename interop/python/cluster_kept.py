"""Rows of the cluster's suite about what a session has: it survives its node, and goes where its client goes.

Standard library only.
"""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import os
import subprocess
import time

import wire
from cluster_nodes import PATIENCE_S, Cluster, Node, ask_nats, wait_until
from cluster_sessions import FOREVER_S, Client
from harness import Failure
from mqtt_client import CONNACK, PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, SUBACK, Connection


QUOTA_EXCEEDED = 0x97
# Messages of a long absence.
BACKLOG = 20_000


class Keeper(Client):
    """A client of MQTT 5.0 whose session outlives its connection, at QoS 2."""

    def __init__(self, node: Node, client_id: str, expiry_s: int = FOREVER_S, **options):
        super().__init__(node, client_id, expiry_s=expiry_s, **options)
        self.seen: list[tuple[str, int, bool]] = []
        # The first byte of the last packet, and packets that came before what was waited for.
        self.head = 0
        self.waiting: list[tuple[int, bytes]] = []
        answer = self.read()
        if answer is None or answer[0] != CONNACK or answer[1][1] != 0:
            raise Failure(f"CONNECT was answered with {answer}")
        self.present = answer[1][0] == 1

    def want(self, topic: str) -> None:
        """Subscribes at QoS 2."""
        self.send(wire.subscribe(1, [(topic, 2)]))
        answer = self.expect(SUBACK)
        if answer[-1] > 2:
            raise Failure(f"SUBSCRIBE was answered with {answer}")

    def read(self, timeout_s: float | None = None) -> tuple[int, bytes] | None:
        told = Connection.read(self, timeout_s)
        if told is None:
            return None
        self.head = told[0]
        return told[0] & 0xF0, told[1]

    def expect(self, kind: int) -> bytes:
        """The next packet of a kind; others wait."""
        for at, (known, body) in enumerate(self.waiting):
            if known & 0xF0 == kind:
                del self.waiting[at]
                return body
        while True:
            told = self.read()
            if told is None:
                raise Failure(f"the connection ended before a packet 0x{kind:02x}")
            if told[0] == kind:
                return told[1]
            self.waiting.append((self.head, told[1]))

    def offer(self, number: int, topic: str, payload: str, qos: int, again: bool = False) -> None:
        self.send(wire.publish(topic, payload.encode(), qos, number, dup=again))

    def publish(self, topic: str, payload: str, qos: int = 1, number: int = 7) -> None:
        """Publishes, and waits for the last acknowledgement."""
        self.offer(number, topic, payload, qos)
        if qos == 1:
            self.check(self.expect(PUBACK))
        else:
            self.check(self.expect(PUBREC))
            self.release(number)

    def release(self, number: int) -> None:
        self.answer(PUBREL, number)
        self.expect(PUBCOMP)

    def answer(self, kind: int, number: int) -> None:
        self.send(wire.ack(kind >> 4, number))

    @staticmethod
    def check(answer: bytes) -> None:
        if len(answer) > 2 and answer[2] >= 0x80:
            raise Failure(f"PUBLISH was answered with {answer}")

    def receive(self, count: int, settles: bool = True, patience_s: float = PATIENCE_S) -> list[str]:
        """The payloads of the next messages, which are acknowledged if `settles`."""
        payloads = []
        while len(payloads) < count:
            if self.waiting:
                head, body = self.waiting.pop(0)
            else:
                told = self.read(patience_s)
                if told is None:
                    raise Failure(f"the connection ended after {payloads}")
                head, body = self.head, told[1]
            kind, qos = head & 0xF0, head >> 1 & 3
            if kind == PUBREL:
                self.answer(PUBCOMP, int.from_bytes(body[:2], "big"))
            if kind != PUBLISH:
                continue
            length = int.from_bytes(body[:2], "big")
            rest = body[2 + length :]
            number = 0
            if qos:
                number, rest = int.from_bytes(rest[:2], "big"), rest[2:]
            payloads.append(rest[1 + rest[0] :].decode())
            self.seen.append((payloads[-1], qos, bool(head & 8)))
            if settles and qos == 1:
                self.answer(PUBACK, number)
            if settles and qos == 2:
                self.answer(PUBREC, number)
        return payloads

    def nothing_more(self, for_s: float = 1.0) -> None:
        """Answers PUBRELs, and expects no message."""
        end = time.monotonic() + for_s
        while time.monotonic() < end:
            try:
                raise Failure(f"too much came: {self.receive(1, patience_s=max(0.05, end - time.monotonic()))}")
            except TimeoutError:
                return


def numbered(begin: int, end: int) -> list[str]:
    return [f"m{number}" for number in range(begin, end)]


def known_elsewhere(cluster: Cluster, node: Node, filters: int = 1) -> None:
    for other in cluster.nodes:
        if other is not node and other.process:
            wait_until("its filter is known", lambda other=other: other.figure("sterna_cluster_filters") >= filters)


def back_at(node: Node, client_id: str, expected: list[str], is_quiet: bool = True) -> Keeper:
    """A client that comes back to its session gets what is expected, and nothing more if that `is_quiet`."""
    back = Keeper(node, client_id)
    if not back.present:
        raise Failure(f"the session is not present at {node.name}")
    if expected and (got := back.receive(len(expected))) != expected:
        raise Failure(f"at {node.name} came {got}")
    if is_quiet:
        back.nothing_more()
    return back


def end(cluster: Cluster, *client_ids: str) -> None:
    """Ends sessions, so that no later row meets them."""
    for client_id in client_ids:
        Keeper(cluster.nodes[1], client_id, expiry_s=0).close()
    for other in cluster.nodes:
        wait_until("its filters are gone", lambda other=other: other.figure("sterna_cluster_filters") == 0)


def records(cluster: Cluster, client_id: str) -> bytes:
    """What NATS keeps of a session, behind the epoch."""
    digest = hashlib.sha256(client_id.encode()).digest()[:16].hex()
    wanted = json.dumps({"last_by_subj": f"sterna.sterna.kept.{digest}"}).encode()
    answer = ask_nats(cluster, "$JS.API.STREAM.MSG.GET.STERNA_sterna_KEPT", wanted)
    if "message" not in answer:
        return b""
    kept = base64.b64decode(answer["message"]["data"])
    behind = 1
    while kept[behind] & 0x80:
        behind += 1
    return kept[behind + 1 :]


def begun_anew(cluster: Cluster) -> None:
    """A clean start at another node removes what is kept, also where its own session ends with the connection."""
    first, second, third = cluster.nodes
    for dies in (False, True):
        reader = Keeper(first, "discarded")
        reader.want("discarded/#")
        wait_until("it is kept", lambda: records(cluster, "discarded"))
        if dies:
            first.kill()
        anew = Keeper(second, "discarded", expiry_s=0, clean=True)
        if anew.present:
            raise Failure("a clean start finds its session present")
        if left := records(cluster, "discarded"):
            raise Failure(f"NATS still keeps {left}")
        anew.close()
        reader.close()
        later = Keeper(third, "discarded", expiry_s=0)
        if later.present:
            raise Failure("the session is there again")
        later.close()
        if dies:
            first.start()
            cluster.settle()
    end(cluster, "discarded")


def a_kill(cluster: Cluster) -> None:
    """SIGKILL of its node: what was published before and meanwhile comes at another node, in order, at QoS 2 once."""
    first, second, third = cluster.nodes
    reader = Keeper(first, "kept")
    if reader.present:
        raise Failure("a new session is present")
    reader.want("kept/#")
    known_elsewhere(cluster, first)
    writer = Keeper(second, "kept-writer", expiry_s=0)
    for number, payload in enumerate(numbered(0, 6)):
        writer.publish("kept/a", payload, 1 + number % 2)
    # Two are settled, two sent, and the others wait.
    got = reader.receive(2)
    if got != numbered(0, 2):
        raise Failure(f"first came {got}")
    time.sleep(0.5)
    first.kill()
    reader.close()
    for number, payload in enumerate(numbered(6, 12)):
        writer.publish("kept/a", payload, 1 + number % 2)
    back = Keeper(third, "kept")
    if not back.present:
        raise Failure("the session is not present at the third node")
    first_time = [payload for payload in back.receive(10) if payload not in numbered(0, 2)]
    while len(first_time) < 10:
        first_time += [payload for payload in back.receive(1) if payload not in numbered(0, 2)]
    if first_time != numbered(2, 12):
        raise Failure(f"at the third node came {first_time}")
    if "m1" in [payload for payload, _, _ in back.seen]:
        raise Failure("a message of QoS 2 came twice")
    writer.publish("kept/b", "after", 2)
    if back.receive(1) != ["after"]:
        raise Failure("its subscription does not hold")
    back.nothing_more()
    back.close()
    writer.close()
    first.start()
    cluster.settle()
    end(cluster, "kept")


def a_handover(cluster: Cluster) -> None:
    """A living node hands a session over, again and again, with messages that were sent and not acknowledged."""
    nodes = cluster.nodes
    reader = Keeper(nodes[0], "handed")
    reader.want("handed/+")
    known_elsewhere(cluster, nodes[0])
    writer = Keeper(nodes[2], "handed-writer", expiry_s=0)
    for payload in numbered(0, 5):
        writer.publish("handed/a", payload, 2)
    reader.receive(5, settles=False)
    later = reader
    for turn in range(1, 5):
        later = Keeper(nodes[turn % 3], "handed")
        if not later.present:
            raise Failure(f"the session is not present in turn {turn}")
        reader.expect_taken_over()
        got = later.receive(5, settles=turn == 4)
        if got != numbered(0, 5):
            raise Failure(f"in turn {turn} came {got}")
        reader = later
    writer.publish("handed/b", "after", 1)
    if later.receive(1) != ["after"]:
        raise Failure("its subscription does not hold")
    later.nothing_more()
    later.close()
    writer.close()
    end(cluster, "handed")


def received_once(cluster: Cluster) -> None:
    """A publication of QoS 2 whose acknowledgement its node died with is done once, whoever gets it again."""
    first, second, third = cluster.nodes
    reader = Keeper(second, "once-reader")
    reader.want("once/#")
    known_elsewhere(cluster, second)
    writer = Keeper(first, "once-writer")
    writer.offer(9, "once/a", "m0", 2)
    writer.expect(PUBREC)
    first.kill()
    writer.close()
    again = Keeper(third, "once-writer")
    if not again.present:
        raise Failure("the publisher's session is not present")
    again.offer(9, "once/a", "m0", 2, again=True)
    again.expect(PUBREC)
    again.release(9)
    again.publish("once/a", "m1", 2, 9)
    if reader.receive(2) != ["m0", "m1"]:
        raise Failure(f"the reader got {reader.seen}")
    reader.nothing_more()
    reader.close()
    again.close()
    first.start()
    cluster.settle()
    end(cluster, "once-writer", "once-reader")


def adopted(cluster: Cluster) -> None:
    """A node dies and does not come back: its sessions go on as those of another, and end when their time is over."""
    first, second, third = cluster.nodes
    reader = Keeper(first, "adopted")
    reader.want("adopted/#")
    ending = Keeper(first, "ending", expiry_s=2)
    ending.want("ending/#")
    known_elsewhere(cluster, first, 2)
    writer = Keeper(second, "adopted-writer", expiry_s=0)
    writer.publish("adopted/a", "m0", 1)

    def owned() -> float:
        return sum(node.figure("sterna_cluster_sessions") for node in cluster.nodes if node.process)

    # Those that other rows have left are among them.
    before = owned()
    first.kill()
    reader.close()
    ending.close()
    writer.publish("adopted/a", "m1", 2)
    taken = cluster.absence_s + PATIENCE_S
    wait_until("a survivor has the session, and the other has ended", lambda: owned() == before - 1, taken)
    writer.publish("adopted/a", "m2", 1)
    first.start()
    cluster.settle()
    writer.publish("adopted/a", "m3", 2)
    if Keeper(second, "ending", expiry_s=0).present:
        raise Failure("a session outlived its time")
    back_at(first, "adopted", numbered(0, 4)).close()
    writer.close()
    end(cluster, "adopted")


def all_nodes(cluster: Cluster) -> None:
    """All nodes stop and start again, and one server of NATS is killed in between: nothing is lost."""
    reader = Keeper(cluster.nodes[0], "all")
    reader.want("all/#")
    known_elsewhere(cluster, cluster.nodes[0])
    writer = Keeper(cluster.nodes[1], "all-writer", expiry_s=0)
    for payload in numbered(0, 3):
        writer.publish("all/a", payload, 2)
    reader.close()
    writer.close()
    time.sleep(0.5)
    for node in cluster.nodes:
        node.stop()
    cluster.nats[0].kill()
    for node in cluster.nodes:
        node.start()
    cluster.nats[0].start()
    cluster.settle()
    writer = Keeper(cluster.nodes[1], "all-writer", expiry_s=0)
    writer.publish("all/a", "m3", 1)
    back_at(cluster.nodes[2], "all", numbered(0, 4)).close()
    writer.close()
    end(cluster, "all")


def a_shared_filter(cluster: Cluster) -> None:
    """All nodes start again, and a client with a clean session takes the filter of a session that is away: that one misses
    nothing."""
    first, second, third = cluster.nodes
    reader = Keeper(first, "sharing")
    reader.want("sharing/#")
    known_elsewhere(cluster, first)
    reader.close()
    time.sleep(0.5)
    for node in cluster.nodes:
        node.kill()
    first.start()
    wait_until("the node listens", lambda: first.page("/healthz"))
    clean = Keeper(first, "sharing-clean", expiry_s=0)
    clean.want("sharing/#")
    wait_until("the node is ready", first.is_ready)
    # These know of the filter what NATS has by now.
    second.start()
    third.start()
    wait_until("the publisher's node is ready", second.is_ready)
    writer = Keeper(second, "sharing-writer", expiry_s=0)
    # From before until after the first node has the session again.
    sent = numbered(0, 40)
    for payload in sent:
        writer.publish("sharing/a", payload, 1)
        time.sleep(0.1)
    cluster.settle()
    back_at(third, "sharing", sent).close()
    clean.close()
    writer.close()
    end(cluster, "sharing")


def a_drain(cluster: Cluster) -> None:
    """A node stops in order: its sessions are there at once elsewhere."""
    first, second, _ = cluster.nodes
    reader = Keeper(first, "drained")
    reader.want("drained/#")
    known_elsewhere(cluster, first)
    writer = Keeper(second, "drained-writer", expiry_s=0)
    writer.publish("drained/a", "m0", 1)
    first.stop()
    reader.close()
    writer.publish("drained/a", "m1", 1)
    back_at(second, "drained", numbered(0, 2)).close()
    writer.close()
    first.start()
    cluster.settle()
    end(cluster, "drained")


def too_much(cluster: Cluster) -> None:
    """A session gets no more subscriptions than NATS keeps of it, and those that it got hold at another node."""
    first, second, third = cluster.nodes
    reader = Keeper(first, "much")
    long = "x" * 900
    taken = 0
    while taken < 2_000:
        reader.send(wire.subscribe(1, [(f"much/{taken + one}/{long}", 1) for one in range(10)]))
        answer = reader.expect(SUBACK)[-10:]
        taken += sum(code <= 2 for code in answer)
        if any(code == QUOTA_EXCEEDED for code in answer):
            break
        if any(code > 2 for code in answer):
            raise Failure(f"SUBSCRIBE was answered with {answer}")
    else:
        raise Failure("nothing was refused")
    if taken < 500:
        raise Failure(f"only {taken} filters were taken")
    writer = Keeper(second, "much-writer", expiry_s=0)
    known_elsewhere(cluster, first, taken)
    reader.close()
    first.kill()
    writer.publish(f"much/{taken - 1}/{long}", "m0", 2)
    back_at(third, "much", ["m0"]).close()
    writer.close()
    first.start()
    cluster.settle()
    if any(node.figure("sterna_cluster_unkept_sessions_total") != 0 for node in cluster.nodes):
        raise Failure("a session had too much")
    end(cluster, "much")


def http_reading(node: Node, count: int) -> tuple[list[str], list[int]]:
    """What an HTTP session gets next, and the ids of these messages."""
    connection = http.client.HTTPConnection("127.0.0.1", node.ports["http"], timeout=PATIENCE_S)
    connection.request("GET", "/v1/topics/kept-http?session=kept-http&qos=1")
    answer = connection.getresponse()
    if answer.status != 200:
        raise Failure(f"{node.name} answered {answer.status}: {answer.read()!r}")
    got = []
    while len(got) < count:
        if line := answer.readline().strip():
            got.append(json.loads(line))
    connection.close()
    return [message["payload"] for message in got], [message["id"] for message in got]


def http_asks(node: Node, method: str, path: str) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", node.ports["http"], timeout=PATIENCE_S)
    connection.request(method, path)
    if (status := connection.getresponse().status) != 204:
        raise Failure(f"{method} {path} was answered with {status}")
    connection.close()


def http_session(cluster: Cluster) -> None:
    """A session of HTTP goes to another node when its node dies, with what it has not acknowledged."""
    first, second, third = cluster.nodes
    writer = Keeper(second, "kept-http-writer", expiry_s=0)
    http_reading(first, 0)
    known_elsewhere(cluster, first)
    for payload in numbered(0, 4):
        writer.publish("kept-http", payload, 1)
    got, ids = http_reading(first, 4)
    if got != numbered(0, 4):
        raise Failure(f"first came {got}")
    http_asks(third, "POST", f"/v1/sessions/kept-http/ack?id={ids[1]}")
    time.sleep(0.5)
    first.kill()
    writer.publish("kept-http", "m4", 2)
    got, ids = http_reading(third, 3)
    if got != numbered(2, 5):
        raise Failure(f"at the third node came {got}")
    http_asks(third, "POST", f"/v1/sessions/kept-http/ack?id={ids[-1]}")
    writer.publish("kept-http", "m5", 1)
    got, _ = http_reading(second, 1)
    if got != ["m5"]:
        raise Failure(f"at the second node came {got}")
    writer.close()
    http_asks(second, "DELETE", "/v1/sessions/kept-http")
    first.start()
    cluster.settle()
    end(cluster)


def amqp_reading(node: Node, count: int) -> list[str]:
    """What a durable subscription of AMQP gets next. The client accepts it, and goes without a word."""
    command = [os.environ["STERNA_BIN"], "sub", node.url("amqp"), "-t", "kept-amqp", "-q", "1", "-c", "-i", "kept-amqp"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as client:
        assert client.stdout
        got = [client.stdout.readline().rstrip("\n") for _ in range(count)]
        time.sleep(1.0)
        client.kill()
        return got


def amqp_terminus(cluster: Cluster) -> None:
    """A durable terminus of AMQP goes to another node when its node dies, and gets each message once."""
    first, second, third = cluster.nodes
    writer = Keeper(second, "kept-amqp-writer", expiry_s=0)
    amqp_reading(first, 0)
    known_elsewhere(cluster, first)
    for payload in numbered(0, 2):
        writer.publish("kept-amqp", payload, 1)
    if (got := amqp_reading(first, 2)) != numbered(0, 2):
        raise Failure(f"first came {got}")
    first.kill()
    for payload in numbered(2, 4):
        writer.publish("kept-amqp", payload, 2)
    if (got := amqp_reading(third, 2)) != numbered(2, 4):
        raise Failure(f"at the third node came {got}")
    writer.publish("kept-amqp", "m4", 1)
    if (got := amqp_reading(second, 1)) != ["m4"]:
        raise Failure(f"at the second node came {got}")
    writer.close()
    first.start()
    cluster.settle()


def restarted(cluster: Cluster, more: str) -> dict[Node, str]:
    """Starts all nodes again with more settings. What they had before."""
    before = {node: node.config.read_text() for node in cluster.nodes}
    for node, text in before.items():
        node.stop()
        node.config.write_text(text + more)
        node.start()
    cluster.settle()
    return before


def a_backlog(cluster: Cluster) -> None:
    """Many messages wait for a session that comes to another node, which asks NATS for many at once."""
    first, second, third = cluster.nodes
    before = restarted(cluster, f"\n[broker]\nmaximum_queued_messages = {5 * BACKLOG}\n")
    try:
        reader = Keeper(first, "backlog")
        reader.want("backlog/#")
        known_elsewhere(cluster, first)
        reader.close()
        writer = Keeper(second, "backlog-writer", expiry_s=0)
        for begin in range(0, BACKLOG, 500):
            for number in range(begin, begin + 500):
                # Each of another topic than those before, so that there are many entries.
                writer.offer(1 + number % 500, f"backlog/{number % 250}", f"m{number}", 1)
            for _ in range(500):
                writer.check(writer.expect(PUBACK))
        asked = third.figure("sterna_cluster_log_requests_total")
        back = Keeper(third, "backlog")
        got = back.receive(BACKLOG)
        asked = third.figure("sterna_cluster_log_requests_total") - asked
        if sorted(got) != sorted(numbered(0, BACKLOG)):
            raise Failure(f"there came {len(set(got))} messages")
        if not 0 < asked <= BACKLOG / 20:
            raise Failure(f"NATS was asked {asked} times")
        back.nothing_more()
        back.close()
        writer.close()
        end(cluster, "backlog")
    finally:
        for node, text in before.items():
            node.config.write_text(text)
        restarted(cluster, "")


ROWS = [
    ("kept: a session of HTTP, whose node is killed", http_session),
    ("kept: a long backlog comes in batches", a_backlog),
    ("kept: more than NATS takes of a session", too_much),
    ("kept: a living node hands a session over", a_handover),
    ("kept: a clean start at another node removes it", begun_anew),
    ("kept: the session's node is killed", a_kill),
    ("kept: a publisher's node is killed at QoS 2", received_once),
    ("kept: a node stops in order", a_drain),
    ("kept: all nodes start again", all_nodes),
    ("kept: all nodes start again, and a clean session takes the filter", a_shared_filter),
    ("kept: a node dies and does not come back", adopted),
    # Its subscription stays: nothing that counts filters follows.
    ("kept: a durable terminus of AMQP, whose node is killed", amqp_terminus),
]
