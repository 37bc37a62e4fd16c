"""Queues of AMQP on three nodes and three servers of NATS: producers and consumers on any nodes, and the death of the node that
has a queue.

  cluster_queues.py [WORD]...   all rows, or those with one of the words in their name

The clients are python-qpid-proton, connections of MQTT, and the broker's own command.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

from proton import Delivery, Message, ProtonException, Timeout
from proton.reactor import Copy
from proton.utils import BlockingConnection, SendException

from cluster import run_rows
from cluster_groups import Member
from cluster_nodes import PATIENCE_S, Cluster, Node, wait_until
from harness import Failure

STERNA = os.environ["STERNA_BIN"]
# Messages of a ledger, and of a queue that is full.
LEDGER, MOST = 1_500, 1_000
# How many more may be in a full queue: what was under way when it was said that it is full.
OVERSHOOT = 200
QUEUES = ("orders", "patient", "fragile", "lost", "urgent", "alarms", "later")
# How long nothing must come.
SILENCE_S = 1.0
FAILURES = 3
SETTINGS = f"""
[admin]
operators = ["anonymous"]

[broker]
maximum_group_queued_messages = {MOST}

[[amqp.queue]]
name = "orders"

[[amqp.queue]]
name = "patient"

[[amqp.queue]]
name = "fragile"
maximum_deliveries = {FAILURES}
dead_letter = "lost"

[[amqp.queue]]
name = "urgent"
priorities = true

[[amqp.queue]]
name = "alarms"
filter = "sensors/+/alarm"
"""


def connect(node: Node) -> BlockingConnection:
    return BlockingConnection(node.url("amqp"), timeout=PATIENCE_S)


def send(node: Node, queue: str, bodies: list[str], **options) -> None:
    """Sends messages, each of which is accepted."""
    connection = connect(node)
    sender = connection.create_sender(f"queue/{queue}")
    for body in bodies:
        sender.send(Message(body=body, durable=True, **options))
    connection.close()


def text(message: Message) -> str:
    """The body of a message, which other protocols publish as bytes."""
    return message.body if isinstance(message.body, str) else bytes(message.body).decode()


class Consumer:
    """A receiver that gathers what it gets, and tells what becomes of it."""

    def __init__(self, node: Node, queue: str, credit: int = 10, **options):
        self.node = node
        self.connection = connect(node)
        self.receiver = self.connection.create_receiver(f"queue/{queue}", credit=credit, **options)

    def next(self, patience_s: float = PATIENCE_S) -> Message | None:
        try:
            return self.receiver.receive(timeout=patience_s)
        except Timeout:
            return None

    def must(self) -> Message:
        message = self.next()
        if message is None:
            raise Failure(f"nothing came at {self.node.name}")
        return message

    def accept(self) -> None:
        self.receiver.accept()

    def fail(self) -> None:
        delivery = self.receiver.fetcher.unsettled.popleft()
        delivery.local.failed = True
        delivery.update(Delivery.MODIFIED)
        delivery.settle()

    def drain(self, count: int) -> list[str]:
        bodies = []
        for _ in range(count):
            bodies.append(text(self.must()))
            self.accept()
        return bodies

    def is_silent(self) -> None:
        message = self.next(SILENCE_S)
        if message is not None:
            raise Failure(f"{message.body!r} came at {self.node.name}")

    def close(self) -> None:
        try:
            self.connection.close()
        except Exception:  # noqa: BLE001: its node may be dead
            pass


def look_up(node: Node, queue: str) -> dict:
    return json.loads(node.page(f"/admin/v1/queues/{queue}"))


def owner_of(cluster: Cluster, queue: str, but: Node | None = None) -> Node:
    """The node that has a queue, as all nodes that live say."""
    def found() -> Node | None:
        live = [node for node in cluster.nodes if node.process and node is not but]
        names = {look_up(node, queue).get("node") for node in live if node.is_ready()}
        named = [node for node in live if names == {node.name}]
        return named[0] if named and "messages" in look_up(named[0], queue) else None

    return wait_until(f"a node has {queue}", found)


def others(cluster: Cluster, node: Node) -> list[Node]:
    return [other for other in cluster.nodes if other is not node]


def waiting(cluster: Cluster, queue: str, count: int) -> None:
    """Waits until so many messages wait in a queue, whichever node has it."""
    seen = None

    def is_so() -> bool:
        nonlocal seen
        seen = look_up(owner_of(cluster, queue), queue).get("messages")
        return seen == count

    try:
        wait_until(f"{count} messages wait in {queue}", is_so)
    except TimeoutError as error:
        raise Failure(f"{error}, but {seen}") from error


def purge(node: Node, queue: str, most: int) -> tuple[int, dict]:
    """The status and the content of the answer to who removes messages from the front of a queue."""
    url = f"http://127.0.0.1:{node.ports['admin']}/admin/v1/queues/{queue}/messages?limit={most}"
    request = urllib.request.Request(url, method="DELETE", headers={"sterna-request": "1"})
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def empty(cluster: Cluster) -> None:
    """Leaves no message to the next row: what a row that failed has left, or what comes again with another node."""
    def is_empty(queue: str) -> bool:
        status, told = purge(owner_of(cluster, queue), queue, MOST)
        return status == 200 and told["left"] == 0

    for queue in QUEUES:
        if "node" in look_up(cluster.nodes[0], queue):
            wait_until(f"{queue} is empty", lambda queue=queue: is_empty(queue))


def crossing(cluster: Cluster) -> None:
    """A producer at one node, consumers at the others: each message comes once, to each consumer in order."""
    owner = owner_of(cluster, "orders")
    consumers = [Consumer(node, "orders") for node in others(cluster, owner)]
    send(owner, "orders", [f"{number}" for number in range(300)])
    got = {consumer: [] for consumer in consumers}
    for consumer in consumers * 300:
        if sum(map(len, got.values())) == 300:
            break
        message = consumer.next(0.2)
        if message is not None:
            got[consumer].append(int(message.body))
            consumer.accept()
    numbers = sorted(number for each in got.values() for number in each)
    if numbers != list(range(300)):
        raise Failure(f"{len(numbers)} of 300 messages came, {len(set(numbers))} of them different ones")
    for consumer, each in got.items():
        if not each or each != sorted(each):
            raise Failure(f"at {consumer.node.name} they came as {each}")
        consumer.is_silent()
        consumer.close()
    waiting(cluster, "orders", 0)


def kept(cluster: Cluster) -> None:
    """What nobody consumes waits, also over the death of the queue's node, and of each node in turn. The queue is this row's:
    what others have consumed shortly before might come again."""
    send(cluster.nodes[0], "patient", ["1", "2", "3"])
    for _ in cluster.nodes:
        waiting(cluster, "patient", 3)
        owner = owner_of(cluster, "patient")
        owner.kill()
        owner_of(cluster, "patient", owner)
        waiting(cluster, "patient", 3)
        owner.start()
        cluster.settle()
    consumer = Consumer(cluster.nodes[2], "patient")
    if (got := consumer.drain(3)) != ["1", "2", "3"]:
        raise Failure(f"got {got}")
    consumer.close()
    waiting(cluster, "patient", 0)


def killed(cluster: Cluster) -> None:
    """The queue's node is killed under load."""
    owner = owner_of(cluster, "orders")
    ledger(cluster, owner, owner.kill, owner.start)
    cluster.settle()


