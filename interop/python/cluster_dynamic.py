"""Nodes of AMQP that are made for links, on three nodes of a cluster: their lifetime policies, with links at any of them.

  cluster_dynamic.py [WORD]...   all rows, or those with one of the words in their name

The clients are python-qpid-proton.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from proton import Described, Message, ProtonException, Timeout, symbol
from proton.reactor import LinkOption
from proton.utils import BlockingConnection, LinkDetached

from cluster import run_rows
from cluster_nodes import PATIENCE_S, Cluster, Node, wait_until
from harness import Failure

CLOSE, NO_LINKS, NO_MESSAGES, NO_LINKS_OR_MESSAGES = (
    f"amqp:delete-on-{name}:list" for name in ("close", "no-links", "no-messages", "no-links-or-messages"))
KINDS = ("queue", "topic")
# How long a node has to stay that is not over.
STAYS_S = 4.0


class Made(LinkOption):
    """Has a link's peer make the node of its source, or of its target."""

    def __init__(self, policy: str, kind: str, is_target: bool = False):
        self.policy, self.kind, self.is_target = policy, kind, is_target

    def apply(self, link) -> None:
        end = link.target if self.is_target else link.source
        end.dynamic = True
        end.capabilities.put_object(symbol(self.kind))
        end.properties.put_object({symbol("lifetime-policy"): Described(symbol(self.policy), [])})


class Client:
    """A connection to a node, and its links."""

    def __init__(self, node: Node):
        self.connection = BlockingConnection(node.url("amqp"), timeout=PATIENCE_S)

    def make(self, policy: str, kind: str, is_target: bool = False):
        """A link for which a node is made, and the node's address."""
        option = Made(policy, kind, is_target)
        if is_target:
            link = self.connection.create_sender(None, options=option)
            return link, link.link.remote_target.address
        link = self.connection.create_receiver(None, credit=0, options=option)
        return link, link.link.remote_source.address

    def receiver(self, address: str, credit: int = 10):
        return self.connection.create_receiver(address, credit=credit)

    def sender(self, address: str):
        return self.connection.create_sender(address)

    def close(self) -> None:
        try:
            self.connection.close()
        except (ProtonException, OSError):
            pass  # its node may be dead


def condition_of(error: LinkDetached) -> str:
    return error.condition or str(error)


def is_there(node: Node, address: str) -> bool:
    """Whether a link to a node is attached; one that is not must be not found."""
    client = Client(node)
    try:
        client.sender(address).close()
        return True
    except LinkDetached as error:
        if condition_of(error) != "amqp:not-found":
            raise Failure(f"{condition_of(error)} at {node.name}") from error
        return False
    finally:
        client.close()


def is_known(cluster: Cluster, address: str) -> None:
    """Every node has heard of it."""
    for node in cluster.nodes:
        wait_until(f"{node.name} knows {address}", lambda node=node: is_there(node, address))


def is_gone(cluster: Cluster, address: str) -> None:
    def at(node: Node) -> bool:
        # Who looks has a link, so nobody looks for a while.
        time.sleep(STAYS_S)
        return not is_there(node, address)

    for node in cluster.nodes:
        if node.process:
            wait_until(f"{address} is gone at {node.name}", lambda node=node: at(node))


def stays(cluster: Cluster, address: str) -> None:
    time.sleep(STAYS_S)
    for node in cluster.nodes:
        if not is_there(node, address):
            raise Failure(f"{address} is gone at {node.name}")


def is_detached(receiver) -> None:
    """The node was deleted under a link."""
    try:
        message = receiver.receive(timeout=PATIENCE_S)
        raise Failure(f"{message.body!r} came")
    except LinkDetached as error:
        if condition_of(error) != "amqp:resource-deleted":
            raise Failure(condition_of(error)) from error
    except Timeout:
        raise Failure("the link is not detached") from None


def send(node: Node, address: str, bodies: list[str]) -> None:
    client = Client(node)
    sender = client.sender(address)
    for body in bodies:
        sender.send(Message(body=body, durable=True))
    client.close()


def take(receiver, count: int) -> list[str]:
    bodies = []
    for _ in range(count):
        bodies.append(receiver.receive(timeout=PATIENCE_S).body)
        receiver.accept()
    return bodies


def closed(cluster: Cluster) -> None:
    """`delete-on-close`: links at other nodes are detached when the node ends."""
    first, second, third = (Client(node) for node in cluster.nodes)
    for kind in KINDS:
        for is_target in (False, True):
            made, address = first.make(CLOSE, kind, is_target)
            is_known(cluster, address)
            others = [second.receiver(address), third.receiver(address)]
            made.close()
            for other in others:
                is_detached(other)
            is_gone(cluster, address)
    for client in (first, second, third):
        client.close()


