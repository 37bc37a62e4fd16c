"""Three regions: a server of NATS in the middle, and two leaf nodes of it with JetStream domains of their own. Each
region has nodes of Sterna. The ways of the leaves can be cut.

  cluster_regions.py [WORD]...   all rows, or those with one of the words in their name

Standard library; the clients are the broker's own command.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
import urllib.request
from pathlib import Path

from cluster import Reader, publish, publish_well, run_rows, status
from cluster_faults import Proxy
from cluster_kept import Keeper
from cluster_nodes import Node, Program, Programs, ask_nats, free_ports, wait_until
from harness import Failure

REGIONS = ("middle", "north", "south")
# Nodes of each region.
COUNTS = {"middle": 1, "north": 2, "south": 1}
# What crosses, as each region has it.
TOPICS = ("plant/#", "state/+")
# The south holds little for others, and refuses more.
FULL_BYTES = 1 << 20
# After an outage NATS looks for its sources again within half a minute.
MENDED_S = 90
# How long nothing must come.
SILENCE_S = 1.5
# Messages of a publisher while the way is cut.
COUNT = 300


class Server(Program):
    """A server of NATS with a domain of its own. One that leads to another is its leaf node."""

    def __init__(self, folder: Path, region: str, leaves: int, leads_to: int | None):
        self.port, = free_ports(1)
        folder = folder / f"nats-{region}"
        folder.mkdir(parents=True)
        way = (
            f"leafnodes {{ listen: 127.0.0.1:{leaves}, no_advertise: true }}\n"
            if leads_to is None
            else f'leafnodes {{ remotes: [{{ url: "nats-leaf://127.0.0.1:{leads_to}" }}], reconnect: 1 }}\n'
        )
        config = folder / "nats.conf"
        config.write_text(
            f"server_name: nats-{region}\nlisten: 127.0.0.1:{self.port}\n"
            f'jetstream {{ store_dir: "{folder / "data"}", domain: {region}, max_file_store: 4GB }}\n'
            f'ping_interval: "1s"\nping_max: 2\n{way}'
        )
        super().__init__(["nats-server", "-c", str(config)], folder / "log")


class Member(Node):
    """A node of a region."""

    def __init__(self, folder: Path, region: str, number: int, server: int):
        super().__init__(folder / f"{region}-{number}", f"node-{number}", [server])
        self.region = region
        others = ", ".join(f'{{ name = "{other}" }}' for other in REGIONS if other != region)
        topics = ", ".join(f'"{topic}"' for topic in TOPICS)
        more = f'maximum_region_bytes = {FULL_BYTES}\nregion_full = "refuse"\n' if region == "south" else ""
        self.config.write_text(
            f'{self.config.read_text()}replicas = 1\nname = "plant"\nregion = "{region}"\n'
            f"region_topics = [{topics}]\nremote_regions = [{others}]\n{more}\n"
            f'[[authorization.rule]]\nactions = ["delete"]\ntopics = ["state/#"]\n'
        )


class Servers:
    """Servers of NATS that are asked."""

    def __init__(self, ports: list[int]):
        self.servers = ports


class World(Programs):
    def __init__(self, folder: Path):
        shutil.rmtree(folder, ignore_errors=True)
        leaves, = free_ports(1)
        self.ways = {region: Proxy(leaves) for region in REGIONS[1:]}
        self.servers = {
            region: Server(folder, region, leaves, self.ways[region].port if region in self.ways else None)
            for region in REGIONS
        }
        self.nodes = {
            region: [Member(folder, region, number + 1, self.servers[region].port) for number in range(COUNTS[region])]
            for region in REGIONS
        }
        self.all = [node for nodes in self.nodes.values() for node in nodes]
        self.programs = [*self.servers.values(), *self.all]

    def settle(self) -> None:
        for way in self.ways.values():
            way.mend()
        for program in [*self.servers.values(), *self.all]:
            if program.process is None:
                program.start()
        for node in self.all:
            wait_until(f"{node.region} {node.name} is ready", node.is_ready)
        for region in REGIONS:
            wait_until(f"messages of {region} cross", lambda region=region: self.crosses(region), MENDED_S)

    def crosses(self, region: str) -> bool:
        """Whether what is published now in a region is heard of by all others."""
        publish(self.nodes[region][0], "mqtt", "plant/settle", "x", "-q", "1")
        time.sleep(0.5)
        seen = status(self.nodes[region][0])["regions"]
        return all(each["heard_ms"] is not None and each["waiting"] == 0 for each in seen)

    def first(self, region: str) -> Member:
        return self.nodes[region][0]


def same(reader: Reader, expected: list[str], in_order: bool = True) -> None:
    """Nothing more than what is expected has come."""
    found = reader.lines if in_order else sorted(reader.lines)
    if found != (expected if in_order else sorted(expected)):
        raise Failure(f"{len(found)} messages, {len(set(found))} different: {found[:12]}, expected {expected[:12]}")


def everywhere(world: World) -> None:
    """What is named crosses from each region to each reader of all others, once, at each quality of service; what is not
    named does not."""
    readers = [
        Reader(node, protocol, topic, *options)
        for node, protocol, options in (
            *((node, "mqtt", ("-q", "2")) for node in world.all),
            (world.first("south"), "amqp", ()),
            (world.first("middle"), "http", ()),
        )
        for topic in ("plant/line/#", "other/#")
    ]
    expected = []
    for region in REGIONS:
        for protocol in ("mqtt", "amqp", "http"):
            publish_well(world.first(region), protocol, "plant/line/1", f"{protocol} in {region}", "-q", "1")
            expected.append(f"{protocol} in {region}")
        for level in ("0", "2"):
            publish_well(world.first(region), "mqtt", "plant/line/1", f"{level} in {region}", "-q", level)
            expected.append(f"{level} in {region}")
        publish_well(world.first(region), "mqtt", "other/1", "stays", "-q", "1")
    for reader in readers[::2]:
        reader.wait(len(expected), MENDED_S)
    time.sleep(SILENCE_S)
    for reader in readers[::2]:
        same(reader, expected, in_order=False)
    north = [reader for reader, node in zip(readers[1::2], world.all, strict=False) if node.region == "north"]
    for reader in readers[1::2]:
        if reader.lines != ["stays"]:
            raise Failure(f"{reader.lines} of what does not cross")
    assert len(north) == COUNTS["north"]


def publish_many(node: Node, topic: str, payloads: list[str]) -> None:
    """One publisher, at QoS 1: it ends when all is acknowledged."""
    done = subprocess.run(
        [os.environ["STERNA_BIN"], "pub", node.url("mqtt"), "-t", topic, "-q", "1", "-l"],
        input="".join(f"{payload}\n" for payload in payloads), capture_output=True, text=True, timeout=60, check=False,
    )
    if done.returncode != 0:
        raise Failure(f"pub ended with {done.returncode}: {done.stderr}")


def a_cut(world: World) -> None:
    """The way is cut: local clients are served, and what crosses arrives afterwards, once and in order, also for a
    session that is away, and on a node that was killed meanwhile."""
    middle, north, south = (world.first(region) for region in REGIONS)
    away = Keeper(middle, "away")
    away.want("plant/cut/#")
    away.close()
    readers = {node.region: Reader(node, "mqtt", "plant/cut/#", "-q", "1") for node in (middle, north, south)}
    second = Reader(world.nodes["north"][1], "mqtt", "plant/cut/#", "-q", "1")
    publish_well(north, "mqtt", "plant/cut/x", "before", "-q", "1")
    for reader in [*readers.values(), second]:
        reader.wait(1, MENDED_S)
    world.ways["north"].cut()
    sent = {region: [f"{region} {number}" for number in range(COUNT)] for region in REGIONS}
    try:
        for region in REGIONS:
            publish_many(world.first(region), "plant/cut/x", sent[region])
        # Those of the same region, and those whose way is whole, have it meanwhile.
        readers["north"].wait(1 + COUNT)
        second.wait(1 + COUNT)
        readers["middle"].wait(1 + 2 * COUNT, MENDED_S)
        readers["south"].wait(1 + 2 * COUNT, MENDED_S)
        same(readers["north"], ["before", *sent["north"]])
        waiting = {each["region"]: each["waiting"] for each in status(north)["regions"]}
        if not all(waiting.values()):
            raise Failure(f"nothing waits in the north: {waiting}")
        second.__exit__()
        world.nodes["north"][1].kill()
        time.sleep(4)  # the servers of NATS have noticed
    finally:
        world.ways["north"].mend()
        world.nodes["north"][1].start()
    for region, reader in readers.items():
        found = list(reader.wait(1 + 3 * COUNT, MENDED_S))
        time.sleep(SILENCE_S)
        for source in REGIONS:
            of_source = [line for line in found if line.startswith(source)]
            if of_source != sent[source]:
                raise Failure(f"of {source}, {region} has {len(of_source)}, {len(set(of_source))} different")
        if len(reader.lines) != 1 + 3 * COUNT:
            raise Failure(f"{region} has {len(reader.lines)}")
    away = Keeper(middle, "away")
    if not away.present:
        raise Failure("the session is gone")
    found = away.receive(1 + 3 * COUNT)
    if sorted(found) != sorted(["before", *(each for region in REGIONS for each in sent[region])]):
        raise Failure(f"the session that was away has {len(found)}, {len(set(found))} different")
    for source in REGIONS:
        if [line for line in found if line.startswith(source)] != sent[source]:
            raise Failure(f"the session that was away has messages of {source} in another order")
    away.close()
    world.settle()


def retained_of(node: Node, topic: str) -> list[str]:
    """What a reader gets who comes now."""
    reader = Keeper(node, f"looks-{time.monotonic()}", expiry_s=0)
    try:
        reader.want(topic)
        return reader.receive(1, patience_s=0.3)
    except TimeoutError:
        return []
    finally:
        reader.close()


def clear(node: Member, topic: str) -> None:
    """Removes the retained message of a topic without publishing anything."""
    request = urllib.request.Request(f"{node.url('http')}/v1/topics/{topic}", method="DELETE")
    with urllib.request.urlopen(request, timeout=30):
        pass


def retained(world: World) -> None:
    """Retained messages that are set and cleared on both sides of a cut: the newest is on every node afterwards."""
    middle, north, south = (world.first(region) for region in REGIONS)
    for topic in ("state/a", "state/b", "state/c", "state/e"):
        publish_well(south, "mqtt", topic, "first", "-q", "1", "-r")
        for node in world.all:
            wait_until("it has come", lambda node=node, topic=topic: retained_of(node, topic) == ["first"], MENDED_S)
    world.ways["north"].cut()
    # `a`: the north last; `b`: the south last, after the north; `c`: cleared in the middle, after it was set in the north;
    # `d`: the same, and the middle has never heard of it; `e`: of the south, and removed in the middle.
    publish_well(south, "mqtt", "state/a", "south", "-q", "1", "-r")
    for topic in ("state/a", "state/b", "state/c", "state/d"):
        publish_well(north, "mqtt", topic, "north", "-q", "1", "-r")
    publish_well(south, "mqtt", "state/b", "south", "-q", "1", "-r")
    for topic in ("state/c", "state/d"):
        publish_well(middle, "mqtt", topic, "", "-q", "1", "-r")
    clear(middle, "state/e")
    second = world.nodes["north"][1]
    wait_until("the north goes on by itself", lambda: retained_of(second, "state/b") == ["north"])
    world.ways["north"].mend()
    expected = {"state/a": ["north"], "state/b": ["south"], "state/c": [], "state/d": [], "state/e": []}
    for node in world.all:
        for topic, values in expected.items():
            wait_until(
                f"{node.region} {node.name} has {values} of {topic}",
                lambda node=node, topic=topic, values=values: retained_of(node, topic) == values, MENDED_S,
            )
    # Who starts later finds the same.
    second.kill()
    second.start()
    wait_until("it is ready", second.is_ready)
    for topic, values in expected.items():
        if retained_of(second, topic) != values:
            raise Failure(f"the node that started later has {retained_of(second, topic)} of {topic}")
    for topic in expected:
        publish_well(middle, "mqtt", topic, "", "-q", "1", "-r")
    for node in world.all:
        for topic in expected:
            wait_until("it is cleared", lambda node=node, topic=topic: retained_of(node, topic) == [], MENDED_S)


def copies(world: World, region: str, of: str) -> dict[str, int]:
    """The retained messages that a region has of another: how many of each topic."""
    server = world.servers[region]
    question = f'{{"subjects_filter": "sterna.plant@{region}.retained-of.{of}.>"}}'.encode()
    answer = ask_nats(Servers([server.port]), f"$JS.API.STREAM.INFO.STERNA_plant@{region}_RETAINED", question)
    return answer["state"].get("subjects") or {}


def replaced(world: World) -> None:
    """NATS copies the retained messages of other regions, and replaces none of them: nodes remove those that have been replaced,
    and those that have expired. The same is there afterwards, also for who starts later."""
    north, second = world.nodes["north"]
    south = world.first("south")
    for number in range(COUNT // 10):
        publish_well(south, "mqtt", "state/replaced", str(number), "-q", "1", "-r")
    last = [str(COUNT // 10 - 1)]
    for node in world.all:
        wait_until("the last has come", lambda node=node: retained_of(node, "state/replaced") == last, MENDED_S)
    subject = "sterna.plant@north.retained-of.south.t.state.replaced"
    wait_until("those before are removed", lambda: copies(world, "north", "south").get(subject) == 1, MENDED_S)
    publish_well(south, "mqtt", "state/brief", "brief", "-q", "1", "-r", "-D", "publish", "message-expiry-interval", "3")
    publish_well(south, "mqtt", "state/brief", "briefer", "-q", "1", "-r", "-D", "publish", "message-expiry-interval", "3")
    brief = "sterna.plant@north.retained-of.south.t.state.brief"
    wait_until("it has come", lambda: brief in copies(world, "north", "south"), MENDED_S)
    # Nodes look once a minute for what has expired.
    wait_until("it has expired, and is removed", lambda: brief not in copies(world, "north", "south"), MENDED_S)
    second.kill()
    second.start()
    wait_until("it is ready", second.is_ready)
    for node in (north, second):
        if (retained_of(node, "state/replaced"), retained_of(node, "state/brief")) != (last, []):
            raise Failure(f"{node.name} has {retained_of(node, 'state/replaced')}, {retained_of(node, 'state/brief')}")
    publish_well(south, "mqtt", "state/replaced", "", "-q", "1", "-r")
    for node in world.all:
        wait_until("it is cleared", lambda node=node: retained_of(node, "state/replaced") == [], MENDED_S)


def full(world: World) -> None:
    """Where too much waits, and that is configured so, publishers are refused; what was acknowledged arrives."""
    south, north = world.first("south"), world.first("north")
    with Reader(north, "mqtt", "plant/full", "-q", "1") as reader:
        publish_well(south, "mqtt", "plant/full", "0", "-q", "1")
        reader.wait(1, MENDED_S)
        world.ways["south"].cut()
        sent = ["0"]
        payload = "x" * 40_000
        for number in range(1, 100):
            done = publish(south, "mqtt", "plant/full", f"{number} {payload}", "-q", "1")
            if done.returncode != 0:
                break
            sent.append(f"{number} {payload}")
            time.sleep(0.1)
        else:
            raise Failure("nothing was refused")
        if "quota" not in done.stderr.lower() and "0x97" not in done.stderr:
            raise Failure(f"it was refused so: {done.stderr}")
        publish_well(south, "mqtt", "local/topic", "goes on", "-q", "1")
        world.ways["south"].mend()
        reader.wait(len(sent), MENDED_S)
        time.sleep(SILENCE_S)
        same(reader, sent)

        def is_taken() -> bool:
            return publish(south, "mqtt", "plant/full", "after", "-q", "1").returncode == 0

        wait_until("there is room again", is_taken, MENDED_S)
        reader.wait(len(sent) + 1, MENDED_S)


def told(world: World) -> None:
    """What is told of regions."""
    for node in world.all:
        seen = {each["region"]: each for each in status(node)["regions"]}
        if sorted(seen) != sorted(region for region in REGIONS if region != node.region):
            raise Failure(f"{node.region} tells of {sorted(seen)}")
        for each in seen.values():
            if each["waiting"] != 0 or each["behind"] != 0 or each["heard_ms"] is None:
                raise Failure(f"{node.region} tells {each}")
    done = subprocess.run(
        [os.environ["STERNA_BIN"], "cluster", "status", "-L", world.first("north").url("admin")],
        capture_output=True, text=True, timeout=30, check=False,
    )
    if "REGION" not in done.stdout or "south" not in done.stdout:
        raise Failure(f"{done.stdout}{done.stderr}")


def a_restart(world: World) -> None:
    """All of a region stops while the others go on: it has what it missed for its sessions, once."""
    middle, north = world.first("middle"), world.first("north")
    away = Keeper(north, "sleeper")
    away.want("plant/restart")
    away.close()
    for program in [*world.nodes["north"], world.servers["north"]]:
        program.stop()
    sent = [str(number) for number in range(COUNT)]
    publish_many(middle, "plant/restart", sent)
    world.settle()
    away = Keeper(north, "sleeper")
    found = away.receive(COUNT)
    if found != sent:
        raise Failure(f"{len(found)}, {len(set(found))} different")
    away.nothing_more()
    away.close()


def main() -> None:
    rows = [
        ("what is named crosses to all regions, once", everywhere),
        ("what is told of regions", told),
        ("a way is cut", a_cut),
        ("retained messages on both sides of a cut", retained),
        ("retained messages that are replaced, and that expire", replaced),
        ("too much waits", full),
        ("a whole region stops", a_restart),
    ]
    with World(Path(os.environ["STERNA_BUILD"]) / "cluster-regions") as world:
        run_rows(rows, lambda row: row(world), world.mend)


if __name__ == "__main__":
    main()