def paused(cluster: Cluster) -> None:
    """The queue's node stands still under load, for longer than it is sure of anything."""
    owner = owner_of(cluster, "orders")
    ledger(cluster, owner, owner.stand_still, lambda: owner.send(signal.SIGCONT))
    cluster.settle()


def consumer_killed(cluster: Cluster) -> None:
    """A node with consumers is killed under load: what they had goes to others."""
    owner = owner_of(cluster, "orders")
    _, second = others(cluster, owner)
    ledger(cluster, owner, second.kill, second.start, second)
    cluster.settle()


def ledger(cluster: Cluster, owner: Node, fault, mend, lost: Node | None = None) -> None:
    """What was accepted comes, whatever happens under load. Consumers are on the other nodes, of which one may be lost."""
    first, second = others(cluster, owner)
    accepted: list[str] = []
    refused = 0
    got: list[str] = []
    lock = threading.Lock()
    is_over = threading.Event()
    trouble: list[str] = []

    def consume(node: Node) -> None:
        consumer = Consumer(node, "orders")
        while not is_over.is_set():
            message = consumer.next(0.2)
            if message is not None:
                with lock:
                    got.append(message.body)
                consumer.accept()
        consumer.close()

    def guarded(node: Node) -> None:
        try:
            consume(node)
        except Exception as error:  # noqa: BLE001
            if node is lost:
                return
            trouble.append(f"{node.name}: {type(error).__name__} {error}")

    threads = [threading.Thread(target=guarded, args=(node,)) for node in (first, second)]
    for thread in threads:
        thread.start()
    connection = connect(first)
    sender = connection.create_sender("queue/orders")
    for number in range(LEDGER):
        if number == LEDGER // 3:
            fault()
        body = f"ledger {number}"
        try:
            sender.send(Message(body=body, durable=True))
            accepted.append(body)
        except SendException:
            refused += 1
    if lost is None:
        owner_of(cluster, "orders", owner)
    mend()
    missing = lambda: set(accepted) - set(got)  # noqa: E731
    try:
        wait_until("all messages come", lambda: not missing())
    except TimeoutError as error:
        raise Failure(f"{len(missing())} of {len(accepted)} messages are missing; {refused} were refused") from error
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
        connection.close()
    if trouble:
        raise Failure("; ".join(trouble))
    again = len(got) - len(set(got))
    # What consumers had accepted shortly before, and the queue's cursor did not say yet.
    if again > LEDGER // 3:
        raise Failure(f"{again} messages came again")
    print(f"# {len(accepted)} accepted, {refused} refused, {again} came again")
    waiting(cluster, "orders", 0)