def without_links(cluster: Cluster) -> None:
    """`delete-on-no-links`: links at other nodes keep it, and the last of them ends it."""
    first, second = Client(cluster.nodes[0]), Client(cluster.nodes[1])
    for kind in KINDS:
        made, address = first.make(NO_LINKS, kind)
        is_known(cluster, address)
        other = second.receiver(address)
        made.close()
        stays(cluster, address)
        send(cluster.nodes[2], address, ["1", "2"])
        if (got := take(other, 2)) != ["1", "2"]:
            raise Failure(f"got {got}")
        other.close()
        is_gone(cluster, address)
    first.close()
    second.close()


def without_messages(cluster: Cluster) -> None:
    """`delete-on-no-messages`: what waits keeps it, and the last message ends it, also under a link at another node."""
    first, third = Client(cluster.nodes[0]), Client(cluster.nodes[2])
    made, address = first.make(NO_MESSAGES, "queue", is_target=True)
    is_known(cluster, address)
    send(cluster.nodes[1], address, ["1", "2", "3"])
    made.close()
    stays(cluster, address)
    consumer = third.receiver(address, credit=1)
    if (got := take(consumer, 2)) != ["1", "2"]:
        raise Failure(f"got {got}")
    stays(cluster, address)
    if (got := take(consumer, 1)) != ["3"]:
        raise Failure(f"got {got}")
    is_detached(consumer)
    is_gone(cluster, address)
    first.close()
    third.close()


def without_links_or_messages(cluster: Cluster) -> None:
    """`delete-on-no-links-or-messages`: both keep it."""
    first, third = Client(cluster.nodes[0]), Client(cluster.nodes[2])
    made, address = first.make(NO_LINKS_OR_MESSAGES, "queue")
    is_known(cluster, address)
    send(cluster.nodes[1], address, ["1", "2"])
    made.close()
    stays(cluster, address)
    consumer = third.receiver(address)
    if (got := take(consumer, 2)) != ["1", "2"]:
        raise Failure(f"got {got}")
    stays(cluster, address)
    consumer.close()
    is_gone(cluster, address)
    first.close()
    third.close()


def killed(cluster: Cluster) -> None:
    """A node of the cluster dies with those that were made at it. Links at others are detached."""
    first, second = Client(cluster.nodes[0]), Client(cluster.nodes[1])
    addresses = [first.make(policy, "topic")[1] for policy in (CLOSE, NO_LINKS)]
    for address in addresses:
        is_known(cluster, address)
    others = [second.receiver(address) for address in addresses]
    cluster.nodes[0].kill()
    for address, other in zip(addresses, others):
        is_detached(other)
    for address in addresses:
        is_gone(cluster, address)
    first.close()
    second.close()
    cluster.nodes[0].start()
    cluster.settle()


def link_killed(cluster: Cluster) -> None:
    """A node of the cluster dies that has the last link."""
    first, second = Client(cluster.nodes[0]), Client(cluster.nodes[1])
    made, address = first.make(NO_LINKS, "queue")
    is_known(cluster, address)
    second.receiver(address)
    made.close()
    stays(cluster, address)
    cluster.nodes[1].kill()
    is_gone(cluster, address)
    first.close()
    second.close()
    cluster.nodes[1].start()
    cluster.settle()


def outlives(cluster: Cluster) -> None:
    """What was accepted outlives the node of the cluster at which its queue was made, however that ends."""
    third = Client(cluster.nodes[2])
    for policy in (NO_MESSAGES, NO_LINKS_OR_MESSAGES):
        for end in (cluster.nodes[0].kill, cluster.nodes[0].stop):
            first = Client(cluster.nodes[0])
            made, address = first.make(policy, "queue", is_target=True)
            is_known(cluster, address)
            send(cluster.nodes[1], address, ["1", "2", "3"])
            made.close()
            stays(cluster, address)
            first.close()
            end()
            for node in cluster.nodes[1:]:
                wait_until(f"{address} goes on at {node.name}", lambda node=node: is_there(node, address))
            consumer = third.receiver(address)
            if (got := take(consumer, 3)) != ["1", "2", "3"]:
                raise Failure(f"got {got}")
            if policy == NO_MESSAGES:
                is_detached(consumer)
            else:
                consumer.close()
            is_gone(cluster, address)
            cluster.nodes[0].start()
            cluster.settle()
            is_gone(cluster, address)
    third.close()


ROWS = [
    ("delete-on-close", closed),
    ("delete-on-no-links", without_links),
    ("delete-on-no-messages", without_messages),
    ("delete-on-no-links-or-messages", without_links_or_messages),
    ("the maker's node is killed", killed),
    ("the node of the last link is killed", link_killed),
    ("what was accepted outlives the maker's node", outlives),
]


def told(row, cluster: Cluster) -> None:
    """Runs a row; what the client's library raises is a failure of it."""
    try:
        row(cluster)
    except (ProtonException, KeyError, ValueError) as error:
        raise Failure(f"{type(error).__name__}: {error}") from error


def main() -> None:
    with Cluster(Path(os.environ["STERNA_BUILD"]) / "cluster-dynamic") as cluster:
        run_rows(ROWS, lambda row: told(row, cluster), cluster.mend)


if __name__ == "__main__":
    main()
