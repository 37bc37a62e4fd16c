"""What a node may do in NATS: each right is missing in turn, at the start and by a reload of NATS' configuration. A node
without one says which, takes no part, and acknowledges nothing that is lost.

  cluster_rights.py [WORD]...   all rows, or those with one of the words in their name

The environment is that of `cluster_nodes.py`, and STERNA_BUILD a folder. Standard library only.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from cluster import Reader, publish_well, run_rows, status
from cluster_nodes import Node, Program, free_ports, wait_until
from harness import Failure

FOLDER = Path(os.environ["STERNA_BUILD"]) / "cluster-rights"
# After which nothing waits for a node. Longer than the patience, after which publishers are refused.
ABSENCE_MS, PATIENCE_MS = 6_000, 2_000
# How long a publisher waits for an answer.
ANSWER_S = 2
STREAM = "STERNA_sterna_LOG"
# The subjects that a node named `one` needs, as it says them: docs/cluster-wire.md, "Rights in NATS".
SUBSCRIBES = (
    "sterna.sterna.alive.*", "sterna.sterna.to.one.*", "sterna.sterna.give.one.0.*", "sterna.sterna.ask",
    "sterna.sterna.drain", "sterna.sterna.export", "sterna.sterna.clock", "sterna.sterna.door.one", "sterna.sterna.for.one",
    "sterna.sterna.ended.one", "_INBOX.>",
)
PUBLISHES = (
    "sterna.sterna.alive.one", "sterna.sterna.to.*.one", "sterna.sterna.give.*.0.one", "sterna.sterna.ask",
    "sterna.sterna.drain", "sterna.sterna.clock", "sterna.sterna.door.*", "sterna.sterna.floor.*", "sterna.sterna.for.*", "sterna.sterna.ended.*", "sterna.sterna.node.one.join",
    "sterna.sterna.node.*.want.*", "sterna.sterna.ban.*", "sterna.sterna.inbox.*.one", "sterna.sterna.kept.*", "sterna.sterna.session.*",
    "sterna.sterna.mark.one", "sterna.sterna.log.t.>", "sterna.sterna.log.together", "sterna.sterna.log.long.*",
    "sterna.sterna.retained.t.>", "sterna.sterna.retained.long.*", "_INBOX.>",
    "$JS.API.STREAM.LIST",
    *(f"$JS.API.{verb}.{STREAM}" for verb in (
        "STREAM.INFO", "STREAM.CREATE", "STREAM.UPDATE", "STREAM.PURGE", "STREAM.MSG.GET", "DIRECT.GET", "CONSUMER.CREATE")),
    f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.*",
    "$JS.API.DIRECT.GET.STERNA_sterna_KEPT.sterna.sterna.*",
)
PAGE = Path(__file__).resolve().parents[2] / "docs/cluster-wire.md"
TABLE = [("subscribe", subject) for subject in SUBSCRIBES] + [("publish", subject) for subject in PUBLISHES]


class Guarded(Program):
    """A server of NATS with a user for each node, whose rights can be taken and given back."""

    def __init__(self, folder: Path):
        self.folder = folder
        folder.mkdir(parents=True)
        (self.port,) = free_ports(1)
        super().__init__(["nats-server", "-c", str(folder / "nats.conf")], folder / "log")
        self.denied: dict[str, tuple[str, str]] = {}
        # Users that have these rights, and no others.
        self.allowed: dict[str, dict[str, list[str]]] = {}
        self.write()

    def write(self) -> None:
        users = []
        for user in ("one", "two"):
            if user in self.allowed:
                permissions = ", ".join(f"{way}: {json.dumps(subjects)}" for way, subjects in self.allowed[user].items())
                users.append(f"{{ user: {user}, password: right, permissions: {{ {permissions} }} }}")
                continue
            rights = {"publish": "", "subscribe": ""}
            if user in self.denied:
                way, subject = self.denied[user]
                rights[way] = f', deny: ["{subject}"]'
            allowed = '"sterna.sterna.>", "_INBOX.>"'
            users.append(
                f"{{ user: {user}, password: right, permissions: {{\n"
                f'  publish: {{ allow: [{allowed}, "$JS.API.>"]{rights["publish"]} }}\n'
                f'  subscribe: {{ allow: [{allowed}]{rights["subscribe"]} }} }} }}'
            )
        (self.folder / "nats.conf").write_text(
            f'server_name: guarded\nlisten: "127.0.0.1:{self.port}"\n'
            f'jetstream {{ store_dir: "{self.folder / "data"}", max_file_store: 8GB }}\n'
            f"accounts {{ NODES: {{ jetstream: enabled, users: [\n{chr(10).join(users)}\n] }} }}\n"
        )

    def reload(self) -> None:
        """Has the server read its configuration, and waits until it says so."""
        said = self.log.read_text(errors="replace").count("Reloaded server configuration")
        self.write()
        self.send(signal.SIGHUP)
        wait_until("NATS has read its configuration", lambda: self.log.read_text(errors="replace").count(
            "Reloaded server configuration") > said)

    def take(self, user: str, way: str, subject: str) -> None:
        self.denied[user] = (way, subject)
        self.reload()

    def give_back(self) -> None:
        self.denied.clear()
        self.reload()


class Member(Node):
    def __init__(self, folder: Path, name: str, nats: Guarded):
        secret = folder.parent / "secret"
        secret.write_text("right\n")
        super().__init__(folder, name, [nats.port], (
            f'replicas = 1\nmaximum_backoff_ms = 200\npatience_ms = {PATIENCE_MS}\n'
            f'user = "{name}"\npassword_file = "{secret}"\n'), ABSENCE_MS)


def named(way: str, subject: str) -> str:
    return f"does not permit this node to {way} to {subject}:"


def until(member: Member, what: str, condition) -> None:
    try:
        wait_until(what, condition, 60)
    except TimeoutError as error:
        raise Failure(f"{error}; /readyz of {member.name}: {member.page('/readyz')!r}") from error


class Place:
    """One server, and up to two nodes."""

    def __init__(self, name: str):
        folder = FOLDER / name
        self.nats = Guarded(folder / "nats")
        self.one, self.two = (Member(folder / name, name, self.nats) for name in ("one", "two"))
        self.programs = [self.nats, self.one, self.two]

    def __enter__(self) -> Place:
        self.nats.start()
        return self

    def __exit__(self, *_: object) -> None:
        for program in reversed(self.programs):
            program.kill()

    def start_both(self) -> None:
        for member in (self.one, self.two):
            member.start()
        for member in (self.one, self.two):
            until(member, f"{member.name} is ready", member.is_ready)
            until(member, "it sees the other", lambda member=member: member.figure("sterna_cluster_nodes_here") == 1)


def is_acknowledged(member: Member, payload: str) -> bool:
    """One that waits for NATS has no answer until NATS takes it: its client gives up."""
    command = [os.environ["STERNA_BIN"], "pub", member.url("mqtt"), "-t", "t", "-m", payload, "-q", "1"]
    try:
        return subprocess.run(command, capture_output=True, timeout=ANSWER_S, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def at_the_start() -> None:
    """A node that lacks one right does not join, and names it. It joins when it has that right."""
    with Place("start") as place:
        # The streams are there: a condition that cannot hold is looked at by one.
        place.two.start()
        until(place.two, "two is ready", place.two.is_ready)
        found = []
        for way, subject in TABLE:
            place.nats.take("one", way, subject)
            place.one.start()
            said = named(way, subject)
            until(place.one, f"it says: {said}", lambda said=said: said in place.one.page("/readyz"))
            if place.two.figure("sterna_cluster_nodes_here") != 0:
                found.append(f"{way} {subject}: it has joined")
            place.nats.give_back()
            until(place.one, f"it is ready after {way} {subject}", place.one.is_ready)
            place.one.stop()
            until(place.two, "it has left", lambda: place.two.figure("sterna_cluster_nodes_here") == 0)
        if found:
            raise Failure("; ".join(found))
        stored = {stream["stream"]: stream["messages"] for stream in status(place.two)["streams"]}
        for kind in ("LOG", "RETAINED", "INBOX", "KEPT"):
            if stored[f"STERNA_sterna_{kind}"] != 0:
                raise Failure(f"trials were stored: {stored}")


def while_it_serves() -> None:
    """A right is taken from a node that serves: what it acknowledges arrives, also after the absence."""
    for way, subject in (
        ("subscribe", "sterna.sterna.alive.*"), ("subscribe", "sterna.sterna.alive.two"), ("subscribe", "_INBOX.>"),
        ("subscribe", "sterna.sterna.to.one.*"), ("publish", "sterna.sterna.alive.one"),
        ("publish", "sterna.sterna.inbox.*.one"), ("publish", "$JS.API.>"),
    ):
        with Place(f"serves-{way}-{TABLE.index((way, subject)) if (way, subject) in TABLE else subject[-3:]}") as place:
            place.start_both()
            with Reader(place.two, "mqtt", "t", "-q", "1") as reader:
                until(place.one, "the filter is known", lambda: place.one.figure("sterna_cluster_filters") == 1)
                publish_well(place.one, "mqtt", "t", "before", "-q", "1")
                place.nats.take("one", way, subject)
                acknowledged, end = ["before"], time.monotonic() + ABSENCE_MS / 1e3 + 4
                while time.monotonic() < end:
                    payload = f"message {len(acknowledged)}"
                    if is_acknowledged(place.one, payload):
                        acknowledged.append(payload)
                    time.sleep(0.2)
                # Words that are not delivered, though they may be asked for, are no violation.
                if subject == "sterna.sterna.alive.two":
                    said = "this node does not hear two, which lives"
                else:
                    said = f"does not permit this node to {way} to "
                is_told = True
                try:
                    wait_until("it says so", lambda said=said: said in place.one.page("/readyz"), 30)
                except TimeoutError:
                    is_told = False
                place.nats.give_back()
                until(place.one, f"it is ready after {way} {subject}", place.one.is_ready)
                publish_well(place.one, "mqtt", "t", "behind", "-q", "1")
                acknowledged.append("behind")
                until(place.two, "the last has come", lambda: "behind" in reader.lines)
                lost = [payload for payload in acknowledged if payload not in reader.lines]
                if lost:
                    raise Failure(f"without a right to {way} to {subject}, {len(lost)} of {len(acknowledged)} "
                                  f"acknowledged messages were lost: {lost[:3]}")
                if not is_told:
                    raise Failure(f"it does not say: {said}")


def of_the_page(node: str) -> dict[str, list[str]]:
    """The rights of a node by the page, without those of regions."""
    rows = dict(re.findall(r"^\| (subscribes to|publishes to|asks) \| (.*) \|$", PAGE.read_text(), re.MULTILINE))

    def named(row: str) -> list[str]:
        parts = [part for part in rows[row].split(";") if "in a region" not in part]
        first, *subjects = re.findall(r"`(.*?)`", ";".join(parts))
        if first != "sterna.NAME.":
            raise Failure(f"{PAGE.name}: {row}: {first}")
        return [subject if subject.startswith("_INBOX") else f"sterna.sterna.{subject.replace('NODE', node)}"
                for subject in subjects]

    questions = re.findall(r"`(.*?)`", rows["asks"])
    at = questions.index("$JS.API.STREAM.")
    asked = questions[:at] + [f"$JS.API.STREAM.{verb}.*" for verb in questions[at + 1:] if "$" not in verb]
    asked += [f"{verb}.>" for verb in questions[at + 1:] if "$" in verb]
    return {"publish": named("publishes to") + asked, "subscribe": named("subscribes to")}


def no_others() -> None:
    """The rights of the page are enough for a node. They do not allow an import over what is there, which changes nothing."""
    sterna = os.environ["STERNA_BIN"]
    guarded = Place("enough")
    guarded.nats.allowed["one"] = of_the_page("one")
    guarded.nats.write()
    with guarded as place:
        place.start_both()
        publish_well(place.one, "mqtt", "kept", "still here", "-q", "1", "-r")
        with Reader(place.two, "mqtt", "kept", "-q", "1") as reader:
            until(place.two, "it is retained there", lambda: "still here" in reader.lines)
        place.one.stop()
        copy = FOLDER / "enough/cluster.jsonl"
        subprocess.run([sterna, "cluster", "export", "--config", place.two.config, "-o", copy], check=True, capture_output=True)
        place.two.stop()
        command = [sterna, "cluster", "import", "--config", place.one.config, "-i", copy, "--replace"]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode != 2 or "$JS.API.STREAM.DELETE." not in done.stderr:
            raise Failure(f"the import: {done}")
        place.one.start()
        until(place.one, "it is ready behind an import that was refused", place.one.is_ready)
        with Reader(place.one, "mqtt", "kept", "-q", "1") as reader:
            until(place.one, "it is still retained", lambda: "still here" in reader.lines)


def main() -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    rows = [("each right is missing at the start", at_the_start), ("a right is taken from a node that serves", while_it_serves),
            ("the rights of the page and no others", no_others)]
    run_rows(rows, lambda row: row(), lambda _: None)


if __name__ == "__main__":
    sys.exit(main())
