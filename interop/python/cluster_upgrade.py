"""A rolling upgrade of a cluster: three nodes of an older program become nodes of a newer one, one after the other.

  cluster_upgrade.py FOLDER OLD NEW   both are programs `sterna`

A session that outlives its connection gets all that is published before, meanwhile and after, in order. Transactions are
published by each mixture of versions. The environment is that of `cluster_nodes.py`. Standard library only.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

FOLDER, OLD, NEW = Path(sys.argv[1]), *sys.argv[2:4]
os.environ["STERNA_BIN"] = OLD

from cluster_kept import Keeper, known_elsewhere
from cluster_nodes import Cluster, Node
from cluster_requests import Transactor
from harness import Failure

READER = "upgrade-reader"


class Ledger:
    """What was published, and what came."""

    def __init__(self) -> None:
        self.sent: list[str] = []

    def publish(self, node: Node, count: int) -> None:
        writer = Keeper(node, "upgrade-writer", expiry_s=0)
        for _ in range(count):
            payload = f"m{len(self.sent)}"
            writer.publish("upgrade/a", payload, 1 + len(self.sent) % 2)
            self.sent.append(payload)
        writer.close()

    def transact(self, node: Node) -> None:
        number = len(self.sent)
        Transactor(node, ["upgrade/t0", "upgrade/t1"]).transact(number)
        self.sent += [f"{number}:0", f"{number}:1"]


def versions(node: Node) -> dict[str, str]:
    """The versions of the wire form that each node states."""
    command = [NEW, "cluster", "status", "--json", "--url", f"http://127.0.0.1:{node.ports['admin']}"]
    told = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return {each["node"]: each["told"]["wire"] for each in told["nodes"]}


def main() -> None:
    ledger = Ledger()
    with Cluster(FOLDER) as cluster:
        reader = Keeper(cluster.nodes[0], READER)
        reader.want("upgrade/#")
        known_elsewhere(cluster, cluster.nodes[0])
        for node in cluster.nodes:
            ledger.publish(node, 5)
        got = reader.receive(len(ledger.sent))
        for at, node in enumerate(cluster.nodes):
            other = cluster.nodes[at - 1]
            node.stop()
            if at == 0:
                reader.close()
            ledger.publish(other, 5)
            node.arguments[0] = NEW
            node.start()
            cluster.settle()
            for each in cluster.nodes:
                ledger.publish(each, 3)
                ledger.transact(each)
            print(f"{at + 1} of {len(cluster.nodes)} upgraded: {versions(node)}", flush=True)
        back = Keeper(cluster.nodes[1], READER)
        while len(set(got)) < len(ledger.sent):
            got += back.receive(1)
        # What was acknowledged as its node stopped may come again.
        first = list(dict.fromkeys(got))
        unread = [node.figure("sterna_cluster_unreadable_batches_total") for node in cluster.nodes]
    if first != ledger.sent:
        raise Failure(f"{ledger.sent} was published, and {got} came")
    if any(unread):
        raise Failure(f"nodes could not read {unread} batches")
    print(f"{len(first)} messages came in order, {len(got) - len(first)} of them again")


if __name__ == "__main__":
    main()
