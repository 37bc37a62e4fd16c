"""Nodes with wrong clocks: who is let in, what becomes of clients and wills, and the way back without a restart.

  cluster_clocks.py [WORD]...   all rows, or those with one of the words in their name

Three nodes and one server of NATS, which make four clocks. The wall clock of each node is set by a library, which needs a C
compiler. Standard library only.
"""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

from cluster import run_rows
from cluster_faults import Clock, clock_library
from cluster_nodes import PATIENCE_S, Node, wait_until
from cluster_returns import Ground
from cluster_sessions import CONNACK, PUBLISH, Client
from harness import Failure
from mqtt_client import Connection

HOUR_S = 3_600
NAMED = "the clock of this node is"
# How often a client that comes again and again is refused.
REFUSALS = 30


class Timed(Ground):
    """Nodes whose wall clocks are set. They begin as far ahead of NATS as that."""

    def __init__(self, folder: Path, library: Path, ahead_s: int):
        super().__init__(folder, 1)
        self.clocks = [Clock(node.config.parent, library, node) for node in self.nodes]
        for clock in self.clocks:
            clock.set(ahead_s)


def living(node: Node, name: str, timeout_s: float = PATIENCE_S) -> Connection:
    """A client with a session that stays, and a will that is retained."""
    will = {"topic": f"will/{name}", "payload": b"x", "qos": 1, "retain": True}
    return Connection(
        node.ports["mqtt"], name, 5, timeout_s, clean=False, props={"session_expiry": HOUR_S}, will=will)


def told(link: Connection) -> tuple[int, bool]:
    """The reason code of a CONNACK, and whether there was a session."""
    answer = link.read()
    if answer is None or answer[0] != CONNACK:
        raise Failure(f"CONNECT was answered with {answer}")
    return answer[1][1], bool(answer[1][0] & 1)


def serves(node: Node) -> bool:
    """Whether a node is ready, whatever it says of others."""
    return node.page("/readyz").startswith("ready")


def is_refused(node: Node, name: str) -> bool:
    link = living(node, name)
    code, _ = told(link)
    link.close()
    return code == 0x88


def at_first(cluster: Timed) -> None:
    """A node starts with a wrong clock: it lets nobody in, not even before it has compared its clock. It serves when that is
    right, in the same process."""
    first, second, _ = cluster.nodes
    first.kill()
    cluster.clocks[0].set(HOUR_S)
    first.start()
    pid, came = first.pid(), 0
    while NAMED not in first.page("/readyz"):
        try:
            link = living(first, "early", 5)
            code, _ = told(link)
            link.close()
        except OSError:
            time.sleep(0.01)
            continue
        came += 1
        if code == 0:
            raise Failure(f"client {came} was let in before the node had compared its clock")
    for number in range(REFUSALS):
        if not is_refused(first, "often"):
            raise Failure(f"a client was let in at attempt {number}")
    lines = [line for line in first.log.read_text().splitlines() if "login refused" in line and "often" in line]
    if not 0 < len(lines) < REFUSALS / 2:
        raise Failure(f"{REFUSALS} refusals of one client made {len(lines)} lines")
    cluster.clocks[0].set(0)
    wait_until("the node is ready", first.is_ready)
    if first.pid() != pid:
        raise Failure("it is another process")
    cluster.settle()
    link = living(first, "early")
    if told(link)[0] != 0:
        raise Failure("nobody is let in when the clock is right")
    link.close()


def later(cluster: Timed) -> None:
    """The nodes agree, and NATS does not. One node after the other gets the clock of NATS, until the first is wrong: its client
    ends, its will is published, and another node has its session."""
    first, second, third = cluster.nodes
    link = living(first, "client")
    if (answer := told(link)) != (0, False):
        raise Failure(f"the client was not let in: {answer}")
    link.subscribe(["later/#"], 1)
    pids = [third.pid(), first.pid()]
    # Its process goes by its clock until that is wrong.
    cluster.clocks[2].set(0)
    second.kill()
    cluster.clocks[1].set(0)
    second.start()
    told_last = None
    while (packet := link.read()) is not None:
        told_last = packet
    if told_last is None:
        raise Failure("the client's connection ends without a word")
    for node in (second, third):
        wait_until(f"{node.name} serves", lambda node=node: serves(node))
    wait_until("the first node says so", lambda: NAMED in first.page("/readyz"))
    if not is_refused(first, "another"):
        raise Failure("the node lets clients in")
    will = Client(second, "looks", clean=True).admitted()
    will.subscribe(["will/#"], 1)
    while will.read()[0] != PUBLISH:
        pass
    will.close()
    link = living(third, "client")
    if (answer := told(link)) != (0, True):
        raise Failure(f"the session is lost: {answer}")
    link.close()
    cluster.clocks[0].set(0)
    cluster.settle()
    if [third.pid(), first.pid()] != pids:
        raise Failure("they are other processes")
    link = living(first, "client")
    if told(link) != (0, True):
        raise Failure("the session is lost where it was")
    link.close()


ROWS = [
    ("a node starts with a wrong clock, which is set", at_first, 0),
    ("a node that serves is found to have a wrong clock", later, HOUR_S),
]


def play(library: Path, row, ahead_s: int) -> None:
    folder = Path(os.environ["STERNA_BUILD"]) / "cluster-clocks"
    shutil.rmtree(folder, ignore_errors=True)
    with Timed(folder, library, ahead_s) as cluster:
        row(cluster)


def main() -> None:
    build = Path(os.environ["STERNA_BUILD"]) / "clock"
    build.mkdir(parents=True, exist_ok=True)
    library = clock_library(build)
    if library is None:
        for name, _, _ in ROWS:
            print(f"skip {name}: no C compiler")
        return
    rows = [(name, (row, ahead_s)) for name, row, ahead_s in ROWS]
    run_rows(rows, lambda row: play(library, *row), lambda _: None)


if __name__ == "__main__":
    main()
