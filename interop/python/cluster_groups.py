"""Rows of the cluster's suite about shared subscriptions: a message is with one member of all nodes at a time, and comes to
another when its member, the member's node, or the node that gives the group's messages out is gone.

Members are connections of MQTT 5.0 and 3.1.1 whose acknowledgements the rows decide about, and the broker's own command.
Standard library only.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable

import wire
from cluster_nodes import PATIENCE_S, Cluster, Node, wait_until
from cluster_sessions import FOREVER_S, Client
from harness import Failure
from mqtt_client import PUBACK, PUBLISH

# How long nothing must come.
SILENCE_S = 1.0
# A session of HTTP is there for a while after its client.
SESSION_ENDS_S = 60 + PATIENCE_S


class Member(Client):
    """A member of a group. It acknowledges what it is told to."""

    def __init__(self, node: Node, client_id: str, group: str, level: int = 5, expiry_s: int = 0):
        super().__init__(node, client_id, level, expiry_s, clean=not expiry_s)
        self.admitted()
        self.node = node
        self.subscribe([group], 1)
        # Payloads with their packet identifiers that are not acknowledged, and all payloads that have come.
        self.held: dict[str, int] = {}
        self.came: list[str] = []

    def gather(self) -> None:
        """Takes in what has come."""
        try:
            while (told := self.read(0.01)) is not None:
                if told[0] == PUBLISH:
                    body = told[1]
                    at = 2 + int.from_bytes(body[:2], "big")
                    number = int.from_bytes(body[at : at + 2], "big")
                    at += 2
                    if self.level == 5:
                        at += 1 + body[at]
                    payload = body[at:].decode()
                    self.held[payload] = number
                    self.came.append(payload)
        except TimeoutError:
            pass

    def acknowledge(self) -> None:
        for number in self.held.values():
            self.send(bytes([PUBACK, 2]) + number.to_bytes(2, "big"))
        self.held.clear()


def publish(node: Node, topic: str, payloads: list[str], protocol: str = "mqtt") -> None:
    done = subprocess.run(
        [os.environ["STERNA_BIN"], "pub", node.url(protocol), "-t", topic, "-q", "1", "-l"],
        input="".join(f"{payload}\n" for payload in payloads), capture_output=True, text=True,
        timeout=PATIENCE_S, check=False,
    )
    if done.returncode != 0:
        raise Failure(f"pub ended with {done.returncode}: {done.stderr}")


def known_everywhere(cluster: Cluster, but: Node | None = None) -> None:
    """Waits until all nodes that live know that somebody wants the group's topics."""
    def is_known() -> bool:
        figures = [node.figure("sterna_cluster_filters") for node in cluster.nodes if node is not but]
        return sum(figures) >= len(figures) - 1

    wait_until("the group's topics are wanted", is_known)


def publish_until(what: str, is_so: Callable[[], bool], node: Node, topic: str) -> list[str]:
    """Publishes messages until something is so, and returns their payloads.

    A node with members of a group gets its turn when the group's root has heard of it, which takes a busy machine seconds."""
    sent: list[str] = []

    def publish_some() -> bool:
        payloads = [f"first-{len(sent) + number}" for number in range(12)]
        publish(node, topic, payloads)
        sent.extend(payloads)
        return is_so()

    wait_until(what, publish_some)
    return sent


def drain(members: list[Member], count: int, patience_s: float = PATIENCE_S) -> None:
    """Members acknowledge what they get until so many messages have come to them. None is with two at once."""
    end = time.monotonic() + patience_s
    seen: set[str] = set()
    while len(seen) < count:
        if time.monotonic() > end:
            each = [len(member.came) for member in members]
            raise Failure(f"{len(seen)} of {count} messages came, to each {each}")
        select.select([member.socket for member in members], [], [], 0.05)
        for member in members:
            member.gather()
        one_at_a_time(members)
        for member in members:
            seen.update(member.came)
            member.acknowledge()


def one_at_a_time(members: list[Member]) -> None:
    held: dict[str, Member] = {}
    for member in members:
        for payload in member.held:
            if payload in held:
                raise Failure(f"{payload} is with members of {held[payload].node.name} and {member.node.name}")
            held[payload] = member


def none_left(cluster: Cluster, patience_s: float = PATIENCE_S) -> None:
    for node in cluster.nodes:
        wait_until(
            f"{node.name} knows no filters", lambda node=node: node.figure("sterna_cluster_filters") == 0, patience_s
        )


def end(cluster: Cluster, members: list[Member]) -> None:
    for member in members:
        member.close()
    none_left(cluster)


