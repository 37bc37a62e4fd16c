"""Rows of the cluster's suite about requests and deliveries that are done once, whichever node they come to.

Standard library only.
"""

from __future__ import annotations

import http.client
import json
import threading
import time

import amqp_wire as amqp
from amqp_raw import RawAmqp
from cluster_kept import Keeper, end, known_elsewhere
from cluster_nodes import ABSENCE_MS, PATIENCE_S, Cluster, Node, wait_until
from harness import Failure, Listener
from raw import Closed

SECOND = amqp.ubyte(1)
# A wave of requests with the same keys.
KEYS, TRIES = 12, 3


def post(node: Node, topic: str, key: str, payload: str, *fields: tuple[str, str]) -> tuple[int, bool, str]:
    """The status of a POST with a key, whether it was done before, and the content of the answer."""
    connection = http.client.HTTPConnection("127.0.0.1", node.ports["http"], timeout=PATIENCE_S)
    connection.request("POST", f"/v1/topics/{topic}", payload, {"Idempotency-Key": key, **dict(fields)})
    answer = connection.getresponse()
    content = answer.read().decode()
    connection.close()
    return answer.status, answer.getheader("Idempotent-Replayed") == "?1", content


def post_well(node: Node, topic: str, key: str, payload: str, was_done: bool) -> None:
    status, is_replay, content = post(node, topic, key, payload)
    if (status, is_replay) != (204, was_done):
        raise Failure(f"{node.name} answered {status}, {'' if is_replay else 'not '}done before: {content}")


def reader_of(cluster: Cluster, name: str) -> Keeper:
    reader = Keeper(cluster.nodes[1], name)
    reader.want(f"{name}/#")
    known_elsewhere(cluster, cluster.nodes[1])
    return reader


def a_key(cluster: Cluster) -> None:
    """A POST that is repeated at other nodes, also after its node was killed, is done once."""
    first, second, third = cluster.nodes
    reader = reader_of(cluster, "keyed")
    live = Keeper(third, "keyed-live", expiry_s=0)
    live.want("live/#")
    for topic, ears in (("keyed/a", reader), ("live/a", live)):
        post_well(first, topic, topic, "m0", was_done=False)
        for node in (second, third, first):
            post_well(node, topic, topic, "m0", was_done=True)
        # It is another message, or another topic.
        for other in ((topic, "m1"), (f"{topic}/b", "m0")):
            status, _, content = post(third, other[0], topic, other[1])
            if status != 422 or "key-reused" not in content:
                raise Failure(f"another request with the key was answered with {status} {content}")
        if ears.receive(1) != ["m0"]:
            raise Failure(f"the reader got {ears.seen}")
    # Nobody wants it: it is done all the same.
    post_well(first, "nobody/a", "nobody", "m0", was_done=False)
    first.kill()
    for topic in ("keyed/a", "live/a"):
        post_well(third, topic, topic, "m0", was_done=True)
    post_well(second, "nobody/a", "nobody", "m0", was_done=True)
    post_well(third, "keyed/a", "later", "m1", was_done=False)
    if reader.receive(1) != ["m1"]:
        raise Failure(f"the reader got {reader.seen}")
    reader.nothing_more()
    live.nothing_more()
    reader.close()
    live.close()
    first.start()
    cluster.settle()
    post_well(first, "keyed/a", "later", "m1", was_done=True)
    end(cluster, "keyed")


