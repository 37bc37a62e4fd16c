"""Settings of a cluster that change: copies in NATS are raised at a start, and lowered by a command alone. Nodes whose settings
differ are named.

  cluster_settings.py [WORD]...   all rows, or those with one of the words in their name

The environment is that of `cluster_nodes.py`, and STERNA_BUILD a folder. Standard library only.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from cluster import Reader, publish_well, run_rows, status
from cluster_nodes import Cluster, Node, wait_until
from harness import Failure

FOLDER = Path(os.environ["STERNA_BUILD"]) / "cluster-settings"
STERNA = os.environ["STERNA_BIN"]


def set_in(node: Node, name: str, value: int) -> None:
    lines = node.config.read_text().splitlines()
    kept = [line for line in lines if not line.startswith(f"{name} = ")]
    node.config.write_text("\n".join([*kept, f"{name} = {value}"]) + "\n")


def start(node: Node) -> None:
    node.start()
    wait_until(f"{node.name} is ready", node.is_ready)


def copies(node: Node) -> set[int]:
    """The copies of each stream that are there, and up to date."""
    streams = status(node)["streams"]
    if len(streams) != 6:
        return set()
    behind = any(one["is_offline"] or not one["is_current"] for stream in streams for one in stream["followers"])
    found = {stream["replicas"] for stream in streams} | {len(stream["followers"]) + 1 for stream in streams}
    return set() if behind else found


def wait_for_copies(node: Node, count: int) -> None:
    try:
        wait_until(f"each stream has {count}", lambda: copies(node) == {count}, 60)
    except TimeoutError as error:
        raise Failure(f"{error}: {status(node)['streams']}; problems: {status(node)['problems']}") from error


def command(node: Node, *arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run([STERNA, "cluster", *arguments, "--url", node.url("admin")],
                          capture_output=True, text=True, timeout=60, check=False)


def replicas(cluster: Cluster) -> None:
    """One copy, raised to three by a start, lowered to one by a command, and raised again by the next start."""
    node, other = cluster.nodes[:2]
    for one in (node, other):
        set_in(one, "replicas", 1)
    start(node)
    wait_for_copies(node, 1)
    reader = Reader(node, "mqtt", "kept", "-q", "1", "-i", "kept", "-c")
    reader.process.kill()
    reader.process.wait()
    publish_well(node, "mqtt", "kept", "before", "-q", "1")
    set_in(other, "replicas", 3)
    start(other)
    wait_for_copies(other, 3)
    # It has less than the streams have, and changes nothing.
    node.stop()
    start(node)
    wait_for_copies(node, 3)
    said = "copies in NATS are not cluster.replicas = 1"
    if not any(said in problem for problem in status(node)["problems"]):
        raise Failure(f"it does not say that: {status(node)['problems']}")
    for wrong in ("0", "6", "x"):
        if command(node, "replicas", wrong).returncode == 0:
            raise Failure(f"{wrong} copies were taken")
    refused = command(node, "replicas", "5")
    if refused.returncode == 0 or "STERNA_sterna_" not in refused.stderr:
        raise Failure(f"5 copies on three servers: {refused}")
    wait_for_copies(node, 3)
    done = command(node, "replicas", "1")
    if done.returncode != 0:
        raise Failure(f"lowering: {done}")
    wait_for_copies(node, 1)
    if any(said in problem for problem in status(node)["problems"]):
        raise Failure(f"it says so still: {status(node)['problems']}")
    other.stop()
    start(other)
    wait_for_copies(other, 3)
    # It takes over the session, whose subscriptions come with it.
    process = subprocess.Popen([STERNA, "sub", other.url("mqtt"), "-t", "kept", "-q", "1", "-i", "kept", "-c", "-C", "1"],
                               stdout=subprocess.PIPE, text=True)
    got = process.communicate(timeout=120)[0].split()
    if got != ["before"]:
        raise Failure(f"got {got}")


def differences(cluster: Cluster) -> None:
    """Two nodes of three have another absence than the third."""
    odd = cluster.nodes[2]
    set_in(odd, "absence_ms", 33_000)
    start(odd)
    said = "nodes differ in cluster.absence_ms: 20000 on node-1, node-2; 33000 on node-3"
    for node in cluster.nodes:
        wait_until(f"{node.name} says it", lambda node=node: said in "\n".join(status(node)["problems"]), 60)
        wait_until(f"the log of {node.name} has it", lambda node=node: said in node.log.read_text(errors="replace"), 60)
        if not node.is_ready():
            raise Failure(f"{node.name} is not ready: {node.page('/readyz')}")


def main() -> None:
    cluster = Cluster(FOLDER)
    for node in cluster.nodes:
        # Who asks may also order.
        rights = '[authorization]\nadmins = ["anonymous"]\n\n[store]'
        node.config.write_text(node.config.read_text().replace("[store]", rights))
    for program in cluster.nats:
        program.start()
    try:
        rows = [("copies in NATS", replicas), ("nodes whose settings differ", differences)]
        run_rows(rows, lambda row: row(cluster), lambda _: None)
    finally:
        for program in reversed(cluster.programs):
            program.kill()


if __name__ == "__main__":
    sys.exit(main())