def members_everywhere(cluster: Cluster) -> None:
    """Members of MQTT 5.0 and 3.1.1 on three nodes get each message once, and each of them some."""
    group = "$share/everywhere/groups/all/#"
    members = [
        Member(node, f"member-{node.name}-{level}", group, level) for node in cluster.nodes for level in (5, 4)
    ]
    known_everywhere(cluster)

    def have_some() -> bool:
        for member in members:
            member.gather()
            member.acknowledge()
        return all(member.came for member in members)

    first = publish_until("each member has some", have_some, cluster.nodes[0], "groups/all/first")
    sent = list(first)
    for number, node in enumerate(cluster.nodes):
        for protocol in ("mqtt", "amqp", "http"):
            payloads = [f"{number}-{protocol}-{each}" for each in range(40)]
            publish(node, f"groups/all/{protocol}", payloads, protocol)
            sent += payloads
    drain(members, len(sent))
    time.sleep(SILENCE_S)
    for member in members:
        member.gather()
    got = [payload for member in members for payload in member.came]
    if sorted(got) != sorted(sent):
        raise Failure(f"{len(sent)} messages were sent and {len(got)} came, {len(set(got))} different")
    later = [len(set(member.came) - set(first)) for member in members]
    if not all(later):
        raise Failure(f"members got {later}")
    end(cluster, members)


def protocols(cluster: Cluster) -> None:
    """Members of each protocol on different nodes share one group."""
    group, topic = "$share/protocols/groups/protocols", "groups/protocols"
    processes = []
    # Members append to files, which can be read while they run.
    outputs = [tempfile.TemporaryFile("a+") for _ in cluster.nodes]

    def got() -> list[list[str]]:
        for output in outputs:
            output.seek(0)
        return [output.read().split() for output in outputs]

    try:
        for node, protocol, output in zip(cluster.nodes, ("mqtt", "amqp", "http"), outputs, strict=True):
            before = node.figure("sterna_subscriptions")
            command = [os.environ["STERNA_BIN"], "sub", node.url(protocol), "-t", group, "-q", "1"]
            processes.append(subprocess.Popen(command, stdout=output))
            wait_until(
                "the subscription is made", lambda node=node, before=before: node.figure("sterna_subscriptions") > before
            )
        known_everywhere(cluster)
        first = publish_until("each member has some", lambda: all(got()), cluster.nodes[0], topic)
        sent = first + [str(number) for number in range(300)]
        publish(cluster.nodes[0], topic, sent[len(first):])
        wait_until("all have come", lambda: sum(len(each) for each in got()) >= len(sent))
        time.sleep(SILENCE_S)
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(PATIENCE_S)
    together = sorted(payload for each in got() for payload in each)
    if together != sorted(sent) or not all(set(each) - set(first) for each in got()):
        raise Failure(f"of {len(sent)} messages the members got {[len(each) for each in got()]}")
    # The session of HTTP waits for its client for a while.
    none_left(cluster, SESSION_ENDS_S)


def a_member_goes(cluster: Cluster) -> None:
    """What a member has not acknowledged comes to a member of another node when its connection ends."""
    group = "$share/goes/groups/goes"
    first, second, third = cluster.nodes
    goes = Member(first, "goes", group)
    known_everywhere(cluster)
    publish(third, "groups/goes", [str(number) for number in range(10)])
    wait_until("they are with the first member", lambda: goes.gather() or len(goes.held) == 10)
    stays = Member(second, "stays", group)
    time.sleep(SILENCE_S)
    stays.gather()
    one_at_a_time([goes, stays])
    if stays.came:
        raise Failure(f"the second member got {stays.came}")
    goes.close()
    drain([stays], 10)
    if stays.came != [str(number) for number in range(10)]:
        raise Failure(f"they came as {stays.came}")
    end(cluster, [stays])


def a_members_node(cluster: Cluster) -> None:
    """A member's node is killed: what the member had comes to others after the lease."""
    group = "$share/node/groups/node"
    first, second, third = cluster.nodes
    # The first member's node gives the messages out.
    stays = Member(first, "node-stays", group)
    time.sleep(SILENCE_S)
    dies = Member(second, "node-dies", group)
    known_everywhere(cluster)
    time.sleep(SILENCE_S)
    sent = [str(number) for number in range(20)]
    publish(third, "groups/node", sent)

    def all_are_out() -> bool:
        for member in (stays, dies):
            member.gather()
        return len(stays.held) + len(dies.held) == len(sent)

    wait_until("they are with both", all_are_out)
    one_at_a_time([stays, dies])
    had = sorted(dies.held)
    if not had:
        raise Failure("the member of the other node has none")
    second.kill()
    dies.close()
    wait_until("what the dead node's member had is here", lambda: stays.gather() or set(had) <= set(stays.held))
    stays.acknowledge()
    second.start()
    cluster.settle()
    publish(third, "groups/node", ["after"])
    wait_until("the group goes on", lambda: stays.gather() or "after" in stays.held)
    stays.acknowledge()
    end(cluster, [stays])