def dead(cluster: Cluster) -> None:
    """A message whose deliveries fail at several nodes is a dead letter, once, and says so."""
    owner = owner_of(cluster, "fragile")
    first, second = others(cluster, owner)
    graves = Consumer(first, "lost")
    send(first, "fragile", ["bad", "good"])
    for failures in range(FAILURES):
        consumer = Consumer((second, owner, first)[failures], "fragile", credit=1)
        message = consumer.must()
        if (message.body, message.delivery_count) != ("bad", failures):
            raise Failure(f"{message.body!r} came with {message.delivery_count} failures, and not {failures}")
        consumer.fail()
        if failures == FAILURES - 1 and consumer.drain(1) != ["good"]:
            raise Failure("the other message did not come")
        consumer.close()
        time.sleep(0.2)
    letter = graves.must()
    notes = {str(key): value for key, value in (letter.annotations or {}).items()}
    expected = {
        "x-opt-dead-letter-queue": "fragile",
        "x-opt-dead-letter-cause": "maximum-deliveries",
        "x-opt-dead-letter-failures": FAILURES,
    }
    if letter.body != "bad" or any(notes.get(key) != value for key, value in expected.items()):
        raise Failure(f"the dead letter is {letter.body!r} with {notes}")
    graves.accept()
    graves.is_silent()
    # A rejected one is a dead letter at once.
    send(second, "fragile", ["worse"])
    consumer = Consumer(first, "fragile")
    consumer.must()
    consumer.receiver.reject()
    consumer.is_silent()
    if graves.must().body != "worse":
        raise Failure("the rejected message is no dead letter")
    graves.accept()
    graves.close()
    consumer.close()
    waiting(cluster, "fragile", 0)
    waiting(cluster, "lost", 0)


def priorities(cluster: Cluster) -> None:
    """Messages of a higher priority go first, whichever nodes they come from and go to."""
    owner = owner_of(cluster, "urgent")
    first, second = others(cluster, owner)
    for node, priority in ((first, 1), (second, 9), (owner, 4), (first, 9), (second, 0)):
        send(node, "urgent", [f"{priority} by {node.name}"], priority=priority)
    waiting(cluster, "urgent", 5)
    consumer = Consumer(second, "urgent", credit=1)
    got = [int(body.split()[0]) for body in consumer.drain(5)]
    if got != [9, 9, 4, 1, 0]:
        raise Failure(f"they came as {got}")
    consumer.close()


def full(cluster: Cluster) -> None:
    """A full queue refuses publishers of all nodes, and takes messages again when it has room."""
    owner = owner_of(cluster, "orders")
    first, second = others(cluster, owner)
    connection = connect(first)
    sender = connection.create_sender("queue/orders")
    taken = 0
    try:
        while taken <= MOST + OVERSHOOT:
            sender.send(Message(body=f"{taken}", durable=True))
            taken += 1
        raise Failure(f"{taken} messages were taken, and the limit is {MOST}")
    except SendException as error:
        if error.state != Delivery.REJECTED:
            raise Failure(f"the state is {error.state}") from error
    if taken < MOST:
        raise Failure(f"{taken} messages were taken, and {MOST} fit")
    connection.close()
    for node in (owner, second):
        for options in (("amqp", "queue/orders"), ("mqtt", "queue/orders"), ("http", "queue/orders")):
            done = subprocess.run(
                [STERNA, "pub", node.url(options[0]), "-t", options[1], "-m", "x", "-q", "1"],
                capture_output=True, text=True, timeout=PATIENCE_S, check=False,
            )
            if done.returncode == 0:
                raise Failure(f"{options[0]} at {node.name} was not refused")
    consumer = Consumer(second, "orders", credit=100)
    got = consumer.drain(taken)
    if got != [f"{number}" for number in range(taken)]:
        raise Failure("they came in another order")
    consumer.is_silent()
    consumer.close()
    waiting(cluster, "orders", 0)
    send(first, "orders", ["again"])
    consumer = Consumer(owner, "orders")
    if consumer.drain(1) != ["again"]:
        raise Failure("the queue does not go on")
    consumer.close()


