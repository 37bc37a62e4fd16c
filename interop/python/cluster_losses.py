"""Rows of the cluster's suite about what NATS loses: its disks, or single streams, while nodes run.

Standard library only.
"""

from __future__ import annotations

import json
import shutil
import urllib.request

from cluster_kept import Keeper, back_at, end, known_elsewhere, numbered
from cluster_nodes import Cluster, Node, ask_nats, wait_until
from cluster_sessions import FOREVER_S, PUBACK, Client
from harness import Failure
from mqtt_client import PUBREC
import wire

STREAMS = ("NODES", "INBOX", "RETAINED", "SESSIONS", "LOG", "KEPT")


def streams(node: Node) -> list[str]:
    """The streams that a node finds in NATS."""
    url = f"http://127.0.0.1:{node.ports['admin']}/admin/v1/cluster"
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return [stream["stream"] for stream in json.load(answer)["streams"]]
    except OSError:
        return []


def last_of(cluster: Cluster, stream: str) -> int:
    return ask_nats(cluster, f"$JS.API.STREAM.INFO.STERNA_sterna_{stream}")["state"]["last_seq"]


def made_again(cluster: Cluster, wanted: tuple[str, ...], before: dict[str, int]) -> None:
    """Waits until streams are there again, whose numbers go on, and all nodes are ready."""
    wait_until("all streams are there", lambda: len(streams(cluster.nodes[0])) == len(STREAMS), 60)
    for node in cluster.nodes:
        wait_until(
            f"{node.name} has noticed",
            lambda node=node: all(
                f'stream="{stream}"' in one
                for stream in wanted
                for one in ["".join(line for line in node.log.read_text(errors="replace").splitlines() if "another stream" in line)]
            ),
        )
    cluster.settle()
    for stream in wanted:
        if last_of(cluster, stream) < before[stream]:
            raise Failure(f"numbers of {stream} begin again")


def snapshot(cluster: Cluster, node: Node, topic: str) -> None:
    """A retained message, as a node that did not publish it has it."""
    reader = Keeper(node, "snapshot", expiry_s=0)
    reader.want(topic)
    if reader.receive(1) != ["kept"]:
        raise Failure(f"the retained message at {node.name} is {reader.seen}")
    reader.close()


def deleted(cluster: Cluster) -> None:
    """Somebody deletes all streams, and then single ones: what nodes hold is there again, and sessions go on."""
    first, second, third = cluster.nodes
    reader = Keeper(first, "lost")
    reader.want("lost/#")
    away = Keeper(second, "lost-away")
    away.want("lost/#")
    away.close()
    known_elsewhere(cluster, first, 1)
    writer = Keeper(third, "lost-writer")
    writer.send(wire.publish("losses/kept", b"kept", 1, 5, retain=True))
    writer.check(writer.expect(0x40))
    writer.offer(7, "lost/once", "m0", 2)
    writer.expect(PUBREC)
    if reader.receive(1) != ["m0"]:
        raise Failure(f"first came {reader.seen}")
    number, waits = 1, ["m0"]
    for lost in (STREAMS, ("LOG",), ("KEPT",), ("NODES", "SESSIONS")):
        before = {stream: last_of(cluster, stream) for stream in STREAMS}
        for node in cluster.nodes:
            node.log.write_text("")
        for stream in lost:
            if "error" in (answer := ask_nats(cluster, f"$JS.API.STREAM.DELETE.STERNA_sterna_{stream}")):
                raise Failure(f"{stream} is not deleted: {answer}")
        made_again(cluster, lost, before)
        if "LOG" in lost:
            # What nobody had got is lost with the stream.
            waits = []
        writer.publish("lost/a", f"m{number}", 2, 8)
        if reader.receive(1) != [f"m{number}"]:
            raise Failure(f"after {lost} came {reader.seen}")
        waits.append(f"m{number}")
        number += 1
    # The same publication again, at another node: it is known.
    writer.close()
    again = Keeper(second, "lost-writer")
    if not again.present:
        raise Failure("the publisher's session is not present")
    again.offer(7, "lost/once", "m0", 2, again=True)
    again.expect(PUBREC)
    again.release(7)
    reader.nothing_more()
    reader.close()
    moved = back_at(second, "lost", [])
    again.publish("lost/a", f"m{number}", 2, 8)
    waits.append(f"m{number}")
    if moved.receive(1) != waits[-1:]:
        raise Failure(f"whose session has moved got {moved.seen}")
    late = back_at(third, "lost-away", [], is_quiet=False)
    got = late.receive(len(waits))
    # Nodes may have had more of it in their memory than NATS: each node what it had read before the loss.
    while got[-1] != waits[-1]:
        got += late.receive(1)
    if got[-len(waits) :] != waits or got != [each for each in numbered(0, number + 1) if each in got]:
        raise Failure(f"who was away got {got}, but {waits} waited")
    late.nothing_more()
    late.close()
    # Who begins now knows what the others have written again, and nothing else.
    third.kill()
    third.start()
    cluster.settle()
    snapshot(cluster, third, "losses/kept")
    late = Keeper(third, "lost-late", expiry_s=0)
    late.publish("lost/a", "from who was not there", 1)
    if moved.receive(1) != ["from who was not there"]:
        raise Failure(f"a node that has begun since does not know of it: {moved.seen}")
    late.send(wire.publish("losses/kept", b"", 1, 5, retain=True))
    late.check(late.expect(0x40))
    for client in (late, moved, again):
        client.close()
    end(cluster, "lost", "lost-away", "lost-writer")


