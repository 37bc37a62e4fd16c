"""Users on three nodes: a session stays its user's when its node goes, also where another user has the same client identifier,
and the will of another node's client is judged by the rules of now.

  cluster_identity.py [WORD]...   all rows, or those with one of the words in their name

Standard library only.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from pathlib import Path

from cluster import run_rows
from cluster_kept import Keeper
from cluster_nodes import SHORT_ABSENCE_MS, Cluster, Node, wait_until
from cluster_sessions import FOREVER_S, Client
from harness import Failure

FOLDER = Path(os.environ["STERNA_BUILD"])
USERS = ("alice", "bob", "reader")
# How long somebody tries after a node has gone, and how long nothing must come.
ATTACK_S, SILENCE_S = 8, 1.0
CONNACK, NOT_AUTHORIZED = 0x20, 0x87
FORBIDDEN = """
[[authorization.rule]]
effect = "deny"
actions = ["publish"]
users = ["alice"]
topics = ["wills/#"]
"""


def passwords(*names: str) -> Path:
    """A file of users; the password of each is its name."""
    file = FOLDER / "cluster-identity-passwords"
    file.unlink(missing_ok=True)
    for name in names:
        create = [] if file.exists() else ["-c"]
        command = [os.environ["STERNA_BIN"], "passwd", "-b", "--iterations", "4096", *create, str(file), name, name]
        subprocess.run(command, check=True, capture_output=True)
    return file


def login(user: str) -> dict:
    return {"username": user, "password": user}


def keeper(node: Node, client_id: str, user: str, expiry_s: int = FOREVER_S) -> Keeper:
    return Keeper(node, client_id, expiry_s, **login(user))


def attempt(node: Node, client_id: str, user: str, clean: bool = False) -> int | None:
    """The reason code of the answer to a CONNECT; `None` where there is none."""
    try:
        client = Client(node, client_id, expiry_s=FOREVER_S, clean=clean, **login(user))
        answer = client.read()
        client.close()
    except OSError:
        return None
    return answer[1][1] if answer and answer[0] == CONNACK else None


def stays(cluster: Cluster, name: str, go, attackers: list[Node], attack_s: float) -> None:
    """Bob has sessions by the client identifier of alice's device before it comes. Her session is away with a message for
    her, and its node goes. Bob comes by that identifier all the time."""
    first, second, third = cluster.nodes
    for node in cluster.nodes:
        if (code := attempt(node, name, "bob")) != 0:
            raise Failure(f"bob was answered {code} at {node.name} before anything happens")
    alice = keeper(first, name, "alice")
    if alice.present:
        raise Failure("alice was given bob's session")
    alice.want(f"secret/{name}")
    alice.close()
    writer = keeper(third, f"{name}-writer", "reader", 0)
    writer.publish(f"secret/{name}", "for alice")
    is_over = threading.Event()
    answers: list[tuple[str, int]] = []

    def attack(node: Node) -> None:
        clean = False
        while not is_over.is_set():
            code = attempt(node, name, "bob", clean)
            clean = not clean
            if code is not None:
                answers.append((node.name, code))
            time.sleep(0.02)

    threads = [threading.Thread(target=attack, args=(node,)) for node in attackers]
    for thread in threads:
        thread.start()
    try:
        go(first)
        time.sleep(attack_s)
        wait_until("bob is let in", lambda: 0 in {code for _, code in answers})
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
    if not first.process:
        first.start()
    cluster.settle()
    if refused := [answer for answer in answers if answer[1] == NOT_AUTHORIZED]:
        raise Failure(f"bob was refused: {refused[:3]}, after {len(answers)} attempts")
    # What is published meanwhile is kept for her, whoever has come.
    writer.publish(f"secret/{name}", "another")
    writer.close()
    bob = keeper(second, name, "bob")
    bob.nothing_more()
    alice = keeper(second, name, "alice")
    if not alice.present or (got := alice.receive(2)) != ["for alice", "another"]:
        raise Failure(f"alice has her session: {alice.present}, and got {got if alice.present else None}")
    alice.nothing_more()
    alice.close()
    bob.close()
    for user in ("alice", "bob"):
        keeper(second, name, user, 0).close()


def again(node: Node) -> None:
    node.kill()
    node.start()


def restarts(cluster: Cluster) -> None:
    stays(cluster, "restarts", again, cluster.nodes[1:], ATTACK_S)


def restarts_here(cluster: Cluster) -> None:
    stays(cluster, "restarts-here", again, cluster.nodes[:1], ATTACK_S)


def stops(cluster: Cluster) -> None:
    stays(cluster, "stops", lambda node: node.stop(), cluster.nodes[1:2], ATTACK_S)


def dies(cluster: Cluster) -> None:
    """Others adopt the sessions of a node that is absent."""
    stays(cluster, "dies", lambda node: node.kill(), cluster.nodes[1:], cluster.absence_s + ATTACK_S)


def reload(cluster: Cluster, text: str) -> None:
    """Puts other rules in force on all nodes that run."""
    for node in cluster.nodes:
        if node.process:
            node.config.write_text(text_of[node.name] + text)
            node.send(signal.SIGHUP)


# The configurations of nodes before rules are added.
text_of: dict[str, str] = {}


def wills(cluster: Cluster) -> None:
    """Alice may publish her wills when she connects, and not when they are due."""
    first, second, third = cluster.nodes
    text_of.update({node.name: node.config.read_text() for node in cluster.nodes})
    reader = keeper(second, "wills-reader", "reader", 0)
    reader.want("wills/#")

    def leave(node: Node, name: str, expiry_s: int = FOREVER_S) -> Client:
        return Client(node, name, expiry_s=expiry_s, will=f"wills/{name}", **login("alice")).admitted()

    moved = leave(first, "moved")
    left = [leave(third, "stopped", 0), leave(first, "killed"), leave(first, "killed-unkept", 0)]
    bobs = Client(first, "bobs", will="wills/bobs", **login("bob")).admitted()
    try:
        reload(cluster, FORBIDDEN)
        probe = keeper(first, "probe", "alice", 0)

        def is_forbidden() -> bool:
            probe.offer(7, "wills/direct", "x", 1)
            answer = probe.expect(0x40)
            return len(answer) > 2 and answer[2] == NOT_AUTHORIZED

        wait_until("the rule is in force", is_forbidden)
        drain(reader)
        elsewhere = Client(second, "moved", expiry_s=FOREVER_S, **login("alice")).admitted()
        third.stop()
        reader.nothing_more()
        first.kill()
        if (got := reader.receive(1)) != ["bobs"]:
            raise Failure(f"the wills of a dead node: {got}")
        reader.nothing_more()
        for client in (moved, *left, bobs, probe, elsewhere):
            client.close()
        first.start()
        third.start()
        cluster.settle()
    finally:
        for node in cluster.nodes:
            node.config.write_text(text_of[node.name])
    for name in ("moved", "killed"):
        keeper(second, name, "alice", 0).close()
    reader.close()


def drain(reader: Keeper) -> None:
    """Takes what has come."""
    try:
        while True:
            reader.receive(1, patience_s=SILENCE_S)
    except TimeoutError:
        pass


def main() -> None:
    rows = [
        ("another user, and a session whose node restarts", restarts),
        ("another user at the node that restarts", restarts_here),
        ("another user, and a session whose node stops", stops),
        ("another user, and a session whose node dies", dies),
        ("wills that their user may not publish any more", wills),
    ]
    FOLDER.mkdir(parents=True, exist_ok=True)
    file = passwords(*USERS)
    settings = f'\n[authentication]\npassword_file = "{file}"\n'
    with Cluster(FOLDER / "cluster-identity", settings, SHORT_ABSENCE_MS) as cluster:
        run_rows(rows, lambda row: row(cluster), cluster.mend)


if __name__ == "__main__":
    main()