def a_race(cluster: Cluster) -> None:
    """Requests with the same keys come to all nodes at the same moment, and each key is done once."""
    reader = reader_of(cluster, "raced")
    answers: dict[str, list[int]] = {f"race-{key}": [] for key in range(KEYS)}

    def repeat(node: Node) -> None:
        for key, seen in answers.items():
            for _ in range(TRIES):
                status, _, _ = post(node, "raced/a", key, key)
                seen.append(status)

    threads = [threading.Thread(target=repeat, args=(node,)) for node in cluster.nodes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for key, seen in answers.items():
        if len(seen) != TRIES * len(cluster.nodes) or set(seen) - {204, 409}:
            raise Failure(f"{key} was answered with {seen}")
        for node in cluster.nodes:
            post_well(node, "raced/a", key, key, was_done=True)
    if sorted(reader.receive(KEYS)) != sorted(answers):
        raise Failure(f"the reader got {reader.seen}")
    reader.nothing_more()
    reader.close()
    end(cluster, "raced")


def a_kill_between(cluster: Cluster) -> None:
    """A node is killed again and again while it does requests: each is done once, by whoever is asked again."""
    first, second, third = cluster.nodes
    reader = reader_of(cluster, "between")
    done = []
    for turn in range(4):
        unanswered: list[str] = []
        stop = threading.Event()

        def work(turn: int = turn, unanswered: list[str] = unanswered, stop: threading.Event = stop) -> None:
            number = 0
            while not stop.is_set():
                key = f"b{turn}-{number}"
                number += 1
                try:
                    status, _, _ = post(first, "between/a", key, key)
                except OSError:
                    status = 0
                if status == 204:
                    done.append(key)
                else:
                    unanswered.append(key)
                    return

        threads = [threading.Thread(target=work)]
        for thread in threads:
            thread.start()
        time.sleep(0.4 + 0.13 * turn)
        first.kill()
        stop.set()
        for thread in threads:
            thread.join()
        for key in unanswered:
            def is_done(key: str = key) -> bool:
                status, _, content = post(third, "between/a", key, key)
                if status not in (204, 409):
                    raise Failure(f"{key} was answered with {status} {content}")
                return status == 204

            wait_until("the request is done elsewhere", is_done)
            done.append(key)
        first.start()
        cluster.settle()
    if len(done) < 8:
        raise Failure(f"only {len(done)} requests were done")
    if reader.receive(len(done)) != done:
        raise Failure(f"{len(done)} were done, and the reader got {[payload for payload, _, _ in reader.seen]}")
    reader.nothing_more()
    reader.close()
    end(cluster, "between")


def ask(node: Node, method: str, path: str, *fields: tuple[str, str]) -> tuple[int, str]:
    """The status and the content of the answer to a request."""
    connection = http.client.HTTPConnection("127.0.0.1", node.ports["http"], timeout=PATIENCE_S)
    connection.request(method, path, headers=dict(fields))
    answer = connection.getresponse()
    content = answer.read().decode()
    connection.close()
    return answer.status, content


def ask_well(node: Node, method: str, path: str, status: int = 204) -> str:
    got, content = ask(node, method, path)
    if got != status:
        raise Failure(f"{node.name} answered {method} {path} with {got}: {content}")
    return content


class Stream:
    """The response of an HTTP subscription, as long as it is open."""

    def __init__(self, node: Node, query: str, *fields: tuple[str, str]):
        self.connection = http.client.HTTPConnection("127.0.0.1", node.ports["http"], timeout=PATIENCE_S)
        self.connection.request("GET", f"/v1/topics/{query}", headers=dict(fields))
        self.answer = self.connection.getresponse()
        if self.answer.status != 200:
            raise Failure(f"{node.name} answered {self.answer.status}: {self.answer.read()!r}")
        self.session = self.answer.getheader("Sterna-Session") or ""

    def read(self, count: int) -> list[dict]:
        got = []
        while len(got) < count:
            line = self.answer.readline()
            if not line:
                raise Failure(f"the response ended after {got}")
            if line.strip():
                got.append(json.loads(line))
        return got

    def cut(self) -> None:
        self.connection.close()


def told(messages: list[dict]) -> list[tuple[str, bool]]:
    return [(message["payload"], message.get("redelivered", False)) for message in messages]


def ids(cluster: Cluster) -> None:
    """Ids of an HTTP session mean the same at every node, also after its node was killed; and any node is asked about it."""
    first, second, third = cluster.nodes
    writer = Keeper(second, "ids-writer", expiry_s=0)
    here = Stream(first, "ids/%23?session=ids")
    known_elsewhere(cluster, first)
    for payload in ("m0", "m1", "m2", "m3", "m4"):
        writer.publish("ids/a", payload, 1)
    got = here.read(5)
    if told(got) != [(f"m{number}", False) for number in range(5)]:
        raise Failure(f"first came {got}")
    numbers = [message["id"] for message in got]
    if sorted(numbers) != numbers or max(numbers) >= 2**53:
        raise Failure(f"the ids are {numbers}")
    # Another node acknowledges while the response goes on here.
    ask_well(third, "POST", f"/v1/sessions/ids/ack?id={numbers[0]}")
    described = json.loads(ask_well(second, "GET", "/v1/sessions/ids", 200))
    if described["unacknowledged"] != 4 or not described["connected"]:
        raise Failure(f"the session is {described}")
    status, content = ask(third, "POST", f"/v1/sessions/ids/ack?id={numbers[-1] + 2**40}")
    if status != 400:
        raise Failure(f"an id that no message has was answered with {status} {content}")
    # It goes on at another node. What was not acknowledged comes again by the same ids, and says so.
    there = Stream(third, f"ids/%23?session=ids&after={numbers[1]}")
    again = there.read(3)
    if told(again) != [("m2", True), ("m3", True), ("m4", True)] or [one["id"] for one in again] != numbers[2:]:
        raise Failure(f"at the third node came {again}")
    here.cut()
    time.sleep(0.5)
    third.kill()
    there.cut()
    writer.publish("ids/a", "m5", 2)
    # The ids of a dead node, one of them out of order.
    ask_until(second, f"/v1/sessions/ids/ack?id={numbers[2]}")
    back = Stream(second, f"ids/%23?session=ids&after={numbers[3]}")
    last = back.read(2)
    if [one["payload"] for one in last] != ["m4", "m5"] or last[0]["id"] != numbers[4]:
        raise Failure(f"at the second node came {last}")
    ask_well(first, "POST", f"/v1/sessions/ids/ack?id={last[-1]['id']}")
    back.cut()
    # A session that a node has named is found at another.
    unnamed = Stream(first, "ids/b")
    known_elsewhere(cluster, first)
    writer.publish("ids/b", "u0", 1)
    writer.publish("ids/b", "u1", 1)
    number = unnamed.read(2)[0]["id"]
    unnamed.cut()
    resumed = Stream(second, "ids/b", ("Last-Event-ID", f"{unnamed.session}:{number}"))
    if resumed.session != unnamed.session or told(resumed.read(1)) != [("u1", True)]:
        raise Failure(f"another session goes on: {resumed.session}")
    resumed.cut()
    ask_well(first, "DELETE", f"/v1/sessions/{unnamed.session}")
    ask_well(first, "DELETE", "/v1/sessions/ids")
    ask_well(second, "GET", "/v1/sessions/ids", 404)
    writer.close()
    third.start()
    cluster.settle()
    end(cluster)


def ask_until(node: Node, path: str) -> None:
    """A node that does not know yet who has a session is asked again."""

    def is_done() -> bool:
        status, content = ask(node, "POST", path)
        if status not in (204, 503, 409):
            raise Failure(f"{path} was answered with {status} {content}")
        return status == 204

    wait_until("a survivor has the session", is_done, ABSENCE_MS / 1000 + PATIENCE_S)


class Sender:
    """A link on which a client sends exactly once: its receiver settles second."""

    def __init__(self, node: Node, address: str, name: str, unsettled: dict[bytes, object] | None = None):
        self.raw = RawAmqp(Listener(f"amqp://127.0.0.1:{node.ports['amqp']}", None))
        self.raw.opened(container="exact")
        self.raw.send(amqp.begin())
        self.raw.next(amqp.BEGIN)
        to = amqp.composite(amqp.TARGET, address, 2)
        self.raw.send(
            amqp.performative(amqp.ATTACH, name, 0, False, None, SECOND, amqp.source(name), to, unsettled, None, 0)
        )
        answer = self.raw.next(amqp.ATTACH)
        if answer.field(6) is None:
            raise Failure(f"attach was refused with {self.raw.next(amqp.DETACH)}")
        # What the node tells of deliveries that were not settled.
        self.known = answer.field(7) or {}
        self.raw.next(amqp.FLOW)
        self.number = 0

    def send(self, tag: bytes, payload: str) -> int:
        number = self.number
        self.number += 1
        self.raw.send(amqp.transfer(0, number, amqp.data(payload.encode()), tag))
        return number

    def accepted(self) -> None:
        answer = self.raw.next(amqp.DISPOSITION)
        if getattr(answer.field(4), "descriptor", None) != 0x24:
            raise Failure(f"the transfer was answered with {answer}")

    def settle(self, number: int) -> None:
        self.raw.send(amqp.disposition(False, number, None, True))

    def cut(self) -> None:
        self.raw.close()


def a_sender(cluster: Cluster) -> None:
    """A client that sends exactly once by AMQP comes back at other nodes, also after its node was killed, and each
    delivery is done once."""
    first, second, third = cluster.nodes
    reader = reader_of(cluster, "exact")
    sender = Sender(first, "exact/a", "out")
    if sender.known:
        raise Failure(f"a new link knows {sender.known}")
    number = sender.send(b"t0", "m0")
    sender.accepted()
    sender.settle(number)
    sender.send(b"t1", "m1")
    sender.accepted()
    # It is not settled. The node hears of another link of the name while the first is there.
    again = Sender(third, "exact/a", "out", {b"t1": None})
    tags = [bytes(tag) for tag in again.known]
    if tags != [b"t1"]:
        raise Failure(f"the third node knows {again.known}")
    stolen = sender.raw.next(amqp.DETACH)
    if stolen.error != "amqp:link:stolen":
        raise Failure(f"the earlier link ended with {stolen}")
    sender.cut()
    again.send(b"t2", "m2")
    again.accepted()
    third.kill()
    again.cut()
    # The third node died with it: it says that it has taken t2, or takes it again, once.
    back = Sender(second, "exact/a", "out", {b"t2": None})
    if b"t2" not in back.known:
        raise Failure(f"the second node knows {back.known}")
    number = back.send(b"t3", "m3")
    back.accepted()
    back.settle(number)
    if reader.receive(4) != ["m0", "m1", "m2", "m3"]:
        raise Failure(f"the reader got {reader.seen}")
    reader.nothing_more()
    back.raw.send(amqp.detach(0))
    back.raw.next(amqp.DETACH)
    back.cut()
    reader.close()
    third.start()
    cluster.settle()
    fresh = Sender(third, "exact/a", "out", {})
    if fresh.known:
        raise Failure(f"a link that was closed knows {fresh.known}")
    fresh.raw.send(amqp.detach(0))
    fresh.raw.next(amqp.DETACH)
    fresh.cut()
    end(cluster, "exact")


def a_sender_unheard(cluster: Cluster) -> None:
    """A node is killed before it answers a transfer: the client sends it again to another, and it is done once."""
    first, _, third = cluster.nodes
    reader = reader_of(cluster, "unheard")
    expected = []
    for turn in range(3):
        sender = Sender(first, "unheard/a", "unheard")
        number = sender.send(b"a", f"m{turn}a")
        sender.accepted()
        sender.settle(number)
        sender.send(b"b", f"m{turn}b")
        time.sleep(0.002 * turn)
        first.kill()
        sender.cut()
        back = Sender(third, "unheard/a", "unheard", {b"b": None})
        if b"b" not in back.known:
            number = back.send(b"b", f"m{turn}b")
            back.accepted()
            back.settle(number)
        back.raw.send(amqp.detach(0))
        back.raw.next(amqp.DETACH)
        back.cut()
        expected += [f"m{turn}a", f"m{turn}b"]
        first.start()
        cluster.settle()
    if reader.receive(len(expected)) != expected:
        raise Failure(f"the reader got {reader.seen}")
    reader.nothing_more()
    reader.close()
    end(cluster, "unheard")


# Transactions of a row, and messages of one.
TRANSACTIONS, PARTS = 40, 5


def transact(cluster: Cluster) -> None:
    """A node is killed while it does transactions: every reader gets all of each or nothing, in one order."""
    first, second, third = cluster.nodes
    readers = [Keeper(second, "whole"), Keeper(third, "whole-live", expiry_s=0)]
    for reader in readers:
        reader.want("whole/#")
        reader.waiting.clear()
    for node in (second, third):
        known_elsewhere(cluster, node)
    certain: list[int] = []
    for turn in range(3):
        done: list[int] = []

        def work(turn: int = turn, done: list[int] = done) -> None:
            try:
                client = Transactor(first, [f"whole/{part}" for part in range(PARTS)])
                for number in range(TRANSACTIONS * turn, TRANSACTIONS * (turn + 1)):
                    client.transact(number)
                    done.append(number)
            except (OSError, Failure, Closed):
                pass

        thread = threading.Thread(target=work)
        thread.start()
        wait_until("some are done", lambda done=done: len(done) > 5 + turn)
        first.kill()
        thread.join()
        certain += done
        first.start()
        cluster.settle()
    for reader in readers:
        got = []
        while True:
            try:
                got += reader.receive(1, patience_s=2)
            except TimeoutError:
                break
        numbers = [int(payload.split(":")[0]) for payload in got]
        whole = [number for number in dict.fromkeys(numbers) for _ in range(PARTS)]
        if numbers != whole:
            raise Failure(f"a reader got parts: {got}")
        if missing := set(certain) - set(numbers):
            raise Failure(f"a reader misses {missing}")
        if [payload.split(":")[1] for payload in got] != [str(part) for part in range(PARTS)] * (len(got) // PARTS):
            raise Failure(f"a reader got another order: {got}")
        reader.close()
    end(cluster, "whole")


class Transactor:
    """A client of AMQP that sends to some topics in transactions."""

    def __init__(self, node: Node, topics: list[str]):
        self.raw = RawAmqp(Listener(f"amqp://127.0.0.1:{node.ports['amqp']}", None))
        self.raw.begun()
        self.number = 0
        for handle, topic in enumerate(topics):
            self.raw.send(amqp.attach_sender(f"to-{topic}", handle, amqp.target(topic)))
            self.raw.next(amqp.ATTACH)
        self.control = len(topics)
        coordinator = amqp.composite(0x30)
        self.raw.send(amqp.performative(amqp.ATTACH, "control", self.control, False, None, None, amqp.source("c"),
                                        coordinator, None, None, 0))
        self.raw.next(amqp.ATTACH)

    def transfer(self, handle: int, payload: bytes, state=None) -> object:
        number = self.number
        self.number += 1
        self.raw.send(amqp.transfer(handle, number, payload, str(number).encode(), state=state))
        answer = self.raw.next(amqp.DISPOSITION)
        return answer.field(4)

    def transact(self, number: int) -> None:
        """Sends a message to each topic, together."""
        declare = amqp.composite(0x31)
        declared = self.transfer(self.control, b"\0\x53\x77" + declare.raw)
        txn = declared.value[0]
        for handle in range(self.control):
            state = amqp.composite(0x34, txn)
            self.transfer(handle, amqp.data(f"{number}:{handle}".encode()), state)
        discharge = amqp.composite(0x32, txn, False)
        done = self.transfer(self.control, b"\0\x53\x77" + discharge.raw)
        if done.descriptor != 0x24:
            raise Failure(f"the transaction ended with {done}")


assert ABSENCE_MS / 1000 < PATIENCE_S

ROWS = [
    ("once: ids of an HTTP session at other nodes, also when its node is killed", ids),
    ("once: a POST with a key is repeated at other nodes, and its node is killed", a_key),
    ("once: the same keys come to all nodes at the same moment", a_race),
    ("once: a node is killed while it does requests", a_kill_between),
    ("once: a sender of AMQP comes back at other nodes", a_sender),
    ("once: a sender of AMQP, whose node is killed before it answers", a_sender_unheard),
    ("once: a node is killed while it does transactions", transact),
]