def a_full_log(cluster: Cluster) -> None:
    """NATS takes nothing more for the log: who reads on makes room, and the publisher is acknowledged then."""
    first, second, third = cluster.nodes
    reader = Keeper(first, "full")
    reader.want("full/#")
    away = Keeper(second, "full-away")
    away.want("full/#")
    known_elsewhere(cluster, first)
    writer = Keeper(second, "full-writer", expiry_s=0)
    for payload in numbered(0, 3):
        writer.publish("full/a", payload, 1)
    name = "STERNA_sterna_LOG"
    info = ask_nats(cluster, f"$JS.API.STREAM.INFO.{name}")
    config = info["config"]

    def room(most_bytes: int) -> None:
        wanted = json.dumps({**config, "max_bytes": most_bytes}).encode()
        if "error" in (answer := ask_nats(cluster, f"$JS.API.STREAM.UPDATE.{name}", wanted)):
            raise Failure(f"the stream is not changed: {answer}")

    room(info["state"]["bytes"] + 10)
    try:
        writer.offer(7, "full/a", "m3", 1)
        wait_until("NATS refuses it", lambda: second.figure("sterna_cluster_failed_attempts_total") > 0)
        # What a session of that node settles meanwhile is kept: it does not come again at another.
        if away.receive(3) != numbered(0, 3):
            raise Failure(f"who is to go got {away.seen}")
        away.nothing_more()
        back_at(third, "full-away", []).close()
        if reader.receive(3) != numbered(0, 3):
            raise Failure(f"there came {reader.seen}")
    finally:
        room(config["max_bytes"])
    writer.check(writer.expect(0x40))
    if reader.receive(1) != ["m3"]:
        raise Failure(f"there came {reader.seen}")
    reader.nothing_more()
    reader.close()
    writer.close()
    end(cluster, "full", "full-away")


def all_disks(cluster: Cluster) -> None:
    """All servers of NATS come back with empty disks: nodes make the streams again, and write what they know."""
    first, second, third = cluster.nodes
    reader = Keeper(second, "disks")
    reader.want("disks/#")
    writer = Keeper(third, "disks-writer", expiry_s=0)
    known_elsewhere(cluster, second, 1)
    here = Client(first, "disks-here", expiry_s=FOREVER_S, will="disks/will").admitted()
    stays = Client(second, "disks-stays", expiry_s=FOREVER_S).admitted()
    writer.publish("disks/a", "m0", 2)
    reader.receive(1)
    before = {stream: last_of(cluster, stream) for stream in STREAMS}
    for node in cluster.nodes:
        node.log.write_text("")
    for server in cluster.nats:
        server.kill()
    for number in range(1, 4):
        shutil.rmtree(cluster.folder / f"nats-{number}" / "data")
    for server in cluster.nats:
        server.start()
    made_again(cluster, STREAMS, before)
    writer.publish("disks/a", "m1", 2)
    if reader.receive(1) != ["m1"]:
        raise Failure(f"there came {reader.seen}")
    stays.publish("nowhere")
    if (answer := stays.read()) is None or answer[0] != PUBACK:
        raise Failure(f"whose session goes on was told {answer}")
    later = Client(third, "disks-here", expiry_s=FOREVER_S).admitted()
    here.expect_taken_over()
    if reader.receive(1) != ["disks-here"]:
        raise Failure(f"the will is {reader.seen}")
    reader.nothing_more()
    for client in (later, stays, reader, writer):
        client.close()
    moved = back_at(first, "disks", [])
    if moved.present:
        moved.close()
    end(cluster, "disks", "disks-here", "disks-stays")


ROWS = [
    ("lost: NATS takes nothing more for the log", a_full_log),
    ("lost: streams are deleted while nodes run", deleted),
    ("lost: all servers of NATS lose their disks", all_disks),
]