def the_owner(cluster: Cluster) -> None:
    """The node is killed that gives a group's messages out: nothing that was acknowledged is lost, and what members of
    others have stays with them."""
    group = "$share/owner/groups/owner"
    first, second, third = cluster.nodes
    dies = Member(first, "owner-dies", group)
    time.sleep(SILENCE_S)
    holds, takes = Member(second, "owner-holds", group), Member(third, "owner-takes", group)
    known_everywhere(cluster)
    time.sleep(SILENCE_S)
    sent = [str(number) for number in range(15)]
    publish(third, "groups/owner", sent)

    def all_are_out() -> bool:
        for member in (dies, holds, takes):
            member.gather()
        return len(dies.held) + len(holds.held) + len(takes.held) == len(sent)

    wait_until("they are with all three", all_are_out)
    kept, lost = sorted(holds.held), sorted(dies.held)
    takes.acknowledge()
    if not kept or not lost:
        raise Failure(f"a member has none: {kept} and {lost}")
    first.kill()
    dies.close()
    later = [f"later-{number}" for number in range(15)]
    publish(second, "groups/owner", later)
    wanted = {*lost, *later}

    def has_come() -> bool:
        for member in (holds, takes):
            member.gather()
        one_at_a_time([holds, takes])
        return wanted <= {*holds.held, *takes.held}

    wait_until("another node gives them out", has_come)
    again = [payload for payload in takes.came if payload in kept]
    if again:
        raise Failure(f"{again} came to another while its member had it")
    for member in (holds, takes):
        member.acknowledge()
    first.start()
    cluster.settle()
    end(cluster, [holds, takes])


def stands_still(cluster: Cluster) -> None:
    """A node stands still for longer than its lease: others get what its members had, and it sends none of it after that."""
    group = "$share/still/groups/still"
    first, second, third = cluster.nodes
    takes = Member(first, "still-takes", group)
    time.sleep(SILENCE_S)
    still = Member(second, "still-stands", group)
    known_everywhere(cluster)
    time.sleep(SILENCE_S)
    second.stand_still()
    try:
        sent = [str(number) for number in range(40)]
        publish(third, "groups/still", sent)
        drain([takes], len(sent))
    finally:
        second.send(signal.SIGCONT)
    cluster.settle()
    time.sleep(SILENCE_S)
    still.gather()
    if still.came:
        raise Failure(f"what others have had came after it: {still.came}")
    # It takes part again, as soon as the group has heard of it.
    count = len(sent)

    def takes_part() -> list[str]:
        nonlocal count
        publish(third, "groups/still", [f"more-{number}" for number in range(count, count + 10)])
        count += 10
        drain([takes, still], count)
        return still.came

    wait_until("it takes part again", takes_part)
    end(cluster, [takes, still])


def durable_members(cluster: Cluster) -> None:
    """A group whose members are away waits for them, also where the nodes that had it are killed."""
    group = "$share/away/groups/away"
    first, second, third = cluster.nodes
    member = Member(first, "away", group, expiry_s=FOREVER_S)
    known_everywhere(cluster)
    member.close()
    time.sleep(SILENCE_S)
    sent = [str(number) for number in range(10)]
    publish(third, "groups/away", sent)
    first.kill()
    back = Client(second, "away", expiry_s=FOREVER_S).admitted()
    back.__class__ = Member
    back.node, back.held, back.came = second, {}, []
    drain([back], len(sent))
    back.send(wire.unsubscribe(2, [group], 5))
    first.start()
    cluster.settle()
    end(cluster, [back])
    Client(second, "away", clean=True).admitted().close()


ROWS = [
    ("members of a group are on three nodes", members_everywhere),
    ("members of a group speak three protocols", protocols),
    ("a member of a group goes", a_member_goes),
    ("the node of a group's member is killed", a_members_node),
    ("the node that gives a group's messages out is killed", the_owner),
    ("the node of a group's member stands still", stands_still),
    ("a group waits for members that are away", durable_members),
]
