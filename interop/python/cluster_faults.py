"""Faults of a cluster: a proxy on each way between two of its parts, and what a nemesis does to them. Standard library
only; a C compiler where clocks are to jump.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import random
import selectors
import shutil
import signal
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from cluster_nodes import ABSENCE_MS, COUNT, Cluster, Node, Program, ask_nats, wait_until
from cluster_sleepers import Sleepers
from harness import INTEROP

# How long a fault lasts, in seconds. Less than `absence_ms` of the nodes, after which nothing waits for one.
FAULT_S = (1.0, 6.0)
# A server that is slow stands still for so long, and goes on for so long, again and again.
SLOW_S = (0.08, 0.02)
# A clock jumps by up to so many seconds, to either side.
JUMP_S = 30 * 24 * 3_600
# Messages that wait for a reader, and how long one waits at most that was lost with its readers.
QUEUED, PAUSE_MS = 100_000, 1_000
# Takes most of a minute, and is played where it is named.
LATE = "kill NATS late"
KINDS = (
    "kill NATS", "kill all NATS", "pause NATS", "slow NATS", "cut two servers apart", "cut a server off",
    "cut a node off", "cut one way", "half a way", "pause a node", "kill a node", "stop a node", "a clock jumps", "revoke a right",
    LATE, "a node starts with a wrong clock", "NATS starts with a wrong clock",
)
# Rights of a node in NATS, each with the way; one of them is taken away for a while.
RIGHTS = (
    ("subscribe", "sterna.sterna.alive.*"), ("subscribe", "sterna.sterna.to.{node}.*"),
    ("subscribe", "sterna.sterna.give.{node}.>"), ("subscribe", "_INBOX.>"), ("publish", "sterna.sterna.alive.{node}"),
    ("publish", "sterna.sterna.mark.{node}"), ("publish", "sterna.sterna.log.>"), ("publish", "sterna.sterna.inbox.>"),
    ("publish", "sterna.sterna.kept.*"), ("publish", "sterna.sterna.session.*"), ("publish", "$JS.API.>"),
)
# How long ends are kept: no longer than a node that is cut off may be back.
ENDS = f"ended_session_ms = {ABSENCE_MS}\nended_filter_ms = 1000\ncleared_topic_ms = 1000\n"
# How long after that a server is killed, in seconds.
LATE_S = 6
SESSIONS = "STERNA_sterna_SESSIONS"
# A wrong clock differs at least by so many seconds, and that of a server of NATS by at most so many: what NATS removes by its
# own clock lasts longer.
WRONG_S, WRONG_NATS_S = 600, 3_000


class Proxy:
    """From one part to another. It can be cut, so that nothing passes and nobody is told: forth, back, or both."""

    def __init__(self, port: int):
        self.target = port
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.is_cut_forth = self.is_cut_back = False
        threading.Thread(target=self.accept, daemon=True).start()

    def cut(self, forth: bool = True, back: bool = True) -> None:
        self.is_cut_forth, self.is_cut_back = forth, back

    def mend(self) -> None:
        self.cut(False, False)

    def accept(self) -> None:
        while True:
            client, _ = self.listener.accept()
            threading.Thread(target=self.serve, args=(client,), daemon=True).start()

    def serve(self, client: socket.socket) -> None:
        try:
            while self.is_cut_forth or self.is_cut_back:
                time.sleep(0.02)
            with socket.create_connection(("127.0.0.1", self.target), 5) as server:
                server.settimeout(None)
                for one in (client, server):
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                back = threading.Thread(target=self.pump, args=(server, client, "is_cut_back"), daemon=True)
                back.start()
                self.pump(client, server, "is_cut_forth")
                back.join()
        except OSError:
            pass
        finally:
            client.close()

    def pump(self, source: socket.socket, sink: socket.socket, flag: str) -> None:
        selector = selectors.DefaultSelector()
        selector.register(source, selectors.EVENT_READ)
        try:
            while True:
                while getattr(self, flag):
                    time.sleep(0.02)
                if not selector.select(0.1) or getattr(self, flag):
                    continue
                data = source.recv(1 << 16)
                if not data:
                    break
                sink.sendall(data)
        except OSError:
            pass
        finally:
            selector.close()
            for one in (source, sink):
                try:
                    one.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass


class Clock:
    """The wall clock of one process, which is set by a library that the process is started with."""

    def __init__(self, folder: Path, library: Path, program: Program):
        self.file = folder / "clock-offset"
        self.set(0)
        program.environment |= {"LD_PRELOAD": str(library), "CLOCK_OFFSET_FILE": str(self.file)}

    def set(self, offset_s: int) -> None:
        # In place: the process has it in its memory.
        with self.file.open("r+b" if self.file.exists() else "wb") as file:
            file.write(struct.pack("=q", offset_s))


def clock_library(folder: Path) -> Path | None:
    """Builds the library; `None` where there is no compiler."""
    compiler = shutil.which("cc") or shutil.which("c++")
    if not compiler:
        return None
    library = folder / "offset.so"
    language = [] if compiler.endswith("cc") else ["-x", "c"]
    subprocess.run([compiler, *language, "-O1", "-shared", "-fPIC", "-o", str(library), str(INTEROP / "clock" / "offset.c")],
                   check=True)
    return library


def shifted_nats(folder: Path) -> Path | None:
    """Builds a server of NATS whose wall clock is set by its environment; `None` where that fails."""
    source = subprocess.run(["go", "env", "GOROOT"], cwd=INTEROP / "gonats", capture_output=True, text=True, check=True)
    package = Path(source.stdout.strip()) / "src" / "time"
    reads = "\tsec, nsec, mono := runtimeNow()\n"
    text = (package / "time.go").read_text()
    if text.count(reads) != 1:
        print("this version of Go reads its clock elsewhere: servers of NATS keep theirs", flush=True)
        return None
    (folder / "time.go").write_text(text.replace(reads, f"{reads}\tsec += shift\n"))
    over = {str(package / "time.go"): str(folder / "time.go"), str(package / "shift.go"): str(INTEROP / "clock" / "shift.go")}
    (folder / "overlay.json").write_text(json.dumps({"Replace": over}))
    program = folder / "nats-server"
    subprocess.run(["go", "build", "-overlay", str(folder / "overlay.json"), "-o", str(program), "."],
                   cwd=INTEROP / "gonats", check=True)
    return program


@dataclass
class Fault:
    kind: str
    told: str
    # Nodes whose processes have ended.
    killed: set[str] = field(default_factory=set)
    # The node that may not be sure of anything meanwhile; empty for each of them, `None` for none.
    troubled: str | None = ""
    # Whether what NATS has been told may be known to nobody.
    delays_records: bool = False
    # What was lost of clients that were away meanwhile.
    lost: list[str] = field(default_factory=list)


class Arena:
    """A cluster with a proxy on each way between two of its parts, and a clock of its own for each node."""

    def __init__(self, folder: Path, seed: int, only: str = "", queues: str = ""):
        self.random = random.Random(seed)
        # Whether nodes are told to take part with any clock.
        self.trusts = False
        self.cluster = Cluster(folder)
        self.library = clock_library(folder)
        # Whether records of sessions that have ended are written again, which must be noticed.
        self.returns = False
        self.shifted = shifted_nats(folder) if only in "NATS starts with a wrong clock" else None
        impossible = set() if self.library else {"a clock jumps", "a node starts with a wrong clock"}
        impossible |= set() if self.shifted else {"NATS starts with a wrong clock"}
        impossible |= set() if only else {LATE}
        self.kinds = [kind for kind in KINDS if only in kind and kind not in impossible]
        for nats in self.cluster.nats:
            nats.arguments[0] = str(self.shifted or nats.arguments[0])
        self.sleepers = Sleepers(self.cluster.nodes)
        # By node and the number of a server, and by the numbers of two servers.
        self.ways: dict[str, list[Proxy]] = {}
        self.routes: dict[tuple[int, int], Proxy] = {}
        self.clocks: dict[str, Clock] = {}
        self.route_servers()
        self.give_rights()
        secret = folder / "secret"
        secret.write_text("right\n")
        for node in self.cluster.nodes:
            text = node.config.read_text()
            text += f'user = "{node.name}"\npassword_file = "{secret}"\n'
            self.ways[node.name] = [Proxy(port) for port in self.cluster.servers]
            for proxy in self.ways[node.name]:
                text = text.replace(f"nats://127.0.0.1:{proxy.target}", f"nats://127.0.0.1:{proxy.port}")
            # A machine that is busy reads late: a reader's queue that is full is another promise.
            # Members leave with what they have, again and again: that waits no longer than a round.
            text += (
                f"{ENDS}\n[broker]\nmaximum_queued_messages = {QUEUED}\nmaximum_group_queued_messages = {QUEUED}\n"
                f"maximum_redelivery_pause_ms = {PAUSE_MS}\n{queues}"
            )
            node.config.write_text(text)
            if self.library:
                self.clocks[node.name] = Clock(node.config.parent, self.library, node)

    def route_servers(self) -> None:
        """Servers know of each other by proxies alone."""
        for number, nats in enumerate(self.cluster.nats):
            others = [other for other in range(COUNT) if other != number]
            for other in others:
                self.routes[number, other] = Proxy(self.cluster.nats[other].route)
            urls = ", ".join(f"nats://127.0.0.1:{self.routes[number, other].port}" for other in others)
            config = Path(nats.arguments[-1])
            head = config.read_text().partition("cluster {")[0]
            # Neither clients nor servers must learn ways around the proxies: nobody listens on the address that is told.
            config.write_text(
                f"{head}cluster {{ name: nats, listen: 127.0.0.1:{nats.route}, routes: [{urls}], no_advertise: true, "
                'advertise: "127.0.0.1:1" }\ninclude "rights.conf"\n'
            )

    def give_rights(self, node: str = "", way: str = "", subject: str = "") -> None:
        """Writes for each server what each node may do; one node may not do one thing."""
        users = []
        for name in (one.name for one in self.cluster.nodes):
            denied = {"publish": "", "subscribe": ""}
            if name == node:
                denied[way] = f', deny: ["{subject.format(node=node)}"]'
            users.append(
                f"{{ user: {name}, password: right, permissions: {{\n"
                f'  publish: {{ allow: ["sterna.sterna.>", "_INBOX.>", "$JS.API.>"]{denied["publish"]} }}\n'
                f'  subscribe: {{ allow: ["sterna.sterna.>", "_INBOX.>"]{denied["subscribe"]} }} }} }}')
        rights = f"accounts {{ NODES: {{ jetstream: enabled, users: [\n{chr(10).join(users)}\n] }} }}\n"
        for nats in self.cluster.nats:
            Path(nats.arguments[-1]).with_name("rights.conf").write_text(rights)

    def revoke(self, node: Node, seconds: float, right: tuple[str, str]) -> None:
        """Has all servers take a right away from a node, and give it back."""
        for denied in ((node.name, *right), ()):
            self.give_rights(*denied)
            for nats in self.cluster.nats:
                nats.send(signal.SIGHUP)
            if denied:
                time.sleep(seconds)

    def between(self, one: int, other: int) -> list[Proxy]:
        """Both ways between two servers."""
        return [self.routes[one, other], self.routes[other, one]]

    def play(self, note: Callable[[str, str, int], None], kind: str = "", seconds: float = 0, at: int | None = None,
             right: tuple[str, str] | None = None) -> Fault:
        """One fault, from its beginning to its end. Tells `note` of nodes that are killed or have stopped, when they are,
        and for how many milliseconds they were stopping."""
        kind = kind or self.random.choice(self.kinds)
        seconds = seconds or self.random.uniform(*FAULT_S)
        at = self.random.randrange(COUNT) if at is None else at
        self.note = note
        node, nats = self.cluster.nodes[at], self.cluster.nats[at]
        fault = Fault(kind, f"{kind} {at + 1} for {seconds:.1f} s")
        print(f"  {fault.told}", flush=True)
        if kind == LATE:
            self.kill_late(node, self.cluster.nats if self.random.random() < 0.5 else [nats])
            fault.killed.add(node.name)
        elif kind in ("kill NATS", "kill all NATS"):
            victims = [nats] if kind == "kill NATS" else self.cluster.nats
            for victim in victims:
                victim.kill()
            time.sleep(seconds)
            for victim in victims:
                victim.start()
        elif kind == "pause NATS":
            self.pause(nats, seconds)
        elif kind == "slow NATS":
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                self.pause(nats, SLOW_S[0])
                time.sleep(SLOW_S[1])
        elif kind.startswith("cut") or kind == "half a way":
            self.cut(kind, at, seconds)
        elif kind == "revoke a right":
            right = right or self.random.choice(RIGHTS)
            fault.told += f" to {right[0]} to {right[1].format(node=node.name)}"
            print(f"  {fault.told}", flush=True)
            self.revoke(node, seconds, right)
        elif kind == "a clock jumps":
            self.clocks[node.name].set(self.random.randint(-JUMP_S, JUMP_S))
            time.sleep(seconds)
            if self.random.random() < 0.5:
                self.clocks[node.name].set(0)
        elif kind.endswith("wrong clock"):
            self.sleepers.lie_down()
            if kind.startswith("NATS"):
                self.start_nats_wrong(at, seconds)
            else:
                self.start_node_wrong(node)
                fault.killed.add(node.name)
            self.cluster.settle()
            fault.lost = self.sleepers.get_up()
        else:
            self.disturb(kind, node, seconds)
            if kind in ("kill a node", "stop a node"):
                fault.killed.add(node.name)
        if kind in ("kill a node", "stop a node", "a clock jumps", "a node starts with a wrong clock"):
            fault.troubled = None
        elif kind in ("pause a node", "cut a node off", "half a way", "revoke a right"):
            fault.troubled = node.name
        fault.delays_records = fault.troubled is not None
        return fault

    def kill_late(self, node: Node, servers: list[Program]) -> None:
        """A node dies, and others take over what it has left. When NATS has forgotten the ends of that, servers are killed."""
        records = self.records() if self.returns else {}
        self.note("killed", node.name, 0)
        node.kill()
        # Others give it up, and what they have ended is forgotten.
        time.sleep(2 * ABSENCE_MS / 1e3 + LATE_S)
        wait_until("the node is given up", lambda: all(
            other.figure("sterna_cluster_nodes_here") == COUNT - 2 for other in self.cluster.nodes if other is not node))
        if records:
            wait_until("some of its sessions are forgotten", lambda: set(records) - self.subjects())
            for subject in set(records) - self.subjects():
                self.ask_nats(subject, records[subject])
        for server in servers:
            server.kill()
        for server in servers:
            server.start()
        node.start()

    def ask_nats(self, subject: str, payload: bytes) -> dict:
        """Asks NATS as a node."""
        return ask_nats(self.cluster, subject, payload, self.cluster.nodes[0].name)

    def subjects(self) -> set[str]:
        """The subjects of all sessions that have a record."""
        question = b'{"subjects_filter": "sterna.sterna.session.*"}'
        state = self.ask_nats(f"$JS.API.STREAM.INFO.{SESSIONS}", question)["state"]
        return set(state.get("subjects") or {})

    def records(self) -> dict[str, bytes]:
        """The records of all sessions."""
        found = {}
        for subject in self.subjects():
            question = json.dumps({"last_by_subj": subject}).encode()
            answer = self.ask_nats(f"$JS.API.STREAM.MSG.GET.{SESSIONS}", question)
            if "message" in answer:
                found[subject] = base64.b64decode(answer["message"].get("data", ""))
        return found

    def wrong_s(self, most_s: int) -> int:
        """An offset of a clock, to either side."""
        return self.random.choice((-1, 1)) * self.random.randint(WRONG_S, most_s)

    def start_node_wrong(self, node: Node) -> None:
        """A node starts with a wrong clock, which `/readyz` names. Then that is set, or the node starts with the right one."""
        clock = self.clocks[node.name]
        self.note("killed", node.name, 0)
        node.kill()
        clock.set(self.wrong_s(JUMP_S))
        node.start()
        wait_until(f"{node.name} says that its clock is wrong", lambda: self.is_judged(node, "this node"))
        self.sleepers.knock(node)
        if self.random.random() < 0.5 and not self.trusts:
            clock.set(0)
            return
        node.kill()
        clock.set(0)
        node.start()

    def start_nats_wrong(self, at: int, seconds: float) -> None:
        """A server of NATS starts with a wrong clock, which nodes name where it leads something."""
        nats = self.cluster.nats[at]
        for offset_s in (self.wrong_s(WRONG_NATS_S), 0):
            nats.kill()
            nats.environment["CLOCK_OFFSET_S"] = str(offset_s)
            nats.start()
            time.sleep(seconds)

    def is_judged(self, node: Node, word: str) -> bool:
        """Whether `/readyz` names a wrong clock; or where nobody judges, the node is ready."""
        page = node.page("/readyz")
        return f"the clock of {word} is" in page or (page == "ready\n" and self.trusts)

    def cut(self, kind: str, at: int, seconds: float) -> None:
        """Cuts proxies for a while."""
        node = self.cluster.nodes[at].name
        others = [other for other in range(COUNT) if other != at]
        directions = {}
        if kind == "cut two servers apart":
            cut = self.between(at, self.random.choice(others))
        elif kind == "cut a server off":
            cut = list(itertools.chain(*(self.between(at, other) for other in others)))
            cut += [ways[at] for ways in self.ways.values()]
        elif kind == "cut a node off":
            cut = self.ways[node]
        else:
            cut = [self.random.choice(self.ways[node])]
        if kind == "half a way":
            # To NATS or from it, on all ways of the node.
            forth = self.random.random() < 0.5
            cut, directions = self.ways[node], {"forth": forth, "back": not forth}
        for proxy in cut:
            proxy.cut(**directions)
        time.sleep(seconds)
        for proxy in cut:
            proxy.mend()

    def disturb(self, kind: str, node: Node, seconds: float) -> None:
        if kind == "pause a node":
            self.pause(node, seconds)
            return
        if kind == "kill a node":
            self.note("killed", node.name, 0)
            node.kill()
        else:
            begun_s = time.monotonic()
            code = node.stop()
            self.note("stopped", node.name, int((time.monotonic() - begun_s) * 1e3))
            if code != 0:
                raise RuntimeError(f"{node.name} ended with {code}")
        time.sleep(seconds)
        if self.library:
            # A process reads its clock at the start, and this one may have jumped since.
            self.clocks[node.name].set(0)
        node.start()

    @staticmethod
    def pause(program: Program, seconds: float) -> None:
        program.stand_still()
        time.sleep(seconds)
        program.send(signal.SIGCONT)