def every_protocol(cluster: Cluster) -> None:
    """Each protocol publishes to a queue, and MQTT consumes beside AMQP; one with a filter takes what matches."""
    owner = owner_of(cluster, "alarms")
    first, second = others(cluster, owner)
    member = Member(first, "reads alarms", "$share/alarms/sensors/+/alarm")
    for number, (node, protocol) in enumerate(((owner, "mqtt"), (second, "http"), (second, "amqp"))):
        topic = f"sensors/{number}/alarm"
        address = f"topic://{topic}" if protocol == "amqp" else topic
        done = subprocess.run(
            [STERNA, "pub", node.url(protocol), "-t", address, "-m", protocol, "-q", "1"],
            capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        )
        if done.returncode != 0:
            raise Failure(f"pub by {protocol}: {done.stderr}")

    def has_all() -> bool:
        member.gather()
        return sorted(member.came) == ["amqp", "http", "mqtt"]

    wait_until("all three come", has_all)
    member.close()
    # What it has not acknowledged goes to others.
    consumer = Consumer(second, "alarms")
    if sorted(consumer.drain(3)) != ["amqp", "http", "mqtt"]:
        raise Failure("a message is missing")
    consumer.close()
    waiting(cluster, "alarms", 0)


def looked_at(cluster: Cluster) -> None:
    """A browser at any node sees what waits, and takes nothing. Operators ask any node, which asks the one
    that has the queue."""
    owner = owner_of(cluster, "orders")
    bodies = [f"{number}" for number in range(40)]
    send(owner, "orders", bodies)
    waiting(cluster, "orders", 40)
    for node in cluster.nodes:
        browser = Consumer(node, "orders", credit=50, options=Copy())
        seen = [text(browser.must()) for _ in bodies]
        if seen != bodies:
            raise Failure(f"{node.name} shows {seen}")
        browser.close()
        listed = json.loads(node.page("/admin/v1/queues"))["items"]
        if {queue["name"]: queue["node"] for queue in listed}.get("orders") != owner.name:
            raise Failure(f"{node.name} lists {listed}")
        told = purge(node, "orders", 10)
        bodies = bodies[10:]
        if (told[0], told[1].get("left"), told[1].get("node")) != (200, len(bodies), owner.name):
            raise Failure(f"{node.name} answers {told}")
    waiting(cluster, "orders", len(bodies))
    consumer = Consumer(cluster.nodes[1], "orders", credit=50)
    consumer.drain(len(bodies))
    consumer.close()


def made_later(cluster: Cluster) -> None:
    """A queue that a link makes is known on every node, also on one that starts later."""
    first, second, third = cluster.nodes
    third.kill()
    send(first, "later", ["1"])
    third.start()
    cluster.settle()
    wait_until("the node knows the queue", lambda: look_up(third, "later").get("node"))
    done = subprocess.run(
        [STERNA, "pub", third.url("mqtt"), "-t", "queue/later", "-m", "2", "-q", "0"],
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )
    if done.returncode != 0:
        raise Failure(done.stderr)
    waiting(cluster, "later", 2)
    consumer = Consumer(second, "later")
    if (got := consumer.drain(2)) != ["1", "2"]:
        raise Failure(f"got {got}")
    consumer.close()


def drained(cluster: Cluster) -> None:
    """A node that stops in order hands its queues to another at once; consumers elsewhere go on."""
    owner = owner_of(cluster, "orders")
    first, second = others(cluster, owner)
    consumer = Consumer(first, "orders", credit=1)
    send(second, "orders", [f"{number}" for number in range(20)])
    got = consumer.drain(5)
    owner.stop()
    owner_of(cluster, "orders", owner)
    got += consumer.drain(15)
    if sorted(set(got), key=int) != [f"{number}" for number in range(20)]:
        raise Failure(f"got {got}")
    consumer.is_silent()
    consumer.close()
    owner.start()
    cluster.settle()


ROWS = [
    ("a queue crosses nodes", crossing),
    ("what nobody consumes waits", kept),
    ("dead letters", dead),
    ("priorities", priorities),
    ("a full queue refuses", full),
    ("every protocol", every_protocol),
    ("a queue is looked at", looked_at),
    ("a queue is made later", made_later),
    ("the queue's node stops in order", drained),
    ("the queue's node is killed under load", killed),
    ("the queue's node stands still under load", paused),
    ("a consumer's node is killed under load", consumer_killed),
]


def told(row, cluster: Cluster) -> None:
    """Runs a row; what the client's library raises is a failure of it."""
    try:
        row(cluster)
    except (ProtonException, KeyError, ValueError) as error:
        raise Failure(f"{type(error).__name__}: {error}") from error


def main() -> None:
    with Cluster(Path(os.environ["STERNA_BUILD"]) / "cluster-queues", SETTINGS) as cluster:
        def mend(has_failed: bool) -> None:
            cluster.mend(has_failed)
            empty(cluster)

        run_rows(ROWS, lambda row: told(row, cluster), mend)


if __name__ == "__main__":
    main()
